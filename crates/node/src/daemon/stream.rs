//! The connection over which the primary's daemon tells the backup's what its servers write, and is
//! told what may leave (decision 13): [`Record`]s in a [`control::Stream`] over TCP. Never blocks.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use control::{Identity, Psk, Rng, StreamError};
use nix::poll::PollFlags;
use replies::codec::{Malformed, Reader, Record, Writer};
use socket2::{Domain, Protocol, Socket, Type};
use takeover::NotAnswered;
use thiserror::Error;

/// How long the two may take to know each other.
const HANDSHAKE: Duration = Duration::from_millis(500);

/// Bytes that one turn reads at most, so that no other duty waits for long.
const TURN: usize = 1 << 20;

/// What both ends need to know each other.
#[derive(Clone)]
pub struct Secrets {
    pub psk: Psk,
    pub identity: Identity,
    pub rng: Rng,
}

/// What a connection is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// The flows' scope, by its index.
    pub scope: usize,
    /// The epoch in which one node is their primary and the other one their backup.
    pub epoch: u64,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} of share {}", self.epoch, self.scope)
    }
}

/// Why a connection is of no more use.
#[derive(Debug, Error)]
pub enum Broken {
    #[error("the peer has closed the connection")]
    Closed,
    #[error("the peer did not answer in time")]
    Silent,
    #[error("the peer speaks of {theirs}, this node of {ours}")]
    Subject { ours: Subject, theirs: Subject },
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Sealed(#[from] StreamError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    NotAnswered(#[from] NotAnswered),
    #[error("the backup sent a record that only a primary sends")]
    NotAsked,
}

/// One end of a connection.
pub struct Stream {
    socket: TcpStream,
    sealed: control::Stream,
    reader: Reader,
    /// The Hello, until it can be sealed.
    hello: Writer,
    /// `None`: the caller says.
    subject: Option<Subject>,
    /// Until when the peer must have said Hello; `None`: it has.
    deadline: Option<Instant>,
    received: Vec<u8>,
    plaintext: Vec<u8>,
}

impl Stream {
    /// Calls the peer, from the address `own`.
    pub fn dial(
        own: IpAddr,
        peer: SocketAddr,
        secrets: &Secrets,
        subject: Subject,
        now: Instant,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(peer), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::new(own, 0).into())?;
        match socket.connect(&peer.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let sealed = control::Stream::dial(&secrets.psk, &secrets.identity, &secrets.rng);
        let mut stream = Self::new(socket.into(), sealed, now)?;
        stream.say_hello(subject);
        Ok(stream)
    }

    /// Takes the peer's call, of which [`Self::called_about`] tells the subject.
    pub fn answer(socket: TcpStream, secrets: &Secrets, now: Instant) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let sealed = control::Stream::answer(&secrets.psk, &secrets.identity, &secrets.rng);
        Self::new(socket, sealed, now)
    }

    fn new(socket: TcpStream, sealed: control::Stream, now: Instant) -> io::Result<Self> {
        // A lone small reply waits for nothing.
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            sealed,
            reader: Reader::default(),
            hello: Writer::default(),
            subject: None,
            deadline: Some(now + HANDSHAKE),
            received: vec![0; 64 * 1024],
            plaintext: Vec::new(),
        })
    }

    fn say_hello(&mut self, subject: Subject) {
        let share = u8::try_from(subject.scope).expect("there are two shares");
        self.hello = Writer::new(share, subject.epoch);
        self.subject = Some(subject);
    }

    /// What to wait for.
    pub fn events(&self) -> PollFlags {
        if self.is_flushed() { PollFlags::POLLIN } else { PollFlags::POLLIN | PollFlags::POLLOUT }
    }

    /// Has the peer said Hello, and speaks of the same?
    pub fn is_ready(&self) -> bool {
        self.deadline.is_none()
    }

    /// Until when something must happen.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Has everything been given to TCP?
    pub fn is_flushed(&self) -> bool {
        self.sealed.to_send().is_empty()
    }

    /// Takes what has arrived. True: there may be more; what arrives later is told by poll(2).
    pub fn receive(&mut self, now: Instant) -> Result<bool, Broken> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Err(Broken::Silent);
        }
        let mut turn = TURN;
        while turn > 0 {
            match self.socket.read(&mut self.received) {
                Ok(0) => return Err(Broken::Closed),
                Ok(count) => {
                    self.sealed.received(&self.received[..count], &mut self.plaintext)?;
                    if count < self.received.len() {
                        return Ok(false);
                    }
                    turn = turn.saturating_sub(count);
                }
                Err(error) if must_wait(&error) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// What the caller speaks of, once he has said Hello. To be asked until then, and to be answered
    /// by [`Self::agree`].
    ///
    /// # Errors
    /// He has said something else.
    pub fn called_about(&mut self) -> Result<Option<Subject>, Broken> {
        self.take_in();
        Ok(match self.reader.next_record()? {
            Some((Record::Hello { share, epoch, .. }, _)) => {
                Some(Subject { scope: share.into(), epoch })
            }
            // The reader lets nothing pass in front of it.
            Some(_) | None => None,
        })
    }

    /// This node speaks of the same.
    pub fn agree(&mut self, subject: Subject) {
        self.say_hello(subject);
        self.deadline = None;
    }

    /// Has the one who was called said Hello by now?
    fn greeted(&mut self) -> Result<bool, Broken> {
        if self.deadline.is_none() {
            self.take_in();
            return Ok(true);
        }
        let Some(theirs) = self.called_about()? else { return Ok(false) };
        match self.subject {
            Some(ours) if ours != theirs => Err(Broken::Subject { ours, theirs }),
            Some(_) => {
                self.deadline = None;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Lets the reader have what was received.
    fn take_in(&mut self) {
        self.reader.push(&self.plaintext);
        self.plaintext.clear();
    }

    /// The next record that has been received behind the Hello.
    pub fn next_record(&mut self) -> Result<Option<(Record, &[u8])>, Broken> {
        if !self.greeted()? {
            return Ok(None);
        }
        Ok(self.reader.next_record()?)
    }

    /// Takes over what is to be said; not before the peer [is ready](Self::is_ready). It is given to
    /// TCP by [`Self::flush`].
    pub fn send(&mut self, frames: &mut Writer) {
        seal(&mut self.sealed, &mut self.hello);
        seal(&mut self.sealed, frames);
    }

    /// Gives to TCP what it takes.
    pub fn flush(&mut self) -> Result<(), Broken> {
        if self.sealed.established() {
            seal(&mut self.sealed, &mut self.hello);
        }
        while !self.sealed.to_send().is_empty() {
            match self.socket.write(self.sealed.to_send()) {
                Ok(count) => self.sealed.sent(count),
                Err(error) if must_wait(&error) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// There is nothing to read, no room to write, or no connection yet.
fn must_wait(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

fn seal(sealed: &mut control::Stream, frames: &mut Writer) {
    let all = frames.bytes().len();
    if all > 0 {
        sealed.write(frames.bytes());
        frames.sent(all);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

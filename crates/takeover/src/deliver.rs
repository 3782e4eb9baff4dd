//! Logged replies on their way to clients whose primary is dead.
//!
//! No server is to write them, so this node's daemon does: a child of a listener of its own is born
//! where the client stands in both streams, and the log is written into it like into any socket.
//! What the client says meanwhile is logged as during an adoption. Then the child either ends the
//! connection, or it vanishes without a word (`TCP_REPAIR`, man 7 tcp) and another takes its place:
//! the flow's new server, or a reset.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use datapath::FlowKey;
use nix::sys::socket::{setsockopt, sockopt};

/// Bytes that one delivery writes or reads before it is another one's turn.
const TURN: usize = 256 * 1024;

/// How long a client may take to end a connection that has been ended here.
const LINGER: Duration = Duration::from_secs(30);

/// The socket from which the data path makes the children that deliver.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
}

impl Listener {
    /// On a loopback address, with a port that the kernel chooses: nobody needs to know it.
    ///
    /// # Errors
    /// The kernel has no loopback address, or no port left.
    pub fn open() -> io::Result<Self> {
        // One of IPv6 takes children of both families.
        let socket = TcpListener::bind((Ipv6Addr::LOCALHOST, 0))
            .or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket })
    }

    /// A child that has been born, and whose it is. Others than the data path can reach the listener
    /// from this host: such a key belongs to no flow.
    pub(crate) fn accept(&self) -> Option<(FlowKey, TcpStream)> {
        loop {
            match self.socket.accept() {
                Ok((child, client)) => {
                    let Ok(server) = child.local_addr() else { continue };
                    if let Err(error) = child.set_nonblocking(true) {
                        tracing::warn!(%error, "a delivery would block");
                        continue;
                    }
                    return Some((FlowKey::new(client, server), child));
                }
                // The child is dead already.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept the child that is to deliver a reply");
                    return None;
                }
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One flow's logged bytes and the child that sends them.
#[derive(Debug)]
pub(crate) struct Delivery {
    child: Option<TcpStream>,
    bytes: Vec<u8>,
    /// Invariant: at most the length of `bytes`.
    written: usize,
    /// What the client sends is thrown away, as the journal has it; else it is left in the socket
    /// and the window closes.
    reads: bool,
}

/// How far a delivery has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The child does not exist, or takes no more for now.
    Waiting,
    /// TCP has everything.
    Written,
    /// The client has ended the connection, or is gone.
    Broken,
}

impl Delivery {
    pub(crate) fn new(bytes: Vec<u8>, reads: bool) -> Self {
        Self { child: None, bytes, written: 0, reads }
    }

    pub(crate) fn is_born(&self) -> bool {
        self.child.is_some()
    }

    /// The child that is to send the bytes. Only the first one is.
    pub(crate) fn born(&mut self, child: TcpStream) {
        match self.child {
            None => self.child = Some(child),
            Some(_) => vanish(child),
        }
    }

    /// Gives the child what it takes.
    pub(crate) fn drive(&mut self) -> Step {
        let Some(child) = &mut self.child else { return Step::Waiting };
        if self.reads && discard(child) == Discarded::Broken {
            return Step::Broken;
        }
        let turn = self.bytes.len().min(self.written + TURN);
        while self.written < turn {
            match child.write(&self.bytes[self.written..turn]) {
                Ok(taken) => self.written += taken,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Waiting,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Step::Broken,
            }
        }
        if self.written < self.bytes.len() {
            return Step::Waiting;
        }
        // Its TCP has it: it is sent until it is acknowledged, and kept by nobody else.
        self.bytes = Vec::new();
        self.written = 0;
        match child.take_error() {
            Ok(None) => Step::Written,
            _ => Step::Broken,
        }
    }

    /// Ends the connection behind what was delivered.
    pub(crate) fn end(self, now: Instant) -> Option<Lingering> {
        let child = self.child?;
        // The client may have reset the connection meanwhile.
        child.shutdown(Shutdown::Write).ok()?;
        Some(Lingering { child, until: now + LINGER })
    }

    /// The child vanishes without a segment.
    pub(crate) fn vanish(&mut self) {
        if let Some(child) = self.child.take() {
            vanish(child);
        }
    }
}

/// A connection that was ended here and not yet by its client. If it were closed now, what the client
/// still sends would be answered with a reset, and that could overtake the end of the reply
/// (RFC 9112 §9.6).
#[derive(Debug)]
pub(crate) struct Lingering {
    child: TcpStream,
    until: Instant,
}

impl Lingering {
    /// Is it still to be waited for?
    pub(crate) fn is_open(&mut self, now: Instant) -> bool {
        now < self.until && discard(&mut self.child) == Discarded::More
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Discarded {
    /// More may come.
    More,
    /// The client's FIN stands in front.
    End,
    Broken,
}

fn discard(child: &mut TcpStream) -> Discarded {
    let mut buffer = [0; 16 * 1024];
    let mut turn = TURN;
    while turn > 0 {
        match child.read(&mut buffer) {
            Ok(0) => return Discarded::End,
            Ok(count) => turn = turn.saturating_sub(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Discarded::More,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Discarded::Broken,
        }
    }
    Discarded::More
}

/// The connection is gone without a segment.
pub(crate) fn vanish(child: TcpStream) {
    // A socket that is closed already has nothing to say either.
    if let Err(error) = setsockopt(&child, sockopt::TcpRepair, &1) {
        tracing::warn!(%error, "a child that delivered a reply may reset its connection");
    }
}

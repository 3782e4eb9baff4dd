//! The thread that tells the backup what this node's servers write, while this node is primary and
//! has a backup. It carries bytes and knows no protocol: where a reply ends, and what may leave, is
//! found out by the backup (decision 13).
//!
//! It reads the output ring only while the backup listens and TCP takes what it says. Until then the
//! ring fills, and behind it the data path reports what it could not capture.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use datapath::{FlowKey, FlowTable, Output, OutputSource, Ringer};
use gate::Orders;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use replies::codec::Record;
use takeover::key_of;

use super::inbox::{Inbox, Post};
use super::journal::come_first;
use super::membership;
use super::scope;
use super::stream::{Broken, Secrets, Stream};
use super::told::Told;

/// Pause between two rings; eight times what a ring takes, if that is longer.
const RING: Duration = Duration::from_millis(1);

/// How long servers may take for what they were asked before their node hands over.
const LAST_REPLIES: Duration = Duration::from_secs(1);

/// What the membership thread asks for.
pub enum Order {
    /// Of the flows in the scope with this index.
    Of(usize, Duty),
    Stop,
}

/// What becomes of what servers write to the flows in one scope.
pub enum Duty {
    /// This node serves, and has a backup: everything that it holds goes to that one.
    Duplex { epoch: u64 },
    /// It has none: nothing is held any more.
    Simplex,
    /// A server has crashed, and nobody else can carry its connections on: they end.
    CrashKept,
    /// It does not serve.
    Silent,
    /// It is about to hand over: tell the membership thread once all that servers were asked is answered,
    /// or they had the time to.
    Quiesce,
}

/// What the thread is made of.
pub struct Parts {
    /// Where the backup calls: one socket on each link.
    pub listeners: Vec<TcpListener>,
    /// Who may call.
    pub peers: Vec<IpAddr>,
    pub secrets: Secrets,
    pub source: OutputSource,
    pub orders: Orders,
    /// Of each scope.
    pub tables: Vec<FlowTable>,
    pub ringer: Option<Ringer>,
    pub membership: Post<membership::Message>,
}

/// Sockets that the backup calls.
pub fn listen(own: &[IpAddr], port: u16) -> anyhow::Result<Vec<TcpListener>> {
    let open = |&address: &IpAddr| {
        let at = SocketAddr::new(address, port);
        let listener = TcpListener::bind(at)
            .with_context(|| format!("cannot listen on {at} for the peer; is the port taken?"))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    own.iter().map(open).collect()
}

pub fn start(
    make: impl FnOnce() -> anyhow::Result<Parts> + Send + 'static,
) -> anyhow::Result<(Post<Order>, JoinHandle<()>)> {
    let (orders, inbox) = Inbox::new().context("cannot make an event descriptor")?;
    let (started, outcome) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("output".into()).spawn(move || match make() {
        Ok(parts) => {
            let _ = started.send(Ok(()));
            come_first();
            if let Err(error) = run(parts, &inbox) {
                // Held output would wait for ever; a node without this thread must not go on.
                tracing::error!(%error, "servers' output can no longer be read; this node ends");
                std::process::abort();
            }
        }
        Err(error) => {
            let _ = started.send(Err(error));
        }
    })?;
    outcome.recv().context("the output thread ended at once")??;
    Ok((orders, thread))
}

/// Rings at servers that wait beside unread bytes; not too often, since each ring is a pass over all
/// sockets.
struct Bell {
    ringer: Option<Ringer>,
    wanted: bool,
    not_before: Instant,
}

impl Bell {
    fn due(&self) -> Option<Instant> {
        self.wanted.then_some(self.not_before)
    }

    fn ring_if_due(&mut self, now: Instant) {
        let Some(ringer) = self.ringer.as_ref().filter(|_| self.wanted && now >= self.not_before)
        else {
            return;
        };
        self.wanted = false;
        if let Err(error) = ringer.ring() {
            tracing::warn!(%error, "cannot ring at servers with unread requests: they may hang");
        }
        self.not_before = now + RING.max(now.elapsed() * 8);
    }
}

fn run(parts: Parts, inbox: &Inbox<Order>) -> anyhow::Result<()> {
    let Parts { listeners, peers, secrets, source, orders, tables, ringer, membership } = parts;
    let told = RefCell::new(tables.iter().map(|_| Told::default()).collect::<Vec<_>>());
    let unread = Cell::new(false);
    let ring = source
        .reader(|output, payload| {
            let mut told = told.borrow_mut();
            let index = scope::index_of(told.len(), &output.flow());
            // A server waits beside unread bytes, whosever they are.
            unread.set(unread.get() | matches!(output, Output::Unread { .. }));
            told[index].tell(output, payload);
        })
        .context("cannot read the output ring")?;
    let mut bell = Bell { ringer, wanted: false, not_before: Instant::now() };
    let primary =
        |table| Primary { table, epoch: None, stream: None, listed: false, quiet_by: None };
    let mut primaries: Vec<_> = tables.into_iter().map(primary).collect();
    let mut door = Door { secrets, calling: Vec::new() };
    loop {
        let deadline = door.calling.iter().filter_map(Stream::deadline).min();
        let quiet_by = primaries.iter().filter_map(|primary| primary.quiet_by);
        let due = deadline.into_iter().chain(quiet_by).chain(bell.due()).min();
        let mut fds = vec![PollFd::new(inbox.as_fd(), PollFlags::POLLIN)];
        fds.extend(listeners.iter().map(|l| PollFd::new(l.as_fd(), PollFlags::POLLIN)));
        for stream in door.calling.iter().chain(primaries.iter().flat_map(|p| &p.stream)) {
            fds.push(PollFd::new(stream.as_fd(), stream.events()));
        }
        let at_ring = fds.len();
        // There is one ring: who must wait keeps the others waiting.
        let wants_output = |primaries: &[Primary]| primaries.iter().all(Primary::wants_output);
        if wants_output(&primaries) {
            fds.push(PollFd::new(ring.fd(), PollFlags::POLLIN));
        }
        // EINTR and the like: everything is looked at.
        let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
        let failed = ppoll(&mut fds, wait.map(TimeSpec::from_duration), None).is_err();
        let is_ready = |fd: &PollFd<'_>| failed || fd.any() != Some(false);
        let (at_listeners, at_streams) = (1, 1 + listeners.len());
        let rung = is_ready(&fds[0]);
        let called = fds[at_listeners..at_streams].iter().any(is_ready);
        let spoken = fds[at_streams..at_ring].iter().any(is_ready);
        let now = Instant::now();
        if rung {
            inbox.hush();
        }
        while let Some(order) = inbox.take() {
            let (index, duty) = match order {
                Order::Of(index, duty) => (index, duty),
                Order::Stop => return Ok(()),
            };
            let (primary, told) = (&mut primaries[index], &mut told.borrow_mut()[index]);
            match duty {
                Duty::Duplex { epoch } => primary.begin(epoch, told),
                Duty::Simplex => {
                    primary.end(told);
                    primary.open_all(&orders);
                }
                Duty::CrashKept => told.keep_crashed(),
                Duty::Silent => primary.end(told),
                Duty::Quiesce => primary.quiesce(told, now),
            }
        }
        for listener in listeners.iter().filter(|_| called) {
            while let Ok((socket, from)) = listener.accept() {
                if peers.contains(&from.ip().to_canonical()) {
                    door.take_call(socket, primaries.len(), now);
                }
            }
        }
        let late = deadline.is_some_and(|deadline| now >= deadline);
        if spoken || late {
            let told = &mut told.borrow_mut();
            door.greet(&mut primaries, told, now);
            for (primary, told) in primaries.iter_mut().zip(told.iter_mut()) {
                let heard = primary.hear(&orders, told, now);
                primary.unless_broken(heard, told);
            }
        }
        if wants_output(&primaries) {
            ring.drain().context("cannot read the output ring")?;
            told.borrow_mut().iter_mut().for_each(Told::say_all_that_waits);
        }
        bell.wanted |= unread.take();
        for (primary, told) in primaries.iter_mut().zip(told.borrow_mut().iter_mut()) {
            let said = primary.say(told);
            primary.unless_broken(said, told);
        }
        let now = Instant::now();
        for (index, primary) in primaries.iter_mut().enumerate() {
            if primary.quiet_by.take_if(|by| *by <= now).is_some() {
                membership.send(membership::Message::Quiet(index));
            }
        }
        bell.ring_if_due(now);
    }
}

/// Where backups call.
struct Door {
    secrets: Secrets,
    /// Those who call and have not proved yet that they are a backup.
    calling: Vec<Stream>,
}

impl Door {
    /// No more of them than the peer makes calls: who comes last is his.
    fn take_call(&mut self, socket: TcpStream, most: usize, now: Instant) {
        match Stream::answer(socket, &self.secrets, now) {
            Ok(stream) => {
                if self.calling.len() == most {
                    self.calling.remove(0);
                }
                self.calling.push(stream);
            }
            Err(error) => tracing::warn!(%error, "cannot take the backup's call"),
        }
    }

    /// Once the caller has proved to be the backup, what it said on another connection is over. One
    /// that is faster than this node's own change calls again.
    fn greet(&mut self, primaries: &mut [Primary], told: &mut [Told], now: Instant) {
        for mut stream in std::mem::take(&mut self.calling) {
            let subject = stream.receive(now).and_then(|_| {
                stream.flush()?;
                stream.called_about()
            });
            match subject {
                Ok(None) => self.calling.push(stream),
                Ok(Some(subject)) => {
                    let Some(primary) = primaries.get_mut(subject.scope) else { continue };
                    if primary.epoch == Some(subject.epoch) {
                        stream.agree(subject);
                        primary.stream = Some(stream);
                        primary.listed = false;
                        told[subject.scope].begin_anew();
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a call that should be the backup's is of no use");
                }
            }
        }
    }
}

/// This node's part for the flows in one scope.
struct Primary {
    table: FlowTable,
    /// The epoch in which this node serves and has a backup.
    epoch: Option<u64>,
    /// The backup's call.
    stream: Option<Stream>,
    /// The backup has said on it what it holds.
    listed: bool,
    /// It is about to hand over: when that is to be, unless the backup says before that all is answered.
    quiet_by: Option<Instant>,
}

impl Primary {
    /// Does anything become of what servers write? Without a backup it is thrown away, since their
    /// gates are open.
    fn wants_output(&self) -> bool {
        match &self.stream {
            Some(stream) => self.listed && stream.is_flushed(),
            None => self.epoch.is_none(),
        }
    }

    fn begin(&mut self, epoch: u64, told: &mut Told) {
        if self.epoch != Some(epoch) {
            self.end(told);
            self.epoch = Some(epoch);
        }
    }

    /// The backup is to keep what clients ask from now on. If it cannot hear that, nothing is waited for.
    fn quiesce(&mut self, told: &mut Told, now: Instant) {
        let hears = self.epoch.is_some() && self.stream.is_some() && self.listed;
        if hears {
            told.frames().push(&Record::Park);
        }
        self.quiet_by = Some(if hears { now + LAST_REPLIES } else { now });
    }

    fn end(&mut self, told: &mut Told) {
        self.epoch = None;
        self.stream = None;
        self.be_quiet();
        *told = Told::default();
    }

    /// Lets leave what was held for a backup that is gone. The data path holds nothing more: only
    /// TCP does not know yet that it may try again.
    fn open_all(&self, orders: &Orders) {
        for key in self.table.gated() {
            report(&key, orders.open(&key));
        }
    }

    /// There is nothing more to wait for.
    fn be_quiet(&mut self) {
        let now = Instant::now();
        self.quiet_by = self.quiet_by.map(|by| by.min(now));
    }

    fn hear(&mut self, orders: &Orders, told: &mut Told, now: Instant) -> Result<(), Broken> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.receive(now)?;
        while let Some(stream) = &mut self.stream
            && let Some((record, _)) = stream.next_record()?
        {
            match record {
                Record::Holds { flow, seq } => told.compare(key_of(&flow), seq),
                Record::HoldsNoMore => {
                    told.compared();
                    self.listed = true;
                }
                Record::Release { flow, seq, ahead } => {
                    let key = key_of(&flow);
                    let given = match ahead {
                        true => orders.release_ahead(&key, seq),
                        false => orders.release(&key, seq),
                    };
                    report(&key, given);
                }
                Record::Skip { flow, seq } => told.skip(&key_of(&flow), seq),
                Record::Open { flow } => {
                    let key = key_of(&flow);
                    told.opened(&key);
                    report(&key, orders.open(&key));
                }
                Record::Parked => self.be_quiet(),
                _ => return Err(Broken::NotAsked),
            }
        }
        Ok(())
    }

    fn say(&mut self, told: &mut Told) -> Result<(), Broken> {
        if self.epoch.is_none() {
            *told = Told::default();
        }
        let Some(stream) = &mut self.stream else { return Ok(()) };
        stream.send(told.frames());
        stream.flush()
    }

    fn unless_broken(&mut self, outcome: Result<(), Broken>, told: &mut Told) {
        if let Err(error) = outcome {
            tracing::warn!(%error, "the connection to the backup is lost");
            self.stream = None;
            self.be_quiet();
            // What is in them is said not to have arrived when the backup calls again.
            told.begin_anew();
        }
    }
}

fn report(key: &FlowKey, given: Result<(), hostnet::TunError>) {
    if let Err(error) = given {
        tracing::warn!(flow = %key, %error, "cannot give an order to a gate");
    }
}

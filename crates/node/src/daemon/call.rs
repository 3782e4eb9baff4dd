//! The backup's end of the connection to the primary's daemon: it calls, feeds what it hears to the
//! engine, and says what the engine orders.
//!
//! While nobody answers, the primary's servers wait for orders that cannot come. So after
//! [`PATIENCE`] the backup opens what is held, by frames that need no connection.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cluster::Link;
use nix::poll::PollFd;
use replies::codec::Writer;
use takeover::Engine;

use super::scope::Scope;
use super::stream::{Broken, Secrets, Stream, Subject};
use crate::config::Node;

/// Pause between two calls.
const AGAIN: Duration = Duration::from_millis(20);

/// How long servers may wait for a connection before they go on unprotected; and how often they are
/// told to, since they may not have heard it.
const PATIENCE: Duration = Duration::from_millis(500);

pub struct Call {
    scope: Scope,
    secrets: Secrets,
    /// Own address and the peer's, on the service link and on the cluster link.
    ends: [(IpAddr, SocketAddr); 2],
    via: Link,
    /// The epoch in which this node is armed.
    epoch: Option<u64>,
    stream: Option<Stream>,
    /// What this node holds has been said on it.
    listed: bool,
    frames: Writer,
    call_at: Instant,
    /// When held flows are opened unless somebody answers before.
    open_at: Instant,
    /// A lost connection was reported, and none has stood since.
    reported: bool,
}

impl Call {
    /// About the flows in `scope`.
    pub fn new(scope: Scope, node: &Node, secrets: Secrets) -> Self {
        let end = |own: IpAddr, peer: IpAddr| (own, SocketAddr::new(peer, node.control_port));
        let now = Instant::now();
        Self {
            scope,
            secrets,
            ends: [
                end(node.address.service, node.peer_address.service),
                end(node.address.cluster, node.peer_address.cluster),
            ],
            via: Link::Cluster,
            epoch: None,
            stream: None,
            listed: false,
            frames: Writer::default(),
            call_at: now,
            open_at: now,
            reported: false,
        }
    }

    /// This node is the armed backup of `epoch`.
    pub fn pair(&mut self, epoch: u64, now: Instant) {
        self.hang_up();
        self.epoch = Some(epoch);
        self.call_at = now;
        self.open_at = now + PATIENCE;
    }

    /// This node is no backup any more.
    pub fn unpair(&mut self) {
        self.hang_up();
        self.epoch = None;
    }

    /// The link that works.
    pub fn via(&mut self, link: Link, now: Instant) {
        if self.via != link {
            self.via = link;
            self.hang_up();
            self.call_at = now;
        }
    }

    /// What to wait for.
    pub fn fd(&self) -> Option<PollFd<'_>> {
        self.stream.as_ref().map(|stream| PollFd::new(stream.as_fd(), stream.events()))
    }

    /// When there is something to do at the latest.
    pub fn due(&self) -> Option<Instant> {
        self.epoch?;
        let call = self.stream.is_none().then_some(self.call_at);
        let open = (!self.listed).then_some(self.open_at);
        self.deadline().into_iter().chain(call).chain(open).min()
    }

    /// Calls, hears and speaks. `drain` reads the log: a reply comes after its request. `ready`:
    /// poll(2) says that there is something to hear, or room to speak.
    pub fn turn(&mut self, engine: &RefCell<Engine>, drain: impl Fn(), ready: bool, now: Instant) {
        if !self.listed {
            // Nobody is there to be told, and who comes is told what counts then.
            engine.borrow_mut().take_records();
        }
        let Some(epoch) = self.epoch else { return };
        if self.stream.is_none() && now >= self.call_at {
            self.call_at = now + AGAIN;
            self.call(epoch, now);
        }
        if let Err(error) = self.converse(engine, drain, ready, now) {
            self.report(&error);
            self.hang_up();
            self.call_at = now + AGAIN;
            self.open_at = now + PATIENCE;
        }
        if !self.listed && now >= self.open_at {
            self.open_at = now + PATIENCE;
            engine.borrow_mut().open_held(now);
        }
    }

    /// The primary is dead: hears what it has said to the end.
    pub fn last_words(&mut self, engine: &RefCell<Engine>, drain: impl Fn(), now: Instant) {
        while let Ok(true) = self.hear(engine, &drain, now) {}
        self.unpair();
    }

    fn deadline(&self) -> Option<Instant> {
        self.stream.as_ref().and_then(Stream::deadline)
    }

    fn call(&mut self, epoch: u64, now: Instant) {
        let (own, peer) = match self.via {
            Link::Service => self.ends[0],
            Link::Cluster => self.ends[1],
        };
        let subject = Subject { scope: self.scope.index(), epoch };
        match Stream::dial(own, peer, &self.secrets, subject, now) {
            Ok(stream) => self.stream = Some(stream),
            Err(error) => self.report(&error.into()),
        }
    }

    fn converse(
        &mut self,
        engine: &RefCell<Engine>,
        drain: impl Fn(),
        ready: bool,
        now: Instant,
    ) -> Result<(), Broken> {
        let late = self.deadline().is_some_and(|at| now >= at);
        if ready || late {
            while self.hear(engine, &drain, now)? {}
        }
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if stream.is_ready() {
            let mut engine = engine.borrow_mut();
            if !self.listed {
                self.listed = true;
                self.reported = false;
                for record in engine.holdings() {
                    self.frames.push(&record);
                }
            }
            for record in engine.take_records() {
                self.frames.push(&record);
            }
            stream.send(&mut self.frames);
        }
        stream.flush()
    }

    /// True: there may be more to hear.
    fn hear(
        &mut self,
        engine: &RefCell<Engine>,
        drain: &impl Fn(),
        now: Instant,
    ) -> Result<bool, Broken> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let received = stream.receive(now);
        // Also what came before the end.
        drain();
        while let Some((record, payload)) = stream.next_record()? {
            engine.borrow_mut().on_reply_record(&record, payload, now)?;
        }
        received
    }

    fn report(&mut self, error: &Broken) {
        if !std::mem::replace(&mut self.reported, true) {
            tracing::warn!(%error, "no connection to the primary's daemon; trying again");
        }
    }

    fn hang_up(&mut self) {
        self.stream = None;
        self.listed = false;
        self.frames = Writer::default();
    }
}

//! One node's end of the control channel.
//!
//! The problem: a peer may restart at any moment, datagrams are lost, doubled and overtaken, both
//! sides may begin at once, and anybody on either link may send anything, recorded handshakes
//! included. Replacing the session whenever a handshake message arrives, the obvious way, lets a
//! replayed message 1 cut the channel, which here would mean a failover.
//!
//! So sessions are earned. A handshake gives each side keys; they serve for sending only once the
//! peer has proved, by one authenticated datagram under them, that it has them too:
//!
//! - The side that answered keeps the keys as a *candidate*. The other side's first datagram under
//!   them promotes the candidate to the *current* session.
//! - The side that asked keeps them as *next* and repeats an empty datagram under them until one
//!   comes back. Without a current session it sends under *next* at once: there is nothing to
//!   protect, and the answer it has read was made for its own fresh public key.
//! - The replaced session is *previous* for a second and still opens what was under way, unless
//!   the peer has been restarted.
//!
//! When both sides ask at once, both handshakes may end. The session begun by the node with the
//! lesser name wins: that node does not promote a candidate while it has a *next*; the other
//! promotes whatever is proved first and drops the rest. A node that hears nothing for a while
//! asks again, whatever it believes, so no disagreement outlives [`SILENCE`].
//!
//! Work per datagram is bounded: one cipher pass for data, one key derivation for a stranger's
//! message 1, and a budget of Diffie-Hellman operations for replayed ones.

use std::collections::VecDeque;
use std::time::Duration;

use crate::noise::{Hello, Initiator, Responder};
use crate::packet::{ClusterTag, MAX_PLAINTEXT, Malformed, PUBLIC_KEY, Packet};
use crate::session::{Refused, Session};
use crate::{Psk, Rng};

/// How long after an unanswered message 1 it is sent again, at first and at most.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_millis(250);
/// How long one message 1 is repeated before another one, with a fresh key, takes its place.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How long the sessions that are not current live.
const NEXT_LIFE: Duration = Duration::from_secs(1);
const CANDIDATE_LIFE: Duration = Duration::from_secs(3);
const PREVIOUS_LIFE: Duration = Duration::from_secs(1);
/// How long a session may be silent before a new handshake is tried beside it.
const SILENCE: Duration = Duration::from_secs(1);
/// The side that answered renegotiates this much later than the other, if it must.
const ANSWERER_PATIENCE: u32 = 2;
const CANDIDATES_MAX: usize = 4;
/// Diffie-Hellman budget for other nodes' messages: a burst, and one more each period.
const BUDGET_MAX: u32 = 16;
const BUDGET_PERIOD: Duration = Duration::from_millis(10);

/// Who we are, and whom we speak with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Both nodes say the same.
    pub cluster: String,
    /// Our name: 1 to 255 bytes, not the peer's.
    pub name: String,
    /// The only name that is spoken with.
    pub peer: String,
    /// A number that differs each time this node starts.
    pub incarnation: u64,
}

impl Identity {
    pub(crate) fn check(&self) {
        assert!((1..=255).contains(&self.name.len()), "a name has 1 to 255 bytes");
        assert_ne!(self.name, self.peer, "the nodes' names differ");
    }

    /// What we say of ourselves in a handshake.
    pub(crate) fn hello(&self, session: u32) -> Hello {
        Hello { session, incarnation: self.incarnation, name: self.name.clone() }
    }
}

/// The peer, as it has proved itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    /// Differs from the last one seen: the peer was restarted.
    pub incarnation: u64,
}

/// When to renegotiate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub rekey_after: Duration,
    /// Datagrams sealed under one session.
    pub rekey_after_sealed: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { rekey_after: Duration::from_secs(3600), rekey_after_sealed: 1 << 40 }
    }
}

/// What came of one datagram.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// A message from the peer, authenticated, delivered once. Never empty.
    pub plaintext: Option<Vec<u8>>,
    /// Datagrams to send back, on the link that the datagram came by or on both.
    pub replies: Vec<Vec<u8>>,
    /// Why the datagram changed nothing.
    pub rejected: Option<Rejected>,
    /// A session with a peer that has just proved itself: new, restarted or renegotiated.
    pub joined: Option<Peer>,
}

/// Why a datagram was refused. Except for [`Rejected::Name`], what it says of the sender is its
/// unauthenticated claim: fit for a message to the operator, not for a decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error(
        "a node speaks version {theirs} of the control protocol, this one speaks version {}; \
             install the same release on both",
        crate::VERSION
    )]
    Version { theirs: u8 },
    #[error(
        "a node of another cluster sends here; give both nodes the same `cluster`, or \
             other addresses"
    )]
    Cluster,
    #[error(
        "a node has another key, or its datagram was damaged; copy the key file from one \
             node to the other"
    )]
    Key,
    #[error(
        "a node with our key is called {theirs:?}, which is not the peer's name; give each \
             node the other's name as `peer`"
    )]
    Name { theirs: String },
    #[error("not a control datagram, or forged, or damaged")]
    Garbage,
    #[error("a datagram that was seen before")]
    Replay,
    #[error("longer than any control datagram")]
    TooLong,
    #[error("a datagram of a session that does not exist, such as one from before a restart")]
    UnknownSession,
    #[error("more handshakes at once than two nodes need; somebody may be repeating old ones")]
    Overload,
}

/// Counters since the channel was made.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Messages 1 sent, repetitions included.
    pub handshakes_sent: u64,
    /// Messages 1 answered, repetitions included.
    pub handshakes_answered: u64,
    /// Sessions that became current.
    pub sessions: u64,
    /// Data datagrams, empty ones included.
    pub sealed: u64,
    pub opened: u64,
    pub rejected_version: u64,
    pub rejected_cluster: u64,
    pub rejected_key: u64,
    pub rejected_name: u64,
    pub rejected_garbage: u64,
    pub rejected_replay: u64,
    pub rejected_too_long: u64,
    pub rejected_unknown_session: u64,
    pub rejected_overload: u64,
}

/// A message 1 of ours that waits for its answer.
struct Pending {
    initiator: Initiator,
    session: u32,
    origin: [u8; 32],
    datagram: Vec<u8>,
    begun: Duration,
    send_at: Duration,
    retry: Duration,
}

/// Keys whose asker has yet to prove that it has them too.
struct Candidate {
    session: Session,
    /// Message 2, for when message 1 comes again: by the other link, or because this was lost.
    answer: Vec<u8>,
}

/// One node's end of the control channel. `now` is the time since any fixed moment, by a clock
/// that never steps back.
pub struct Channel {
    psk: Psk,
    identity: Identity,
    limits: Limits,
    rng: Rng,
    cluster: ClusterTag,
    prologue: Vec<u8>,
    current: Option<Session>,
    next: Option<(Session, Duration)>,
    previous: Option<(Session, Duration)>,
    candidates: VecDeque<Candidate>,
    pending: Option<Pending>,
    /// No handshake begins before: the last one ended with a node that is not the peer.
    begin_at: Duration,
    /// Operations left, and the moment up to which they were counted.
    budget: (u32, Duration),
    stats: Stats,
}

impl Channel {
    /// A channel without a session: [`Channel::poll`] asks for one.
    pub fn new(psk: Psk, identity: Identity, rng: Rng) -> Channel {
        identity.check();
        let cluster = ClusterTag::of(&identity.cluster);
        Channel {
            prologue: cluster.prologue(&identity.cluster),
            psk,
            identity,
            limits: Limits::default(),
            rng,
            cluster,
            current: None,
            next: None,
            previous: None,
            candidates: VecDeque::new(),
            pending: None,
            begin_at: Duration::ZERO,
            budget: (BUDGET_MAX, Duration::ZERO),
            stats: Stats::default(),
        }
    }

    /// Renegotiates at other times than by default.
    pub fn with_limits(mut self, limits: Limits) -> Channel {
        self.limits = limits;
        self
    }

    /// Whether [`Channel::seal`] can seal.
    pub fn established(&self) -> bool {
        self.current.is_some() || self.next.is_some()
    }

    /// The peer of the session that [`Channel::seal`] uses.
    pub fn peer(&self) -> Option<&Peer> {
        let next = self.next.as_ref().map(|(session, _)| session);
        self.current.as_ref().or(next).map(|session| &session.peer)
    }

    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Seals a message of 1 to [`MAX_PLAINTEXT`] bytes into a datagram; `None` while there is no
    /// session. Seal once per link: each datagram is opened once.
    pub fn seal(&mut self, plaintext: &[u8]) -> Option<Vec<u8>> {
        assert!((1..=MAX_PLAINTEXT).contains(&plaintext.len()), "{} bytes", plaintext.len());
        let next = self.next.as_mut().map(|(session, _)| session);
        let datagram = self.current.as_mut().or(next)?.seal(self.cluster, plaintext)?;
        self.stats.sealed += 1;
        Some(datagram)
    }

    /// Takes one datagram as it came, whatever it holds.
    pub fn on_datagram(&mut self, bytes: &[u8], now: Duration) -> Input {
        let mut input = Input::default();
        let outcome = match Packet::parse(bytes, self.cluster) {
            Ok(Packet::Initiation { noise }) => self.on_initiation(noise, now, &mut input),
            Ok(Packet::Response { session, noise }) => {
                self.on_response(session, noise, now, &mut input)
            }
            Ok(Packet::Data { session, nonce, ciphertext }) => {
                self.on_data(session, nonce, ciphertext, now, &mut input)
            }
            Err(Malformed::TooLong) => Err(Rejected::TooLong),
            Err(Malformed::Version { theirs }) => Err(Rejected::Version { theirs }),
            Err(Malformed::Cluster) => Err(Rejected::Cluster),
            Err(Malformed::Garbage) => Err(Rejected::Garbage),
        };
        if let Err(rejected) = outcome {
            *self.counter_of(&rejected) += 1;
            input.rejected = Some(rejected);
        }
        input
    }

    /// Does what time demands and returns datagrams to send, on both links. Call it at
    /// [`Channel::next_poll`] and whenever convenient.
    pub fn poll(&mut self, now: Duration) -> Vec<Vec<u8>> {
        let mut datagrams = Vec::new();
        self.forget(now);
        if let Some((session, confirm_at)) = &mut self.next
            && *confirm_at <= now
        {
            *confirm_at = now + RETRY_FIRST;
            datagrams.extend(session.seal(self.cluster, b""));
            self.stats.sealed += 1;
        }
        if self.pending.is_none() && self.session_wanted_at().is_some_and(|at| at <= now) {
            self.pending = Some(self.begin(now));
        }
        if let Some(pending) = &mut self.pending
            && pending.send_at <= now
        {
            pending.send_at = now + pending.retry;
            pending.retry = (pending.retry * 2).min(RETRY_MAX);
            datagrams.push(pending.datagram.clone());
            self.stats.handshakes_sent += 1;
        }
        datagrams
    }

    /// When [`Channel::poll`] has something to do next; may be in the past.
    pub fn next_poll(&self) -> Option<Duration> {
        let next = self.next.as_ref().map(|(_, confirm_at)| *confirm_at);
        let pending = self.pending.as_ref().map(|pending| pending.send_at);
        let wanted = if self.pending.is_none() { self.session_wanted_at() } else { None };
        [next, pending, wanted].into_iter().flatten().min()
    }

    /// When a handshake should begin; `None` while one has ended and waits for its proof.
    fn session_wanted_at(&self) -> Option<Duration> {
        if self.next.is_some() {
            return None;
        }
        let Some(session) = &self.current else { return Some(self.begin_at) };
        let patience = if session.initiator { 1 } else { ANSWERER_PATIENCE };
        if session.sealed() >= self.limits.rekey_after_sealed.saturating_mul(patience.into()) {
            return Some(self.begin_at);
        }
        let aged = session.born + self.limits.rekey_after * patience;
        Some(aged.min(session.heard + SILENCE).max(self.begin_at))
    }

    fn begin(&mut self, now: Duration) -> Pending {
        let session = self.unused_number();
        let hello = self.identity.hello(session);
        let (initiator, noise) = Initiator::begin(&self.psk, &self.prologue, &self.rng, &hello);
        Pending {
            initiator,
            session,
            origin: origin_of(&noise),
            datagram: Packet::Initiation { noise: &noise }.emit(self.cluster),
            begun: now,
            send_at: now,
            retry: RETRY_FIRST,
        }
    }

    /// Drops what has waited too long.
    fn forget(&mut self, now: Duration) {
        self.next.take_if(|(session, _)| session.born + NEXT_LIFE <= now);
        self.previous.take_if(|(_, until)| *until <= now);
        self.candidates.retain(|candidate| now < candidate.session.born + CANDIDATE_LIFE);
        if let Some(pending) = &self.pending
            && pending.begun + ATTEMPT <= now
        {
            let retry = pending.retry;
            self.pending = Some(Pending { retry, ..self.begin(now) });
        }
    }

    /// Message 1: somebody with our key asks, or asked once, for a session.
    fn on_initiation(
        &mut self,
        noise: &[u8],
        now: Duration,
        input: &mut Input,
    ) -> Result<(), Rejected> {
        let origin = origin_of(noise);
        if let Some(known) = self.candidates.iter().find(|c| c.session.origin == origin) {
            input.replies.push(known.answer.clone());
            self.stats.handshakes_answered += 1;
            return Ok(());
        }
        let previous = self.previous.as_ref().map(|(session, _)| session);
        if self.current.iter().chain(previous).any(|session| session.origin == origin) {
            return Err(Rejected::Replay);
        }
        let responder = Responder::begin(&self.psk, &self.prologue, &self.rng, noise);
        let responder = responder.ok_or(Rejected::Key)?;
        let theirs = responder.hello.clone();
        self.check_name(&theirs)?;
        self.spend(now)?;
        let session = self.unused_number();
        let finished = responder.finish(&self.identity.hello(session));
        let (transport, noise) = finished.ok_or(Rejected::Garbage)?;
        let answer = Packet::Response { session: theirs.session, noise: &noise };
        let answer = answer.emit(self.cluster);
        let numbers = (session, theirs.session);
        let session = Session::new(numbers, theirs.into(), false, origin, transport, now);
        if self.candidates.len() == CANDIDATES_MAX {
            self.candidates.pop_front();
        }
        self.candidates.push_back(Candidate { session, answer: answer.clone() });
        self.stats.handshakes_answered += 1;
        input.replies.push(answer);
        Ok(())
    }

    /// Message 2: the answer to ours, or a forgery.
    fn on_response(
        &mut self,
        session: u32,
        noise: &[u8],
        now: Duration,
        input: &mut Input,
    ) -> Result<(), Rejected> {
        if self.pending.as_ref().is_none_or(|pending| pending.session != session) {
            return Err(Rejected::UnknownSession);
        }
        self.spend(now)?;
        let pending = self.pending.take().expect("it was there a moment ago");
        let (transport, theirs) = match pending.initiator.finish(noise) {
            Ok(finished) => finished,
            Err(initiator) => {
                self.pending = Some(Pending { initiator, ..pending });
                return Err(Rejected::Garbage);
            }
        };
        if let Err(stranger) = self.check_name(&theirs) {
            self.begin_at = now + RETRY_MAX;
            return Err(stranger);
        }
        let numbers = (session, theirs.session);
        let origin = pending.origin;
        let mut session = Session::new(numbers, theirs.into(), true, origin, transport, now);
        input.replies.extend(session.seal(self.cluster, b""));
        self.stats.sealed += 1;
        self.next = Some((session, now + RETRY_FIRST));
        Ok(())
    }

    /// A transport message: find its session, open it, and see what it proves.
    fn on_data(
        &mut self,
        number: u32,
        nonce: u64,
        ciphertext: &[u8],
        now: Duration,
        input: &mut Input,
    ) -> Result<(), Rejected> {
        let previous = self.previous.as_mut().map(|(session, _)| session);
        let next = self.next.as_mut().map(|(session, _)| session);
        let candidates = self.candidates.iter_mut().map(|candidate| &mut candidate.session);
        let mut sessions = self.current.iter_mut().chain(next).chain(candidates).chain(previous);
        let session = sessions.find(|session| session.local == number);
        let session = session.ok_or(Rejected::UnknownSession)?;
        let plaintext = session.open(nonce, ciphertext, now).map_err(|refused| match refused {
            Refused::Replay => Rejected::Replay,
            Refused::Forged => Rejected::Garbage,
        })?;
        self.stats.opened += 1;
        input.plaintext = Some(plaintext).filter(|plaintext| !plaintext.is_empty());
        self.prove(number, now, input);
        Ok(())
    }

    /// The peer has shown that it has the keys of this session.
    fn prove(&mut self, number: u32, now: Duration, input: &mut Input) {
        if let Some((session, _)) = self.next.take_if(|(session, _)| session.local == number) {
            self.promote(session, now, input);
            return;
        }
        let Some(index) = self.candidates.iter().position(|c| c.session.local == number) else {
            return;
        };
        // Both handshakes have ended, and the peer will see ours through.
        if self.next.is_some() && self.identity.name < self.identity.peer {
            return;
        }
        let candidate = self.candidates.remove(index).expect("its index was just found");
        self.promote(candidate.session, now, input);
        // The proof that the other side waits for.
        let session = self.current.as_mut().expect("it was just promoted");
        input.replies.extend(session.seal(self.cluster, b""));
        self.stats.sealed += 1;
    }

    fn promote(&mut self, session: Session, now: Duration, input: &mut Input) {
        input.joined = Some(session.peer.clone());
        let replaced = self.current.replace(session);
        let peer = input.joined.as_ref();
        // What a node sent before its restart is of no use after it.
        self.previous = replaced
            .filter(|replaced| Some(&replaced.peer) == peer)
            .map(|replaced| (replaced, now + PREVIOUS_LIFE));
        self.next = None;
        self.pending = None;
        self.candidates.clear();
        self.stats.sessions += 1;
    }

    fn check_name(&self, hello: &Hello) -> Result<(), Rejected> {
        if hello.name == self.identity.peer {
            Ok(())
        } else {
            // Our own name: a reflected datagram, or two nodes called the same.
            Err(Rejected::Name { theirs: hello.name.clone() })
        }
    }

    /// Takes one Diffie-Hellman operation out of the budget.
    fn spend(&mut self, now: Duration) -> Result<(), Rejected> {
        let (left, since) = self.budget;
        let periods = now.saturating_sub(since).as_nanos() / BUDGET_PERIOD.as_nanos();
        let periods = u32::try_from(periods).unwrap_or(u32::MAX);
        let left = left.saturating_add(periods).min(BUDGET_MAX);
        let since = if left == BUDGET_MAX { now } else { since + BUDGET_PERIOD * periods };
        self.budget = (left.saturating_sub(1), since);
        if left == 0 { Err(Rejected::Overload) } else { Ok(()) }
    }

    /// A number for a session that none of ours has.
    fn unused_number(&self) -> u32 {
        let next = self.next.as_ref().map(|(session, _)| session);
        let previous = self.previous.as_ref().map(|(session, _)| session);
        let candidates = self.candidates.iter().map(|candidate| &candidate.session);
        let sessions = self.current.iter().chain(next).chain(previous).chain(candidates);
        let pending = self.pending.iter().map(|pending| pending.session);
        let used: Vec<u32> = sessions.map(|session| session.local).chain(pending).collect();
        loop {
            let number = self.rng.u32();
            if number != 0 && !used.contains(&number) {
                return number;
            }
        }
    }

    fn counter_of(&mut self, rejected: &Rejected) -> &mut u64 {
        let stats = &mut self.stats;
        match rejected {
            Rejected::Version { .. } => &mut stats.rejected_version,
            Rejected::Cluster => &mut stats.rejected_cluster,
            Rejected::Key => &mut stats.rejected_key,
            Rejected::Name { .. } => &mut stats.rejected_name,
            Rejected::Garbage => &mut stats.rejected_garbage,
            Rejected::Replay => &mut stats.rejected_replay,
            Rejected::TooLong => &mut stats.rejected_too_long,
            Rejected::UnknownSession => &mut stats.rejected_unknown_session,
            Rejected::Overload => &mut stats.rejected_overload,
        }
    }
}

impl From<Hello> for Peer {
    fn from(hello: Hello) -> Peer {
        Peer { name: hello.name, incarnation: hello.incarnation }
    }
}

/// The public key that message 1 begins with.
fn origin_of(noise: &[u8]) -> [u8; PUBLIC_KEY] {
    *noise.first_chunk().expect("messages shorter than a public key are not parsed")
}

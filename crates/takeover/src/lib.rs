//! From a backup's log to live connections (DESIGN: adopt).
//!
//! The engine owns the journal. On a backup it only listens: records come in, bytes are kept. At
//! promotion it turns every tracked flow into a child of the local listener, born where the
//! client stands: receive side at the start of the instream, send side at the byte the client has
//! acknowledged. The instream is replayed to the child by forged segments, its early output is
//! swallowed by the data path, and the data path opens the flow in the instant in which the child
//! has acknowledged everything that is logged.
//!
//! What cannot be restored exactly is reset, counted and listed (invariant 6).
//!
//! Forged segments go through a TUN device whose writes run the receiving TCP to completion before
//! they return. So after a write the child exists or it does not: a missing one means a full
//! accept queue or a missing listener, and is tried again until [`GIVE_UP`].

mod deliver;
mod forge;
mod held;
mod message;
mod replay;
mod reset;
mod stale;
mod swallowers;

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use datapath::{Flow, FlowKey, FlowState, FlowTable, Record, Ringer};
use hostnet::{Tun, TunError};
use journal::{Appended, Journal, Opened};
use replies::Why;

pub use deliver::Listener;
pub use held::{Replies, key_of, name_of};
pub use message::{Holding, NotAnswered};
pub use replay::after;
pub use reset::ResetError;

use message::Message;
use replay::{Chunk, Replay};
use reset::Resetter;
use swallowers::Swallowers;

/// How long the server may take to accept an adopted connection before it is reset.
pub const GIVE_UP: Duration = Duration::from_secs(30);

/// Pause before a child that could not be born is tried again.
const RETRY: Duration = Duration::from_millis(2);

/// Children that may fail in one go: behind a full accept queue the next ones would fail as well,
/// and only cost the server the time it needs to empty the queue.
const FAILURES: usize = 4;

/// Age up to which a SYN is answered in the dead primary's place: its client would send it again
/// after a second (RFC 6298 §2.1).
const YOUNG: Duration = Duration::from_secs(1);

/// How long the record of a flow may lag behind its entry in the table.
const UNLOGGED_GRACE: Duration = Duration::from_millis(100);

/// How often the log is read while flows are being taken over.
const BUSY: Duration = Duration::from_millis(2);

/// Why a flow could not be carried on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResetReason {
    /// It was simplex: its bytes were not held by two nodes.
    Simplex,
    /// The journal does not have its instream from the start.
    NotLogged,
    /// The server did not accept it in time.
    NotAccepted,
    /// The server's stream is provably not the one the client knows.
    Diverged,
    /// A part of a reply that nobody can continue has reached the client.
    ReplyCut,
    /// Its server answered before it had read the request's body, of which the rest did not come.
    BodyUnfinished,
    /// The peer has served it at the same time, and nobody knows what the client has of whom.
    Contested,
}

impl ResetReason {
    pub fn name(self) -> &'static str {
        match self {
            ResetReason::Simplex => "simplex",
            ResetReason::NotLogged => "not_logged",
            ResetReason::NotAccepted => "not_accepted",
            ResetReason::Diverged => "diverged",
            ResetReason::ReplyCut => "reply_cut",
            ResetReason::BodyUnfinished => "body_unfinished",
            ResetReason::Contested => "contested",
        }
    }
}

/// What the engine tells the daemon.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// A flow passed its budget, or the node its total: it is simplex from now on.
    OverBudget { key: FlowKey },
    /// The output of a flow is not held any more, and leaves at once: it is simplex from now on.
    Unprotected { key: FlowKey, why: Why },
    /// [`Record::Crash`]: the data path has fenced this node (C4).
    Crash { service: u32, signal: Option<u32> },
    /// A flow was reset.
    Reset { key: FlowKey, reason: ResetReason },
    /// Every flow of the promotion has been opened or reset.
    AllOpen { adopted: u32, reset: u32, took: Duration },
}

/// How far the current or last promotion has come.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Flows found at promotion or completed during it.
    pub flows: u32,
    pub adopted: u32,
    pub reset: u32,
    /// Children waiting for their birth, or for their instream.
    pub pending: u32,
    /// Time from promotion to the first and to the last opened flow.
    pub first_open: Option<Duration>,
    pub last_open: Option<Duration>,
}

/// Budgets of the journal, in bytes.
#[derive(Debug, Clone)]
pub struct Budgets {
    pub total: usize,
    /// Per flow, by service number.
    pub per_flow: Vec<usize>,
}

enum Duty {
    Backup,
    Primary { since: Instant, announced: bool },
}

/// Where a flow's new server begins.
#[derive(Debug, Clone, Copy)]
enum Start {
    /// With the connection: it repeats what the client has.
    First,
    /// At this offset of the instream; its first byte belongs at `position` in the outstream.
    At { instream: u64, position: u32 },
}

/// How a flow is carried on.
enum Way {
    /// By a server, at once.
    Begin(Start),
    /// So many bytes of logged replies come first. Meanwhile what the client sends is read, or left.
    Deliver { logged: u64, reads: bool },
    /// Not at all.
    Reset(ResetReason),
}

struct Adoption {
    replay: Replay,
    flow: Flow,
    give_up: Instant,
}

/// The journal and what becomes of it. Single-threaded: owned by the thread that reads the log.
pub struct Engine {
    table: FlowTable,
    tun: Tun,
    resetter: Resetter,
    budgets: Budgets,
    journal: Journal<FlowKey>,
    duty: Duty,
    /// Invariant: exactly the flows that are FLOW_ADOPTING in the table by this engine's doing.
    adoptions: HashMap<FlowKey, Adoption>,
    /// Adoptions whose child does not exist yet, in the order of their next attempt.
    unborn: VecDeque<FlowKey>,
    retry_at: Option<Instant>,
    /// Flows of the table that the journal does not know, and until when their record may come.
    unlogged: HashMap<FlowKey, Instant>,
    swallowers: Swallowers,
    /// What is done for services whose output is held; `None` if there are none.
    message: Option<Box<Message>>,
    sweep_at: Instant,
    progress: Progress,
    notices: Vec<Notice>,
    packet: Vec<u8>,
}

impl Engine {
    /// `tun` is the device that the data path's adoption program is attached to; `ringer` the data
    /// path's, if the kernel needs one.
    pub fn new(
        table: FlowTable,
        tun: Tun,
        ringer: Option<Ringer>,
        budgets: Budgets,
    ) -> Result<Self, ResetError> {
        let now = Instant::now();
        Ok(Self {
            table,
            tun,
            resetter: Resetter::open()?,
            journal: Journal::new(budgets.total),
            budgets,
            duty: Duty::Backup,
            adoptions: HashMap::new(),
            unborn: VecDeque::new(),
            retry_at: None,
            unlogged: HashMap::new(),
            swallowers: Swallowers::new(ringer, now),
            message: None,
            sweep_at: now + stale::SWEEP,
            progress: Progress::default(),
            notices: Vec::new(),
            packet: Vec::with_capacity(replay::MAX_CHUNK as usize + 128),
        })
    }

    /// Forgets every flow: this node has missed bytes, or begins anew as a backup.
    pub fn discard(&mut self) {
        self.table.clear();
        self.journal = Journal::new(self.budgets.total);
        self.adoptions.clear();
        self.unborn.clear();
        self.unlogged.clear();
        self.swallowers.clear();
        if let Some(message) = &mut self.message {
            message.clear();
        }
        self.retry_at = None;
        self.duty = Duty::Backup;
    }

    /// Takes every flow over. The data path must already hold the primary's role, so that clients'
    /// segments are logged only, and the log must have been drained.
    pub fn promote(&mut self, now: Instant) {
        self.duty = Duty::Primary { since: now, announced: false };
        self.progress = Progress::default();
        for (key, flow) in self.table.snapshot() {
            match flow.state() {
                FlowState::Tracked if self.holds(&key, &flow) => self.take_over(key, flow, now),
                // It spoke in this very moment: its record is still in the log, and begins the
                // adoption when it is read.
                FlowState::Tracked => {
                    self.unlogged.insert(key, now + UNLOGGED_GRACE);
                }
                FlowState::Simplex => {
                    self.progress.flows += 1;
                    self.reset(&key, flow.una(), ResetReason::Simplex);
                }
                // Adopted earlier and still this node's.
                FlowState::Adopting | FlowState::Delivering | FlowState::Open => {}
            }
        }
        self.greet();
        self.give_birth(now);
        // Later: these are not carried on, and nobody gains by hearing of it early.
        for stray in self.table.strays() {
            self.table.forget_stray(&stray.key);
            self.progress.flows += 1;
            self.reset(&stray.key, stray.una, ResetReason::Simplex);
        }
        self.advance(now);
    }

    /// Lets connections begin here that the dead primary has not answered. Handshakes whose SYN-ACK
    /// has passed need no help: their next segment makes a flow, which is adopted.
    fn greet(&mut self) {
        // A SYN that crosses the repeated answer to an earlier one looks unanswered, but its client has
        // spoken since.
        let spoken: HashSet<FlowKey> = self.table.strays().iter().map(|stray| stray.key).collect();
        let unanswered = self.table.unanswered(forge::now_ms(), YOUNG);
        for embryo in unanswered.into_iter().filter(|embryo| !spoken.contains(&embryo.key)) {
            self.table.forget_embryo(&embryo.key);
            forge::syn(&mut self.packet, &embryo);
            if let Err(error) = self.tun.write_packet(&self.packet) {
                tracing::warn!(flow = %embryo.key, %error, "cannot write a forged SYN");
                return;
            }
        }
    }

    /// One record of the log, in order.
    pub fn on_record(&mut self, record: &Record, payload: &[u8], now: Instant) {
        match *record {
            Record::Opened { key, irs, service } => {
                if !self.knows(&key, irs) {
                    self.open(key, irs, service);
                }
                self.consider(key, now);
            }
            Record::Segment { key, irs, seq, fin, service } => {
                if !self.knows(&key, irs) && self.is_tracked(&key, irs) {
                    self.open(key, irs, service);
                }
                self.on_segment(key, seq, payload, fin, now);
                self.consider(key, now);
            }
            Record::Reset { key, seq } => {
                // Only a reset that its TCP believes ends a flow (RFC 5961 §3.2).
                if self.journal.reset_is_acceptable(&key, seq) {
                    self.forget(&key);
                    self.table.remove(&key);
                }
            }
            Record::Closed { key } => self.forget(&key),
            Record::Born { key } => self.on_born(key, now),
            Record::Child { key, ack, edge } => self.on_child(key, ack, edge, now),
            Record::Reply { key, seq } => self.on_reply(&key, seq, payload, now),
            Record::Crash { service, signal } => {
                self.notices.push(Notice::Crash { service, signal });
            }
            Record::Diverged { key } => {
                if let Some(flow) = self.table.get(&key) {
                    self.reset(&key, flow.una(), ResetReason::Diverged);
                }
            }
        }
    }

    /// Does what is due: births to be tried, stalled children, finished swallowing. Returns when
    /// it wants to be called again at the latest.
    pub fn advance(&mut self, now: Instant) -> Option<Instant> {
        self.give_birth(now);
        let stalled: Vec<FlowKey> = self
            .adoptions
            .iter_mut()
            .filter_map(|(key, adoption)| adoption.replay.retry(now).then_some(*key))
            .collect();
        for key in stalled {
            if !self.close_if_open(&key, now) {
                self.feed(&key);
            }
        }
        let expired: Vec<FlowKey> = self
            .adoptions
            .iter()
            .filter_map(|(key, adoption)| (now >= adoption.give_up).then_some(*key))
            .collect();
        for key in expired {
            let flow = self.adoptions[&key].flow;
            self.reset(&key, flow.una(), ResetReason::NotAccepted);
        }
        let missing: Vec<FlowKey> =
            self.unlogged.extract_if(|_, until| now >= *until).map(|(key, _)| key).collect();
        for key in missing {
            if let Some(flow) = self.table.get(&key) {
                self.progress.flows += 1;
                self.reset(&key, flow.una(), ResetReason::NotLogged);
            }
        }
        self.swallowers.advance(&self.table, !self.adoptions.is_empty(), now);
        let due = self.advance_held(now);
        self.announce_if_done(now);
        if now >= self.sweep_at {
            self.sweep_at = now + stale::SWEEP;
            self.sweep(now);
        }
        let busy = !self.adoptions.is_empty() || !self.unlogged.is_empty();
        let or_busy = self.retry_at.or(busy.then_some(now + BUSY)).or(self.swallowers.due());
        or_busy.into_iter().chain(due).min()
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    pub fn journal_stats(&self) -> journal::Stats {
        self.journal.stats()
    }

    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Is this connection, not an older one with its addresses, in the journal?
    fn knows(&self, key: &FlowKey, irs: u32) -> bool {
        self.journal.instream(key).is_some_and(|instream| instream.irs() == irs)
    }

    /// Is it in the table and to be logged? Not so once it is over, or simplex.
    fn is_tracked(&self, key: &FlowKey, irs: u32) -> bool {
        self.table
            .get(key)
            .is_some_and(|flow| flow.irs() == irs && flow.state() == FlowState::Tracked)
    }

    fn open(&mut self, key: FlowKey, irs: u32, service: u32) {
        let budget = self.budgets.per_flow.get(service as usize).copied().unwrap_or(0);
        match self.journal.open(key, irs, budget) {
            Opened::OverBudget => self.over_budget(key),
            Opened::New | Opened::Replaced => self.hold(key, irs, service),
        }
    }

    /// Does the journal hold every byte that the data path says it has logged? The stream may have
    /// holes, which the client fills; but it cannot end before the last byte that was passed on to
    /// the primary, or else a byte is lost (invariants 1 and 6).
    fn holds(&self, key: &FlowKey, flow: &Flow) -> bool {
        self.journal.instream(key).is_some_and(|instream| {
            instream.irs() == flow.irs() && !replay::after(flow.data_max(), instream.end())
        })
    }

    /// A record has come of a flow that may wait for it to be taken over, or that the snapshot of
    /// the promotion has missed.
    fn consider(&mut self, key: FlowKey, now: Instant) {
        if let Duty::Primary { .. } = self.duty
            && !self.adoptions.contains_key(&key)
            && let Some(flow) = self.table.get(&key)
            && flow.state() == FlowState::Tracked
        {
            if self.holds(&key, &flow) {
                self.unlogged.remove(&key);
                self.take_over(key, flow, now);
            } else {
                self.unlogged.entry(key).or_insert(now + UNLOGGED_GRACE);
            }
        }
    }

    fn take_over(&mut self, key: FlowKey, flow: Flow, now: Instant) {
        self.progress.flows += 1;
        match self.way_of(&key, &flow) {
            Way::Begin(start) => self.begin(key, flow, start, now),
            Way::Deliver { logged, reads } => self.deliver(key, flow, logged, reads, now),
            Way::Reset(reason) => self.reset(&key, flow.una(), reason),
        }
    }

    fn begin(&mut self, key: FlowKey, mut flow: Flow, start: Start, now: Instant) {
        let Some(instream) = self.journal.instream(&key) else {
            return self.reset(&key, flow.una(), ResetReason::NotLogged);
        };
        assert!(!self.adoptions.contains_key(&key), "a flow is adopted once");
        let end = instream.rcv_nxt();
        let (birth, base) = match start {
            Start::First => (flow.adopt(end), 0),
            Start::At { instream: base, position } => {
                // Truncation is the arithmetic modulo 2^32 of RFC 9293 §3.4.
                let seq = flow.irs().wrapping_add(1).wrapping_add(base as u32);
                (flow.adopt_at(seq, position, end), base)
            }
        };
        if !self.table.begin_adoption(&key, &flow) {
            // Ended in this very instant.
            self.progress.flows -= 1;
            return;
        }
        let adoption = Adoption {
            replay: Replay::new(birth.seq, base, end, now),
            flow,
            give_up: now + GIVE_UP,
        };
        self.adoptions.insert(key, adoption);
        self.progress.pending += 1;
        self.unborn.push_back(key);
        self.retry_at.get_or_insert(now);
    }

    fn give_birth(&mut self, now: Instant) {
        if self.retry_at.is_none_or(|at| now < at) {
            return;
        }
        let mut failed = 0;
        for _ in 0..self.unborn.len() {
            let Some(key) = self.unborn.pop_front() else { break };
            let Some(adoption) = self.adoptions.get(&key) else { continue };
            if adoption.replay.is_born() {
                continue;
            }
            let first = adoption.replay.first();
            let (flow, ends) = (adoption.flow, self.fin_within(&key, first));
            if let Err(error) = self.inject(&key, &flow, first, ends) {
                tracing::warn!(flow = %key, %error, "cannot write a forged segment");
            }
            match self.table.get(&key) {
                Some(flow) if flow.is_born() => self.on_born(key, now),
                Some(_) => {
                    failed += 1;
                    self.unborn.push_back(key);
                    if failed >= FAILURES {
                        break;
                    }
                }
                None => self.forget(&key),
            }
        }
        self.retry_at = (!self.unborn.is_empty()).then_some(now + RETRY);
    }

    fn on_born(&mut self, key: FlowKey, now: Instant) {
        let Some(adoption) = self.adoptions.get_mut(&key) else { return };
        if adoption.replay.is_born() {
            return;
        }
        adoption.replay.born(now);
        self.feed(&key);
        // If there was nothing to replay, the data path has opened the flow with the birth.
        self.close_if_open(&key, now);
    }

    fn on_child(&mut self, key: FlowKey, ack: u32, edge: u32, now: Instant) {
        let Some(adoption) = self.adoptions.get_mut(&key) else { return };
        adoption.replay.born(now);
        adoption.replay.acknowledged(ack, edge, now);
        self.feed(&key);
        self.close_if_open(&key, now);
    }

    /// Ends the adoption of a flow that the data path has opened, or that is over. Only the data
    /// path knows: it opens a flow behind everything that is logged, read here or not.
    fn close_if_open(&mut self, key: &FlowKey, now: Instant) -> bool {
        let open = self.table.get(key).is_none_or(|flow| flow.state() == FlowState::Open);
        if open {
            self.opened(*key, now);
        }
        open
    }

    fn on_segment(&mut self, key: FlowKey, seq: u32, payload: &[u8], fin: bool, now: Instant) {
        match self.journal.append(&key, seq, payload, fin) {
            Appended::Stored { rcv_nxt, .. } => {
                if let Some(adoption) = self.adoptions.get_mut(&key) {
                    adoption.replay.extend(rcv_nxt);
                    self.feed(&key);
                } else {
                    self.follow_held(&key, now);
                }
            }
            Appended::OverBudget(_) => self.over_budget(key),
            // Logged in the instant in which the flow was opened: the child takes it from here.
            Appended::UnknownFlow => self.hand_on(&key, seq, payload, fin),
            Appended::Duplicate | Appended::BeyondWindow | Appended::AfterFin => {}
        }
    }

    /// The journal has forgotten the flow: it is simplex, or, if its primary is already dead, lost.
    fn over_budget(&mut self, key: FlowKey) {
        self.notices.push(Notice::OverBudget { key });
        match (&self.duty, self.table.get(&key)) {
            (Duty::Primary { .. }, Some(flow)) => {
                self.reset(&key, flow.una(), ResetReason::Simplex)
            }
            _ => {
                self.table.make_simplex(&key);
                self.not_journaled(&key);
            }
        }
    }

    fn hand_on(&mut self, key: &FlowKey, seq: u32, payload: &[u8], fin: bool) {
        let Some(flow) = self.table.get(key) else { return };
        if flow.state() != FlowState::Open {
            return;
        }
        forge::segment(&mut self.packet, key, &flow, flow.una(), seq, payload, fin);
        if let Err(error) = self.tun.write_packet(&self.packet) {
            tracing::warn!(flow = %key, %error, "cannot write a forged segment");
        }
    }

    /// Offers the child what its window allows.
    fn feed(&mut self, key: &FlowKey) {
        while let Some(adoption) = self.adoptions.get_mut(key) {
            let Some(chunk) = adoption.replay.next() else { return };
            let flow = adoption.flow;
            let ends = self.fin_within(key, chunk);
            if let Err(error) = self.inject(key, &flow, chunk, ends) {
                // The child is offered the rest again when it has been silent for a while.
                tracing::warn!(flow = %key, %error, "cannot write a forged segment");
                return;
            }
        }
    }

    /// Is the instream's FIN among the sequence numbers of this chunk?
    fn fin_within(&self, key: &FlowKey, chunk: Chunk) -> bool {
        self.journal.instream(key).is_some_and(|instream| {
            instream.fin_seq() == Some(chunk.seq.wrapping_add(chunk.length).wrapping_sub(1))
                && chunk.length > 0
        })
    }

    fn inject(
        &mut self,
        key: &FlowKey,
        flow: &Flow,
        chunk: Chunk,
        fin: bool,
    ) -> Result<(), TunError> {
        let length = chunk.length as usize - usize::from(fin);
        let mut payload = Vec::with_capacity(length);
        if let Some(instream) = self.journal.instream(key) {
            for bytes in instream.chunks_from(chunk.offset) {
                let wanted = length - payload.len();
                payload.extend_from_slice(&bytes[..bytes.len().min(wanted)]);
                if payload.len() == length {
                    break;
                }
            }
        }
        assert_eq!(payload.len(), length, "the journal holds what it says it holds");
        forge::segment(&mut self.packet, key, flow, flow.birth_ack(), chunk.seq, &payload, fin);
        self.tun.write_packet(&self.packet)
    }

    /// The data path has opened the flow: the client and the child talk to each other.
    fn opened(&mut self, key: FlowKey, now: Instant) {
        let Some(adoption) = self.adoptions.remove(&key) else { return };
        // What was logged after the adoption began. The client counts none of it as delivered, so
        // what the child does not take now will come again.
        let mut replay = adoption.replay;
        while let Some(chunk) = replay.next() {
            let fin = self.fin_within(&key, chunk);
            if self.inject(&key, &adoption.flow, chunk, fin).is_err() {
                break;
            }
        }
        if let Some(instream) = self.journal.instream(&key) {
            // Bytes beyond a gap: the client may have been told that they arrived (RFC 2018 §8).
            let beyond: Vec<(u32, Vec<u8>)> =
                instream.out_of_order().map(|(seq, bytes)| (seq, bytes.to_vec())).collect();
            for (seq, bytes) in beyond {
                for (index, part) in bytes.chunks(replay::MAX_CHUNK as usize).enumerate() {
                    let seq = seq.wrapping_add(index as u32 * replay::MAX_CHUNK);
                    self.hand_on(&key, seq, part, false);
                }
            }
        }
        self.close(&key);
        if adoption.flow.swallow_left() > 0 {
            self.swallowers.add(key, now);
        }
        self.progress.pending -= 1;
        self.progress.adopted += 1;
        self.note_open(now);
    }

    /// A client has somebody to talk to.
    fn note_open(&mut self, now: Instant) {
        if let Duty::Primary { since, .. } = self.duty {
            let took = now.duration_since(since);
            self.progress.first_open.get_or_insert(took);
            self.progress.last_open = Some(took);
        }
    }

    /// Forgets flows whose client is gone without a word. On a primary it also finds those that
    /// nobody is about to open, which must not be; their clients would wait for ever.
    fn sweep(&mut self, now: Instant) {
        let now_s = (hostnet::now_boottime_ns() / 1_000_000_000) as u32;
        for (key, flow) in self.table.snapshot() {
            match (&self.duty, flow.state()) {
                (Duty::Primary { .. }, FlowState::Tracked) => self.consider(key, now),
                (Duty::Primary { .. }, FlowState::Adopting | FlowState::Delivering)
                    if !self.adoptions.contains_key(&key) && !self.delivers(&key) =>
                {
                    tracing::error!(flow = %key, "held, and nobody opens it");
                    self.reset(&key, flow.una(), ResetReason::NotAccepted);
                    continue;
                }
                _ => {}
            }
            if stale::is_stale(flow.server_ended(), flow.idle(now_s)) {
                tracing::debug!(flow = %key, "forgotten: its client has vanished");
                self.forget(&key);
                self.table.remove(&key);
            }
        }
    }

    fn announce_if_done(&mut self, now: Instant) {
        let Duty::Primary { since, announced } = &mut self.duty else { return };
        let unborn = self.message.as_ref().is_some_and(|message| message.has_unborn());
        if *announced || unborn || !self.adoptions.is_empty() || !self.unlogged.is_empty() {
            return;
        }
        *announced = true;
        self.notices.push(Notice::AllOpen {
            adopted: self.progress.adopted,
            reset: self.progress.reset,
            took: now.duration_since(*since),
        });
    }

    /// Nothing more is kept of what the flow's client and server have said. True: it was being
    /// delivered.
    fn close(&mut self, key: &FlowKey) -> bool {
        self.journal.close(key);
        self.message.as_mut().is_some_and(|message| message.close(key))
    }

    fn forget(&mut self, key: &FlowKey) {
        let delivered = self.close(key);
        if self.adoptions.remove(key).is_some() || delivered {
            self.progress.pending -= 1;
        }
    }

    /// Ends a flow loudly: the client is told, the table and the kernel forget it.
    fn reset(&mut self, key: &FlowKey, una: u32, reason: ResetReason) {
        self.forget(key);
        self.progress.reset += 1;
        self.table.remove(key);
        if let Err(error) = self.resetter.reset(key, una) {
            tracing::warn!(flow = %key, %error, "cannot tell the client that its flow is lost");
        }
        self.notices.push(Notice::Reset { key: *key, reason });
    }
}

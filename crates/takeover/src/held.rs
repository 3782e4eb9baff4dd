//! The backup's part in the scheme `message`: what clients send and what the primary's servers write
//! goes into the [`ReplyLog`], and what that says goes to the gates.
//!
//! Orders go out as frames at once ([`Orders`]), which may be lost. What must not be lost is said
//! again in the records for the primary's daemon ([`Held::take_records`]): an opened flow always, a
//! released edge if its client is still silent when it is looked at next.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ahash::AHashSet;
use datapath::{FlowKey, FlowTable};
use gate::Orders;
use journal::{Instream, Opened};
use replies::codec::{FlowName, Record};
use replies::{Plan, Policy, ReplyLog, Stats, Why};

use crate::replay::after;

/// How long a client may take to acknowledge before the flow's table entry is asked, and an order
/// taken for lost. Longer than ordinary round trips, far shorter than a time-out of TCP's.
const PATIENCE: Duration = Duration::from_millis(20);

/// And how long from then on: it was slow the first time.
const MORE_PATIENCE: Duration = Duration::from_millis(500);

/// Pause between two looks: with many replies a second somebody would always be due.
const PAUSE: Duration = Duration::from_millis(5);

/// Flows whose acknowledgements are looked up in one go: some 2 us each.
const LOOKUPS: usize = 256;

/// What a primary's server wrote: `bytes` from the sequence number `seq` on, its FIN behind them or
/// not.
#[derive(Debug, Clone, Copy)]
pub struct Written<'a> {
    pub seq: u32,
    pub bytes: &'a [u8],
    pub fin: bool,
}

pub(crate) struct Held {
    log: ReplyLog<FlowKey>,
    budget: usize,
    /// By service number; `None`: its output is not held.
    policies: Vec<Option<Arc<Policy>>>,
    orders: Orders,
    /// Flows of which something was released since they were last looked at.
    released: Watch,
    /// Flows whose clients had not acknowledged everything when they were last looked at.
    slow: Watch,
    look_at: Instant,
    records: Vec<Record>,
    opened: BTreeMap<&'static str, u64>,
    unheard: u64,
}

/// What the reply log of a backup has done.
#[derive(Debug, Clone)]
pub struct Replies {
    pub log: Stats,
    /// Flows whose output is not held any more, by reason.
    pub opened: BTreeMap<&'static str, u64>,
    /// Flows that their clients ended while their servers wrote.
    pub unheard: u64,
}

impl Held {
    /// `budget`: of the reply log, in bytes.
    pub fn new(orders: Orders, policies: Vec<Option<Arc<Policy>>>, budget: usize) -> Self {
        Self {
            log: ReplyLog::new(budget),
            budget,
            policies,
            orders,
            released: Watch::new(PATIENCE),
            slow: Watch::new(MORE_PATIENCE),
            look_at: Instant::now(),
            records: Vec::new(),
            opened: BTreeMap::new(),
            unheard: 0,
        }
    }

    /// Does this service hold its output?
    pub fn holds(&self, service: u32) -> bool {
        self.policies.get(service as usize).is_some_and(Option::is_some)
    }

    /// Forgets every flow.
    pub fn clear(&mut self) {
        self.log = ReplyLog::new(self.budget);
        self.released.clear();
        self.slow.clear();
        self.records.clear();
    }

    /// Follows a flow from its beginning, if its service is held. An older one with its key is
    /// forgotten.
    pub fn open(&mut self, key: FlowKey, iss: u32, service: u32) {
        let Some(Some(policy)) = self.policies.get(service as usize) else { return };
        if self.log.open(key, iss, policy) == Opened::OverBudget {
            // Its output will come as that of an unknown flow, and be opened.
            tracing::debug!(flow = %key, "no memory for its replies");
        }
    }

    pub fn close(&mut self, key: &FlowKey) {
        self.log.close(key);
    }

    /// Feeds what the journal has and the reply log has not.
    #[must_use = "why the flow is not protected any more"]
    pub fn on_instream(
        &mut self,
        key: &FlowKey,
        instream: &Instream<'_>,
        now: Instant,
    ) -> Option<Why> {
        let mut at = self.log.instream_next(key)?;
        for bytes in instream.chunks_from(at) {
            let orders = self.log.instream(key, at, bytes);
            if let Some(why) = self.carry_out(key, orders, now) {
                return Some(why);
            }
            at += bytes.len() as u64;
        }
        if instream.is_complete() {
            let orders = self.log.instream_end(key, at);
            return self.carry_out(key, orders, now);
        }
        None
    }

    /// What the primary's server wrote.
    #[must_use = "why the flow is not protected any more"]
    pub fn on_output(&mut self, key: &FlowKey, written: Written<'_>, now: Instant) -> Option<Why> {
        let orders = self.log.outstream(key, written.seq, written.bytes, written.fin);
        self.carry_out(key, orders, now)
    }

    /// What the primary's server wrote, and has gone on to the client through this node: the kernel took it
    /// for a whole reply. The client's acknowledgement tells the primary, which needs no order.
    #[must_use = "why the flow is not protected any more"]
    pub fn on_passed(
        &mut self,
        key: &FlowKey,
        seq: u32,
        bytes: &[u8],
        now: Instant,
    ) -> Option<Why> {
        let end = seq.wrapping_add(bytes.len() as u32);
        let mut orders = self.log.outstream(key, seq, bytes, false);
        if orders.release == Some(end) {
            orders.release = None;
            self.released.add(*key, now);
        }
        let why = self.carry_out(key, orders, now);
        let part = self.log.released(key).is_some_and(|released| after(end, released));
        why.or_else(|| part.then(|| self.give_up(key, Why::TakenForWhole, now)).flatten())
    }

    /// Takes a flow out of the log for a reason that lies elsewhere.
    #[must_use = "why the flow is not protected any more"]
    pub fn give_up(&mut self, key: &FlowKey, why: Why, now: Instant) -> Option<Why> {
        let orders = self.log.give_up(key, why);
        self.carry_out(key, orders, now)
    }

    /// Lets everything leave that the flow's server writes. By then no takeover may rely on the flow
    /// any more.
    pub fn open_gate(&mut self, key: &FlowKey) {
        self.order(self.orders.open(key), key);
        self.records.push(Record::Open { flow: name_of(key) });
    }

    /// Is nothing known of the flow?
    pub fn is_unknown(&self, key: &FlowKey) -> bool {
        self.log.outstream_next(key).is_none() && self.log.why_open(key).is_none()
    }

    /// The same for a flow that is over: nobody hears what its server writes.
    pub fn leave_unheard(&mut self, key: &FlowKey) {
        self.unheard += 1;
        self.open_gate(key);
    }

    /// Flows that ended while their servers wrote.
    pub fn unheard(&self) -> u64 {
        self.unheard
    }

    /// Was the flow opened?
    pub fn is_open(&self, key: &FlowKey) -> bool {
        self.log.why_open(key).is_some()
    }

    /// The flows with a request, or a part of one, that has no whole reply, and the offset of the first
    /// one.
    pub fn unanswered(&self) -> impl Iterator<Item = (&FlowKey, u64)> {
        self.log.keys().filter_map(|key| Some((key, self.log.unanswered_from(key)?)))
    }

    /// All that was asked before the flows were parked is answered.
    pub fn say_parked(&mut self) {
        self.records.push(Record::Parked);
    }

    /// The offset in front of which the instream is not needed any more.
    pub fn instream_needed_from(&self, key: &FlowKey) -> Option<u64> {
        self.log.instream_needed_from(key)
    }

    /// Looks after flows whose clients should have acknowledged by now. Returns those that are not
    /// protected any more.
    #[must_use = "why flows are not protected any more"]
    pub fn advance(&mut self, table: &FlowTable, now: Instant) -> Vec<(FlowKey, Why)> {
        let mut given_up = Vec::new();
        if now < self.look_at {
            return given_up;
        }
        self.look_at = now + PAUSE;
        for _ in 0..LOOKUPS {
            let Some(key) = self.released.next(now).or_else(|| self.slow.next(now)) else { break };
            let (Some(flow), Some(released)) = (table.get(&key), self.log.released(&key)) else {
                continue;
            };
            if after(released, flow.una()) {
                // Its client is slow, or the order was lost.
                let ahead = self.is_ahead(&key, released);
                self.records.push(Record::Release { flow: name_of(&key), seq: released, ahead });
                self.slow.add(key, now);
            }
            let orders = self.log.acknowledged(&key, flow.una());
            given_up.extend(self.carry_out(&key, orders, now).map(|why| (key, why)));
        }
        given_up
    }

    /// When [`Held::advance`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        let due = self.released.due().into_iter().chain(self.slow.due()).min();
        due.map(|due| due.max(self.look_at))
    }

    /// What becomes of the flow now that its primary is dead. `una`: the client's acknowledgement.
    /// `None`: what the log knows is not what the client knows.
    pub fn plan(&mut self, key: &FlowKey, una: u32) -> Option<Plan> {
        if after(una, self.log.released(key)?) {
            return None;
        }
        // The primary is dead: nobody is waiting for what may leave.
        let _ = self.log.acknowledged(key, una);
        self.log.plan(key)
    }

    /// The logged outstream from the client's acknowledgement on.
    pub fn unacknowledged(&self, key: &FlowKey) -> Vec<u8> {
        self.log.unacknowledged(key).concat()
    }

    /// The flows that are followed or open.
    pub fn keys(&self) -> Vec<FlowKey> {
        self.log.keys().copied().collect()
    }

    /// What a new stream of records begins with: up to where every flow's output is here.
    pub fn holdings(&self) -> Vec<Record> {
        let followed = self.log.keys().filter_map(|key| Some((key, self.log.outstream_next(key)?)));
        let holds = followed.map(|(key, seq)| Record::Holds { flow: name_of(key), seq });
        holds.chain([Record::HoldsNoMore]).collect()
    }

    /// What the primary's daemon is to be told.
    pub fn take_records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    pub fn stats(&self) -> Stats {
        self.log.stats()
    }

    /// Flows that were opened, by reason.
    pub fn opened(&self) -> &BTreeMap<&'static str, u64> {
        &self.opened
    }

    fn carry_out(&mut self, key: &FlowKey, orders: replies::Orders, now: Instant) -> Option<Why> {
        if let Some(edge) = orders.release {
            let given = match self.is_ahead(key, edge) {
                true => self.orders.release_ahead(key, edge),
                false => self.orders.release(key, edge),
            };
            self.order(given, key);
            self.released.add(*key, now);
        }
        if let Some(seq) = orders.skip {
            self.records.push(Record::Skip { flow: name_of(key), seq });
        }
        if let Some(why) = orders.open {
            *self.opened.entry(why.name()).or_default() += 1;
        }
        orders.open
    }

    /// Does this edge lie ahead of what has been written? Only what is made again may leave so.
    fn is_ahead(&self, key: &FlowKey, edge: u32) -> bool {
        self.log.outstream_next(key).is_some_and(|next| after(edge, next))
    }

    fn order(&self, given: Result<(), hostnet::TunError>, key: &FlowKey) {
        if let Err(error) = given {
            // It is said again.
            tracing::warn!(flow = %key, %error, "cannot give an order to a gate");
        }
    }
}

/// Flows that are looked at after a while, in the order in which they came.
struct Watch {
    patience: Duration,
    /// Invariant: the keys are those of `keys`, each once.
    queue: VecDeque<(Instant, FlowKey)>,
    keys: AHashSet<FlowKey>,
}

impl Watch {
    fn new(patience: Duration) -> Self {
        Self { patience, queue: VecDeque::new(), keys: AHashSet::new() }
    }

    fn clear(&mut self) {
        self.queue.clear();
        self.keys.clear();
    }

    /// One that is there already keeps its place.
    fn add(&mut self, key: FlowKey, now: Instant) {
        if self.keys.insert(key) {
            self.queue.push_back((now + self.patience, key));
        }
    }

    fn due(&self) -> Option<Instant> {
        self.queue.front().map(|(at, _)| *at)
    }

    fn next(&mut self, now: Instant) -> Option<FlowKey> {
        self.due().filter(|at| *at <= now)?;
        let (_, key) = self.queue.pop_front()?;
        self.keys.remove(&key);
        Some(key)
    }
}

/// The flow as the records name it.
pub fn name_of(key: &FlowKey) -> FlowName {
    let [client, server] = key.octets();
    let (client_port, server_port) = (key.client().port(), key.server().port());
    FlowName { client, server, client_port, server_port }
}

/// The flow that a record names.
pub fn key_of(name: &FlowName) -> FlowKey {
    let address = |octets: [u8; 16], port| SocketAddr::new(Ipv6Addr::from(octets).into(), port);
    FlowKey::new(address(name.client, name.client_port), address(name.server, name.server_port))
}

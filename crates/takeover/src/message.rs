//! The scheme `message`: flows whose output is held until this node has it.
//!
//! On a backup the engine follows both streams of such a flow and orders its gate on the primary. At
//! a promotion the reply log says how each is carried on ([`Plan`]): logged replies are delivered
//! ([`deliver`](crate::deliver)), and then another server begins at the first request that was not
//! answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath::{Birth, Flow, FlowKey, Switchboard};
use gate::Orders;
use replies::codec::Record;
use replies::{Plan, Policy, Why};
use thiserror::Error;

use crate::deliver::{self, Delivery, Lingering, Listener, Step};
use crate::held::{Held, Replies, Written, key_of};
use crate::replay::after;
use crate::{Duty, Engine, GIVE_UP, Notice, ResetReason, Start, Way, forge};

/// How often deliveries are looked at; less often if there are many, at 5 us each.
const DRIVE: Duration = Duration::from_millis(2);
const DRIVE_EACH: Duration = Duration::from_micros(10);

/// How long clients' requests may be kept from a primary that is about to hand over. Longer than it waits
/// for the answer, so that none reaches it in the last moment.
const PARKING: Duration = Duration::from_secs(3);
/// How often it is looked whether all older ones are answered.
const PARKING_LOOK: Duration = Duration::from_millis(2);

/// What holding output needs.
pub struct Holding {
    /// By service number; `None`: its output is not held.
    pub policies: Vec<Option<Arc<Policy>>>,
    /// Heap for the replies of all flows, in bytes.
    pub budget: usize,
    /// The way to the gates.
    pub orders: Orders,
    /// The data path makes the children that deliver of it
    /// ([`Datapath::set_deliverer`](datapath::Datapath::set_deliverer)).
    pub listener: Listener,
    /// Of the engine's flows.
    pub switchboard: Switchboard,
}

/// A record that a primary does not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the primary sent a record that only a backup sends")]
pub struct NotAnswered;

pub(crate) struct Message {
    held: Held,
    listener: Listener,
    /// Invariant: exactly the flows that are FLOW_DELIVERING in the table by this engine's doing.
    deliveries: HashMap<FlowKey, Carried>,
    lingering: Vec<Lingering>,
    drive_at: Instant,
    switchboard: Switchboard,
    /// The primary is about to hand over.
    parking: Option<Parking>,
}

/// Clients' requests are parked until then (CLOCK_BOOTTIME, ns), and whether all older ones are answered
/// is looked at next.
struct Parking {
    until_ns: u64,
    look_at: Instant,
}

struct Carried {
    delivery: Delivery,
    flow: Flow,
    birth: Birth,
    stage: Stage,
    /// When the flow is reset: its child was not born, or its request's body has not come.
    give_up: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The child is to be born.
    Unborn,
    /// It sends what is logged.
    Sending,
    /// It has vanished. What it had acknowledged before may still be in the log ring; once that has
    /// been read, the flow's next server can begin behind it.
    Vanished,
}

impl Message {
    pub(crate) fn clear(&mut self) {
        self.held.clear();
        self.parking = None;
        for (_, mut carried) in self.deliveries.drain() {
            carried.delivery.vanish();
        }
        self.lingering.clear();
    }

    /// Forgets a flow. True: it was being delivered.
    pub(crate) fn close(&mut self, key: &FlowKey) -> bool {
        self.held.close(key);
        let Some(mut carried) = self.deliveries.remove(key) else { return false };
        carried.delivery.vanish();
        true
    }

    pub(crate) fn has_unborn(&self) -> bool {
        self.deliveries.values().any(|carried| carried.stage == Stage::Unborn)
    }
}

/// A backup's work.
impl Engine {
    /// Lets the output of some services be held. Before the first record.
    pub fn hold_output(&mut self, holding: Holding) {
        let Holding { policies, budget, orders, listener, switchboard } = holding;
        self.message = Some(Box::new(Message {
            held: Held::new(orders, policies, budget),
            listener,
            deliveries: HashMap::new(),
            lingering: Vec::new(),
            drive_at: Instant::now(),
            switchboard,
            parking: None,
        }));
    }

    /// A record from the primary's daemon. Everything in the log that was there before the record
    /// arrived must have been read: a reply comes after its request.
    ///
    /// # Errors
    /// The peer does not behave like a primary: the stream of records is of no more use.
    pub fn on_reply_record(
        &mut self,
        record: &Record,
        payload: &[u8],
        now: Instant,
    ) -> Result<(), NotAnswered> {
        let (Some(message), Duty::Backup) = (&mut self.message, &self.duty) else { return Ok(()) };
        let (key, why) = match record {
            Record::Output { flow, seq, fin } => {
                let key = key_of(flow);
                if message.held.is_unknown(&key) && self.table.get(&key).is_none() {
                    // Its client has left while the server wrote, which must not wait for orders.
                    message.held.leave_unheard(&key);
                    return Ok(());
                }
                let written = Written { seq: *seq, bytes: payload, fin: *fin };
                let why = message.held.on_output(&key, written, now);
                if why.is_none() && message.held.is_open(&key) {
                    // It was captured, so its gate has not heard of it.
                    message.held.open_gate(&key);
                } else if why.is_none() {
                    self.free_answered(&key);
                }
                (key, why)
            }
            Record::Lost { flow, .. } => {
                let key = key_of(flow);
                self.give_up(&key, Why::NotCaptured, now);
                return Ok(());
            }
            Record::Park => {
                let until_ns = hostnet::now_boottime_ns() + PARKING.as_nanos() as u64;
                message.switchboard.park_until(until_ns);
                // What was relayed a moment ago is in the log by then.
                message.parking = Some(Parking { until_ns, look_at: now + PARKING_LOOK });
                return Ok(());
            }
            _ => return Err(NotAnswered),
        };
        if let Some(why) = why {
            self.unprotect(&key, why);
        }
        Ok(())
    }

    /// The primary's daemon cannot be heard, and its servers wait for orders: what is held is opened,
    /// and opened again if it was before, since the orders may not have arrived.
    pub fn open_held(&mut self, now: Instant) {
        let (Some(message), Duty::Backup) = (&self.message, &self.duty) else { return };
        for key in message.held.keys() {
            self.give_up(&key, Why::Gap, now);
        }
    }

    /// What a new stream of records to the primary's daemon begins with.
    pub fn holdings(&self) -> Vec<Record> {
        self.message.as_ref().map_or(Vec::new(), |message| message.held.holdings())
    }

    /// What the primary's daemon is to be told.
    pub fn take_records(&mut self) -> Vec<Record> {
        self.message.as_mut().map_or(Vec::new(), |message| message.held.take_records())
    }

    /// What the reply log holds and has done, and what became of flows besides.
    pub fn replies(&self) -> Option<Replies> {
        let held = &self.message.as_ref()?.held;
        let (opened, unheard) = (held.opened().clone(), held.unheard());
        Some(Replies { log: held.stats(), opened, unheard })
    }

    /// Follows the replies of a flow that is new in the journal.
    pub(crate) fn hold(&mut self, key: FlowKey, irs: u32, service: u32) {
        let Some(message) = &mut self.message else { return };
        // An older connection with the same addresses has left nothing.
        message.held.close(&key);
        if let Some(flow) = self.table.get(&key).filter(|flow| flow.irs() == irs) {
            message.held.open(key, flow.iss(), service);
        }
    }

    /// The journal has more of a flow's instream.
    pub(crate) fn follow_held(&mut self, key: &FlowKey, now: Instant) {
        let (Some(message), Some(instream)) = (&mut self.message, self.journal.instream(key))
        else {
            return;
        };
        match message.held.on_instream(key, &instream, now) {
            Some(why) => self.unprotect(key, why),
            None => self.free_answered(key),
        }
        if let Some(carried) = self.message.as_mut().and_then(|m| m.deliveries.get_mut(key)) {
            carried.give_up = now + GIVE_UP;
        }
    }

    /// A whole reply of the primary's has passed through this node.
    pub(crate) fn on_reply(&mut self, key: &FlowKey, seq: u32, bytes: &[u8], now: Instant) {
        let (Some(message), Duty::Backup) = (&mut self.message, &self.duty) else { return };
        match message.held.on_passed(key, seq, bytes, now) {
            Some(why) => self.unprotect(key, why),
            None => self.free_answered(key),
        }
    }

    /// The journal has forgotten the flow.
    pub(crate) fn not_journaled(&mut self, key: &FlowKey) {
        let now = Instant::now();
        if let Some(message) = &mut self.message
            && let Some(why) = message.held.give_up(key, Why::NotJournaled, now)
        {
            self.unprotect(key, why);
        }
    }

    /// Frees what no takeover needs any more.
    fn free_answered(&mut self, key: &FlowKey) {
        if let (Some(message), Duty::Backup) = (&self.message, &self.duty)
            && let Some(offset) = message.held.instream_needed_from(key)
        {
            self.journal.collect(key, offset);
        }
    }

    /// Opens a flow, be it followed, unknown, or open already: then it is said again.
    fn give_up(&mut self, key: &FlowKey, why: Why, now: Instant) {
        if let Some(message) = &mut self.message {
            let _ = message.held.give_up(key, why, now);
            self.unprotect(key, why);
        }
    }

    /// The reply log has given the flow up. No takeover may rely on it before its server's output is
    /// free to leave.
    fn unprotect(&mut self, key: &FlowKey, why: Why) {
        let (Some(message), Duty::Backup) = (&mut self.message, &self.duty) else {
            // It is being delivered: what the client says next cannot be understood. The plan says
            // so when it is asked for.
            return;
        };
        self.notices.push(Notice::Unprotected { key: *key, why });
        self.table.make_simplex(key);
        self.journal.close(key);
        message.held.open_gate(key);
    }
}

/// A promotion's.
impl Engine {
    /// This node gives way to a peer that has served at the same time. What each has said to clients
    /// may differ where replies cannot be made twice, and the peer goes on with its own: the clients
    /// of held flows are told that their connections are lost, by the numbers that they know. Who was
    /// served by the peer alone takes no notice, since it has come further.
    pub fn reset_contested(&mut self) {
        let Some(message) = &self.message else { return };
        let held = |flow: &Flow| message.held.holds(flow.service());
        let flows: Vec<_> =
            self.table.snapshot().into_iter().filter(|(_, flow)| held(flow)).collect();
        for (key, flow) in flows {
            self.reset(&key, flow.una(), ResetReason::Contested);
        }
    }

    /// How a flow is carried on: one that is not held, by a server that repeats what its client has.
    pub(crate) fn way_of(&mut self, key: &FlowKey, flow: &Flow) -> Way {
        let held = self.message.as_mut().map(|message| &mut message.held);
        let Some(held) = held.filter(|held| held.holds(flow.service())) else {
            return Way::Begin(Start::First);
        };
        match held.plan(key, flow.una()) {
            None => Way::Reset(ResetReason::NotLogged),
            Some(Plan::Reset { why, logged: 0 }) => Way::Reset(reason_of(why)),
            Some(Plan::Adopt { instream, position, logged: 0, .. }) => {
                Way::Begin(Start::At { instream, position })
            }
            Some(Plan::Adopt { logged, .. } | Plan::Reset { logged, .. }) => {
                Way::Deliver { logged, reads: false }
            }
            Some(Plan::Finish { logged, .. } | Plan::WaitForBody { logged }) => {
                Way::Deliver { logged, reads: true }
            }
        }
    }

    pub(crate) fn delivers(&self, key: &FlowKey) -> bool {
        self.message.as_ref().is_some_and(|message| message.deliveries.contains_key(key))
    }

    /// Lets a child of the daemon's own send what is logged.
    pub(crate) fn deliver(
        &mut self,
        key: FlowKey,
        mut flow: Flow,
        logged: u64,
        reads: bool,
        now: Instant,
    ) {
        let Some(instream) = self.journal.instream(&key) else {
            return self.reset(&key, flow.una(), ResetReason::NotLogged);
        };
        let birth = flow.deliver(instream.rcv_nxt());
        if !self.table.begin_delivery(&key, &flow) {
            // Ended in this very instant.
            self.progress.flows -= 1;
            return;
        }
        let message = self.message.as_mut().expect("the plan is its own");
        let bytes = message.held.unacknowledged(&key);
        assert_eq!(bytes.len() as u64, logged, "the log has what its plan promises");
        let delivery = Delivery::new(bytes, reads);
        let carried =
            Carried { delivery, flow, birth, stage: Stage::Unborn, give_up: now + GIVE_UP };
        message.deliveries.insert(key, carried);
        message.drive_at = now;
        self.progress.pending += 1;
        self.bear(&key);
    }

    /// Lets the child be born that is to deliver.
    fn bear(&mut self, key: &FlowKey) {
        let Some(message) = &mut self.message else { return };
        let Some(carried) = message.deliveries.get(key) else { return };
        let Carried { flow, birth, .. } = carried;
        forge::segment(&mut self.packet, key, flow, birth.ack, birth.seq, &[], false);
        if let Err(error) = self.tun.write_packet(&self.packet) {
            tracing::warn!(flow = %key, %error, "cannot write a forged segment");
        }
        while let Some((key, child)) = message.listener.accept() {
            match message.deliveries.get_mut(&key) {
                Some(carried) => carried.delivery.born(child),
                // Given up in this very instant, or somebody who has no business here.
                None => deliver::vanish(child),
            }
        }
    }

    /// Does what is due for held flows. Returns when it wants to be called again at the latest.
    pub(crate) fn advance_held(&mut self, now: Instant) -> Option<Instant> {
        let message = self.message.as_mut()?;
        for (key, why) in message.held.advance(&self.table, now) {
            self.unprotect(&key, why);
        }
        self.look_at_parking(now);
        let message = self.message.as_mut()?;
        if now >= message.drive_at {
            message.lingering.retain_mut(|lingering| lingering.is_open(now));
            let keys: Vec<FlowKey> = message.deliveries.keys().copied().collect();
            let pause = DRIVE.max(DRIVE_EACH * keys.len() as u32);
            for key in keys {
                self.drive(&key, now);
            }
            let message = self.message.as_mut()?;
            let vanished = |carried: &Carried| carried.stage == Stage::Vanished;
            // Those wait for nothing but the log to be read.
            let hurry = message.deliveries.values().any(vanished);
            message.drive_at = if hurry { now } else { now + pause };
        }
        let message = self.message.as_ref()?;
        let idle = message.deliveries.is_empty() && message.lingering.is_empty();
        let drive = (!idle).then_some(message.drive_at);
        let parking = message.parking.as_ref().map(|parking| parking.look_at);
        drive.into_iter().chain(parking).chain(message.held.due()).min()
    }

    /// Tells the primary once everything that reached it is answered.
    fn look_at_parking(&mut self, now: Instant) {
        let Some(message) = &mut self.message else { return };
        let (Some(parking), Duty::Backup) = (&mut message.parking, &self.duty) else {
            message.parking = None;
            return;
        };
        if now < parking.look_at {
            return;
        }
        parking.look_at = now + PARKING_LOOK;
        let until_ns = parking.until_ns;
        let reached_it = |(key, offset): (&FlowKey, u64)| {
            let Some(flow) = self.table.get(key) else { return false };
            let seq = flow.irs().wrapping_add(1).wrapping_add(offset as u32);
            flow.parked_from(until_ns).is_none_or(|parked| after(parked, seq))
        };
        let over = hostnet::now_boottime_ns() >= until_ns;
        if over || !message.held.unanswered().any(reached_it) {
            message.parking = None;
            message.held.say_parked();
        }
    }

    fn drive(&mut self, key: &FlowKey, now: Instant) {
        match self.carried(key).map(|carried| carried.stage) {
            Some(Stage::Unborn) => self.bear(key),
            Some(Stage::Vanished) => return self.replace_child(key, now),
            Some(Stage::Sending) | None => {}
        }
        let Some(carried) = self.carried(key) else { return };
        let is_new = carried.stage == Stage::Unborn && carried.delivery.is_born();
        if is_new {
            carried.stage = Stage::Sending;
        }
        let (stage, late, una) = (carried.stage, now >= carried.give_up, carried.flow.una());
        let step = carried.delivery.drive();
        if is_new {
            self.note_open(now);
        }
        match step {
            Step::Waiting if stage == Stage::Unborn && late => {
                self.reset(key, una, ResetReason::NotAccepted);
            }
            Step::Waiting => {}
            Step::Broken => {
                // The client's word, or its silence; its kernel knows of no connection any more.
                self.forget(key);
                self.table.remove(key);
            }
            Step::Written => self.conclude(key, late, now),
        }
    }

    fn carried(&mut self, key: &FlowKey) -> Option<&mut Carried> {
        self.message.as_mut()?.deliveries.get_mut(key)
    }

    /// Everything has been given to TCP: what follows, by what is known now.
    fn conclude(&mut self, key: &FlowKey, late: bool, now: Instant) {
        let Some(flow) = self.table.get(key) else { return self.forget(key) };
        let una = flow.una();
        let Some(message) = &mut self.message else { return };
        match message.held.plan(key, una) {
            Some(Plan::Finish { .. }) => {
                let carried = message.deliveries.remove(key).expect("it is being delivered");
                message.lingering.extend(carried.delivery.end(now));
                self.table.deliver_to_end(key);
                self.close(key);
                self.progress.pending -= 1;
                self.progress.adopted += 1;
            }
            Some(Plan::Adopt { logged: 0, .. }) => {
                let carried = self.carried(key).expect("it is being delivered");
                carried.delivery.vanish();
                carried.stage = Stage::Vanished;
            }
            Some(Plan::WaitForBody { logged: 0 }) if late => {
                self.reset(key, una, ResetReason::BodyUnfinished);
            }
            Some(Plan::Reset { why, logged: 0 }) => self.reset(key, una, reason_of(why)),
            // Not acknowledged yet. As long as its client lives TCP sends again; if not, it says so.
            Some(Plan::Adopt { .. } | Plan::WaitForBody { .. } | Plan::Reset { .. }) => {}
            None => self.reset(key, una, ResetReason::NotLogged),
        }
    }

    /// The flow's next server takes the place of the child that has vanished. Until then no segment
    /// of this host's answers the client: a reset of the kernel's, which knows of no socket, does not
    /// leave.
    fn replace_child(&mut self, key: &FlowKey, now: Instant) {
        let Some(flow) = self.table.get(key) else { return self.forget(key) };
        let message = self.message.as_mut().expect("it was being delivered");
        match message.held.plan(key, flow.una()) {
            Some(Plan::Adopt { instream, position, logged: 0, .. }) => {
                message.deliveries.remove(key);
                self.progress.pending -= 1;
                self.begin(*key, flow, Start::At { instream, position }, now);
            }
            Some(Plan::Reset { why, .. }) => self.reset(key, flow.una(), reason_of(why)),
            // The client goes on in a way that cannot be carried on: it was whole a moment ago.
            Some(_) | None => self.reset(key, flow.una(), ResetReason::NotLogged),
        }
    }
}

fn reason_of(why: Why) -> ResetReason {
    match why {
        Why::PartlySent => ResetReason::ReplyCut,
        _ => ResetReason::Simplex,
    }
}

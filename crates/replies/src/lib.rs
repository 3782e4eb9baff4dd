//! The reply log: what must survive of a server's replies (scheme `message`).
//!
//! A reply that cannot be generated twice must be on two hosts before its first byte leaves, and a
//! request that has been answered must not be executed again. The [`ReplyLog`] is the backup's part
//! in that. It is fed what clients send and what the primary's server writes, and says for each
//! flow up to where the output may leave; and, once the primary is dead, what the client must still
//! be sent from the log, and at which request another server begins ([`Plan`]).
//!
//! The obvious rule, "release what is logged whole, execute the rest again", is the rule for
//! most replies. Two kinds are released before they are whole:
//!
//! - A reply that is *regenerated*: its route says that every server writes the same bytes. Nothing
//!   of it needs to be logged; of a long one the backup does not even see the middle
//!   ([`Orders::skip`]).
//! - A reply that is too large to be held (the reply budget) is *streamed*: each piece leaves once
//!   it is logged. If the primary dies in the midst of it the flow is reset, behind what was whole.
//!
//! What is not logged leaves a *hole* until the client has acknowledged it. While there is one, a
//! takeover begins at the request before it, so whatever else was answered behind it would be
//! executed again. Therefore a reply that is to be logged waits behind a hole; only then does it
//! count as logged. The end of a regenerated reply is always kept ([`TAIL`]), so that the hole ends
//! in front of the segment that the next reply may share with it: a segment leaves as a whole or not
//! at all, and one with both could otherwise never be acknowledged.
//!
//! Where two meanings are possible nothing is guessed. The flow is *opened*: from then on its
//! output leaves at once, nothing of it is logged, and a takeover resets it ([`Why`]).
//!
//! ```
//! use std::sync::Arc;
//! use replies::{Orders, Plan, Policy, ReplyLog};
//!
//! let mut log = ReplyLog::new(1 << 30);
//! let iss = 999;
//! let _ = log.open("client:40000", iss, &Arc::new(Policy::default()));
//! let orders = log.instream(&"client:40000", 0, b"POST /buy HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
//! assert_eq!(orders, Orders::default());
//! let orders = log.outstream(&"client:40000", 1000, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false);
//! assert_eq!(orders, Orders::default(), "half a reply is held");
//! let orders = log.outstream(&"client:40000", 1038, b"order", false);
//! assert_eq!(orders.release, Some(1043), "logged whole: it may leave");
//!
//! // The primary dies; the client has acknowledged the head.
//! let _ = log.acknowledged(&"client:40000", 1038);
//! let plan = log.plan(&"client:40000").unwrap();
//! assert_eq!(plan, Plan::Adopt { instream: 41, position: 1043, logged: 5, swallow: 0 });
//! assert_eq!(log.unacknowledged(&"client:40000").concat(), b"order");
//! ```
//!
//! # How it is fed
//!
//! Both streams in order; the instream as the journal has it, with the offsets that
//! [`journal::Instream`] gives, the outstream with its sequence numbers, which may go back to what
//! was fed before. Between the streams, cause comes before effect: whoever feeds output must have
//! fed every request that has been logged before it arrived. Sequence numbers are plain `u32`,
//! understood modulo 2^32 (RFC 9293 §3.4).
//!
//! # What it does not know
//!
//! Sockets, clocks, the gate, and how a takeover is carried out. [`codec`] has the records in which
//! the primary tells what its server wrote, and is told what is stable.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod book;
pub mod codec;
mod flow;
mod plan;
mod policy;
mod why;

use std::hash::Hash;
use std::sync::Arc;

use journal::{Opened, Purse, Table, Total};

use crate::flow::Flow;

pub use crate::book::{AHEAD_MAX, TAIL};
pub use crate::plan::Plan;
pub use crate::policy::{Excess, Policy};
pub use crate::why::Why;

/// Every flow's replies, by the flow's key.
#[derive(Debug)]
pub struct ReplyLog<K> {
    flows: Table<K, State>,
    /// Invariant: what it holds is the heap of `flows` and of each flow in it.
    total: Total,
    counts: Stats,
}

#[derive(Debug)]
enum State {
    Followed(Box<Flow>),
    /// Opened, and its memory is free.
    Open(Why),
}

/// What is to be done at once about a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "what is not ordered is held for ever"]
pub struct Orders {
    /// Release the outstream in front of this sequence number. It never steps back; it may lie
    /// ahead of all that has been written, by [`AHEAD_MAX`] at most. A FIN is in front of it if it
    /// is one more than the FIN's number.
    pub release: Option<u32>,
    /// What lies in front of this sequence number is not needed: the primary need not send it.
    pub skip: Option<u32>,
    /// Release everything from now on, and count the flow as unprotected. Comes once.
    pub open: Option<Why>,
}

/// Counts since the log was made, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Flows followed or opened now.
    pub flows: usize,
    /// Heap held now, in bytes, with the bookkeeping.
    pub heap_bytes: usize,
    /// Replies that were logged whole before any byte of them left.
    pub logged: u64,
    /// Replies that were released at once because another server would write the same.
    pub regenerated: u64,
    /// Replies that were too large and were released piece by piece.
    pub streamed: u64,
    /// Bytes that the primary was told not to send.
    pub skipped_bytes: u64,
    /// Flows that were opened, for whatever reason.
    pub opened: u64,
}

impl<K: Eq + Hash + Copy> ReplyLog<K> {
    /// An empty log that will never take more than `total_budget_bytes` of heap, but for one head
    /// that is just being read. It takes none until the first flow.
    pub fn new(total_budget_bytes: usize) -> Self {
        Self {
            flows: Table::default(),
            total: Total::new(total_budget_bytes),
            counts: Stats::default(),
        }
    }

    /// Begins the log of a flow whose server's SYN had the sequence number `iss`, and of which no
    /// byte has been seen. An older incarnation with the same key is forgotten.
    pub fn open(&mut self, key: K, iss: u32, policy: &Arc<Policy>) -> Opened {
        let replaced = self.close(&key);
        match self.insert(key, iss, policy) {
            Err(_) => {
                self.counts.opened += 1;
                Opened::OverBudget
            }
            Ok(()) if replaced => Opened::Replaced,
            Ok(()) => Opened::New,
        }
    }

    /// The client's next bytes, of which the first is at `offset`.
    pub fn instream(&mut self, key: &K, offset: u64, bytes: &[u8]) -> Orders {
        self.with(key, |flow, purse, _| flow.instream(offset, bytes, false, purse))
    }

    /// The client's FIN, behind the byte before `offset`.
    pub fn instream_end(&mut self, key: &K, offset: u64) -> Orders {
        self.with(key, |flow, purse, _| flow.instream(offset, &[], true, purse))
    }

    /// Bytes that the server wrote, of which the first is at `seq`; with `fin`, its FIN stands
    /// behind them. Bytes that were fed before must be the same again. A flow that is not known
    /// is opened: it began when nobody logged.
    pub fn outstream(&mut self, key: &K, seq: u32, bytes: &[u8], fin: bool) -> Orders {
        if self.flows.get(key).is_none() {
            self.counts.opened += 1;
            // If there is no room to remember it, it is opened again with the next piece.
            let _ = self.flows.insert(*key, State::Open(Why::Unknown), &mut self.total);
            return Orders { open: Some(Why::Unknown), ..Orders::default() };
        }
        self.with(key, |flow, purse, counts| flow.outstream(seq, bytes, fin, purse, counts))
    }

    /// The client has acknowledged everything in front of `ack`. What cannot be true, since it was
    /// never released, changes nothing.
    pub fn acknowledged(&mut self, key: &K, ack: u32) -> Orders {
        self.with(key, |flow, purse, counts| flow.acknowledged(ack, purse, counts))
    }

    /// Opens the flow for a reason that lies elsewhere: its output or its instream was not caught.
    pub fn give_up(&mut self, key: &K, why: Why) -> Orders {
        self.with(key, |_, _, _| Err(why))
    }

    /// Forgets a flow and frees its memory. False if there was none.
    pub fn close(&mut self, key: &K) -> bool {
        match self.flows.remove(key, &mut self.total) {
            Some(State::Followed(flow)) => {
                release(flow, &mut self.total);
                true
            }
            Some(State::Open(_)) => true,
            None => false,
        }
    }

    /// What is to become of the flow now that its primary is dead. The flow should have been told
    /// the client's newest acknowledgement before. `None` if it is not known.
    pub fn plan(&self, key: &K) -> Option<Plan> {
        Some(match self.flows.get(key)? {
            State::Followed(flow) => flow.plan(),
            State::Open(why) => Plan::Reset { why: *why, logged: 0 },
        })
    }

    /// The logged outstream from the client's acknowledgement up to where another server's output,
    /// or the FIN, belongs; see [`Plan`].
    pub fn unacknowledged(&self, key: &K) -> Vec<&[u8]> {
        self.followed(key).map_or(Vec::new(), Flow::unacknowledged)
    }

    /// The offset of the first byte of the instream that a takeover may still need; what lies in
    /// front of it may be freed. `None` if that cannot be said now.
    pub fn instream_needed_from(&self, key: &K) -> Option<u64> {
        self.followed(key)?.instream_needed_from()
    }

    /// The offset of the next byte of the instream that the flow expects. `None` if the flow is not
    /// followed.
    pub fn instream_next(&self, key: &K) -> Option<u64> {
        self.followed(key).map(Flow::instream_next)
    }

    /// The offset of the first request, or part of one, that has no whole reply. `None` if all that has
    /// come is answered, or the flow is not followed.
    pub fn unanswered_from(&self, key: &K) -> Option<u64> {
        self.followed(key)?.unanswered_from()
    }

    /// The sequence number of the outstream that the flow expects next; behind the FIN if there was
    /// one. `None` if the flow is not followed.
    pub fn outstream_next(&self, key: &K) -> Option<u32> {
        self.followed(key).map(Flow::outstream_next)
    }

    /// What the flow was last told to release, see [`Orders::release`]: to be told again, if an
    /// order may have been lost. `None` if the flow is not followed.
    pub fn released(&self, key: &K) -> Option<u32> {
        self.followed(key).map(Flow::released)
    }

    /// Why the flow is open, if it is.
    pub fn why_open(&self, key: &K) -> Option<Why> {
        match self.flows.get(key)? {
            State::Open(why) => Some(*why),
            State::Followed(_) => None,
        }
    }

    /// The flows, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.flows.keys()
    }

    /// The heap the log holds, in bytes, with the bookkeeping.
    pub fn bytes(&self) -> usize {
        self.total.held()
    }

    /// What it holds and what it has done.
    pub fn stats(&self) -> Stats {
        Stats { flows: self.flows.len(), heap_bytes: self.bytes(), ..self.counts }
    }

    fn insert(&mut self, key: K, iss: u32, policy: &Arc<Policy>) -> Result<(), journal::Budget> {
        Purse::new(&mut self.total, 0, usize::MAX).charge(Flow::OWN_HEAP)?;
        let state = State::Followed(Box::new(Flow::new(iss, Arc::clone(policy))));
        let inserted = self.flows.insert(key, state, &mut self.total);
        if inserted.is_err() {
            self.total.credit(Flow::OWN_HEAP);
        }
        inserted
    }

    fn followed(&self, key: &K) -> Option<&Flow> {
        match self.flows.get(key)? {
            State::Followed(flow) => Some(flow),
            State::Open(_) => None,
        }
    }

    /// Lets a followed flow act; opens it if it says why.
    fn with(
        &mut self,
        key: &K,
        act: impl FnOnce(&mut Flow, &mut Purse<'_>, &mut Stats) -> Result<Orders, Why>,
    ) -> Orders {
        let Some(state) = self.flows.get_mut(key) else { return Orders::default() };
        let State::Followed(flow) = state else { return Orders::default() };
        let mut purse = Purse::new(&mut self.total, flow.heap_bytes(), flow.budget());
        let done = act(flow, &mut purse, &mut self.counts);
        assert_eq!(purse.held(), flow.heap_bytes(), "charged and held heap differ");
        done.unwrap_or_else(|why| {
            let State::Followed(flow) = std::mem::replace(state, State::Open(why)) else {
                unreachable!("it was followed a moment ago")
            };
            release(flow, &mut self.total);
            self.counts.opened += 1;
            Orders { open: Some(why), ..Orders::default() }
        })
    }
}

fn release(flow: Box<Flow>, total: &mut Total) {
    let heap = flow.heap_bytes();
    drop(flow);
    total.credit(heap);
}

//! What must survive a server's death: the bytes that clients sent.
//!
//! A backup sees every segment on its way from a client to the primary. If the primary dies, a fresh
//! server has to be given each connection's *instream* (client to server) from its very first byte,
//! exactly as the dead one read it. The [`Journal`] puts the segments together: duplicates,
//! overlaps, any order, across the wrap of sequence numbers, without ever dropping a byte at the
//! front.
//!
//! Keeping everything invites two failures. A backup that runs out of memory dies when it is needed,
//! so there are two budgets, per flow and in total, and they count real memory, spare room and
//! bookkeeping included. And a stream with a silent gap would be continued with wrong bytes, so
//! nothing is ever evicted: a flow that does not fit is forgotten as a whole, its memory is free at
//! once, and the caller is told ([`Appended::OverBudget`]) so that the flow is officially simplex.
//!
//! Sequence numbers are plain `u32`, understood modulo 2^32 as in RFC 9293 §3.4.
//!
//! ```
//! use journal::{Appended, Journal, Opened};
//!
//! let mut journal = Journal::new(1 << 30);
//! let irs = 4_294_967_290;
//! assert_eq!(journal.open("client:40000", irs, 1 << 20), Opened::New);
//! let second = journal.append(&"client:40000", irs.wrapping_add(5), b" / HTTP/1.1", false);
//! assert_eq!(second, Appended::Stored { new_bytes: 11, rcv_nxt: irs.wrapping_add(1) });
//! let first = journal.append(&"client:40000", irs.wrapping_add(1), b"HEAD", false);
//! assert_eq!(first, Appended::Stored { new_bytes: 4, rcv_nxt: 10 });
//!
//! let instream = journal.instream(&"client:40000").unwrap();
//! assert_eq!(instream.chunks_from(0).collect::<Vec<_>>().concat(), b"HEAD / HTTP/1.1");
//! ```
//!
//! [`Journal::collect`] frees the front of an instream, for who knows that no takeover will want it.
//!
//! What the journal is made of is public, for other logs under the same kind of budgets: [`Table`],
//! [`InOrder`], [`Total`] and [`Purse`].
//!
//! Inside: `table` finds a flow, `flow` turns sequence numbers into places, `in_order` and `ahead`
//! hold the bytes before and behind the first hole, `budget` pays for all of it.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod ahead;
mod budget;
mod flow;
mod in_order;
mod instream;
mod table;

use std::hash::Hash;

use crate::flow::{Flow, Placed};

pub use crate::budget::{Growable, Purse, Total, allocated, allocated_list};
pub use crate::in_order::{Chunks, InOrder};
pub use crate::instream::Instream;
pub use crate::table::Table;

/// How far behind a hole a segment may end, in bytes, if its flow's budget is not smaller still: as
/// much as ordinary hosts ever offer as a receive window.
pub const WINDOW_MAX: u64 = 16 * 1024 * 1024;

/// The most pieces of one stream that may wait behind holes. Runs of segments count as one piece per
/// 64 KiB; a flow beyond it is [`Appended::OverBudget`] with [`Budget::Flow`].
pub const PIECES_MAX: usize = ahead::PIECES_MAX;

/// Every flow's instream, by the flow's key.
#[derive(Debug)]
pub struct Journal<K> {
    flows: Table<K, Flow>,
    /// Invariant: what it holds is the heap of `flows` and of each flow in it, to the byte.
    total: Total,
    counts: Stats,
}

/// A budget, named by whom it limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The flow's own: it was promised no more.
    Flow,
    /// The whole journal's: the node has no more.
    Total,
}

/// What became of [`Journal::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a flow that was not opened is simplex"]
pub enum Opened {
    /// The flow is journaled from here on.
    New,
    /// So it is, and an older flow with the same key has been forgotten.
    Replaced,
    /// The total budget has no room for another flow: it is not journaled, its caller marks it
    /// simplex.
    OverBudget,
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a flow over its budget has been forgotten and is simplex"]
pub enum Appended {
    /// It brought something new: bytes, or the client's FIN.
    Stored {
        /// Payload bytes that were not held before.
        new_bytes: usize,
        /// The next sequence number expected, see [`Instream::rcv_nxt`].
        rcv_nxt: u32,
    },
    /// It brought nothing new: an old segment again, a keep-alive, a pure acknowledgement.
    Duplicate,
    /// It lies behind a hole and ends too far ahead: more than [`WINDOW_MAX`] or the flow's budget
    /// beyond `rcv_nxt`. Nothing of it is held. Harmless as long as the primary's TCP refuses it
    /// too; if that takes it, the stream can never be completed here.
    BeyondWindow,
    /// It contradicts the end of the stream: bytes behind the FIN, a second FIN elsewhere, or a FIN
    /// before bytes that are held. Nothing of it is held.
    AfterFin,
    /// The flow needs more than a budget allows. It has been forgotten and its memory is free: its
    /// caller marks it simplex.
    OverBudget(Budget),
    /// No such flow is open.
    UnknownFlow,
}

/// Counts since the journal was made, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Flows open now.
    pub flows: usize,
    /// Heap held now, in bytes, with the bookkeeping.
    pub heap_bytes: usize,
    /// Payload bytes stored, each once.
    pub stored_bytes: u64,
    /// Bytes that arrived again with another value; the first was kept. Apart from keep-alive probes
    /// that carry a meaningless byte (RFC 9293 §3.8.4), somebody is forging segments.
    pub conflicting_bytes: u64,
    /// Segments by what became of them, as in [`Appended`].
    pub duplicates: u64,
    /// Segments refused: too far ahead.
    pub beyond_window: u64,
    /// Segments refused: they contradict the FIN.
    pub after_fin: u64,
    /// Segments of flows that are not open.
    pub unknown_flow: u64,
    /// Flows forgotten because they outgrew their own budget.
    pub over_flow_budget: u64,
    /// Flows forgotten, or not opened, because the total budget was used up.
    pub over_total_budget: u64,
}

impl<K: Eq + Hash + Copy> Journal<K> {
    /// An empty journal that will never take more than `total_budget_bytes` of heap. It takes none
    /// until the first flow.
    pub fn new(total_budget_bytes: usize) -> Self {
        Self {
            flows: Table::default(),
            total: Total::new(total_budget_bytes),
            counts: Stats::default(),
        }
    }

    /// Begins the journal of a flow whose client's SYN had the sequence number `irs`. An older
    /// incarnation with the same key is forgotten.
    ///
    /// `flow_budget_bytes` limits the heap that holds the flow's bytes and their bookkeeping, in
    /// steps of 16 bytes, to 64 GiB at the most; the flow's place in the table, some 100 bytes,
    /// counts towards the total only. A budget below the window that the server's TCP may offer can
    /// lose a stream behind a hole, see [`Appended::BeyondWindow`].
    pub fn open(&mut self, key: K, irs: u32, flow_budget_bytes: usize) -> Opened {
        let flow = Flow::new(irs, flow_budget_bytes);
        if let Some(old) = self.flows.get_mut(&key) {
            release(std::mem::replace(old, flow), &mut self.total);
            return Opened::Replaced;
        }
        match self.flows.insert(key, flow, &mut self.total) {
            Ok(()) => Opened::New,
            Err(_) => {
                self.counts.over_total_budget += 1;
                Opened::OverBudget
            }
        }
    }

    /// Takes a segment: `payload` starts at `seq`, and the FIN, if there is one, stands behind it.
    /// (In a SYN that carries data the payload starts at its sequence number + 1.)
    ///
    /// Where bytes are held already they stay as they are.
    pub fn append(&mut self, key: &K, seq: u32, payload: &[u8], fin: bool) -> Appended {
        let Some(flow) = self.flows.get_mut(key) else {
            self.counts.unknown_flow += 1;
            return Appended::UnknownFlow;
        };
        let conflicts = &mut self.counts.conflicting_bytes;
        match flow.append(seq, payload, fin, &mut self.total, conflicts) {
            Ok(Placed::Stored { new_bytes }) => {
                self.counts.stored_bytes += new_bytes as u64;
                Appended::Stored { new_bytes, rcv_nxt: flow.rcv_nxt() }
            }
            Ok(Placed::Duplicate) => {
                self.counts.duplicates += 1;
                Appended::Duplicate
            }
            Ok(Placed::BeyondWindow) => {
                self.counts.beyond_window += 1;
                Appended::BeyondWindow
            }
            Ok(Placed::AfterFin) => {
                self.counts.after_fin += 1;
                Appended::AfterFin
            }
            Err(budget) => {
                let forgotten = self.close(key);
                assert!(forgotten, "the flow was there a moment ago");
                match budget {
                    Budget::Flow => self.counts.over_flow_budget += 1,
                    Budget::Total => self.counts.over_total_budget += 1,
                }
                Appended::OverBudget(budget)
            }
        }
    }

    /// Whether a RST with this sequence number ends the flow. RFC 5961 §3.2: only one that names
    /// `rcv_nxt` exactly does; anything else could be a guess. Linux takes one more, and so must
    /// a journal of what its TCP does: once the client's FIN is in order, the FIN's own number. A
    /// client that is gone answers a reply that was sent before its FIN arrived with that one,
    /// and the server ends the connection without another segment. False for an unknown flow.
    pub fn reset_is_acceptable(&self, key: &K, seq: u32) -> bool {
        self.flows.get(key).is_some_and(|flow| {
            let nxt = flow.rcv_nxt();
            seq == nxt || (flow.is_complete() && seq == nxt.wrapping_sub(1))
        })
    }

    /// Frees what lies before `offset` in a flow's instream, but for up to one block of it. A takeover
    /// can then begin no sooner than there.
    pub fn collect(&mut self, key: &K, offset: u64) {
        if let Some(flow) = self.flows.get_mut(key) {
            flow.collect(offset, &mut self.total);
        }
    }

    /// Forgets a flow and frees its memory. False if there was none.
    pub fn close(&mut self, key: &K) -> bool {
        match self.flows.remove(key, &mut self.total) {
            Some(flow) => {
                release(flow, &mut self.total);
                true
            }
            None => false,
        }
    }

    /// The stream of one flow as it stands.
    pub fn instream(&self, key: &K) -> Option<Instream<'_>> {
        self.flows.get(key).map(Instream::new)
    }

    /// The flows that are open, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.flows.keys()
    }

    /// How many flows are open.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether no flow is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The heap the journal holds, in bytes, with the bookkeeping; never more than
    /// [`Self::total_budget`].
    pub fn bytes(&self) -> usize {
        self.total.held()
    }

    /// The limit of [`Self::bytes`].
    pub fn total_budget(&self) -> usize {
        self.total.limit()
    }

    /// What it holds and what it has refused.
    pub fn stats(&self) -> Stats {
        Stats { flows: self.len(), heap_bytes: self.bytes(), ..self.counts }
    }
}

fn release(flow: Flow, total: &mut Total) {
    let heap = flow.heap_bytes();
    drop(flow);
    total.credit(heap);
}

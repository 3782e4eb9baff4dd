//! One flow's instream: sequence numbers in, bytes at their places.
//!
//! Inside, places are 64-bit offsets from the first byte (the one behind the SYN), so nothing else
//! has to think of the 32-bit wrap. A segment's sequence number becomes an offset by its distance
//! from `rcv_nxt`, the only place where modular arithmetic is done: the comparison holds for
//! anything less than 2 GiB behind or ahead (RFC 9293 §3.4), far more than any window.
//!
//! The byte that arrived first stays, wherever a later segment overlaps it. The primary's TCP does
//! the same, and a stream of which bytes may change cannot be proved equal to what it read.

use crate::ahead::Ahead;
use crate::budget::{Purse, Total, allocated};
use crate::in_order::InOrder;
use crate::{Budget, WINDOW_MAX};

#[derive(Debug)]
pub(crate) struct Flow {
    /// The client's initial sequence number; offset 0 is the byte `irs + 1`.
    irs: u32,
    /// The most heap this flow may take, in steps of 16 bytes, which all blocks have
    /// ([`allocated`]): half the place of a number of bytes.
    budget_steps: u32,
    in_order: InOrder,
    /// Bytes behind a hole and the FIN. Invariant: absent unless one of them is there.
    ahead: Option<Box<Ahead>>,
}

/// What became of a segment, where no budget stood in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    Stored { new_bytes: usize },
    Duplicate,
    BeyondWindow,
    AfterFin,
}

impl Flow {
    pub(crate) fn new(irs: u32, budget: usize) -> Self {
        let budget_steps = u32::try_from(budget / 16).unwrap_or(u32::MAX);
        Self { irs, budget_steps, in_order: InOrder::default(), ahead: None }
    }

    /// The most heap this flow may take, in bytes.
    fn budget(&self) -> usize {
        self.budget_steps as usize * 16
    }

    pub(crate) fn irs(&self) -> u32 {
        self.irs
    }

    pub(crate) fn in_order(&self) -> &InOrder {
        &self.in_order
    }

    pub(crate) fn ahead(&self) -> Option<&Ahead> {
        self.ahead.as_deref()
    }

    /// The sequence number of the byte at `offset`.
    pub(crate) fn seq_of(&self, offset: u64) -> u32 {
        // Truncation is the arithmetic modulo 2^32 of RFC 9293 §3.4.
        self.irs.wrapping_add(1).wrapping_add(offset as u32)
    }

    /// The next sequence number expected. A FIN that is in order occupies one (RFC 9293 §3.4).
    pub(crate) fn rcv_nxt(&self) -> u32 {
        self.seq_of(self.in_order.len() + u64::from(self.is_complete()))
    }

    /// The client's FIN is known and nothing is missing before it.
    pub(crate) fn is_complete(&self) -> bool {
        self.fin_at() == Some(self.in_order.len())
    }

    pub(crate) fn fin_at(&self) -> Option<u64> {
        self.ahead.as_ref().and_then(|a| a.fin_at)
    }

    /// The heap charged for the flow, in bytes, without its place in the table.
    pub(crate) fn heap_bytes(&self) -> usize {
        let ahead =
            self.ahead.as_ref().map_or(0, |a| allocated(size_of::<Ahead>()) + a.heap_bytes());
        self.in_order.heap_bytes() + ahead
    }

    /// Puts a segment in its place. After a refusal the flow is charged for what it holds, but holds
    /// only a part of the segment: it is of no more use. `conflicts` counts bytes that differ from
    /// those that arrived first.
    pub(crate) fn append(
        &mut self,
        seq: u32,
        payload: &[u8],
        fin: bool,
        total: &mut Total,
        conflicts: &mut u64,
    ) -> Result<Placed, Budget> {
        let mut purse = Purse::new(total, self.heap_bytes(), self.budget());
        let placed = self.place(seq, payload, fin, &mut purse, conflicts);
        assert_eq!(purse.held(), self.heap_bytes(), "charged and held heap differ");
        if let (Ok(_), Some(ahead)) = (&placed, &self.ahead) {
            assert!(!ahead.is_empty(), "nothing ahead, but memory held for it");
            let end = self.in_order.len();
            assert!(ahead.first_start().is_none_or(|first| first > end), "no hole before a piece");
            let last = ahead.end().unwrap_or(end);
            assert!(ahead.fin_at.is_none_or(|fin| last <= fin), "bytes behind the FIN");
        }
        placed
    }

    /// Frees the front of the stream, see [`InOrder::collect`].
    pub(crate) fn collect(&mut self, offset: u64, total: &mut Total) {
        let mut purse = Purse::new(total, self.heap_bytes(), self.budget());
        self.in_order.collect(offset.min(self.in_order.len()), &mut purse);
        assert_eq!(purse.held(), self.heap_bytes(), "charged and held heap differ");
    }

    fn place(
        &mut self,
        seq: u32,
        payload: &[u8],
        fin: bool,
        purse: &mut Purse<'_>,
        conflicts: &mut u64,
    ) -> Result<Placed, Budget> {
        if payload.is_empty() && !fin {
            return Ok(Placed::Duplicate);
        }
        let next = self.in_order.len();
        let distance = seq.wrapping_sub(self.seq_of(next)) as i32;
        // Negative: before the stream's first byte.
        let start = next as i64 + i64::from(distance);
        let end = start + payload.len() as i64;

        if self.contradicts_fin(end, !payload.is_empty(), fin) {
            return Ok(Placed::AfterFin);
        }
        let window = WINDOW_MAX.min(self.budget() as u64) as i64;
        if distance > 0 && end + i64::from(fin) > next as i64 + window {
            return Ok(Placed::BeyondWindow);
        }

        let new_fin = fin && self.fin_at().is_none();
        if new_fin {
            self.ahead_mut(purse)?.fin_at = Some(end as u64);
        }
        // Keep-alive probes and retransmitted SYNs with data reach before the first byte.
        let before = start.min(0).unsigned_abs().min(payload.len() as u64) as usize;
        let (start, payload) = (start.max(0) as u64, &payload[before..]);

        let new_bytes = if payload.is_empty() {
            0
        } else if start <= next {
            self.absorb(start, payload, purse, conflicts)?
        } else {
            let (kept, differing) = self.ahead_mut(purse)?.insert(start, payload, purse)?;
            *conflicts += differing;
            kept
        };
        Ok(if new_bytes > 0 || new_fin { Placed::Stored { new_bytes } } else { Placed::Duplicate })
    }

    /// A stream has one end: with a FIN known nothing may lie behind it, nor may another FIN stand
    /// elsewhere, and a FIN cannot stand before bytes already held.
    fn contradicts_fin(&self, end: i64, has_payload: bool, fin: bool) -> bool {
        match self.fin_at() {
            Some(fin_at) => {
                let fin_at = fin_at as i64;
                (has_payload && end > fin_at) || (fin && end != fin_at)
            }
            None => {
                let last = self.ahead.as_ref().and_then(|a| a.end()).unwrap_or(self.in_order.len());
                fin && end < last as i64
            }
        }
    }

    /// Takes a segment that starts at or before `rcv_nxt`, and with it the pieces it reaches.
    /// Returns the number of bytes that were not held before.
    #[inline]
    fn absorb(
        &mut self,
        start: u64,
        payload: &[u8],
        purse: &mut Purse<'_>,
        conflicts: &mut u64,
    ) -> Result<usize, Budget> {
        let old = (self.in_order.len() - start).min(payload.len() as u64) as usize;
        if old > 0 {
            *conflicts += self.in_order.conflicts(start, &payload[..old]);
        }
        let payload = &payload[old..];
        if payload.is_empty() {
            return Ok(0);
        }
        if self.ahead.as_ref().is_none_or(|a| a.first_start().is_none()) {
            self.in_order.append(payload, purse)?;
            return Ok(payload.len());
        }
        self.absorb_up_to_pieces(payload, purse, conflicts)
    }

    /// `payload` starts at `rcv_nxt` and there are pieces: fills the holes from it, and lets the
    /// pieces, which came first, have their places.
    fn absorb_up_to_pieces(
        &mut self,
        mut payload: &[u8],
        purse: &mut Purse<'_>,
        conflicts: &mut u64,
    ) -> Result<usize, Budget> {
        let Some(ahead) = self.ahead.as_mut() else { unreachable!("the caller saw a piece") };
        let mut new_bytes = 0;
        loop {
            let next = self.in_order.len();
            if ahead.first_start() == Some(next) {
                let Some(piece) = ahead.take_first() else { unreachable!("a first piece") };
                let overlap = payload.len().min(piece.bytes.len());
                *conflicts +=
                    crate::in_order::differing_bytes(&payload[..overlap], &piece.bytes[..overlap]);
                payload = &payload[overlap..];
                let appended = self.in_order.append(&piece.bytes, purse);
                ahead.free(piece, purse);
                appended?;
            } else if !payload.is_empty() {
                let hole = ahead.first_start().map_or(u64::MAX, |first| first - next);
                let fill = hole.min(payload.len() as u64) as usize;
                self.in_order.append(&payload[..fill], purse)?;
                payload = &payload[fill..];
                new_bytes += fill;
            } else {
                break;
            }
        }
        ahead.trim(purse);
        if ahead.is_empty() {
            self.ahead = None;
            purse.credit(allocated(size_of::<Ahead>()));
        }
        Ok(new_bytes)
    }

    fn ahead_mut(&mut self, purse: &mut Purse<'_>) -> Result<&mut Ahead, Budget> {
        if self.ahead.is_none() {
            purse.charge(allocated(size_of::<Ahead>()))?;
        }
        Ok(self.ahead.get_or_insert_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams outgrow the sequence space; places are 64 bits wide.
    #[test]
    fn a_stream_longer_than_the_sequence_space() {
        for long in [(1 << 31) - 3, 1 << 31, (1 << 32) - 2, 1 << 32, (7 << 32) + 5] {
            let irs = 0xfedc_ba98;
            let mut flow = Flow::new(irs, 1 << 30);
            flow.in_order = InOrder::beginning_at(long);
            let mut total = Total::new(1 << 30);
            total.force_charge(flow.heap_bytes());
            let mut conflicts = 0;
            let mut append = |flow: &mut Flow, at: u64, payload: &[u8], fin| {
                let seq = irs.wrapping_add(1).wrapping_add(at as u32);
                flow.append(seq, payload, fin, &mut total, &mut conflicts)
            };
            let stored = |new_bytes| Ok(Placed::Stored { new_bytes });
            assert_eq!(append(&mut flow, long + 3, b"defgh", true), stored(5));
            assert_eq!(append(&mut flow, long + 20, b"x", false), Ok(Placed::AfterFin));
            assert_eq!(append(&mut flow, long - 2, b"??abcd", false), stored(3));
            assert_eq!(append(&mut flow, long - 1, b"?abc", false), Ok(Placed::Duplicate));
            assert_eq!(flow.in_order.from(long).collect::<Vec<_>>().concat(), b"abcdefgh");
            assert_eq!(flow.rcv_nxt(), irs.wrapping_add(10).wrapping_add(long as u32));
            assert!(flow.is_complete());
        }
    }
}

//! One flow: sequence numbers and bytes in, orders out.
//!
//! Inside, places are 64-bit offsets from the first byte of a stream, the one behind its SYN.
//! `http` finds the messages, [`Book`] keeps what is due for them.

use std::sync::Arc;

use http::{Connection, Event, Resume};
use journal::{Purse, allocated};

use crate::book::Book;
use crate::{Orders, Plan, Policy, Stats, Why};

#[derive(Debug)]
pub(crate) struct Flow {
    policy: Arc<Policy>,
    /// The server's initial sequence number; offset 0 of the outstream is the byte `iss + 1`.
    iss: u32,
    framing: Connection,
    /// The heap charged for `framing`, in bytes. Invariant: what it holds, between two calls.
    framing_heap: usize,
    /// The offset of the next byte of the instream.
    instream_next: u64,
    book: Book,
}

impl Flow {
    /// What every flow takes, whatever it holds.
    pub(crate) const OWN_HEAP: usize = allocated(size_of::<Self>());

    pub(crate) fn new(iss: u32, policy: Arc<Policy>) -> Self {
        let framing = Connection::new(policy.limits);
        Self { policy, iss, framing, framing_heap: 0, instream_next: 0, book: Book::default() }
    }

    pub(crate) fn budget(&self) -> usize {
        self.policy.flow_bytes
    }

    /// The heap charged for the flow, in bytes, without its place in the table.
    pub(crate) fn heap_bytes(&self) -> usize {
        Self::OWN_HEAP + self.framing_heap + self.book.heap_bytes()
    }

    pub(crate) fn instream_next(&self) -> u64 {
        self.instream_next
    }

    pub(crate) fn unanswered_from(&self) -> Option<u64> {
        match self.framing.takeover()?.resume {
            Resume::At(instream) => (instream < self.instream_next).then_some(instream),
            Resume::BehindBody { .. } | Resume::Closed => None,
        }
    }

    pub(crate) fn outstream_next(&self) -> u32 {
        self.seq_of(self.book.at() + u64::from(self.book.has_ended()))
    }

    pub(crate) fn released(&self) -> u32 {
        self.seq_of(self.book.released())
    }

    pub(crate) fn instream(
        &mut self,
        offset: u64,
        bytes: &[u8],
        end: bool,
        purse: &mut Purse<'_>,
    ) -> Result<Orders, Why> {
        let Self { framing, book, policy, .. } = self;
        let mut events =
            if end { framing.instream_end(offset) } else { framing.instream(offset, bytes) };
        while let Some(event) = events.next_event() {
            match event {
                Event::Request(request) => book.request(&request, policy, purse)?,
                Event::PassThrough(doubt) => return Err(Why::Doubt(doubt)),
                _ => {}
            }
        }
        self.instream_next = offset + bytes.len() as u64;
        self.pay_for_framing(purse)?;
        Ok(Orders::default())
    }

    pub(crate) fn outstream(
        &mut self,
        seq: u32,
        bytes: &[u8],
        fin: bool,
        purse: &mut Purse<'_>,
        counts: &mut Stats,
    ) -> Result<Orders, Why> {
        let at = self.book.at();
        // RFC 9293 §3.4: right for anything less than 2 GiB behind or ahead.
        let ahead = seq.wrapping_sub(self.seq_of(at)) as i32;
        if ahead > 0 {
            return Err(Why::Gap);
        }
        let again = (ahead.unsigned_abs() as usize).min(bytes.len());
        let (again, bytes) = bytes.split_at(again);
        if !self.book.is_same(at.checked_sub(u64::from(ahead.unsigned_abs())), again) {
            return Err(Why::Rewritten);
        }
        // A FIN stands behind everything, or it takes back what is behind it.
        if fin && bytes.is_empty() && ahead.unsigned_abs() as usize != again.len() {
            return Err(Why::Rewritten);
        }
        self.book.append(bytes, purse)?;
        let Self { framing, book, policy, .. } = self;
        let mut read = |mut events: http::Events<'_>| {
            while let Some(event) = events.next_event() {
                match event {
                    Event::PassThrough(doubt) => return Err(Why::Doubt(doubt)),
                    event => book.on_output(&event, policy, counts),
                }
            }
            Ok(())
        };
        if !bytes.is_empty() {
            read(framing.outstream(at, bytes))?;
        }
        if fin {
            read(framing.outstream_end(at + bytes.len() as u64))?;
            self.book.end();
        }
        self.settle(purse, counts)
    }

    pub(crate) fn acknowledged(
        &mut self,
        ack: u32,
        purse: &mut Purse<'_>,
        counts: &mut Stats,
    ) -> Result<Orders, Why> {
        let una = self.book.una();
        let news = ack.wrapping_sub(self.seq_of(una)) as i32;
        let Ok(news) = u64::try_from(news) else { return Ok(Orders::default()) };
        if news > 0 && una + news <= self.book.released() {
            self.book.acknowledge(una + news);
            return self.settle(purse, counts);
        }
        Ok(Orders::default())
    }

    pub(crate) fn plan(&self) -> Plan {
        let una = self.book.una();
        if let Some(hole) = self.book.hole() {
            return self.adopt(hole.request, hole.reply);
        }
        let takeover = self.framing.takeover().expect("a flow in doubt is not followed");
        let end = takeover.outstream_at;
        assert_eq!(end, self.book.whole(), "one view of what is whole");
        let logged = end.saturating_sub(una);
        match takeover.resume {
            _ if self.book.is_partly_sent() => Plan::Reset { why: Why::PartlySent, logged },
            Resume::At(instream) => self.adopt(instream, end),
            Resume::BehindBody { .. } => Plan::WaitForBody { logged },
            Resume::Closed => {
                Plan::Finish { position: self.seq_of(end), logged, acknowledged: una > end }
            }
        }
    }

    pub(crate) fn unacknowledged(&self) -> Vec<&[u8]> {
        match self.book.hole() {
            Some(_) => Vec::new(),
            None => self.book.logged(),
        }
    }

    pub(crate) fn instream_needed_from(&self) -> Option<u64> {
        match self.plan() {
            Plan::Adopt { instream, .. } => Some(instream),
            Plan::Finish { .. } => Some(self.instream_next),
            // A reply that is streamed can still become whole: then its request is not needed.
            Plan::WaitForBody { .. } | Plan::Reset { .. } => None,
        }
    }

    fn adopt(&self, instream: u64, position: u64) -> Plan {
        let una = self.book.una();
        Plan::Adopt {
            instream,
            position: self.seq_of(position),
            logged: position.saturating_sub(una),
            swallow: una.saturating_sub(position),
        }
    }

    /// What follows for the reply that is under way, and what may leave now.
    fn settle(&mut self, purse: &mut Purse<'_>, counts: &mut Stats) -> Result<Orders, Why> {
        let unread = self.framing.unread_of_body();
        let skipped = self.book.settle(unread, &self.policy, purse);
        if skipped > 0 {
            self.framing.outstream_unseen(skipped);
            counts.skipped_bytes += skipped;
        }
        let waiting = self.framing.takeover().map(|takeover| takeover.unanswered);
        assert_eq!(waiting, Some(self.book.waiting()), "one view of what waits for a reply");
        self.pay_for_framing(purse)?;
        Ok(Orders {
            release: self.book.release().map(|edge| self.seq_of(edge)),
            skip: (skipped > 0).then(|| self.seq_of(self.book.at())),
            open: None,
        })
    }

    /// The framing's heap is small and bounded ([`http::Limits`]), and paid for when it is known.
    fn pay_for_framing(&mut self, purse: &mut Purse<'_>) -> Result<(), Why> {
        let heap = self.framing.heap_bytes();
        if heap > self.framing_heap {
            purse.charge(heap - self.framing_heap)?;
        } else {
            purse.credit(self.framing_heap - heap);
        }
        self.framing_heap = heap;
        Ok(())
    }

    /// The sequence number of the outstream's byte at `offset`.
    fn seq_of(&self, offset: u64) -> u32 {
        // Truncation is the arithmetic modulo 2^32 of RFC 9293 §3.4.
        self.iss.wrapping_add(1).wrapping_add(offset as u32)
    }
}

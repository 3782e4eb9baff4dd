//! Reading a flow's instream, as a takeover does.

use crate::flow::Flow;
use crate::in_order::Chunks;

/// One flow's client→server stream, as far as it has arrived.
///
/// Offsets count bytes from the stream's first, the one whose sequence number is IRS + 1.
#[derive(Clone, Copy, Debug)]
pub struct Instream<'a> {
    flow: &'a Flow,
}

impl<'a> Instream<'a> {
    pub(crate) fn new(flow: &'a Flow) -> Self {
        Self { flow }
    }

    /// The client's initial sequence number, that of its SYN.
    pub fn irs(&self) -> u32 {
        self.flow.irs()
    }

    /// RCV.NXT of RFC 9293 §3.3.1: the next sequence number expected from the client, modulo 2^32.
    /// It counts the SYN, every contiguous byte, and the FIN once it is in order.
    pub fn rcv_nxt(&self) -> u32 {
        self.flow.rcv_nxt()
    }

    /// The sequence number behind the last byte held, be it in order or beyond a hole, or behind
    /// the FIN.
    pub fn end(&self) -> u32 {
        let ahead = self.flow.ahead().and_then(|ahead| ahead.end());
        let bytes = ahead.unwrap_or(0).max(self.flow.in_order().len());
        let fin = self.flow.fin_at().map_or(0, |offset| offset + 1);
        self.flow.seq_of(bytes.max(fin))
    }

    /// How many bytes have arrived without a hole, from the stream's first.
    pub fn contiguous_len(&self) -> u64 {
        self.flow.in_order().len()
    }

    /// The offset of the first byte that has not been freed by [`Journal::collect`].
    ///
    /// [`Journal::collect`]: crate::Journal::collect
    pub fn begin(&self) -> u64 {
        self.flow.in_order().begin()
    }

    /// The contiguous bytes from `offset` on, in as many slices as they are stored in, none of them
    /// empty. Nothing that has been freed comes, and nothing if `offset` is [`Self::contiguous_len`] or more. Finding the first slice costs
    /// a binary search, so a long stream may be read in turns.
    pub fn chunks_from(&self, offset: u64) -> Chunks<'a> {
        self.flow.in_order().from(offset)
    }

    /// What has arrived behind a hole, in order: the sequence number of the first byte, and the
    /// bytes. Ranges never overlap, but two may touch.
    pub fn out_of_order(&self) -> impl Iterator<Item = (u32, &'a [u8])> + use<'a> {
        let flow = self.flow;
        flow.ahead()
            .into_iter()
            .flat_map(|ahead| ahead.pieces())
            .map(move |piece| (flow.seq_of(piece.start), &piece.bytes[..]))
    }

    /// The sequence number that the client's FIN occupies, once a FIN has arrived, be it in order
    /// or behind a hole.
    pub fn fin_seq(&self) -> Option<u32> {
        self.flow.fin_at().map(|offset| self.flow.seq_of(offset))
    }

    /// The client has closed its side and not a byte is missing.
    pub fn is_complete(&self) -> bool {
        self.flow.is_complete()
    }

    /// The heap charged to the flow's budget, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.flow.heap_bytes()
    }
}

//! The contiguous part of an instream: every byte from the start up to `rcv_nxt`.
//!
//! A takeover needs the stream from its very first byte, so it only ever grows. One growing vector
//! would copy half a gigabyte again and again, and hold it three times over while it does; fixed
//! blocks would waste most of a block on each of many thousand idle flows that sent one request.
//! So: a short stream is one block that fits it closely, and moves as it grows; beyond [`SHORT`] it
//! is a list of chunks that never move, each a quarter of the stream so far, up to [`CHUNK_MAX`]. At
//! most a fifth of the memory is ever unused, and beyond the first few kilobytes every byte is copied
//! once. Only the last chunk, the *tail*, is written to; it stands in the flow itself, so that a flow
//! with a few short requests has one heap block.

use std::iter::FusedIterator;
use std::slice;

use crate::Budget;
use crate::budget::{Growable, Purse, allocated, allocated_list};

/// A stream up to this many bytes is one block.
const SHORT: usize = 4096;
/// The greatest size of a chunk, unless one segment is longer: 256 KiB less the allocator's header,
/// so that blocks taken straight from the kernel fill their pages.
const CHUNK_MAX: usize = 256 * 1024 - 64;

#[derive(Debug, Default)]
pub(crate) struct InOrder {
    /// The chunk being filled. Invariant: empty only while the whole stream is.
    tail: Vec<u8>,
    sealed: Option<Box<Sealed>>,
}

#[derive(Debug, Default)]
struct Sealed {
    /// Invariant: each starts where the one before ends, the first at 0, and each is full
    /// (`len == capacity`).
    chunks: Vec<Chunk>,
    /// Invariant: the sum of the chunks' lengths, which is where the tail starts.
    len: u64,
    /// Invariant: the sum of the chunks' heap blocks, in bytes.
    heap: usize,
}

#[derive(Debug)]
struct Chunk {
    start: u64,
    bytes: Vec<u8>,
}

impl InOrder {
    pub(crate) fn len(&self) -> u64 {
        self.tail_start() + self.tail.len() as u64
    }

    /// The heap charged for it, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        let sealed = self.sealed.as_ref().map_or(0, |s| {
            allocated(size_of::<Sealed>()) + allocated_list::<Chunk>(s.chunks.capacity()) + s.heap
        });
        allocated(self.tail.capacity()) + sealed
    }

    /// Appends `bytes` at the end. On refusal a part may have been appended.
    #[inline]
    pub(crate) fn append(&mut self, bytes: &[u8], purse: &mut Purse<'_>) -> Result<(), Budget> {
        let room = self.tail.capacity() - self.tail.len();
        let (fits, rest) = bytes.split_at(room.min(bytes.len()));
        self.tail.extend_from_slice(fits);
        if !rest.is_empty() {
            self.make_room(rest.len(), purse)?;
            self.tail.extend_from_slice(rest);
        }
        Ok(())
    }

    /// The stream from byte `offset` on, as the chunks it lies in.
    pub(crate) fn from(&self, offset: u64) -> Chunks<'_> {
        let sealed = self.sealed.as_ref().map_or(&[][..], |s| &s.chunks);
        let first = sealed.partition_point(|c| c.start + c.bytes.len() as u64 <= offset);
        let start = sealed.get(first).map_or(self.tail_start(), |c| c.start);
        Chunks {
            sealed: sealed[first..].iter(),
            tail: &self.tail,
            skip: offset - start.min(offset),
        }
    }

    /// How many of `bytes`, claimed to stand at `offset`, differ from what is held there.
    pub(crate) fn conflicts(&self, offset: u64, bytes: &[u8]) -> u64 {
        let mut rest = bytes;
        let mut differing = 0;
        for held in self.from(offset) {
            let (here, later) = rest.split_at(rest.len().min(held.len()));
            differing += differing_bytes(&held[..here.len()], here);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        differing
    }

    /// A stream whose first `len` bytes are not there: what comes after a long one, without its
    /// memory.
    #[cfg(test)]
    pub(crate) fn beginning_at(len: u64) -> Self {
        Self { tail: Vec::new(), sealed: Some(Box::new(Sealed { len, ..Sealed::default() })) }
    }

    fn tail_start(&self) -> u64 {
        self.sealed.as_ref().map_or(0, |s| s.len)
    }

    /// Gives a full tail room for at least `least` bytes, or puts a new one in its place.
    fn make_room(&mut self, least: usize, purse: &mut Purse<'_>) -> Result<(), Budget> {
        let (least, roomy) = if self.sealed.is_none() && self.tail.len() + least <= SHORT {
            let least = self.tail.len() + least;
            // The first request is often the only one.
            (least, if self.tail.is_empty() { least } else { least + least / 8 })
        } else {
            self.seal_tail(purse)?;
            (least, ((self.len() / 4) as usize).clamp(least, CHUNK_MAX.max(least)))
        };
        // Spare room is a convenience: near the end of a budget it gives way to bytes.
        let mut capacity = roomy;
        while capacity > least && !purse.can_afford(allocated(capacity)) {
            capacity = (capacity / 2).max(least);
        }
        self.tail.grow_to(capacity, purse)
    }

    fn seal_tail(&mut self, purse: &mut Purse<'_>) -> Result<(), Budget> {
        if self.tail.is_empty() {
            return Ok(());
        }
        assert_eq!(self.tail.len(), self.tail.capacity(), "only a full chunk is sealed");
        if self.sealed.is_none() {
            purse.charge(allocated(size_of::<Sealed>()))?;
        }
        let sealed = self.sealed.get_or_insert_default();
        if sealed.chunks.len() == sealed.chunks.capacity() {
            let capacity = (sealed.chunks.len() * 2).max(2);
            sealed.chunks.grow_to(capacity, purse)?;
        }
        let bytes = std::mem::take(&mut self.tail);
        let start = sealed.len;
        sealed.len += bytes.len() as u64;
        sealed.heap += allocated(bytes.capacity());
        sealed.chunks.push(Chunk { start, bytes });
        Ok(())
    }
}

/// The contiguous stream from some byte on, in the pieces it is stored in. None is empty.
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    sealed: slice::Iter<'a, Chunk>,
    tail: &'a [u8],
    /// Bytes still to be left out at the front.
    skip: u64,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let chunk = match self.sealed.next() {
            Some(chunk) => &chunk.bytes[..],
            None => std::mem::take(&mut self.tail),
        };
        let skip = usize::try_from(std::mem::take(&mut self.skip)).unwrap_or(usize::MAX);
        chunk.get(skip..).filter(|bytes| !bytes.is_empty())
    }
}

impl FusedIterator for Chunks<'_> {}

/// How many bytes of two equally long slices differ. Nearly always none, which is quick to see.
pub(crate) fn differing_bytes(a: &[u8], b: &[u8]) -> u64 {
    assert_eq!(a.len(), b.len());
    if a == b {
        return 0;
    }
    a.iter().zip(b).filter(|(a, b)| a != b).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Total;

    fn counted(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251) as u8).collect()
    }

    fn filled(stream: &[u8], segment: usize) -> InOrder {
        let mut total = Total::new(usize::MAX);
        let mut purse = Purse::new(&mut total, 0, usize::MAX);
        let mut in_order = InOrder::default();
        for bytes in stream.chunks(segment) {
            in_order.append(bytes, &mut purse).unwrap();
            assert_eq!(purse.held(), in_order.heap_bytes());
        }
        in_order
    }

    #[test]
    fn reads_back_from_every_offset() {
        let stream = counted(9000);
        let in_order = filled(&stream, 123);
        assert!(in_order.from(0).count() > 3, "several chunks, or this shows nothing");
        for offset in 0..=stream.len() {
            assert_eq!(in_order.from(offset as u64).collect::<Vec<_>>().concat(), stream[offset..]);
        }
        for beyond in [9001, u64::from(u32::MAX) + 7, u64::MAX] {
            assert_eq!(in_order.from(beyond).count(), 0);
        }
    }

    #[test]
    fn conflicts_are_counted_across_chunks() {
        let stream = counted(9000);
        let in_order = filled(&stream, 123);
        let mut other = stream.clone();
        for at in [7, 4095, 4096, 5200, 8999] {
            other[at] ^= 1;
        }
        assert_eq!(in_order.conflicts(0, &other), 5);
        assert_eq!(in_order.conflicts(8, &other[8..]), 4);
        assert_eq!(in_order.conflicts(4097, &other[4097..5200]), 0);
    }

    #[test]
    fn spare_room_stays_below_a_quarter() {
        let stream = counted(3_000_000);
        for len in [1, 100, 1_000, 20_000, 300_000, 3_000_000] {
            let held = filled(&stream[..len], 1460).heap_bytes();
            assert!(held <= len + len / 4 + 512, "{len} B of stream take {held} B");
        }
    }

    #[test]
    fn a_budget_can_be_filled_almost_to_the_last_byte() {
        let mut total = Total::new(usize::MAX);
        let mut purse = Purse::new(&mut total, 0, 1_000_000);
        let mut in_order = InOrder::default();
        while in_order.append(&[7; 1000], &mut purse).is_ok() {}
        assert!(in_order.len() > 980_000, "refused after {} B of 1,000,000", in_order.len());
        assert_eq!(purse.held(), in_order.heap_bytes());
    }
}

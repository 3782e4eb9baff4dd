//! The contiguous part of a stream: every byte from the first that is still wanted up to the last.
//!
//! For an instream that is all of it up to `rcv_nxt`, since a takeover may need it from its very
//! first byte. Who knows better frees the front ([`InOrder::collect`]). One growing vector
//! would copy half a gigabyte again and again, and hold it three times over while it does; fixed
//! blocks would waste most of a block on each of many thousand idle flows that sent one request.
//! So: a short stream is one block that fits it closely, and moves as it grows; beyond [`SHORT`] it
//! is a list of chunks that never move, each a quarter of what is held so far, up to [`CHUNK_MAX`].
//! Unless the front is freed, at most a fifth of the memory is ever unused, and beyond the first few kilobytes every byte is copied
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

/// The contiguous part of one stream, under a [`Purse`]. Offsets count bytes from the stream's first.
#[derive(Debug, Default)]
pub struct InOrder {
    /// The chunk being filled. Invariant: empty only while nothing is held.
    tail: Vec<u8>,
    /// Where the tail starts. Invariant: where the last sealed chunk ends, if there is one.
    tail_start: u64,
    /// Invariant: absent unless a chunk is there.
    sealed: Option<Box<Sealed>>,
}

#[derive(Debug, Default)]
struct Sealed {
    /// Invariant: each starts where the one before ends, and each is full (`len == capacity`).
    chunks: Vec<Chunk>,
    /// Invariant: the sum of the chunks' heap blocks, in bytes.
    heap: usize,
}

#[derive(Debug)]
struct Chunk {
    start: u64,
    bytes: Vec<u8>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl InOrder {
    /// The stream's length: the offset behind the last byte.
    #[allow(
        clippy::len_without_is_empty,
        reason = "a stream's length says nothing of what is held"
    )]
    pub fn len(&self) -> u64 {
        self.tail_start + self.tail.len() as u64
    }

    /// The offset of the first byte that is held; [`Self::len`] if none is.
    pub fn begin(&self) -> u64 {
        self.chunks().first().map_or(self.tail_start, |chunk| chunk.start)
    }

    /// The heap charged for it, in bytes.
    pub fn heap_bytes(&self) -> usize {
        let sealed = self.sealed.as_ref().map_or(0, |s| {
            allocated(size_of::<Sealed>()) + allocated_list::<Chunk>(s.chunks.capacity()) + s.heap
        });
        allocated(self.tail.capacity()) + sealed
    }

    /// Appends `bytes` at the end. On refusal a part may have been appended.
    #[inline]
    pub fn append(&mut self, bytes: &[u8], purse: &mut Purse<'_>) -> Result<(), Budget> {
        let room = self.tail.capacity() - self.tail.len();
        let (fits, rest) = bytes.split_at(room.min(bytes.len()));
        self.tail.extend_from_slice(fits);
        if !rest.is_empty() {
            self.make_room(rest.len(), purse)?;
            self.tail.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Frees what lies before `offset`, in whole blocks: up to one block of it may stay. With
    /// `offset` at the end or behind it nothing stays.
    pub fn collect(&mut self, offset: u64, purse: &mut Purse<'_>) {
        if let Some(sealed) = &mut self.sealed {
            let freed = sealed.chunks.partition_point(|chunk| chunk.end() <= offset);
            let block = |chunk: Chunk| allocated(chunk.bytes.capacity());
            let heap: usize = sealed.chunks.drain(..freed).map(block).sum();
            sealed.heap -= heap;
            purse.credit(heap);
            if sealed.chunks.is_empty() {
                let list = allocated_list::<Chunk>(sealed.chunks.capacity());
                self.sealed = None;
                purse.credit(allocated(size_of::<Sealed>()) + list);
            }
        }
        if offset >= self.len() {
            self.tail_start = self.len();
            let block = allocated(self.tail.capacity());
            self.tail = Vec::new();
            purse.credit(block);
        }
    }

    /// Frees everything and goes on at `offset`: the bytes before it are not wanted.
    pub fn skip_to(&mut self, offset: u64, purse: &mut Purse<'_>) {
        assert!(offset >= self.len(), "a stream is skipped forward");
        self.collect(offset, purse);
        self.tail_start = offset;
    }

    /// The stream from byte `offset` on, as the chunks it lies in. Bytes that have been freed do
    /// not come.
    pub fn from(&self, offset: u64) -> Chunks<'_> {
        let sealed = self.chunks();
        let first = sealed.partition_point(|chunk| chunk.end() <= offset);
        let start = sealed.get(first).map_or(self.tail_start, |chunk| chunk.start);
        Chunks {
            sealed: sealed[first..].iter(),
            tail: &self.tail,
            skip: offset - start.min(offset),
        }
    }

    /// How many of `bytes`, claimed to stand at `offset`, differ from what is held there.
    pub fn conflicts(&self, offset: u64, bytes: &[u8]) -> u64 {
        let freed = self.begin().saturating_sub(offset).min(bytes.len() as u64);
        let (offset, mut rest) = (offset + freed, &bytes[freed as usize..]);
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
        Self { tail_start: len, ..Self::default() }
    }

    fn chunks(&self) -> &[Chunk] {
        self.sealed.as_ref().map_or(&[][..], |sealed| &sealed.chunks)
    }

    /// Gives a full tail room for at least `least` bytes, or puts a new one in its place.
    fn make_room(&mut self, least: usize, purse: &mut Purse<'_>) -> Result<(), Budget> {
        let (least, roomy) = if self.sealed.is_none() && self.tail.len() + least <= SHORT {
            let least = self.tail.len() + least;
            // The first request is often the only one.
            (least, if self.tail.is_empty() { least } else { least + least / 8 })
        } else {
            self.seal_tail(purse)?;
            let held = self.len() - self.begin();
            (least, ((held / 4) as usize).clamp(least, CHUNK_MAX.max(least)))
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
        let start = self.tail_start;
        self.tail_start += bytes.len() as u64;
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
    fn what_is_collected_is_free_and_the_rest_stays() {
        let stream = counted(300_000);
        let mut total = Total::new(usize::MAX);
        let mut purse = Purse::new(&mut total, 0, usize::MAX);
        let mut in_order = InOrder::default();
        for (i, bytes) in stream.chunks(700).enumerate() {
            in_order.append(bytes, &mut purse).unwrap();
            let end = in_order.len();
            let wanted = (end * 3 / 4).max(in_order.begin());
            in_order.collect(wanted, &mut purse);
            assert_eq!(purse.held(), in_order.heap_bytes());
            assert!(in_order.begin() <= wanted);
            let kept = in_order.from(wanted).collect::<Vec<_>>().concat();
            assert_eq!(kept, stream[wanted as usize..end as usize]);
            assert_eq!(in_order.conflicts(0, &stream[..end as usize]), 0);
            if i % 50 == 49 {
                in_order.collect(end, &mut purse);
                assert_eq!((purse.held(), in_order.heap_bytes()), (0, 0));
                assert_eq!((in_order.begin(), in_order.len()), (end, end));
            }
        }
        in_order.skip_to(1 << 40, &mut purse);
        in_order.append(b"beyond", &mut purse).unwrap();
        assert_eq!((in_order.begin(), in_order.len()), (1 << 40, (1 << 40) + 6));
        assert_eq!(in_order.from(0).collect::<Vec<_>>().concat(), b"beyond");
        in_order.collect(u64::MAX, &mut purse);
        assert_eq!((purse.held(), in_order.len()), (0, (1 << 40) + 6));
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

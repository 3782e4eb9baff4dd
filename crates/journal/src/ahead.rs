//! What a client sent ahead of the contiguous part: bytes behind a hole, and the end of the stream.
//!
//! Segments behind a hole are kept as *pieces*, sorted by offset and never overlapping, so that a
//! byte has one owner: the segment that brought it first. A run of segments behind one hole grows
//! one piece, up to [`PIECE_MAX`], instead of making one each; a piece that size is cheap to move
//! into the contiguous part when the hole closes.
//!
//! A balanced tree would find a place faster, but what its nodes cost is not to be known, and memory
//! here is charged to the byte. A sorted queue with a bound on its length ([`PIECES_MAX`]) costs at
//! most a few microseconds per segment even against a client that leaves a hole after every byte.

use std::collections::{VecDeque, vec_deque};

use crate::Budget;
use crate::budget::{Growable, Purse, allocated, allocated_list};
use crate::in_order::differing_bytes;

/// A piece does not grow beyond this many bytes; one long segment may.
const PIECE_MAX: usize = 64 * 1024;
/// No more pieces than this in one flow: 12 MB of full-sized segments in reverse order.
pub(crate) const PIECES_MAX: usize = 8192;

#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Invariant: sorted by `start`; none is empty; none overlaps the next (they may touch); all lie
    /// beyond the contiguous part, with a hole before the first.
    pieces: VecDeque<Piece>,
    /// Invariant: the sum of the pieces' heap blocks, in bytes.
    heap: usize,
    /// Where the stream ends: the offset behind its last byte. Invariant: no byte is held at or
    /// beyond it, and it never changes.
    pub(crate) fin_at: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl Ahead {
    /// The heap charged for what it refers to, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        allocated_list::<Piece>(self.pieces.capacity()) + self.heap
    }

    pub(crate) fn pieces(&self) -> vec_deque::Iter<'_, Piece> {
        self.pieces.iter()
    }

    pub(crate) fn first_start(&self) -> Option<u64> {
        self.pieces.front().map(|p| p.start)
    }

    /// The offset behind the last byte held.
    pub(crate) fn end(&self) -> Option<u64> {
        self.pieces.back().map(Piece::end)
    }

    /// Nothing that would be lost with it.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.fin_at.is_none()
    }

    /// Keeps those of `bytes`, which stand at `offset`, that are not held yet. Returns their number
    /// and how many of the others differ from what is held. On refusal a part may have been kept.
    pub(crate) fn insert(
        &mut self,
        offset: u64,
        bytes: &[u8],
        purse: &mut Purse<'_>,
    ) -> Result<(usize, u64), Budget> {
        let mut next = self.pieces.partition_point(|p| p.end() <= offset);
        let (mut at, mut rest) = (offset, bytes);
        let (mut kept, mut differing) = (0, 0);
        while !rest.is_empty() {
            let until_next = match self.pieces.get(next) {
                Some(piece) if piece.start <= at => {
                    let held = &piece.bytes[(at - piece.start) as usize..];
                    let overlap = held.len().min(rest.len());
                    differing += differing_bytes(&held[..overlap], &rest[..overlap]);
                    (at, rest) = (at + overlap as u64, &rest[overlap..]);
                    next += 1;
                    continue;
                }
                Some(piece) => piece.start - at,
                None => u64::MAX,
            };
            let gap = until_next.min(rest.len() as u64) as usize;
            if !self.extend_piece_before(next, at, &rest[..gap], purse)? {
                self.insert_piece(next, at, &rest[..gap], purse)?;
                next += 1;
            }
            (at, rest) = (at + gap as u64, &rest[gap..]);
            kept += gap;
        }
        self.check_around(next);
        Ok((kept, differing))
    }

    /// Takes the first piece out; its block stays charged until [`Self::free`].
    pub(crate) fn take_first(&mut self) -> Option<Piece> {
        self.pieces.pop_front()
    }

    /// Frees a piece taken out before.
    pub(crate) fn free(&mut self, piece: Piece, purse: &mut Purse<'_>) {
        let block = allocated(piece.bytes.capacity());
        drop(piece);
        self.heap -= block;
        purse.credit(block);
    }

    /// Gives the list back once no piece is left.
    pub(crate) fn trim(&mut self, purse: &mut Purse<'_>) {
        if self.pieces.is_empty() {
            let list = allocated_list::<Piece>(self.pieces.capacity());
            self.pieces = VecDeque::new();
            purse.credit(list);
            assert_eq!(self.heap, 0, "no pieces, so no blocks");
        }
    }

    /// Appends `bytes` to the piece before `next` if it ends at `at` and stays short enough.
    fn extend_piece_before(
        &mut self,
        next: usize,
        at: u64,
        bytes: &[u8],
        purse: &mut Purse<'_>,
    ) -> Result<bool, Budget> {
        let Some(piece) = next.checked_sub(1).and_then(|i| self.pieces.get_mut(i)) else {
            return Ok(false);
        };
        let len = piece.bytes.len() + bytes.len();
        if piece.end() != at || len > PIECE_MAX {
            return Ok(false);
        }
        if len > piece.bytes.capacity() {
            let before = allocated(piece.bytes.capacity());
            let roomy = (piece.bytes.capacity() * 2).clamp(len, PIECE_MAX);
            let capacity = if purse.can_afford(allocated(roomy)) { roomy } else { len };
            piece.bytes.grow_to(capacity, purse)?;
            self.heap = self.heap - before + allocated(capacity);
        }
        piece.bytes.extend_from_slice(bytes);
        Ok(true)
    }

    fn insert_piece(
        &mut self,
        index: usize,
        start: u64,
        bytes: &[u8],
        purse: &mut Purse<'_>,
    ) -> Result<(), Budget> {
        if self.pieces.len() == PIECES_MAX {
            return Err(Budget::Flow);
        }
        if self.pieces.len() == self.pieces.capacity() {
            let capacity = (self.pieces.len() * 2).clamp(2, PIECES_MAX);
            self.pieces.grow_to(capacity, purse)?;
        }
        let mut piece = Piece { start, bytes: Vec::new() };
        piece.bytes.grow_to(bytes.len(), purse)?;
        piece.bytes.extend_from_slice(bytes);
        self.heap += allocated(piece.bytes.capacity());
        self.pieces.insert(index, piece);
        Ok(())
    }

    /// The order invariant, near the place just changed.
    fn check_around(&self, index: usize) {
        for i in index.saturating_sub(2)..index.min(self.pieces.len().saturating_sub(1)) {
            let (piece, next) = (&self.pieces[i], &self.pieces[i + 1]);
            assert!(!piece.bytes.is_empty());
            assert!(piece.end() <= next.start, "pieces overlap at offset {}", next.start);
        }
    }
}

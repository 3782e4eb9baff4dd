//! One direction of a flow: its bytes, once, and where it ends.
//!
//! Positions count from the initial sequence number: the SYN is position 0, the first byte is
//! position 1. They do not wrap.

use crate::cover::Cover;

/// Longest stream whose bytes are kept, bytes. What lies beyond is counted, not compared.
const LONGEST: u64 = 2 << 30;

/// How far back the beginning of a line is looked for, bytes.
const LONGEST_LINE: usize = 256;

/// The bytes of one direction.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The byte at position `n + 1` is `bytes[n]`.
    bytes: Vec<u8>,
    known: Cover,
    /// What has reached its receiver.
    arrived: Cover,
    /// Position of the FIN.
    fin: Option<u64>,
    /// Highest position seen, one behind the last byte or FIN.
    pub(crate) end: u64,
}

/// How a piece disagrees with what was known of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// First position that differs.
    pub(crate) at: u64,
    /// Up to eight bytes from there on, as they were first.
    pub(crate) was: Vec<u8>,
    /// The same positions now.
    pub(crate) is: Vec<u8>,
    /// Whether what differs had reached the receiver before.
    pub(crate) arrived: bool,
    /// Whether it lies in lines that may differ.
    pub(crate) volatile: bool,
}

/// What became of a piece.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// The first contradiction.
    pub(crate) conflict: Option<Conflict>,
    /// Bytes that were known and have been compared.
    pub(crate) compared: u64,
    /// Bytes too far away to be kept.
    pub(crate) beyond: u64,
}

impl Stream {
    /// Follows `seq`, which is that of a segment of this stream whose SYN had `isn`: its position,
    /// taken near the highest one seen so far. Negative in front of the SYN.
    pub(crate) fn position(&self, isn: u32, seq: u32) -> i64 {
        let near = self.end as i64;
        // Sequence numbers compare modulo 2^32 (RFC 9293 §3.4).
        let ahead = seq.wrapping_sub(isn).wrapping_sub(self.end as u32) as i32;
        near + i64::from(ahead)
    }

    /// The bytes from position `at` on: compared where known, kept where not. Lines that begin
    /// with a word of `volatile` may differ. What differs from what nobody has yet takes its place
    /// if it is `anew`, said by somebody who may have computed it again.
    pub(crate) fn tell(&mut self, at: u64, piece: &[u8], volatile: &[String], anew: bool) -> Told {
        let mut told = Told::default();
        if at == 0 {
            // Data in front of the first position: no TCP sends that.
            return Told { beyond: piece.len() as u64, ..told };
        }
        let kept = (LONGEST.saturating_sub(at) as usize).min(piece.len());
        told.beyond = (piece.len() - kept) as u64;
        let piece = &piece[..kept];
        let end = at + kept as u64;
        let mut changed = None;
        for (start, stop) in self.known.parts(at, end) {
            let was = &self.bytes[start as usize - 1..stop as usize - 1];
            let is = &piece[(start - at) as usize..(stop - at) as usize];
            told.compared += stop - start;
            if changed.is_none() && was != is {
                let first = was.iter().zip(is).position(|(w, i)| w != i).expect("they differ");
                let few = |b: &[u8]| b[first..].iter().take(8).copied().collect::<Vec<_>>();
                changed = Some((start + first as u64, few(was), few(is)));
            }
        }
        if let Some((first, was, is)) = changed {
            let arrived = self.differs_from_arrived(at, piece);
            let volatile = self.differs_in_lines(at, piece, volatile);
            told.conflict = Some(Conflict { at: first, was, is, arrived, volatile });
            if anew && !arrived {
                // Nobody has the old ones, so the new ones count from now on.
                for (start, stop) in self.known.parts(at, end).collect::<Vec<_>>() {
                    self.bytes[start as usize - 1..stop as usize - 1]
                        .copy_from_slice(&piece[(start - at) as usize..(stop - at) as usize]);
                }
            }
        }
        for (start, stop) in self.known.holes(at, end) {
            if self.bytes.len() < stop as usize - 1 {
                self.bytes.resize(stop as usize - 1, 0);
            }
            self.bytes[start as usize - 1..stop as usize - 1]
                .copy_from_slice(&piece[(start - at) as usize..(stop - at) as usize]);
            self.known.insert(start, stop);
        }
        told
    }

    /// The first byte of the piece at position `at` that is not what is known: its position, what it
    /// was and what it is.
    pub(crate) fn difference(&self, at: u64, piece: &[u8]) -> Option<(u64, u8, u8)> {
        let end = at + piece.len() as u64;
        let known = self.known.parts(at, end).flat_map(|(start, stop)| start..stop);
        let both = known.map(|n| (n, self.bytes[n as usize - 1], piece[(n - at) as usize]));
        both.into_iter().find(|(_, was, is)| was != is)
    }

    fn differs_from_arrived(&self, at: u64, piece: &[u8]) -> bool {
        self.arrived.parts(at, at + piece.len() as u64).any(|(start, stop)| {
            self.bytes[start as usize - 1..stop as usize - 1]
                != piece[(start - at) as usize..(stop - at) as usize]
        })
    }

    /// Whether every byte that differs is in a line that begins with one of `words`.
    fn differs_in_lines(&self, at: u64, piece: &[u8], words: &[String]) -> bool {
        let mut differing =
            self.known.parts(at, at + piece.len() as u64).flat_map(|(start, stop)| {
                let was = &self.bytes[start as usize - 1..stop as usize - 1];
                let is = &piece[(start - at) as usize..(stop - at) as usize];
                let differs = was.iter().zip(is).enumerate().filter(|(_, (w, i))| w != i);
                differs.map(move |(n, _)| start as usize - 1 + n)
            });
        differing.all(|index| {
            let before = &self.bytes[index.saturating_sub(LONGEST_LINE)..index];
            let line =
                before.iter().rposition(|&b| b == b'\n').map_or(before, |n| &before[n + 1..]);
            words.iter().any(|word| line.starts_with(word.as_bytes()))
        })
    }

    /// The bytes from `start` to `end` have been told and reached the receiver.
    pub(crate) fn arrived(&mut self, start: u64, end: u64) {
        self.arrived.insert(start, end.min(self.bytes.len() as u64 + 1));
    }

    /// A FIN at this position. `Err` with the earlier one if it was elsewhere.
    pub(crate) fn tell_fin(&mut self, at: u64) -> Result<(), u64> {
        match self.fin {
            Some(was) if was != at => Err(was),
            _ => {
                self.fin = Some(at);
                Ok(())
            }
        }
    }

    /// Position of the FIN.
    pub(crate) fn fin(&self) -> Option<u64> {
        self.fin
    }

    /// Notes how far the stream has been seen.
    pub(crate) fn reach(&mut self, end: u64) {
        self.end = self.end.max(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found_where_it_is() {
        let mut s = Stream::default();
        assert_eq!(s.tell(5, b"efgh", &[], true), Told::default());
        assert_eq!(s.tell(1, b"abcdef", &[], true).compared, 2);
        assert_eq!(s.tell(1, b"abcdefgh", &[], true), Told { compared: 8, ..Told::default() });
        s.arrived(6, 7);
        let told = s.tell(4, b"deFgh", &[], true);
        let conflict = Conflict {
            at: 6,
            was: b"fgh".into(),
            is: b"Fgh".into(),
            arrived: true,
            volatile: false,
        };
        assert_eq!(told.conflict, Some(conflict));
        assert_eq!(s.tell(4, b"def", &[], true).conflict, None, "what has arrived stands");
    }

    #[test]
    fn what_nobody_has_may_be_replaced() {
        let mut s = Stream::default();
        s.tell(1, b"abcdef", &[], true);
        s.arrived(1, 3);
        assert!(!s.tell(1, b"abCd", &[], true).conflict.unwrap().arrived);
        assert_eq!(s.tell(1, b"abCdef", &[], true).conflict, None);
        assert!(s.tell(1, b"aBCdef", &[], true).conflict.unwrap().arrived);
    }

    #[test]
    fn only_declared_lines_are_volatile() {
        let mut s = Stream::default();
        let volatile = ["Date: ".to_owned()];
        s.tell(1, b"OK\nDate: 12\nEtag: 1\n", &volatile, true);
        assert!(s.tell(1, b"OK\nDate: 13\nEtag: 1\n", &volatile, true).conflict.unwrap().volatile);
        s.arrived(1, 20);
        assert!(s.tell(1, b"OK\nDate: 14\n", &volatile, true).conflict.unwrap().volatile);
        assert!(s.tell(10, b"5\n", &volatile, true).conflict.unwrap().volatile);
        assert!(!s.tell(1, b"OK\nDate: 13\nEtag: 2\n", &volatile, true).conflict.unwrap().volatile);
        assert!(!s.tell(1, b"oK\nDate: 13", &volatile, true).conflict.unwrap().volatile);
        assert!(!s.tell(1, b"OK\nDate: 14\n", &[], true).conflict.unwrap().volatile);
    }

    #[test]
    fn positions_wrap_and_do_not_lose_their_way() {
        let mut s = Stream::default();
        let isn = u32::MAX - 2;
        assert_eq!(s.position(isn, isn), 0);
        assert_eq!(s.position(isn, isn.wrapping_add(10)), 10);
        assert_eq!(s.position(isn, isn.wrapping_sub(1)), -1);
        s.reach(5_000_000_000);
        assert_eq!(s.position(isn, isn.wrapping_add(5_000_000_007u64 as u32)), 5_000_000_007);
        assert_eq!(s.position(isn, isn.wrapping_add(4_999_999_000u64 as u32)), 4_999_999_000);
    }

    #[test]
    fn a_fin_stays_where_it_was() {
        let mut s = Stream::default();
        assert_eq!(s.tell_fin(9), Ok(()));
        assert_eq!(s.tell_fin(9), Ok(()));
        assert_eq!(s.tell_fin(8), Err(9));
        assert_eq!(s.fin(), Some(9));
    }

    #[test]
    fn what_is_too_far_is_counted() {
        let mut s = Stream::default();
        assert_eq!(s.tell(LONGEST, b"xx", &[], true).beyond, 2);
        assert_eq!(s.bytes.len(), 0);
    }
}

//! Feeding a logged instream to an adopted child: a TCP sender reduced to what a lossless local
//! path needs. The child's own acknowledgements and window, which the data path reports while it
//! keeps them from the client, pace it; a child that falls silent is offered the rest again.
//!
//! Sequence numbers are modulo 2^32 (RFC 9293 §3.4).

use std::time::{Duration, Instant};

/// Bytes that any child takes with its birth, before its window is known: well below the smallest
/// initial window Linux offers.
pub const FIRST_FLIGHT: u32 = 16 * 1024;

/// Most bytes of one forged segment.
pub const MAX_CHUNK: u32 = 32 * 1024;

/// A child that has acknowledged nothing for so long is offered everything again.
const STALL: Duration = Duration::from_millis(200);

/// Progress of one replay.
#[derive(Debug)]
pub struct Replay {
    /// First sequence number that the child expects.
    start: u32,
    /// Its offset in the instream.
    base: u64,
    /// Next one to be offered. Invariant: acked <= sent <= end.
    sent: u32,
    /// The child has everything before this one.
    acked: u32,
    /// The child takes nothing at or behind this one.
    edge: u32,
    /// End of what is logged, FIN included.
    end: u32,
    born: bool,
    last_progress: Instant,
}

/// What to forge next: `length` sequence numbers from `offset` of the instream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    pub seq: u32,
    /// Where `seq` is in the instream.
    pub offset: u64,
    pub length: u32,
}

impl Replay {
    /// The child begins to read at the sequence number `start`, which is at `base` in the instream.
    pub fn new(start: u32, base: u64, end: u32, now: Instant) -> Self {
        let edge = start.wrapping_add(FIRST_FLIGHT);
        Self { start, base, sent: start, acked: start, edge, end, born: false, last_progress: now }
    }

    /// The segment that gives birth; sent again, unchanged, until the child exists.
    pub fn first(&self) -> Chunk {
        let length = distance(self.end, self.start).min(FIRST_FLIGHT);
        Chunk { seq: self.start, offset: self.base, length }
    }

    pub fn is_born(&self) -> bool {
        self.born
    }

    /// The child exists, and took the first flight with it.
    pub fn born(&mut self, now: Instant) {
        if !self.born {
            self.born = true;
            self.sent = self.sent.wrapping_add(self.first().length);
            self.last_progress = now;
        }
    }

    /// The log has grown while the replay ran.
    pub fn extend(&mut self, end: u32) {
        if after(end, self.end) {
            self.end = end;
        }
    }

    /// The child acknowledged `ack` and takes bytes before `edge`.
    pub fn acknowledged(&mut self, ack: u32, edge: u32, now: Instant) {
        if after(ack, self.acked) && !after(ack, self.end) {
            self.acked = ack;
            self.last_progress = now;
            if after(self.acked, self.sent) {
                self.sent = self.acked;
            }
        }
        if after(edge, self.edge) {
            self.edge = edge;
            self.last_progress = now;
        }
        assert!(!after(self.acked, self.sent) && !after(self.sent, self.end));
    }

    /// The next segment that the child's window allows.
    pub fn next(&mut self) -> Option<Chunk> {
        if !self.born || !after(self.end, self.sent) || !after(self.edge, self.sent) {
            return None;
        }
        let length =
            distance(self.end, self.sent).min(distance(self.edge, self.sent)).min(MAX_CHUNK);
        let offset = self.base + u64::from(distance(self.sent, self.start));
        let chunk = Chunk { seq: self.sent, offset, length };
        self.sent = self.sent.wrapping_add(length);
        Some(chunk)
    }

    /// Everything logged has been acknowledged by the child.
    pub fn is_complete(&self) -> bool {
        self.born && self.acked == self.end
    }

    /// Offers again what a silent child has not acknowledged. True: there is something to offer.
    pub fn retry(&mut self, now: Instant) -> bool {
        if !self.born || self.is_complete() || now.duration_since(self.last_progress) < STALL {
            return false;
        }
        self.last_progress = now;
        self.sent = self.acked;
        // A closed window is probed with what the child may refuse (RFC 9293 §3.8.6.1).
        if !after(self.edge, self.sent) {
            self.edge = self.sent.wrapping_add(1);
        }
        true
    }
}

/// Is `a` behind `b`? Sequence numbers compare modulo 2^32 (RFC 9293 §3.4).
pub fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

fn distance(a: u32, b: u32) -> u32 {
    a.wrapping_sub(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Further into the instream than sequence numbers count.
    const BASE: u64 = 5 << 32;

    /// A child with a fixed buffer that acknowledges everything at once.
    fn run(start: u32, length: u32, window: u32) -> Vec<Chunk> {
        let now = Instant::now();
        let mut replay = Replay::new(start, BASE, start.wrapping_add(length), now);
        let mut chunks = vec![replay.first()];
        replay.born(now);
        let mut reached = chunks[0].length;
        loop {
            let ack = start.wrapping_add(reached);
            replay.acknowledged(ack, ack.wrapping_add(window), now);
            match replay.next() {
                Some(chunk) => {
                    assert_eq!(chunk.offset, BASE + u64::from(reached), "in order, without holes");
                    assert!(chunk.length <= window, "never beyond the child's window");
                    reached += chunk.length;
                    chunks.push(chunk);
                }
                None => break,
            }
        }
        assert!(replay.is_complete());
        assert_eq!(reached, length);
        chunks
    }

    #[test]
    fn short_request_travels_with_the_birth() {
        assert_eq!(run(7, 100, 65_000).len(), 1);
    }

    #[test]
    fn long_instream_is_paced_by_the_window_across_the_wrap() {
        let chunks = run(u32::MAX - 50_000, 200_000, 20_000);
        assert!(chunks.len() >= 10);
    }

    #[test]
    fn nothing_is_offered_before_the_child_exists() {
        let now = Instant::now();
        let mut replay = Replay::new(1, 0, 100_000, now);
        assert_eq!(replay.next(), None);
    }

    #[test]
    fn silent_child_is_offered_the_rest_again() {
        let now = Instant::now();
        let mut replay = Replay::new(0, 0, 40_000, now);
        replay.born(now);
        assert_eq!(replay.next(), None, "the window is not known yet");
        replay.acknowledged(FIRST_FLIGHT, 60_000, now);
        assert_eq!(replay.next().map(|chunk| chunk.seq), Some(FIRST_FLIGHT));
        assert!(!replay.retry(now));
        let later = now + STALL;
        assert!(replay.retry(later));
        assert_eq!(replay.next().map(|chunk| chunk.seq), Some(FIRST_FLIGHT));
    }

    #[test]
    fn a_log_that_grows_is_replayed_to_its_end() {
        let now = Instant::now();
        let mut replay = Replay::new(0, 5, 10, now);
        replay.born(now);
        replay.acknowledged(10, 1000, now);
        assert!(replay.is_complete());
        replay.extend(30);
        assert!(!replay.is_complete());
        assert_eq!(replay.next(), Some(Chunk { seq: 10, offset: 15, length: 20 }));
    }
}

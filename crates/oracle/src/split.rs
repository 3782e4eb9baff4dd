//! The connections behind one pair of addresses, one after the other.

use crate::capture::Segment;
use crate::story::{Addresses, Story};

/// How far from what was seen a segment may lie and still belong to a flow: the widest window
/// (RFC 7323 §2.3).
pub(crate) const WIDEST: i64 = 1 << 30;

/// A connection: its client's initial sequence number, and its segments in the order of time.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) addresses: Addresses,
    pub(crate) irs: u32,
    pub(crate) iss: Option<u32>,
    pub(crate) segments: Vec<Segment>,
    in_end: u32,
    out_end: u32,
}

/// Segments by connection, and those of none.
#[derive(Debug, Default)]
pub(crate) struct Split {
    pub(crate) connections: Vec<Connection>,
    /// Behind no handshake at all: a connection from before the capture.
    pub(crate) strays: Vec<Segment>,
    /// Far from any connection that there was, and from a client or a RST.
    pub(crate) wild: u64,
}

impl Split {
    /// A client's SYN begins a connection; everything else belongs to the youngest that it fits.
    pub(crate) fn new(addresses: Addresses, segments: Vec<Segment>, story: &Story) -> Split {
        let mut split = Split::default();
        for segment in segments {
            let by_client = segment.from_host && !story.hosts[usize::from(segment.host)].node;
            let syn = segment.inward && segment.flags.syn;
            let known = split.connections.iter().rposition(|c| c.owns(&segment));
            match known {
                Some(known) => split.connections[known].take(segment),
                None if syn && by_client => {
                    let irs = segment.seq;
                    let in_end = irs.wrapping_add(1);
                    let segments = vec![segment];
                    let (iss, out_end) = (None, 0);
                    let new = Connection { addresses, irs, iss, segments, in_end, out_end };
                    split.connections.push(new);
                }
                None if split.connections.is_empty() => split.strays.push(segment),
                // A client may say what it likes; a service may not, and its youngest connection
                // has to answer for it.
                None if !segment.inward && !segment.flags.rst => {
                    split.connections.last_mut().expect("not empty").segments.push(segment);
                }
                None => split.wild += 1,
            }
        }
        split
    }
}

impl Connection {
    fn owns(&self, s: &Segment) -> bool {
        let fits = |isn: u32, end: u32, seq: u32| {
            let ahead = i64::from(seq.wrapping_sub(end) as i32);
            // In front of the SYN there is nothing of this connection. Once 2^30 bytes have
            // gone by, an old segment and an older connection look alike: it is this one's.
            ahead.abs() < WIDEST
                && (seq.wrapping_sub(isn) as i32 >= 0 || end.wrapping_sub(isn) as i32 <= 0)
        };
        match (s.inward, s.flags.syn) {
            (true, true) => s.seq == self.irs,
            (true, false) => fits(self.irs, self.in_end, s.seq),
            (false, true) => s.ack == self.irs.wrapping_add(1),
            (false, false) => match self.iss {
                Some(iss) if s.seq != 0 || !s.flags.rst => fits(iss, self.out_end, s.seq),
                // RST that refuses: its sequence number says nothing, its acknowledgement does.
                _ => s.flags.ack && fits(self.irs, self.in_end, s.ack),
            },
        }
    }

    fn take(&mut self, s: Segment) {
        let end = s.seq.wrapping_add(s.payload_len).wrapping_add(u32::from(s.flags.fin));
        if s.inward {
            if s.from_host && end.wrapping_sub(self.in_end) as i32 > 0 {
                self.in_end = end;
            }
        } else {
            if s.flags.syn && self.iss.is_none() {
                self.iss = Some(s.seq);
                self.out_end = s.seq.wrapping_add(1);
            }
            if self.iss.is_some() && end.wrapping_sub(self.out_end) as i32 > 0 {
                self.out_end = end;
            }
        }
        self.segments.push(s);
    }
}

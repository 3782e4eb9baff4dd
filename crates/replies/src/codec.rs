//! What the primary and the backup tell each other about replies, as bytes.
//!
//! The records travel in a stream in each direction that keeps their order, loses nothing, and has
//! authenticated the peer; so a record that cannot be read is a fault of a program, and ends the
//! stream. Each stands in a frame of its own:
//!
//! ```text
//!  0        4                4 + length
//!  +--------+-------+---------+
//!  | length | record| payload |   length: big-endian, of what follows it, 1 to FRAME_MAX
//!  +--------+-------+---------+   record: in the postcard format; payload: only behind an Output
//! ```
//!
//! The first frame in each direction is a [`Record::Hello`], of which the form is the same in every
//! version. Frames are put together by a [`Writer`] and found by a [`Reader`]; when they are sent is
//! for the caller to say.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The version of the records.
pub const VERSION: u16 = 2;

/// The longest payload of one record, in bytes.
pub const PAYLOAD_MAX: usize = 64 * 1024;

/// The longest frame behind its length, in bytes.
pub const FRAME_MAX: usize = PAYLOAD_MAX + RECORD_MAX;

/// More than any record takes without its payload, in bytes.
const RECORD_MAX: usize = 64;

const LENGTH: usize = 4;

/// A flow by its addresses, as both nodes see it: IPv6 or IPv4-mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlowName {
    /// The client's address.
    pub client: [u8; 16],
    /// The service's address.
    pub server: [u8; 16],
    /// The client's port.
    pub client_port: u16,
    /// The service's port.
    pub server_port: u16,
}

/// One statement. `seq` is a sequence number of the outstream, modulo 2^32 (RFC 9293 §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// Both: the first record.
    Hello {
        /// [`VERSION`] of the sender.
        version: u16,
        /// Of which flows the stream is about: the number of the nodes' share, 0 if they have one.
        share: u8,
        /// The epoch in which it is primary or backup of them: who is in another one is not the peer.
        epoch: u64,
    },
    /// Backup, on a new stream: it has this flow's output up to `seq`, FIN included. The primary
    /// goes on from there, or says [`Record::Lost`].
    Holds {
        /// The flow.
        flow: FlowName,
        /// The first sequence number that is missing.
        seq: u32,
    },
    /// Backup: it has no more flows to name. The primary goes on; a flow of its own that was not
    /// named is unknown to the backup.
    HoldsNoMore,
    /// Primary: the server wrote the payload, which begins at `seq`.
    Output {
        /// The flow.
        flow: FlowName,
        /// The payload's first byte.
        seq: u32,
        /// The server's FIN stands behind the payload.
        fin: bool,
    },
    /// Primary: what the server wrote from `seq` on was not captured. The backup opens the flow.
    Lost {
        /// The flow.
        flow: FlowName,
        /// The first byte that is missing.
        seq: u32,
    },
    /// Backup: what is in front of `seq` may leave, and is needed by nobody any more. Repeats in the
    /// stream what an order has said already, so that no lost order is missed for long.
    Release {
        /// The flow.
        flow: FlowName,
        /// As in [`Orders::release`](crate::Orders::release).
        seq: u32,
        /// It lies ahead of what has arrived.
        ahead: bool,
    },
    /// Backup: what is in front of `seq` need not be sent.
    Skip {
        /// The flow.
        flow: FlowName,
        /// As in [`Orders::skip`](crate::Orders::skip).
        seq: u32,
    },
    /// Backup: the flow is open for good. It has been taken out of the log before this was said.
    Open {
        /// The flow.
        flow: FlowName,
    },
    /// Primary: it is about to hand the flows over. What clients ask from now on the backup keeps to
    /// itself, and it says when all that was asked before is answered.
    Park,
    /// Backup: that is so.
    Parked,
}

/// Why a stream of records cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// No frame has this length.
    #[error("a frame of {length} bytes, where 1 to {FRAME_MAX} are possible")]
    Length {
        /// As it was announced.
        length: u32,
    },
    /// The bytes are no record, or more than one.
    #[error("a frame that is no record of version {VERSION}")]
    Record,
    /// The first record is not a Hello, or a later one is.
    #[error("a Hello in the wrong place, or none in the right one")]
    Hello,
    /// The peer speaks another version.
    #[error(
        "the peer's records have version {theirs}, ours {VERSION}; install the same release on both nodes"
    )]
    Version {
        /// The peer's.
        theirs: u16,
    },
}

/// Puts frames together until they are sent.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// The beginning of a stream.
    pub fn new(share: u8, epoch: u64) -> Self {
        let mut writer = Self::default();
        writer.push(&Record::Hello { version: VERSION, share, epoch });
        writer
    }

    /// Adds a record without a payload.
    pub fn push(&mut self, record: &Record) {
        self.frame(record, &[]);
    }

    /// Adds what a server wrote, in as many records as it takes.
    pub fn push_output(&mut self, flow: FlowName, seq: u32, bytes: &[u8], fin: bool) {
        let mut pieces = bytes.chunks(PAYLOAD_MAX).peekable();
        let mut seq = seq;
        if bytes.is_empty() {
            self.frame(&Record::Output { flow, seq, fin }, &[]);
        }
        while let Some(piece) = pieces.next() {
            let fin = fin && pieces.peek().is_none();
            self.frame(&Record::Output { flow, seq, fin }, piece);
            // A piece is far shorter than the sequence space.
            seq = seq.wrapping_add(piece.len() as u32);
        }
    }

    /// The frames that have not been taken.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The first `count` bytes have been sent.
    pub fn sent(&mut self, count: usize) {
        self.bytes.drain(..count);
    }

    fn frame(&mut self, record: &Record, payload: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&[0; LENGTH]);
        let bytes = std::mem::take(&mut self.bytes);
        self.bytes = postcard::to_extend(record, bytes).expect("memory takes every record");
        let record_len = self.bytes.len() - begin - LENGTH;
        assert!(record_len <= RECORD_MAX, "a record of {record_len} bytes");
        self.bytes.extend_from_slice(payload);
        let length = (record_len + payload.len()) as u32;
        assert!(length as usize <= FRAME_MAX, "a payload of {} bytes", payload.len());
        self.bytes[begin..begin + LENGTH].copy_from_slice(&length.to_be_bytes());
    }
}

/// Finds the frames in what was received.
#[derive(Debug, Default)]
pub struct Reader {
    /// Received and not read. Invariant: not longer than one frame and what was pushed last.
    bytes: Vec<u8>,
    /// So much at the front has been read.
    read: usize,
    greeted: bool,
    /// Nothing is read any more.
    broken: Option<Malformed>,
}

impl Reader {
    /// Adds what was received. Read all records before more is added.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.read));
        self.bytes.extend_from_slice(bytes);
    }

    /// The next record and its payload, which is empty unless it is an [`Record::Output`]. `None` if
    /// more must be received. After an error the stream is of no more use.
    pub fn next_record(&mut self) -> Result<Option<(Record, &[u8])>, Malformed> {
        if let Some(malformed) = self.broken {
            return Err(malformed);
        }
        match self.find() {
            Ok(None) => Ok(None),
            Ok(Some((record, begin, end))) => {
                self.read = end;
                Ok(Some((record, &self.bytes[begin..end])))
            }
            Err(malformed) => {
                self.broken = Some(malformed);
                self.bytes = Vec::new();
                self.read = 0;
                Err(malformed)
            }
        }
    }

    /// The next record, and where its payload begins and ends.
    fn find(&mut self) -> Result<Option<(Record, usize, usize)>, Malformed> {
        let unread = &self.bytes[self.read..];
        let Some((length, rest)) = unread.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length);
        let len = length as usize;
        if len == 0 || len > FRAME_MAX {
            return Err(Malformed::Length { length });
        }
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        let (record, payload) =
            postcard::take_from_bytes::<Record>(frame).map_err(|_| Malformed::Record)?;
        match record {
            // The first thing to be known: all else may be different.
            Record::Hello { version, .. } if version != VERSION => {
                return Err(Malformed::Version { theirs: version });
            }
            Record::Hello { .. } if !self.greeted => self.greeted = true,
            Record::Hello { .. } => return Err(Malformed::Hello),
            _ if !self.greeted => return Err(Malformed::Hello),
            _ => {}
        }
        let room = if matches!(record, Record::Output { .. }) { PAYLOAD_MAX } else { 0 };
        if payload.len() > room {
            return Err(Malformed::Record);
        }
        let end = self.read + LENGTH + len;
        Ok(Some((record, end - payload.len(), end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: FlowName =
        FlowName { client: [1; 16], server: [2; 16], client_port: 40_000, server_port: 80 };

    #[test]
    fn golden_frames() {
        let mut writer = Writer::new(1, 7);
        writer.push_output(FLOW, 300, b"hi", true);
        writer.push(&Record::HoldsNoMore);
        writer.push(&Record::Park);
        let mut golden = vec![0, 0, 0, 4, 0, 2, 1, 7];
        golden.extend([0, 0, 0, 42, 3]);
        golden.extend([1; 16].iter().chain(&[2; 16]));
        golden.extend([0xc0, 0xb8, 2, 80, 0xac, 2, 1]);
        golden.extend(b"hi");
        golden.extend([0, 0, 0, 1, 2]);
        golden.extend([0, 0, 0, 1, 8]);
        assert_eq!(writer.bytes(), golden);
    }

    #[test]
    fn the_longest_records_fit() {
        let flow = FlowName { client_port: u16::MAX, server_port: u16::MAX, ..FLOW };
        let mut writer = Writer::new(u8::MAX, u64::MAX);
        let written = vec![9; 3 * PAYLOAD_MAX + 1];
        writer.push_output(flow, u32::MAX - 5, &written, true);
        let mut reader = Reader::default();
        reader.push(writer.bytes());
        let hello = Record::Hello { version: VERSION, share: u8::MAX, epoch: u64::MAX };
        assert_eq!(reader.next_record(), Ok(Some((hello, &[][..]))));
        let mut seq = u32::MAX - 5;
        for piece in written.chunks(PAYLOAD_MAX) {
            let fin = piece.len() == 1;
            assert_eq!(reader.next_record(), Ok(Some((Record::Output { flow, seq, fin }, piece))));
            seq = seq.wrapping_add(piece.len() as u32);
        }
        assert_eq!(reader.next_record(), Ok(None));
    }

    #[track_caller]
    fn refused(bytes: &[u8]) -> Malformed {
        let mut reader = Reader::default();
        reader.push(bytes);
        loop {
            match reader.next_record() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it waits for more"),
                Err(malformed) => {
                    reader.push(&[0, 0, 0, 1, 2]);
                    assert_eq!(reader.next_record(), Err(malformed), "an error is final");
                    return malformed;
                }
            }
        }
    }

    #[test]
    fn what_is_no_record_ends_the_stream() {
        let hello = Writer::new(0, 1).bytes().to_vec();
        let behind = |bytes: &[u8]| [&hello[..], bytes].concat();
        assert_eq!(refused(&[0, 0, 0, 0]), Malformed::Length { length: 0 });
        let length = FRAME_MAX as u32 + 1;
        assert_eq!(refused(&length.to_be_bytes()), Malformed::Length { length });
        assert_eq!(refused(&[0, 0, 0, 1, 2]), Malformed::Hello);
        assert_eq!(refused(&behind(&hello)), Malformed::Hello);
        assert_eq!(refused(&[0, 0, 0, 4, 0, 1, 1, 7]), Malformed::Version { theirs: 1 });
        assert_eq!(refused(&behind(&[0, 0, 0, 1, 10])), Malformed::Record);
        assert_eq!(refused(&behind(&[0, 0, 0, 2, 2, 0])), Malformed::Record, "a payload");
        assert_eq!(refused(&behind(&[0, 0, 0, 2, 3, 0])), Malformed::Record, "cut short");
    }
}

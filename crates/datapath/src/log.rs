//! Reading the log: records in the order in which the data path appended them.

use crate::FlowKey;
use crate::flows::from_front;
use crate::ring::RingSource;
use crate::skel::types;

/// One record, without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// A handshake through this node completed; the flow is duplex from here on.
    Opened { key: FlowKey, irs: u32, service: u32 },
    /// A client's segment; its payload comes beside the record. `irs` tells the connection from
    /// others with its addresses: the first data may be logged before the end of the handshake.
    Segment { key: FlowKey, irs: u32, seq: u32, fin: bool, service: u32 },
    /// The client sent RST with this sequence number.
    Reset { key: FlowKey, seq: u32 },
    /// Both sides ended the connection, or the server reset it.
    Closed { key: FlowKey },
    /// An adopted child reached its listener's accept queue.
    Born { key: FlowKey },
    /// An adopting child acknowledged up to `ack` and takes bytes before `edge`.
    Child { key: FlowKey, ack: u32, edge: u32 },
    /// A server died by `signal`, or (`None`) its listener was closed over connections that nobody
    /// had accepted; the data path fenced this node in the same instant (C4).
    Crash { service: u32, signal: Option<u32> },
    /// A whole reply of the primary's server, from the sequence number `seq` on, has passed through this
    /// node. It comes beside the record.
    Reply { key: FlowKey, seq: u32 },
    /// An adopted server ended its stream elsewhere than the one the client knows, or refused the
    /// replayed connection.
    Diverged { key: FlowKey },
}

impl Record {
    /// Whose it is; `None`: it is about no flow.
    pub fn flow(&self) -> Option<FlowKey> {
        match *self {
            Record::Opened { key, .. }
            | Record::Segment { key, .. }
            | Record::Reset { key, .. }
            | Record::Closed { key }
            | Record::Born { key }
            | Record::Child { key, .. }
            | Record::Reply { key, .. }
            | Record::Diverged { key } => Some(key),
            Record::Crash { .. } => None,
        }
    }
}

/// The log ring, before anybody reads it.
pub type LogSource = RingSource<Record>;

pub(crate) fn parse(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let (raw, rest) = from_front::<types::record>(bytes)?;
    let key = FlowKey::from_raw(&raw.key);
    let service = raw.service;
    let record = match types::record_kind(raw.kind.into()) {
        types::record_kind::RECORD_OPENED => Record::Opened { key, irs: raw.seq, service },
        types::record_kind::RECORD_SEGMENT => {
            let payload = rest.get(..raw.len as usize)?;
            let fin = raw.flags & FIN != 0;
            let (irs, seq) = (raw.irs, raw.seq);
            return Some((Record::Segment { key, irs, seq, fin, service }, payload));
        }
        types::record_kind::RECORD_REPLY => {
            let payload = rest.get(..raw.len as usize)?;
            return Some((Record::Reply { key, seq: raw.seq }, payload));
        }
        types::record_kind::RECORD_RESET => Record::Reset { key, seq: raw.seq },
        types::record_kind::RECORD_CLOSED => Record::Closed { key },
        types::record_kind::RECORD_BORN => Record::Born { key },
        types::record_kind::RECORD_CHILD => Record::Child { key, ack: raw.seq, edge: raw.len },
        types::record_kind::RECORD_CRASH => {
            Record::Crash { service, signal: (raw.seq != 0).then_some(raw.seq) }
        }
        types::record_kind::RECORD_DIVERGED => Record::Diverged { key },
        _ => return None,
    };
    Some((record, &[]))
}

const FIN: u8 = 0x01;

//! What the servers of held services do, in the order in which they do it.

use crate::FlowKey;
use crate::flows::from_front;
use crate::ring::RingSource;
use crate::skel::types;

/// The longest reply that goes by way of the backup, in bytes.
pub const REPLY_MAX: usize = types::limit::REPLY_MAX.0 as usize;

/// One record of the output ring. Sequence numbers are the outstream's, modulo 2^32 (RFC 9293
/// §3.4); a FIN occupies the one behind the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The server wrote; its bytes come beside the record, the first one is `seq`. For an adopted
    /// child this is what is left behind the swallowed part.
    ///
    /// A `seq` in front of the previous record's end takes back what that one said from there on:
    /// the write was cut short behind the gate (a signal, or a server that does not block), and
    /// the server has been told how much was taken. What is taken back is not released any more.
    ///
    /// What lies in front of `stable` has left, by an order or by way of the backup, and its client has
    /// acknowledged it: the backup holds it. `None`: that is not known.
    Bytes { flow: FlowKey, seq: u32, stable: Option<u32> },
    /// The server ended its stream (`shutdown`, `close`, death); its FIN is at `seq`.
    Ended { flow: FlowKey, seq: u32 },
    /// The same, for a server that has crashed: it did not mean to (C4). It counts only if no other
    /// node can carry the connection on.
    Crashed { flow: FlowKey, seq: u32 },
    /// The connection is over. `seq` is behind all that was written, FIN included.
    Gone { flow: FlowKey, seq: u32 },
    /// The connection is over by a reset, of the server or of the client. What was held in the
    /// kernel is lost, as it is without a gate.
    Aborted { flow: FlowKey, seq: u32 },
    /// The ring was full: what the server wrote from `seq` on is held, but was not captured and
    /// will not be. Only [`Order::Open`](crate::Order::Open), or a reset, ends this.
    Lost { flow: FlowKey, seq: u32 },
    /// A connection that should be held could not get a gate (the socket map is full): all that
    /// its server writes leaves at once, and nothing more is said of it here.
    Unheld { flow: FlowKey },
    /// The server has read and left bytes unread. It may wait for ever beside them: somebody must
    /// [`ring`](crate::Ringer::ring). Said once until then.
    Unread { flow: FlowKey },
}

impl Output {
    /// The flow that it is of.
    pub fn flow(&self) -> FlowKey {
        match *self {
            Output::Bytes { flow, .. }
            | Output::Ended { flow, .. }
            | Output::Crashed { flow, .. }
            | Output::Gone { flow, .. }
            | Output::Aborted { flow, .. }
            | Output::Lost { flow, .. }
            | Output::Unheld { flow }
            | Output::Unread { flow } => flow,
        }
    }
}

/// The output ring, before anybody reads it.
pub type OutputSource = RingSource<Output>;

pub(crate) fn parse(bytes: &[u8]) -> Option<(Output, &[u8])> {
    let (raw, rest) = from_front::<types::output>(bytes)?;
    let flow = FlowKey::from_raw(&raw.key);
    let seq = raw.seq;
    let output = match types::output_kind(raw.kind) {
        types::output_kind::OUTPUT_BYTES => {
            let stable = (raw.gated != 0).then_some(raw.una);
            return Some((Output::Bytes { flow, seq, stable }, rest.get(..raw.length as usize)?));
        }
        types::output_kind::OUTPUT_ENDED => Output::Ended { flow, seq },
        types::output_kind::OUTPUT_CRASHED => Output::Crashed { flow, seq },
        types::output_kind::OUTPUT_GONE => Output::Gone { flow, seq },
        types::output_kind::OUTPUT_ABORTED => Output::Aborted { flow, seq },
        types::output_kind::OUTPUT_LOST => Output::Lost { flow, seq },
        types::output_kind::OUTPUT_UNHELD => Output::Unheld { flow },
        types::output_kind::OUTPUT_UNREAD => Output::Unread { flow },
        _ => return None,
    };
    Some((output, &[]))
}

//! What the servers do, in the order in which they do it.

use std::os::fd::{AsRawFd, BorrowedFd};

use datapath::FlowKey;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use crate::flow_key;
use crate::skel::types;

/// One record. Sequence numbers are the outstream's, modulo 2^32 (RFC 9293 §3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// The server wrote; its bytes come beside the record, the first one is `seq`.
    ///
    /// A `seq` in front of the previous record's end takes back what that one said from there on:
    /// the write was cut short behind the gate (a signal, or a server that does not block), and
    /// the server has been told how much was taken.
    Output { flow: FlowKey, seq: u32 },
    /// The server ended its stream (`shutdown`, `close`, death); its FIN is at `seq`.
    Ended { flow: FlowKey, seq: u32 },
    /// The connection is over. `seq` is behind all that was written, FIN included.
    Gone { flow: FlowKey, seq: u32 },
    /// The connection is over by a reset, of the server or of the client. What was held in the
    /// kernel is lost, as it is without a gate.
    Aborted { flow: FlowKey, seq: u32 },
    /// The ring was full: what the server wrote from `seq` on is held, but was not captured and
    /// will not be. Only [`crate::Orders::open`], or a reset, ends this.
    Lost { flow: FlowKey, seq: u32 },
}

/// The ring, before anybody reads it.
#[derive(Debug)]
pub struct OutputSource {
    map: MapHandle,
}

impl OutputSource {
    pub(crate) fn new(map: MapHandle) -> Self {
        Self { map }
    }

    /// A reader, bound to the calling thread, that hands every record and its bytes to `each`. The
    /// bytes lie in the ring: they are free for new output when `each` returns.
    pub fn reader<'cb, F>(&self, mut each: F) -> libbpf_rs::Result<OutputReader<'cb>>
    where
        F: FnMut(&Record, &[u8]) + 'cb,
    {
        let mut builder = RingBufferBuilder::new();
        builder.add(&self.map, move |bytes| {
            if let Some((record, payload)) = parse(bytes) {
                each(&record, payload);
            }
            0
        })?;
        Ok(OutputReader { ring: builder.build()? })
    }
}

/// The consumer's end of the ring.
pub struct OutputReader<'cb> {
    ring: RingBuffer<'cb>,
}

impl OutputReader<'_> {
    /// Readable when there are records.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the ring, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd().as_raw_fd()) }
    }

    /// Hands out everything that is there.
    pub fn drain(&self) -> libbpf_rs::Result<()> {
        self.ring.consume()
    }
}

/// None: a kind this version does not know, or a record that contradicts itself.
fn parse(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let header = bytes.get(..size_of::<types::record>())?;
    // SAFETY: the slice has exactly the size of the type, which is plain data of any bit pattern;
    // the read does not assume alignment.
    let raw = unsafe { header.as_ptr().cast::<types::record>().read_unaligned() };
    let flow = flow_key(&raw.key);
    let seq = raw.seq;
    let record = match types::record_kind(raw.kind) {
        types::record_kind::RECORD_OUTPUT => {
            let payload = bytes[header.len()..].get(..raw.length as usize)?;
            return Some((Record::Output { flow, seq }, payload));
        }
        types::record_kind::RECORD_ENDED => Record::Ended { flow, seq },
        types::record_kind::RECORD_GONE => Record::Gone { flow, seq },
        types::record_kind::RECORD_ABORTED => Record::Aborted { flow, seq },
        types::record_kind::RECORD_LOST => Record::Lost { flow, seq },
        _ => return None,
    };
    Some((record, &[]))
}

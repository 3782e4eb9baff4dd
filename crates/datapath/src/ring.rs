//! Reading a ring: records in the order in which the data path appended them.

use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

/// Takes a record apart, header and payload. None: a kind this version does not know, or a record
/// that contradicts itself.
pub(crate) type Parse<R> = fn(&[u8]) -> Option<(R, &[u8])>;

/// A ring of records `R`, before anybody reads it.
#[derive(Debug)]
pub struct RingSource<R> {
    map: MapHandle,
    parse: Parse<R>,
}

impl<R: 'static> RingSource<R> {
    pub(crate) fn new(map: MapHandle, parse: Parse<R>) -> Self {
        Self { map, parse }
    }

    /// A reader, bound to the calling thread, that hands every record and its payload to `each`.
    /// The payload lies in the ring: its place is free for new records when `each` returns.
    pub fn reader<'cb, F>(&self, mut each: F) -> libbpf_rs::Result<RingReader<'cb>>
    where
        F: FnMut(&R, &[u8]) + 'cb,
    {
        let parse = self.parse;
        let mut builder = RingBufferBuilder::new();
        builder.add(&self.map, move |bytes| {
            if let Some((record, payload)) = parse(bytes) {
                each(&record, payload);
            }
            0
        })?;
        Ok(RingReader { ring: builder.build()? })
    }
}

/// The consumer's end of a ring.
pub struct RingReader<'cb> {
    ring: RingBuffer<'cb>,
}

impl RingReader<'_> {
    /// Readable when the data path asks for attention.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the ring, which outlives the borrow.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd().as_raw_fd()) }
    }

    /// Hands out everything that is there.
    pub fn drain(&self) -> libbpf_rs::Result<()> {
        self.ring.consume()
    }
}

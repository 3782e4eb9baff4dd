//! One synchronous conversation with the kernel over netlink.
//!
//! The packet crates give the messages; what is left is the conversation: number the requests,
//! read until the answer with that number is complete, turn the kernel's error codes into
//! errors, and notice a dump that was interrupted. That last point is the one that bites: when
//! the table changes while it is being dumped the kernel sets `NLM_F_DUMP_INTR` and may have
//! left entries out, so such a dump is thrown away and asked for again.
//!
//! The kernel answers a request inside `send`, so a blocking socket never waits for long.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// Larger than any datagram the kernel builds for a dump (32 KiB).
const RECEIVE_BYTES: usize = 64 * 1024;

/// How often an interrupted dump is asked for again before its answer is called unusable.
const DUMP_ATTEMPTS: u32 = 16;

/// Requests per `send`: their acknowledgements must fit the receive buffer together.
const BATCH: usize = 64;

/// The kernel's side of a netlink conversation went wrong.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// No netlink socket could be made.
    #[error("cannot open a netlink socket for {purpose}: {source}")]
    Open {
        /// What it was for.
        purpose: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Sending or receiving failed.
    #[error("netlink conversation about {purpose} failed: {source}")]
    Io {
        /// What it was about.
        purpose: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel refused the request.
    #[error("the kernel refused the request about {purpose}: {source}")]
    Refused {
        /// What it was about.
        purpose: &'static str,
        /// The kernel's error code.
        source: io::Error,
    },
    /// A message could not be understood.
    #[error("cannot understand the kernel's answer about {purpose}: {what}")]
    Malformed {
        /// What it was about.
        purpose: &'static str,
        /// What was wrong with it.
        what: String,
    },
    /// The table kept changing while it was read.
    #[error("the table of {purpose} changed {DUMP_ATTEMPTS} times while it was being read")]
    Unsteady {
        /// Which table.
        purpose: &'static str,
    },
}

impl NetlinkError {
    /// The kernel's error code, where it was the kernel that said no.
    pub(crate) fn refusal(&self) -> Option<i32> {
        match self {
            NetlinkError::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// A netlink socket with a purpose that its error messages name.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: Socket,
    sequence: u32,
    purpose: &'static str,
}

impl Channel {
    /// Opens a socket of the netlink `protocol` in the calling thread's namespace.
    pub(crate) fn open(protocol: isize, purpose: &'static str) -> Result<Channel, NetlinkError> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        let socket = open().map_err(|source| NetlinkError::Open { purpose, source })?;
        Ok(Channel { socket, sequence: 0, purpose })
    }

    /// Asks for a whole table; attempts again when it changed under the reading.
    pub(crate) fn dump<Q, A>(&mut self, request: &Q) -> Result<Vec<A>, NetlinkError>
    where
        Q: NetlinkSerializable + Clone,
        A: NetlinkDeserializable,
    {
        for _ in 0..DUMP_ATTEMPTS {
            let mut bytes = Vec::new();
            let sequence = self.encode(request.clone(), NLM_F_DUMP, &mut bytes);
            self.send(&bytes)?;
            if let Some(table) = self.collect_dump(sequence)? {
                return Ok(table);
            }
        }
        Err(NetlinkError::Unsteady { purpose: self.purpose })
    }

    /// Asks for one object. `flags` besides REQUEST.
    pub(crate) fn get<Q, A>(&mut self, request: Q) -> Result<A, NetlinkError>
    where
        Q: NetlinkSerializable,
        A: NetlinkDeserializable,
    {
        let mut bytes = Vec::new();
        let sequence = self.encode(request, 0, &mut bytes);
        self.send(&bytes)?;
        loop {
            let datagram = self.receive()?;
            for message in parse_datagram::<A>(&datagram, self.purpose)? {
                if message.header.sequence_number != sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => return Ok(answer),
                    NetlinkPayload::Error(e) => self.check(e.to_io())?,
                    _ => {}
                }
            }
        }
    }

    /// Carries out one change and waits for the kernel's word on it.
    pub(crate) fn change<Q>(&mut self, request: Q, flags: u16) -> Result<(), NetlinkError>
    where
        Q: NetlinkSerializable + NetlinkDeserializable,
    {
        let mut outcome = self.change_all(vec![request], flags)?;
        assert_eq!(outcome.len(), 1);
        match outcome.remove(0) {
            None => Ok(()),
            Some(source) => Err(NetlinkError::Refused { purpose: self.purpose, source }),
        }
    }

    /// Carries out many changes, a batch per system call; `None` or the kernel's error for each.
    pub(crate) fn change_all<Q>(
        &mut self,
        requests: Vec<Q>,
        flags: u16,
    ) -> Result<Vec<Option<io::Error>>, NetlinkError>
    where
        Q: NetlinkSerializable + NetlinkDeserializable,
    {
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let mut bytes = Vec::new();
            let mut last = 0;
            let first = self.sequence.wrapping_add(1);
            for request in requests.by_ref().take(BATCH) {
                last = self.encode(request, flags | NLM_F_ACK, &mut bytes);
            }
            self.send(&bytes)?;
            // The kernel works through a batch in order, so the answers come in order too.
            let mut expected = first;
            while expected != last.wrapping_add(1) {
                let datagram = self.receive()?;
                for message in parse_datagram::<Q>(&datagram, self.purpose)? {
                    if message.header.sequence_number != expected {
                        continue;
                    }
                    if let NetlinkPayload::Error(e) = message.payload {
                        outcomes.push(e.code.map(|_| e.to_io()));
                        expected = expected.wrapping_add(1);
                    }
                }
            }
        }
        Ok(outcomes)
    }

    fn encode<Q: NetlinkSerializable>(
        &mut self,
        request: Q,
        flags: u16,
        bytes: &mut Vec<u8>,
    ) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let start = bytes.len();
        assert_eq!(start % 4, 0, "netlink messages start at multiples of four");
        bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut bytes[start..start + message.buffer_len()]);
        self.sequence
    }

    fn collect_dump<A>(&mut self, sequence: u32) -> Result<Option<Vec<A>>, NetlinkError>
    where
        A: NetlinkDeserializable,
    {
        let mut table = Vec::new();
        let mut interrupted = false;
        loop {
            let datagram = self.receive()?;
            for message in parse_datagram::<A>(&datagram, self.purpose)? {
                if message.header.sequence_number != sequence {
                    continue;
                }
                interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(entry) => table.push(entry),
                    NetlinkPayload::Done(done) => {
                        if done.code < 0 {
                            self.check(io::Error::from_raw_os_error(-done.code))?;
                        }
                        return Ok((!interrupted).then_some(table));
                    }
                    NetlinkPayload::Error(e) => self.check(e.to_io())?,
                    _ => {}
                }
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        let sent = retry_interrupted(|| self.socket.send(bytes, 0))
            .map_err(|source| NetlinkError::Io { purpose: self.purpose, source })?;
        assert_eq!(sent, bytes.len(), "netlink sends whole datagrams");
        Ok(())
    }

    fn receive(&self) -> Result<Vec<u8>, NetlinkError> {
        receive_datagram(&self.socket)
            .map_err(|source| NetlinkError::Io { purpose: self.purpose, source })
    }

    fn check(&self, source: io::Error) -> Result<(), NetlinkError> {
        match source.raw_os_error() {
            Some(0) => Ok(()),
            _ => Err(NetlinkError::Refused { purpose: self.purpose, source }),
        }
    }
}

/// Reads one datagram; `WouldBlock` on an idle non-blocking socket.
pub(crate) fn receive_datagram(socket: &Socket) -> io::Result<Vec<u8>> {
    let mut datagram = Vec::with_capacity(RECEIVE_BYTES);
    let length = retry_interrupted(|| socket.recv(&mut datagram, libc::MSG_TRUNC))?;
    if length > datagram.len() {
        return Err(io::Error::other(format!("a datagram of {length} bytes was cut short")));
    }
    Ok(datagram)
}

/// Splits a datagram into its messages.
pub(crate) fn parse_datagram<A: NetlinkDeserializable>(
    mut bytes: &[u8],
    purpose: &'static str,
) -> Result<Vec<NetlinkMessage<A>>, NetlinkError> {
    let malformed = |what: String| NetlinkError::Malformed { purpose, what };
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let message =
            NetlinkMessage::<A>::deserialize(bytes).map_err(|e| malformed(e.to_string()))?;
        let length = message.header.length as usize;
        if length < 16 || length > bytes.len() {
            return Err(malformed(format!("length {length} in {} bytes", bytes.len())));
        }
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        messages.push(message);
    }
    Ok(messages)
}

fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

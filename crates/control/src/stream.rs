//! One end of a control stream: the same key, handshake and names as a channel, over a connection
//! that keeps order and loses nothing, such as TCP.
//!
//! The problem: TCP keeps order against a network, not against somebody on it, who can drop, repeat
//! and change what he likes, connect to the port, and say again what he has recorded. A nonce in
//! each message would not help: on a connection a gap is as bad as a forgery. So the nonces are
//! counters that both sides keep, and whatever is not the very next message does not open.
//!
//! ```text
//!  dials   -->  preamble | length | Noise message 1         preamble: "SFst", version, cluster tag
//!  answers <--  preamble | length | Noise message 2                   (4, 1 and 8 bytes)
//!  dials   -->  length | empty message: the proof           length:   2 bytes, big-endian, of the
//!  both         length | message ...                                  Noise message behind it
//! ```
//!
//! The first five bytes keep their place in every version. The preamble and the cluster's name are
//! the handshake's prologue: nothing of it is trusted before message 1 or 2 has been opened.
//!
//! Message 1 may be a recorded one: it proves that a holder of the key made it once. The side that
//! answered is therefore not established before the proof, which only who has read message 2 can
//! make. Until then neither side takes anything but the one message that is due, and keeps no more
//! than that of what a stranger sends.
//!
//! The end of the connection is not authenticated, as anybody can forge a FIN: what must be known
//! to be the last message says so itself. How long a handshake may take, and how many at once, is
//! for the caller to bound.

#[cfg(test)]
mod tests;

use std::mem;

use snow::StatelessTransportState;

use crate::noise::{Hello, Initiator, MESSAGE_MAX, Responder};
use crate::packet::{ClusterTag, PUBLIC_KEY, TAG};
use crate::{Identity, Psk, Rng};

/// The version of the stream spoken here.
pub const STREAM_VERSION: u8 = 1;

const MAGIC: [u8; 4] = *b"SFst";
const PREAMBLE: usize = 4 + 1 + 8;
/// In front of each Noise message.
const LENGTH: usize = 2;
/// The longest Noise message (section 3).
const NOISE_MAX: usize = u16::MAX as usize;
/// The most plaintext that one message holds.
const PLAINTEXT_MAX: usize = NOISE_MAX - TAG;

/// Why a stream is of no more use. Except for [`StreamError::Name`], what it says of the sender is
/// its unauthenticated claim, as with [`crate::Rejected`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error(
        "a node speaks version {theirs} of the control stream, this one speaks version {}; \
             install the same release on both",
        STREAM_VERSION
    )]
    Version { theirs: u8 },
    #[error(
        "a node of another cluster is at the other end; give both nodes the same `cluster`, or \
             other addresses"
    )]
    Cluster,
    #[error(
        "the node at the other end has another key, or its message was damaged; copy the key \
             file from one node to the other"
    )]
    Key,
    #[error(
        "a node with our key is called {theirs:?}, which is not the peer's name; give each \
             node the other's name as `peer`"
    )]
    Name { theirs: String },
    #[error(
        "not a control stream; look whether another program uses the address and port of one of \
             the nodes"
    )]
    Garbage,
    #[error(
        "longer than any message that is due before a handshake is over; look whether another \
             program uses the address and port of one of the nodes"
    )]
    TooLong,
    #[error(
        "a message does not open: it was changed, repeated or moved on the way, or one before it \
             was taken out; connect again"
    )]
    Forged,
}

/// One end of a control stream.
pub struct Stream {
    identity: Identity,
    preamble: [u8; PREAMBLE],
    stage: Stage,
    /// The beginning of the message that is due. Invariant: not all of it, and so no longer than the
    /// stage allows (see [`Stream::due`]).
    partial: Vec<u8>,
    /// What is to be sent, behind what has been.
    out: Vec<u8>,
    /// So much at the front of `out` has been sent. Invariant: at most half of it, or nothing is
    /// left.
    sent: usize,
}

/// What is due next.
enum Stage {
    /// Message 1.
    Answering { psk: Psk, rng: Rng },
    /// Message 2.
    Dialed(Initiator),
    /// The proof that the peer has read message 2.
    Answered { keys: Keys, incarnation: u64 },
    /// Messages without end.
    Established { keys: Keys, incarnation: u64 },
    /// Nothing.
    Over(StreamError),
}

impl Stream {
    /// The end that asks: message 1 waits in [`Stream::to_send`].
    pub fn dial(psk: &Psk, identity: &Identity, rng: &Rng) -> Stream {
        let preamble = preamble(identity);
        let prologue = prologue(&preamble, identity);
        let (initiator, noise) = Initiator::begin(psk, &prologue, rng, &hello(identity));
        let mut stream = Stream::new(identity, preamble, Stage::Dialed(initiator));
        stream.push_handshake(&noise);
        stream
    }

    /// The end that is asked: silent until message 1 has come from a holder of the key.
    pub fn answer(psk: &Psk, identity: &Identity, rng: &Rng) -> Stream {
        let stage = Stage::Answering { psk: psk.clone(), rng: rng.clone() };
        Stream::new(identity, preamble(identity), stage)
    }

    fn new(identity: &Identity, preamble: [u8; PREAMBLE], stage: Stage) -> Stream {
        identity.check();
        let identity = identity.clone();
        Stream { identity, preamble, stage, partial: Vec::new(), out: Vec::new(), sent: 0 }
    }

    /// Whether [`Stream::write`] can write: the peer has proved that it lives and has the key. No
    /// more after an error.
    pub fn established(&self) -> bool {
        matches!(self.stage, Stage::Established { .. })
    }

    /// Which life of the peer's daemon this is, once it has proved itself.
    pub fn peer_incarnation(&self) -> Option<u64> {
        match self.stage {
            Stage::Established { incarnation, .. } => Some(incarnation),
            _ => None,
        }
    }

    /// Takes what was received, in pieces of any size, and appends the plaintext of the messages
    /// that are whole. An error is final: there is nothing more to send or to receive. What was
    /// appended before it is genuine.
    pub fn received(&mut self, bytes: &[u8], plaintext: &mut Vec<u8>) -> Result<(), StreamError> {
        let outcome = self.take(bytes, plaintext);
        if let Err(error) = &outcome {
            self.stage = Stage::Over(error.clone());
            self.partial = Vec::new();
            self.out = Vec::new();
            self.sent = 0;
        }
        outcome
    }

    /// Seals the plaintext into as few messages as possible, behind what is to be sent already.
    ///
    /// # Panics
    /// Unless the stream is [`Stream::established`].
    pub fn write(&mut self, plaintext: &[u8]) {
        let Stage::Established { keys, .. } = &mut self.stage else {
            panic!("written to a stream that is not established");
        };
        let messages = plaintext.len().div_ceil(PLAINTEXT_MAX);
        self.out.reserve(plaintext.len() + messages * (LENGTH + TAG));
        for piece in plaintext.chunks(PLAINTEXT_MAX) {
            keys.seal(piece, &mut self.out);
        }
    }

    /// What is to be sent. It has no bound of its own: do not write while it is long.
    pub fn to_send(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// The first `count` bytes of [`Stream::to_send`] have been sent.
    pub fn sent(&mut self, count: usize) {
        assert!(count <= self.to_send().len(), "{count} bytes sent of {}", self.to_send().len());
        self.sent += count;
        // No more is moved than was sent since the last time.
        if self.sent > self.out.len() / 2 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn take(&mut self, mut bytes: &[u8], plaintext: &mut Vec<u8>) -> Result<(), StreamError> {
        if let Stage::Over(error) = &self.stage {
            return Err(error.clone());
        }
        while !bytes.is_empty() {
            if self.partial.is_empty() {
                // The usual case: a message is opened where it lies.
                let due = self.due(bytes)?;
                let Some((message, rest)) = bytes.split_at_checked(due) else {
                    self.partial.extend_from_slice(bytes);
                    return Ok(());
                };
                self.on_message(message, plaintext)?;
                bytes = rest;
                continue;
            }
            let missing = self.due(&self.partial)? - self.partial.len();
            let (more, rest) = bytes.split_at(missing.min(bytes.len()));
            self.partial.extend_from_slice(more);
            bytes = rest;
            // It may have been its head that was missing.
            if self.due(&self.partial)? == self.partial.len() {
                let mut message = mem::take(&mut self.partial);
                self.on_message(&message, plaintext)?;
                message.clear();
                self.partial = message;
            }
        }
        Ok(())
    }

    /// How many bytes the message has that begins like this; those of its head, if more is not
    /// known. What cannot become the message that is due is refused as soon as that can be seen.
    fn due(&self, bytes: &[u8]) -> Result<usize, StreamError> {
        let head = self.head();
        let (least, most) = match self.stage {
            Stage::Answering { .. } | Stage::Dialed(_) => {
                self.check_preamble(bytes)?;
                (PUBLIC_KEY + TAG, MESSAGE_MAX)
            }
            Stage::Answered { .. } => (TAG, TAG),
            Stage::Established { .. } => (TAG, NOISE_MAX),
            Stage::Over(_) => unreachable!("nothing is due"),
        };
        let Some(length) = bytes.get(head - LENGTH..head) else { return Ok(head) };
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        match length {
            _ if length < least => Err(StreamError::Garbage),
            _ if length > most => Err(StreamError::TooLong),
            _ => Ok(head + length),
        }
    }

    /// How many bytes stand in front of the Noise message that is due.
    fn head(&self) -> usize {
        match self.stage {
            Stage::Answering { .. } | Stage::Dialed(_) => PREAMBLE + LENGTH,
            _ => LENGTH,
        }
    }

    /// Compares a preamble, as far as it is there.
    fn check_preamble(&self, bytes: &[u8]) -> Result<(), StreamError> {
        let differs = self.preamble.iter().zip(bytes).position(|(ours, theirs)| ours != theirs);
        match differs {
            None => Ok(()),
            Some(0..4) => Err(StreamError::Garbage),
            Some(4) => Err(StreamError::Version { theirs: bytes[4] }),
            Some(_) => Err(StreamError::Cluster),
        }
    }

    /// Takes the message that is due, head included.
    fn on_message(&mut self, message: &[u8], plaintext: &mut Vec<u8>) -> Result<(), StreamError> {
        let noise = &message[self.head()..];
        if let Stage::Established { keys, .. } = &mut self.stage {
            return keys.open(noise, plaintext);
        }
        // In the place of the old stage until there is a new one; `received` ends it on an error.
        let stage = mem::replace(&mut self.stage, Stage::Over(StreamError::Garbage));
        self.stage = match stage {
            Stage::Answering { psk, rng } => {
                let prologue = prologue(&self.preamble, &self.identity);
                let responder = Responder::begin(&psk, &prologue, &rng, noise);
                let responder = responder.ok_or(StreamError::Key)?;
                let incarnation = self.check_name(&responder.hello)?;
                let finished = responder.finish(&hello(&self.identity));
                let (transport, answer) = finished.ok_or(StreamError::Garbage)?;
                self.push_handshake(&answer);
                Stage::Answered { keys: Keys::new(transport), incarnation }
            }
            Stage::Dialed(initiator) => {
                let finished = initiator.finish(noise);
                let (transport, theirs) = finished.map_err(|_| StreamError::Key)?;
                let incarnation = self.check_name(&theirs)?;
                let mut keys = Keys::new(transport);
                keys.seal(b"", &mut self.out);
                Stage::Established { keys, incarnation }
            }
            Stage::Answered { mut keys, incarnation } => {
                keys.open(noise, plaintext)?;
                Stage::Established { keys, incarnation }
            }
            Stage::Established { .. } | Stage::Over(_) => unreachable!("no handshake is under way"),
        };
        Ok(())
    }

    /// The incarnation of a peer that has the right name.
    fn check_name(&self, theirs: &Hello) -> Result<u64, StreamError> {
        if theirs.name == self.identity.peer {
            Ok(theirs.incarnation)
        } else {
            Err(StreamError::Name { theirs: theirs.name.clone() })
        }
    }

    fn push_handshake(&mut self, noise: &[u8]) {
        self.out.extend_from_slice(&self.preamble);
        push_length(noise.len(), &mut self.out);
        self.out.extend_from_slice(noise);
    }
}

/// What a finished handshake has made.
struct Keys {
    transport: StatelessTransportState,
    /// Messages sealed: the next nonce to send. It may not reach 2^64 - 1 (section 5.1), and with a
    /// message each nanosecond would take five hundred years to.
    sealed: u64,
    /// Messages opened: the only nonce that is taken next.
    opened: u64,
}

impl Keys {
    fn new(transport: StatelessTransportState) -> Keys {
        Keys { transport, sealed: 0, opened: 0 }
    }

    /// Appends a message of at most [`PLAINTEXT_MAX`] bytes, length included.
    fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) {
        push_length(plaintext.len() + TAG, out);
        let begin = out.len();
        out.resize(begin + plaintext.len() + TAG, 0);
        let message = &mut out[begin..];
        let length = self.transport.write_message(self.sealed, plaintext, message);
        assert_eq!(length.ok(), Some(message.len()), "the buffer has room for the tag");
        self.sealed += 1;
    }

    /// Opens a message of at least a tag and appends what it holds; nothing, if it does not open.
    fn open(&mut self, noise: &[u8], plaintext: &mut Vec<u8>) -> Result<(), StreamError> {
        let begin = plaintext.len();
        // With room for the tag ring works in this buffer; without, in one that it allocates.
        plaintext.resize(begin + noise.len(), 0);
        let opened = self.transport.read_message(self.opened, noise, &mut plaintext[begin..]);
        // What does not open leaves nothing behind.
        plaintext.truncate(begin + opened.as_ref().map_or(0, |length| *length));
        opened.map_err(|_| StreamError::Forged)?;
        self.opened += 1;
        Ok(())
    }
}

fn push_length(length: usize, out: &mut Vec<u8>) {
    let length = u16::try_from(length).expect("a Noise message has at most 65535 bytes");
    out.extend_from_slice(&length.to_be_bytes());
}

/// What both sides send in the clear, once.
fn preamble(identity: &Identity) -> [u8; PREAMBLE] {
    let tag = ClusterTag::of(&identity.cluster).bytes();
    let mut preamble = [0; PREAMBLE];
    preamble[..4].copy_from_slice(&MAGIC);
    preamble[4] = STREAM_VERSION;
    preamble[5..].copy_from_slice(&tag);
    preamble
}

/// What both sides of a stream's handshake must agree on before it begins.
fn prologue(preamble: &[u8; PREAMBLE], identity: &Identity) -> Vec<u8> {
    [&preamble[..], identity.cluster.as_bytes()].concat()
}

/// A stream has no number: any but 0 will do.
fn hello(identity: &Identity) -> Hello {
    identity.hello(1)
}

//! Authenticated, encrypted datagrams, and streams, between the two daemons of a cluster; sans-I/O.
//!
//! The daemons exchange small state messages every few milliseconds over two links at once, so
//! loss, duplicates and reordering are normal and a stream protocol would only add head-of-line
//! delay. TLS and DTLS want certificates and answer whoever asks. Here both nodes hold one key,
//! and a datagram either proves that it comes from a holder of that key or changes nothing.
//!
//! What may not be lost, and comes by the megabyte, would need acknowledgements, retransmission and
//! congestion control on top of datagrams. It goes by a TCP connection instead, under the same key.
//!
//! - [`Channel`] is the whole protocol of the datagrams: datagrams and time go in, datagrams come
//!   out. One session serves both links; the caller decides on which link to send.
//! - [`Stream`] is one end of a connection: bytes in order go in, bytes in order come out.
//! - [`Psk`] is the shared key and its file.
//!
//! Handshake: Noise `NNpsk0` (The Noise Protocol Framework, revision 34, section 9) over
//! Curve25519, ChaCha20-Poly1305 and BLAKE2s, so earlier sessions stay secret when the key leaks.
//! Datagrams: explicit 64-bit nonces and a sliding replay window (RFC 6479). Streams: the nonces are
//! counters that are not sent. Each has a magic and a version of its own in the handshake's prologue
//! (section 6), so no message of one is read as a message of the other.

#![forbid(unsafe_code)]

mod channel;
mod key;
mod noise;
mod packet;
mod replay;
mod rng;
mod session;
mod stream;

pub use channel::{Channel, Identity, Input, Limits, Peer, Rejected, Stats};
pub use key::{KeyError, Psk};
pub use packet::{MAX_DATAGRAM, MAX_PLAINTEXT, VERSION};
pub use rng::Rng;
pub use stream::{STREAM_VERSION, Stream, StreamError};

//! Authenticated, encrypted datagrams between the two daemons of a cluster; sans-I/O.
//!
//! The daemons exchange small state messages every few milliseconds over two links at once, so
//! loss, duplicates and reordering are normal and a stream protocol would only add head-of-line
//! delay. TLS and DTLS want certificates and answer whoever asks. Here both nodes hold one key,
//! and a datagram either proves that it comes from a holder of that key or changes nothing.
//!
//! - [`Channel`] is the whole protocol: datagrams and time go in, datagrams come out. One session
//!   serves both links; the caller decides on which link to send.
//! - [`Psk`] is the shared key and its file.
//!
//! Handshake: Noise `NNpsk0` (The Noise Protocol Framework, revision 34, section 9) over
//! Curve25519, ChaCha20-Poly1305 and BLAKE2s, so earlier sessions stay secret when the key leaks.
//! Transport: explicit 64-bit nonces and a sliding replay window (RFC 6479).

#![forbid(unsafe_code)]

mod channel;
mod key;
mod noise;
mod packet;
mod replay;
mod rng;
mod session;

pub use channel::{Channel, Identity, Input, Limits, Peer, Rejected, Stats};
pub use key::{KeyError, Psk};
pub use packet::{MAX_DATAGRAM, MAX_PLAINTEXT, VERSION};
pub use rng::Rng;

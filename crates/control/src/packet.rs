//! The outer form of a datagram: what is readable without the key.
//!
//! ```text
//!  0        4   5   6             14          18
//!  +--------+---+---+-------------+-----------+----------------------------
//!  | "SFct" |ver|typ| cluster tag | session   | initiation, response: Noise message
//!  +--------+---+---+-------------+-----------+ data: nonce (8), then ciphertext
//! ```
//! All integers are big-endian. `session` is the number that the *receiver* gave to the session,
//! 0 in an initiation. Nothing here is trusted: it only says which key to try, and lets a peer of
//! another version or cluster be named in a message. The first five bytes keep their place in
//! every version.

use sha2::{Digest, Sha256};

/// The version of the protocol spoken here.
pub const VERSION: u8 = 1;

/// The longest message that [`crate::Channel::seal`] takes, in bytes.
pub const MAX_PLAINTEXT: usize = 1200;

/// The longest datagram that a channel makes or looks at, in bytes (UDP payload).
pub const MAX_DATAGRAM: usize = HEADER + NONCE + MAX_PLAINTEXT + TAG;

/// The length of an authentication tag.
pub(crate) const TAG: usize = 16;
/// The length of a Curve25519 public key.
pub(crate) const PUBLIC_KEY: usize = 32;

const MAGIC: [u8; 4] = *b"SFct";
const HEADER: usize = 18;
const NONCE: usize = 8;

/// What a datagram claims to be, with its contents.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Packet<'a> {
    /// Noise message 1: at least a public key and a tag.
    Initiation { noise: &'a [u8] },
    /// Noise message 2: at least a public key and a tag.
    Response { session: u32, noise: &'a [u8] },
    /// A transport message: at least a tag.
    Data { session: u32, nonce: u64, ciphertext: &'a [u8] },
}

/// Why a datagram cannot be one for us.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    TooLong,
    Version { theirs: u8 },
    Cluster,
    Garbage,
}

/// The readable stand-in for a cluster's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClusterTag([u8; 8]);

impl ClusterTag {
    pub fn of(name: &str) -> ClusterTag {
        let digest = Sha256::new().chain_update(b"steadfast cluster\0").chain_update(name);
        let digest = digest.finalize();
        ClusterTag(std::array::from_fn(|i| digest[i]))
    }

    pub fn bytes(self) -> [u8; 8] {
        self.0
    }

    /// What both sides of a channel's handshake must agree on before it begins.
    pub fn prologue(self, cluster: &str) -> Vec<u8> {
        [&MAGIC[..], &[VERSION], &self.0, cluster.as_bytes()].concat()
    }
}

impl<'a> Packet<'a> {
    /// Reads a datagram, whatever it holds.
    pub fn parse(bytes: &'a [u8], cluster: ClusterTag) -> Result<Packet<'a>, Malformed> {
        if bytes.len() > MAX_DATAGRAM {
            return Err(Malformed::TooLong);
        }
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(Malformed::Garbage)?;
        let (&version, rest) = rest.split_first().ok_or(Malformed::Garbage)?;
        if *magic != MAGIC {
            return Err(Malformed::Garbage);
        }
        if version != VERSION {
            return Err(Malformed::Version { theirs: version });
        }
        let (&kind, rest) = rest.split_first().ok_or(Malformed::Garbage)?;
        let (tag, rest) = rest.split_first_chunk::<8>().ok_or(Malformed::Garbage)?;
        let (session, body) = rest.split_first_chunk::<4>().ok_or(Malformed::Garbage)?;
        if *tag != cluster.0 {
            return Err(Malformed::Cluster);
        }
        let session = u32::from_be_bytes(*session);
        match kind {
            1 if session == 0 && body.len() >= PUBLIC_KEY + TAG => {
                Ok(Packet::Initiation { noise: body })
            }
            2 if body.len() >= PUBLIC_KEY + TAG => Ok(Packet::Response { session, noise: body }),
            3 if body.len() >= NONCE + TAG => {
                let (nonce, ciphertext) = body.split_first_chunk().ok_or(Malformed::Garbage)?;
                Ok(Packet::Data { session, nonce: u64::from_be_bytes(*nonce), ciphertext })
            }
            _ => Err(Malformed::Garbage),
        }
    }

    /// Writes the datagram.
    pub fn emit(&self, cluster: ClusterTag) -> Vec<u8> {
        let (kind, session, body) = match *self {
            Packet::Initiation { noise } => (1, 0, noise),
            Packet::Response { session, noise } => (2, session, noise),
            Packet::Data { session, ciphertext, .. } => (3, session, ciphertext),
        };
        let mut bytes = Vec::with_capacity(HEADER + NONCE + body.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[VERSION, kind]);
        bytes.extend_from_slice(&cluster.0);
        bytes.extend_from_slice(&session.to_be_bytes());
        if let Packet::Data { nonce, .. } = self {
            bytes.extend_from_slice(&nonce.to_be_bytes());
        }
        bytes.extend_from_slice(body);
        assert!(bytes.len() <= MAX_DATAGRAM, "a datagram of {} bytes", bytes.len());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_golden_datagram() {
        let cluster = ClusterTag([1, 2, 3, 4, 5, 6, 7, 8]);
        let data = Packet::Data { session: 0xa1b2c3d4, nonce: 9, ciphertext: &[0xee; 16] };
        let bytes = data.emit(cluster);
        let mut golden = b"SFct\x01\x03\x01\x02\x03\x04\x05\x06\x07\x08\xa1\xb2\xc3\xd4".to_vec();
        golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 9]);
        golden.extend_from_slice(&[0xee; 16]);
        assert_eq!(bytes, golden);
        assert_eq!(Packet::parse(&golden, cluster), Ok(data));
    }

    #[test]
    fn strangers_are_told_apart() {
        let (ours, other) = (ClusterTag::of("files"), ClusterTag::of("mail"));
        let mut bytes = Packet::Response { session: 7, noise: &[0; 48] }.emit(ours);
        assert_eq!(Packet::parse(&bytes, other), Err(Malformed::Cluster));
        assert_eq!(Packet::parse(&bytes[..65], ours), Err(Malformed::Garbage));
        bytes[4] = 9;
        let version = Err(Malformed::Version { theirs: 9 });
        assert_eq!(Packet::parse(&bytes, ours), version);
        assert_eq!(Packet::parse(&bytes[..5], ours), version);
        assert_eq!(Packet::parse(&bytes[..4], ours), Err(Malformed::Garbage));
        bytes[0] = b'X';
        assert_eq!(Packet::parse(&bytes, ours), Err(Malformed::Garbage));
        assert_eq!(Packet::parse(&[0; MAX_DATAGRAM + 1], ours), Err(Malformed::TooLong));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic_and_written_back(
            mut bytes in prop::collection::vec(any::<u8>(), 0..100), kind in 0u8..5,
        ) {
            let cluster = ClusterTag::of("c");
            let whole = Packet::Response { session: 0, noise: &[] }.emit(cluster);
            for (byte, good) in bytes.iter_mut().zip(&whole) {
                *byte = *good;
            }
            if let Some(byte) = bytes.get_mut(5) {
                *byte = kind;
            }
            if let Ok(packet) = Packet::parse(&bytes, cluster) {
                prop_assert_eq!(packet.emit(cluster), bytes);
            }
        }
    }
}

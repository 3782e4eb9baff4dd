//! The keys of one finished handshake, and how far they have been used.

use std::time::Duration;

use snow::StatelessTransportState;

use crate::channel::Peer;
use crate::packet::{ClusterTag, Packet, TAG};
use crate::replay::ReplayWindow;

/// Nonces from here on are never used: far before Noise's own limit (section 5.1), far after
/// any renegotiation.
const NONCE_LIMIT: u64 = 1 << 62;

pub(crate) struct Session {
    /// What the peer writes on datagrams to us; unique among our sessions, never 0.
    pub local: u32,
    /// What we write on datagrams to the peer.
    remote: u32,
    pub peer: Peer,
    /// Whether we sent message 1.
    pub initiator: bool,
    /// The public key of message 1: the same one never makes two sessions.
    pub origin: [u8; 32],
    /// When the handshake ended here.
    pub born: Duration,
    /// When a datagram was last opened.
    pub heard: Duration,
    transport: StatelessTransportState,
    /// The next nonce to send. Never repeats under one key: it only grows, and the session ends
    /// at [`NONCE_LIMIT`].
    next_nonce: u64,
    window: ReplayWindow,
}

/// Why a datagram was not opened.
pub(crate) enum Refused {
    Replay,
    Forged,
}

impl Session {
    pub fn new(
        (local, remote): (u32, u32),
        peer: Peer,
        initiator: bool,
        origin: [u8; 32],
        transport: StatelessTransportState,
        now: Duration,
    ) -> Session {
        Session {
            local,
            remote,
            peer,
            initiator,
            origin,
            born: now,
            heard: now,
            transport,
            next_nonce: 0,
            window: ReplayWindow::new(),
        }
    }

    /// How many datagrams were sealed under these keys.
    pub fn sealed(&self) -> u64 {
        self.next_nonce
    }

    /// Seals one datagram; `None` once the keys are used up.
    pub fn seal(&mut self, cluster: ClusterTag, plaintext: &[u8]) -> Option<Vec<u8>> {
        if self.next_nonce >= NONCE_LIMIT {
            return None;
        }
        let nonce = self.next_nonce;
        self.next_nonce += 1;
        let mut ciphertext = vec![0; plaintext.len() + TAG];
        let length = self.transport.write_message(nonce, plaintext, &mut ciphertext);
        assert_eq!(length.ok(), Some(ciphertext.len()), "the buffer has room for the tag");
        Some(Packet::Data { session: self.remote, nonce, ciphertext: &ciphertext }.emit(cluster))
    }

    /// Opens one datagram. `ciphertext` has at least a tag.
    pub fn open(
        &mut self,
        nonce: u64,
        ciphertext: &[u8],
        now: Duration,
    ) -> Result<Vec<u8>, Refused> {
        // Cheap first: a flood of repeats costs no decryption.
        if !self.window.is_fresh(nonce) {
            return Err(Refused::Replay);
        }
        let mut plaintext = vec![0; ciphertext.len()];
        let length = self
            .transport
            .read_message(nonce, ciphertext, &mut plaintext)
            .map_err(|_| Refused::Forged)?;
        plaintext.truncate(length);
        // Only now: a forged nonce must not move the window.
        self.window.note(nonce);
        self.heard = self.heard.max(now);
        Ok(plaintext)
    }
}

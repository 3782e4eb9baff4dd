//! Somebody who speaks from the peer's address without being the peer: a node with another key,
//! cluster, name or release.
//!
//! A peer that is silent may be taken for dead, and a starting node then serves alone. One that
//! speaks, but cannot be understood, is alive for certain, and may be serving: to go on would put
//! the service's address on two hosts. The claim is not authenticated, so it decides nothing but
//! this one step, and only as long as no session with the true peer exists.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use control::Rejected;

/// Nodes without a session try to begin one several times a second.
const MEMORY: Duration = Duration::from_secs(1);

/// What was last heard of the stranger, if there is one.
#[derive(Debug, Default)]
pub struct Stranger {
    last: Option<(Instant, String)>,
}

impl Stranger {
    /// A datagram was refused; `from_peer`: it came from the peer's address.
    pub fn heard(&mut self, rejected: &Rejected, from_peer: bool, now: Instant) {
        let is_a_node = match rejected {
            Rejected::Version { .. }
            | Rejected::Cluster
            | Rejected::Key
            | Rejected::Name { .. } => true,
            Rejected::Garbage
            | Rejected::Replay
            | Rejected::TooLong
            | Rejected::UnknownSession
            | Rejected::Overload => false,
        };
        if is_a_node && from_peer {
            self.last = Some((now, rejected.to_string()));
        }
    }

    /// Why this node must not start to serve alone now, and what would mend it.
    pub fn forbids(&self, peer: IpAddr, now: Instant) -> Option<String> {
        let (at, why) = self.last.as_ref()?;
        (now.duration_since(*at) < MEMORY).then(|| {
            format!("a node at the peer's address {peer} is alive, but not our peer: {why}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_at_the_peers_address_forbids_and_only_for_a_while() {
        let (peer, now) = (IpAddr::from([10, 0, 0, 2]), Instant::now());
        let mut stranger = Stranger::default();
        stranger.heard(&Rejected::Garbage, true, now);
        stranger.heard(&Rejected::Key, false, now);
        assert_eq!(stranger.forbids(peer, now), None);
        stranger.heard(&Rejected::Key, true, now);
        let why = stranger.forbids(peer, now + MEMORY / 2).unwrap();
        assert!(why.contains("10.0.0.2") && why.contains("another key"), "{why}");
        assert_eq!(stranger.forbids(peer, now + MEMORY), None);
    }
}

//! Somebody who speaks from the peer's address without being the peer: a node with another key,
//! cluster, name or release.
//!
//! A peer that is silent may be taken for dead, and a starting node then serves alone. One that
//! speaks, but cannot be understood, is alive for certain, and may be serving: to go on would put
//! the service's address on two hosts. To end, on the other hand, may leave nobody: of two nodes
//! that start beside each other with different keys, each would end for the other's sake, again and
//! again. What decides must be known to both without a word understood:
//!
//! - Whoever serves answers for its service addresses on the service link. Beside such a stranger
//!   a node ends.
//! - Beside one that does not answer, the node with the higher address on the service link ends.
//!   The other one serves: the stranger, which hears it, ends or has ended.
//! - A stranger that is heard, but not on the service link, cannot be asked. Beside it a node ends.
//!
//! A stranger's claim is not authenticated, so it decides nothing but this one step, and only as
//! long as no session with the true peer exists.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cluster::Link;
use control::Rejected;

/// Nodes without a session try to begin one several times a second.
const MEMORY: Duration = Duration::from_secs(1);

/// What was last heard of the stranger, if there is one.
#[derive(Debug, Default)]
pub struct Stranger {
    last: Option<(Instant, String)>,
    on_service_link: Option<Instant>,
}

/// Whether a node may begin to serve alone.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No stranger is heard.
    Free,
    /// In spite of a stranger: who that is.
    FirstOfTwo(String),
    /// It must end: why, and what would mend it.
    Forbidden(String),
}

impl Stranger {
    /// A datagram was refused; `from_peer`: it came from the peer's address on that link.
    pub fn heard(&mut self, rejected: &Rejected, link: Link, from_peer: bool, now: Instant) {
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
            self.heard_otherwise(&rejected.to_string(), link, now);
        }
    }

    /// Somebody at the peer's address, perhaps the peer itself, says what cannot be acted on.
    pub fn heard_otherwise(&mut self, what: &str, link: Link, now: Instant) {
        self.last = Some((now, what.to_owned()));
        if link == Link::Service {
            self.on_service_link = Some(now);
        }
    }

    /// Judges when this node is about to serve alone. `own` and `peer` are the nodes' addresses on
    /// the service link; `held` asks that link whether anybody else answers for a service address,
    /// and takes its time.
    pub fn judge(
        &self,
        [own, peer]: [IpAddr; 2],
        now: Instant,
        held: impl FnOnce() -> Result<bool, hostnet::LinkError>,
    ) -> Verdict {
        let recent = |at: Instant| now.duration_since(at) < MEMORY;
        let Some((_, what)) = self.last.as_ref().filter(|(at, _)| recent(*at)) else {
            return Verdict::Free;
        };
        let who = format!("a node at the peer's address {peer} is alive, but not our peer: {what}");
        let why = if !self.on_service_link.is_some_and(recent) {
            "it is not heard on the service link, so it may serve unseen".to_owned()
        } else if peer < own {
            "it has the lower address, so it is the one to serve".to_owned()
        } else {
            match held() {
                Ok(false) => return Verdict::FirstOfTwo(who),
                Ok(true) => "a service address is answered for, so it serves".to_owned(),
                Err(error) => format!("whether it serves cannot be found out: {error}"),
            }
        };
        Verdict::Forbidden(format!("{who}; {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const HIGH: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn unasked() -> Result<bool, hostnet::LinkError> {
        panic!("there was no need to ask the link")
    }

    #[test]
    fn only_a_node_at_the_peers_address_forbids_and_only_for_a_while() {
        let (ends, now) = ([HIGH, LOW], Instant::now());
        let mut stranger = Stranger::default();
        stranger.heard(&Rejected::Garbage, Link::Service, true, now);
        stranger.heard(&Rejected::Key, Link::Service, false, now);
        assert_eq!(stranger.judge(ends, now, unasked), Verdict::Free);
        stranger.heard(&Rejected::Key, Link::Service, true, now);
        let Verdict::Forbidden(why) = stranger.judge(ends, now + MEMORY / 2, unasked) else {
            panic!("a stranger with the lower address goes first")
        };
        assert!(why.contains("10.0.0.1") && why.contains("another key"), "{why}");
        assert_eq!(stranger.judge(ends, now + MEMORY, unasked), Verdict::Free);
    }

    /// Whatever the two have heard of each other on the service link, one ends and one serves.
    #[test]
    fn of_two_starting_nodes_the_one_with_the_lower_address_serves() {
        let now = Instant::now();
        let mut stranger = Stranger::default();
        stranger.heard(&Rejected::Key, Link::Service, true, now);
        let (first, second) = ([LOW, HIGH], [HIGH, LOW]);
        assert!(matches!(stranger.judge(first, now, || Ok(false)), Verdict::FirstOfTwo(_)));
        assert!(matches!(stranger.judge(second, now, unasked), Verdict::Forbidden(_)));
        // But never beside one that serves.
        assert!(matches!(stranger.judge(first, now, || Ok(true)), Verdict::Forbidden(_)));
    }

    #[test]
    fn a_stranger_that_cannot_be_asked_is_left_alone() {
        let now = Instant::now();
        let mut stranger = Stranger::default();
        stranger.heard(&Rejected::Key, Link::Service, true, now);
        let later = now + 2 * MEMORY;
        stranger.heard(&Rejected::Key, Link::Cluster, true, later);
        for ends in [[LOW, HIGH], [HIGH, LOW]] {
            assert!(matches!(stranger.judge(ends, later, unasked), Verdict::Forbidden(_)));
        }
    }
}

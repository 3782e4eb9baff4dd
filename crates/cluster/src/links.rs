//! Health of the two links, each judged by itself.
//!
//! A link that goes silent while the peer is heard on the other one is a broken link, not a dead
//! peer. Both nodes must come to the same view, also of a cut that only one direction feels: so
//! a path counts as whole only if I hear the peer on it *and* the peer says that it hears me.
//! Getting worse shows at once; getting better must last, or a loose plug would move the relay
//! and the address to and fro.

use crate::event::Evidence;
use crate::message::{Heartbeat, Link, Nanos, ServiceLink};
use crate::notice::Notice;

/// One direction (peer to here) of one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    /// Not judged since the peer appeared.
    Untried,
    Up,
    Lost {
        /// Start of the present good spell.
        good_since: Option<Nanos>,
    },
}

#[derive(Debug, Clone)]
struct LinkState {
    carrier: bool,
    newest_seq: u64,
    heard_at: Option<Nanos>,
    health: Health,
}

/// What the rules need to know about time and the peer in one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub now: Nanos,
    /// This node has run without a gap since then.
    pub attentive_since: Nanos,
    pub detection: Nanos,
    pub heal_wait: Nanos,
}

#[derive(Debug)]
pub(crate) struct Links {
    cluster: LinkState,
    service: LinkState,
    /// The peer has been heard without a silence since then; `None` while it is silent.
    peer_since: Option<Nanos>,
    /// Last answer to a probe, while the service path is broken.
    evidence: Option<bool>,
    next_probe: Nanos,
    /// When a probe last found that this node may not be cut off: somebody answered, or nobody is
    /// known who could.
    answered_at: Option<Nanos>,
    /// When to ask that next while the peer is silent on both links.
    next_question: Nanos,
    /// First heartbeat in which the peer called its service link dead; `None` while it does not.
    peer_dead_seq: Option<u64>,
    verdict: ServiceLink,
    /// While the verdict is `Dead`: the link has looked alive since then.
    revived_since: Option<Nanos>,
}

impl LinkState {
    fn new() -> LinkState {
        LinkState { carrier: true, newest_seq: 0, heard_at: None, health: Health::Untried }
    }
}

impl Links {
    pub(crate) fn new() -> Links {
        Links {
            cluster: LinkState::new(),
            service: LinkState::new(),
            peer_since: None,
            evidence: None,
            next_probe: 0,
            answered_at: None,
            next_question: 0,
            peer_dead_seq: None,
            verdict: ServiceLink::Unknown,
            revived_since: None,
        }
    }

    fn get(&mut self, link: Link) -> &mut LinkState {
        match link {
            Link::Cluster => &mut self.cluster,
            Link::Service => &mut self.service,
        }
    }

    /// A heartbeat with this number came over `link`.
    pub(crate) fn heard(&mut self, link: Link, seq: u64, now: Nanos) {
        let state = self.get(link);
        // A copy that was overtaken proves nothing about the present.
        if seq > state.newest_seq {
            state.newest_seq = seq;
            state.heard_at = Some(now);
        }
    }

    /// The peer's numbers start again.
    pub(crate) fn peer_restarted(&mut self) {
        self.cluster.newest_seq = 0;
        self.service.newest_seq = 0;
        self.peer_dead_seq = None;
    }

    /// The peer is heard again after a silence: judge the links afresh.
    pub(crate) fn peer_returned(&mut self, now: Nanos) {
        self.peer_since = Some(now);
        for state in [&mut self.cluster, &mut self.service] {
            if state.carrier {
                state.health = Health::Untried;
            }
        }
    }

    /// The peer is silent on both: no link can be blamed.
    pub(crate) fn peer_silent(&mut self) {
        self.peer_since = None;
    }

    pub(crate) fn carrier(&mut self, link: Link, up: bool) {
        self.get(link).carrier = up;
        if link == Link::Service {
            self.evidence = None;
            self.answered_at = None;
            self.next_probe = 0;
        }
    }

    /// The answer to a probe.
    pub(crate) fn evidence(&mut self, evidence: Evidence, now: Nanos) {
        if evidence != Evidence::Silent {
            self.answered_at = Some(now);
        }
        // Of a node that hears nobody at all no link is judged.
        if evidence != Evidence::NobodyToAsk && self.peer_since.is_some() {
            self.evidence = Some(evidence == Evidence::Alive);
        }
    }

    /// When a probe last gave no reason to think that this node is cut off.
    pub(crate) fn answered_at(&self) -> Option<Nanos> {
        self.answered_at
    }

    /// Asks now, although the peer is silent on both links, unless it was asked a moment ago.
    pub(crate) fn ask(&mut self, now: Nanos, again_after: Nanos) -> bool {
        let ask = self.service.carrier && now >= self.next_question;
        if ask {
            self.next_question = now + again_after;
        }
        ask
    }

    pub(crate) fn next_question(&self) -> Nanos {
        self.next_question
    }

    /// Whether this node has found nothing wrong with hearing the peer on `link`.
    pub(crate) fn hears(&self, link: Link) -> bool {
        let state = match link {
            Link::Cluster => &self.cluster,
            Link::Service => &self.service,
        };
        !matches!(state.health, Health::Lost { .. })
    }

    /// Whether neither side has found the link broken.
    pub(crate) fn usable(&self, link: Link, peer: Option<&Heartbeat>) -> bool {
        let peer_hears = peer.is_some_and(|msg| match link {
            Link::Cluster => msg.hears_cluster,
            Link::Service => msg.hears_service,
        });
        self.hears(link) && peer_hears
    }

    /// Whether heartbeats are known to pass both ways.
    pub(crate) fn path(&self, link: Link, peer: Option<&Heartbeat>) -> bool {
        let up = match link {
            Link::Cluster => self.cluster.health == Health::Up,
            Link::Service => self.service.health == Health::Up,
        };
        up && self.usable(link, peer)
    }

    pub(crate) fn verdict(&self) -> ServiceLink {
        self.verdict
    }

    /// Judges both links. Returns what changed, and whether the service link should be probed.
    pub(crate) fn judge(&mut self, m: Moment, peer: Option<&Heartbeat>) -> (Vec<Notice>, bool) {
        let mut notices = Vec::new();
        for link in Link::ALL {
            let peer_since = self.peer_since;
            let state = self.get(link);
            let before = state.health;
            state.health = state.judged(m, peer_since);
            let lost = |h: Health| matches!(h, Health::Lost { .. });
            if lost(state.health) && !lost(before) {
                notices.push(Notice::LinkLost { link });
            } else if lost(before) && !lost(state.health) {
                notices.push(Notice::LinkReturned { link });
            }
        }
        let probe = self.judge_service(m, peer, &mut notices);
        (notices, probe)
    }

    fn judge_service(
        &mut self,
        m: Moment,
        peer: Option<&Heartbeat>,
        notices: &mut Vec<Notice>,
    ) -> bool {
        self.peer_dead_seq = peer
            .filter(|msg| msg.service_link == ServiceLink::Dead)
            .map(|msg| self.peer_dead_seq.unwrap_or(msg.seq));
        // A peer that has lost the link tells so over the other one, before its silence shows
        // here. From then on only others prove that the fault is not on this side.
        let contradicted = self.peer_dead_seq.is_some_and(|seq| self.service.newest_seq < seq);
        let path = self.path(Link::Service, peer) && !contradicted;
        if path {
            self.evidence = None;
        }
        let seen = match (self.service.carrier, path, self.evidence) {
            (false, _, _) => ServiceLink::Dead,
            (true, true, _) | (true, _, Some(true)) => ServiceLink::Alive,
            (true, false, Some(false)) => ServiceLink::Dead,
            (true, false, None) => ServiceLink::Unknown,
        };
        let next = if self.verdict != ServiceLink::Dead {
            seen
        } else if seen == ServiceLink::Alive {
            let since = *self.revived_since.get_or_insert(m.now);
            if m.now - since >= m.heal_wait { seen } else { ServiceLink::Dead }
        } else {
            self.revived_since = None;
            ServiceLink::Dead
        };
        if next != self.verdict {
            self.verdict = next;
            self.revived_since = None;
            notices.push(Notice::ServiceLinkIs { verdict: next });
        }
        let settled = self.service.health != Health::Untried || self.verdict == ServiceLink::Dead;
        let probe = self.service.carrier && !path && settled && m.now >= self.next_probe;
        let probe = probe && self.peer_since.is_some();
        if probe {
            self.next_probe = m.now + m.detection;
        }
        probe
    }
}

impl LinkState {
    fn judged(&self, m: Moment, peer_since: Option<Nanos>) -> Health {
        let heard = self.carrier && self.heard_at.is_some_and(|at| m.now - at < m.detection);
        // Silence counts only while both this node and the peer were there to be heard.
        let blamed = peer_since.is_some_and(|since| {
            let from = since.max(m.attentive_since).max(self.heard_at.unwrap_or(0));
            m.now - from >= m.detection
        });
        match self.health {
            Health::Untried | Health::Up if !self.carrier || blamed => {
                Health::Lost { good_since: None }
            }
            Health::Untried if heard => Health::Up,
            Health::Untried | Health::Up => self.health,
            Health::Lost { .. } if !heard => Health::Lost { good_since: None },
            Health::Lost { good_since } => {
                let since = good_since.unwrap_or(m.now);
                if m.now - since >= m.heal_wait {
                    Health::Up
                } else {
                    Health::Lost { good_since: Some(since) }
                }
            }
        }
    }
}

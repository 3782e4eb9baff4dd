//! Rules of a node that does not serve: who it follows, when it takes over.
//!
//! A node without part in an epoch (*idle*: starting, following, fenced) may begin to serve in
//! two ways only. Either the peer is idle as well, has said so knowing that this node is, and
//! ranks lower: each of the two then computes the same winner. Or nobody was heard for the alone
//! wait, and the arbiter agrees.
//!
//! An *armed* backup may besides promote: after the detection time of silence, or on the
//! primary's own word that it is fenced in this epoch, or when the primary's place is taken by
//! a new incarnation, which by its existence proves the old one gone.

use crate::core::{Core, State};
use crate::event::Claim;
use crate::message::{Epoch, Heartbeat, Role, ServiceLink};
use crate::notice::{PromoteReason, SimplexReason};

impl Core {
    /// Applies the first rule that fits. True if the state changed.
    pub(crate) fn decide(&mut self) -> bool {
        if self.settle_rivalry() {
            return true;
        }
        match self.state {
            State::Starting | State::Following | State::Fenced => self.decide_idle(),
            State::Armed { .. } => self.decide_armed(),
            State::Simplex => self.decide_simplex(),
            State::Duplex { .. } => self.decide_duplex(),
        }
    }

    fn decide_idle(&mut self) -> bool {
        if let Some(msg) = self.heard().cloned() {
            return if msg.is_primary() { self.follow(&msg) } else { self.rank_against(&msg) };
        }
        if self.leaving || !self.is_alone() || !self.silence_is_the_peers() {
            return false;
        }
        // The peer may have begun one epoch unheard of; this one must lie above it.
        let next = if self.epoch == Epoch(0) { 1 } else { 2 };
        match self.obtain(Claim::Alone, self.epoch.plus(next)) {
            Some(epoch) => self.become_simplex(epoch, SimplexReason::Alone, false),
            None => false,
        }
    }

    /// The peer serves: be its backup.
    fn follow(&mut self, msg: &Heartbeat) -> bool {
        let following = self.state == State::Following;
        if msg.epoch < self.epoch {
            // It takes a number above this node's as soon as it hears of it.
            false
        } else if following && msg.epoch > self.epoch && self.is_enrolled_by(msg) {
            self.arm(msg)
        } else if !following || msg.epoch > self.epoch {
            self.join(msg.epoch)
        } else {
            false
        }
    }

    fn is_enrolled_by(&self, msg: &Heartbeat) -> bool {
        msg.enrolled == Some(self.incarnation())
            && self.ready
            && !self.leaving
            && self.links.verdict() != ServiceLink::Dead
    }

    /// Neither serves: the higher rank begins.
    fn rank_against(&mut self, msg: &Heartbeat) -> bool {
        if !msg.is_idle() || !self.is_mutual(msg) || self.leaving {
            return false;
        }
        let dead = |verdict| verdict == ServiceLink::Dead;
        let mine = (
            !dead(self.links.verdict()),
            self.epoch,
            self.config.prefers_primary,
            !self.is_named_higher(),
        );
        let theirs =
            (!dead(msg.service_link), msg.epoch, msg.prefers_primary, self.is_named_higher());
        if !msg.leaving && mine < theirs {
            return false;
        }
        // A peer that is still idle in this very epoch has not served since: what this node
        // holds is up to date. A life that came to this epoch later proves nothing: it may have
        // served alone under a lower number, and given way to an old statement of this node.
        let current = self.state == State::Fenced
            && self.follower == Some(msg.incarnation)
            && msg.role == (Role::Backup { armed: false })
            && msg.epoch == self.epoch;
        let epoch = self.epoch.max(msg.epoch).plus(1);
        self.become_simplex(epoch, SimplexReason::RankedFirst, current)
    }

    /// Ties go to the lower name.
    pub(crate) fn is_named_higher(&self) -> bool {
        self.config.name > self.config.peer
    }

    fn decide_armed(&mut self) -> bool {
        let State::Armed { primary } = self.state else { unreachable!("called when armed") };
        if let Some(msg) = self.heard().cloned() {
            let same = msg.incarnation == primary;
            if msg.is_primary() {
                let mine =
                    same && msg.epoch == self.epoch && msg.enrolled == Some(self.incarnation());
                if !mine {
                    // The peer serves without this node: what was logged is out of date.
                    return self.disarm();
                }
            } else if msg.epoch > self.epoch {
                // It, or an earlier life of it, went on alone.
                return self.disarm();
            } else if msg.is_idle() && self.is_fresh(&msg) {
                if same && msg.role == Role::Fenced && msg.epoch == self.epoch {
                    return self.promote(PromoteReason::HandedOver);
                }
                if !same {
                    return if self.doubt {
                        self.disarm()
                    } else {
                        self.promote(PromoteReason::PrimaryRestarted)
                    };
                }
            }
            let useless = self.is_cut_off_alone(&msg);
            if useless || self.leaving {
                return self.resign();
            }
            return false;
        }
        if self.leaving {
            return self.resign();
        }
        if !self.is_silent() {
            // Suspected before a pause of this node: judge afresh.
            return false;
        }
        if !self.may_claim_by_lease() {
            return self.is_alone() && self.disarm();
        }
        if !self.silence_is_the_peers() {
            return false;
        }
        let heard_at = self.peer.as_ref().expect("an armed backup has heard its primary").heard_at;
        assert!(self.now >= heard_at + self.config.detection, "promise to the primary still runs");
        match self.obtain(Claim::Lease, self.epoch.plus(1)) {
            Some(epoch) => self.promote_in(epoch, PromoteReason::PrimarySilent),
            None => false,
        }
    }
}

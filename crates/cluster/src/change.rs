//! The transitions. Each leaves node, kernel tables, lease and epoch consistent, and always
//! returns true so that a rule can end with it.

use crate::core::{Core, State};
use crate::event::Action;
use crate::message::{Epoch, Heartbeat};
use crate::notice::{HandoverReason, Notice, PromoteReason, SimplexReason};

impl Core {
    fn enter(&mut self, state: State, epoch: Epoch) {
        assert!(epoch >= self.epoch, "epoch would step back from {:?} to {epoch:?}", self.epoch);
        self.state = state;
        self.epoch = epoch;
        self.out.push(Action::SetRole { role: self.role(), epoch });
    }

    fn write_lease(&mut self, until: u64) {
        self.lease = until;
        self.out.push(Action::Lease { until });
    }

    fn close_fence(&mut self) {
        self.lease = 0;
        self.out.push(Action::Fence);
    }

    /// Backup of `epoch`, without part in it.
    pub(crate) fn join(&mut self, epoch: Epoch) -> bool {
        let was = self.state;
        if matches!(was, State::Simplex | State::Duplex { .. }) {
            self.close_fence();
        }
        if was != State::Following {
            self.out.push(Action::DiscardFlows);
        }
        self.enter(State::Following, epoch);
        self.report(Notice::Joined { epoch });
        true
    }

    /// Backup with full part in the epoch of `msg`.
    pub(crate) fn arm(&mut self, msg: &Heartbeat) -> bool {
        assert_eq!(self.state, State::Following, "only a backup without old flows may arm itself");
        assert!(msg.epoch > self.epoch, "a backup may not take part twice in one epoch");
        let answers_wake = msg.echo.is_some_and(|echo| echo.seq >= self.wake_seq);
        self.doubt = !(answers_wake && self.is_fresh(msg));
        self.enter(State::Armed { primary: msg.incarnation }, msg.epoch);
        self.report(Notice::Armed { epoch: msg.epoch });
        true
    }

    /// Gives up the part in the epoch because the flows logged are, or may be, out of date.
    pub(crate) fn disarm(&mut self) -> bool {
        self.out.push(Action::DiscardFlows);
        self.enter(State::Following, self.epoch);
        true
    }

    /// Gives up the part in the epoch of free will.
    pub(crate) fn resign(&mut self) -> bool {
        self.report(Notice::Resigned { epoch: self.epoch });
        self.disarm()
    }

    /// Takes the flows over in the next epoch.
    pub(crate) fn promote(&mut self, reason: PromoteReason) -> bool {
        self.promote_in(self.epoch.plus(1), reason)
    }

    /// Takes the flows over.
    pub(crate) fn promote_in(&mut self, epoch: Epoch, reason: PromoteReason) -> bool {
        assert!(matches!(self.state, State::Armed { .. }), "only an armed backup holds flows");
        assert!(epoch > self.epoch, "a promotion begins a new epoch");
        let silent_for = self.silence();
        self.enter(State::Simplex, epoch);
        self.write_lease(self.now + self.config.solo_lease());
        self.out.push(Action::Promote { epoch, reason });
        self.report(Notice::Promoted { epoch, reason, silent_for });
        self.report(Notice::Simplex { epoch, reason: SimplexReason::Promoted });
        true
    }

    /// Serves alone. `flows_current`: nobody else can have served since this node last did.
    pub(crate) fn become_simplex(
        &mut self,
        epoch: Epoch,
        reason: SimplexReason,
        flows_current: bool,
    ) -> bool {
        assert!(epoch > self.epoch, "serving alone begins a new epoch");
        if !flows_current {
            self.out.push(Action::DiscardFlows);
        }
        self.enter(State::Simplex, epoch);
        // Raising the number of an epoch is no reason to serve longer unattended.
        if reason != SimplexReason::EpochRaised {
            self.write_lease(self.now + self.config.solo_lease());
        }
        self.report(Notice::Simplex { epoch, reason });
        true
    }

    /// Serves under the leases of the peer that sent `msg`.
    pub(crate) fn become_duplex(&mut self, msg: &Heartbeat) -> bool {
        assert_eq!(self.state, State::Simplex, "a backup is added to a primary that is alone");
        let backup = msg.incarnation;
        // The peer will promise not to promote for a detection time after it first hears of
        // this epoch, which is after now. So this much needs no grant, and no more is covered.
        let until = self.lease.min(self.now + self.config.lease());
        self.write_lease(until);
        self.doubt = msg.echo.is_none_or(|echo| echo.seq < self.wake_seq);
        self.enter(State::Duplex { backup, seen_armed: false }, self.epoch.plus(1));
        self.report(Notice::Duplex { epoch: self.epoch, backup });
        true
    }

    /// Stops emitting in this epoch, for good.
    pub(crate) fn fence(&mut self) -> bool {
        self.close_fence();
        self.enter(State::Fenced, self.epoch);
        true
    }

    /// Stops emitting so that the armed backup takes over at once.
    pub(crate) fn hand_over(&mut self, reason: HandoverReason) -> bool {
        assert!(matches!(self.state, State::Duplex { .. }), "only an armed backup can take over");
        self.fence();
        self.report(Notice::HandingOver { epoch: self.epoch, reason });
        true
    }

    /// The arbiter gave the next epoch to somebody else.
    pub(crate) fn lost_the_epoch(&mut self) {
        match self.state {
            State::Armed { .. } => self.disarm(),
            State::Duplex { .. } => self.fence(),
            _ => false,
        };
    }
}

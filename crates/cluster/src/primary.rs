//! Rules of a node that serves: when it gains or loses its backup, when it gives way.

use crate::core::{Core, State};
use crate::event::{Action, Claim};
use crate::message::{Heartbeat, Role, ServiceLink};
use crate::notice::{HandoverReason, Notice, Refusal, SimplexReason};

impl Core {
    /// Two primaries: the higher epoch stays, then the lower name.
    pub(crate) fn settle_rivalry(&mut self) -> bool {
        let serving = matches!(self.state, State::Simplex | State::Duplex { .. });
        let Some(msg) = self.heard().filter(|msg| serving && msg.is_primary()) else {
            return false;
        };
        let (theirs, incarnation) = (msg.epoch, msg.incarnation);
        // A duplex primary emits under our own leases only, and the last one ran out before we
        // began a later epoch: it was away and does not know it yet.
        let was_leased = msg.role == Role::Primary { duplex: true }
            && msg.enrolled == Some(self.incarnation)
            && theirs < self.epoch;
        let yielded = theirs > self.epoch || (theirs == self.epoch && self.is_named_higher());
        let (mine, rival) = (self.epoch, Some((incarnation, theirs)));
        if self.lease <= self.now || was_leased {
            // Only one of the two could emit: the ordinary end of a primary that was away.
            if yielded {
                self.report(Notice::Superseded { mine, theirs });
            }
        } else if yielded || self.rival_reported != rival {
            self.rival_reported = rival;
            self.report(Notice::TwoPrimaries { mine, theirs, yielded });
        }
        yielded && self.join(theirs)
    }

    pub(crate) fn decide_simplex(&mut self) -> bool {
        if self.now >= self.lease {
            // The peer may have begun to serve during the pause.
            self.report(Notice::SoloLeaseLost { epoch: self.epoch });
            return self.fence();
        }
        if self.leaving {
            return self.fence();
        }
        let Some(msg) = self.heard().cloned() else { return false };
        if !msg.is_idle() || !self.is_mutual(&msg) {
            return false;
        }
        if msg.epoch > self.epoch {
            return self.become_simplex(msg.epoch.plus(1), SimplexReason::EpochRaised, true);
        }
        let willing = msg.role == (Role::Backup { armed: false })
            && msg.epoch == self.epoch
            && msg.service_ready
            && msg.service_link != ServiceLink::Dead
            && !msg.leaving;
        willing && self.become_duplex(&msg)
    }

    pub(crate) fn decide_duplex(&mut self) -> bool {
        let State::Duplex { backup, seen_armed } = self.state else {
            unreachable!("called when duplex")
        };
        if let Some(msg) = self.heard().cloned() {
            let same = msg.incarnation == backup;
            let here = same && msg.epoch == self.epoch;
            if here && msg.role == (Role::Backup { armed: true }) && !seen_armed {
                self.state = State::Duplex { backup, seen_armed: true };
                return true;
            }
            if msg.is_idle() && self.is_fresh(&msg) {
                if msg.epoch > self.epoch || (!same && self.doubt) {
                    // The backup took over while this node was away, and has stopped since.
                    self.report(Notice::Superseded { mine: self.epoch, theirs: msg.epoch });
                    self.out.push(Action::DiscardFlows);
                    return self.fence();
                }
                if !same {
                    let next = self.epoch.plus(1);
                    return self.become_simplex(next, SimplexReason::BackupRestarted, true);
                }
                if here {
                    let next = self.epoch.plus(1);
                    return self.become_simplex(next, SimplexReason::BackupResigned, true);
                }
            }
            return self.hand_over_if_better(&msg);
        }
        let (claim, over, ahead, reason) = if self.may_claim_by_lease() {
            (Claim::Lease, self.is_silent(), 1, SimplexReason::BackupSilent)
        } else {
            // The backup may have promoted, and be gone or frozen since.
            (Claim::Alone, self.is_alone(), 2, SimplexReason::Alone)
        };
        if !over || !self.silence_is_the_peers() {
            return false;
        }
        match self.obtain(claim, self.epoch.plus(ahead)) {
            Some(epoch) => self.become_simplex(epoch, reason, claim == Claim::Lease),
            None => false,
        }
    }

    fn hand_over_if_better(&mut self, msg: &Heartbeat) -> bool {
        if self.leaving && self.armed_backup().is_ok() {
            return self.hand_over(HandoverReason::Shutdown);
        }
        if self.able_backup().is_err() {
            return false;
        }
        if self.is_cut_off_alone(msg) {
            return self.hand_over(HandoverReason::ServiceLinkDead);
        }
        self.servers_have_failed() && self.hand_over(HandoverReason::ServiceNotReady)
    }

    pub(crate) fn server_crashed(&mut self) {
        self.ready = false;
        self.was_ready = true;
        match (self.state, self.able_backup()) {
            (State::Duplex { .. }, Ok(())) => {
                self.hand_over(HandoverReason::ServerCrashed);
            }
            (State::Duplex { .. } | State::Simplex, refusal) => {
                let reason = refusal.err().unwrap_or(Refusal::NoBackup);
                self.report(Notice::ServerCrashKept { reason });
                // The kernel closed the fence on suspicion; the other connections go on.
                self.out.push(Action::Lease { until: self.lease });
            }
            // A backup whose server is down still keeps the log: see the crate's notes.
            _ => {}
        }
    }

    pub(crate) fn switchover_requested(&mut self, reason: HandoverReason) {
        match self.may_switch_over() {
            Ok(()) => {
                self.hand_over(reason);
            }
            Err(reason) => self.report(Notice::SwitchoverRefused { reason }),
        }
    }

    /// Whether a switchover would not be refused, as far as this node knew at the last step.
    ///
    /// # Errors
    /// Why it would be.
    pub fn may_switch_over(&self) -> Result<(), Refusal> {
        match self.state {
            State::Duplex { .. } => self.able_backup(),
            State::Simplex => Err(Refusal::NoBackup),
            _ => Err(Refusal::NotPrimary),
        }
    }

    /// Whether an armed backup is there to hear that this node is fenced.
    fn armed_backup(&self) -> Result<&Heartbeat, Refusal> {
        let State::Duplex { backup, .. } = self.state else { return Err(Refusal::NoBackup) };
        self.heard()
            .filter(|msg| msg.incarnation == backup && msg.epoch == self.epoch)
            .filter(|msg| msg.role == (Role::Backup { armed: true }) && self.is_fresh(msg))
            .ok_or(Refusal::NoBackup)
    }

    /// Whether the backup can serve right now.
    fn able_backup(&self) -> Result<(), Refusal> {
        let msg = self.armed_backup()?;
        if msg.leaving {
            Err(Refusal::BackupLeaving)
        } else if !msg.service_ready {
            Err(Refusal::BackupNotReady)
        } else if msg.service_link == ServiceLink::Dead {
            Err(Refusal::BackupServiceLinkDead)
        } else {
            Ok(())
        }
    }
}

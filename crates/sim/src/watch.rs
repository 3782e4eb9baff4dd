//! What must hold at every instant, judged from the kernels alone.
//!
//! A fence closes by itself but never opens by itself: between two steps the set of hosts that
//! may emit only shrinks. So to look after every action is to look at every instant, fences that
//! close between steps included.

use cluster::{Epoch, Nanos, Role};

use crate::host::Host;

/// What a run can show to be wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Invariant 3.
    #[error("both nodes may emit: a in epoch {0:?}, b in epoch {1:?}")]
    TwoEmitters(Epoch, Epoch),
    /// Epochs of one life strictly increase with each period of service.
    #[error("node {node} went from epoch {from:?} back to {to:?}")]
    EpochWentBack {
        /// 0 or 1.
        node: usize,
        /// Old epoch.
        from: Epoch,
        /// New epoch.
        to: Epoch,
    },
    /// Invariant 6.
    #[error("node {0} serves flows that have moved on elsewhere since it held them")]
    StaleFlows(usize),
    /// Faults ended, the pair did not recover.
    #[error("not settled {after_ms} ms after the last fault: {state}")]
    NotSettled {
        /// How long that is.
        after_ms: u64,
        /// What is there instead.
        state: String,
    },
    /// A clean death of the primary's host, and nobody served in time.
    #[error("the backup served {late_us} µs after the detection time")]
    LateFailover {
        /// Beyond detection.
        late_us: i64,
    },
    /// An assertion of the core failed.
    #[error("panic: {0}")]
    Panic(String),
}

/// Judges the two hosts. To be called after every action that reached a kernel.
pub fn watch(hosts: &mut [Host; 2], now: Nanos) -> Result<(), Violation> {
    let emits = [hosts[0].may_emit(now), hosts[1].may_emit(now)];
    if emits == [true, true] {
        return Err(Violation::TwoEmitters(hosts[0].kernel.epoch, hosts[1].kernel.epoch));
    }
    for n in [0, 1].into_iter().filter(|&n| emits[n]) {
        if hosts[n].flows.held && hosts[n].flows.stale {
            return Err(Violation::StaleFlows(n));
        }
        let epoch = hosts[n].kernel.epoch;
        hosts[n].flows.held = true;
        hosts[n].flows.emitted = Some(epoch);
        let other = &mut hosts[1 - n];
        let logs_along =
            other.kernel.role == Role::Backup { armed: true } && other.kernel.epoch == epoch;
        other.flows.stale |= other.flows.held && !logs_along;
    }
    Ok(())
}

/// The kernel of node `n` is about to take this role.
pub fn watch_role(
    hosts: &mut [Host; 2],
    n: usize,
    role: Role,
    epoch: Epoch,
) -> Result<(), Violation> {
    let from = hosts[n].kernel.epoch;
    let begins = matches!(role, Role::Primary { .. });
    if epoch < from || (begins && epoch == from) {
        return Err(Violation::EpochWentBack { node: n, from, to: epoch });
    }
    if role == (Role::Backup { armed: true }) {
        // From here on it logs what the primary of this epoch does. If that one has gone on to
        // a later epoch already, the log misses something.
        let missed = hosts[1 - n].flows.emitted.is_some_and(|emitted| emitted > epoch);
        hosts[n].flows.held = true;
        hosts[n].flows.stale |= missed;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;
    use crate::setup::{Sabotage, Setup, hosts};

    #[test]
    fn a_kernel_may_not_go_back_nor_begin_to_serve_in_the_epoch_it_is_in() {
        let setup = Setup { arbiter: cluster::ArbiterKind::None, sabotage: Sabotage::None };
        let mut hosts = hosts(setup, &mut Dice::new(1));
        hosts[0].kernel.epoch = Epoch(5);
        let primary = Role::Primary { duplex: false };
        let mut allows = |role, epoch| watch_role(&mut hosts, 0, role, Epoch(epoch)).is_ok();
        assert!(allows(primary, 6) && !allows(primary, 5) && !allows(primary, 4));
        assert!(allows(Role::Fenced, 5) && !allows(Role::Fenced, 4));
    }
}

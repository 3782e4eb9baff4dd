//! The constants of one run, drawn from its seed.

use cluster::{ArbiterKind, Config, Nanos};

use crate::clock::Clock;
use crate::dice::Dice;
use crate::host::Host;

const MS: Nanos = 1_000_000;

/// A bug put into the pair on purpose: the checks must find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sabotage {
    /// The real thing.
    #[default]
    None,
    /// The kernel is told never to close the fence.
    EndlessLease,
    /// Node b takes a third of the silence for death: it promotes before the lease ran out.
    HastyBackup,
    /// What should be forgotten is kept.
    KeepsFlows,
    /// The nodes do not ask the arbiter.
    IgnoresArbiter,
    /// The arbiter takes a dead daemon for a dead host, whose kernel may still emit.
    HastyArbiter,
    /// Nobody ever answers for the service address.
    NoAddress,
    /// A frozen daemon's deadlines count from when it wakes.
    RelativeLease,
}

/// Which pair to simulate.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// `None`: fail-stop holds. `External`: any loss and any partition.
    pub arbiter: ArbiterKind,
    /// `None`, unless the simulator itself is tested.
    pub sabotage: Sabotage,
}

/// The two hosts of a run.
pub fn hosts(setup: Setup, dice: &mut Dice) -> [Host; 2] {
    let detection = dice.pick(&[20, 35, 100, 100, 100, 1_000]) * MS;
    let startup_wait = detection * dice.pick(&[1, 5, 10, 30]);
    let mut host = |name: &str, peer: &str| {
        let mut config = Config::new(name, peer);
        config.detection = detection;
        config.startup_wait = startup_wait;
        config.arbiter = setup.arbiter;
        config.prefers_primary = dice.chance(300);
        match setup.sabotage {
            Sabotage::HastyBackup if name == "b" => config.detection = (detection / 3).max(20 * MS),
            Sabotage::IgnoresArbiter => config.arbiter = ArbiterKind::None,
            _ => {}
        }
        let drift_ppm = dice.pick(&[-200, 0, 200]);
        Host::new(config, Clock::new(dice.below(1 << 50), drift_ppm))
    };
    [host("a", "b"), host("b", "a")]
}

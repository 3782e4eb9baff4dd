//! What an operator sets, and the times that follow from it.
//!
//! Every safety argument of this crate is an inequality between the times below, so they are
//! computed in one place. `d` is the drift of one clock, `D` the detection time:
//!
//! - lease `L = D · (1 − d)/(1 + d) − q`: a lease of `L` on one clock ends, and a queue of `q`
//!   behind the fence has run empty, before `D` has passed on any other clock. So a backup that
//!   waits `D` after a heartbeat loses no time to the lease.
//! - solo lease: how long the kernel of a primary that serves alone goes on without its daemon.
//! - alone wait `≥ solo lease + 2·D`: how long a node without standing waits before it serves.
//!   Longer than any kernel can go on whose daemon is dead or frozen.

use std::fmt;

use crate::message::Nanos;

const MS: Nanos = 1_000_000;

/// Who decides when both links are silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArbiterKind {
    /// Nobody: both links silent is taken for death (fail-stop), as the papers do.
    None,
    /// An outside party, asked by `Action::AskArbiter`.
    External,
}

/// Settings of one node. The two nodes must agree on all but the names and `prefers_primary`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Name of this node. Of two equals the lower name serves.
    pub name: String,
    /// Name of the peer.
    pub peer: String,
    /// Serves first among equals, before the name.
    pub prefers_primary: bool,
    /// Silence on both links that counts as death: 20 ms to 10 s, default 100 ms.
    pub detection: Nanos,
    /// How long a node that hears nobody waits before it serves alone; default 3 s.
    pub startup_wait: Nanos,
    /// How long a segment that the fence let out may still wait in the device's queue; at most half
    /// of the detection time, default a tenth of it.
    pub queue: Option<Nanos>,
    /// Largest error of one clock's rate, in parts per million; default 200.
    pub drift_ppm: u32,
    /// Who decides when both links are silent; default `None`.
    pub arbiter: ArbiterKind,
    /// Highest epoch this node remembers from an earlier life; default 0. With an external
    /// arbiter it must be remembered, written down before a role is carried out: after a cut in
    /// one direction it is how the peer learns that a life it missed has served.
    pub last_epoch: crate::message::Epoch,
}

/// A setting that cannot work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigError {
    /// The two names are equal or one is empty.
    Names(String),
    /// Detection time out of bounds.
    Detection(Nanos),
    /// Start-up wait out of bounds.
    StartupWait(Nanos),
    /// Queue out of bounds.
    Queue(Nanos),
    /// Drift out of bounds.
    Drift(u32),
    /// Remembered epoch out of bounds.
    LastEpoch(u64),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Names(name) => {
                write!(f, "node and peer are both named {name:?}: give each its own name")
            }
            ConfigError::Detection(ns) => {
                write!(f, "detection time of {} ms is out of bounds: choose 20 ms to 10 s", ns / MS)
            }
            ConfigError::StartupWait(ns) => write!(
                f,
                "start-up wait of {} ms is out of bounds: choose the detection time to 1 hour",
                ns / MS
            ),
            ConfigError::Queue(ns) => write!(
                f,
                "a queue of {} ms is out of bounds: choose at most half of the detection time",
                ns / MS
            ),
            ConfigError::Drift(ppm) => {
                write!(f, "clock drift of {ppm} ppm is out of bounds: choose at most 10000")
            }
            ConfigError::LastEpoch(epoch) => {
                write!(f, "remembered epoch {epoch} is out of bounds: remove the state file")
            }
        }
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Defaults for a node and its peer.
    pub fn new(name: impl Into<String>, peer: impl Into<String>) -> Config {
        Config {
            name: name.into(),
            peer: peer.into(),
            prefers_primary: false,
            detection: 100 * MS,
            startup_wait: 3_000 * MS,
            queue: None,
            drift_ppm: 200,
            arbiter: ArbiterKind::None,
            last_epoch: crate::message::Epoch(0),
        }
    }

    /// Checks the bounds.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.name == self.peer || self.name.is_empty() || self.peer.is_empty() {
            return Err(ConfigError::Names(self.name.clone()));
        }
        if !(20 * MS..=10_000 * MS).contains(&self.detection) {
            return Err(ConfigError::Detection(self.detection));
        }
        if !(self.detection..=3_600_000 * MS).contains(&self.startup_wait) {
            return Err(ConfigError::StartupWait(self.startup_wait));
        }
        if self.queue() > self.detection / 2 {
            return Err(ConfigError::Queue(self.queue()));
        }
        if self.drift_ppm > 10_000 {
            return Err(ConfigError::Drift(self.drift_ppm));
        }
        if self.last_epoch > crate::message::Epoch::MAX_HEARD {
            return Err(ConfigError::LastEpoch(self.last_epoch.0));
        }
        Ok(())
    }

    /// Time between two heartbeats.
    pub fn heartbeat(&self) -> Nanos {
        (self.detection / 5).max(4 * MS)
    }

    /// What [`Self::queue`] is, or is by default.
    pub fn queue(&self) -> Nanos {
        self.queue.unwrap_or(self.detection / 10)
    }

    /// Length of a granted lease on the primary's clock: it has ended, and the queue behind the
    /// fence is empty, in real time, before the detection time has passed on the backup's clock.
    pub fn lease(&self) -> Nanos {
        shrink(self.detection, self.drift_ppm).saturating_sub(self.queue())
    }

    /// How long the fence of a primary that serves alone stays open without its daemon.
    pub fn solo_lease(&self) -> Nanos {
        shrink((self.startup_wait / 3 * 2).max(2 * self.detection), self.drift_ppm)
    }

    /// Silence after which a node without standing may serve alone.
    pub fn alone_wait(&self) -> Nanos {
        let solo = (self.startup_wait / 3 * 2).max(2 * self.detection);
        self.startup_wait.max(solo + 2 * self.detection)
    }

    /// Silence that no living peer keeps, and that leaves time to ask others before it is acted on.
    pub(crate) fn telling_silence(&self) -> Nanos {
        self.detection / 10 * 7
    }

    /// How long after a mended link a living peer is heard: a heartbeat's interval and a journey.
    pub(crate) fn listen(&self) -> Nanos {
        self.detection - self.telling_silence()
    }

    /// Silence by which somebody else must have been heard, if what this node holds is to be good.
    pub(crate) fn answer_by(&self) -> Nanos {
        self.detection / 2 * 3
    }

    /// Gap between two steps after which silence must be judged afresh.
    pub(crate) fn inattentive_gap(&self) -> Nanos {
        self.detection / 2
    }

    /// Gap between two heartbeats of this node after which the peer may have taken it for dead.
    pub(crate) fn doubt_gap(&self) -> Nanos {
        self.detection / 4 * 3
    }

    /// How long a lost link must work before it is trusted again.
    pub(crate) fn heal_wait(&self) -> Nanos {
        5 * self.detection
    }
}

/// What is left of `span` on the fastest other clock, if measured on the slowest.
fn shrink(span: Nanos, drift_ppm: u32) -> Nanos {
    let drift = u128::from(drift_ppm);
    let shrunk = u128::from(span) * (1_000_000 - drift) / (1_000_000 + drift);
    u64::try_from(shrunk).expect("a shrunk u64 is a u64")
}

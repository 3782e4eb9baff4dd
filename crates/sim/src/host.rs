//! One simulated host: the real core, its daemon's fate, and a model of its kernel.
//!
//! Daemon and kernel die and freeze apart from each other. The kernel's fence is a deadline on
//! the host's own clock and needs nobody to close it; the actions of a step reach it one by one,
//! and the daemon may freeze between two of them.

use std::collections::VecDeque;

use cluster::{Action, Config, Core, Epoch, Event, Nanos, Role};

use crate::clock::Clock;

/// What a host is able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    Up,
    /// The daemon is frozen; events wait for it.
    Paused,
    /// The daemon is gone; the kernel goes on.
    DaemonDown,
    /// Everything is gone.
    HostDown,
}

/// What the core's actions have made of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    pub role: Role,
    pub epoch: Epoch,
    /// Own clock; the fence is open before it.
    pub fence_until: Nanos,
    pub holds_address: bool,
}

/// The flows a host holds, as served or as logged by its daemon.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flows {
    pub held: bool,
    /// They have moved on elsewhere since: serving them now would contradict bytes sent.
    pub stale: bool,
    /// Epoch in which this host, since it last started, could emit last.
    pub emitted: Option<Epoch>,
}

#[derive(Debug)]
pub struct Host {
    pub config: Config,
    pub core: Core,
    pub incarnation: u64,
    /// Highest epoch of any life: what a daemon that writes it down reads when it starts.
    pub highest: Epoch,
    pub clock: Clock,
    pub power: Power,
    /// Real time since when `power` is what it is.
    pub since: Nanos,
    /// Real time of the next tick.
    pub tick_at: Nanos,
    /// What waits for a frozen daemon.
    pub inbox: Vec<Event>,
    /// What a daemon that froze in mid-step still has to carry out.
    pub unfinished: VecDeque<Action>,
    pub kernel: Kernel,
    pub flows: Flows,
    /// The server listens.
    pub server: bool,
    /// Others than the peer answer on the service link.
    pub neighbours: Neighbours,
    /// The arbiter can be reached.
    pub arbiter: bool,
    /// It was told to shut down.
    pub leaving: bool,
}

/// Hosts on the service link that are not nodes of the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbours {
    Answer,
    Silent,
    /// The node knows of none.
    Unknown,
}

const OUT_OF_SERVICE: Kernel =
    Kernel { role: Role::Starting, epoch: Epoch(0), fence_until: 0, holds_address: false };

impl Host {
    pub fn new(config: Config, clock: Clock) -> Host {
        let core = Core::new(config.clone(), clock.at(0), 1).expect("a valid config");
        Host {
            config,
            core,
            incarnation: 1,
            highest: Epoch(0),
            clock,
            power: Power::Up,
            since: 0,
            tick_at: 0,
            inbox: Vec::new(),
            unfinished: VecDeque::new(),
            kernel: OUT_OF_SERVICE,
            flows: Flows::default(),
            server: false,
            neighbours: Neighbours::Answer,
            arbiter: true,
            leaving: false,
        }
    }

    /// What the fence program computes for a segment that leaves at `real`.
    pub fn may_emit(&self, real: Nanos) -> bool {
        self.power != Power::HostDown
            && matches!(self.kernel.role, Role::Primary { .. })
            && self.clock.at(real) < self.kernel.fence_until
    }

    pub fn is_running(&self) -> bool {
        matches!(self.power, Power::Up | Power::Paused)
    }

    /// For an arbiter: it can neither decide nor emit. A fence closes by itself within the solo
    /// lease of the last word of its daemon.
    pub fn is_surely_down(&self, real: Nanos) -> bool {
        match self.power {
            Power::Up | Power::Paused => false,
            Power::DaemonDown => {
                real - self.since > self.config.detection + self.config.solo_lease()
            }
            Power::HostDown => true,
        }
    }

    /// The daemon ends. Its kernel goes on, unless the `host` ends with it.
    pub fn kill(&mut self, now: Nanos, host: bool) {
        self.power = if host { Power::HostDown } else { Power::DaemonDown };
        self.since = now;
        self.inbox.clear();
        self.unfinished.clear();
        self.server &= !host;
        if host {
            self.kernel = OUT_OF_SERVICE;
            self.flows = Flows::default();
        }
    }

    /// A new daemon. The first thing it does is to fence the kernel.
    pub fn start(&mut self, now: Nanos, remembers: bool) {
        self.kill(now, false);
        self.incarnation += 1;
        self.config.last_epoch = if remembers { self.highest } else { Epoch(0) };
        let own = self.clock.at(now);
        self.core = Core::new(self.config.clone(), own, self.incarnation).expect("a valid config");
        self.power = Power::Up;
        self.tick_at = now;
        self.leaving = false;
        self.kernel = OUT_OF_SERVICE;
        self.flows.emitted = None;
    }
}

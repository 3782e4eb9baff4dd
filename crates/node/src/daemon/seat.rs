//! What this node is for the flows in one scope: the pure core of `cluster`, and what it steers.

use std::time::{Duration, Instant};

use cluster::{Action, Core, Event, Heartbeat, Role, View};
use datapath::Switchboard;
use serde::{Deserialize, Serialize};

use super::epoch_file::EpochFile;
use super::journal::Duty;
use super::scope::Scope;

/// For how long a node that has come back protects the flows that it had before, until it is given
/// them back (C6): long enough that one which comes and goes does not move them each time.
const GIVE_BACK: Duration = Duration::from_secs(10);
/// How often it is looked whether the connections that it does not protect have ended.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// What a node says to the other one, of one scope.
#[derive(Debug, Serialize, Deserialize)]
pub struct Statement {
    /// How many scopes the flows are divided into.
    pub scopes: u8,
    /// Which of them.
    pub scope: u8,
    pub heartbeat: Heartbeat,
}

/// This node's place for the flows in one scope.
pub struct Seat {
    pub scope: Scope,
    core: Core,
    pub switchboard: Switchboard,
    pub epoch_file: EpochFile,
    pub wake_at: u64,
    /// Nothing depends on this node any more.
    pub stopped: bool,
    /// The peer's last heartbeat before it was last suspected, and when that was.
    pub silence: Option<(u64, u64)>,
    /// The first role has been settled.
    pub settled: bool,
    /// Where both nodes serve, and this one does in the peer's place, with the peer as its backup: when
    /// it may have to give the flows back.
    give_back_at: Option<Instant>,
    /// Connections that the peer does not protect have been noted since.
    noted: bool,
}

impl Seat {
    pub fn new(scope: Scope, core: Core, switchboard: Switchboard, epoch_file: EpochFile) -> Self {
        Self {
            scope,
            core,
            switchboard: scope.switchboard(switchboard),
            epoch_file,
            wake_at: 0,
            stopped: false,
            silence: None,
            settled: false,
            give_back_at: None,
            noted: false,
        }
    }

    /// What heartbeats carry beside the core's statement.
    pub fn set_extra(&mut self, extra: Vec<u8>) {
        self.core.set_extra(extra);
    }

    pub fn step(&mut self, event: Event) -> Vec<Action> {
        self.core.step(event, hostnet::now_boottime_ns())
    }

    pub fn view(&self) -> View {
        self.core.view()
    }

    /// The data path acts in this role from now on.
    pub fn note_role(&mut self, role: Role) {
        self.settled |= role != Role::Starting;
        let duplex = role == Role::Primary { duplex: true } && self.scope.number().is_some();
        let lent = duplex && !self.core.view().prefers_primary;
        self.give_back_at = lent.then(|| Instant::now() + GIVE_BACK);
        self.noted = false;
    }

    /// Whether the peer could be handed these flows now.
    pub fn may_switch_over(&self) -> bool {
        self.core.may_switch_over().is_ok()
    }

    /// An operator wants the peer to serve, until this node's next life.
    pub fn retire(&mut self) {
        self.core.set_prefers_primary(false);
    }

    /// Whether this node serves in the peer's place, and the peer would have it again.
    pub fn may_be_given_back(&self) -> bool {
        let wants = |peer: cluster::PeerView| {
            let armed = peer.role == Role::Backup { armed: true };
            armed && peer.prefers_primary && peer.service_ready
        };
        self.give_back_at.is_some() && self.core.view().peer.is_some_and(wants)
    }

    /// What the journal thread is to do, so that it may be.
    pub fn prepares_to_give_back(&mut self) -> Option<Duty> {
        let (at, now) = (self.give_back_at?, Instant::now());
        if (self.noted && now < at) || !self.may_be_given_back() {
            return None;
        }
        // Only now: whatever has begun before the peer was armed is not protected.
        if !std::mem::replace(&mut self.noted, true) {
            return Some(Duty::NoteUnprotected);
        }
        self.give_back_at = Some(now + ASK_AGAIN);
        Some(Duty::AskProtected)
    }
}

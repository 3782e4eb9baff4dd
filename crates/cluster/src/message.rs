//! What one node tells the other.
//!
//! Commands get lost, doubled and overtaken; a protocol made of them has to reason about every
//! such history. So there are none. A node only ever states *what it is now*: one [`Heartbeat`],
//! repeated over both links and sent at once whenever it changes. The newest one heard replaces
//! all earlier ones, and hearing it twice changes nothing.
//!
//! Two fields carry the safety argument. `seq` orders the statements of one incarnation. `echo`
//! returns the newest statement heard from the receiver, stamped with the receiver's own clock:
//! the receiver learns how old at most this statement is, and which of its own statements the
//! sender knew, without the two clocks ever being compared.

use serde::{Deserialize, Serialize};

/// Nanoseconds on one node's monotonic clock. Values of two nodes are never compared.
pub type Nanos = u64;

/// Longest `extra` payload a heartbeat may carry, in bytes.
pub const EXTRA_MAX: usize = 256;

/// Number of a period with one primary. Never decreases on a node; 0 means "none yet".
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Largest epoch accepted from a peer: leaves room to count on without overflow.
    pub const MAX_HEARD: Epoch = Epoch(1 << 62);

    /// The epoch `n` after this one.
    pub fn plus(self, n: u64) -> Epoch {
        Epoch(self.0 + n)
    }
}

/// One life of a node's daemon. A later life has a larger number (a persisted counter, or the
/// wall clock at start).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// One of the two paths between the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Link {
    /// The link that clients use.
    Service,
    /// The link between the nodes.
    Cluster,
}

impl Link {
    /// Both links, in the order heartbeats are sent.
    pub const ALL: [Link; 2] = [Link::Cluster, Link::Service];
}

/// What a node is, as it tells its peer and its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Knows nothing yet: emits nothing, relays nothing.
    Starting,
    /// Follows the primary of this epoch.
    Backup {
        /// True: taps and relays, grants leases, holds the address, and may promote.
        /// False: not (or no longer) part of the epoch; holds no flows. Once false it stays
        /// false for the rest of the epoch.
        armed: bool,
    },
    /// Serves.
    Primary {
        /// True: an armed backup grants the lease. False: alone (simplex).
        duplex: bool,
    },
    /// Was primary of this epoch and will not emit in it again. An armed backup of the same
    /// epoch that hears this may promote at once.
    Fenced,
}

/// The newest heartbeat its sender has heard from the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Echo {
    /// Incarnation that sent the echoed heartbeat.
    pub incarnation: Incarnation,
    /// Its sequence number.
    pub seq: u64,
    /// Its sending time, on the clock of the node that sent it.
    pub sent_at: Nanos,
}

/// Whether the service link of a node leads anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceLink {
    /// The peer, or somebody else, answers on it.
    Alive,
    /// No carrier, or nobody answers.
    Dead,
    /// The peer is not heard on it and no probe has been answered yet.
    Unknown,
}

/// The whole statement of a node. Idempotent; the newest one counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Life of the sender's daemon.
    pub incarnation: Incarnation,
    /// Counts the heartbeats of this incarnation; the copies sent over both links share it.
    pub seq: u64,
    /// Sender's clock when it was made.
    pub sent_at: Nanos,
    /// Newest heartbeat heard from the receiver. Together with `Role::Backup { armed: true }`
    /// this *is* the lease grant.
    pub echo: Option<Echo>,
    /// What the sender is.
    pub role: Role,
    /// The epoch `role` belongs to.
    pub epoch: Epoch,
    /// The backup of a duplex primary: only this incarnation of the peer may arm itself.
    pub enrolled: Option<Incarnation>,
    /// The sender's own server instances listen.
    pub service_ready: bool,
    /// The sender is shutting down and wants no part in a new epoch.
    pub leaving: bool,
    /// Tie-break between nodes of equal standing, before the name.
    pub prefers_primary: bool,
    /// The sender has found nothing wrong with hearing the receiver on the cluster link.
    pub hears_cluster: bool,
    /// The same for the service link.
    pub hears_service: bool,
    /// The sender's verdict on its own service link.
    pub service_link: ServiceLink,
    /// The daemon's own data (hardware addresses). At most [`EXTRA_MAX`] bytes; not interpreted.
    pub extra: Vec<u8>,
}

impl Heartbeat {
    /// Whether the sender has neither the right to emit nor to take that right by silence of
    /// its peer alone. Two such nodes settle by rank who serves.
    pub fn is_idle(&self) -> bool {
        matches!(self.role, Role::Starting | Role::Fenced | Role::Backup { armed: false })
    }

    /// Whether the sender is primary.
    pub fn is_primary(&self) -> bool {
        matches!(self.role, Role::Primary { .. })
    }

    /// Bounds that every honest heartbeat keeps; others are ignored.
    pub(crate) fn is_sane(&self) -> bool {
        let duplex = self.role == Role::Primary { duplex: true };
        self.epoch <= Epoch::MAX_HEARD
            && self.extra.len() <= EXTRA_MAX
            && duplex == self.enrolled.is_some()
            && self.seq > 0
    }
}

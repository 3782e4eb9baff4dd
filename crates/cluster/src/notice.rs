//! Typed notices for the event log, and the status view.

use serde::{Deserialize, Serialize};

use crate::message::{Epoch, Incarnation, Link, Nanos, Role, ServiceLink};

/// Why a backup took the flows over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PromoteReason {
    /// The primary was silent on both links and its lease ran out.
    PrimarySilent,
    /// The primary said that it has fenced itself in favour of this node.
    HandedOver,
    /// The primary's daemon was replaced by a new incarnation that holds nothing.
    PrimaryRestarted,
}

/// Why a node serves without a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SimplexReason {
    /// It took over from the primary.
    Promoted,
    /// Its backup was silent on both links.
    BackupSilent,
    /// Its backup said that it no longer takes part.
    BackupResigned,
    /// Its backup's daemon was replaced by a new incarnation.
    BackupRestarted,
    /// Neither node served and this one ranks first.
    RankedFirst,
    /// Nobody else has been heard for the start-up wait.
    Alone,
    /// It served alone already and took a number above the peer's.
    EpochRaised,
}

/// Why a primary hands over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HandoverReason {
    /// A person asked.
    UserRequest,
    /// A policy outside the core asked.
    PolicyRequest,
    /// Its server died.
    ServerCrashed,
    /// Its servers do not listen while the backup's do.
    ServiceNotReady,
    /// Its service link is dead while the backup's is alive.
    ServiceLinkDead,
    /// Its daemon shuts down.
    Shutdown,
}

/// Why a hand-over cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// This node is not primary: ask the other one.
    NotPrimary,
    /// There is no backup that takes part: wait until `status` says duplex.
    NoBackup,
    /// The backup's servers do not listen: start them first.
    BackupNotReady,
    /// The backup's service link is dead: mend it first.
    BackupServiceLinkDead,
    /// The backup is shutting down.
    BackupLeaving,
}

/// One line of the event log. Times are of this node's clock, lengths in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The peer was heard for the first time, or again.
    PeerHeard {
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// The peer came back as a new incarnation.
    PeerRestarted {
        /// The one known before.
        old: Incarnation,
        /// The new one.
        new: Incarnation,
    },
    /// The peer has been silent on both links for the detection time.
    Suspected {
        /// Since when nothing was heard.
        last_heard: Nanos,
        /// For how long.
        silent_for: Nanos,
    },
    /// The peer is silent, but may have given this backup up while it did not send: only the alone
    /// wait can tell, and the flows it holds are not continued.
    InDoubt {
        /// The alone wait.
        wait: Nanos,
    },
    /// The peer is silent, and so is everybody else: this node may be cut off, and waits for a sign
    /// of life.
    CutOff,
    /// A link carries no heartbeats while the other one does, or lost its carrier.
    LinkLost {
        /// The link.
        link: Link,
    },
    /// A lost link has worked steadily again.
    LinkReturned {
        /// The link.
        link: Link,
    },
    /// The verdict on the own service link changed.
    ServiceLinkIs {
        /// The verdict.
        verdict: ServiceLink,
    },
    /// This node took the flows over.
    Promoted {
        /// New epoch.
        epoch: Epoch,
        /// Why.
        reason: PromoteReason,
        /// How long the primary had been silent.
        silent_for: Nanos,
    },
    /// This node serves without a backup.
    Simplex {
        /// New epoch.
        epoch: Epoch,
        /// Why.
        reason: SimplexReason,
    },
    /// This node serves with a backup.
    Duplex {
        /// New epoch.
        epoch: Epoch,
        /// The backup.
        backup: Incarnation,
    },
    /// This node follows a primary, not yet protecting its flows.
    Joined {
        /// The primary's epoch.
        epoch: Epoch,
    },
    /// This node protects the primary's new flows.
    Armed {
        /// The primary's epoch.
        epoch: Epoch,
    },
    /// This backup gave up its part in the epoch.
    Resigned {
        /// The epoch.
        epoch: Epoch,
    },
    /// This primary fenced itself so that the backup promotes.
    HandingOver {
        /// The epoch that ends.
        epoch: Epoch,
        /// Why.
        reason: HandoverReason,
    },
    /// A requested hand-over is not possible.
    SwitchoverRefused {
        /// Why.
        reason: Refusal,
    },
    /// The server died and no backup can take over: served on, without the dead server.
    ServerCrashKept {
        /// Why nobody else can.
        reason: Refusal,
    },
    /// Both nodes claimed to be primary. Loud: a partition was taken for a death.
    TwoPrimaries {
        /// Own epoch.
        mine: Epoch,
        /// The peer's.
        theirs: Epoch,
        /// This node gave way.
        yielded: bool,
    },
    /// The pair went on without this primary while it could not emit.
    Superseded {
        /// Own epoch.
        mine: Epoch,
        /// The peer's.
        theirs: Epoch,
    },
    /// This node's daemon did not run for this long.
    Paused {
        /// Length of the pause.
        gap: Nanos,
    },
    /// Serving alone, but the lease ran out during a pause: fenced until the peer's state is
    /// known.
    SoloLeaseLost {
        /// The epoch.
        epoch: Epoch,
    },
    /// The arbiter refused.
    ArbiterRefused {
        /// The epoch asked for.
        epoch: Epoch,
    },
    /// A heartbeat that no honest peer sends was ignored.
    BadHeartbeat,
}

/// What `status` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Own role.
    pub role: Role,
    /// Own epoch.
    pub epoch: Epoch,
    /// Own incarnation.
    pub incarnation: Incarnation,
    /// Fence deadline, own clock; 0 when fenced.
    pub lease_until: Nanos,
    /// This node answers for the service address.
    pub holds_address: bool,
    /// Own servers listen.
    pub service_ready: bool,
    /// Shutting down.
    pub leaving: bool,
    /// It would rather serve than back up.
    pub prefers_primary: bool,
    /// Own service link.
    pub service_link: ServiceLink,
    /// Cluster link carries heartbeats both ways.
    pub cluster_path: bool,
    /// Service link carries heartbeats both ways.
    pub service_path: bool,
    /// Link used for the relay.
    pub relay_via: Link,
    /// The peer, if it was ever heard.
    pub peer: Option<PeerView>,
}

/// The peer, as last heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerView {
    /// Its role.
    pub role: Role,
    /// Its epoch.
    pub epoch: Epoch,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Own clock when last heard.
    pub last_heard: Nanos,
    /// Silent on both links for the detection time.
    pub silent: bool,
    /// Its servers listen.
    pub service_ready: bool,
    /// Its service link.
    pub service_link: ServiceLink,
    /// It would rather serve than back up.
    pub prefers_primary: bool,
    /// Its daemon's payload.
    pub extra: Vec<u8>,
}

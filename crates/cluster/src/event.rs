//! What the world tells the core, and what the core asks of the world.
//!
//! The daemon carries actions out **in the order given**: a fence or a shorter lease always
//! stands before the heartbeat that tells the peer about it. Being interrupted between two
//! actions is harmless, since every deadline is an absolute time.

use serde::{Deserialize, Serialize};

use crate::message::{Epoch, Heartbeat, Link, Nanos, Role};
use crate::notice::{Notice, PromoteReason};

/// Something that happened, seen from this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Time passed. Due at the last `Action::WakeAt`; early and late ones are fine.
    Tick,
    /// An authenticated heartbeat of the peer arrived.
    Heartbeat {
        /// The link it came over.
        link: Link,
        /// What it said.
        msg: Heartbeat,
    },
    /// The interface of a link gained or lost its carrier. Links start with carrier.
    Carrier {
        /// The link.
        link: Link,
        /// Whether it has carrier now.
        up: bool,
    },
    /// Answer to `Action::ProbeServiceLink`. A probe that takes long is answered once.
    ServiceLinkEvidence(Evidence),
    /// The local server instances listen (true) or do not. Starts as false.
    ServiceReady(bool),
    /// A protected server died uncalled for; the kernel closed this node's fence in the same
    /// instant. Answered by a hand-over, or by a lease that opens the fence again.
    ServerCrashed,
    /// Planned switchover.
    SwitchoverRequested {
        /// A person asked (as opposed to an automatic policy).
        by_user: bool,
    },
    /// Answer to `Action::AskArbiter`. One that took longer than the start-up wait must be
    /// dropped: the state of affairs it speaks of may be over.
    Arbiter {
        /// The epoch that was asked for; answers to other questions are ignored.
        asked: Epoch,
        /// What the arbiter decided.
        verdict: Verdict,
    },
    /// Leave the pair in good order; `Action::Stop` follows.
    Shutdown,
}

/// What a probe of the service link found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Evidence {
    /// Somebody else than the peer was heard.
    Alive,
    /// Nobody answered in time.
    Silent,
    /// Nobody is known who could be asked: nothing can be concluded.
    NobodyToAsk,
}

/// On what grounds a node asks the arbiter for the right to serve alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Claim {
    /// The asker is primary or armed backup of the epoch before the one asked for, and every
    /// lease between the two has run out. The arbiter grants each epoch to the first asker, for
    /// good; asking again is answered alike.
    Lease,
    /// The asker has no such standing. The arbiter may grant this only if it knows that the
    /// peer's host is down, or that its daemon has been gone for longer than the solo lease
    /// (the kernel of a daemon that just died still emits), and must choose an epoch above all
    /// it has granted.
    Alone,
}

/// The arbiter's decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// The asker may serve alone, in this epoch (not below the one asked for).
    Granted {
        /// The epoch to serve in. For a lease exactly the one asked for.
        epoch: Epoch,
    },
    /// Somebody else may, or the grounds do not suffice.
    Refused,
}

/// Something the daemon must do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a heartbeat to the peer over this link.
    Send {
        /// Over which link.
        link: Link,
        /// What to say.
        msg: Heartbeat,
    },
    /// Switch the kernel's tables. Epochs never decrease.
    SetRole {
        /// New role.
        role: Role,
        /// Its epoch.
        epoch: Epoch,
    },
    /// Write the fence deadline, own clock: the kernel lets the VIP's segments out while the
    /// role is primary and `now < until`. The deadline may move *back*, and it holds simplex as
    /// well as duplex. It also opens a fence that a server crash closed.
    Lease {
        /// Deadline.
        until: Nanos,
    },
    /// Close the fence at once (a deadline of 0).
    Fence,
    /// Take the logged flows over and serve them. Follows the `SetRole` of the same epoch.
    Promote {
        /// The new epoch.
        epoch: Epoch,
        /// Why.
        reason: PromoteReason,
    },
    /// Forget every flow logged, and reset every connection still held from an earlier epoch:
    /// their bytes may have moved on elsewhere.
    DiscardFlows,
    /// Use this link for the relay between the nodes.
    RelayVia {
        /// The link.
        link: Link,
    },
    /// Announce and answer for the service address (true), or stop answering (false).
    HoldAddress(bool),
    /// Find out whether anybody but the peer answers on the service link.
    ProbeServiceLink,
    /// Ask the external arbiter. Repeated until answered or withdrawn.
    AskArbiter {
        /// The epoch wanted.
        epoch: Epoch,
        /// The grounds.
        claim: Claim,
    },
    /// Something worth writing down.
    Report(Notice),
    /// Nothing depends on this node any more: a daemon that was told to shut down may exit.
    Stop,
    /// Deliver `Event::Tick` at this time. Replaces earlier ones.
    WakeAt(Nanos),
}

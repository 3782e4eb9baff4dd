//! Membership, leases and epochs of a pair of nodes.
//!
//! Two nodes protect each other's connections. At any instant at most one of them may emit
//! segments of a flow, although hosts die, links break, clocks drift and daemons freeze. This
//! crate decides who, and knows nothing of sockets, clocks or the kernel: the daemon delivers
//! [`Event`]s with its monotonic time to [`Core::step`] and carries out the [`Action`]s.
//!
//! ```text
//!             hears a primary            enrolled, next epoch
//!  Starting ------------------> Following -----------------> Armed
//!     |  ranks first / alone        ^                          | primary silent, fenced
//!     v                             | rival or new epoch       v or restarted
//!  Simplex <-----------------+-- Fenced <---- hand-over -- (Simplex)
//!     |  backup ready        |
//!     +-------------> Duplex-+ backup silent, resigned or restarted
//! ```
//!
//! What the kernel must do: let the VIP's segments out while the role is primary **and** the
//! clock is below the deadline of the last [`Action::Lease`]; [`Action::Fence`] is a deadline of
//! 0. The deadline holds in simplex too: a primary that serves alone renews it by itself, so
//! that the kernel of a frozen daemon falls silent before a returning peer may serve.
//!
//! Decisions worth knowing:
//!
//! - A backup whose server is down stays armed: it keeps the log, and if the primary dies late
//!   adoption is better than none. It is not handed to by choice, and not enrolled anew.
//! - After a pause a node never trusts its own idea of who was silent; see `core.rs`.
//! - A node that resumes service without proof that nobody served in between discards its flows.

#![forbid(unsafe_code)]

mod backup;
mod change;
mod config;
mod core;
mod event;
mod facts;
mod links;
mod message;
mod notice;
mod primary;

pub use crate::config::{ArbiterKind, Config, ConfigError};
pub use crate::core::Core;
pub use crate::event::{Action, Claim, Event, Evidence, Verdict};
pub use crate::message::{
    EXTRA_MAX, Echo, Epoch, Heartbeat, Incarnation, Link, Nanos, Role, ServiceLink,
};
pub use crate::notice::{
    HandoverReason, Notice, PeerView, PromoteReason, Refusal, SimplexReason, View,
};

//! The node's dealings with its own kernel's network configuration.
//!
//! A node must put the service address on its host, tell neighbours who owns it, notice when a
//! link dies, throw away the kernel's sockets of a flow it has lost, and hand forged segments to
//! the kernel's own receive path. All of it is netlink, packet sockets, `/proc/sys` and one TUN
//! device; none of it decides anything. Policy (when to announce, who holds an address, what a
//! silent link means) belongs to the callers.
//!
//! Everything here acts on the network namespace of the *calling thread* at the moment an object
//! is made; the objects stay in that namespace afterwards. Nothing here blocks except
//! [`users`], which takes its time limit from the caller, and netlink requests, which the
//! kernel answers synchronously. Objects that wait for something expose a pollable descriptor
//! through [`std::os::fd::AsFd`].

mod address;
mod announce;
mod clock;
mod conflict;
mod frames;
mod interface;
mod liveness;
mod mac;
mod monitor;
mod netlink;
mod packet;
mod responder;
mod sockets;
pub mod sysctl;
mod tun;

pub use address::{AddressError, ServiceAddress};
pub use announce::{AnnounceStep, Announcer, Schedule};
pub use clock::now_boottime_ns;
pub use conflict::{User, users};
pub use interface::{Assigned, Interface, InterfaceError};
pub use liveness::{LinkEvidence, LinkProbe, Prober};
pub use mac::Mac;
pub use monitor::{Event, LinkEvent, Monitor};
pub use netlink::NetlinkError;
pub use packet::LinkError;
pub use responder::{ArpMode, Holding, NeighbourResponder};
pub use sockets::{
    SocketsError, connections, count_sockets, destroy_flow, destroy_sockets, destroy_sockets_if,
    is_listening,
};
pub use tun::{Offload, Tun, TunError};

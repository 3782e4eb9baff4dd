//! Hosts made of namespaces, for a demo, tests and benchmarks of one machine.
//!
//! A [`Lab`] is a handful of hosts on a switched *service link* and, for nodes, a *cluster
//! link*. Its hosts run ordinary programs, die at a chosen instant, hang, boot again; its
//! cables can be cut, shaped, listened to. The machine's own network and configuration are
//! not touched, several labs run side by side, and a lab is gone when its keeper (the
//! process that holds the [`Lab`]) is, however that ended.
//!
//! ```no_run
//! # fn main() -> lab::Result<()> {
//! let lab = lab::Lab::builder().rate(lab::Link::Service, lab::Rate::mbit(1000)).up()?;
//! let server = lab.host("a")?.command("busybox").args(["httpd", "-f", "-p", "80"]).spawn()?;
//! let page = lab.host("client")?.command("curl").arg("http://10.77.0.1/").output()?;
//! lab.kill_host("a")?;
//! lab.boot("a")?;
//! # Ok(())
//! # }
//! ```
//!
//! # Faults
//!
//! | what | how |
//! |---|---|
//! | a host dies, hangs, its processes crash | [`Lab::kill`], [`Lab::boot`], [`Lab::resume`] |
//! | a host dies in the instant in which a chosen frame passes | [`Lab::arm`] |
//! | a cable is cut, both ways or one, with or without a sign | [`Lab::cut`], [`Lab::heal`] |
//! | a cable loses, doubles, reorders, delays, corrupts | [`Lab::set_faults`] |
//! | a cable has a rate | [`Lab::shape`] |
//! | a host has little CPU time or memory | [`Lab::slow`], [`Lab::tighten`], [`Lab::starved`] |
//! | a bit flips in a process | [`Lab::flip`] |
//!
//! There is no fault for a clock that steps. Linux has one `CLOCK_REALTIME` for the whole
//! machine, and a lab does not touch the machine. A time namespace shifts only the monotonic
//! and the boot time clock, and only before the first process is in it: a shift that is there
//! from the start, which no program can notice, and never a step.

mod capture;
pub mod cli;
mod command;
pub mod control;
mod damage;
mod detour;
mod dice;
mod error;
mod fault;
mod faults;
mod flip;
mod host;
mod init;
#[allow(clippy::module_inception)]
mod lab;
mod netlink;
mod node;
mod preflight;
mod rundir;
mod sys;
mod throttle;
mod topology;
mod trip;
mod wires;

pub use capture::{Capture, CaptureOptions, CaptureStats, Frame, read_pcap};
pub use command::{Child, Command};
pub use dice::Chance;
pub use error::{Error, Result};
pub use fault::{Cut, Kill, Killed, LinkStatus, WayStatus};
pub use faults::{FaultCounts, Faults};
pub use flip::{Flip, Flipped, FlippedBit, Where};
pub use host::{Host, ProcessInfo};
pub use lab::{Builder, Lab};
pub use node::{Node, NodeSpec};
pub use preflight::check as preflight;
pub use rundir::{base_dir, sweep};
pub use throttle::{Slow, Starved};
pub use topology::{HostSpec, Link, MAX_HOSTS};
pub use trip::{Armed, FrameFilter, IpVersion, Transport, Trip, Tripped};
pub use wires::{Rate, Way};

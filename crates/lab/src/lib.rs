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

mod capture;
pub mod cli;
mod command;
pub mod control;
mod error;
mod fault;
mod host;
mod init;
#[allow(clippy::module_inception)]
mod lab;
mod netlink;
mod node;
mod preflight;
mod rundir;
mod sys;
mod topology;
mod wires;

pub use capture::{Capture, CaptureOptions, CaptureStats, Frame, read_pcap};
pub use command::{Child, Command};
pub use error::{Error, Result};
pub use fault::{Cut, Kill, Killed, LinkStatus};
pub use host::{Host, ProcessInfo};
pub use lab::{Builder, Lab};
pub use node::{Node, NodeSpec};
pub use preflight::check as preflight;
pub use rundir::{base_dir, sweep};
pub use topology::{HostSpec, Link, MAX_HOSTS};
pub use wires::{Rate, Way};

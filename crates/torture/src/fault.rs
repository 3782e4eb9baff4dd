//! What can fail.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use lab::{Faults, Way, Where};
use serde::{Deserialize, Serialize};

/// A kind of fault; the campaign's figures are given for each.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A whole host dies at one instant.
    KillHost,
    /// A server's processes get SIGKILL.
    KillServer,
    /// A server's processes get SIGSEGV.
    CrashServer,
    /// A server's processes get SIGABRT.
    AbortServer,
    /// A daemon gets SIGKILL.
    KillDaemon,
    /// All processes of a host stop for a while.
    Hang,
    /// A cable is cut for a while, one way or both.
    Cut,
    /// Both cables of a node are cut at one instant, both ways, and mended after a while.
    Partition,
    /// Cables lose, double, reorder, corrupt and delay frames.
    BadCables,
    /// The same, and the primary's host dies.
    BadCablesKill,
    /// A host gets little CPU time for a while.
    Slow,
    /// A host gets little memory for a while.
    Memory,
    /// Bits flip in a server's processes.
    FlipServer,
    /// Bits flip in a daemon.
    FlipDaemon,
    /// The backup dies and comes back; then the primary dies.
    BackupThenPrimary,
    /// The primary fails, and while its peer takes over a host dies too.
    KillDuringTakeover,
    /// The primary's server crashes, and while its peer takes over its daemon dies too.
    DaemonDuringTakeover,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 17] = [
        Kind::KillHost,
        Kind::KillServer,
        Kind::CrashServer,
        Kind::AbortServer,
        Kind::KillDaemon,
        Kind::Hang,
        Kind::Cut,
        Kind::Partition,
        Kind::BadCables,
        Kind::BadCablesKill,
        Kind::Slow,
        Kind::Memory,
        Kind::FlipServer,
        Kind::FlipDaemon,
        Kind::BackupThenPrimary,
        Kind::KillDuringTakeover,
        Kind::DaemonDuringTakeover,
    ];

    /// Its name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("no kind is hidden");
        value.get_name().to_owned()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// A node, by what it was when the run began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// It served.
    Primary,
    /// It backed the other one up.
    Backup,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Who::Primary => "the primary",
            Who::Backup => "the backup",
        })
    }
}

/// A cable to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cable {
    /// A node's, to the clients.
    Service(Who),
    /// A node's, to the other node.
    Cluster(Who),
    /// The clients'.
    Clients,
}

impl fmt::Display for Cable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cable::Service(who) => write!(f, "the service cable of {who}"),
            Cable::Cluster(who) => write!(f, "the cluster cable of {who}"),
            Cable::Clients => f.write_str("the clients' cable"),
        }
    }
}

/// Whose processes bits flip in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// The server's.
    Server,
    /// The daemon's.
    Daemon,
}

/// One thing that is done to the pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// A host dies.
    Host(Who),
    /// A server's processes get this signal.
    Server(Who, i32),
    /// A daemon gets SIGKILL.
    Daemon(Who),
    /// A host hangs for so long.
    Hang(Who, Duration),
    /// A cable is cut for so long.
    Cut {
        /// Which.
        cable: Cable,
        /// Which ways of it, as its host sees them.
        ways: Vec<Way>,
        /// Whether its host sees that the carrier is gone.
        carrier: bool,
        /// How long.
        time: Duration,
    },
    /// All cables of a node are cut at one instant, both ways, for so long.
    Partition(Who, Duration),
    /// A host is slow for so long.
    Slow {
        /// Which.
        who: Who,
        /// CPU time, percent of one CPU.
        percent: u32,
        /// How long.
        time: Duration,
    },
    /// A host is short of memory for so long.
    Starve {
        /// Which.
        who: Who,
        /// For all its processes together, MiB; what they had before may not count.
        mib: u64,
        /// How long.
        time: Duration,
    },
    /// Bits flip.
    Flip {
        /// On which node.
        who: Who,
        /// In what.
        program: Program,
        /// Where in it.
        place: Where,
        /// How many, one after the other.
        bits: u32,
        /// Which.
        seed: u64,
    },
}

impl Act {
    /// Whether, alone, it takes the node out of service.
    pub fn victim(&self) -> Option<Who> {
        match *self {
            Act::Host(who) | Act::Server(who, _) | Act::Daemon(who) => Some(who),
            Act::Hang(..)
            | Act::Cut { .. }
            | Act::Partition(..)
            | Act::Slow { .. }
            | Act::Starve { .. }
            | Act::Flip { .. } => None,
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Host(who) => write!(f, "the host of {who} dies"),
            Act::Server(who, signal) => write!(f, "the server of {who} gets signal {signal}"),
            Act::Daemon(who) => write!(f, "the daemon of {who} dies"),
            Act::Hang(who, time) => write!(f, "{who} hangs for {time:?}"),
            Act::Cut { cable, ways, carrier, time } => {
                let ways = match ways[..] {
                    [Way::FromHost] => "from its host",
                    [Way::ToHost] => "to its host",
                    _ => "both ways",
                };
                let sign = if *carrier { ", with a sign" } else { "" };
                write!(f, "{cable} is cut {ways} for {time:?}{sign}")
            }
            Act::Partition(who, time) => write!(f, "{who} is cut off for {time:?}"),
            Act::Starve { who, mib, time } => {
                write!(f, "{who} has {mib} MiB of memory for {time:?}")
            }
            Act::Slow { who, percent, time } => {
                write!(f, "{who} has {percent}% of a CPU for {time:?}")
            }
            Act::Flip { who, program, place, bits, .. } => {
                let program = match program {
                    Program::Server => "server",
                    Program::Daemon => "daemon",
                };
                write!(f, "{bits} bits flip in the {program} of {who} ({place:?})")
            }
        }
    }
}

/// What a bad cable is like: every cable of both links, both ways.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bad(pub Faults);

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bad cables ({})", self.0)
    }
}

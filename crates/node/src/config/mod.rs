//! What the operator tells the daemon: one TOML file, read completely or refused.
//!
//! A wrong configuration of a pair that masks failures shows itself only at the failure, so
//! nothing is guessed and nothing unknown is skipped. The obvious way, serde's
//! `deny_unknown_fields`, stops at the first mistake, speaks of Rust types and loses the position
//! of everything that only a comparison of two keys can find wrong. Instead the parsed document
//! is walked in two passes:
//!
//! 1. [`schema`] asks a [`reader::Table`] for every key it knows, with the range it allows. The
//!    reader remembers what was asked for, so what is left over is unknown, and the nearest
//!    key that was asked for is the suggestion. The schema is therefore written once, as the code
//!    that reads it.
//! 2. [`rules`] compares values with each other (two services on one port, address families,
//!    times), on the plain [`Config`], and points at the keys by their path.
//!
//! All mistakes of a pass are reported together, each with file, line, column, key and what to
//! write instead.

mod message;
mod reader;
mod rules;
mod schema;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

pub use message::{Message, gate_settings};

/// Where the daemon looks when `--config` is not given.
pub const DEFAULT_PATH: &str = "/etc/steadfast/steadfast.toml";

/// A whole, consistent configuration. Only [`Config::load`] and [`Config::parse`] make one.
///
/// The fields have the names of their keys in the file, and [`Config::to_toml`] writes a file that
/// reads back as the same value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Config {
    pub node: Node,
    pub budget: Budget,
    #[serde(rename = "service")]
    pub services: Vec<Service>,
}

/// This host, its peer and the links between them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// This node's name, different from `peer`.
    pub name: String,
    /// Both nodes say the same; a datagram of another cluster is refused.
    pub cluster: String,
    pub peer: String,
    /// The interface that clients reach, and on which service addresses are announced.
    pub service_interface: String,
    /// The interface between the nodes; may be the same one.
    pub cluster_interface: String,
    /// Own addresses of the control channel.
    pub address: Links,
    /// The peer's addresses of the control channel, each of the family of ours.
    pub peer_address: Links,
    /// UDP port of the control channel, the same on both nodes.
    pub control_port: u16,
    pub key_file: PathBuf,
    /// How long the peer may be silent on both links before it is suspected: 20..=10000.
    pub detection_ms: u32,
    /// How long a segment may wait in the service interface's queue: up to half of the detection
    /// time.
    pub queue_ms: u32,
    /// How long a starting node waits for its peer before it decides alone.
    pub startup_wait_ms: u32,
    pub arbiter: Arbiter,
    /// The same on both nodes.
    pub roles: Roles,
    /// When both nodes start together, the one that prefers it becomes primary.
    pub prefer_primary: bool,
    /// Socket, and what a restarted daemon must know about the servers it had started.
    pub state_dir: PathBuf,
}

impl Node {
    /// [`Node::detection_ms`] as a duration.
    pub fn detection(&self) -> Duration {
        Duration::from_millis(self.detection_ms.into())
    }

    /// [`Node::queue_ms`] as a duration.
    pub fn queue(&self) -> Duration {
        Duration::from_millis(self.queue_ms.into())
    }

    /// [`Node::startup_wait_ms`] as a duration.
    pub fn startup_wait(&self) -> Duration {
        Duration::from_millis(self.startup_wait_ms.into())
    }
}

/// One address on each of the two links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Links {
    pub service: IpAddr,
    pub cluster: IpAddr,
}

/// Who decides when the peer is silent on both links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arbiter {
    /// Nobody: a silent peer is taken for dead.
    None,
}

/// Who serves while both nodes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Roles {
    /// One node serves every client, the other one backs it up.
    Single,
    /// Each node serves one half of the clients' connections, and backs the other one up for the
    /// other half (C6).
    Dual,
}

/// How much memory protection may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Budget {
    /// Journal memory on the backup, all flows together.
    pub total_mib: u32,
    /// The log ring between the kernel and the daemon, a power of two.
    pub ring_mib: u32,
    pub max_flows: u32,
    /// The reply log on the backup, all flows of all `message` services together.
    pub replies_mib: u32,
}

/// A server and the address under which clients know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Service {
    pub name: String,
    /// At least one; no two services share an address and port.
    #[serde(rename = "address")]
    pub addresses: Vec<IpAddr>,
    pub port: u16,
    /// Program and arguments, never empty. `None`: the operator runs the server himself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<PathBuf>,
    pub scheme: Scheme,
    /// How many client bytes one flow may have in the journal; beyond it becomes simplex.
    pub flow_budget_mib: u32,
    /// What is done with its replies. Invariant: there if and only if the scheme is `message`.
    #[serde(flatten)]
    pub message: Option<Message>,
    // Last: TOML wants tables after plain values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

/// How a service's connections are carried over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// The other node's server reads the client's bytes again; what the client has is swallowed.
    Track,
    /// HTTP/1 replies are held until the other node has them whole; its server begins at the first
    /// request without such a reply.
    Message,
}

impl Config {
    /// Reads the file at `path`.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Config::parse(&text, path)
    }

    /// Reads `text`; `path` is used in messages only.
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let problems = reader::Problems::new(text);
        let config = schema::read(text, &problems);
        if let Some(config) = config.as_ref().filter(|_| problems.is_empty()) {
            rules::check(config, &problems);
        }
        let mistakes = problems.into_sorted();
        match config {
            Some(config) if mistakes.is_empty() => Ok(config),
            _ => Err(ConfigError::Wrong { path: path.to_owned(), mistakes }),
        }
    }

    /// The text of a file that reads back as this value.
    pub fn to_toml(&self) -> String {
        // Strings, integers and tables: nothing that TOML could not hold.
        toml::to_string(self).expect("every configuration can be written as TOML")
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}; name the configuration with --config FILE", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// Every mistake found, in the order of the file; never empty.
    #[error("{}", Listing(path, mistakes))]
    Wrong { path: PathBuf, mistakes: Vec<Mistake> },
}

/// One wrong place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// Full path such as `node.address.service` or `service[1].port`; empty for a syntax error
    /// outside any key.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What to write instead.
    pub mend: String,
}

struct Listing<'a>(&'a Path, &'a [Mistake]);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.1.iter().enumerate() {
            let Mistake { line, column, key, what, mend } = mistake;
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{line}:{column}: ", self.0.display())?;
            if !key.is_empty() {
                write!(f, "{key}: ")?;
            }
            write!(f, "{what}; {mend}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

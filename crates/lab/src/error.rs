//! What can go wrong with a lab, in words a user can act on.

use std::{io, path::PathBuf, time::Duration};

/// Shorthand for the crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lab operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine lacks something that every lab needs.
    #[error("this machine cannot run a lab: {missing}; {mend}")]
    Preflight {
        /// What is missing.
        missing: String,
        /// How to mend it.
        mend: &'static str,
    },
    /// A running lab already has this name.
    #[error("a lab named \"{0}\" is already running; choose another name or take it down first")]
    NameTaken(String),
    /// A name that cannot be used for a lab or a host.
    #[error("\"{name}\" cannot name a {what}: use 1 to {max} of a-z, 0-9 and -")]
    BadName {
        /// "lab" or "host".
        what: &'static str,
        /// The name as given.
        name: String,
        /// Greatest length, bytes.
        max: usize,
    },
    /// The topology asks for something a lab cannot be.
    #[error("impossible lab: {0}")]
    Topology(String),
    /// No host has this name.
    #[error("there is no host \"{name}\" in this lab; its hosts are {known}")]
    NoHost {
        /// The name as given.
        name: String,
        /// The hosts there are.
        known: String,
    },
    /// No link has this name.
    #[error("there is no link \"{name}\" in this lab; its links are {known}")]
    NoLink {
        /// The name as given.
        name: String,
        /// The links there are.
        known: String,
    },
    /// The lab asked for cannot be found, or is not the only one.
    #[error("{which}; running labs: {running}")]
    NoLab {
        /// What was looked for.
        which: String,
        /// The labs there are.
        running: String,
    },
    /// A lab's keeper said no.
    #[error("{0}")]
    Refused(String),
    /// The host was killed and not booted again.
    #[error("host {0} is down; boot it first")]
    HostDown(String),
    /// The host is running, so it cannot be booted.
    #[error("host {0} is already up; kill it before booting it again")]
    HostUp(String),
    /// Every process of the host is stopped; a new one would not be.
    #[error("host {0} hangs; resume it first")]
    HostHung(String),
    /// Nothing in the host matches.
    #[error("no process of host {host} matches: {what}")]
    NoProcess {
        /// The host looked at.
        host: String,
        /// What was looked for.
        what: String,
    },
    /// A program did not get ready in time.
    #[error("{what} was not ready after {after:?}; its log is {log}")]
    NotReady {
        /// What was waited for.
        what: String,
        /// How long it was waited for.
        after: Duration,
        /// The log to look at.
        log: PathBuf,
    },
    /// A program ended while it was waited for.
    #[error("{what} ended before it was ready ({status}); its log is {log}")]
    Ended {
        /// What was waited for.
        what: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The log to look at.
        log: PathBuf,
    },
    /// The kernel refused the wire's BPF program.
    #[error("cannot load the wire's BPF program: {0}")]
    Bpf(#[from] libbpf_rs::Error),
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    Sys {
        /// What was attempted, on what.
        doing: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Adds to an I/O error what was being done.
pub(crate) trait Doing<T> {
    /// Wraps the error into [`Error::Sys`]; `doing` completes "cannot …".
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Sys { doing: doing(), source })
    }
}

impl<T> Doing<T> for nix::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::Sys { doing: doing(), source: e.into() })
    }
}

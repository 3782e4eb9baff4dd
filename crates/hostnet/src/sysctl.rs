//! Reading and writing `net.*` sysctls of the calling thread's network namespace.
//!
//! `/proc/sys/net` shows the namespace of whoever opens it, so no mount is needed. One rule is
//! worth a function of its own: for `rp_filter` the kernel uses the *larger* of `conf.all` and
//! `conf.<interface>`, so setting an interface's value to 0 has no effect while `all` says 1.
//! The strict mode drops every segment whose source would be routed out of another interface,
//! which is exactly what relayed and forged client segments look like.

use std::fs;
use std::io;
use std::path::PathBuf;

/// A sysctl could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The file could not be read or written.
    #[error("cannot {action} {}: {source}; is the interface there, and are we root?", path.display())]
    Io {
        /// "read" or "write".
        action: &'static str,
        /// The file under `/proc/sys/net`.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file holds something else than one number.
    #[error("{} holds {text:?}, not a number", path.display())]
    NotANumber {
        /// The file under `/proc/sys/net`.
        path: PathBuf,
        /// Its content.
        text: String,
    },
}

/// What the kernel does with a packet whose source it would not route out of the interface the
/// packet came in by (RFC 3704).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RpFilter {
    /// 0: accepted.
    Off,
    /// 1: dropped.
    Strict,
    /// 2: accepted if *some* interface leads back to the source.
    Loose,
}

/// Reads one number from `net/<family>/conf/<interface>/<key>`, family being `ipv4` or `ipv6`.
pub fn read_conf(family: &str, interface: &str, key: &str) -> Result<i64, SysctlError> {
    let path = conf_path(family, interface, key);
    let text = fs::read_to_string(&path).map_err(|source| SysctlError::Io {
        action: "read",
        path: path.clone(),
        source,
    })?;
    text.trim().parse().map_err(|_| SysctlError::NotANumber { path, text })
}

/// Writes one number to `net/<family>/conf/<interface>/<key>`.
pub fn write_conf(family: &str, interface: &str, key: &str, value: i64) -> Result<(), SysctlError> {
    let path = conf_path(family, interface, key);
    fs::write(&path, value.to_string()).map_err(|source| SysctlError::Io {
        action: "write",
        path,
        source,
    })
}

/// The reverse-path filter that is in force on `interface`: the larger of `conf.all` and
/// `conf.<interface>` (kernel: `IN_DEV_MAXCONF`).
pub fn effective_rp_filter(interface: &str) -> Result<RpFilter, SysctlError> {
    let all = read_conf("ipv4", "all", "rp_filter")?;
    let own = read_conf("ipv4", interface, "rp_filter")?;
    Ok(match all.max(own) {
        ..=0 => RpFilter::Off,
        1 => RpFilter::Strict,
        _ => RpFilter::Loose,
    })
}

/// Interface names may hold dots (VLANs), never slashes: a path segment is safe, a dotted
/// sysctl name would not be.
fn conf_path(family: &str, interface: &str, key: &str) -> PathBuf {
    ["/proc/sys/net", family, "conf", interface, key].iter().collect()
}

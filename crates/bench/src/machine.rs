//! What was measured on: machine, kernel, commit, load.

use std::fs;
use std::process::Command;

use anyhow::Context;

/// Processes that ran or were ready, mean of the last minute.
///
/// # Errors
/// There is no `/proc`.
pub fn load() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    let first = text.split(' ').next().context("/proc/loadavg is empty")?;
    Ok(first.parse()?)
}

/// Processors and memory.
///
/// # Errors
/// There is no `/proc`.
pub fn machine() -> anyhow::Result<String> {
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown processor", |m| m.trim_start_matches([' ', '\t', ':']));
    let count = std::thread::available_parallelism()?;
    let memory = fs::read_to_string("/proc/meminfo")?;
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: f64 = kib.and_then(|k| k.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
    Ok(format!("{count} × {model}, {:.0} GiB", kib / (1 << 20) as f64))
}

/// Kernel release.
///
/// # Errors
/// Never on Linux.
pub fn kernel() -> anyhow::Result<String> {
    Ok(nix::sys::utsname::uname()?.release().to_string_lossy().into_owned())
}

/// The commit of the folder we stand in, with `+` if the sources differ from it.
///
/// # Errors
/// There is no git.
pub fn commit() -> anyhow::Result<String> {
    let git = |args: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("git").args(args).output().context("cannot run git")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let head = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--", "crates", "Cargo.lock"])?.is_empty();
    let head = if head.is_empty() { "unknown" } else { &head };
    Ok(format!("{head}{}", if changed { "+" } else { "" }))
}

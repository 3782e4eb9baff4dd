//! Whether this machine can be measured on, before an hour has gone into it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use demo::find;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{cost, twin};

/// 10,000 connections here, and as many in the servers, which inherit the limit.
const FILES: u64 = 12_000;
/// Two document roots, and what an upload at 1 Gbit/s puts into the journal.
const MEMORY_MIB: u64 = 4_096;
/// Two document roots.
const ROOM_MB: u64 = 2_600;

/// Servers, clients and tools, and the packages that they are in. Where `rr` is missing, its rows say so.
const PROGRAMS: [(&str, &str); 5] = [
    ("nginx", "nginx"),
    ("apache2", "apache2-bin"),
    ("redis-server", "redis-server"),
    ("redis-benchmark", "redis-tools"),
    ("strace", "strace"),
];

/// Checks everything that can be checked without making anything, and allows this process enough
/// open files.
///
/// # Errors
/// The first thing that is missing, and how to mend it.
pub fn check() -> anyhow::Result<()> {
    lab::preflight()?;
    cost::cgroup_root()?;
    product()?;
    for (program, package) in PROGRAMS {
        find::program(program, package)?;
    }
    twin::maker()?;
    let running = lab::sweep().context("cannot remove what dead labs left behind")?;
    ensure!(
        running.is_empty(),
        "other labs are running ({}): they would be measured too. End them; or, if they may, name \
         another folder in STEADFAST_LAB_DIR",
        running.join(", ")
    );
    memory(&fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?)?;
    room()?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    ensure!(hard >= FILES, "only {hard} files may be open: raise the limit (ulimit -Hn {FILES})");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("cannot open many files")
}

/// The program that is measured.
///
/// # Errors
/// It is not named.
pub fn product() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("STEADFAST_BIN").map(PathBuf::from);
    named.filter(|path| path.is_file()).context(
        "STEADFAST_BIN does not name the product: run \"make bench\", which builds and names it",
    )
}

fn memory(meminfo: &str) -> anyhow::Result<()> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let free_mib = kib.context("/proc/meminfo does not say what is available")? / 1024;
    ensure!(
        free_mib >= MEMORY_MIB,
        "only {free_mib} MiB of memory are available, and {MEMORY_MIB} are needed: end something"
    );
    Ok(())
}

fn room() -> anyhow::Result<()> {
    let dir = lab::base_dir();
    let there = dir.ancestors().find(|dir| dir.is_dir()).context("no folder for labs")?;
    let stat = nix::sys::statvfs::statvfs(there)
        .with_context(|| format!("cannot ask how much room {} has", there.display()))?;
    #[allow(clippy::unnecessary_cast)] // these types differ between architectures
    let free_mb = stat.blocks_available() as u64 * stat.fragment_size() as u64 / 1_000_000;
    if free_mb < ROOM_MB {
        bail!(
            "{} has room for {free_mb} MB only, and {ROOM_MB} MB are needed: name a folder with \
             more room in STEADFAST_LAB_DIR",
            dir.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_said_beforehand() {
        let error = memory("MemTotal: 9 kB\nMemAvailable:  1048576 kB\n").unwrap_err().to_string();
        assert!(error.contains("only 1024 MiB") && error.contains("4096"), "{error}");
        memory("MemAvailable: 8388608 kB\n").unwrap();
        assert!(memory("").is_err());
    }
}

//! What a host spends: processor time and memory.
//!
//! Processor time is that of the host's cgroup, which contains all its processes: server, daemon
//! and whatever they start. The kernel charges work to the process that is running. What a
//! process sends crosses the virtual switch and the receiving host's stack on the sender's
//! account, as a rule; timers' and kernel threads' work is charged to nobody here. So a server's
//! figure contains the way of its reply to the client, and the way of the request to the server
//! is in the client's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lab::Host;

/// Processor time that a host's processes have used so far, µs.
///
/// # Errors
/// It is down, or there is no cgroup v2 hierarchy.
pub fn cpu_us(host: &Host) -> anyhow::Result<f64> {
    let groups = read(Path::new(&format!("/proc/{}/cgroup", host.init_pid()?)))?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let group = group.context("the host has no cgroup of version 2")?;
    let stat = read(&cgroup_root()?.join(group.trim_start_matches('/')).join("cpu.stat"))?;
    field(&stat, "usage_usec").context("cpu.stat has no usage_usec")
}

/// How often the threads of a host's nginx have gone to sleep.
///
/// # Errors
/// The host is down.
pub fn sleeps(host: &Host) -> anyhow::Result<f64> {
    let mut slept = 0.0;
    for process in host.processes()?.into_iter().filter(|p| p.matches("nginx")) {
        let status = read(Path::new(&format!("/proc/{}/status", process.pid)))?;
        slept +=
            field(&status, "voluntary_ctxt_switches:").context("no voluntary_ctxt_switches")?;
    }
    Ok(slept)
}

/// Where the cgroups are.
///
/// # Errors
/// There is no hierarchy of version 2.
pub fn cgroup_root() -> anyhow::Result<PathBuf> {
    let mounts = read(Path::new("/proc/self/mounts"))?;
    let root = mounts.lines().find_map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        (words.get(2) == Some(&"cgroup2")).then(|| PathBuf::from(words[1]))
    });
    root.context("no cgroup2 file system is mounted: mount one at /sys/fs/cgroup")
}

/// Memory of all hash maps that the process holds, as the kernel accounts it, bytes.
///
/// # Errors
/// The process has ended.
pub fn hash_maps_bytes(pid: u32) -> anyhow::Result<f64> {
    // BPF_MAP_TYPE_HASH
    Ok(maps_of_type(pid, 1.0, "memlock:")?.values().sum())
}

/// A figure of each map of one type that the process holds, by the map's number. Descriptors of the
/// same map count once.
fn maps_of_type(pid: u32, map_type: f64, figure: &str) -> anyhow::Result<BTreeMap<u64, f64>> {
    let dir = format!("/proc/{pid}/fdinfo");
    let mut maps = BTreeMap::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {dir}"))? {
        // Descriptors come and go while we look.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        if field(&text, "map_type:") == Some(map_type)
            && let (Some(id), Some(bytes)) = (field(&text, "map_id:"), field(&text, figure))
        {
            maps.insert(id.to_bits(), bytes);
        }
    }
    Ok(maps)
}

/// What the process keeps with a socket that has a value in each of its socket maps, bytes: the
/// values, without the kernel's bookkeeping.
///
/// # Errors
/// The process has ended.
pub fn socket_values_bytes(pid: u32) -> anyhow::Result<f64> {
    // BPF_MAP_TYPE_SK_STORAGE
    Ok(maps_of_type(pid, 24.0, "value_size:")?.values().sum())
}

/// Resident memory of a process, bytes.
///
/// # Errors
/// The process has ended.
pub fn resident_bytes(pid: u32) -> anyhow::Result<f64> {
    let status = read(Path::new(&format!("/proc/{pid}/status")))?;
    Ok(field(&status, "RssAnon:").context("the process has no RssAnon")? * 1024.0)
}

/// The number that follows `name` at the beginning of a line.
fn field(text: &str, name: &str) -> Option<f64> {
    let words = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    words.into_iter().find(|w| w.first() == Some(&name))?.get(1)?.parse().ok()
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "user_usec 5\nusage_usec 77\nusage_usec2 9\nVmRSS:\t  12 kB\nodd\n";
        assert_eq!(field(text, "usage_usec"), Some(77.0));
        assert_eq!(field(text, "VmRSS:"), Some(12.0));
        assert_eq!((field(text, "usage"), field(text, "odd")), (None, None));
    }

    #[test]
    fn a_process_has_resident_memory() {
        assert!(resident_bytes(std::process::id()).unwrap() > 4096.0);
    }
}

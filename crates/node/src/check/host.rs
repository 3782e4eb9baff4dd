//! Privileges, limits and kernel services outside BPF.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::{FsType, statfs};

use super::Context;
use crate::config::gate_settings;
use crate::sock_diag;

/// linux/capability.h, and what each is needed for.
const CAPABILITIES: [(u32, &str, &str); 9] = [
    (5, "CAP_KILL", "to stop servers that run as another user"),
    (6, "CAP_SETGID", "to start servers as another user"),
    (7, "CAP_SETUID", "to start servers as another user"),
    (12, "CAP_NET_ADMIN", "to attach to interfaces and repair connections"),
    (13, "CAP_NET_RAW", "to announce service addresses"),
    (19, "CAP_SYS_PTRACE", "to reach the sockets of servers"),
    (21, "CAP_SYS_ADMIN", "to attach BPF programs that watch the kernel"),
    (23, "CAP_SYS_NICE", "to send heartbeats in time on a busy host"),
    (39, "CAP_BPF", "to load BPF programs"),
];

pub(super) fn capabilities(context: &mut Context<'_>) {
    let Some(effective) = effective_capabilities() else {
        let what = "cannot read the daemon's capabilities from /proc/thread-self/status";
        return context.fail(what, "they decide what it may do", "mount /proc");
    };
    let missing: Vec<_> =
        CAPABILITIES.iter().filter(|(bit, ..)| effective & (1 << bit) == 0).collect();
    for (_, name, why) in &missing {
        let mend = "run as root, or add it to AmbientCapabilities= of the service's unit";
        context.fail(format!("{name} is missing"), &format!("it is needed {why}"), mend);
    }
    if missing.is_empty() {
        context.ok("all needed capabilities are there");
    }
}

fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

pub(super) fn limits(context: &mut Context<'_>) {
    const DESCRIPTORS: u64 = 65_536;
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard < DESCRIPTORS => context.warn(
            format!("only {hard} files may be open at once"),
            "every connection that a server takes over is one",
            format!("raise it: LimitNOFILE={DESCRIPTORS} in the unit, or ulimit -Hn"),
        ),
        Ok((_, hard)) => context.ok(format!("{hard} files may be open at once")),
        Err(error) => context.warn(
            format!("the limit of open files is unknown: {error}"),
            "every connection that a server takes over is one",
            "look at `ulimit -Hn`",
        ),
    }
}

pub(super) fn realtime(context: &mut Context<'_>) {
    // On a thread of its own, which ends with its priority.
    let tried = std::thread::spawn(|| {
        let param = libc::sched_param { sched_priority: 1 };
        // SAFETY: the parameter lives on this stack and is only read; 0 is this thread.
        match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    match tried.join() {
        Ok(Ok(())) => context.ok("heartbeats can have real-time priority"),
        Ok(Err(error)) => context.warn(
            format!("heartbeats cannot have real-time priority: {error}"),
            "on a busy host the node may look dead to its peer",
            "give CAP_SYS_NICE, LimitRTPRIO=, and a cgroup with real-time time \
             (cpu.rt_runtime_us, where there is one)",
        ),
        Err(_) => unreachable!("the thread does not panic"),
    }
}

/// The socket programs are attached to the root, and each server gets a cgroup below the daemon's.
pub(super) fn cgroup2(context: &mut Context<'_>) {
    match crate::supervisor::try_cgroups() {
        Ok(()) => context.ok("cgroup v2 is there, and servers can have cgroups of their own"),
        Err(error) => context.fail(
            format!("cgroup v2 cannot be used: {error}"),
            "a server's processes are found by their cgroup, its connections from the root cgroup",
            "use a kernel with CONFIG_CGROUPS and CONFIG_CGROUP_BPF, and let the daemon make \
             cgroups below its own: with systemd, Delegate=yes and no ProtectControlGroups=",
        ),
    }
}

/// A host whose bpffs is not mounted yet is no failure: the daemon mounts it.
pub(super) fn bpffs(context: &mut Context<'_>) {
    const PLACE: &str = "/sys/fs/bpf";
    let why = "it keeps the socket programs attached when the daemon is killed";
    match statfs(PLACE) {
        Ok(found) if found.filesystem_type() == FsType(libc::BPF_FS_MAGIC) => {
            match nix::unistd::access(PLACE, nix::unistd::AccessFlags::W_OK) {
                Ok(()) => context.ok(format!("bpffs is mounted at {PLACE}")),
                Err(errno) => context.fail(
                    format!("the bpffs at {PLACE} cannot be written to: {errno}"),
                    why,
                    "mount it read-write; with systemd, leave out ProtectKernelTunables=",
                ),
            }
        }
        Ok(_) => context.warn(
            format!("no bpffs is mounted at {PLACE}; the daemon will mount it"),
            why,
            "mount -t bpf bpf /sys/fs/bpf, at every boot",
        ),
        Err(errno) => context.fail(
            format!("{PLACE} cannot be used: {errno}"),
            why,
            "mount /sys, and mount -t bpf bpf /sys/fs/bpf",
        ),
    }
}

pub(super) fn tun(context: &mut Context<'_>) {
    let tried = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    let tried = tried.and_then(|device| {
        let mut features: libc::c_uint = 0;
        // SAFETY: TUNGETFEATURES writes one unsigned int, which lives on this stack.
        match unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNGETFEATURES as _, &mut features) } {
            0 => Ok(features),
            _ => Err(io::Error::last_os_error()),
        }
    });
    let mend = "modprobe tun; in a container, pass /dev/net/tun in";
    let why = "logged segments are handed to the kernel through it";
    match tried {
        Ok(features) if features & libc::IFF_TUN as libc::c_uint != 0 => {
            context.ok("/dev/net/tun works");
        }
        Ok(_) => context.fail("/dev/net/tun offers no TUN devices", why, mend),
        Err(error) => context.fail(format!("/dev/net/tun does not work: {error}"), why, mend),
    }
}

pub(super) fn sock_destroy(context: &mut Context<'_>) {
    let why = "connections that cannot be carried over exactly are reset with it";
    let mend = "use a kernel built with CONFIG_INET_DIAG_DESTROY, and run as root";
    match sock_diag::destroy_nothing() {
        // The connection asked for does not exist: the kernel has looked for it.
        Ok(0 | libc::ENOENT) => context.ok("connections can be reset (SOCK_DESTROY)"),
        Ok(errno) => {
            let error = io::Error::from_raw_os_error(errno);
            context.fail(format!("SOCK_DESTROY does not work: {error}"), why, mend);
        }
        Err(error) => context.fail(format!("sock_diag does not work: {error}"), why, mend),
    }
}

pub(super) fn syncookies(context: &mut Context<'_>) {
    let why = "the kernel adopts connections by the way of its SYN cookies";
    let mend = "sysctl -w net.ipv4.tcp_syncookies=1, and keep it in /etc/sysctl.d";
    match fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies") {
        Ok(value) if value.trim() != "0" => {
            context.ok(format!("net.ipv4.tcp_syncookies is {}", value.trim()));
        }
        Ok(_) => context.fail("net.ipv4.tcp_syncookies is 0", why, mend),
        Err(error) => {
            let what = format!("net.ipv4.tcp_syncookies cannot be read: {error}");
            context.fail(what, why, "use a kernel built with CONFIG_SYN_COOKIES");
        }
    }
}

pub(super) fn send_buffer(context: &mut Context<'_>) {
    let Some(config) = context.config.filter(|_| context.holds_output()) else { return };
    let needed = gate_settings(&config.services).wmem_max_needed();
    let why = "a server that finds no room for the reply that is held would wait for ever";
    let allowed = fs::read_to_string("/proc/sys/net/core/wmem_max")
        .and_then(|value| value.trim().parse::<u32>().map_err(io::Error::other));
    match allowed {
        Ok(allowed) if allowed >= needed => {
            context.ok(format!("net.core.wmem_max is {allowed}, which is enough for held replies"));
        }
        Ok(allowed) => context.fail(
            format!("net.core.wmem_max is {allowed}, less than {needed}"),
            why,
            format!(
                "sysctl -w net.core.wmem_max={needed}, and put it into /etc/sysctl.d; or lower \
                 the largest reply_budget_kib"
            ),
        ),
        Err(error) => context.fail(
            format!("net.core.wmem_max cannot be read: {error}"),
            why,
            format!("mount /proc, and set net.core.wmem_max to {needed} at least"),
        ),
    }
}

//! Slow hosts: less CPU time, less memory.
//!
//! Both are limits of cgroup controllers, and a controller is in one hierarchy only: in
//! cgroup2, as distributions have it today, or in one of version 1. With cgroup2 the limit is
//! written into the cgroup that the host has anyway. With version 1 the host gets a cgroup of
//! that hierarchy when it is first slowed, below the keeper's own, and all its processes move
//! there; they are charged for memory that they touch from then on. A lab that slows nobody
//! makes none of this.

use std::{
    fmt, fs,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    path::Path,
    ptr,
    time::Duration,
};

use nix::{
    fcntl::{OFlag, openat},
    sys::stat::Mode,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Doing, Error, Result},
    host::{Host, Running},
    lab::Lab,
    rundir, sys,
};

/// How slow a host is; the default is not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slow {
    /// CPU time for all its processes together, in percent of one CPU, at least 1. Real-time
    /// threads are held to it as well.
    pub cpu_percent: Option<u32>,
    /// Memory for all its processes together, MiB. They lose their page cache, swap, and are
    /// killed when even that is not enough; but for the first one, which is the lab's.
    pub memory_mib: Option<u64>,
}

impl fmt::Display for Slow {
    /// Such as `20% of a CPU, 64 MiB of memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = self.cpu_percent.map(|percent| format!("{percent}% of a CPU"));
        let memory = self.memory_mib.map(|mib| format!("{mib} MiB of memory"));
        let limits: Vec<_> = cpu.into_iter().chain(memory).collect();
        f.write_str(if limits.is_empty() { "full speed" } else { "" })?;
        f.write_str(&limits.join(", "))
    }
}

/// How a host has felt its memory limit, since it first had one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starved {
    /// Times that the limit was in the way of memory that was asked for.
    pub reached: u64,
    /// Processes that were killed for want of memory.
    pub killed: u64,
}

/// The shortest quota that the kernel takes.
const QUOTA_LEAST: Duration = Duration::from_millis(1);
/// The period of a quota, unless the quota were too short: little enough that a slow host is
/// slow, and does not stop and go.
const PERIOD: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Cpu,
    Memory,
}

impl Controller {
    const ALL: [Controller; 2] = [Controller::Cpu, Controller::Memory];

    fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Memory => "memory",
        }
    }

    fn missing(self) -> Error {
        let missing = format!("the cgroup controller \"{}\" is not available", self.name());
        let mend = match self {
            Controller::Cpu => {
                "on cgroup2, let the root give it on: \
                 echo +cpu > /sys/fs/cgroup/cgroup.subtree_control"
            }
            Controller::Memory => {
                "on cgroup2, let the root give it on: \
                 echo +memory > /sys/fs/cgroup/cgroup.subtree_control"
            }
        };
        Error::Preflight { missing, mend }
    }
}

/// A hierarchy of version 1.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    /// All controllers of it, as in `/proc/self/cgroup`.
    controllers: String,
    /// The cgroup of this process in it.
    own: String,
}

/// The hierarchy of version 1 that has a controller, from `/proc/self/cgroup`.
fn hierarchy(text: &str, controller: Controller) -> Option<Hierarchy> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, own) = (fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|c| c == controller.name())
            .then(|| Hierarchy { controllers: controllers.to_owned(), own: own.to_owned() })
    })
}

impl Hierarchy {
    /// Mounts it privately, as [`sys::cgroup_root`] does with cgroup2; opens this process's
    /// own cgroup.
    fn open(&self) -> io::Result<OwnedFd> {
        const FSCONFIG_SET_FLAG: u32 = 0;
        const FSCONFIG_CMD_CREATE: u32 = 6;
        let cloexec = 1; // FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC
        let done = |rc: libc::c_long| {
            if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc as i32) }
        };
        // SAFETY: the names are C strings; a new descriptor is ours alone.
        let root = unsafe {
            let fs = done(libc::syscall(libc::SYS_fsopen, c"cgroup".as_ptr(), cloexec))?;
            let fs = OwnedFd::from_raw_fd(fs);
            let config = |command: u32, name: *const libc::c_char| {
                let null = ptr::null::<libc::c_char>();
                done(libc::syscall(libc::SYS_fsconfig, fs.as_raw_fd(), command, name, null, 0))
            };
            for controller in self.controllers.split(',') {
                config(FSCONFIG_SET_FLAG, sys::cstring(controller)?.as_ptr())?;
            }
            config(FSCONFIG_CMD_CREATE, ptr::null())?;
            let mount = done(libc::syscall(libc::SYS_fsmount, fs.as_raw_fd(), cloexec, 0))?;
            OwnedFd::from_raw_fd(mount)
        };
        open_below(&root, &format!(".{}", self.own), OFlag::O_RDONLY | OFlag::O_DIRECTORY)
    }
}

fn open_below(dir: &OwnedFd, path: &str, flags: OFlag) -> io::Result<OwnedFd> {
    Ok(openat(dir, path, flags | OFlag::O_CLOEXEC, Mode::empty())?)
}

fn read_below(dir: &OwnedFd, file: &str) -> io::Result<String> {
    io::read_to_string(fs::File::from(open_below(dir, file, OFlag::O_RDONLY)?))
}

fn write_below(dir: &OwnedFd, file: &str, value: &str) -> io::Result<()> {
    fs::File::from(open_below(dir, file, OFlag::O_WRONLY)?).write_all(value.as_bytes())
}

/// A host's cgroup in a hierarchy of version 1. Removed when dropped, after the processes.
#[derive(Debug)]
struct Group {
    controller: Controller,
    name: String,
    parent: OwnedFd,
    dir: OwnedFd,
}

impl Drop for Group {
    fn drop(&mut self) {
        // What cannot be removed now is swept by the next lab.
        let _ = sys::remove_cgroup(self.parent.as_fd(), &self.name);
    }
}

/// A host's cgroups of version 1, if it has been slowed.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Vec<Group>);

impl Lab {
    /// Slows a host down until it is killed or this is called again; `Slow::default()` lets
    /// it go at full speed.
    ///
    /// # Errors
    /// There is no such host, it is down, a limit is 0, or the machine does not let the
    /// controller be used ([`Error::Preflight`], with how to mend it).
    pub fn slow(&self, host: &str, slow: &Slow) -> Result<()> {
        let host = self.host(host)?;
        if slow.cpu_percent == Some(0) || slow.memory_mib == Some(0) {
            let said = format!("host {} cannot run on nothing; give at least 1", host.name());
            return Err(Error::Refused(said));
        }
        let running = host.running()?;
        // No process is started meanwhile: it would not know its cgroups.
        let children = running.children();
        children.accept(host.name())?;
        let mut throttle = running.throttle();
        if slow.memory_mib.is_some() {
            spare_first(&running);
        }
        for controller in Controller::ALL {
            let wanted = match controller {
                Controller::Cpu => slow.cpu_percent.is_some(),
                Controller::Memory => slow.memory_mib.is_some(),
            };
            let dir = self.limits_of(host, &running, &mut throttle, controller, wanted)?;
            let Some(dir) = dir else { continue }; // there is no limit to lift
            limit(&dir, controller, slow)
                .doing(|| format!("limit the {} of host {}", controller.name(), host.name()))?;
        }
        drop(children);
        running.set_slow(*slow);
        Ok(())
    }

    /// How a host feels its memory limit.
    ///
    /// # Errors
    /// There is no such host, it is down, or the kernel does not tell.
    pub fn starved(&self, host: &str) -> Result<Starved> {
        let running = self.host(host)?.running()?;
        let dir = self.memory_of(host, &running)?;
        let starved = dir.map(|dir| starved(&dir)).transpose();
        Ok(starved.doing(|| format!("see how host {host} starves"))?.unwrap_or_default())
    }

    /// Takes from a host that has a memory limit all memory that it could still have: what it asks
    /// for next is beyond the limit. Memory that it touched before it first had a limit may not
    /// count (see the file's head), so any other limit may be one that it never feels.
    ///
    /// # Errors
    /// There is no such host, it is down, or it has no limit.
    pub fn tighten(&self, host: &str) -> Result<()> {
        let running = self.host(host)?.running()?;
        let limited = running.slow().memory_mib.is_some();
        let dir = self.memory_of(host, &running)?.filter(|_| limited);
        let none = || Error::Refused(format!("host {host} has no memory limit to tighten"));
        tighten(&dir.ok_or_else(none)?).doing(|| format!("tighten the memory of host {host}"))
    }

    fn memory_of(&self, host: &str, running: &Running) -> Result<Option<OwnedFd>> {
        let mut throttle = running.throttle();
        self.limits_of(self.host(host)?, running, &mut throttle, Controller::Memory, false)
    }

    /// Where the host's limits are written. `None` if it is not `wanted` and not there.
    fn limits_of(
        &self,
        host: &Host,
        running: &Running,
        throttle: &mut Throttle,
        controller: Controller,
        wanted: bool,
    ) -> Result<Option<OwnedFd>> {
        let doing = || format!("limit the {} of host {}", controller.name(), host.name());
        let name = rundir::cgroup_prefix(self.dir()).doing(doing)? + host.name();
        if let Some(group) = throttle.0.iter().find(|group| group.controller == controller) {
            return group.dir.try_clone().map(Some).doing(doing);
        }
        let v2 = sys::cgroup_root()
            .and_then(|root| open_below(&root, &name, OFlag::O_RDONLY | OFlag::O_DIRECTORY))
            .doing(doing)?;
        if open_below(&v2, v2_file(controller), OFlag::O_RDONLY).is_ok() {
            return Ok(Some(v2));
        }
        if !wanted {
            return Ok(None);
        }
        let text = fs::read_to_string("/proc/self/cgroup").doing(doing)?;
        let hierarchy = hierarchy(&text, controller).ok_or_else(|| controller.missing())?;
        remember(self.dir(), &hierarchy).doing(doing)?;
        let parent = hierarchy.open().doing(doing)?;
        let dir = sys::make_cgroup(parent.as_fd(), &name).doing(doing)?;
        let group = Group { controller, name, parent, dir };
        if controller == Controller::Cpu {
            // Or a real-time thread could not move in.
            write_real_time(&group.dir, PERIOD, PERIOD).doing(doing)?;
        }
        let procs = open_below(&group.dir, "cgroup.procs", OFlag::O_WRONLY).doing(doing)?;
        running.add_procs(procs.try_clone().doing(doing)?);
        let dir = group.dir.try_clone().doing(doing)?;
        throttle.0.push(group);
        let first = (controller != Controller::Memory).then_some(running.init.pid);
        move_all(running, first, &dir, procs)?;
        Ok(Some(dir))
    }
}

/// Has the kernel rather kill any other process of a host for want of memory than the first, whose
/// end would be the end of the host, and that is another fault. Where the memory controller is of
/// version 1 the first one is not held to the limit at all; with version 2 all processes of a host
/// share one cgroup.
fn spare_first(running: &Running) {
    // Refused without CAP_SYS_RESOURCE, which some containers lack.
    let _ = fs::write(format!("/proc/{}/oom_score_adj", running.init.pid), "-1000");
}

/// Moves all processes of a host, perhaps with the `first`; a child of one that has moved is born
/// there.
fn move_all(running: &Running, first: Option<u32>, group: &OwnedFd, procs: OwnedFd) -> Result<()> {
    let doing = || format!("move the processes of host {}", running.name);
    let mut procs = fs::File::from(procs);
    loop {
        let there = read_below(group, "cgroup.procs").doing(doing)?;
        let moved: Vec<u32> = there.lines().filter_map(|line| line.parse().ok()).collect();
        let processes = running.processes()?.into_iter().map(|process| process.pid);
        let all = processes.chain(first);
        let left: Vec<u32> = all.filter(|pid| !moved.contains(pid) && is_alive(*pid)).collect();
        if left.is_empty() {
            return Ok(());
        }
        for pid in left {
            match procs.write(pid.to_string().as_bytes()) {
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {} // it has ended
                other => drop(other.doing(doing)?),
            }
        }
    }
}

/// A zombie belongs to no cgroup that it could leave.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

fn v2_file(controller: Controller) -> &'static str {
    match controller {
        Controller::Cpu => "cpu.max",
        Controller::Memory => "memory.max",
    }
}

/// Writes a limit, or that there is none, whichever version the cgroup is of.
fn limit(dir: &OwnedFd, controller: Controller, slow: &Slow) -> io::Result<()> {
    let v2 = open_below(dir, v2_file(controller), OFlag::O_RDONLY).is_ok();
    match controller {
        Controller::Memory => {
            let bytes = slow.memory_mib.map(|mib| (mib << 20).to_string());
            match (v2, bytes) {
                (true, bytes) => write_below(dir, "memory.max", bytes.as_deref().unwrap_or("max")),
                (false, bytes) => {
                    write_below(dir, "memory.limit_in_bytes", bytes.as_deref().unwrap_or("-1"))
                }
            }
        }
        Controller::Cpu => {
            let quota = slow.cpu_percent.map(quota);
            match (v2, quota) {
                (true, None) => write_below(dir, "cpu.max", "max"),
                (true, Some((quota, period))) => {
                    let value = format!("{} {}", quota.as_micros(), period.as_micros());
                    write_below(dir, "cpu.max", &value)
                }
                (false, None) => {
                    write_below(dir, "cpu.cfs_quota_us", "-1")?;
                    write_real_time(dir, PERIOD, PERIOD)
                }
                (false, Some((quota, period))) => {
                    // The kernel checks the pair: the quota that is there must not be in the
                    // way of the period.
                    write_below(dir, "cpu.cfs_quota_us", "-1")?;
                    write_below(dir, "cpu.cfs_period_us", &period.as_micros().to_string())?;
                    write_below(dir, "cpu.cfs_quota_us", &quota.as_micros().to_string())?;
                    write_real_time(dir, quota, period)
                }
            }
        }
    }
}

fn starved(dir: &OwnedFd) -> io::Result<Starved> {
    // A line of a file of counters.
    let count = |text: &str, name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse().ok()).ok_or(io::ErrorKind::InvalidData)
    };
    if let Ok(events) = read_below(dir, "memory.events") {
        return Ok(Starved {
            reached: count(&events, "max")?,
            killed: count(&events, "oom_kill")?,
        });
    }
    let reached = read_below(dir, "memory.failcnt")?;
    let reached = reached.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    let killed = count(&read_below(dir, "memory.oom_control")?, "oom_kill")?;
    Ok(Starved { reached, killed })
}

/// The least limit, bytes: with none at all nobody runs.
const LIMIT_LEAST: u64 = 4096;

fn tighten(dir: &OwnedFd) -> io::Result<()> {
    let v2 = open_below(dir, v2_file(Controller::Memory), OFlag::O_RDONLY).is_ok();
    let (used, limit) = match v2 {
        true => ("memory.current", "memory.max"),
        false => ("memory.usage_in_bytes", "memory.limit_in_bytes"),
    };
    let used: u64 =
        read_below(dir, used)?.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    match write_below(dir, limit, &used.max(LIMIT_LEAST).to_string()) {
        // Version 1 takes no limit below what is used, which has grown meanwhile: the host asks
        // for memory, and the next attempt finds it near the limit that it has.
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Ok(()),
        other => other,
    }
}

/// CPU time, and for which time. The period is what is rounded to whole microseconds where it
/// must be: a quota that were rounded down could be too short.
fn quota(percent: u32) -> (Duration, Duration) {
    let quota = QUOTA_LEAST.max(PERIOD * percent / 100);
    (quota, quota * 100 / percent)
}

/// How much of it real-time threads may use: as much as asked, or what the machine's
/// real-time budget leaves, which all cgroups share. Kernels that do not account for it have
/// no such file.
fn write_real_time(dir: &OwnedFd, quota: Duration, period: Duration) -> io::Result<()> {
    let file = "cpu.rt_runtime_us";
    match write_below(dir, file, "0") {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        // Real-time threads run there: it cannot be nothing, so it stays until replaced.
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
        other => other?,
    }
    write_below(dir, "cpu.rt_period_us", &period.as_micros().to_string())?;
    let mut quota = quota.min(period);
    loop {
        match write_below(dir, file, &quota.as_micros().to_string()) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && !quota.is_zero() => {
                quota = quota * 3 / 4;
                if quota < Duration::from_micros(10) {
                    return Err(e);
                }
            }
            other => return other,
        }
    }
}

/// The hierarchies in which a lab has made cgroups, for whoever sweeps up after it.
const MEMORY: &str = "hierarchies";

fn remember(lab_dir: &Path, hierarchy: &Hierarchy) -> io::Result<()> {
    let line = format!("{}:{}\n", hierarchy.controllers, hierarchy.own);
    let path = lab_dir.join(MEMORY);
    if fs::read_to_string(&path).unwrap_or_default().contains(&line) {
        return Ok(());
    }
    fs::File::options().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

/// The places, each a directory, where a lab has made cgroups of version 1.
pub(crate) fn places(lab_dir: &Path) -> io::Result<Vec<OwnedFd>> {
    let text = fs::read_to_string(lab_dir.join(MEMORY)).unwrap_or_default(); // most have none
    let hierarchies = text.lines().filter_map(|line| line.split_once(':'));
    hierarchies
        .map(|(controllers, own)| {
            Hierarchy { controllers: controllers.to_owned(), own: own.to_owned() }.open()
        })
        .filter(|place| !matches!(place, Err(e) if e.kind() == io::ErrorKind::NotFound))
        .collect()
}

/// `cgroup.procs` of a host's cgroups of version 1, for a process that is not the keeper.
pub(crate) fn procs_of(lab_dir: &Path, name: &str) -> io::Result<Vec<OwnedFd>> {
    let path = format!("{name}/cgroup.procs");
    let open = |place: &OwnedFd| open_below(place, &path, OFlag::O_WRONLY);
    let found = places(lab_dir)?;
    let opened = found.iter().map(open);
    opened.filter(|p| !matches!(p, Err(e) if e.kind() == io::ErrorKind::NotFound)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_found_in_their_hierarchy() {
        let text = "4:memory:/user/a:b\n2:cpu,cpuacct:/\n1:name=systemd:/\n0::/user\n";
        let cpu = Hierarchy { controllers: "cpu,cpuacct".into(), own: "/".into() };
        assert_eq!(hierarchy(text, Controller::Cpu), Some(cpu));
        let memory = Hierarchy { controllers: "memory".into(), own: "/user/a:b".into() };
        assert_eq!(hierarchy(text, Controller::Memory), Some(memory));
        assert_eq!(hierarchy("0::/user\n", Controller::Memory), None);
        assert!(Controller::Cpu.missing().to_string().contains("echo +cpu"));
    }

    #[test]
    fn quotas_are_ones_that_the_kernel_takes() {
        let ms = Duration::from_millis;
        assert_eq!(quota(50), (ms(5), ms(10)));
        assert_eq!(quota(200), (ms(20), ms(10)));
        assert_eq!(quota(1), (ms(1), ms(100)));
        for percent in 1..=100 {
            let (quota, period) = quota(percent);
            let (quota, period) = (quota.as_micros(), period.as_micros());
            // min_cfs_quota_period and max_cfs_quota_period in the kernel's kernel/sched.
            assert!(quota >= 1000 && period <= 1_000_000, "{percent}%: {quota} of {period} µs");
            let percent = u128::from(percent);
            assert!((quota * 100).abs_diff(period * percent) <= percent, "{percent}%: {period} µs");
        }
    }

    /// A directory stands for a cgroup of version 2, because a machine may have given both
    /// controllers to version 1. It takes whatever is written: this shows that the right files
    /// get what the kernel's documentation asks for, not that a kernel takes it.
    #[test]
    fn limits_of_version_2_are_written_as_documented() {
        let dir = tempfile::tempdir().unwrap();
        let cgroup = || OwnedFd::from(fs::File::open(dir.path()).unwrap());
        let written = |slow: Slow| {
            let paths = ["cpu.max", "memory.max"].map(|file| dir.path().join(file));
            paths.iter().for_each(|path| fs::write(path, "").unwrap());
            Controller::ALL.iter().for_each(|c| limit(&cgroup(), *c, &slow).unwrap());
            paths.map(|path| fs::read_to_string(path).unwrap())
        };
        let both = Slow { cpu_percent: Some(20), memory_mib: Some(64) };
        assert_eq!(written(both), ["2000 10000", "67108864"]);
        let cpu = Slow { cpu_percent: Some(1), memory_mib: None };
        assert_eq!(written(cpu), ["1000 100000", "max"]);
        assert_eq!(written(Slow::default()), ["max", "max"]);
        fs::write(dir.path().join("memory.current"), "9000000\n").unwrap();
        tighten(&cgroup()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("memory.max")).unwrap(), "9000000");
        let events = "low 0\nhigh 1\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n";
        fs::write(dir.path().join("memory.events"), events).unwrap();
        assert_eq!(starved(&cgroup()).unwrap(), Starved { reached: 7, killed: 2 });
    }
}

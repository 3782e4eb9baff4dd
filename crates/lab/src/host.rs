//! A host of the lab: its processes, its addresses, its network from inside.

use std::{
    ffi::OsStr,
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use nix::sched::CloneFlags;

use crate::{
    command::{Command, Process},
    error::{Doing, Error, Result},
    init::{Control, Init},
    sys,
    throttle::{Slow, Throttle},
    topology::{HostSpec, Link},
};

/// A host. Cheap to clone; every clone is the same host, across kill and boot.
#[derive(Clone, Debug)]
pub struct Host(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    spec: HostSpec,
    running: Mutex<Option<Arc<Running>>>,
}

/// A host between boot and kill.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) init: Init,
    /// `cgroup.procs` of each of its cgroups.
    procs: Mutex<Vec<Arc<OwnedFd>>>,
    throttle: Mutex<Throttle>,
    slow: Mutex<Slow>,
    /// `None` in a process that is not the keeper.
    control: Option<Control>,
    children: Mutex<Children>,
}

/// The processes that this process has started in the host, and whether it may start more.
#[derive(Debug, Default)]
pub(crate) struct Children {
    list: Vec<Arc<Process>>,
    hung: bool,
    dead: bool,
}

impl Children {
    pub(crate) fn accept(&self, host: &str) -> Result<()> {
        match self {
            Children { dead: true, .. } => Err(Error::HostDown(host.to_owned())),
            Children { hung: true, .. } => Err(Error::HostHung(host.to_owned())),
            _ => Ok(()),
        }
    }

    /// Adds a child, and reaps those whose owners have let them go.
    pub(crate) fn add(&mut self, child: Arc<Process>) {
        self.list.retain(|c| !matches!(c.try_wait(), Ok(Some(_))));
        self.list.push(child);
    }
}

/// A process of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its id as seen from outside the host.
    pub pid: u32,
    /// Its name as the kernel knows it (at most 15 bytes).
    pub name: String,
    /// Its arguments, the program first.
    pub command: Vec<String>,
}

impl ProcessInfo {
    /// Whether its name or one of its arguments contains `text`.
    pub fn matches(&self, text: &str) -> bool {
        self.name.contains(text) || self.command.iter().any(|arg| arg.contains(text))
    }
}

impl Host {
    pub(crate) fn new(spec: HostSpec) -> Host {
        Host(Arc::new(Shared { spec, running: Mutex::new(None) }))
    }

    pub(crate) fn spec(&self) -> &HostSpec {
        &self.0.spec
    }

    pub(crate) fn running(&self) -> Result<Arc<Running>> {
        self.slot().clone().ok_or_else(|| Error::HostDown(self.name().to_owned()))
    }

    /// Held while the host changes between up and down.
    pub(crate) fn slot(&self) -> MutexGuard<'_, Option<Arc<Running>>> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// Whether it is on the cluster link too.
    pub fn is_node(&self) -> bool {
        self.0.spec.node
    }

    /// Its IPv4 address on `link` (prefix length 24).
    pub fn ipv4(&self, link: Link) -> Ipv4Addr {
        self.0.spec.ipv4(link)
    }

    /// Its IPv6 address on `link` (prefix length 64).
    pub fn ipv6(&self, link: Link) -> Ipv6Addr {
        self.0.spec.ipv6(link)
    }

    /// Its MAC address on `link`.
    pub fn mac(&self, link: Link) -> [u8; 6] {
        self.0.spec.mac(link)
    }

    /// Whether it is up (a host that hangs is up).
    pub fn is_up(&self) -> bool {
        self.slot().is_some()
    }

    /// Whether all its processes are stopped.
    pub fn is_hung(&self) -> bool {
        self.running().is_ok_and(|r| r.children().hung)
    }

    /// How slow it has been made.
    ///
    /// # Errors
    /// [`Error::HostDown`].
    pub fn slowness(&self) -> Result<Slow> {
        Ok(self.running()?.slow())
    }

    /// The id, outside the host, of its first process.
    ///
    /// # Errors
    /// [`Error::HostDown`].
    pub fn init_pid(&self) -> Result<u32> {
        Ok(self.running()?.init.pid)
    }

    /// A command that will run inside this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(self.clone(), program.as_ref(), true)
    }

    /// A command that will run inside this host in the caller's process group, so that a
    /// terminal treats it as the caller.
    pub fn interactive(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(self.clone(), program.as_ref(), false)
    }

    /// Runs `f` on a thread of this process inside the host's network namespace. Sockets
    /// that it returns stay in that namespace, and do not close when the host is killed.
    ///
    /// # Errors
    /// [`Error::HostDown`].
    pub fn in_netns<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        let running = self.running()?;
        sys::on_thread(|| {
            running
                .init
                .pidfd
                .enter(CloneFlags::CLONE_NEWNET)
                .map_err(|_| Error::HostDown(running.name.clone()))?;
            Ok(f())
        })
    }

    /// Its processes except the first, which belongs to the lab.
    ///
    /// # Errors
    /// [`Error::HostDown`].
    pub fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.running()?.processes()
    }

    /// Sends a signal to those of its processes that `which` picks, and says which.
    ///
    /// # Errors
    /// [`Error::NoProcess`] if it picks none.
    pub fn signal(
        &self,
        signal: i32,
        what: &str,
        which: impl Fn(&ProcessInfo) -> bool,
    ) -> Result<Vec<ProcessInfo>> {
        let mut hit = self.processes()?;
        hit.retain(which);
        if hit.is_empty() {
            return Err(Error::NoProcess { host: self.name().to_owned(), what: what.to_owned() });
        }
        // Descriptors first: a server's helper may end, and its number be used again, as
        // soon as the server dies.
        let open: Vec<_> = hit.iter().filter_map(|p| sys::Pidfd::open(p.pid).ok()).collect();
        for pidfd in open {
            pidfd.signal(signal).doing(|| format!("signal {what} of host {}", self.name()))?;
        }
        Ok(hit)
    }
}

impl Running {
    pub(crate) fn new(
        name: &str,
        init: Init,
        control: Option<Control>,
        cgroup_procs: OwnedFd,
    ) -> Running {
        Running {
            name: name.to_owned(),
            init,
            procs: Mutex::new(vec![Arc::new(cgroup_procs)]),
            throttle: Mutex::default(),
            slow: Mutex::default(),
            control,
            children: Mutex::default(),
        }
    }

    /// What processes that are started from now on join. Locked after `children`.
    pub(crate) fn procs(&self) -> Vec<Arc<OwnedFd>> {
        self.procs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn add_procs(&self, procs: OwnedFd) {
        self.procs.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(procs));
    }

    /// Locked after `children`.
    pub(crate) fn throttle(&self) -> MutexGuard<'_, Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn slow(&self) -> Slow {
        *self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_slow(&self, slow: Slow) {
        *self.slow.lock().unwrap_or_else(PoisonError::into_inner) = slow;
    }

    pub(crate) fn children(&self) -> MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its processes except the first.
    pub(crate) fn processes(&self) -> Result<Vec<ProcessInfo>> {
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/pid"));
        let ours = namespace(self.init.pid).doing(|| format!("look into {}", self.name))?;
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").doing(|| "list processes".to_owned())? {
            let entry = entry.doing(|| "list processes".to_owned())?;
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            // Processes come and go while we look: what cannot be read is gone.
            if pid == self.init.pid || !namespace(pid).is_ok_and(|n| n == ours) {
                continue;
            }
            let read = |file| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let command = read("cmdline").split_terminator('\0').map(str::to_owned).collect();
            found.push(ProcessInfo { pid, name: read("comm").trim_end().to_owned(), command });
        }
        found.sort_by_key(|p| p.pid);
        Ok(found)
    }

    /// Stops (`true`) or continues every process at one instant. Only the keeper can.
    pub(crate) fn set_hung(&self, hung: bool) -> Result<()> {
        let mut children = self.children();
        if children.dead {
            return Err(Error::HostDown(self.name.clone()));
        }
        let control = self.control.as_ref().expect("hosts are stopped by their keeper");
        let signal = if hung { libc::SIGSTOP } else { libc::SIGCONT };
        control
            .signal_all(signal)
            .doing(|| format!("signal all processes of host {}", self.name))?;
        children.hung = hung;
        Ok(())
    }

    /// SIGKILLs the first process; the kernel does the rest. Does not wait.
    pub(crate) fn strike(&self) -> Result<()> {
        self.init
            .pidfd
            .signal(libc::SIGKILL)
            .doing(|| format!("kill the first process of host {}", self.name))
    }

    /// Waits until every process of a struck host is gone. Children of ours must be
    /// reaped first: the kernel ends a PID namespace only when the last of them is.
    pub(crate) fn bury(&self) -> Result<()> {
        let list = {
            let mut children = self.children();
            children.dead = true;
            std::mem::take(&mut children.list)
        };
        let doing = || format!("wait for the end of host {}", self.name);
        let patience = Some(Duration::from_secs(10));
        for child in list {
            child.wait(patience).doing(doing)?;
        }
        if !self.init.pidfd.ended(patience).doing(doing)? {
            return Err(std::io::Error::from(std::io::ErrorKind::TimedOut)).doing(doing);
        }
        self.init.pidfd.reap().doing(doing)?;
        Ok(())
    }
}

//! The lab itself: building it, its parts, and its end.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use nix::fcntl::OFlag;

use crate::{
    capture::{Capture, CaptureOptions, Tap},
    error::{Doing, Error, Result},
    faults::Faults,
    host::{Host, Running},
    init::Init,
    node::Node,
    preflight,
    rundir::{self, RunDir},
    sys,
    topology::{Link, Topology},
    trip::Trips,
    wires::{Rate, Switch, Way, bridge_index, cut_bits, host_index, open_socket, port_index},
};

/// Describes a lab before it is up. Begin with [`Lab::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    name: Option<String>,
    hosts: Vec<(String, bool)>,
    rates: [Option<Rate>; 2],
    mtu: u32,
    steadfast: Option<PathBuf>,
    artifacts: Option<PathBuf>,
}

impl Builder {
    /// Names the lab (1 to 32 of a-z, 0-9 and -). The default is the first free of `lab1`,
    /// `lab2`, ….
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Replaces the hosts `client`, `a` and `b`. At most [`MAX_HOSTS`](crate::MAX_HOSTS).
    #[must_use]
    pub fn hosts(mut self, clients: &[&str], nodes: &[&str]) -> Self {
        let (c, n) = (clients.iter().map(|h| (h, false)), nodes.iter().map(|h| (h, true)));
        self.hosts = c.chain(n).map(|(name, node)| ((*name).to_owned(), node)).collect();
        self
    }

    /// Shapes a link, every cable of it, in both directions.
    #[must_use]
    pub fn rate(mut self, link: Link, rate: Rate) -> Self {
        self.rates[link.number()] = Some(rate);
        self
    }

    /// MTU of all links, bytes; 1500 unless set.
    #[must_use]
    pub fn mtu(mut self, bytes: u32) -> Self {
        self.mtu = bytes;
        self
    }

    /// The product binary for [`Lab::start_node`]; `$STEADFAST_BIN` unless set.
    #[must_use]
    pub fn steadfast(mut self, binary: impl Into<PathBuf>) -> Self {
        self.steadfast = Some(binary.into());
        self
    }

    /// Where the lab's files (captures, logs, configs) are copied, into a folder with the
    /// lab's name, when it ends during a panic or after [`Lab::keep_files`].
    #[must_use]
    pub fn artifacts(mut self, dir: impl Into<PathBuf>) -> Self {
        self.artifacts = Some(dir.into());
        self
    }

    /// Brings the lab up: hosts booted, links up, addresses usable.
    ///
    /// # Errors
    /// [`Error::Preflight`] if the machine cannot run a lab, [`Error::NameTaken`], or what
    /// the kernel refused. Nothing is left behind.
    pub fn up(self) -> Result<Lab> {
        let topology = Topology::new(&self.hosts)?;
        preflight::check()?;
        let dir = RunDir::create(self.name.as_deref())?;
        fs::write(dir.path.join("hosts"), topology.hosts_file())
            .doing(|| format!("write {}/hosts", dir.path.display()))?;
        let hosts: Vec<_> = topology.hosts().iter().cloned().map(Host::new).collect();
        let cables = topology
            .hosts()
            .iter()
            .map(|_| self.rates.map(|rate| Cable { rate, ..Cable::default() }));
        let lab = Lab {
            switch: Switch::new(self.mtu)?,
            hosts,
            cables: Mutex::new(cables.collect()),
            nodes: Mutex::default(),
            taps: Mutex::default(),
            trips: Trips::default(),
            steadfast: self.steadfast.or_else(|| std::env::var_os("STEADFAST_BIN").map(Into::into)),
            artifacts: self.artifacts,
            keep: AtomicBool::new(false),
            topology,
            dir,
        };
        for host in &lab.hosts {
            lab.boot(host.name())?;
        }
        Ok(lab)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cable {
    rate: Option<Rate>,
    carrier_off: bool,
    /// By way.
    pub(crate) faults: [Faults; 2],
}

/// A running lab. Dropping it takes it down: processes, namespaces, links, files.
#[derive(Debug)]
pub struct Lab {
    pub(crate) topology: Topology,
    pub(crate) switch: Switch,
    hosts: Vec<Host>,
    /// By host, by link. Locked after a host's slot, never before.
    cables: Mutex<Vec<[Cable; 2]>>,
    pub(crate) nodes: Mutex<BTreeMap<String, Arc<Node>>>,
    taps: Mutex<Vec<Arc<Tap>>>,
    pub(crate) trips: Trips,
    pub(crate) steadfast: Option<PathBuf>,
    artifacts: Option<PathBuf>,
    keep: AtomicBool,
    dir: RunDir,
}

impl Lab {
    /// A lab with the hosts `client`, `a` and `b`, unshaped.
    pub fn builder() -> Builder {
        Builder {
            name: None,
            hosts: vec![("client".into(), false), ("a".into(), true), ("b".into(), true)],
            rates: [None; 2],
            mtu: 1500,
            steadfast: None,
            artifacts: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.dir.name
    }

    /// Its directory: captures, configs, logs. Visible at the same path in every host.
    /// Removed when the lab ends.
    pub fn dir(&self) -> &Path {
        &self.dir.path
    }

    /// All hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// A host by name.
    ///
    /// # Errors
    /// [`Error::NoHost`], with the names there are.
    pub fn host(&self, name: &str) -> Result<&Host> {
        self.hosts.iter().find(|h| h.name() == name).ok_or_else(|| {
            let known: Vec<_> = self.hosts.iter().map(Host::name).collect();
            Error::NoHost { name: name.to_owned(), known: known.join(", ") }
        })
    }

    /// Boots a host that was killed: new kernel objects, the same addresses and MACs, all
    /// its links healed once everything is in place. Faults of its cables stay as they are.
    ///
    /// # Errors
    /// There is no such host, [`Error::HostUp`], or what the kernel refused.
    pub fn boot(&self, host: &str) -> Result<()> {
        let host = self.host(host)?;
        let spec = host.spec();
        let mut slot = host.slot();
        if slot.is_some() {
            return Err(Error::HostUp(host.name().to_owned()));
        }
        let all = cut_bits(&Link::ALL, &Way::BOTH);
        self.switch.wires.cut(spec.index, all);
        self.discard_held(spec.index); // from before its death
        let (cgroup, cgroup_procs) = self.make_cgroup(host.name())?;
        let (init, control) = Init::start(host.name(), self.dir(), cgroup)?;
        let running = Running::new(host.name(), init, Some(control), cgroup_procs);
        let plugged = {
            let mut cables = self.cables();
            for cable in &mut cables[spec.index] {
                cable.carrier_off = false;
            }
            let cables = cables[spec.index];
            self.switch.plug(spec, &running.init, |link| cables[link.number()].rate)
        };
        if let Err(e) = plugged {
            running.strike()?;
            running.bury()?;
            return Err(e);
        }
        self.switch.wires.heal(spec.index, all);
        *slot = Some(Arc::new(running));
        Ok(())
    }

    /// Captures what passes a point of the switch into `<dir>/<point>.pcap`.
    ///
    /// `svc` or `clu`: the link's bridge, that is every frame that a cable let through into
    /// the switch. `a.svc`: that cable's end in the switch; frames towards the host are
    /// seen after cut and faults, frames from the host before them, so this shows what a host
    /// whose cable is cut still tries to send. A duplicate that a fault makes of a host's frame
    /// is seen behind that cable only. A frame's sender is always the one it had here; its
    /// receiver may be the next hop's, if the host has forwarded it by `bpf_redirect_neigh`.
    ///
    /// # Errors
    /// [`Error::NoLink`], or the kernel refuses a packet socket.
    pub fn capture(&self, point: &str, options: CaptureOptions) -> Result<Capture> {
        let index = match point {
            "svc" | "service" => bridge_index(Link::Service),
            "clu" | "cluster" => bridge_index(Link::Cluster),
            _ => {
                let (host, link) = self.topology.cable(point)?;
                port_index(host, link)
            }
        };
        let capture = Capture::start(&self.switch.ns, index, self.dir(), point, options)?;
        let mut taps = self.taps.lock().unwrap_or_else(PoisonError::into_inner);
        taps.push(capture.tap().clone());
        Ok(capture)
    }

    /// Copies the lab's files to the builder's `artifacts` folder when the lab ends, as it
    /// does anyway when it ends during a panic.
    pub fn keep_files(&self) {
        self.keep.store(true, SeqCst);
    }

    pub(crate) fn set_carrier(&self, host: usize, link: Link, on: bool) -> Result<()> {
        let host = &self.hosts[host];
        let slot = host.slot();
        let mut cables = self.cables();
        let cable = &mut cables[host.spec().index][link.number()];
        // A host that is down has no cable plugged in.
        if cable.carrier_off != on || slot.is_none() {
            return Ok(());
        }
        self.switch.set_carrier(host.spec(), link, on)?;
        cable.carrier_off = !on;
        Ok(())
    }

    pub(crate) fn is_carrier_off(&self, host: usize, link: Link) -> bool {
        self.cables()[host][link.number()].carrier_off
    }

    pub(crate) fn shape_cable(&self, host: usize, link: Link, rate: Option<Rate>) -> Result<()> {
        let host = &self.hosts[host];
        let running = host.slot();
        self.cables()[host.spec().index][link.number()].rate = rate;
        let Some(running) = running.as_ref() else { return Ok(()) }; // boot will apply it
        self.switch.shape(host.spec(), link, rate)?;
        sys::on_thread(|| {
            running
                .init
                .pidfd
                .enter(nix::sched::CloneFlags::CLONE_NEWNET)
                .doing(|| format!("enter host {}", host.name()))?;
            Rate::apply(rate, &open_socket()?, host_index(link))
        })
    }

    pub(crate) fn cables(&self) -> MutexGuard<'_, Vec<[Cable; 2]>> {
        self.cables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A fresh cgroup for a host, and its `cgroup.procs`.
    fn make_cgroup(&self, host: &str) -> Result<(OwnedFd, OwnedFd)> {
        let make = || {
            let name = rundir::cgroup_prefix(self.dir())? + host;
            let root = sys::cgroup_root()?;
            sys::remove_cgroup(root.as_fd(), &name)?; // from before a kill
            let dir = sys::make_cgroup(root.as_fd(), &name)?;
            let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
            let mode = nix::sys::stat::Mode::empty();
            let procs = nix::fcntl::openat(&dir, "cgroup.procs", flags, mode)?;
            std::io::Result::Ok((dir, procs))
        };
        make().doing(|| format!("create the cgroup of host {host}"))
    }

    fn save_artifacts(&self) -> std::io::Result<()> {
        let Some(base) = &self.artifacts else { return Ok(()) };
        let target = base.join(self.name());
        fs::create_dir_all(&target)?;
        for entry in fs::read_dir(self.dir())? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), target.join(entry.file_name()))?;
            }
        }
        eprintln!("lab: the files of lab {} are kept in {}", self.name(), target.display());
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.trips.stop();
        let running: Vec<_> = self.hosts.iter().filter_map(|h| h.slot().take()).collect();
        // Nothing can be done about a failure here; what is left is swept by the next lab.
        for host in &running {
            let _ = host.strike();
        }
        for host in &running {
            let _ = host.bury();
        }
        for tap in self.taps.get_mut().unwrap_or_else(PoisonError::into_inner) {
            tap.stop();
        }
        if (self.keep.load(SeqCst) || std::thread::panicking())
            && let Err(e) = self.save_artifacts()
        {
            eprintln!("lab: cannot keep the files of lab {}: {e}", self.name());
        }
    }
}

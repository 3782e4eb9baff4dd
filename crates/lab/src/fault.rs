//! Faults: hosts that die or hang, processes that crash, cables that are cut.

use std::{
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    faults::{FaultCounts, Faults},
    host::{Host, ProcessInfo},
    lab::Lab,
    topology::Link,
    wires::{Rate, Way, cut_bits},
};

/// How a node is killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kill {
    /// The whole host at one instant: links and processes. Like pulling its plug.
    Host,
    /// The server processes, by a signal; the daemon and the host live.
    Process {
        /// SIGKILL, SIGSEGV, ….
        signal: i32,
        /// Only processes whose name or command line contains this; else all processes
        /// but the node daemon.
        matching: Option<String>,
    },
    /// The node daemon only, by SIGKILL.
    Daemon,
    /// Every process is stopped for so long; the host's kernel goes on.
    Hang(Duration),
}

/// What a kill did.
#[derive(Clone, Debug)]
pub struct Killed {
    /// The host.
    pub host: String,
    /// When it took effect: right after the cut, or after the signals were sent.
    pub at: Instant,
    /// The same instant on the wall clock, which captures use.
    pub wall: SystemTime,
    /// The processes that were signalled; empty for [`Kill::Host`] and [`Kill::Hang`],
    /// which reach all.
    pub processes: Vec<ProcessInfo>,
}

impl Killed {
    fn now(host: &Host, processes: Vec<ProcessInfo>) -> Killed {
        let (at, wall) = (Instant::now(), SystemTime::now());
        Killed { host: host.name().to_owned(), at, wall, processes }
    }
}

/// How links are cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// The directions, as the host at the cable's end sees them.
    pub ways: Vec<Way>,
    /// Also drop the carrier, so that the host knows.
    pub carrier: bool,
}

impl Default for Cut {
    /// Silent loss in both directions.
    fn default() -> Cut {
        Cut { ways: Way::BOTH.to_vec(), carrier: false }
    }
}

/// One cable's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Its name, such as `a.svc`.
    pub name: String,
    /// Whether what the host sends is lost.
    pub cut_from_host: bool,
    /// Whether what the host is sent is lost.
    pub cut_to_host: bool,
    /// Whether the host sees no carrier.
    pub no_carrier: bool,
    /// Frames from the host that a cut swallowed.
    pub dropped_from_host: u64,
    /// Frames to the host that a cut swallowed.
    pub dropped_to_host: u64,
    /// What else befalls frames from the host.
    pub from_host: WayStatus,
    /// What else befalls frames to the host.
    pub to_host: WayStatus,
}

/// One way of a cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayStatus {
    /// The faults that are on.
    pub faults: Faults,
    /// What they have done so far.
    pub counts: FaultCounts,
    /// Whether a trip is armed.
    pub armed: bool,
}

impl Lab {
    /// Kills a host or something in it.
    ///
    /// # Errors
    /// There is no such host, it is down already, or nothing in it matches.
    pub fn kill(&self, host: &str, how: &Kill) -> Result<Killed> {
        match how {
            Kill::Host => self.kill_host(host),
            Kill::Process { signal, matching } => {
                let daemon = self.node(host).map(|n| n.pid());
                let what = matching.as_deref().unwrap_or("the server");
                self.kill_processes(host, *signal, what, |p| match matching {
                    Some(m) => p.matches(m),
                    None => Some(p.pid) != daemon,
                })
            }
            Kill::Daemon => self.kill_daemon(host),
            Kill::Hang(duration) => self.hang_for(host, *duration),
        }
    }

    /// Pulls a host's plug: first one atomic store cuts all its links in both directions,
    /// then the kernel kills all its processes. Returns when they are gone.
    ///
    /// # Errors
    /// There is no such host, or it is down already.
    pub fn kill_host(&self, host: &str) -> Result<Killed> {
        let host = self.host(host)?;
        let mut slot = host.slot();
        let running = slot.take().ok_or_else(|| Error::HostDown(host.name().to_owned()))?;
        self.switch.wires.cut(host.spec().index, cut_bits(&Link::ALL, &Way::BOTH));
        let killed = Killed::now(host, Vec::new());
        running.strike()?;
        running.bury()?;
        Ok(killed)
    }

    /// Sends a signal to those processes of a host that `which` picks; `what` names them
    /// in errors.
    ///
    /// # Errors
    /// There is no such host, it is down, or [`Error::NoProcess`].
    pub fn kill_processes(
        &self,
        host: &str,
        signal: i32,
        what: &str,
        which: impl Fn(&ProcessInfo) -> bool,
    ) -> Result<Killed> {
        let host = self.host(host)?;
        let hit = host.signal(signal, what, which)?;
        Ok(Killed::now(host, hit))
    }

    /// SIGKILLs the node daemon that [`start_node`](Self::start_node) started, nothing else.
    ///
    /// # Errors
    /// There is no such host, it is down, or it has no daemon.
    pub fn kill_daemon(&self, host: &str) -> Result<Killed> {
        let host = self.host(host)?;
        let none = || Error::NoProcess {
            host: host.name().to_owned(),
            what: "the steadfast daemon".into(),
        };
        let pid = self.node(host.name()).ok_or_else(none)?.pid();
        let hit = host.signal(libc::SIGKILL, "the steadfast daemon", |p| p.pid == pid)?;
        Ok(Killed::now(host, hit))
    }

    /// Stops every process of a host at one instant, until [`resume`](Self::resume). Its
    /// kernel goes on: it acknowledges, retransmits, answers.
    ///
    /// # Errors
    /// There is no such host, or it is down.
    pub fn hang(&self, host: &str) -> Result<Killed> {
        let host = self.host(host)?;
        host.running()?.set_hung(true)?;
        Ok(Killed::now(host, Vec::new()))
    }

    /// Lets a hung host go on.
    ///
    /// # Errors
    /// There is no such host, or it is down.
    pub fn resume(&self, host: &str) -> Result<()> {
        self.host(host)?.running()?.set_hung(false)
    }

    /// Stops every process of a host and lets them go on after `duration`. Returns at once.
    ///
    /// # Errors
    /// As [`hang`](Self::hang).
    pub fn hang_for(&self, host: &str, duration: Duration) -> Result<Killed> {
        let killed = self.hang(host)?;
        let running = Arc::downgrade(&self.host(host)?.running()?);
        let resume = killed.at + duration;
        thread::spawn(move || {
            thread::sleep(resume.saturating_duration_since(Instant::now()));
            if let Some(running) = running.upgrade() {
                let _ = running.set_hung(false); // dead meanwhile: nothing to resume
            }
        });
        Ok(killed)
    }

    /// Cuts a link: `a.svc` one cable, `cluster` or `service` all cables of that link, a
    /// host's name all of that host. The cables of one host are cut at the same instant.
    ///
    /// # Errors
    /// [`Error::NoLink`].
    pub fn cut(&self, link: &str, how: Cut) -> Result<()> {
        let cables = self.topology.cables(link)?;
        for &(host, links) in &by_host(&cables) {
            self.switch.wires.cut(host, cut_bits(links, &how.ways));
        }
        if how.carrier {
            cables.iter().try_for_each(|&(h, l)| self.set_carrier(h, l, false))?;
        }
        Ok(())
    }

    /// Heals a link entirely, both ways: cuts, faults, trips and the carrier. The cables of
    /// a host that is down stay silent until it boots.
    ///
    /// # Errors
    /// [`Error::NoLink`].
    pub fn heal(&self, link: &str) -> Result<()> {
        self.disarm(link)?;
        self.clear_faults(link)?;
        let cables = self.topology.cables(link)?;
        for &(host, link) in &cables {
            self.set_carrier(host, link, true)?;
        }
        for &(host, links) in &by_host(&cables) {
            let slot = self.hosts()[host].slot();
            if slot.is_some() {
                self.switch.wires.heal(host, cut_bits(links, &Way::BOTH));
            }
        }
        Ok(())
    }

    /// Shapes a link: `rate` for each of its cables and each direction; `None` lifts it.
    ///
    /// # Errors
    /// [`Error::NoLink`], or the kernel has no TBF.
    pub fn shape(&self, link: &str, rate: Option<Rate>) -> Result<()> {
        for (host, link) in self.topology.cables(link)? {
            self.shape_cable(host, link, rate)?;
        }
        Ok(())
    }

    /// Every cable's state, host by host.
    pub fn links(&self) -> Vec<LinkStatus> {
        let mut out = Vec::new();
        // Reading them fails only for want of memory or threads; the rest is told all the same.
        let late = self.switch.late_drops().unwrap_or_default();
        for host in self.hosts() {
            let spec = host.spec();
            let cut = self.switch.wires.cut_state(spec.index);
            for &link in spec.links() {
                let is_cut = |way| cut & cut_bits(&[link], &[way]) != 0;
                let dropped = |way| self.switch.wires.dropped(spec.index, link, way);
                let way = |way| {
                    let (faults, counts) = self.faults(spec.index, link, way, &late);
                    WayStatus { faults, counts, armed: self.is_armed(spec.index, link, way) }
                };
                out.push(LinkStatus {
                    name: spec.port(link),
                    cut_from_host: is_cut(Way::FromHost),
                    cut_to_host: is_cut(Way::ToHost),
                    no_carrier: self.is_carrier_off(spec.index, link),
                    dropped_from_host: dropped(Way::FromHost),
                    dropped_to_host: dropped(Way::ToHost),
                    from_host: way(Way::FromHost),
                    to_host: way(Way::ToHost),
                });
            }
        }
        out
    }
}

/// Groups cables, which come host by host.
fn by_host(cables: &[(usize, Link)]) -> Vec<(usize, &'static [Link])> {
    let mut out: Vec<(usize, &'static [Link])> = Vec::new();
    for &(host, link) in cables {
        match out.last_mut() {
            Some((last, links)) if *last == host => *links = &Link::ALL,
            _ => out.push((host, std::slice::from_ref(&Link::ALL[link.number()]))),
        }
    }
    out
}

impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kill::Host => f.write_str("host"),
            Kill::Process { signal, .. } => write!(f, "process (signal {signal})"),
            Kill::Daemon => f.write_str("daemon"),
            Kill::Hang(duration) => write!(f, "hang ({duration:?})"),
        }
    }
}

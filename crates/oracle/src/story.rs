//! What a test knows and the network does not say.
//!
//! All times are nanoseconds since the Unix epoch, on the clock of the captures.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// A process that ends closes what it has, one after the other, and somebody notices.
const LEAVES_WITHIN_NS: u64 = 500_000_000;

/// Which of the two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Link {
    /// Between clients and nodes.
    #[serde(rename = "svc")]
    Service,
    /// Between nodes.
    #[serde(rename = "clu")]
    Cluster,
}

impl Link {
    /// Both.
    pub const ALL: [Link; 2] = [Link::Service, Link::Cluster];

    /// `svc` or `clu`, as capture files are named.
    pub fn name(self) -> &'static str {
        match self {
            Link::Service => "svc",
            Link::Cluster => "clu",
        }
    }
}

/// A host, and how frames tell that it sent them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Whether it is one of the pair.
    pub node: bool,
    /// Its Ethernet address on each link it has.
    pub macs: Vec<(Link, [u8; 6])>,
}

/// A period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// From this instant on.
    pub from_ns: u64,
    /// Up to this one; `None`: to the end.
    pub to_ns: Option<u64>,
}

impl Interval {
    /// Whether an instant lies in it.
    pub fn contains(&self, at_ns: u64) -> bool {
        self.from_ns <= at_ns && self.to_ns.is_none_or(|to| at_ns < to)
    }

    /// Whether it shares an instant with `from_ns..=to_ns`.
    pub fn touches(&self, from_ns: u64, to_ns: u64) -> bool {
        self.from_ns <= to_ns && self.to_ns.is_none_or(|to| from_ns < to)
    }
}

/// A host whose plug is pulled: what it still sends never reaches a cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dead {
    /// The host.
    pub host: String,
    /// From the instant of its death to its next boot.
    pub time: Interval,
}

/// A server's processes died without having meant to, on a host that lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// The host.
    pub host: String,
    /// From the death to the next role of this host.
    pub time: Interval,
}

/// A server that had nobody behind it ended by itself: its kernel resets whom it had not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Its host.
    pub host: String,
    /// When that was noticed.
    pub at_ns: u64,
}

/// The pair's decision that another node serves from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// Who served.
    pub from: String,
    /// Who serves.
    pub to: String,
    /// When the new one was promoted: not before the old one was fenced.
    pub at_ns: u64,
}

/// A node that begins to serve without having been promoted, such as the first one to come back
/// after both have died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    /// The node.
    pub host: String,
    /// When it began.
    pub at_ns: u64,
}

/// One connection's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Addresses {
    /// The client.
    pub client: SocketAddr,
    /// The service.
    pub service: SocketAddr,
}

impl Addresses {
    /// In which of the two shares the flow is (`docs/operations.md`, roles): a hash of its client.
    pub fn share(&self) -> u32 {
        let address = match self.client.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        let port = u16::from_ne_bytes(self.client.port().to_be_bytes());
        let mixed = address.octets().chunks(4).map(word).fold(port.into(), |a: u32, b| a ^ b);
        (mixed.wrapping_mul(0x9e37_79b1) >> 16) % 2
    }
}

/// A flow that is not to be judged, and why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excluded {
    /// Which.
    pub flow: Addresses,
    /// Why; it stands in the verdict.
    pub why: String,
}

/// What the test knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Story {
    /// All hosts with captured ports.
    pub hosts: Vec<Host>,
    /// The services' addresses and ports.
    pub services: Vec<SocketAddr>,
    /// Hosts whose plug was pulled.
    pub dead: Vec<Dead>,
    /// Hosts that lived on while all their cables were cut, both ways: what they sent then never
    /// reached a cable either.
    pub cut_off: Vec<Dead>,
    /// Servers that crashed while a backup could carry their flows.
    pub crashes: Vec<Crash>,
    /// When the pair was officially simplex. A flow that lives through one is simplex from then
    /// on to its end.
    pub simplex: Vec<Interval>,
    /// Failovers and switchovers.
    pub handovers: Vec<Handover>,
    /// Nodes that began to serve by themselves. Only the death of who served until then gives them
    /// the right to.
    pub beginnings: Vec<Beginning>,
    /// Servers that ended while their nodes had no backup.
    pub left: Vec<Left>,
    /// Flows that the pair has listed as reset.
    pub resets: Vec<Addresses>,
    /// Flows that are not judged.
    pub excluded: Vec<Excluded>,
    /// Where both nodes serve: the share of the flows that the story is about. Others are not judged.
    pub share: Option<u32>,
    /// When the captures ended, if they did not all end at once: later frames are not read.
    pub end_ns: Option<u64>,
    /// How lines of the service's stream begin that may differ between two computations of the
    /// same reply, such as `Date: `.
    pub volatile_lines: Vec<String>,
    /// How long a frame that a host's kernel has released may lie in the host's own queue before
    /// the port sees it, ns. A fence cannot call such a frame back.
    pub queue_ns: u64,
    /// How far a new server's timestamp clock may start ahead, ms.
    pub clock_jump_ms: u64,
}

impl Default for Story {
    /// Nobody, nothing, no queue, three seconds of clock.
    fn default() -> Self {
        Story {
            hosts: Vec::new(),
            services: Vec::new(),
            dead: Vec::new(),
            cut_off: Vec::new(),
            crashes: Vec::new(),
            simplex: Vec::new(),
            handovers: Vec::new(),
            beginnings: Vec::new(),
            left: Vec::new(),
            resets: Vec::new(),
            excluded: Vec::new(),
            share: None,
            end_ns: None,
            volatile_lines: Vec::new(),
            queue_ns: 0,
            clock_jump_ms: 3000,
        }
    }
}

impl Story {
    /// The same story with each rightful beginning told as a hand-over, and with hand-overs that
    /// nobody heard of undone. A node begins rightfully if the host of the other one has died since that
    /// served. A node that is promoted while it is cut off serves nobody: the other one goes on.
    pub(crate) fn settled(&self) -> Story {
        let mut settled = self.clone();
        for unheard in &mut settled.handovers {
            let is_its = |cut: &&Dead| cut.host == unheard.to && cut.time.contains(unheard.at_ns);
            if self.cut_off.iter().any(|cut| is_its(&cut)) {
                unheard.to.clone_from(&unheard.from);
            }
        }
        let mut beginnings: Vec<_> = self.beginnings.iter().collect();
        beginnings.sort_by_key(|b| b.at_ns);
        // The first one to serve, whom nobody had served before.
        let mut first: Option<(&String, u64)> = None;
        for Beginning { host, at_ns } in beginnings {
            let last = settled.handover_before(*at_ns).map(|last| (&last.to, last.at_ns)).or(first);
            let mut others = self.nodes().map(|node| &self.hosts[node].name);
            let Some(other) = others.find(|name| *name != host) else { continue };
            let served_ns = match last {
                Some((last, at_ns)) if last == other => at_ns,
                // It has served all along, and has come back.
                Some(_) => continue,
                None => 0,
            };
            let since = |d: &&Dead| (served_ns..=*at_ns).contains(&d.time.from_ns);
            if self.dead.iter().filter(since).any(|d| d.host == *other) {
                let (from, to) = (other.clone(), host.clone());
                settled.handovers.push(Handover { from, to, at_ns: *at_ns });
            } else if last.is_none() {
                first = Some((host, *at_ns));
            }
        }
        settled
    }

    pub(crate) fn is_service(&self, ip: IpAddr, port: u16) -> bool {
        self.services.contains(&SocketAddr::new(ip, port))
    }

    pub(crate) fn host_of(&self, mac: [u8; 6]) -> Option<usize> {
        self.hosts.iter().position(|h| h.macs.iter().any(|&(_, m)| m == mac))
    }

    pub(crate) fn host_named(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|h| h.name == name)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.hosts.len()).filter(|&h| self.hosts[h].node)
    }

    /// Whether frames that this host sends at this instant are swallowed.
    pub(crate) fn is_unheard(&self, host: usize, at_ns: u64) -> bool {
        let name = &self.hosts[host].name;
        let all = self.dead.iter().chain(&self.cut_off);
        all.into_iter().any(|d| d.host == *name && d.time.contains(at_ns))
    }

    pub(crate) fn is_simplex(&self, at_ns: u64) -> bool {
        self.simplex.iter().any(|s| s.contains(at_ns))
    }

    /// Whether the server of this host ended at this instant, and nobody was there to take its place.
    pub(crate) fn has_left(&self, host: usize, at_ns: u64) -> bool {
        let name = &self.hosts[host].name;
        let is_then =
            |left: &&Left| left.host == *name && left.at_ns.abs_diff(at_ns) < LEAVES_WITHIN_NS;
        self.is_simplex(at_ns) && self.left.iter().any(|left| is_then(&left))
    }

    /// The last hand-over before or at this instant.
    pub(crate) fn handover_before(&self, at_ns: u64) -> Option<&Handover> {
        self.handovers.iter().filter(|h| h.at_ns <= at_ns).max_by_key(|h| h.at_ns)
    }

    /// Who served before the first hand-over.
    pub(crate) fn first_primary(&self) -> Option<usize> {
        let first = self.handovers.iter().min_by_key(|h| h.at_ns)?;
        self.host_named(&first.from)
    }

    /// The crash that this host is in.
    pub(crate) fn crash(&self, host: usize, at_ns: u64) -> Option<&Crash> {
        let name = &self.hosts[host].name;
        self.crashes.iter().find(|c| c.host == *name && c.time.contains(at_ns))
    }
}

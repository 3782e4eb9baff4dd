//! Two nodes and a client, up and ready: the real daemon with a real configuration in a lab.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lab::{CaptureOptions, Host, Lab, Link, NodeSpec, Rate};

use crate::clock::{boottime_ns, now_ns};
use crate::config::{Common, Roles, Scheme, ServiceText, node_toml, state_dir};
use crate::operator::{Event, Operator, Status};
use crate::server::{Place, Server};
use crate::site::Site;

/// How long nodes may take to get ready: servers start, and find each other.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// The names of the two nodes.
pub const NODES: [&str; 2] = ["a", "b"];
/// The name of the host that the clients run in.
pub const CLIENT: &str = "client";

/// Makes a service's command line for one node.
pub type Program = Arc<dyn Fn(&Place) -> anyhow::Result<Vec<String>> + Send + Sync>;

/// A service to protect.
#[derive(Clone)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: u16,
    /// Its server.
    pub program: Program,
    /// How it is protected.
    pub scheme: Scheme,
    /// Client bytes that one flow may have in the journal.
    pub flow_budget_mib: u32,
}

/// What the pair is to be like.
pub struct Spec {
    /// The product; `$STEADFAST_BIN` or this program unless set.
    pub binary: Option<PathBuf>,
    /// Rate of the service link, Mbit/s.
    pub rate_mbit: Option<u64>,
    /// Rate of the cluster link, Mbit/s.
    pub cluster_rate_mbit: Option<u64>,
    /// Whether clients use IPv6.
    pub ipv6: bool,
    /// Bytes of the large file.
    pub size: u64,
    /// The services; the first has the address ending in 100, the second in 99, …: 101 is the
    /// client's.
    pub services: Vec<Service>,
    /// Silence after which a peer is suspected.
    pub detection_ms: u32,
    /// Who serves while both nodes live.
    pub roles: Roles,
    /// Whether headers of what passes both links are captured.
    pub capture: bool,
    /// Where files go that are kept.
    pub artifacts: PathBuf,
}

/// The pair.
#[derive(Debug)]
pub struct Pair {
    /// Its hosts; dropped, everything is gone.
    pub lab: Lab,
    /// What the servers serve.
    pub site: Site,
    services: Vec<ServiceText>,
    roles: Roles,
    /// Kept for as long as they are to run.
    _captures: Vec<lab::Capture>,
}

impl Service {
    /// A server on port 80.
    pub fn web(server: Server) -> Service {
        Service {
            name: server.name().to_owned(),
            port: 80,
            program: Arc::new(move |place| server.command(place)),
            scheme: Scheme::Track,
            flow_budget_mib: 64,
        }
    }
}

impl Pair {
    /// Brings the lab, the site and both nodes up. Returns when both are ready and one is
    /// primary.
    ///
    /// # Errors
    /// Whatever is in the way, with the last words of the daemon concerned.
    pub fn up(spec: &Spec) -> anyhow::Result<Pair> {
        lab::preflight()?;
        let binary = match &spec.binary {
            Some(binary) => binary.clone(),
            None => product_binary()?,
        };
        let mut builder = Lab::builder().steadfast(&binary).artifacts(&spec.artifacts);
        for (link, rate) in
            [(Link::Service, spec.rate_mbit), (Link::Cluster, spec.cluster_rate_mbit)]
        {
            if let Some(mbit) = rate {
                builder = builder.rate(link, Rate::mbit(mbit));
            }
        }
        let lab = builder.up()?;
        // Servers give up their privileges before they open files in there.
        fs::set_permissions(lab.dir(), fs::Permissions::from_mode(0o711))
            .with_context(|| format!("cannot open {} to servers", lab.dir().display()))?;
        let site = Site::create(&lab.dir().join("site"), spec.size)?;
        let captures = if spec.capture {
            let points = Link::ALL.map(|link| lab.capture(link.name(), CaptureOptions::default()));
            points.into_iter().collect::<lab::Result<_>>()?
        } else {
            Vec::new()
        };
        let key = lab.dir().join("key");
        make_key(&binary, &key)?;
        let mut pair =
            Pair { lab, site, services: Vec::new(), roles: spec.roles, _captures: captures };
        let started = pair.start(spec, &key).and_then(|()| pair.wait_ready());
        if let Err(e) = started {
            pair.lab.keep_files();
            return Err(e);
        }
        Ok(pair)
    }

    fn start(&mut self, spec: &Spec, key: &Path) -> anyhow::Result<()> {
        for node in NODES {
            let services = services(spec, node, self.lab.dir(), &self.site)?;
            let peer = other(node);
            let (dir, detection_ms, roles) = (self.lab.dir(), spec.detection_ms, spec.roles);
            let common = Common { key, dir, detection_ms, roles };
            let (own, far) = (self.lab.host(node)?, self.lab.host(peer)?);
            let config_toml = node_toml(own, far, &common, &services);
            self.lab.start(&NodeSpec { host: node.to_owned(), config_toml, files: Vec::new() })?;
            self.services = services;
        }
        Ok(())
    }

    /// Waits until both daemons are ready, one as primary of everything, or each of its share, with
    /// its peer behind it.
    ///
    /// # Errors
    /// They are not, or one has ended.
    pub fn wait_ready(&self) -> anyhow::Result<()> {
        self.wait_settled(|statuses| match self.roles {
            Roles::Single => statuses.iter().filter(|s| s.duplex).count() == 1,
            Roles::Dual => statuses.iter().all(Status::is_at_home),
        })
    }

    /// Waits until both daemons are ready, and all that is served has a backup, whoever serves it.
    ///
    /// # Errors
    /// It does not come to that, or a daemon has ended.
    pub fn wait_backed(&self) -> anyhow::Result<()> {
        self.wait_settled(|statuses| {
            let backed = |s: &Status| match &s.shares {
                Some(shares) => shares.iter().filter(|share| share.is_backed()).count(),
                None => usize::from(s.duplex),
            };
            let shares = if self.roles == Roles::Dual { 2 } else { 1 };
            statuses.iter().map(backed).sum::<usize>() == shares
        })
    }

    fn wait_settled(&self, backed: impl Fn(&[Status; 2]) -> bool) -> anyhow::Result<()> {
        let settled = || -> Option<()> {
            let statuses = [self.status(NODES[0]).ok()?, self.status(NODES[1]).ok()?];
            let ready = statuses.iter().all(|s| s.ready && s.peer.service_ready);
            (ready && backed(&statuses)).then_some(())
        };
        for name in NODES {
            let node = self.lab.node(name).context("no daemon was started")?;
            if let Err(e) = node.wait_ready(READY_WITHIN, || settled().is_some()) {
                let log = fs::read_to_string(node.log()).unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(20)..].join("\n");
                return Err(anyhow::Error::from(e).context(format!("its last words:\n{last}")));
            }
        }
        Ok(())
    }

    /// The first service's address.
    pub fn at(&self) -> SocketAddr {
        self.services[0].at()
    }

    /// The host that clients run in.
    ///
    /// # Errors
    /// Never in a pair that is up.
    pub fn client(&self) -> anyhow::Result<&Host> {
        Ok(self.lab.host(CLIENT)?)
    }

    /// A node's operator socket.
    pub fn operator(&self, node: &str) -> Operator {
        operator(&self.lab, node)
    }

    /// A node's status.
    ///
    /// # Errors
    /// Its daemon does not answer.
    pub fn status(&self, node: &str) -> anyhow::Result<Status> {
        Ok(self.operator(node).status()?)
    }

    /// What happened on both nodes since `since_ns`, in the order of time, with the node's
    /// name. A node that is dead says nothing.
    pub fn events_since(&self, since_ns: u64) -> Vec<(&'static str, Event)> {
        let mut events = events(&self.lab);
        events.retain(|(_, e)| e.boottime_ns >= since_ns);
        events
    }

    /// The primary's name; where both nodes serve, that of the first share's.
    ///
    /// # Errors
    /// There is none, or there are two.
    pub fn primary(&self) -> anyhow::Result<&'static str> {
        let is_primary = |node: &&str| self.status(node).is_ok_and(|s| s.role == "primary");
        let primaries: Vec<_> = NODES.into_iter().filter(is_primary).collect();
        match primaries[..] {
            [one] => Ok(one),
            [] => bail!("no node is primary"),
            _ => bail!("both nodes are primary"),
        }
    }

    /// Makes `node` fail; when that took effect, on [`crate::clock::now_ns`]'s clock.
    ///
    /// # Errors
    /// The lab cannot do it.
    pub fn kill(&self, node: &str, how: &lab::Kill) -> anyhow::Result<u64> {
        let before_ns = now_ns();
        let killed = self.lab.kill(node, how)?;
        Ok(match how {
            // One instant, told exactly.
            lab::Kill::Host | lab::Kill::Hang(_) => boottime_ns(killed.at),
            // Signals go out one by one, and the first may have been answered by the last.
            lab::Kill::Process { .. } | lab::Kill::Daemon => before_ns,
        })
    }

    /// Boots a dead node and waits until it backs the other one up.
    ///
    /// # Errors
    /// It does not.
    pub fn bring_back(&self, node: &str) -> anyhow::Result<()> {
        self.lab.boot(node)?;
        self.lab.start_again(node)?;
        self.wait_ready()
    }
}

/// The operator socket of a node in a lab.
pub fn operator(lab: &Lab, node: &str) -> Operator {
    Operator::new(&state_dir(lab.dir(), node))
}

/// What both nodes of a lab report, in the order of time, with the node's name. A node that is
/// dead says nothing.
pub fn events(lab: &Lab) -> Vec<(&'static str, Event)> {
    let of = |node| {
        let events = operator(lab, node).events().unwrap_or_default();
        events.into_iter().map(move |event| (node, event))
    };
    let mut events: Vec<_> = NODES.into_iter().flat_map(of).collect();
    events.sort_by_key(|(_, e)| e.boottime_ns);
    events
}

/// The other node.
pub fn other(node: &str) -> &'static str {
    if node == NODES[0] { NODES[1] } else { NODES[0] }
}

fn services(spec: &Spec, node: &str, dir: &Path, site: &Site) -> anyhow::Result<Vec<ServiceText>> {
    let mut out = Vec::new();
    for (number, service) in spec.services.iter().enumerate() {
        let last = u8::try_from(number).ok().and_then(|number| 100u8.checked_sub(number));
        let last = last.filter(|&last| last >= 50).context("so many services have no addresses")?;
        let ip: IpAddr = if spec.ipv6 {
            // Spelled as the IPv4 number: fd77::100 goes with 10.77.0.100.
            let group = u16::from_str_radix(&last.to_string(), 16).expect("decimal digits");
            Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, group).into()
        } else {
            Ipv4Addr::new(10, 77, 0, last).into()
        };
        let at = SocketAddr::new(ip, service.port);
        out.push(ServiceText {
            name: service.name.clone(),
            addresses: vec![ip],
            port: service.port,
            command: (service.program)(&Place { node, dir, site, at })?,
            scheme: service.scheme,
            flow_budget_mib: service.flow_budget_mib,
        });
    }
    Ok(out)
}

/// `$STEADFAST_BIN`, else this program if it is the product.
fn product_binary() -> anyhow::Result<PathBuf> {
    if let Some(binary) = std::env::var_os("STEADFAST_BIN") {
        let binary = PathBuf::from(binary);
        ensure!(
            binary.is_file(),
            "STEADFAST_BIN names {}, which is not there: run make build",
            binary.display()
        );
        return Ok(binary);
    }
    std::env::current_exe().context("cannot find this program's own file")
}

/// Makes a key as an operator would.
fn make_key(binary: &Path, key: &Path) -> anyhow::Result<()> {
    let started = Instant::now();
    let output = Command::new(binary)
        .arg("keygen")
        .arg(key)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    ensure!(
        output.status.success(),
        "{} keygen failed after {:?}: {}",
        binary.display(),
        started.elapsed(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

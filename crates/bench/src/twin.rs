//! The same server twice: behind Steadfast, and without it.
//!
//! What "unprotected" means decides every ratio. A second port of the protected host would be
//! near at hand, but its segments would still pass the data path's programs, and its processes
//! would share a host with the daemon. So the unprotected server has a lab of its own, in which
//! nothing of Steadfast was ever started: the same three hosts, the same switch, the same shaping
//! of every cable, the same server with the same configuration and a file of the same size. Its
//! address is that of its host. What differs is Steadfast: hooks, relay through the backup, log,
//! daemon.
//!
//! Both labs stand side by side, so that repetitions can alternate within a second of each
//! other; one rests while the other is measured. Heartbeats and polls of the resting pair burden
//! the unprotected runs as well as the protected ones. That is the machine's share of two more
//! hosts, which a real unprotected host would not pay; it is a fraction of a percent of a core.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use demo::config::Scheme as Protection;
use demo::operator::Event;
use demo::pair::{CLIENT, NODES, Pair, Service, Spec, other};
use demo::server::{PROGRAMS, Place, Server};
use demo::site::Site;
use lab::{Host, Kill, Lab, Link, Rate};

use crate::busy::REPLIES_KIB;
use crate::plan::Setting;
use crate::scheme::Scheme;

/// Port of the server that counts what it is sent.
pub const SINK_PORT: u16 = 9000;
/// Port of the web server whose long replies are held piece by piece.
const STREAM_PORT: u16 = 81;
/// Port of the web server whose replies are made by a program.
const MADE_PORT: u16 = 82;
/// That program, beside this one and in the site.
const MAKER: &str = "random-reply";
/// Path of the smallest reply: 1 KiB.
pub const SMALL: &str = "/reply-1k.bin";
/// The files of bulk rows: about a second at 10, 100 and 1,000 Mbit/s.
pub const BULKS: [Bulk; 3] = [
    Bulk { path: "/bulk-10.bin", bytes: 2_000_000 },
    Bulk { path: "/bulk-100.bin", bytes: 10_000_000 },
    Bulk { path: "/bulk-1000.bin", bytes: 120_000_000 },
];
/// Silence after which a node suspects its peer: the product's default.
pub const DETECTION_MS: u32 = 100;
/// What one flow's clients may send; the default would end a 1 Gbit/s upload after half a
/// second.
const FLOW_BUDGET_MIB: u32 = 600;
/// Servers start, nodes find each other, addresses move.
const SETTLE_WITHIN: Duration = Duration::from_secs(20);

/// A file to download, or as many bytes to send.
#[derive(Clone, Copy, Debug)]
pub struct Bulk {
    /// Its path, as a client asks for it.
    pub path: &'static str,
    /// Its size.
    pub bytes: u64,
}

/// Both.
pub struct Twin {
    /// With Steadfast.
    pub pair: Pair,
    bare: Lab,
}

/// One of the two servers that are compared, as a client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// With Steadfast, or with what it is compared with.
    Protected,
    /// By itself.
    Bare,
}

impl Twin {
    /// Brings both up, unshaped. Their large files have `size` bytes.
    ///
    /// # Errors
    /// Whatever is in the way.
    pub fn up(setting: Setting, size: u64) -> anyhow::Result<Twin> {
        let Setting { scheme, roles } = setting;
        let bare = bare_lab(scheme, size).context("the unprotected lab")?;
        let pair = Pair::up(&Spec {
            binary: None,
            rate_mbit: None,
            cluster_rate_mbit: None,
            ipv6: false,
            size,
            services: services(scheme),
            detection_ms: DETECTION_MS,
            roles,
            capture: false,
            artifacts: std::env::temp_dir().join(format!("steadfast-bench-{}", std::process::id())),
        })
        .context("the protected pair")?;
        add_files(&pair.site)?;
        let twin = Twin { pair, bare };
        for side in [Side::Protected, Side::Bare] {
            twin.client(side)?.in_netns(more_ports)?.context("the clients' host")?;
        }
        twin.settle()?;
        wait_for("the unprotected servers listen", || {
            let connects = |port| {
                let at = SocketAddr::new(twin.at(Side::Bare, false).ip(), port);
                let client = twin.client(Side::Bare).ok()?;
                client.in_netns(|| std::net::TcpStream::connect(at).ok()).ok()?
            };
            let mut ports = ports(scheme).iter();
            Ok(ports.all(|&port| connects(port).is_some()))
        })?;
        Ok(twin)
    }

    /// Shapes every cable of both labs alike, Mbit/s; `None`: as fast as it goes.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn shape(&self, service: Option<u64>, cluster: Option<u64>) -> anyhow::Result<()> {
        for lab in [&self.pair.lab, &self.bare] {
            for (link, mbit) in [(Link::Service, service), (Link::Cluster, cluster)] {
                lab.shape(link.name(), mbit.map(Rate::mbit))?;
            }
        }
        Ok(())
    }

    /// The address of the web server, or of the sink.
    pub fn at(&self, side: Side, sink: bool) -> SocketAddr {
        let mut at = self.pair.at();
        if side == Side::Bare {
            let host = self.bare.host(NODES[0]).expect("the lab was built with this host");
            at.set_ip(host.ipv4(Link::Service).into());
        } else if sink {
            at.set_ip(Ipv4Addr::new(10, 77, 0, 99).into());
        }
        if sink {
            at.set_port(SINK_PORT);
        }
        at
    }

    /// The address of the web server whose long replies are streamed, with the scheme `message`;
    /// unprotected there is no difference.
    pub fn streaming_at(&self, side: Side) -> SocketAddr {
        match side {
            Side::Protected => (Ipv4Addr::new(10, 77, 0, 98), STREAM_PORT).into(),
            Side::Bare => self.at(side, false),
        }
    }

    /// The address of the web server whose replies are made by a program, with the scheme `message`.
    pub fn making_at(&self, side: Side) -> SocketAddr {
        match side {
            Side::Protected => (Ipv4Addr::new(10, 77, 0, 97), MADE_PORT).into(),
            Side::Bare => (self.at(side, false).ip(), MADE_PORT).into(),
        }
    }

    /// The host that clients run in.
    ///
    /// # Errors
    /// Never in a lab that is up.
    pub fn client(&self, side: Side) -> anyhow::Result<&Host> {
        Ok(self.lab(side).host(CLIENT)?)
    }

    /// The host that the server runs in.
    ///
    /// # Errors
    /// There is no primary.
    pub fn server(&self, side: Side) -> anyhow::Result<&Host> {
        let name = if side == Side::Bare { NODES[0] } else { self.pair.primary()? };
        Ok(self.lab(side).host(name)?)
    }

    /// The host that backs the server up; unprotected, it has nothing to do.
    ///
    /// # Errors
    /// There is no primary.
    pub fn backup(&self, side: Side) -> anyhow::Result<&Host> {
        let primary = if side == Side::Bare { NODES[0] } else { self.pair.primary()? };
        Ok(self.lab(side).host(other(primary))?)
    }

    /// From now until the answer is dropped the clients' segments to the unprotected server go by
    /// way of its second host, which forwards them over the cluster link.
    ///
    /// # Errors
    /// The hosts refuse.
    pub fn detour(&self) -> anyhow::Result<Detour<'_>> {
        let (server, second) = (self.server(Side::Bare)?, self.backup(Side::Bare)?);
        second
            .in_netns(|| {
                let ipv4 = |name: &str| format!("/proc/sys/net/ipv4/{name}");
                fs::write(ipv4("conf/all/send_redirects"), "0")?;
                fs::write(ipv4("conf/svc0/send_redirects"), "0")?;
                fs::write(ipv4("ip_forward"), "1")
            })?
            .context("the second host does not forward")?;
        let client = self.client(Side::Bare)?;
        let detour = Detour { client, to: server.ipv4(Link::Service) };
        let (far, near) = (server.ipv4(Link::Cluster), second.ipv4(Link::Service));
        route(second, "replace", detour.to, far)?;
        route(client, "replace", detour.to, near)?;
        Ok(detour)
    }

    /// Makes up for an experiment that ended early: boots what lies dead, and waits as
    /// [`Twin::settle`] does.
    ///
    /// # Errors
    /// It does not come to that.
    pub fn mend(&self) -> anyhow::Result<&'static str> {
        for node in NODES {
            if !self.pair.lab.host(node)?.is_up() {
                self.pair.bring_back(node)?;
            }
        }
        self.settle()
    }

    /// Kills the backup's host; returns when the primary serves alone. [`Twin::mend`] ends that.
    ///
    /// # Errors
    /// It does not come to that.
    pub fn lose_backup(&self) -> anyhow::Result<()> {
        let primary = self.mend()?;
        let killed_ns = self.pair.kill(other(primary), &Kill::Host)?;
        wait_for("the primary serves alone", || {
            let status = self.pair.status(primary)?;
            Ok(status.ready && !status.duplex && status.all.get("holding") == Some(&true.into()))
        })
        .with_context(|| self.history(killed_ns))
    }

    /// Flows of the scheme `message` that lost their protection so far, by reason, on nodes that
    /// live. What is measured of them is not the scheme.
    ///
    /// # Errors
    /// A node that lives does not answer.
    pub fn opened(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let mut opened = BTreeMap::new();
        for node in NODES {
            if !self.pair.lab.host(node)?.is_up() {
                continue;
            }
            let status = self.pair.status(node)?;
            let by_reason = status.all.get("replies").and_then(|r| r["opened"].as_object());
            for (why, count) in by_reason.into_iter().flatten() {
                *opened.entry(why.clone()).or_default() += count.as_u64().unwrap_or(0);
            }
            let unheld = status.all.get("counters").and_then(|c| c["unheld_flows"].as_u64());
            *opened.entry("without a gate".to_owned()).or_default() += unheld.unwrap_or(0);
        }
        Ok(opened)
    }

    /// What the nodes did since ten seconds before `since_ns`: it tells why they did not do
    /// something else.
    pub fn history(&self, since_ns: u64) -> String {
        let events = self.pair.events_since(since_ns.saturating_sub(10_000_000_000));
        let said = |(node, e): &(&str, Event)| {
            let after_ms = (e.boottime_ns as f64 - since_ns as f64) / 1e6;
            format!("{after_ms:.1} ms {node}: {} ({})", e.event, e.text)
        };
        events.iter().map(said).collect::<Vec<_>>().join("; ")
    }

    fn lab(&self, side: Side) -> &Lab {
        match side {
            Side::Protected => &self.pair.lab,
            Side::Bare => &self.bare,
        }
    }

    /// Waits until new connections are protected: both nodes ready, and the service address in
    /// the backup's hands. Returns the primary's name.
    ///
    /// # Errors
    /// It does not come to that.
    pub fn settle(&self) -> anyhow::Result<&'static str> {
        self.pair.wait_ready()?;
        let holds = |node| -> anyhow::Result<bool> {
            Ok(self.pair.status(node)?.all.get("holding") == Some(&true.into()))
        };
        wait_for("the backup holds the service address", || {
            let Ok(primary) = self.pair.primary() else { return Ok(false) };
            Ok(holds(other(primary))? && !holds(primary)?)
        })?;
        self.pair.primary()
    }
}

/// Waits until `done`, for no longer than a settled lab may take.
///
/// # Errors
/// It takes longer, or `done` fails.
pub fn wait_for(what: &str, mut done: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + SETTLE_WITHIN;
    while !done()? {
        if Instant::now() > deadline {
            bail!("waited {SETTLE_WITHIN:?} in vain until {what}");
        }
        std::thread::sleep(Duration::from_millis(5)); // between two looks at the condition
    }
    Ok(())
}

/// See [`Twin::detour`].
pub struct Detour<'a> {
    client: &'a Host,
    to: Ipv4Addr,
}

impl Drop for Detour<'_> {
    fn drop(&mut self) {
        // The address is on the client's own link: without the route they talk to each other again.
        let words = ["route".to_owned(), "del".to_owned(), self.to.to_string()];
        let gone = self.client.command("ip").args(words).status();
        assert!(gone.is_ok_and(|s| s.success()), "the detour stays, and all that follows takes it");
    }
}

/// Tens of thousands of connections that have ended keep their ports for a minute.
fn more_ports() -> anyhow::Result<()> {
    for (name, value) in [("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        std::fs::write(&path, value).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

fn route(host: &Host, what: &str, to: Ipv4Addr, via: Ipv4Addr) -> anyhow::Result<()> {
    let words = ["route", what, &to.to_string(), "via", &via.to_string()];
    let status = host.command("ip").args(words).status()?;
    anyhow::ensure!(status.success(), "ip {} failed in host {}", words.join(" "), host.name());
    Ok(())
}

/// What is listened on beside the protected pair: streamed replies are those of the web server there.
fn ports(scheme: Scheme) -> &'static [u16] {
    match scheme {
        Scheme::Track => &[80, SINK_PORT],
        Scheme::Message => &[80, SINK_PORT, MADE_PORT],
    }
}

fn bare_lab(scheme: Scheme, size: u64) -> anyhow::Result<Lab> {
    let lab = Lab::builder().up()?;
    // Servers give up their privileges before they open files in there.
    fs::set_permissions(lab.dir(), fs::Permissions::from_mode(0o711))?;
    let site = Site::create(&lab.dir().join("site"), size)?;
    add_files(&site)?;
    let host = lab.host(NODES[0])?;
    let ip = host.ipv4(Link::Service).into();
    let place =
        |port| Place { node: "bare", dir: lab.dir(), site: &site, at: SocketAddr::new(ip, port) };
    for &port in ports(scheme) {
        let words = match port {
            SINK_PORT => sink_command(&place(port))?,
            MADE_PORT => making_command(&place(port))?,
            _ => Server::Nginx.command(&place(port))?,
        };
        // Lives until its host is gone.
        let _running = host.command(&words[0]).args(&words[1..]).stdin(Stdio::null()).spawn()?;
    }
    Ok(lab)
}

/// Path of a reply of so many KiB.
pub fn reply_path(kib: usize) -> String {
    format!("/reply-{kib}k.bin")
}

/// Path of a reply of so many KiB that is made by a program.
pub fn made_path(kib: usize) -> String {
    format!("/{PROGRAMS}/{MAKER}?{}", kib << 10)
}

/// Nodes share the folder, so the new files are there for both.
fn add_files(site: &Site) -> anyhow::Result<()> {
    let write = |path: &str, bytes: u64| -> io::Result<()> {
        let mut from = fs::File::open(site.root().join(&Site::LARGE[1..]))?.take(bytes);
        let mut to = fs::File::create(site.root().join(&path[1..]))?;
        io::copy(&mut from, &mut to)?;
        to.set_modified(UNIX_EPOCH)
    };
    let replies = REPLIES_KIB.into_iter().map(|kib| (reply_path(kib), (kib as u64) << 10));
    let bulks = BULKS.into_iter().map(|bulk| (bulk.path.to_owned(), bulk.bytes));
    for (path, bytes) in replies.chain(bulks) {
        write(&path, bytes).with_context(|| format!("cannot write {path} of the site"))?;
    }
    Ok(())
}

/// The web server and the sink. With the scheme `message` the web server's long replies are
/// regenerated, since its files are the same on both nodes; and a second one streams them.
fn services(scheme: Scheme) -> Vec<Service> {
    let web = Service::web(Server::Nginx);
    let sink = Service {
        name: "sink".to_owned(),
        port: SINK_PORT,
        program: Arc::new(sink_command),
        scheme: Protection::Track,
        flow_budget_mib: FLOW_BUDGET_MIB,
    };
    match scheme {
        Scheme::Track => vec![web, sink],
        Scheme::Message => {
            let streaming = Service {
                name: "streaming".to_owned(),
                port: STREAM_PORT,
                program: Arc::new(|place| {
                    let dir = place.dir.join("streaming");
                    fs::create_dir_all(&dir)
                        .with_context(|| format!("cannot make {}", dir.display()))?;
                    Server::Nginx.command(&Place { dir: &dir, ..*place })
                }),
                scheme: Protection::Message,
                ..web.clone()
            };
            let making = Service {
                name: "making".to_owned(),
                port: MADE_PORT,
                program: Arc::new(making_command),
                scheme: Protection::Message,
                ..web.clone()
            };
            vec![
                Service { scheme: Protection::Regenerate, ..web },
                Service { scheme: Protection::Message, ..sink },
                streaming,
                making,
            ]
        }
    }
}

/// Apache with the program that makes replies in its site.
fn making_command(place: &Place) -> anyhow::Result<Vec<String>> {
    let (from, folder) = (maker()?, place.site.root().join(PROGRAMS));
    let to = folder.join(MAKER);
    // Both nodes share the site, and the program may be running.
    if !to.exists() {
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Server::Apache.command(place)
}

/// The program that makes replies.
///
/// # Errors
/// It was not built.
pub fn maker() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let maker = own.with_file_name(MAKER);
    ensure!(maker.is_file(), "{} is not there: \"make bench\" builds it", maker.display());
    Ok(maker)
}

fn sink_command(place: &Place) -> anyhow::Result<Vec<String>> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(vec![own.display().to_string(), "sink".to_owned(), place.at.to_string()])
}

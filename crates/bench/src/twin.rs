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

use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, bail};
use demo::pair::{CLIENT, NODES, Pair, Service, Spec, other};
use demo::server::{Place, Server};
use demo::site::Site;
use lab::{Host, Lab, Link, Rate};

/// Port of the server that counts what it is sent.
pub const SINK_PORT: u16 = 9000;
/// Path of the file of [`SMALL_BYTES`], as a client asks for it.
pub const SMALL: &str = "/1k.bin";
/// Its size.
pub const SMALL_BYTES: usize = 1024;
/// Silence after which a node suspects its peer: the product's default.
pub const DETECTION_MS: u32 = 100;
/// What one flow's clients may send; the default would end a 1 Gbit/s upload after half a
/// second.
const FLOW_BUDGET_MIB: u32 = 600;
/// Servers start, nodes find each other, addresses move.
const SETTLE_WITHIN: Duration = Duration::from_secs(20);

/// Both.
pub struct Twin {
    /// With Steadfast.
    pub pair: Pair,
    bare: Lab,
}

/// One of the two, as a client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// With Steadfast.
    Protected,
    /// Without.
    Bare,
}

impl Twin {
    /// Brings both up, unshaped. Their large files have `size` bytes; `bulk` begins like them and
    /// has `bulk_bytes`.
    ///
    /// # Errors
    /// Whatever is in the way.
    pub fn up(size: u64, bulk: &str, bulk_bytes: u64) -> anyhow::Result<Twin> {
        let bare = bare_lab(size, (bulk, bulk_bytes)).context("the unprotected lab")?;
        let pair = Pair::up(&Spec {
            binary: None,
            rate_mbit: None,
            cluster_rate_mbit: None,
            ipv6: false,
            size,
            services: vec![Service::web(Server::Nginx), sink_service()],
            detection_ms: DETECTION_MS,
            capture: false,
            artifacts: std::env::temp_dir().join(format!("steadfast-bench-{}", std::process::id())),
        })
        .context("the protected pair")?;
        add_files(&pair.site, (bulk, bulk_bytes))?;
        let twin = Twin { pair, bare };
        twin.settle()?;
        wait_for("the unprotected servers listen", || {
            let connects = |port| {
                let at = SocketAddr::new(twin.at(Side::Bare, false).ip(), port);
                let client = twin.client(Side::Bare).ok()?;
                client.in_netns(|| std::net::TcpStream::connect(at).ok()).ok()?
            };
            Ok(connects(80).is_some() && connects(SINK_PORT).is_some())
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
            at.set_ip(std::net::Ipv4Addr::new(10, 77, 0, 99).into());
        }
        if sink {
            at.set_port(SINK_PORT);
        }
        at
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

fn bare_lab(size: u64, bulk: (&str, u64)) -> anyhow::Result<Lab> {
    let lab = Lab::builder().up()?;
    // Servers give up their privileges before they open files in there.
    fs::set_permissions(lab.dir(), fs::Permissions::from_mode(0o711))?;
    let site = Site::create(&lab.dir().join("site"), size)?;
    add_files(&site, bulk)?;
    let host = lab.host(NODES[0])?;
    let ip = host.ipv4(Link::Service).into();
    let place =
        |port| Place { node: "bare", dir: lab.dir(), site: &site, at: SocketAddr::new(ip, port) };
    for words in [Server::Nginx.command(&place(80))?, sink_command(&place(SINK_PORT))?] {
        // Lives until its host is gone.
        let _running = host.command(&words[0]).args(&words[1..]).stdin(Stdio::null()).spawn()?;
    }
    Ok(lab)
}

/// Nodes share the folder, so the new files are there for both.
fn add_files(site: &Site, (bulk, bulk_bytes): (&str, u64)) -> anyhow::Result<()> {
    let path = |name: &str| site.root().join(&name[1..]);
    let write = || {
        fs::write(path(SMALL), [b'k'; SMALL_BYTES])?;
        let mut from = fs::File::open(path(Site::LARGE))?.take(bulk_bytes);
        io::copy(&mut from, &mut fs::File::create(path(bulk))?)?;
        [SMALL, bulk].iter().try_for_each(|name| {
            fs::File::options().write(true).open(path(name))?.set_modified(UNIX_EPOCH)
        })
    };
    write().with_context(|| format!("cannot write into {}", site.root().display()))
}

fn sink_service() -> Service {
    Service {
        name: "sink".to_owned(),
        port: SINK_PORT,
        program: Box::new(sink_command),
        flow_budget_mib: FLOW_BUDGET_MIB,
    }
}

fn sink_command(place: &Place) -> anyhow::Result<Vec<String>> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(vec![own.display().to_string(), "sink".to_owned(), place.at.to_string()])
}

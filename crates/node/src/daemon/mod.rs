//! The daemon behind `steadfast node`: its parts, in the order in which they may exist.
//!
//! Nothing may leave from a service address before the data path stands, and nothing may be left
//! behind that could. So the data path comes up before the servers and goes down after them; in
//! between, four threads, and a fifth if there are services whose output is held:
//!
//! - *membership* ([`membership`]): the peer, leases, roles; real-time, never blocks;
//! - *journal* ([`journal`]): the log and the takeover;
//! - *output* ([`output`]): what servers write, on its way to the backup;
//! - *supervisor* ([`crate::supervisor`]): the servers' processes;
//! - *operator* ([`operator_socket`]): status, events, switchover.

mod asker;
mod call;
mod epoch_file;
mod events;
mod holder;
mod inbox;
mod journal;
mod links;
mod membership;
mod notices;
mod operator_socket;
mod output;
mod scope;
mod seat;
mod servers;
mod status;
mod stranger;
mod stream;
mod timeline;
mod told;

pub use operator_socket::{Question, SOCKET};

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use cluster::Core;
use control::{Channel, Identity, Psk, Rng};
use datapath::{Datapath, FlowTable, Ringer, Settings, Switchboard};
use gate::Orders;
use hostnet::{Interface, Offload, ServiceAddress, Tun};
use nix::sys::signal::{SigSet, Signal};
use takeover::{Budgets, Engine, Holding, Listener};

use crate::check;
use crate::config::{Arbiter, Config, Scheme, gate_settings};
use crate::supervisor::Supervisor;

use call::Call;
use epoch_file::EpochFile;
use events::Events;
use inbox::Inbox;
use membership::{Membership, Message, Parts};
use scope::Scope;
use seat::Seat;
use stream::Secrets;

/// How long servers may take to end in good order.
const GRACE: Duration = Duration::from_secs(5);

/// How long somebody may take to answer that a service address is his.
const CONFLICT_WAIT: Duration = Duration::from_millis(250);

/// Largest segment that the adoption device takes.
const ADOPTION_MTU: u32 = 65_535;

const MIB: usize = 1 << 20;

/// Runs the node until it is told to stop (SIGTERM, SIGINT).
pub fn run(config: Config) -> anyhow::Result<()> {
    let psk = Psk::load(&config.node.key_file)?;
    let signals = stop_signals();
    signals.thread_block().context("cannot block signals")?;
    let (mut datapath, [service_link, cluster_link]) = prepare(&config)?;
    let node = &config.node;
    let state_dir = &node.state_dir;
    std::fs::create_dir_all(state_dir)
        .with_context(|| format!("cannot make the state directory {}", state_dir.display()))?;

    let addresses: Vec<IpAddr> =
        config.services.iter().flat_map(|service| service.addresses.clone()).collect();

    let events = Events::start().context("cannot start a thread")?;
    datapath.attach()?;
    let switchboard = datapath.switchboard();
    let installed = addresses
        .iter()
        .map(|&address| ServiceAddress::install(address))
        .collect::<Result<Vec<_>, _>>()?;
    let tun = Tun::open("steadfast", ADOPTION_MTU, Offload::None)?;
    if tun.rp_filter()? == hostnet::sysctl::RpFilter::Strict {
        bail!(
            "the kernel would drop the segments that connections are adopted with: set \
             net.ipv4.conf.all.rp_filter to 0 or 2"
        );
    }
    datapath.attach_adoption(tun.ifindex())?;

    let (post, inbox) = Inbox::new().context("cannot make an event descriptor")?;
    let endpoints: Vec<(IpAddr, u16)> = endpoints(&config).into_iter().flatten().collect();
    let secrets = Secrets { psk: psk.clone(), identity: identity(&config), rng: Rng::system() };
    let output = match holds_output(&config) {
        true => Some(start_output(&config, &datapath, &tun, secrets.clone(), post.clone())?),
        false => None,
    };
    let worker = {
        let source = datapath.log()?;
        let scopes = Scope::all(node.roles).into_iter();
        let keepers = scopes
            .map(|scope| Ok((scope, keeper(&config, scope, &datapath, &tun, secrets.clone())?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let make = move || {
            let engine = |(scope, keeper): (Scope, Keeper)| {
                let (engine, call) = keeper.make()?;
                Ok((scope, engine, call))
            };
            let engines = keepers.into_iter().map(engine).collect::<anyhow::Result<Vec<_>>>()?;
            Ok(journal::Parts { engines, source })
        };
        let endpoints =
            journal::Endpoints { all: endpoints.clone(), held: held_endpoints(&config) };
        journal::start(make, endpoints, post.clone(), events.clone())?
    };
    // What a predecessor's server still holds can be carried on by nobody here.
    hostnet::destroy_sockets(&endpoints)?;

    let asker = {
        let interface = service_link.clone();
        let (flows, patience) = (datapath.flow_table()?, node.detection());
        let post = post.clone();
        let parts = asker::Parts { interface, switchboard, flows, patience };
        asker::start(parts, move |evidence| post.send(Message::Neighbours(evidence)))?
    };
    let membership_report = Arc::new(Mutex::new(None));
    let membership = Membership::new(
        &config,
        Parts {
            seats: Scope::all(node.roles)
                .into_iter()
                .map(|scope| seat(&config, scope, switchboard))
                .collect::<anyhow::Result<Vec<_>>>()?,
            channel: Channel::new(psk, identity(&config), Rng::system()),
            interfaces: [service_link, cluster_link],
            switchboard,
            asker,
            journal: worker.orders.clone(),
            output: output.as_ref().map(|(orders, _)| orders.clone()),
            events: events.clone(),
            report: membership_report.clone(),
        },
    )?;
    let operator = operator_socket::start(
        state_dir,
        status::Source {
            config: config.clone(),
            membership: membership_report,
            journal: worker.report.clone(),
            table: datapath.flow_table()?,
            counters: datapath.counters()?,
        },
        events.clone(),
        post.clone(),
    )?;
    let supervisor = {
        let post = post.clone();
        Supervisor::start(&config.services, state_dir, move |event| {
            post.send(Message::Supervisor(event));
        })?
    };
    forward_signals(signals, post)?;

    events.add(
        "started",
        &format!("node {} of cluster {} started", node.name, node.cluster),
        serde_json::json!({"node": node.name, "version": env!("CARGO_PKG_VERSION")}),
    );
    let ended = std::thread::Builder::new()
        .name("membership".into())
        .spawn(move || {
            run_in_real_time();
            membership.run(&inbox)
        })
        .context("cannot start a thread")?
        .join();

    // Fenced from here on: what servers still say on their way out reaches nobody.
    switchboard.set_role(0, datapath::Role::None);
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    supervisor.stop(GRACE);
    worker.orders.send(journal::Order::Stop);
    let _ = worker.thread.join();
    if let Some((orders, thread)) = output {
        orders.send(output::Order::Stop);
        let _ = thread.join();
    }
    if let Err(error) = hostnet::destroy_sockets(&endpoints) {
        tracing::warn!(%error, "connections remain without their data path");
    }
    drop(installed);
    datapath.detach()?;
    drop(operator);
    events.flush();
    match ended {
        Ok(result) => result,
        Err(_) => bail!("the membership thread failed; its message stands above"),
    }
}

/// The thread that tells the backup what servers write.
fn start_output(
    config: &Config,
    datapath: &Datapath,
    tun: &Tun,
    secrets: Secrets,
    membership: inbox::Post<Message>,
) -> anyhow::Result<(inbox::Post<output::Order>, JoinHandle<()>)> {
    let node = &config.node;
    let own = [node.address.service, node.address.cluster];
    let parts = output::Parts {
        listeners: output::listen(&own, node.control_port)?,
        peers: vec![node.peer_address.service, node.peer_address.cluster],
        secrets,
        source: datapath.output()?,
        orders: Orders::new(tun.try_clone()?),
        tables: Scope::all(node.roles)
            .into_iter()
            .map(|scope| Ok(scope.table(datapath.flow_table()?)))
            .collect::<anyhow::Result<Vec<_>>>()?,
        ringer: datapath.ringer()?,
        membership,
    };
    output::start(move || Ok(parts))
}

/// What an engine is made of.
struct Keeper {
    table: FlowTable,
    tun: Tun,
    ringer: Option<Ringer>,
    budgets: Budgets,
    /// `None`: no service's output is held.
    holding: Option<(Holding, Call)>,
}

impl Keeper {
    /// In the thread in which it is to stay.
    fn make(self) -> anyhow::Result<(Engine, Option<Call>)> {
        let mut engine = Engine::new(self.table, self.tun, self.ringer, self.budgets)?;
        let call = self.holding.map(|(holding, call)| {
            engine.hold_output(holding);
            call
        });
        Ok((engine, call))
    }
}

/// For the flows in one scope. Each has its part of the memory.
fn keeper(
    config: &Config,
    scope: Scope,
    datapath: &Datapath,
    tun: &Tun,
    secrets: Secrets,
) -> anyhow::Result<Keeper> {
    let scopes = Scope::all(config.node.roles).len();
    let part = |mib: u32| mib as usize * MIB / scopes;
    let holding = match holds_output(config) {
        true => {
            let holding = holding(config, scope, part(config.budget.replies_mib), datapath, tun)?;
            Some((holding, Call::new(scope, &config.node, secrets)))
        }
        false => None,
    };
    Ok(Keeper {
        table: scope.table(datapath.flow_table()?),
        tun: tun.try_clone()?,
        ringer: datapath.ringer()?,
        budgets: Budgets {
            total: part(config.budget.total_mib),
            per_flow: config.services.iter().map(|s| s.flow_budget_mib as usize * MIB).collect(),
        },
        holding,
    })
}

/// What an engine needs to hold output.
fn holding(
    config: &Config,
    scope: Scope,
    budget: usize,
    datapath: &Datapath,
    tun: &Tun,
) -> anyhow::Result<Holding> {
    let switchboard = datapath.switchboard();
    let listener = Listener::open().context("cannot open the socket that delivers replies")?;
    datapath.set_deliverer(scope.share(), listener.as_fd())?;
    Ok(Holding {
        policies: config.services.iter().map(|s| s.policy().map(Arc::new)).collect(),
        budget,
        orders: Orders::new(tun.try_clone()?),
        listener,
        switchboard: scope.switchboard(switchboard),
    })
}

/// What threads share for operators to read. A thread that panicked does not take it with it.
fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// All that takes time before there is anything to undo, at once: other hosts are waited for, and
/// the kernel verifies programs.
fn prepare(config: &Config) -> anyhow::Result<(Datapath, [Interface; 2])> {
    std::thread::scope(|scope| {
        let checked = scope.spawn(|| preflight(config));
        let free = scope.spawn(|| refuse_conflicts(config));
        let load = || {
            let node = &config.node;
            let service_link = Interface::by_name(&node.service_interface)?;
            let cluster_link = Interface::by_name(&node.cluster_interface)?;
            let datapath = Datapath::load(&settings(config, &service_link, &cluster_link))?;
            Ok((datapath, [service_link, cluster_link]))
        };
        let loaded = load();
        // What the check finds is the reason for the other failures, and says how to mend it.
        checked.join().expect("the thread does not panic")?;
        free.join().expect("the thread does not panic")?;
        loaded
    })
}

fn preflight(config: &Config) -> anyhow::Result<()> {
    let report = check::run(Some(config));
    let mut failures = Vec::new();
    for finding in &report.findings {
        match finding.level {
            check::Level::Ok => {}
            check::Level::Warn => {
                tracing::warn!("{}: {}; {}", finding.what, finding.why, finding.mend);
            }
            check::Level::Fail => {
                failures.push(format!("  {}: {}; {}", finding.what, finding.why, finding.mend))
            }
        }
    }
    if !failures.is_empty() {
        bail!("this host cannot run the node:\n{}", failures.join("\n"));
    }
    Ok(())
}

/// Two hosts with one address would tear connections apart; the peer alone may have it.
fn refuse_conflicts(config: &Config) -> anyhow::Result<()> {
    let link = Interface::by_name(&config.node.service_interface)?;
    let users = |address| hostnet::users(&link, address, CONFLICT_WAIT);
    let services = config.services.iter().flat_map(|service| &service.addresses);
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| users(config.node.peer_address.service));
        let asked: Vec<_> =
            services.map(|&address| (address, scope.spawn(move || users(address)))).collect();
        let peer = peer.join().expect("the thread does not panic")?;
        for (address, users) in asked {
            let users = users.join().expect("the thread does not panic")?;
            let stranger = |user: &&hostnet::User| peer.iter().all(|peer| peer.mac != user.mac);
            if let Some(user) = users.iter().find(stranger) {
                bail!(
                    "service address {address} is in use by another host on {} ({}); take it away \
                     there, or give the service another address",
                    link.name,
                    user.mac
                );
            }
        }
        Ok(())
    })
}

fn settings(config: &Config, service_link: &Interface, cluster_link: &Interface) -> Settings {
    let own_address4 = match config.node.address.service {
        IpAddr::V4(own) => Some(own),
        IpAddr::V6(_) => service_link.addresses.iter().find_map(|assigned| match assigned.addr {
            IpAddr::V4(own) => Some(own),
            IpAddr::V6(_) => None,
        }),
    };
    Settings {
        service_ifindex: service_link.index,
        cluster_ifindex: cluster_link.index,
        own_address4,
        ring_bytes: config.budget.ring_mib * MIB as u32,
        max_flows: config.budget.max_flows,
        services: endpoints(config)
            .into_iter()
            .zip(&config.services)
            .map(|(endpoints, service)| datapath::Service {
                endpoints,
                held: service.scheme == Scheme::Message,
            })
            .collect(),
        gate: gate_settings(&config.services),
    }
}

/// Every service's addresses with its port.
fn endpoints(config: &Config) -> Vec<Vec<(IpAddr, u16)>> {
    let of = |service: &crate::config::Service| {
        service.addresses.iter().map(|&address| (address, service.port)).collect()
    };
    config.services.iter().map(of).collect()
}

/// Whether that of any service is held.
fn holds_output(config: &Config) -> bool {
    config.services.iter().any(|service| service.message.is_some())
}

/// Those of services whose output is held.
fn held_endpoints(config: &Config) -> Vec<(IpAddr, u16)> {
    let services = config.services.iter().zip(endpoints(config));
    services.filter(|(service, _)| service.message.is_some()).flat_map(|(_, e)| e).collect()
}

fn seat(config: &Config, scope: Scope, switchboard: Switchboard) -> anyhow::Result<Seat> {
    let node = &config.node;
    let mut settings = cluster::Config::new(&node.name, &node.peer);
    settings.prefers_primary = match scope.number() {
        None => node.prefer_primary,
        // The lower name has the first share, the other one the second.
        Some(number) => (node.name < node.peer) == (number == 0),
    };
    settings.detection = node.detection().as_nanos() as u64;
    settings.queue = Some(node.queue().as_nanos() as u64);
    settings.startup_wait = node.startup_wait().as_nanos() as u64;
    settings.last_epoch = epoch_file::read(&node.state_dir, scope)?;
    settings.arbiter = match node.arbiter {
        Arbiter::None => cluster::ArbiterKind::None,
    };
    let core = Core::new(settings, hostnet::now_boottime_ns(), incarnation())?;
    Ok(Seat::new(scope, core, switchboard, EpochFile::new(&node.state_dir, scope)))
}

fn identity(config: &Config) -> Identity {
    let node = &config.node;
    Identity {
        cluster: node.cluster.clone(),
        name: node.name.clone(),
        peer: node.peer.clone(),
        incarnation: incarnation(),
    }
}

/// Grows with every start: the wall clock in microseconds.
fn incarnation() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_micros() as u64
}

fn stop_signals() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals
}

fn forward_signals(signals: SigSet, post: inbox::Post<Message>) -> anyhow::Result<()> {
    let forward = move || {
        while let Ok(signal) = signals.wait() {
            tracing::info!("{signal}: leaving in good order");
            if !post.send(Message::Shutdown) {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(forward)
        .context("cannot start a thread")?;
    Ok(())
}

/// A starved heartbeat looks like a dead host: it comes before everything else, and never waits for
/// a page of the program to be read from a disk.
fn run_in_real_time() {
    // SAFETY: plain system call without memory arguments.
    let locked =
        unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) };
    if locked != 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(%error, "memory cannot be locked (CAP_IPC_LOCK): a busy disk may delay heartbeats");
    }
    let parameters = libc::sched_param { sched_priority: 10 };
    // SAFETY: the structure lives through the call; 0 names the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(%error, "no real-time priority (CAP_SYS_NICE): a busy host may look dead");
    }
}

//! The pair of a run, and what is done to it.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use demo::clock::{Bell, boottime_ns, now_ns};
use demo::config::{self, Roles};
use demo::hashing;
use demo::operator::Event;
use demo::pair::{NODES, Pair, Service, Spec, other};
use demo::server::Server;
use demo::shop::{self, Reign};
use e2e::witness::Witness;
use lab::{Armed, Cut, Flip, Kill, Link, Slow, Trip, Way};
use oracle::Verdict;
use serde_json::Value;

use crate::campaign::Options;
use crate::evidence::{Done, Said};
use crate::fault::{Act, Cable, Program, Who};
use crate::moment::{Point, first_output};
use crate::plan::{Plan, Scheme, Serving};

/// How long a takeover may take to be reported.
const SOON: Duration = Duration::from_secs(5);
/// MiB of one flow in the journal: more than the largest upload.
const FLOW_BUDGET_MIB: u32 = 128;
/// How long a process may take to die of a flipped bit and still have done nothing with it.
const AT_ONCE: Duration = Duration::from_millis(50);
/// How often a limit is tightened that nobody has felt, in equal parts of its time.
const TIGHTENINGS: u32 = 4;
/// How long a frame may take to pass while clients run.
const PATIENCE: Duration = Duration::from_secs(20);

/// The pair of a run.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) pair: Pair,
    witness: Witness,
    product: PathBuf,
    primary: &'static str,
    /// The nodes that served when the pair came up: of each share of the connections.
    first: Vec<&'static str>,
    /// Daemons that got SIGKILL.
    killed: Mutex<Vec<&'static str>>,
    /// Since when it is up, on [`now_ns`]'s clock.
    pub(crate) up_ns: u64,
    /// A program was started only to ask for memory.
    pub(crate) prompted: Cell<bool>,
}

/// A frame that is waited for.
#[derive(Debug)]
pub(crate) struct Waiting {
    armed: Armed,
    /// The host that dies with it, and what that is called.
    victim: Option<(&'static str, String)>,
}

impl Stage {
    /// Brings the pair of a plan up. Files that are kept go to `artifacts`.
    pub(crate) fn up(plan: &Plan, options: &Options, artifacts: &Path) -> anyhow::Result<Stage> {
        let product = &options.product;
        let work = &plan.work;
        let pair = Pair::up(&Spec {
            binary: Some(product.clone()),
            rate_mbit: work.rate_mbit,
            cluster_rate_mbit: None,
            ipv6: work.ipv6,
            size: work.size,
            services: vec![service(plan.scheme, work.serving)],
            detection_ms: options.detection_ms,
            roles: options.roles,
            capture: false, // the witness does
            artifacts: artifacts.to_owned(),
        })?;
        let witness = Witness::start_for(options.roles, &pair.lab, pair.at(), work.rate_mbit)?;
        let primary = pair.primary()?;
        let (killed, up_ns) = (Mutex::default(), now_ns());
        let product = product.clone();
        let first = match options.roles {
            Roles::Single => vec![primary],
            Roles::Dual => vec![primary, other(primary)],
        };
        let prompted = Cell::new(false);
        Ok(Stage { pair, witness, product, primary, first, killed, up_ns, prompted })
    }

    /// A node's name.
    pub(crate) fn name(&self, who: Who) -> &'static str {
        match who {
            Who::Primary => self.primary,
            Who::Backup => other(self.primary),
        }
    }

    /// Roles are dealt anew.
    pub(crate) fn look_who_serves(&mut self) -> anyhow::Result<()> {
        self.primary = self.pair.primary()?;
        Ok(())
    }

    /// Collects what the daemons have reported so far.
    pub(crate) fn listen(&self) {
        self.witness.listen(&self.pair.lab);
    }

    /// Waits at a cut point; a host that is to die does so with the frame.
    pub(crate) fn arm(
        &self,
        point: Point,
        nth: u32,
        swallow: bool,
        act: &Act,
    ) -> anyhow::Result<Waiting> {
        let (link, way) = point.wire(self.name(Who::Primary), self.name(Who::Backup));
        let victim = match act {
            Act::Host(who) => Some((self.name(*who), act.to_string())),
            _ => None,
        };
        let victims: Vec<String> = victim.iter().map(|(name, _)| (*name).to_owned()).collect();
        self.listen();
        let armed = self.pair.lab.arm(&Trip {
            link,
            way,
            frame: point.frame(self.pair.at().port()),
            nth,
            swallow,
            kill: !victims.is_empty(),
            victims,
        })?;
        Ok(Waiting { armed, victim })
    }

    /// Waits for the first frame of the backup as a new primary.
    pub(crate) fn arm_first_output(&self) -> anyhow::Result<Waiting> {
        let armed = self.pair.lab.arm(&Trip {
            link: format!("{}.svc", self.name(Who::Backup)),
            way: Way::FromHost,
            frame: first_output(self.pair.at().port()),
            nth: 1,
            swallow: false,
            victims: Vec::new(),
            kill: false,
        })?;
        Ok(Waiting { armed, victim: None })
    }

    /// Waits until the frame has passed, `over` says that it will not any more, or for long; `None`
    /// if it did not pass. What was done by the wire itself, if it did something.
    pub(crate) fn wait_for(
        &self,
        waiting: &Waiting,
        over: impl Fn() -> bool,
    ) -> anyhow::Result<Option<Option<Done>>> {
        let deadline = Instant::now() + PATIENCE;
        let mut last_look = false;
        loop {
            if let Some(tripped) = waiting.armed.wait(Duration::from_millis(5))? {
                let Some((node, what)) = &waiting.victim else { return Ok(Some(None)) };
                let at_ns = boottime_ns(tripped.at);
                self.witness.died(node, at_ns);
                let (what, node) = (what.clone(), Some((*node).to_owned()));
                return Ok(Some(Some(Done { at_ns, what, node })));
            }
            if last_look || Instant::now() > deadline {
                for link in Link::ALL {
                    self.pair.lab.disarm(link.name())?;
                }
                return Ok(None);
            }
            last_look = over();
        }
    }

    /// Waits until the backup has reported that it takes over.
    pub(crate) fn wait_for_takeover(&self) -> bool {
        let survivor = self.name(Who::Backup);
        let promoted = || {
            let events = self.pair.operator(survivor).events().unwrap_or_default();
            events.iter().any(|e| e.event == "promoted" && e.boottime_ns >= self.up_ns)
        };
        Bell::default().wait_until(SOON, promoted)
    }

    /// Does it.
    pub(crate) fn begin(&self, act: &Act) -> anyhow::Result<Done> {
        self.listen();
        let lab = &self.pair.lab;
        let done =
            |at_ns, node: &str| Done { at_ns, what: act.to_string(), node: Some(node.to_owned()) };
        Ok(match act {
            Act::Host(who) => {
                let node = self.name(*who);
                let at_ns = self.pair.kill(node, &Kill::Host)?;
                self.witness.died(node, at_ns);
                done(at_ns, node)
            }
            Act::Server(who, signal) => {
                let node = self.name(*who);
                done(self.kill_server(node, *signal)?, node)
            }
            Act::Daemon(who) => {
                let node = self.name(*who);
                let at_ns = self.pair.kill(node, &Kill::Daemon)?;
                self.killed.lock().unwrap_or_else(PoisonError::into_inner).push(node);
                done(at_ns, node)
            }
            Act::Hang(who, _) => {
                let node = self.name(*who);
                done(boottime_ns(lab.hang(node)?.at), node)
            }
            Act::Cut { cable, ways, carrier, .. } => {
                let (link, node) = self.cable(*cable);
                let at_ns = now_ns();
                lab.cut(&link, Cut { ways: ways.clone(), carrier: *carrier })?;
                done(at_ns, node)
            }
            Act::Slow { who, percent, .. } => {
                let node = self.name(*who);
                let at_ns = now_ns();
                lab.slow(node, &Slow { cpu_percent: Some(*percent), memory_mib: None })?;
                done(at_ns, node)
            }
            Act::Starve { who, mib, .. } => {
                let node = self.name(*who);
                let at_ns = now_ns();
                lab.slow(node, &Slow { cpu_percent: None, memory_mib: Some(*mib) })?;
                done(at_ns, node)
            }
            Act::Partition(who, _) => {
                let node = self.name(*who);
                let at_ns = now_ns();
                lab.cut(node, Cut::default())?;
                // What it has sent meanwhile may have been heard.
                self.witness.cut_off(node, now_ns());
                done(at_ns, node)
            }
            Act::Flip { who, program, place, bits, seed } => {
                let node = self.name(*who);
                let process = self.process_of(node, *program)?;
                let at_ns = now_ns();
                let mut what = act.to_string();
                for bit in 0..u64::from(*bits) {
                    let flip = Flip { process: process.clone(), place: *place, seed: seed ^ bit };
                    match lab.flip(node, &flip) {
                        Ok(flipped) => what += &format!("\n    {flipped}"),
                        // It has died of the earlier ones, or has no such memory.
                        Err(e) => what += &format!("\n    no flip: {e}"),
                    }
                }
                Done { at_ns, what, node: Some(node.to_owned()) }
            }
        })
    }

    /// Ends an act that lasts for a time, once that is over.
    pub(crate) fn end(&self, act: &Act) -> anyhow::Result<()> {
        let lab = &self.pair.lab;
        match act {
            Act::Hang(who, time) => {
                thread::sleep(*time);
                lab.resume(self.name(*who))?;
            }
            Act::Cut { cable, time, .. } => {
                thread::sleep(*time);
                lab.heal(&self.cable(*cable).0)?;
            }
            Act::Partition(who, time) => {
                thread::sleep(*time);
                self.witness.mends(self.name(*who));
                lab.heal(self.name(*who))?;
            }
            Act::Slow { who, time, .. } => {
                thread::sleep(*time);
                lab.slow(self.name(*who), &Slow::default())?;
            }
            Act::Starve { who, time, .. } => {
                for _ in 0..TIGHTENINGS {
                    thread::sleep(*time / (TIGHTENINGS + 1));
                    if lab.starved(self.name(*who))?.reached == 0 {
                        lab.tighten(self.name(*who))?;
                        self.ask_for_memory(self.name(*who))?;
                    }
                }
                thread::sleep(*time / (TIGHTENINGS + 1));
                lab.slow(self.name(*who), &Slow::default())?;
            }
            Act::Host(_) | Act::Server(..) | Act::Daemon(_) | Act::Flip { .. } => {}
        }
        Ok(())
    }

    /// Starts a program on a host, which cannot do without memory of its own; daemon and servers
    /// may have all that they need. Whether it gets its memory, or who is killed for it, is the
    /// kernel's business.
    fn ask_for_memory(&self, node: &str) -> anyhow::Result<()> {
        self.prompted.set(true);
        // One that cannot even be started has asked.
        let Ok(asking) = self.pair.lab.host(node)?.command("true").spawn() else { return Ok(()) };
        if asking.wait_timeout(SOON)?.is_none() {
            asking.kill()?;
        }
        Ok(())
    }

    /// The cable's name, and its host's.
    fn cable(&self, cable: Cable) -> (String, &'static str) {
        match cable {
            Cable::Service(who) => (format!("{}.svc", self.name(who)), self.name(who)),
            Cable::Cluster(who) => (format!("{}.clu", self.name(who)), self.name(who)),
            Cable::Clients => ("client.svc".to_owned(), demo::pair::CLIENT),
        }
    }

    /// What only the processes of this program have in their command lines.
    fn process_of(&self, node: &str, program: Program) -> anyhow::Result<String> {
        let processes = self.pair.lab.host(node)?.processes()?;
        let daemon = self.product.display().to_string();
        match program {
            Program::Daemon => Ok(daemon),
            Program::Server => {
                let server = processes.iter().find(|p| !p.matches(&daemon));
                Ok(server.context("no server runs there")?.name.clone())
            }
        }
    }

    /// Daemons that have ended on hosts that are up, with their exit status.
    pub(crate) fn ended(&self) -> anyhow::Result<Vec<(&'static str, String)>> {
        // A daemon that is killed takes its time to be gone.
        for name in self.killed.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let node = self.pair.lab.node(name).context("no daemon was started")?;
            Bell::default().wait_until(SOON, || !matches!(node.ended(), Ok(None)));
        }
        let mut ended = Vec::new();
        for name in NODES {
            let node = self.pair.lab.node(name).context("no daemon was started")?;
            if !self.pair.lab.host(name)?.is_up() {
                continue;
            }
            if let Some(status) = node.ended()? {
                ended.push((name, status.to_string()));
            }
        }
        Ok(ended)
    }

    /// Whether a node's daemon ends at once.
    pub(crate) fn ends_at_once(&self, node: &str) -> bool {
        let daemon = self.pair.lab.node(node);
        let ended = || daemon.as_ref().is_none_or(|node| !matches!(node.ended(), Ok(None)));
        Bell::default().wait_until(AT_ONCE, ended)
    }

    /// Ends a node's daemon, if it is still there: nobody would leave one in service that is
    /// known to be damaged.
    pub(crate) fn replace_daemon(&self, node: &'static str) -> anyhow::Result<()> {
        self.listen();
        if !self.ends_at_once(node) {
            self.pair.kill(node, &Kill::Daemon)?;
            self.killed.lock().unwrap_or_else(PoisonError::into_inner).push(node);
        }
        Ok(())
    }

    /// The same for a server, unless it has been replaced since then.
    pub(crate) fn replace_server(&self, node: &'static str, since_ns: u64) -> anyhow::Result<()> {
        self.listen();
        let gone = || {
            let events = self.pair.events_since(since_ns);
            events.iter().any(|(who, e)| *who == node && e.event == "server_exited")
        };
        if !gone() {
            self.kill_server(node, libc::SIGKILL)?;
            ensure!(Bell::default().wait_until(SOON, gone), "the server of {node} does not end");
        }
        Ok(())
    }

    /// Sends the server's processes a signal that they die of; when that began.
    fn kill_server(&self, node: &str, signal: i32) -> anyhow::Result<u64> {
        let carried = self.pair.status(node).is_ok_and(|s| s.is_backed());
        let at_ns = self.pair.kill(node, &Kill::Process { signal, matching: None })?;
        if carried {
            // Only now has every process got its signal.
            self.witness.crashed(node, now_ns());
        }
        Ok(at_ns)
    }

    /// Boots what is down, starts what has ended, and waits until the pair is whole.
    pub(crate) fn mend(&self) -> anyhow::Result<()> {
        self.listen();
        for name in NODES {
            if !self.pair.lab.host(name)?.is_up() {
                self.witness.boots(name);
                self.forget_pids(name);
                self.pair.lab.boot(name)?;
                self.witness.plugged_in(&self.pair.lab, name)?;
                self.pair.lab.start_again(name)?;
            }
        }
        loop {
            let ended = self.ended()?;
            for (name, _) in &ended {
                self.pair.lab.start_again(name)?;
            }
            match self.pair.wait_backed() {
                // A daemon that was already dying has only now gone.
                Err(_) if ended.is_empty() && !self.ended()?.is_empty() => {}
                ready => return ready,
            }
        }
    }

    /// A host that boots finds no pid files of its last life: its `/run` is empty.
    fn forget_pids(&self, name: &str) {
        for server in Server::ALL {
            // Most servers write none.
            let _ = fs::remove_file(self.pair.lab.dir().join(format!("{server}-{name}.pid")));
        }
    }

    /// Servers that crashed although nobody sent them a signal did so because of a flip.
    pub(crate) fn note_crashes(&self, node: &str, since_ns: u64) {
        let events = self.pair.events_since(since_ns);
        let crashed = |(who, e): &&(&str, Event)| *who == node && e.event == "server_crashed";
        for (_, event) in events.iter().filter(crashed) {
            self.witness.crashed(node, event.boottime_ns);
        }
    }

    /// Ends the captures; what the oracle says of them.
    pub(crate) fn judge(&self) -> anyhow::Result<Verdict> {
        self.witness.judge(&self.pair.lab)
    }

    /// Everything that the daemons have said and that was heard, in order.
    pub(crate) fn said(&self) -> Vec<Said> {
        self.listen();
        let said = |(node, e): (&str, Event)| Said {
            at_ns: e.boottime_ns,
            node: node.to_owned(),
            event: e.event,
            text: e.text,
        };
        self.witness.heard().into_iter().map(said).collect()
    }

    /// Who has served each share of the connections when, as far as the daemons' reports were heard. A
    /// node that was cut off served nobody meanwhile: what it executed cannot have been the last word.
    pub(crate) fn reigns(&self, cut_off: Option<Who>) -> Vec<Vec<Reign>> {
        let heard = self.witness.heard();
        let of = |(share, first): (usize, &&str)| {
            let its =
                |event: &Event| event.boottime_ns >= self.up_ns && event.is_about(share as u64);
            let events = heard.iter().filter(|(_, event)| its(event));
            let mut reigns = Reign::of(first, events.map(|(node, event)| (*node, event)));
            if let Some(who) = cut_off {
                reigns.sort_by_key(|reign| reign.node != self.name(who));
            }
            reigns
        };
        self.first.iter().enumerate().map(of).collect()
    }

    /// What the nodes say of themselves, a line each: flows, the last takeover, counters.
    pub(crate) fn last_words(&self) -> Vec<String> {
        let words = |node: &&'static str| {
            let status = self.pair.status(node).ok()?;
            let counters = status.all.get("counters")?.as_object()?;
            let counters = counters.iter().filter(|(_, count)| count.as_u64() != Some(0));
            let counters: Vec<String> = counters.map(|(name, n)| format!("{name} {n}")).collect();
            let (role, flows, takeover) = (status.role, status.flows, status.takeover);
            let counters = counters.join(", ");
            let replies = status.all.get("replies").map_or(String::new(), Value::to_string);
            Some(format!("{node}: {role}; {flows:?}; {takeover:?}; {counters}; replies {replies}"))
        };
        NODES.iter().filter_map(words).collect()
    }
}

/// The service of a plan. Files can be made again, however long they are.
fn service(scheme: Scheme, serving: Serving) -> Service {
    let service = match serving {
        Serving::Stock(server) => Service::web(server),
        Serving::Hashing => hashing::service(FLOW_BUDGET_MIB),
        Serving::Shop => return shop::service(),
    };
    let scheme = match scheme {
        Scheme::Track => config::Scheme::Track,
        Scheme::Message => config::Scheme::Regenerate,
    };
    Service { scheme, ..service }
}

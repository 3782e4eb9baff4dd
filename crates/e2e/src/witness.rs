//! Every frame at every port, from the first client on, and the oracle's word on it.
//!
//! A test asks what it is about; the [`oracle`] asks everything else, of every test. It sees the
//! network only, so what the network cannot say is collected here: who was killed when, and what
//! the daemons reported about their roles. A daemon's reports die with it, so they are collected
//! before every failure as well as at the end.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use demo::clock::now_ns;
use demo::config::Roles;
use demo::operator::Event;
use demo::pair::{CLIENT, NODES, events, other};
use lab::{CaptureOptions, Lab};
use oracle::{
    Addresses, Beginning, Capture, Class, Crash, Dead, Excluded, Gap, Handover, Host, Interval,
    Left, Story, Verdict,
};

/// A child offers a window of its own (`docs/invariants.md`, invariant 4, known edge); and the
/// time in a reply is another one when the reply is computed again.
pub const TOLERATED: [Class; 2] = [Class::EdgeShrunk, Class::Volatile];
/// Whose ports are watched. Other hosts of a lab are strangers.
const HOSTS: [&str; 3] = [CLIENT, NODES[0], NODES[1]];
/// What stock servers write into every reply.
const CLOCK: &str = "Date: ";
/// A daemon tells of a change once it has made it: the kernel may have obeyed so much earlier.
const TOLD_AFTER_NS: u64 = 1_000_000;
/// How long a frame may wait for its processor to come round to it: for as long as a machine may stand
/// still without a test being played again. When it was made the oracle sees from its timestamp.
const BACKLOG: Duration = crate::machine::DEADLY;
/// Within this time of the signal a crash is that crash.
const CRASHES_WITHIN_NS: u64 = 1_000_000_000;

/// The captures of a stage, and what is known of it.
#[derive(Debug)]
pub struct Witness {
    known: Mutex<Known>,
    /// The service.
    at: SocketAddr,
    roles: Roles,
    /// See [`Story::queue_ns`].
    queue: Duration,
}

#[derive(Debug, Default)]
struct Known {
    judged: bool,
    running: Vec<(Capture, lab::Capture)>,
    /// Times are on [`now_ns`]'s clock until the story is told.
    dead: Vec<(&'static str, u64, Option<u64>)>,
    cut_off: Vec<(&'static str, u64, Option<u64>)>,
    crashes: Vec<(&'static str, u64)>,
    excluded: Vec<Excluded>,
    garbage: bool,
    events: BTreeMap<(u64, &'static str, u64), Event>,
}

impl Witness {
    /// Begins to capture at every port of the clients' host and of both nodes, whose state
    /// directories are where [`demo::config::state_dir`] says. The service is `at`; `rate_mbit` is
    /// the service link's.
    pub fn start(lab: &Lab, at: SocketAddr, rate_mbit: Option<u64>) -> anyhow::Result<Witness> {
        Self::start_for(Roles::Single, lab, at, rate_mbit)
    }

    /// The same, for nodes of which both may serve.
    pub fn start_for(
        roles: Roles,
        lab: &Lab,
        at: SocketAddr,
        rate_mbit: Option<u64>,
    ) -> anyhow::Result<Witness> {
        let witness = Witness { known: Mutex::default(), at, roles, queue: wire_queue(rate_mbit) };
        for host in HOSTS {
            witness.plugged_in(lab, host)?;
        }
        witness.listen(lab);
        Ok(witness)
    }

    /// Begins to capture at a host's ports. They end with the host.
    pub fn plugged_in(&self, lab: &Lab, host: &str) -> anyhow::Result<()> {
        let mut known = self.known();
        for &link in links(lab.host(host)?) {
            let running =
                lab.capture(&format!("{host}.{}", link.name()), CaptureOptions::whole())?;
            let path = running.path().to_owned();
            let capture =
                Capture { path, host: host.to_owned(), link: translated(link), missed: 0 };
            known.running.push((capture, running));
        }
        Ok(())
    }

    /// Collects what the daemons have reported so far.
    pub fn listen(&self, lab: &Lab) {
        let mut known = self.known();
        for (node, event) in events(lab) {
            known.events.insert((event.boottime_ns, node, event.seq), event);
        }
    }

    /// A host's plug was pulled.
    pub fn died(&self, host: &str, at_ns: u64) {
        self.known().dead.push((named(host), at_ns, None));
    }

    /// Its cables carry again, at the earliest from now on.
    pub fn boots(&self, host: &str) {
        end_now(&mut self.known().dead, host);
    }

    /// All cables of a host are cut both ways, and it lives on.
    pub fn cut_off(&self, host: &str, at_ns: u64) {
        self.known().cut_off.push((named(host), at_ns, None));
    }

    /// Its cables carry again, at the earliest from now on.
    pub fn mends(&self, host: &str) {
        end_now(&mut self.known().cut_off, host);
    }

    /// Everything that the daemons have reported and that was collected, in order.
    pub fn heard(&self) -> Vec<(&'static str, Event)> {
        self.known().events.iter().map(|((_, node, _), event)| (*node, event.clone())).collect()
    }

    /// A server was made to crash, and a backup was there to carry its flows.
    pub fn crashed(&self, host: &str, at_ns: u64) {
        self.known().crashes.push((named(host), at_ns));
    }

    /// This client's connection is not judged. The test says why.
    pub fn spare(&self, client: SocketAddr, why: &str) {
        let flow = Addresses { client, service: self.at };
        self.known().excluded.push(Excluded { flow, why: why.to_owned() });
    }

    /// A stranger sends frames that nobody can read: no judgement needs them.
    pub fn expect_garbage(&self) {
        self.known().garbage = true;
    }

    /// Ends the captures and judges them. The story stays beside them, so that the same verdict can
    /// be had again.
    pub fn judge(&self, lab: &Lab) -> anyhow::Result<Verdict> {
        self.known().judged = true;
        self.listen(lab);
        // The captures end one after the other.
        let end_ns = Some(Wall::read().since_epoch_ns);
        let mut captures = Vec::new();
        for (mut capture, running) in std::mem::take(&mut self.known().running) {
            capture.missed = running.stop()?.missed;
            captures.push(capture);
        }
        let tell = |share: Option<u32>| -> anyhow::Result<Story> {
            let story = Story { end_ns, share, ..self.story(lab, share)? };
            let number = share.map_or(String::new(), |share| format!("-{share}"));
            let path = lab.dir().join(format!("story{number}.json"));
            fs::write(&path, serde_json::to_string_pretty(&story)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
            Ok(story)
        };
        let stories = match self.roles {
            Roles::Single => vec![tell(None)?],
            Roles::Dual => vec![tell(Some(0))?, tell(Some(1))?],
        };
        let mut verdict = oracle::judge_shares(&captures, &stories)?;
        if self.known().garbage {
            verdict.gaps.retain(|gap| !matches!(gap, Gap::Unreadable { .. }));
        }
        Ok(verdict)
    }

    /// Of one share's flows, or of all.
    fn story(&self, lab: &Lab, share: Option<u32>) -> anyhow::Result<Story> {
        let known = self.known();
        let wall = Wall::read();
        let (mut handovers, mut beginnings, mut resets) = (Vec::new(), Vec::new(), Vec::new());
        let mut left = Vec::new();
        let mut simplex = Vec::<Interval>::new();
        // Since when each node is primary, and since when without a backup. The time of a role is
        // that at which the kernel may first have obeyed; why it has it a node tells when it can.
        let mut primary_since = BTreeMap::<&str, u64>::new();
        let mut alone_since = BTreeMap::<&str, u64>::new();
        let others = |event: &Event| share.is_some_and(|share| !event.is_about(share.into()));
        for ((boottime_ns, node, _), event) in &known.events {
            if others(event) {
                continue;
            }
            let at_ns = wall.ns(*boottime_ns);
            let since_ns = at_ns - TOLD_AFTER_NS;
            let handover = |from: &str, to: &str| Handover {
                from: from.to_owned(),
                to: to.to_owned(),
                at_ns: since_ns,
            };
            let alone_ns = alone_since.get(node).map_or(since_ns, |at| since_ns.min(*at));
            if begins_to_serve(event) {
                beginnings.push(Beginning { host: (*node).to_owned(), at_ns: alone_ns });
            }
            let open = simplex.last_mut().filter(|i| i.to_ns.is_none());
            match event.event.as_str() {
                "role" if event.fields.get("role") == Some(&"primary".into()) => {
                    primary_since.insert(node, since_ns);
                    if event.fields.get("duplex") == Some(&false.into()) {
                        alone_since.insert(node, since_ns);
                    }
                }
                "promoted" => {
                    let at_ns = primary_since.get(node).map_or(since_ns, |at| since_ns.min(*at));
                    handovers.push(Handover { at_ns, ..handover(other(node), node) });
                }
                // Of two that served, one does from now on. It need not report that: the other one
                // may have given way before it is heard.
                "two_primaries" if event.fields.get("yielded") == Some(&true.into()) => {
                    handovers.push(handover(node, other(node)));
                }
                "two_primaries" => handovers.push(handover(other(node), node)),
                "simplex" if open.is_none() => {
                    simplex.push(Interval { from_ns: alone_ns, to_ns: None })
                }
                "duplex" => open.into_iter().for_each(|open| open.to_ns = Some(at_ns)),
                "flow_reset" => resets.push(addresses(event)?),
                "server_exited" if open.is_some() => {
                    left.push(Left { host: (*node).to_owned(), at_ns });
                }
                _ => {}
            }
        }
        let unheard = |&(host, from, to): &(&str, u64, Option<u64>)| {
            let time = Interval { from_ns: wall.ns(from), to_ns: to.map(|to| wall.ns(to)) };
            Dead { host: host.to_owned(), time }
        };
        let crash = |&(host, from): &(&str, u64)| {
            // A process that is in the middle of close() finishes that before it dies; one that handles
            // the signal itself, as Apache does, serves on meanwhile.
            let died = |word: &str| {
                let died = |((at, node, _), event): &(&(u64, &str, u64), &Event)| {
                    let soon = (from..from + CRASHES_WITHIN_NS).contains(at);
                    *node == host && soon && event.event == word
                };
                known.events.iter().find(died).map(|((at, ..), _)| *at)
            };
            let died = died("server_crashed").or_else(|| died("server_exited"));
            let from_ns = wall.ns(died.unwrap_or(from));
            let promoted = handovers.iter().filter(|h| h.to == host).map(|h| h.at_ns);
            let began = beginnings.iter().filter(|b| b.host == host).map(|b| b.at_ns);
            let to_ns = promoted.chain(began).filter(|at| *at > from_ns).min();
            let time = Interval { from_ns, to_ns };
            Crash { host: host.to_owned(), time }
        };
        Ok(Story {
            hosts: hosts(lab),
            services: vec![self.at],
            dead: known.dead.iter().map(unheard).collect(),
            cut_off: known.cut_off.iter().map(unheard).collect(),
            crashes: known.crashes.iter().map(crash).collect(),
            simplex,
            handovers,
            beginnings,
            left,
            resets,
            excluded: known.excluded.clone(),
            volatile_lines: vec![CLOCK.to_owned()],
            queue_ns: self.queue.as_nanos() as u64,
            ..Story::default()
        })
    }

    /// Whether it has been judged already.
    pub fn has_judged(&self) -> bool {
        self.known().judged
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long what a living host's kernel had handed to its interface before the fence fell may
/// still go out after the other node's promotion. A shaped cable's queue holds 20 ms and a burst of
/// 70 KiB.
pub fn wire_queue(rate_mbit: Option<u64>) -> Duration {
    let shaped = |rate| Duration::from_millis(20) + Duration::from_micros((70 << 10) * 8 / rate);
    BACKLOG + rate_mbit.map_or(Duration::ZERO, shaped)
}

/// A node serves from now on although nobody has handed over to it. The other reasons are those of
/// a primary that loses its backup.
fn begins_to_serve(event: &Event) -> bool {
    let reason = event.fields.get("reason").and_then(|reason| reason.as_str());
    event.event == "simplex" && reason.is_some_and(|r| ["Alone", "RankedFirst"].contains(&r))
}

fn end_now(intervals: &mut [(&'static str, u64, Option<u64>)], host: &str) {
    let now = now_ns();
    for open in intervals.iter_mut().filter(|(h, _, to)| *h == host && to.is_none()) {
        open.2 = Some(now);
    }
}

/// What a failed test is told, if the product is to blame.
///
/// # Errors
/// The findings, or what keeps the captures from telling anything.
pub fn weigh(verdict: &Verdict, dir: &Path) -> Result<(), String> {
    let missed = |gap: &Gap| matches!(gap, Gap::Missed { .. });
    if verdict.gaps.iter().any(missed) {
        eprintln!("oracle: no judgement, since the captures lack frames:\n{verdict}");
        return Ok(());
    }
    if verdict.statistics.segments == 0 {
        return Err("the captures hold no segment of the service: the witness was blind".to_owned());
    }
    let guilty = !verdict.without(&TOLERATED).is_empty() || !verdict.is_conclusive();
    if guilty { Err(format!("the oracle, on {}:\n{verdict}", dir.display())) } else { Ok(()) }
}

fn named(host: &str) -> &'static str {
    if host == NODES[0] { NODES[0] } else { NODES[1] }
}

fn links(host: &lab::Host) -> &'static [lab::Link] {
    if host.is_node() { &lab::Link::ALL } else { &[lab::Link::Service] }
}

fn translated(link: lab::Link) -> oracle::Link {
    match link {
        lab::Link::Service => oracle::Link::Service,
        lab::Link::Cluster => oracle::Link::Cluster,
    }
}

fn hosts(lab: &Lab) -> Vec<Host> {
    let host = |h: &lab::Host| Host {
        name: h.name().to_owned(),
        node: h.is_node(),
        macs: links(h).iter().map(|&l| (translated(l), h.mac(l))).collect(),
    };
    lab.hosts().iter().filter(|h| HOSTS.contains(&h.name())).map(host).collect()
}

/// The connection that an event is about: `client -> service`.
fn addresses(event: &Event) -> anyhow::Result<Addresses> {
    let flow = event.fields.get("flow").and_then(|f| f.as_str()).unwrap_or_default();
    let parse = |word: &str| word.parse::<SocketAddr>();
    let (client, service) = flow.split_once(" -> ").context("an event names no flow")?;
    Ok(Addresses { client: parse(client)?, service: parse(service)? })
}

/// Translates from [`now_ns`]'s clock to that of the captures.
pub(crate) struct Wall {
    boottime_ns: u64,
    since_epoch_ns: u64,
}

impl Wall {
    /// Reads both clocks at once: of a few tries, the one that took least time.
    pub(crate) fn read() -> Wall {
        let read = || {
            let begun = Instant::now();
            let boottime_ns = now_ns();
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let since_epoch_ns = since_epoch.as_nanos() as u64;
            (begun.elapsed(), Wall { boottime_ns, since_epoch_ns })
        };
        let tries = (0..16).map(|_| read()).min_by_key(|(took, _)| *took);
        tries.expect("there are tries").1
    }

    pub(crate) fn ns(&self, boottime_ns: u64) -> u64 {
        self.since_epoch_ns - self.boottime_ns.saturating_sub(boottime_ns)
    }
}

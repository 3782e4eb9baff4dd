//! The thread that reads the log and takes flows over. It owns the engines, one for each scope, so
//! that no lock stands between a record and what becomes of it.
//!
//! On a backup it wakes a hundred times a second at most: what lies in the ring is held by this
//! node already, and reading it early would only take processor time from the servers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use datapath::{FlowKey, RingReader};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use serde_json::json;
use takeover::{Engine, Notice, Progress};

use super::call::Call;
use super::events::Events;
use super::inbox::{Inbox, Post};
use super::scope::{self, Scope};
use super::timeline::{Decision, Timeline};
use super::{locked, membership};

/// How often the ring is read when nobody rings.
const DRAIN: Duration = Duration::from_millis(10);

/// How old what `status` shows of the replies may be.
const TELL: Duration = Duration::from_millis(50);

/// What the membership thread asks for.
pub enum Order {
    /// Of the engine with this number.
    Of(usize, Duty),
    /// The link over which the nodes reach each other.
    Via(cluster::Link),
    Stop,
}

/// What becomes of the flows in one scope.
pub enum Duty {
    /// Take every flow over; the data path holds the primary's role already.
    Promote(Decision),
    /// Forget every flow and destroy the service's sockets. Answered when the flows are gone.
    Discard(Sender<()>),
    /// The peer has served at the same time, and stays. Answered when clients have been told what
    /// that costs.
    GiveWay(Sender<()>),
    /// This node is the armed backup of this epoch: hear what the primary's servers write.
    Pair(u64),
    /// It is no backup, and takes nothing over.
    Unpair,
    /// It serves, and has got a backup: what there is of connections is not protected.
    NoteUnprotected,
    /// Tell the membership thread once none of those is left.
    AskProtected,
}

/// What `status` shows of this thread's work.
#[derive(Default, Clone)]
pub struct Report {
    /// By the engine's number.
    pub engines: Vec<EngineReport>,
    pub resets: BTreeMap<&'static str, u64>,
    pub over_budget: u64,
    /// Why flows were opened so far.
    pub unprotected: BTreeSet<&'static str>,
}

/// What it shows of one engine's.
#[derive(Default, Clone)]
pub struct EngineReport {
    pub progress: Progress,
    /// Of the takeover that `progress` is about.
    pub timeline: Option<Timeline>,
    pub journal: journal::Stats,
    /// What the reply log holds and has done, and why flows were opened; `None` if no service's
    /// output is held.
    pub replies: Option<takeover::Replies>,
}

pub struct Worker {
    pub orders: Post<Order>,
    pub report: Arc<Mutex<Report>>,
    pub thread: JoinHandle<()>,
}

/// Whose sockets the thread ends: the addresses of all services, and of those that hold output.
pub struct Endpoints {
    pub all: Vec<(std::net::IpAddr, u16)>,
    pub held: Vec<(std::net::IpAddr, u16)>,
}

/// What the thread is made of.
pub struct Parts {
    /// In the order of their numbers: an engine for each scope, and, if output is held, its call to
    /// the primary's daemon.
    pub engines: Vec<(Scope, Engine, Option<Call>)>,
    pub source: datapath::LogSource,
}

/// Starts the thread. `make` builds the engines in the new thread, where they stay.
pub fn start(
    make: impl FnOnce() -> anyhow::Result<Parts> + Send + 'static,
    endpoints: Endpoints,
    membership: Post<membership::Message>,
    events: Events,
) -> anyhow::Result<Worker> {
    let (orders, inbox) = Inbox::new().context("cannot make an event descriptor")?;
    let report = Arc::new(Mutex::new(Report::default()));
    let shared = report.clone();
    let (started, outcome) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("journal".into()).spawn(move || {
        let built = make().and_then(|Parts { engines, source }| {
            let mut calls = Vec::new();
            let mut ours = Vec::new();
            for (scope, engine, call) in engines {
                ours.push((scope, Rc::new(RefCell::new(engine))));
                calls.push(call);
            }
            let readers: Vec<_> = ours.iter().map(|(_, engine)| engine.clone()).collect();
            let log = source
                .reader(move |record, payload| {
                    // Who hears of a crash makes no difference.
                    let flow = record.flow();
                    let index = flow.map_or(0, |key| scope::index_of(readers.len(), &key));
                    readers[index].borrow_mut().on_record(record, payload, Instant::now());
                })
                .context("cannot read the log ring")?;
            Ok((ours, log, calls))
        });
        match built {
            Ok((engines, log, calls)) => {
                let report = shared;
                locked(&report).engines = vec![EngineReport::default(); engines.len()];
                let _ = started.send(Ok(()));
                come_first();
                let unprotected = RefCell::new(vec![None; engines.len()]);
                let keeper =
                    Keeper { engines, log, endpoints, membership, events, report, unprotected };
                keeper.run(&inbox, calls);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    })?;
    outcome.recv().context("the journal thread ended at once")??;
    Ok(Worker { orders, report, thread })
}

/// For the calling thread. During a takeover clients wait for the journal's alone; the servers it
/// competes with wait for it as well.
pub fn come_first() {
    // SAFETY: plain system call; 0 names the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -15) } != 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(%error, "a thread that servers wait for has no raised priority (CAP_SYS_NICE)");
    }
}

struct Keeper {
    engines: Vec<(Scope, Rc<RefCell<Engine>>)>,
    log: RingReader<'static>,
    endpoints: Endpoints,
    membership: Post<membership::Message>,
    events: Events,
    report: Arc<Mutex<Report>>,
    /// By the engine's number: connections that began before the backup that this node has; `None`:
    /// it is not known which.
    unprotected: RefCell<Vec<Option<HashSet<FlowKey>>>>,
}

impl Keeper {
    /// `calls`: each engine's, to the primary's daemon.
    fn run(self, inbox: &Inbox<Order>, mut calls: Vec<Option<Call>>) {
        let mut due: Option<Instant> = None;
        let mut told = Instant::now();
        loop {
            let now = Instant::now();
            let due_calls = calls.iter().flatten().filter_map(Call::due);
            let next = due.into_iter().chain(due_calls).min();
            let wait = next.map_or(DRAIN, |at| at.saturating_duration_since(now).min(DRAIN));
            let mut fds = vec![
                PollFd::new(self.log.fd(), PollFlags::POLLIN),
                PollFd::new(inbox.as_fd(), PollFlags::POLLIN),
            ];
            fds.extend(calls.iter().flatten().filter_map(Call::fd));
            // poll(2) counts milliseconds: the rest of one would be spent asking again and again.
            let wait = TimeSpec::from_duration(wait);
            // EINTR and the like: everything is looked at.
            let failed = ppoll(&mut fds, Some(wait), None).is_err();
            let is_ready = |fd: &PollFd<'_>| failed || fd.any() != Some(false);
            let (rung, spoken) = (is_ready(&fds[1]), fds[2..].iter().any(is_ready));
            if rung {
                inbox.hush();
            }
            while let Some(order) = inbox.take() {
                match order {
                    Order::Of(index, duty) => self.take_on(index, duty, &mut calls[index]),
                    Order::Via(link) => {
                        calls.iter_mut().flatten().for_each(|call| call.via(link, Instant::now()));
                    }
                    Order::Stop => return,
                }
            }
            self.drain();
            for (call, (_, engine)) in calls.iter_mut().zip(&self.engines) {
                if let Some(call) = call {
                    call.turn(engine, || self.drain(), spoken, Instant::now());
                }
            }
            let now = Instant::now();
            let engines = self.engines.iter();
            due = engines.filter_map(|(_, engine)| engine.borrow_mut().advance(now)).min();
            let tell_of_replies = now >= told + TELL;
            if tell_of_replies {
                told = now;
            }
            for index in 0..self.engines.len() {
                self.tell(index, tell_of_replies);
            }
        }
    }

    fn take_on(&self, index: usize, duty: Duty, call: &mut Option<Call>) {
        let (scope, engine) = &self.engines[index];
        match duty {
            Duty::Promote(decision) => {
                self.drain();
                if let Some(call) = call {
                    call.last_words(engine, || self.drain(), Instant::now());
                }
                let began = hostnet::now_boottime_ns();
                engine.borrow_mut().promote(Instant::now());
                let report = &mut locked(&self.report).engines[index];
                report.progress = Progress::default();
                report.timeline = Some(Timeline { decision, began });
            }
            Duty::Discard(done) => {
                self.drain();
                engine.borrow_mut().discard();
                // The membership thread waits for this much; sockets may take their time, since
                // their output is fenced.
                let _ = done.send(());
                self.destroy(&self.endpoints.all, *scope);
            }
            Duty::GiveWay(done) => {
                engine.borrow_mut().reset_contested();
                // Connections that began here, or have always been here.
                self.destroy(&self.endpoints.held, *scope);
                let _ = done.send(());
            }
            Duty::Pair(epoch) => call.iter_mut().for_each(|call| call.pair(epoch, Instant::now())),
            Duty::Unpair => call.iter_mut().for_each(Call::unpair),
            Duty::NoteUnprotected => {
                self.unprotected.borrow_mut()[index] = self.connections(*scope);
            }
            Duty::AskProtected => {
                let unprotected = &mut self.unprotected.borrow_mut()[index];
                match (unprotected.as_mut(), self.connections(*scope)) {
                    (Some(unprotected), Some(living)) => unprotected.retain(|u| living.contains(u)),
                    // What is not known may be all there is.
                    (None, living) => *unprotected = living,
                    (Some(_), None) => return,
                }
                if unprotected.as_ref().is_some_and(HashSet::is_empty) {
                    self.membership.send(membership::Message::Protected(index));
                }
            }
        }
    }

    /// With this node's servers; `None`: they cannot be listed.
    fn connections(&self, scope: Scope) -> Option<HashSet<FlowKey>> {
        let all = hostnet::connections(&self.endpoints.all).inspect_err(|error| {
            tracing::warn!(%error, "cannot list connections: a share is given back late");
        });
        let keys = all.ok()?.into_iter().map(|(local, remote)| FlowKey::new(remote, local));
        Some(keys.filter(|key| scope.has(key)).collect())
    }

    fn drain(&self) {
        if let Err(error) = self.log.drain() {
            tracing::error!(%error, "cannot read the log ring");
        }
    }

    fn destroy(&self, endpoints: &[(std::net::IpAddr, u16)], scope: Scope) {
        let ours = |local, remote| scope.has(&FlowKey::new(remote, local));
        match hostnet::destroy_sockets_if(endpoints, ours) {
            Ok(0) => {}
            Ok(count) => tracing::info!("{count} connections of an earlier epoch destroyed"),
            Err(error) => tracing::warn!(%error, "connections of an earlier epoch remain"),
        }
    }

    fn tell(&self, index: usize, of_replies: bool) {
        let (_, engine) = &self.engines[index];
        let mut engine = engine.borrow_mut();
        let mut report = locked(&self.report);
        let own = &mut report.engines[index];
        let opened = own.progress.first_open.is_some();
        own.progress = engine.progress().clone();
        own.journal = engine.journal_stats();
        if of_replies {
            own.replies = engine.replies();
        }
        if let Some(took) = own.progress.first_open.filter(|_| !opened) {
            self.events.add(
                "first_open",
                &format!("the first flow is open, in {took:?}"),
                json!({"took_us": took.as_micros() as u64}),
            );
        }
        for notice in engine.take_notices() {
            match notice {
                Notice::OverBudget { key } => {
                    report.over_budget += 1;
                    self.events.add(
                        "over_budget",
                        &format!("flow {key} outgrew its budget: simplex from now on"),
                        json!({"flow": key.to_string()}),
                    );
                }
                // The first of a kind is an event; the rest is a number.
                Notice::Unprotected { key, why } => {
                    if report.unprotected.insert(why.name()) {
                        self.events.add(
                            "flow_unprotected",
                            &format!("flow {key} is simplex from now on: {why}"),
                            json!({"flow": key.to_string(), "reason": why.name()}),
                        );
                    }
                }
                Notice::Crash { service, signal } => {
                    self.membership.send(membership::Message::Crash { service, signal });
                }
                Notice::Reset { key, reason } => {
                    *report.resets.entry(reason.name()).or_default() += 1;
                    self.events.add(
                        "flow_reset",
                        &format!("flow {key} reset: {}", reason.name()),
                        json!({"flow": key.to_string(), "reason": reason.name()}),
                    );
                }
                Notice::AllOpen { adopted, reset, took } => self.events.add(
                    "all_open",
                    &format!("{adopted} flows taken over, {reset} reset, in {took:?}"),
                    json!({"adopted": adopted, "reset": reset, "took_us": took.as_micros() as u64}),
                ),
            }
        }
    }
}

//! The thread that reads the log and takes flows over. It owns the engine, so that no lock stands
//! between a record and what becomes of it.
//!
//! On a backup it wakes a hundred times a second at most: what lies in the ring is held by this
//! node already, and reading it early would only take processor time from the servers.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use datapath::RingReader;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use serde_json::json;
use takeover::{Engine, Notice, Progress};

use super::call::Call;
use super::events::Events;
use super::inbox::{Inbox, Post};
use super::timeline::{Decision, Timeline};
use super::{locked, membership};

/// How often the ring is read when nobody rings.
const DRAIN: Duration = Duration::from_millis(10);

/// How old what `status` shows of the replies may be.
const TELL: Duration = Duration::from_millis(50);

/// What the membership thread asks for.
pub enum Order {
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
    /// The link over which the nodes reach each other.
    Via(cluster::Link),
    Stop,
}

/// What `status` shows of this thread's work.
#[derive(Default, Clone)]
pub struct Report {
    pub progress: Progress,
    /// Of the takeover that `progress` is about.
    pub timeline: Option<Timeline>,
    pub journal: journal::Stats,
    pub resets: BTreeMap<&'static str, u64>,
    pub over_budget: u64,
    /// Why flows were opened so far.
    pub unprotected: BTreeSet<&'static str>,
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

/// Starts the thread. `make` builds the engine and the
/// reader in the new thread, where they stay.
pub fn start(
    make: impl FnOnce() -> anyhow::Result<(Engine, datapath::LogSource, Option<Call>)> + Send + 'static,
    endpoints: Endpoints,
    membership: Post<membership::Message>,
    events: Events,
) -> anyhow::Result<Worker> {
    let (orders, inbox) = Inbox::new().context("cannot make an event descriptor")?;
    let report = Arc::new(Mutex::new(Report::default()));
    let shared = report.clone();
    let (started, outcome) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("journal".into()).spawn(move || {
        let built = make().and_then(|(engine, source, call)| {
            let engine = Rc::new(RefCell::new(engine));
            let reader = engine.clone();
            let log = source
                .reader(move |record, payload| {
                    reader.borrow_mut().on_record(record, payload, Instant::now());
                })
                .context("cannot read the log ring")?;
            Ok((engine, log, call))
        });
        match built {
            Ok((engine, log, call)) => {
                let _ = started.send(Ok(()));
                come_first();
                let report = shared;
                let keeper = Keeper { engine, log, endpoints, membership, events, report };
                keeper.run(&inbox, call);
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
    engine: Rc<RefCell<Engine>>,
    log: RingReader<'static>,
    endpoints: Endpoints,
    membership: Post<membership::Message>,
    events: Events,
    report: Arc<Mutex<Report>>,
}

impl Keeper {
    /// `call`: to the primary's daemon, if output is held.
    fn run(self, inbox: &Inbox<Order>, mut call: Option<Call>) {
        let mut due: Option<Instant> = None;
        let mut told = Instant::now();
        loop {
            let now = Instant::now();
            let next = due.into_iter().chain(call.as_ref().and_then(Call::due)).min();
            let wait = next.map_or(DRAIN, |at| at.saturating_duration_since(now).min(DRAIN));
            let mut fds = vec![
                PollFd::new(self.log.fd(), PollFlags::POLLIN),
                PollFd::new(inbox.as_fd(), PollFlags::POLLIN),
            ];
            fds.extend(call.as_ref().and_then(Call::fd));
            // poll(2) counts milliseconds: the rest of one would be spent asking again and again.
            let wait = TimeSpec::from_duration(wait);
            // EINTR and the like: everything is looked at.
            let failed = ppoll(&mut fds, Some(wait), None).is_err();
            let is_ready = |fd: &PollFd<'_>| failed || fd.any() != Some(false);
            let (rung, spoken) = (is_ready(&fds[1]), fds.get(2).is_some_and(is_ready));
            if rung {
                inbox.hush();
            }
            while let Some(order) = inbox.take() {
                match order {
                    Order::Promote(decision) => {
                        self.drain();
                        if let Some(call) = &mut call {
                            call.last_words(&self.engine, || self.drain(), Instant::now());
                        }
                        let began = hostnet::now_boottime_ns();
                        self.engine.borrow_mut().promote(Instant::now());
                        let mut report = locked(&self.report);
                        report.progress = Progress::default();
                        report.timeline = Some(Timeline { decision, began });
                    }
                    Order::Discard(done) => self.discard(&done),
                    Order::GiveWay(done) => {
                        self.engine.borrow_mut().reset_contested();
                        // Connections that began here, or have always been here.
                        self.destroy(&self.endpoints.held);
                        let _ = done.send(());
                    }
                    Order::Pair(epoch) => {
                        call.iter_mut().for_each(|call| call.pair(epoch, Instant::now()));
                    }
                    Order::Unpair => call.iter_mut().for_each(Call::unpair),
                    Order::Via(link) => {
                        call.iter_mut().for_each(|call| call.via(link, Instant::now()));
                    }
                    Order::Stop => return,
                }
            }
            self.drain();
            if let Some(call) = &mut call {
                call.turn(&self.engine, || self.drain(), spoken, Instant::now());
            }
            let now = Instant::now();
            due = self.engine.borrow_mut().advance(now);
            self.tell();
            if now >= told + TELL {
                told = now;
                locked(&self.report).replies = self.engine.borrow().replies();
            }
        }
    }

    fn drain(&self) {
        if let Err(error) = self.log.drain() {
            tracing::error!(%error, "cannot read the log ring");
        }
    }

    fn discard(&self, done: &Sender<()>) {
        self.drain();
        self.engine.borrow_mut().discard();
        // The membership thread waits for this much; sockets may take their time, since their
        // output is fenced.
        let _ = done.send(());
        self.destroy(&self.endpoints.all);
    }

    fn destroy(&self, endpoints: &[(std::net::IpAddr, u16)]) {
        match hostnet::destroy_sockets(endpoints) {
            Ok(0) => {}
            Ok(count) => tracing::info!("{count} connections of an earlier epoch destroyed"),
            Err(error) => tracing::warn!(%error, "connections of an earlier epoch remain"),
        }
    }

    fn tell(&self) {
        let mut engine = self.engine.borrow_mut();
        let mut report = locked(&self.report);
        let opened = report.progress.first_open.is_some();
        report.progress = engine.progress().clone();
        if let Some(took) = report.progress.first_open.filter(|_| !opened) {
            self.events.add(
                "first_open",
                &format!("the first flow is open, in {took:?}"),
                json!({"took_us": took.as_micros() as u64}),
            );
        }
        report.journal = engine.journal_stats();
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

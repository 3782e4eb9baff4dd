//! The thread that reads the log and takes flows over. It owns the engine, so that no lock stands
//! between a record and what becomes of it.
//!
//! On a backup it wakes a hundred times a second at most: what lies in the ring is held by this
//! node already, and reading it early would only take processor time from the servers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use datapath::RingReader;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;
use takeover::{Engine, Notice, Progress};

use super::events::Events;
use super::inbox::{Inbox, Post};
use super::timeline::{Decision, Timeline};
use super::{locked, membership};

/// How often the ring is read when nobody rings.
const DRAIN: Duration = Duration::from_millis(10);

/// What the membership thread asks for.
pub enum Order {
    /// Take every flow over; the data path holds the primary's role already.
    Promote(Decision),
    /// Forget every flow and destroy the service's sockets. Answered when the flows are gone.
    Discard(Sender<()>),
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
}

pub struct Worker {
    pub orders: Post<Order>,
    pub report: Arc<Mutex<Report>>,
    pub thread: JoinHandle<()>,
}

/// Starts the thread. `endpoints` are the services' addresses; `make` builds the engine and the
/// reader in the new thread, where they stay.
pub fn start(
    make: impl FnOnce() -> anyhow::Result<(Engine, datapath::LogSource)> + Send + 'static,
    endpoints: Vec<(std::net::IpAddr, u16)>,
    membership: Post<membership::Message>,
    events: Events,
) -> anyhow::Result<Worker> {
    let (orders, inbox) = Inbox::new().context("cannot make an event descriptor")?;
    let report = Arc::new(Mutex::new(Report::default()));
    let shared = report.clone();
    let (started, outcome) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("journal".into()).spawn(move || {
        let built = make().and_then(|(engine, source)| {
            let engine = Rc::new(RefCell::new(engine));
            let reader = engine.clone();
            let log = source
                .reader(move |record, payload| {
                    reader.borrow_mut().on_record(record, payload, Instant::now());
                })
                .context("cannot read the log ring")?;
            Ok((engine, log))
        });
        match built {
            Ok((engine, log)) => {
                let _ = started.send(Ok(()));
                come_first();
                let keeper = Keeper { engine, log, endpoints, membership, events, report: shared };
                keeper.run(&inbox);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    })?;
    outcome.recv().context("the journal thread ended at once")??;
    Ok(Worker { orders, report, thread })
}

/// During a takeover clients wait for this thread alone; the servers it competes with wait for it
/// as well.
fn come_first() {
    // SAFETY: plain system call; 0 names the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -15) } != 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(%error, "the takeover has no raised priority (CAP_SYS_NICE)");
    }
}

struct Keeper {
    engine: Rc<RefCell<Engine>>,
    log: RingReader<'static>,
    endpoints: Vec<(std::net::IpAddr, u16)>,
    membership: Post<membership::Message>,
    events: Events,
    report: Arc<Mutex<Report>>,
}

impl Keeper {
    fn run(self, inbox: &Inbox<Order>) {
        let mut due: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let wait = due.map_or(DRAIN, |at| at.saturating_duration_since(now).min(DRAIN));
            let mut fds = [
                PollFd::new(self.log.fd(), PollFlags::POLLIN),
                PollFd::new(inbox.as_fd(), PollFlags::POLLIN),
            ];
            let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
            // EINTR and the like: the rings are read anyhow.
            let _ = poll(&mut fds, timeout);
            inbox.hush();
            while let Some(order) = inbox.take() {
                match order {
                    Order::Promote(decision) => {
                        self.drain();
                        let began = hostnet::now_boottime_ns();
                        self.engine.borrow_mut().promote(Instant::now());
                        let mut report = locked(&self.report);
                        report.progress = Progress::default();
                        report.timeline = Some(Timeline { decision, began });
                    }
                    Order::Discard(done) => self.discard(&done),
                    Order::Stop => return,
                }
            }
            self.drain();
            due = self.engine.borrow_mut().advance(Instant::now());
            self.tell();
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
        match hostnet::destroy_sockets(&self.endpoints) {
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

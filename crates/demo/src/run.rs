//! `steadfast demo`: downloads through a pair, one node fails, every byte is checked; or, with
//! `--scheme message`, a shop ([`crate::shop`]).
//!
//! The failure comes when every client has started and half of all bytes have arrived, so
//! each connection has a history to be carried over and a future to be carried into.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use lab::Kill;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::clock::Bell;
use crate::config::Roles;
use crate::display::{Display, Unit};
use crate::download::{Client, Download, Outcome};
use crate::idle::{Idle, IdleReport};
use crate::interrupt;
use crate::pair::{Pair, Service, Spec, other};
use crate::report::{Course, Findings, IdleSummary, Report, print_timeline};
use crate::server::Server;
use crate::shop;

/// No byte for any client for so long: they will wait for ever.
const GIVE_UP: Duration = Duration::from_secs(60);
/// An idle connection's answer, before and after the failure.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// What the demo is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many clients there are at once.
    pub clients: usize,
    /// What they do, and what serves them.
    pub work: Work,
    /// How the primary fails.
    pub kill: Kill,
    /// Who serves until then.
    pub roles: Roles,
    /// Use IPv6.
    pub ipv6: bool,
    /// Rate of the service link, Mbit/s; 0: as fast as it goes.
    pub rate_mbit: u64,
    /// Silence after which the backup suspects the primary.
    pub detection_ms: u32,
    /// Where to write the report.
    pub json: Option<PathBuf>,
    /// Keep captures and logs even if all goes well.
    pub keep: bool,
}

/// What clients do.
#[derive(Clone, Debug)]
pub enum Work {
    /// They download a file; the scheme is `track`.
    Downloads(Downloads),
    /// They buy in the shop; the scheme is `message`.
    Shop {
        /// How many requests they make in all.
        requests: usize,
    },
}

/// A file that is downloaded.
#[derive(Clone, Copy, Debug)]
pub struct Downloads {
    /// Idle connections beside the downloads.
    pub idle: usize,
    /// Bytes of the file.
    pub size: u64,
    /// The server to protect.
    pub server: Server,
}

impl Options {
    /// In words, before anything fails.
    pub(crate) fn who_serves(&self, victim: &str) -> String {
        let survivor = other(victim);
        match self.roles {
            Roles::Single => format!("{victim} is primary, {survivor} backs it up"),
            Roles::Dual => {
                format!("{victim} and {survivor} serve one half each, and back each other up")
            }
        }
    }
}

/// Runs the demo. `true`: every client got the right bytes and no error.
///
/// # Errors
/// It could not be run to its end, or was interrupted.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the demo makes hosts of network namespaces, which needs root: run it with sudo"
    );
    match &options.work {
        Work::Downloads(work) => {
            ensure!(work.size > 0, "an empty file shows nothing: choose a --size above 0");
        }
        Work::Shop { requests } => shop::check(options, *requests)?,
    }
    interrupt::listen()?;
    limits()?;
    let artifacts = std::env::temp_dir().join(format!("steadfast-demo-{}", std::process::id()));
    let pair = bring_up(options, &artifacts)?;
    let result = match &options.work {
        Work::Downloads(work) => {
            perform(options, work, &pair).map(|r| (r.ok, serde_json::to_string_pretty(&r)))
        }
        Work::Shop { requests } => shop::perform(options, *requests, &pair)
            .map(|r| (r.ok, serde_json::to_string_pretty(&r))),
    };
    let failed = !result.as_ref().is_ok_and(|(ok, _)| *ok);
    if options.keep || (failed && interrupt::check().is_ok()) {
        pair.lab.keep_files(); // says where they are when it goes down
    }
    drop(pair);
    let (ok, text) = result?;
    if let Some(path) = &options.json {
        let text = text? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ok)
}

/// A crash that is wanted leaves no core file; many connections need many descriptors.
fn limits() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_CORE)?;
    setrlimit(Resource::RLIMIT_CORE, 0, hard)?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(())
}

fn bring_up(options: &Options, artifacts: &std::path::Path) -> anyhow::Result<Pair> {
    let (service, size) = match &options.work {
        Work::Downloads(Downloads { size, server, .. }) => {
            let mb = *size as f64 / 1e6;
            eprintln!("Bringing up hosts client, a and b, with {server} and a file of {mb} MB…");
            (Service::web(*server), *size)
        }
        Work::Shop { .. } => {
            eprintln!("Bringing up hosts client, a and b, with a shop…");
            (shop::service(), 0) // the shop has no files
        }
    };
    let pair = Pair::up(&Spec {
        binary: None,
        rate_mbit: (options.rate_mbit > 0).then_some(options.rate_mbit),
        cluster_rate_mbit: None,
        ipv6: options.ipv6,
        size,
        services: vec![service],
        detection_ms: options.detection_ms,
        roles: options.roles,
        capture: true,
        artifacts: artifacts.to_owned(),
    });
    match options.work {
        Work::Downloads(_) => pair,
        Work::Shop { .. } => pair.map_err(shop::explain),
    }
}

fn perform(options: &Options, work: &Downloads, pair: &Pair) -> anyhow::Result<Report> {
    interrupt::check()?;
    let (at, victim, client) = (pair.at(), pair.primary()?, pair.client()?);
    let survivor = other(victim);
    let mut display = Display::new(Unit::Bytes, options.clients, work.size);
    display.say(&format!("Clients connect to {at}; {}.", options.who_serves(victim)));

    let history = work.server.keeps_alive().then_some(1);
    let idle = Idle::open(client, at, &pair.site, work.idle, history, ANSWER_WITHIN)?;
    let bell = Bell::default();
    let start = |_| Download::start(client, Client::Curl, at, crate::site::Site::LARGE, &bell);
    let downloads: Vec<Download> = (0..options.clients).map(start).collect::<Result<_, _>>()?;

    // Half of the bytes, and everybody on the way.
    let half = work.size.saturating_mul(options.clients as u64) / 2;
    watch(&downloads, &bell, &mut display, |downloads| {
        let total: u64 = downloads.iter().map(Download::bytes).sum();
        total >= half && downloads.iter().all(|d| d.bytes() > 0)
    })?;
    let early = downloads.iter().filter(|d| d.ended()).count();
    let killed_ns = pair.kill(victim, &options.kill)?;
    let failure = format!("{} of {victim}", options.kill);
    display.say(&format!("Killed: {failure}."));

    let (outcomes, idle) = std::thread::scope(|scope| {
        let site = &pair.site;
        let idle = scope.spawn(move || idle.finish(site, ANSWER_WITHIN));
        let ended = watch(&downloads, &bell, &mut display, |d| d.iter().all(Download::ended));
        let idle = idle.join().expect("checking replies does not panic");
        ended.map(|()| idle)
    })
    .and_then(|idle| {
        let outcomes: anyhow::Result<Vec<Outcome>> =
            downloads.into_iter().map(Download::finish).collect();
        Ok((outcomes?, idle))
    })?;
    display.finish();

    let status = pair.status(survivor).ok();
    let course = Course {
        killed_ns,
        events: pair.events_since(killed_ns),
        survivor: status.map(|s| (s.takeover, s.flows)),
        clients: "downloads",
        stalls: outcomes.iter().map(|outcome| outcome.stalls.clone()).collect(),
    };
    let findings = Findings { course, outcomes, sha256: pair.site.sha256 };
    let report = conclude(options, work, victim, &failure, early, &findings, idle);
    print(&report);
    Ok(report)
}

/// Shows progress until `done`.
fn watch(
    downloads: &[Download],
    bell: &Bell,
    display: &mut Display,
    done: impl Fn(&[Download]) -> bool,
) -> anyhow::Result<()> {
    let total = || downloads.iter().map(Download::bytes).sum::<u64>();
    let show = |display: &mut Display| {
        let have: Vec<u64> = downloads.iter().map(Download::bytes).collect();
        display.update(&have, downloads.iter().filter(|d| !d.ended()).count());
    };
    let (mut seen, mut moved) = (total(), Instant::now());
    while !bell.wait_until(Duration::from_millis(60), || done(downloads)) {
        interrupt::check()?;
        show(display);
        if total() != seen {
            (seen, moved) = (total(), Instant::now());
        }
        if downloads.iter().all(Download::ended) && !done(downloads) {
            display.finish();
            bail!("all downloads ended before the failure was due: choose a larger --size");
        }
        if moved.elapsed() > GIVE_UP {
            let waiting = downloads.iter().filter(|d| !d.ended()).count();
            display.finish();
            bail!("{waiting} downloads have waited {GIVE_UP:?} for their next byte; given up");
        }
    }
    show(display);
    Ok(())
}

fn conclude(
    options: &Options,
    work: &Downloads,
    victim: &str,
    failure: &str,
    early: usize,
    findings: &Findings,
    idle: IdleReport,
) -> Report {
    let (clients, course) = (findings.clients(), &findings.course);
    let idle = IdleSummary::from(idle);
    let mut problems = Vec::new();
    let mut sorry = |wrong: bool, text: String| {
        if wrong {
            problems.push(text);
        }
    };
    sorry(course.survivor.is_none(), format!("node {} gives no status", other(victim)));
    sorry(
        early == options.clients,
        "every download had ended before the failure: choose a larger --size".to_owned(),
    );
    // Resets do not count by themselves: a connection that had ended before the failure is reset
    // too if its last acknowledgement comes late, and nobody notices.
    let flows = course.flows();
    let ok = clients.iter().all(|c| c.ok()) && idle.failures.is_empty() && problems.is_empty();
    Report {
        ok,
        server: work.server.name().to_owned(),
        kill: options.kill.to_string(),
        ipv6: options.ipv6,
        size: work.size,
        killed_node: victim.to_owned(),
        clients,
        idle,
        detection_ms: course.detection_ms(),
        promotion_ms: course.promotion_ms(),
        gap_ms: course.gap(),
        flows,
        timeline: course.timeline(failure),
        problems,
    }
}

fn print(report: &Report) {
    print_timeline(&report.timeline);
    let gap = report.gap_ms;
    println!(
        "\nLongest stall of a download: p50 {:.0} ms, p99 {:.0} ms, max {:.0} ms.",
        gap.p50, gap.p99, gap.max
    );
    let flows = report.flows;
    println!(
        "Connections: {} adopted, {} reset, {} without a backup now.",
        flows.adopted, flows.reset, flows.simplex
    );
    for (number, client) in report.clients.iter().enumerate().filter(|(_, c)| !c.ok()) {
        let why = client.error.as_deref().unwrap_or("its bytes are not those of the file");
        println!("Download {} got {} bytes: {why}", number + 1, client.bytes);
    }
    for failure in report.idle.failures.iter().take(10) {
        println!("{failure}");
    }
    for problem in &report.problems {
        println!("{problem}");
    }
    let identical = report.clients.iter().filter(|c| c.ok()).count();
    let (clients, idle) = (report.clients.len(), &report.idle);
    let verdict = if report.ok { "Nobody noticed" } else { "FAILED" };
    println!(
        "{verdict}: {identical} of {clients} downloads identical, {} of {} idle connections \
         answered.",
        idle.ok, idle.connections
    );
}

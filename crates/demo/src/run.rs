//! `steadfast demo`: downloads through a pair, one node fails, every byte is checked.
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
use crate::display::Display;
use crate::download::{Client, Download, Outcome};
use crate::idle::{Idle, IdleReport};
use crate::interrupt;
use crate::pair::{Pair, Service, Spec, other};
use crate::report::{Findings, IdleSummary, Report};
use crate::server::Server;

/// No byte for any client for so long: they will wait for ever.
const GIVE_UP: Duration = Duration::from_secs(60);
/// An idle connection's answer, before and after the failure.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// What the demo is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many downloads run at once.
    pub clients: usize,
    /// Idle connections beside them.
    pub idle: usize,
    /// Bytes of the file.
    pub size: u64,
    /// How the primary fails.
    pub kill: Kill,
    /// Use IPv6.
    pub ipv6: bool,
    /// The server to protect.
    pub server: Server,
    /// Rate of the service link, Mbit/s; 0: as fast as it goes.
    pub rate_mbit: u64,
    /// Silence after which the backup suspects the primary.
    pub detection_ms: u32,
    /// Where to write the report.
    pub json: Option<PathBuf>,
    /// Keep captures and logs even if all goes well.
    pub keep: bool,
}

/// Runs the demo. `true`: every client got identical bytes and no error.
///
/// # Errors
/// It could not be run to its end, or was interrupted.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the demo makes hosts of network namespaces, which needs root: run it with sudo"
    );
    ensure!(options.size > 0, "an empty file shows nothing: choose a --size above 0");
    interrupt::listen()?;
    limits()?;
    let artifacts = std::env::temp_dir().join(format!("steadfast-demo-{}", std::process::id()));
    let pair = bring_up(options, &artifacts)?;
    let result = perform(options, &pair);
    let failed = !result.as_ref().is_ok_and(|report| report.ok);
    if options.keep || (failed && interrupt::check().is_ok()) {
        pair.lab.keep_files(); // says where they are when it goes down
    }
    drop(pair);
    let report = result?;
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(report.ok)
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
    let mb = options.size as f64 / 1e6;
    eprintln!("Bringing up hosts client, a and b, with {} and a file of {mb} MB…", options.server);
    Pair::up(&Spec {
        binary: None,
        rate_mbit: (options.rate_mbit > 0).then_some(options.rate_mbit),
        cluster_rate_mbit: None,
        ipv6: options.ipv6,
        size: options.size,
        services: vec![Service::web(options.server)],
        detection_ms: options.detection_ms,
        capture: true,
        artifacts: artifacts.to_owned(),
    })
}

fn perform(options: &Options, pair: &Pair) -> anyhow::Result<Report> {
    interrupt::check()?;
    let (at, victim, client) = (pair.at(), pair.primary()?, pair.client()?);
    let survivor = other(victim);
    let mut display = Display::new(options.clients, options.size);
    display.say(&format!("Clients connect to {at}; {victim} is primary, {survivor} backs it up."));

    let history = options.server.keeps_alive().then_some(1);
    let idle = Idle::open(client, at, &pair.site, options.idle, history, ANSWER_WITHIN)?;
    let bell = Bell::default();
    let start = |_| Download::start(client, Client::Curl, at, crate::site::Site::LARGE, &bell);
    let downloads: Vec<Download> = (0..options.clients).map(start).collect::<Result<_, _>>()?;

    // Half of the bytes, and everybody on the way.
    let half = options.size.saturating_mul(options.clients as u64) / 2;
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
    let findings = Findings {
        killed_ns,
        outcomes,
        sha256: pair.site.sha256,
        events: pair.events_since(killed_ns),
        survivor: status.map(|s| (s.takeover, s.flows)),
    };
    let report = conclude(options, victim, &failure, early, &findings, idle);
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
    let (mut seen, mut moved) = (total(), Instant::now());
    while !bell.wait_until(Duration::from_millis(60), || done(downloads)) {
        interrupt::check()?;
        display.update(downloads);
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
    display.update(downloads);
    Ok(())
}

fn conclude(
    options: &Options,
    victim: &str,
    failure: &str,
    early: usize,
    findings: &Findings,
    idle: IdleReport,
) -> Report {
    let clients = findings.clients();
    let idle = IdleSummary::from(idle);
    let mut problems = Vec::new();
    let mut sorry = |wrong: bool, text: String| {
        if wrong {
            problems.push(text);
        }
    };
    sorry(findings.survivor.is_none(), format!("node {} gives no status", other(victim)));
    sorry(
        early == options.clients,
        "every download had ended before the failure: choose a larger --size".to_owned(),
    );
    // Resets do not count by themselves: a connection that had ended before the failure is reset
    // too if its last acknowledgement comes late, and nobody notices.
    let flows = findings.flows();
    let ok = clients.iter().all(|c| c.ok()) && idle.failures.is_empty() && problems.is_empty();
    Report {
        ok,
        server: options.server.name().to_owned(),
        kill: options.kill.to_string(),
        ipv6: options.ipv6,
        size: options.size,
        killed_node: victim.to_owned(),
        clients,
        idle,
        detection_ms: findings.detection_ms(),
        promotion_ms: findings.promotion_ms(),
        gap_ms: findings.gap(),
        flows,
        timeline: findings.timeline(failure),
        problems,
    }
}

fn print(report: &Report) {
    println!("\n      ms");
    for moment in &report.timeline {
        println!("{:>8.1}  {:<16} {}", moment.ms, moment.what, moment.detail);
    }
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

//! `steadfast demo --scheme message`: clients of the shop, one node fails, and each reply is held
//! against the shop's own logs.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{bail, ensure};
use indicatif::HumanCount;
use lab::Kill;
use serde::Serialize;

use super::audit::{Audit, Reign, Twice, read_logs};
use super::client::{Crowd, CrowdSpec, Failure, Notes, dial_from};
use super::request::Kind;
use crate::clock::Bell;
use crate::display::{Display, Unit};
use crate::interrupt;
use crate::pair::{Pair, other};
use crate::report::{Course, FlowSummary, Gap, Moment, print_timeline};
use crate::run::Options;

/// How long a client waits for the next byte.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many failures are printed of all.
const PRINTED: usize = 10;

/// The whole result, as `--json` writes it. Times are milliseconds; those of the timeline count
/// from the failure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Nobody noticed, and the logs agree.
    pub(crate) ok: bool,
    kill: String,
    ipv6: bool,
    killed_node: String,
    clients: usize,
    /// What the clients' requests were drawn from.
    seed: u64,
    /// By what was asked.
    requests: BTreeMap<&'static str, Fate>,
    /// By kind.
    errors: BTreeMap<&'static str, usize>,
    /// Each error, in words.
    failures: Vec<String>,
    /// How many requests the logs say were executed, each as often as it was.
    executions: usize,
    /// Replies that an instance's log confirms, by instance.
    confirmed: BTreeMap<String, usize>,
    /// Requests executed twice whose first reply nobody has seen.
    executed_twice: Vec<Twice>,
    /// Where clients and logs disagree.
    faults: Vec<String>,
    /// From the failure until the other node suspected it, or the node itself reported it.
    detection_ms: Option<f64>,
    /// From then until the other node was primary.
    promotion_ms: Option<f64>,
    /// Longest wait of a client around the failure, over all clients.
    gap_ms: Gap,
    flows: FlowSummary,
    timeline: Vec<Moment>,
    /// What else went wrong.
    problems: Vec<String>,
}

/// What became of requests.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Fate {
    sent: usize,
    answered: usize,
}

pub(crate) fn perform(options: &Options, requests: usize, pair: &Pair) -> anyhow::Result<Report> {
    interrupt::check()?;
    let each = requests.div_ceil(options.clients);
    let (at, victim, client) = (pair.at(), pair.primary()?, pair.client()?);
    let mut display = Display::new(Unit::Replies, options.clients, each as u64);
    let survivor = other(victim);
    display.say(&format!("Clients connect to {at}; {}.", options.who_serves(victim)));

    let bell = Bell::default();
    let spec = CrowdSpec {
        clients: options.clients,
        each,
        patience: PATIENCE,
        seed: fastrand::u64(..),
        dial: dial_from(client, at, PATIENCE),
    };
    let crowd = Crowd::start(&spec, &bell)?;
    // Half of the replies, and everybody on the way.
    let half = each * options.clients / 2;
    watch(&crowd, &bell, &mut display, |crowd| {
        let replies = crowd.replies();
        replies.iter().sum::<u64>() >= half as u64 && replies.iter().all(|&r| r > 0)
            || crowd.at_work() == 0
            || crowd.first_failure().is_some()
    })?;
    if let Some(Failure { trouble, id, detail }) = crowd.first_failure() {
        display.finish();
        let name = trouble.name();
        bail!("a client got no right reply before anything failed: {id}: {name}: {detail}");
    }
    if crowd.at_work() == 0 {
        display.finish();
        bail!("all clients were served before the failure: ask for more --requests");
    }
    let killed_ns = pair.kill(victim, &options.kill)?;
    display.say(&format!("Killed: {} of {victim}.", options.kill));
    watch(&crowd, &bell, &mut display, |crowd| crowd.at_work() == 0)?;
    display.finish();

    let notes = crowd.finish();
    let events = pair.events_since(killed_ns);
    let reigns = Reign::of(victim, events.iter().map(|(node, event)| (*node, event)));
    let audit = Audit::new(&notes, &read_logs(pair.lab.dir())?, &[reigns]);
    let course = Course {
        killed_ns,
        events,
        survivor: pair.status(survivor).ok().map(|s| (s.takeover, s.flows)),
        clients: "clients",
        stalls: notes.iter().map(|n| n.stalls.clone()).collect(),
    };
    let report = conclude(options, &spec, victim, &notes, audit, &course);
    print(&report, &failure(&options.kill, victim));
    Ok(report)
}

/// Shows progress until `done`. Clients give up by themselves, so that comes.
fn watch(
    crowd: &Crowd,
    bell: &Bell,
    display: &mut Display,
    done: impl Fn(&Crowd) -> bool,
) -> anyhow::Result<()> {
    while !bell.wait_until(Duration::from_millis(60), || done(crowd)) {
        interrupt::check()?;
        display.update(&crowd.replies(), crowd.at_work());
    }
    display.update(&crowd.replies(), crowd.at_work());
    Ok(())
}

fn conclude(
    options: &Options,
    spec: &CrowdSpec,
    victim: &str,
    notes: &[Notes],
    audit: Audit,
    course: &Course,
) -> Report {
    let mut requests: BTreeMap<&str, Fate> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, Kind> = BTreeMap::new();
    for (id, kind) in notes.iter().flat_map(|n| &n.sent) {
        requests.entry(kind.name()).or_default().sent += 1;
        kinds.insert(id, *kind);
    }
    for receipt in notes.iter().flat_map(|n| &n.receipts) {
        requests.entry(kinds[receipt.id.as_str()].name()).or_default().answered += 1;
    }
    let (mut errors, mut failures) = (BTreeMap::new(), Vec::new());
    for failure in notes.iter().flat_map(|n| &n.failures) {
        let name = failure.trouble.name();
        *errors.entry(name).or_default() += 1;
        failures.push(format!("{}: {name}: {}", failure.id, failure.detail));
    }
    let survivor = other(victim);
    let mut problems = Vec::new();
    if course.survivor.is_none() {
        problems.push(format!("node {survivor} gives no status"));
    }
    if !audit.confirmed.keys().any(|instance| instance.starts_with(&format!("{survivor}-"))) {
        problems.push(format!("no reply came from the shop on {survivor}"));
    }
    Report {
        ok: failures.is_empty() && audit.faults.is_empty() && problems.is_empty(),
        kill: options.kill.to_string(),
        ipv6: options.ipv6,
        killed_node: victim.to_owned(),
        clients: options.clients,
        seed: spec.seed,
        requests,
        errors,
        failures,
        executions: audit.executions,
        confirmed: audit.confirmed,
        executed_twice: audit.twice,
        faults: audit.faults,
        detection_ms: course.detection_ms(),
        promotion_ms: course.promotion_ms(),
        gap_ms: course.gap(),
        flows: course.flows(),
        timeline: course.timeline(&format!("{} of {victim}", options.kill)),
        problems,
    }
}

/// The failure as the last line tells it.
fn failure(kill: &Kill, victim: &str) -> String {
    match kill {
        Kill::Host => format!("host {victim} killed"),
        Kill::Process { .. } => format!("the shop on {victim} killed"),
        Kill::Daemon => format!("the daemon on {victim} killed"),
        Kill::Hang(duration) => format!("host {victim} stopped for {duration:?}"),
    }
}

fn print(report: &Report, failure: &str) {
    let count = |number: usize| HumanCount(number as u64).to_string();
    print_timeline(&report.timeline);
    let gap = report.gap_ms;
    println!(
        "\nLongest wait of a client: p50 {:.0} ms, p99 {:.0} ms, max {:.0} ms.",
        gap.p50, gap.p99, gap.max
    );
    let flows = report.flows;
    println!(
        "Connections: {} adopted, {} reset, {} without a backup now.\n",
        flows.adopted, flows.reset, flows.simplex
    );
    println!("{:<14}{:>10}{:>12}", "request", "sent", "answered");
    for (name, fate) in &report.requests {
        println!("{name:<14}{:>10}{:>12}", count(fate.sent), count(fate.answered));
    }
    let list: Vec<_> = report
        .confirmed
        .iter()
        .map(|(instance, replies)| format!("{} by {instance}", count(*replies)))
        .collect();
    println!(
        "\nThe shop's logs have {} executions. They confirm replies: {}.",
        count(report.executions),
        list.join(", ")
    );
    for twice in report.executed_twice.iter().take(PRINTED) {
        let ((dead, lost), (living, seen)) = (&twice.first, &twice.second);
        println!(
            "Executed twice: {} {}, as order {lost} by {dead}, which nobody saw, and as {seen} by \
             {living}, which the client has.",
            twice.request, twice.id
        );
    }
    for (name, number) in &report.errors {
        println!("{:>8} x {name}", count(*number));
    }
    for line in report.failures.iter().take(PRINTED) {
        println!("{line}");
    }
    for line in report.faults.iter().take(PRINTED).chain(&report.problems) {
        println!("{line}");
    }
    let sent = count(report.requests.values().map(|fate| fate.sent).sum());
    let (verdict, errors) = (if report.ok { "Nobody noticed" } else { "FAILED" }, &report.failures);
    let agree = match report.faults.len() {
        0 if report.ok => "every reply well formed and agreeing with the shop's log".to_owned(),
        0 => "the replies that came agree with the shop's log".to_owned(),
        1 => "1 contradiction to the shop's log".to_owned(),
        faults => format!("{} contradictions to the shop's log", count(faults)),
    };
    let twice = match report.executed_twice.len() {
        0 if report.faults.is_empty() => ", no request executed twice".to_owned(),
        0 => String::new(), // the contradictions tell
        1 => ", 1 request executed twice because its first reply had not been logged".to_owned(),
        n => format!(
            ", {} requests executed twice because their first reply had not been logged",
            count(n)
        ),
    };
    println!(
        "{verdict}: {} clients, {sent} requests, {failure}: {} errors, {agree}{twice}.",
        report.clients,
        count(errors.len())
    );
}

/// What a product that cannot protect the shop is told about.
pub(crate) fn explain(error: anyhow::Error) -> anyhow::Error {
    error.context("the nodes do not come up with a service whose scheme is \"message\"")
}

/// Whether there is something to show.
pub(crate) fn check(options: &Options, requests: usize) -> anyhow::Result<()> {
    ensure!(
        requests >= options.clients,
        "{} clients cannot share {requests} requests: choose a larger --requests",
        options.clients
    );
    Ok(())
}

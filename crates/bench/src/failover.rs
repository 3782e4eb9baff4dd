//! The bars of a failover: hosts die, and clients' clocks and the survivor's events tell how long
//! it took.
//!
//! All hosts of a lab share one kernel, so the daemons' event times and the clients' readings are
//! of one clock and can be subtracted. "Beyond detection" counts from the survivor's `suspected`
//! event: the silence before it is the detection time, which the operator chooses.

use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use anyhow::{Context, ensure};
use demo::clock::ms_between;
use demo::download::Stall;
use demo::operator::Event;
use demo::pair::other;
use demo::site::Site;
use lab::Kill;
use serde_json::{Map, Value, json};

use crate::memory::{Cost, await_tracked, open_idle};
use crate::plan::{Depth, Experiment, Measured, head};
use crate::record::{Bar, Head, Samples, Section};
use crate::scheme::Scheme;
use crate::twin::{Side, Twin, reply_path, wait_for};
use crate::watched::Watched;

const MB: u64 = 1_000_000;
/// Size of the file that dying hosts were sending.
pub const LARGE_BYTES: u64 = 1_000 * MB;
/// Bytes delivered before the host dies, for the curve of catching up, MB.
const DELIVERED_MB: [u64; 5] = [50, 100, 300, 600, 900];
/// How long a host takes to come back as backup, s: for the estimates.
pub const RETURN_S: f64 = 0.7;

/// All of them.
pub fn experiments(scheme: Scheme, depth: Depth) -> Vec<Experiment> {
    let full = depth == Depth::Full;
    let mut all = Vec::new();
    let (counts, repetitions): (&[usize], _) = match (scheme, full) {
        (Scheme::Track, true) => (&[1, 100, 1_000, 10_000], 5),
        (Scheme::Track, false) => (&[100, 1_000, 10_000], 2),
        (Scheme::Message, true) => (&[100, 1_000, 10_000], 3),
        (Scheme::Message, false) => (&[10_000], 1),
    };
    all.extend(counts.iter().map(|&count| takeover_of(scheme, count, repetitions)));
    match scheme {
        Scheme::Track => {
            for mb in DELIVERED_MB.into_iter().filter(|&mb| full || mb == 900) {
                all.push(catch_up(scheme, mb, if full { 5 } else { 3 }));
            }
            all.push(gaps(scheme, "gap", Work::Download, if full { 100 } else { 20 }));
        }
        Scheme::Message => {
            all.push(gaps(scheme, "gap", Work::Replies, if full { 30 } else { 8 }));
            if full {
                all.push(gaps(scheme, "gap-long", Work::Download, 30));
            }
        }
    }
    all
}

/// What a client does while its server's host dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// It downloads one large file.
    Download,
    /// It asks for one reply of 50 KiB after the other, on one connection.
    Replies,
}

/// A figure of what a run showed.
type Of<T> = fn(&T) -> f64;

/// Runs `one` so often, as samples for each of `columns`: the figure, and the percentile that the
/// bar is for.
fn repeat<T: 'static>(
    heads: Vec<Head>,
    columns: Vec<(Of<T>, u8)>,
    (repetitions, step_s): (usize, f64),
    one: impl Fn(&Twin) -> anyhow::Result<T> + 'static,
    more: fn(&T) -> Value,
) -> Experiment {
    let measure = move |run: &crate::plan::Run| {
        let mut runs = Vec::new();
        for number in 1..=repetitions {
            let done = one(run.on);
            runs.push(done.with_context(|| format!("failover {number} of {repetitions}"))?);
            run.step();
        }
        let samples = columns.iter().map(|&(of, percentile)| Samples::Alone {
            values: runs.iter().map(of).collect(),
            percentile,
        });
        let samples = samples.collect();
        let more = Map::from_iter([("runs".to_owned(), runs.iter().map(more).collect())]);
        Ok(Measured { samples, more, graphs: Vec::new() })
    };
    Experiment { heads, steps: repetitions, step_s, measure: Box::new(measure) }
}

/// What one takeover showed.
struct TakenOver {
    /// From the survivor's suspicion until all flows were open, ms.
    beyond_detection_ms: f64,
    more: Value,
    cost: Cost,
    primary_cost: Cost,
}

fn takeover_of(scheme: Scheme, count: usize, repetitions: usize) -> Experiment {
    let bars = scheme.bars();
    let plural = if count == 1 { "" } else { "s" };
    let title = format!("takeover of {count} idle flow{plural}, beyond detection");
    let bar = if count <= bars.flows_at_once { bars.takeover_ms } else { Bar::Beside };
    let id = format!("takeover-{count}");
    let row = head(scheme, id, Section::Failover, title, "ms", bar).on("takeover", count as f64);
    let (held, of_primary) = match scheme {
        Scheme::Track => ("flow table and journal", "flow table and journal"),
        Scheme::Message => {
            ("flow table, journal and reply log", "flow table, journal, reply log and gate")
        }
    };
    let mut heads = vec![row];
    let mut columns: Vec<(Of<TakenOver>, u8)> = vec![(|r| r.beyond_detection_ms, 100)];
    if count == 10_000 {
        let bar = bars.idle_flow_bytes;
        let costs: [(&str, String, Bar, Of<TakenOver>); 3] = [
            ("memory", format!("on the backup: {held}"), bar, |r| r.cost.maps + r.cost.journal),
            ("memory-primary", format!("on the primary: {of_primary}"), bar, |r| {
                r.primary_cost.maps + r.primary_cost.journal
            }),
            (
                "memory-process",
                "on the backup: flow table and growth of the daemon".to_owned(),
                Bar::Beside,
                |r| r.cost.maps + r.cost.resident,
            ),
        ];
        for (id, title, bar, of) in costs {
            let title = format!("memory per idle flow {title}");
            heads.push(head(scheme, id, Section::Cost, title, "bytes", bar));
            columns.push((of, 100));
        }
    }
    let step_s = RETURN_S + count as f64 * 5e-4;
    let one = move |twin: &Twin| {
        twin.shape(Some(1000), Some(1000))?;
        takeover(twin, count)
    };
    repeat(heads, columns, (repetitions, step_s), one, |r| r.more.clone())
}

fn takeover(twin: &Twin, count: usize) -> anyhow::Result<TakenOver> {
    let victim = twin.mend()?;
    let survivor = other(victim);
    let flows = open_idle(twin, survivor, count)?;
    let killed_ns = twin.pair.kill(victim, &Kill::Host)?;
    let event = |name| await_event(twin, survivor, name, killed_ns);
    let (suspected, promoted, all_open) =
        (event("suspected")?, event("promoted")?, event("all_open")?);
    let adopted = all_open.fields.get("adopted").and_then(Value::as_u64).unwrap_or(0);
    ensure!(adopted == count as u64, "{adopted} of {count} flows were adopted: {all_open:?}");
    // Every flow must be alive, or its takeover was not one.
    for (number, mut http) in flows.open.into_iter().enumerate() {
        http.get().with_context(|| format!("flow {number} after the takeover"))?;
    }
    let at = |e: &Event| ms_between(killed_ns, e.boottime_ns);
    let more = json!({
        "suspected_ms": at(&suspected), "promoted_ms": at(&promoted), "all_open_ms": at(&all_open),
        "took_us": all_open.fields.get("took_us"), "adopted": adopted,
        "maps_bytes_per_flow": flows.cost.maps, "journal_bytes_per_flow": flows.cost.journal,
        "resident_bytes_per_flow": flows.cost.resident,
    });
    twin.pair.bring_back(victim)?;
    Ok(TakenOver {
        beyond_detection_ms: ms_between(suspected.boottime_ns, all_open.boottime_ns),
        more,
        cost: flows.cost,
        primary_cost: flows.primary_cost,
    })
}

/// The first event of that name at `node` since `since_ns`.
///
/// # Errors
/// There is none in time.
pub fn await_event(twin: &Twin, node: &str, name: &str, since_ns: u64) -> anyhow::Result<Event> {
    let mut found = None;
    let waited = wait_for(&format!("{node} says {name}"), || {
        let events = twin.pair.operator(node).events()?;
        found = events.into_iter().find(|e| e.event == name && e.boottime_ns >= since_ns);
        Ok(found.is_some())
    });
    waited.with_context(|| twin.history(since_ns))?;
    found.context("an event that was found")
}

/// One download through the death of its server's host.
pub struct Survived {
    /// When the host died, on [`demo::clock::now_ns`]'s clock.
    pub killed_ns: u64,
    /// The longest pause that was not over by then.
    pub stall: Stall,
    /// The survivor's suspicion.
    pub suspected_ns: u64,
    /// Its promotion.
    pub promoted_ns: u64,
    /// The client's port.
    pub port: u16,
}

/// Kills the primary when `at_bytes` have arrived; the download goes on for `then` bytes.
///
/// # Errors
/// The download breaks, or nothing takes over.
pub fn survive(twin: &Twin, work: Work, at_bytes: u64, then: u64) -> anyhow::Result<Survived> {
    let victim = twin.mend()?;
    let survivor = other(victim);
    let (path, again) = match work {
        Work::Download => (Site::LARGE.to_owned(), false),
        Work::Replies => (reply_path(50), true),
    };
    let watched = Watched { again, ..Watched::default() };
    let bytes = || watched.bytes.load(Relaxed);
    let ended = || watched.ended.load(Relaxed);
    let at = twin.at(Side::Protected, false);
    let client = twin.client(Side::Protected)?;
    let (killed_ns, stalls) = thread::scope(|scope| {
        let download = scope.spawn(|| client.in_netns(|| watched.run(at, &path)));
        let kill_it = || -> anyhow::Result<u64> {
            wait_for("the download gets to where its server dies", || {
                ensure!(!ended(), "the download ended before its server died");
                Ok(bytes() >= at_bytes)
            })?;
            await_tracked(twin, survivor, 1)?;
            let killed_ns = twin.pair.kill(victim, &Kill::Host)?;
            let from = bytes();
            wait_for("the download goes on", || Ok(ended() || bytes() >= from + then))?;
            Ok(killed_ns)
        };
        let killed_ns = kill_it();
        watched.stop.store(true, Relaxed);
        // Why a download broke says more than that it ended too early.
        let stalls = download.join().expect("reading a download does not panic")??;
        Ok::<_, anyhow::Error>((killed_ns?, stalls))
    })?;
    let late = stalls.iter().filter(|s| s.to_ns > killed_ns);
    let stall = late.max_by_key(|s| s.to_ns - s.from_ns).context("the client saw no stall")?;
    let suspected = await_event(twin, survivor, "suspected", killed_ns)?;
    let promoted = await_event(twin, survivor, "promoted", killed_ns)?;
    ensure!(
        stall.to_ns >= suspected.boottime_ns,
        "the longest stall ended before the failure was detected: {stall:?}"
    );
    let survived = Survived {
        killed_ns,
        stall: *stall,
        suspected_ns: suspected.boottime_ns,
        promoted_ns: promoted.boottime_ns,
        port: watched.port.load(Relaxed),
    };
    twin.pair.bring_back(victim)?;
    Ok(survived)
}

fn catch_up(scheme: Scheme, mb: u64, repetitions: usize) -> Experiment {
    let nearly_all = mb == 900;
    let bar = if nearly_all { scheme.bars().catch_up_ms } else { Bar::Beside };
    let id = if nearly_all { "catch-up".to_owned() } else { format!("catch-up-{mb}") };
    let title =
        format!("1 GB download, host killed at {mb} MB: from promotion to the first new byte");
    let row = head(scheme, id, Section::Failover, title, "ms", bar).on("catch-up", mb as f64);
    let columns: Vec<(Of<Survived>, u8)> =
        vec![(|s| ms_between(s.promoted_ns, s.stall.to_ns), 100)];
    let one = move |twin: &Twin| {
        twin.shape(Some(1000), Some(1000))?;
        survive(twin, Work::Download, mb * MB, 10 * MB)
    };
    let step_s = RETURN_S + mb as f64 * 8e-3;
    repeat(vec![row], columns, (repetitions, step_s), one, |_| Value::Null)
}

/// Rows whose names begin with `id`.
fn gaps(scheme: Scheme, id: &str, work: Work, kills: usize) -> Experiment {
    let of = match (scheme, work) {
        (_, Work::Replies) => "one client's 50 KiB replies",
        (Scheme::Track, Work::Download) => "one download",
        (Scheme::Message, Work::Download) => "one download (long_replies = \"regenerate\")",
    };
    let title = format!("gap of {of} at host death, beyond detection");
    let row =
        |id: String, title: String, bar| head(scheme, id, Section::Failover, title, "ms", bar);
    let bar = scheme.bars().gap_ms;
    let mut heads = vec![
        row(format!("{id}-p50"), format!("{title}, p50"), bar),
        row(format!("{id}-p99"), format!("{title}, p99"), bar),
        row(
            format!("{id}-whole"),
            "the same, whole stall as the client sees it, p99".to_owned(),
            Bar::Beside,
        ),
    ];
    let beyond: Of<Survived> = |s| ms_between(s.suspected_ns, s.stall.to_ns);
    let mut columns: Vec<(Of<Survived>, u8)> =
        vec![(beyond, 50), (beyond, 99), (|s| ms_between(s.stall.from_ns, s.stall.to_ns), 99)];
    if id == "gap" {
        let title = "from host death to suspicion, p99".to_owned();
        heads.push(row("detection".to_owned(), title, Bar::Beside));
        columns.push((|s| ms_between(s.killed_ns, s.suspected_ns), 99));
    }
    let one = move |twin: &Twin| {
        twin.shape(Some(100), Some(100))?;
        survive(twin, work, 2 * MB, MB)
    };
    repeat(heads, columns, (kills, RETURN_S + 0.5), one, |_| Value::Null)
}

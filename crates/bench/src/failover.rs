//! The bars of a failover: hosts die, and clients' clocks and the survivor's events tell how long
//! it took.
//!
//! All hosts of a lab share one kernel, so the daemons' event times and the clients' readings are
//! of one clock and can be subtracted. "Beyond detection" counts from the survivor's `suspected`
//! event: the silence before it is the detection time, which the operator chooses.

use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use anyhow::{Context, ensure};
use demo::clock::{ms_between, now_ns};
use demo::download::Stall;
use demo::operator::Event;
use demo::pair::other;
use demo::site::Site;
use lab::Kill;
use serde_json::{Map, Value, json};

use crate::cost::{hash_maps_bytes, resident_bytes};
use crate::load::{Http, Watched};
use crate::record::{Bar, Row, Samples};
use crate::twin::{SMALL, Side, Twin, wait_for};

const MB: u64 = 1_000_000;

/// Every row here, and how often it is repeated (quick, full).
pub fn rows(twin: &Twin, full: bool, wanted: &dyn Fn(&str) -> bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for count in [100, 1_000, 10_000] {
        if wanted(&format!("takeover-{count}")) || (count == 10_000 && wanted("memory")) {
            rows.extend(takeover_rows(twin, count, if full { 5 } else { 2 }));
        }
    }
    if wanted("catch-up") {
        rows.push(catch_up_row(twin, if full { 10 } else { 3 }));
    }
    if wanted("gap") {
        rows.extend(gap_rows(twin, if full { 100 } else { 20 }));
    }
    rows
}

fn row(id: &str, title: &str, unit: &str, bar: Bar, samples: Samples, more: Value) -> Row {
    let more = if let Value::Object(more) = more { more } else { Map::new() };
    let (id, title, unit) = (id.to_owned(), title.to_owned(), unit.to_owned());
    let row = Row { id, title, unit, bar, samples, more };
    crate::say(&row);
    row
}

fn alone(values: anyhow::Result<Vec<f64>>, percentile: u8) -> Samples {
    match values {
        Ok(values) => Samples::Alone { values, percentile },
        Err(e) => Samples::Failed(format!("{e:#}")),
    }
}

/// Idle flows on a pair whose backup knows all of them.
struct IdleFlows {
    open: Vec<Http>,
    /// What they cost the backup, bytes per flow.
    cost: Cost,
}

#[derive(Clone, Copy, Debug)]
struct Cost {
    maps: f64,
    journal: f64,
    resident: f64,
}

/// What one takeover showed.
struct TakenOver {
    /// From the survivor's suspicion until all flows were open, ms.
    beyond_detection_ms: f64,
    more: Value,
    cost: Cost,
}

/// A figure of a takeover.
type Of<'a> = &'a dyn Fn(&TakenOver) -> f64;

fn takeover_rows(twin: &Twin, count: usize, repetitions: usize) -> Vec<Row> {
    let run = || -> anyhow::Result<Vec<TakenOver>> {
        twin.shape(Some(1000), Some(1000))?;
        (0..repetitions).map(|_| takeover(twin, count)).collect()
    };
    let result = run().map_err(|e| format!("{e:#}"));
    let pick = |of: Of| match &result {
        Ok(runs) => Samples::Alone { values: runs.iter().map(of).collect(), percentile: 100 },
        Err(e) => Samples::Failed(e.clone()),
    };
    let more = match &result {
        Ok(runs) => json!({"runs": runs.iter().map(|r| r.more.clone()).collect::<Vec<_>>()}),
        Err(_) => json!({}),
    };
    let title = format!("takeover of {count} idle flows, beyond detection");
    let beyond = pick(&|r| r.beyond_detection_ms);
    let mut rows =
        vec![row(&format!("takeover-{count}"), &title, "ms", Bar::AtMost(500.0), beyond, more)];
    if count == 10_000 {
        let costs: [(&str, &str, Bar, Of); 2] = [
            (
                "memory",
                "memory per idle flow on the backup: flow table and journal",
                Bar::AtMost(512.0),
                &|r| r.cost.maps + r.cost.journal,
            ),
            (
                "memory-process",
                "memory per idle flow on the backup: flow table and growth of the daemon",
                Bar::Beside,
                &|r| r.cost.maps + r.cost.resident,
            ),
        ];
        for (id, title, bar, of) in costs {
            rows.push(row(id, title, "bytes", bar, pick(of), json!({})));
        }
    }
    rows
}

fn takeover(twin: &Twin, count: usize) -> anyhow::Result<TakenOver> {
    let victim = twin.settle()?;
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
    })
}

/// Opens connections with one answered request each, and weighs them.
fn open_idle(twin: &Twin, backup: &str, count: usize) -> anyhow::Result<IdleFlows> {
    let pid = twin.pair.lab.node(backup).context("the backup has no daemon")?.pid();
    let weigh = || -> anyhow::Result<[f64; 3]> {
        let status = twin.pair.status(backup)?;
        let journal = status.all.get("journal").and_then(|j| j["bytes"].as_f64());
        let journal = journal.context("the status does not say how large the journal is")?;
        Ok([hash_maps_bytes(pid)?, journal, resident_bytes(pid)?])
    };
    wait_for(
        "flows of the last run are gone",
        || Ok(twin.pair.status(backup)?.flows.tracked == 0),
    )?;
    let before = weigh()?;
    let at = twin.at(Side::Protected, false);
    let open = twin.client(Side::Protected)?.in_netns(|| {
        let open = |_| {
            let mut http = Http::connect(at, SMALL)?;
            http.get()?;
            Ok(http)
        };
        (0..count).map(open).collect::<anyhow::Result<Vec<_>>>()
    })??;
    await_tracked(twin, backup, count)?;
    let after = weigh()?;
    let [maps, journal, resident] = [0, 1, 2].map(|i| (after[i] - before[i]) / count as f64);
    Ok(IdleFlows { open, cost: Cost { maps, journal, resident } })
}

fn await_tracked(twin: &Twin, backup: &str, count: usize) -> anyhow::Result<()> {
    let since_ns = now_ns();
    let tracked = || Ok(twin.pair.status(backup)?.flows.tracked >= count as u64);
    wait_for(&format!("the backup tracks {count} flows"), tracked).with_context(|| {
        // What a node did in the seconds before tells why.
        let events = twin.pair.events_since(since_ns.saturating_sub(10_000_000_000));
        let said = |(node, e): &(&str, Event)| format!("{node}: {} ({})", e.event, e.text);
        events.iter().map(said).collect::<Vec<_>>().join("; ")
    })
}

/// The first event of that name at `node` since `since_ns`.
fn await_event(twin: &Twin, node: &str, name: &str, since_ns: u64) -> anyhow::Result<Event> {
    let mut found = None;
    wait_for(&format!("{node} says {name}"), || {
        let events = twin.pair.operator(node).events()?;
        found = events.into_iter().find(|e| e.event == name && e.boottime_ns >= since_ns);
        Ok(found.is_some())
    })?;
    found.context("an event that was found")
}

/// One download through the death of its server's host.
struct Survived {
    killed_ns: u64,
    stall: Stall,
    suspected_ns: u64,
    promoted_ns: u64,
}

/// Kills the primary when `at_bytes` have arrived; the download goes on for `then` bytes.
fn survive(twin: &Twin, path: &str, at_bytes: u64, then: u64) -> anyhow::Result<Survived> {
    let victim = twin.settle()?;
    let survivor = other(victim);
    let watched = Watched::default();
    let bytes = || watched.bytes.load(Relaxed);
    let ended = || watched.ended.load(Relaxed);
    let at = twin.at(Side::Protected, false);
    let client = twin.client(Side::Protected)?;
    let (killed_ns, stalls) = thread::scope(|scope| {
        let download = scope.spawn(|| client.in_netns(|| watched.run(at, path)));
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
        let stalls = download.join().expect("reading a download does not panic");
        Ok::<_, anyhow::Error>((killed_ns?, stalls??))
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
    };
    twin.pair.bring_back(victim)?;
    Ok(survived)
}

fn catch_up_row(twin: &Twin, repetitions: usize) -> Row {
    let run = || -> anyhow::Result<Vec<f64>> {
        twin.shape(Some(1000), Some(1000))?;
        let one = |_| {
            let s = survive(twin, Site::LARGE, 900 * MB, 10 * MB)?;
            Ok(ms_between(s.promoted_ns, s.stall.to_ns))
        };
        (0..repetitions).map(one).collect()
    };
    row(
        "catch-up",
        "1 GB download, host killed at 900 MB: from promotion to the first new byte",
        "ms",
        Bar::AtMost(150.0),
        alone(run(), 100),
        json!({}),
    )
}

fn gap_rows(twin: &Twin, kills: usize) -> Vec<Row> {
    let run = || -> anyhow::Result<Vec<Survived>> {
        twin.shape(Some(100), Some(100))?;
        (0..kills).map(|_| survive(twin, Site::LARGE, 2 * MB, MB)).collect()
    };
    let result = run().map_err(|e| format!("{e:#}"));
    let pick = |percentile, of: &dyn Fn(&Survived) -> f64| match &result {
        Ok(runs) => Samples::Alone { values: runs.iter().map(of).collect(), percentile },
        Err(e) => Samples::Failed(e.clone()),
    };
    let beyond = |s: &Survived| ms_between(s.suspected_ns, s.stall.to_ns);
    let total = |s: &Survived| ms_between(s.stall.from_ns, s.stall.to_ns);
    let detection = |s: &Survived| ms_between(s.killed_ns, s.suspected_ns);
    let bar = Bar::AtMost(20.0);
    let title = "gap of one download at host death, beyond detection";
    [
        ("gap-p50", format!("{title}, p50"), bar, pick(50, &beyond)),
        ("gap-p99", format!("{title}, p99"), bar, pick(99, &beyond)),
        (
            "gap-whole",
            "the same, whole stall as the client sees it, p99".to_owned(),
            Bar::Beside,
            pick(99, &total),
        ),
        (
            "detection",
            "from host death to suspicion, p99".to_owned(),
            Bar::Beside,
            pick(99, &detection),
        ),
    ]
    .into_iter()
    .map(|(id, title, bar, samples)| row(id, &title, "ms", bar, samples, json!({})))
    .collect()
}

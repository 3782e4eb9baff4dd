//! What flows cost in memory, idle and busy, on either node.

use anyhow::Context;
use demo::clock::now_ns;
use demo::pair::other;
use serde_json::{Map, json};

use crate::cost::{hash_maps_bytes, resident_bytes, socket_values_bytes};
use crate::load::Http;
use crate::plan::{Depth, Experiment, Measured, head};
use crate::record::{Bar, Samples, Section};
use crate::scheme::Scheme;
use crate::twin::{SMALL, Side, Twin, wait_for};

/// Busy flows that are weighed.
const FLOWS: usize = 200;
/// Requests that each of them makes.
const REQUESTS: usize = 100;
/// How often.
const REPETITIONS: usize = 5;

/// All that measure nothing else; idle flows are weighed before they are taken over.
///
/// With the scheme `message` the journal forgets what is answered, and the reply log what is
/// acknowledged: a flow that was busy is an idle one.
pub fn experiments(scheme: Scheme, _: Depth) -> Vec<Experiment> {
    if scheme == Scheme::Message {
        return Vec::new();
    }
    let row =
        |id: &str, title: String| head(scheme, id, Section::Cost, title, "bytes", Bar::Beside);
    vec![Experiment {
        heads: vec![
            row(
                "journal-request",
                "journal on the backup, per request of 1 KiB replies".to_owned(),
            ),
            row(
                "memory-active",
                format!(
                    "memory per flow on the backup after {REQUESTS} requests: flow table and journal"
                ),
            ),
        ],
        steps: REPETITIONS,
        step_s: 2.0,
        measure: Box::new(|run| {
            run.on.shape(Some(1000), Some(1000))?;
            let (mut per_request, mut per_flow, mut runs) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..REPETITIONS {
                let busy = busy(run.on)?;
                per_request.push(busy.journal_per_request);
                per_flow.push(busy.per_flow);
                runs.push(json!({"request_bytes": busy.request_bytes}));
                run.step();
            }
            let samples = [per_request, per_flow];
            let samples = samples.map(|values| Samples::Alone { values, percentile: 50 }).into();
            let more = Map::from_iter([
                ("flows".to_owned(), FLOWS.into()),
                ("requests_each".to_owned(), REQUESTS.into()),
                ("runs".to_owned(), runs.into()),
            ]);
            Ok(Measured { samples, more, graphs: Vec::new() })
        }),
    }]
}

/// What busy flows cost the backup.
struct Busy {
    request_bytes: usize,
    journal_per_request: f64,
    per_flow: f64,
}

fn busy(twin: &Twin) -> anyhow::Result<Busy> {
    let backup = other(twin.mend()?);
    let mut flows = open_idle(twin, backup, FLOWS)?;
    let request_bytes = flows.open[0].request_bytes();
    let (idle, stored) = (weigh(twin, backup)?, stored_bytes(twin, backup)?);
    for http in &mut flows.open {
        for _ in 0..REQUESTS {
            http.get()?;
        }
    }
    let sent = (FLOWS * REQUESTS * request_bytes) as f64;
    wait_for("the journal has every request", || Ok(stored_bytes(twin, backup)? >= stored + sent))?;
    let after = weigh(twin, backup)?;
    Ok(Busy {
        request_bytes,
        journal_per_request: (after.journal - idle.journal) / (FLOWS * REQUESTS) as f64,
        per_flow: flows.cost.maps
            + flows.cost.journal
            + (after.maps - idle.maps + after.journal - idle.journal) / FLOWS as f64,
    })
}

fn stored_bytes(twin: &Twin, node: &str) -> anyhow::Result<f64> {
    let status = twin.pair.status(node)?;
    let bytes = status.all.get("journal").and_then(|j| j["stored_bytes"].as_f64());
    bytes.context("the status does not say how much the journal holds")
}

/// Flows on a pair whose backup knows all of them.
pub struct IdleFlows {
    /// The clients' ends.
    pub open: Vec<Http>,
    /// What each costs the backup.
    pub cost: Cost,
    /// What each costs the primary.
    pub primary_cost: Cost,
}

/// Memory of a node, or of a flow on it, bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Hash maps of the data path, the flow table among them, and what sockets have of its maps.
    pub maps: f64,
    /// Heap of the journal and of the reply log.
    pub journal: f64,
    /// Resident memory of the daemon; the journal is part of it.
    pub resident: f64,
}

impl Cost {
    fn per_flow(before: Cost, after: Cost, flows: usize) -> Cost {
        let per_flow = |of: fn(Cost) -> f64| (of(after) - of(before)) / flows as f64;
        Cost {
            maps: per_flow(|c| c.maps),
            journal: per_flow(|c| c.journal),
            resident: per_flow(|c| c.resident),
        }
    }
}

/// Two of these differ by what came in between, if nothing has gone.
fn weigh(twin: &Twin, node: &str) -> anyhow::Result<Cost> {
    let pid = twin.pair.lab.node(node).context("the node has no daemon")?.pid();
    let status = twin.pair.status(node)?;
    let journal = status.all.get("journal").and_then(|j| j["bytes"].as_f64());
    let journal = journal.context("the status does not say how large the journal is")?;
    let replies = status.all.get("replies").and_then(|r| r["bytes"].as_f64()).unwrap_or(0.0);
    let journal = journal + replies;
    // Of those that came in between, each that got a gate has it still.
    let counters = status.all.get("counters");
    let gates = counters.and_then(|c| c["held_flows"].as_f64()).unwrap_or(0.0);
    let maps = hash_maps_bytes(pid)? + gates * socket_values_bytes(pid)?;
    Ok(Cost { maps, journal, resident: resident_bytes(pid)? })
}

/// Opens connections with one answered request each, and weighs them.
///
/// # Errors
/// One cannot be opened, or does not come to be protected.
pub fn open_idle(twin: &Twin, backup: &str, count: usize) -> anyhow::Result<IdleFlows> {
    let primary = other(backup);
    let weigh = || anyhow::Ok([weigh(twin, backup)?, weigh(twin, primary)?]);
    let tracked = || anyhow::Ok(twin.pair.status(backup)?.flows.tracked);
    wait_for("flows of the last run are gone", || Ok(tracked()? == 0))?;
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
    let [cost, primary_cost] = [0, 1].map(|i| Cost::per_flow(before[i], after[i], count));
    Ok(IdleFlows { open, cost, primary_cost })
}

/// Waits until the backup tracks so many flows.
///
/// # Errors
/// It does not come to that; with what the nodes did meanwhile.
pub fn await_tracked(twin: &Twin, backup: &str, count: usize) -> anyhow::Result<()> {
    let since_ns = now_ns();
    let tracked = || Ok(twin.pair.status(backup)?.flows.tracked >= count as u64);
    let waited = wait_for(&format!("the backup tracks {count} flows"), tracked);
    waited.with_context(|| twin.history(since_ns))
}

//! The bars of normal operation: interleaved pairs of runs, protected and unprotected.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::cost::cpu_us;
use crate::load::{closed_loop, download, latencies, upload};
use crate::record::{Bar, Row, Samples, percentile};
use crate::twin::{SMALL, Side, Twin};

/// One pair's half: the figures of the rows that are measured together, in their order.
type Figures = Vec<f64>;

/// A bulk row.
struct Bulk {
    id: &'static str,
    title: &'static str,
    inward: bool,
    service: Option<u64>,
    cluster: Option<u64>,
    bytes: u64,
    bar: Bar,
    /// Only when everything is asked for.
    full: bool,
}

const MB: u64 = 1_000_000;
/// Path of the file that bulk rows download.
pub const BULK: &str = "/bulk.bin";
/// Its size: a second at 1 Gbit/s.
pub const BULK_BYTES: u64 = 120 * MB;

const fn inward(
    id: &'static str,
    title: &'static str,
    service: u64,
    cluster: u64,
    bytes: u64,
    bar: Bar,
    full: bool,
) -> Bulk {
    Bulk {
        id,
        title,
        inward: true,
        service: Some(service),
        cluster: Some(cluster),
        bytes,
        bar,
        full,
    }
}

const BULKS: [Bulk; 8] = [
    Bulk {
        id: "out-1000",
        title: "bulk out, service link 1 Gbit/s",
        inward: false,
        service: Some(1000),
        cluster: Some(1000),
        bytes: BULK_BYTES,
        bar: Bar::AtLeast(0.99),
        full: false,
    },
    inward(
        "in-100-100",
        "bulk in, service:cluster 100:100 Mbit/s",
        100,
        100,
        10 * MB,
        Bar::AtLeast(0.99),
        false,
    ),
    inward("in-1000-1000", "bulk in, 1000:1000", 1000, 1000, 100 * MB, Bar::AtLeast(0.97), false),
    inward("in-10-10", "bulk in, 10:10", 10, 10, 2 * MB, Bar::Beside, true),
    inward("in-10-100", "bulk in, 10:100", 10, 100, 2 * MB, Bar::Beside, true),
    inward("in-100-1000", "bulk in, 100:1000", 100, 1000, 10 * MB, Bar::Beside, true),
    Bulk {
        id: "out-unshaped",
        title: "bulk out, unshaped (bound by the processor)",
        inward: false,
        service: None,
        cluster: None,
        bytes: BULK_BYTES,
        bar: Bar::Beside,
        full: false,
    },
    Bulk {
        id: "in-unshaped",
        title: "bulk in, unshaped (bound by the processor)",
        inward: true,
        service: None,
        cluster: None,
        bytes: 100 * MB,
        bar: Bar::Beside,
        full: false,
    },
];

/// All rows of normal operation that `wanted` picks.
pub fn rows(twin: &Twin, full: bool, wanted: &dyn Fn(&str) -> bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for bulk in BULKS.iter().filter(|b| (full || !b.full) && wanted(b.id)) {
        rows.extend(bulk_row(twin, bulk, if full { 15 } else { 7 }));
    }
    // At 100 Mbit/s the link is the bound, at 1 Gbit/s on a small machine its processors.
    let links = [("", "1 Gbit/s", Some(1000)), ("-100", "100 Mbit/s", Some(100))];
    for (suffix, at, link) in links.into_iter().chain([("-unshaped", "unshaped", None)]) {
        let bar = |bar| if link == Some(1000) { bar } else { Bar::Beside };
        let id = format!("small-p50{suffix}");
        if wanted(&id) {
            let heads = [Head {
                id: &id,
                title: &format!("1 KiB request, 1 client, p50, {at}"),
                unit: "µs",
                bar: bar(Bar::AtMost(1.10)),
            }];
            rows.extend(interleave(twin, &heads, link, link, if full { 30 } else { 15 }, |side| {
                one_client(twin, side)
            }));
        }
        let ids = [format!("small-50{suffix}"), format!("cpu{suffix}")];
        if ids.iter().any(|id| wanted(id)) {
            let heads = [
                Head {
                    id: &ids[0],
                    title: &format!("1 KiB requests, 50 keep-alive clients, throughput, {at}"),
                    unit: "requests/s",
                    bar: bar(Bar::AtLeast(0.95)),
                },
                Head {
                    id: &ids[1],
                    title: &format!("processor time of the primary per request, {at}"),
                    unit: "µs",
                    bar: bar(Bar::AtMost(1.03)),
                },
            ];
            rows.extend(interleave(twin, &heads, link, link, if full { 30 } else { 15 }, |side| {
                fifty_clients(twin, side)
            }));
        }
    }
    rows
}

fn bulk_row(twin: &Twin, bulk: &Bulk, repetitions: usize) -> Vec<Row> {
    let head = Head { id: bulk.id, title: bulk.title, unit: "Mbit/s", bar: bulk.bar };
    interleave(twin, &[head], bulk.service, bulk.cluster, repetitions, |side| {
        let (at, client) = (twin.at(side, bulk.inward), twin.client(side)?);
        let rate = client.in_netns(|| match bulk.inward {
            true => upload(at, bulk.bytes),
            false => download(at, BULK),
        })??;
        Ok(vec![rate])
    })
}

fn one_client(twin: &Twin, side: Side) -> anyhow::Result<Figures> {
    let (at, span) = (twin.at(side, false), Duration::from_millis(300));
    let times = twin.client(side)?.in_netns(|| latencies(at, SMALL, span))??;
    Ok(vec![percentile(&times, 50.0)])
}

fn fifty_clients(twin: &Twin, side: Side) -> anyhow::Result<Figures> {
    let (at, span) = (twin.at(side, false), Duration::from_millis(700));
    let (client, server) = (twin.client(side)?, twin.server(side)?);
    let mut before = 0.0;
    let served = client.in_netns(|| {
        closed_loop(at, SMALL, 50, span, || {
            before = cpu_us(server)?;
            Ok(())
        })
    })??;
    let spent = cpu_us(server)? - before;
    let requests = served.requests as f64;
    Ok(vec![requests / served.took.as_secs_f64(), spent / requests])
}

/// What a row is about.
struct Head<'a> {
    id: &'a str,
    title: &'a str,
    unit: &'a str,
    bar: Bar,
}

/// Shapes both labs and runs `measure` on either side in turn: one unrecorded round first, then
/// A B, B A, A B, …, so that neither side always follows the other.
fn interleave(
    twin: &Twin,
    heads: &[Head],
    service: Option<u64>,
    cluster: Option<u64>,
    repetitions: usize,
    mut measure: impl FnMut(Side) -> anyhow::Result<Figures>,
) -> Vec<Row> {
    let mut run = || -> anyhow::Result<[Vec<Figures>; 2]> {
        twin.shape(service, cluster)?;
        let mut figures = [Vec::new(), Vec::new()];
        for repetition in 0..=repetitions {
            let mut order = [Side::Protected, Side::Bare];
            if repetition % 2 == 1 {
                order.reverse();
            }
            for side in order {
                let got = measure(side)?;
                if repetition > 0 {
                    figures[usize::from(side == Side::Bare)].push(got);
                }
            }
        }
        Ok(figures)
    };
    let result = run();
    let samples = |column: usize| match &result {
        Ok(figures) => {
            let [protected, bare] =
                [0, 1].map(|side: usize| figures[side].iter().map(|f| f[column]).collect());
            Samples::Pairs { protected, bare }
        }
        Err(e) => Samples::Failed(format!("{e:#}")),
    };
    let shaping = |mbit: Option<u64>| mbit.map_or(Value::Null, Value::from);
    let more = Map::from_iter([
        ("service_mbit".to_owned(), shaping(service)),
        ("cluster_mbit".to_owned(), shaping(cluster)),
    ]);
    heads
        .iter()
        .enumerate()
        .map(|(column, head)| Row {
            id: head.id.to_owned(),
            title: head.title.to_owned(),
            unit: head.unit.to_owned(),
            bar: head.bar,
            samples: samples(column),
            more: more.clone(),
        })
        .inspect(crate::say)
        .collect()
}

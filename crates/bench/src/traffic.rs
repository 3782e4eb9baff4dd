//! The bars of normal operation: bulk transfers, and small requests with what they cost.

use std::time::Duration;

use crate::cost::{cpu_us, sleeps};
use crate::load::{closed_loop, download, latencies, upload};
use crate::plan::{Depth, Experiment, head};
use crate::record::{Bar, Head, Section};
use crate::scheme::Scheme;
use crate::sides::{Column, Mbit, Sides};
use crate::stats::percentile;
use crate::twin::{BULKS, Bulk, SMALL, Side, Twin};

/// All of them.
pub fn experiments(scheme: Scheme, depth: Depth) -> Vec<Experiment> {
    let bulk = LINKS.iter().flat_map(|links| {
        [false, true].into_iter().filter_map(move |inward| bulk(scheme, depth, *links, inward))
    });
    // At 100 Mbit/s the link is the bound, at 1 Gbit/s on a small machine its processors.
    let small = [(Some(1000), ""), (Some(100), "-100"), (None, "-unshaped")]
        .into_iter()
        .flat_map(|(link, suffix)| small(scheme, depth, link, suffix));
    bulk.chain(small).chain([beside_a_detour(scheme, depth)]).collect()
}

/// Where the machine's processors are the bound, the row above compares the work of all hosts, and
/// a protected request crosses the network once more. How much is that hop, and how much
/// Steadfast? Here the unprotected requests cross it too.
fn beside_a_detour(scheme: Scheme, depth: Depth) -> Experiment {
    let title = "1 KiB requests, 50 keep-alive clients, 1 Gbit/s, compared with a second host that \
                 only forwards";
    let id = "small-50-detour".to_owned();
    let head = head(scheme, id, Section::Requests, title.to_owned(), "requests/s", Bar::Beside);
    let link = Some(1000);
    let sides = Sides {
        columns: vec![Column::Both(head)],
        service: link,
        cluster: link,
        repetitions: if depth == Depth::Full { 30 } else { 15 },
        run_s: 0.75,
    };
    sides.experiment(|twin, side| {
        let _detour = (side == Side::Bare).then(|| twin.detour()).transpose()?;
        let mut figures = fifty_clients(twin, side)?;
        figures.truncate(1);
        Ok(figures)
    })
}

/// Rates of the service and the cluster link, Mbit/s.
type Links = [Mbit; 2];

/// The pairs of the bulk rows.
const LINKS: [Links; 6] = [
    [Some(10), Some(10)],
    [Some(10), Some(100)],
    [Some(100), Some(100)],
    [Some(100), Some(1000)],
    [Some(1000), Some(1000)],
    [None, None],
];

fn bulk(scheme: Scheme, depth: Depth, links: Links, inward: bool) -> Option<Experiment> {
    let (bars, way) = (scheme.bars(), if inward { "in" } else { "out" });
    let bar = match (inward, links) {
        (true, [Some(100), Some(100)]) => bars.bulk_in_100,
        (true, [Some(1000), _]) => bars.bulk_in_1000,
        (false, [Some(1000), _]) => bars.bulk_out,
        _ => Bar::Beside,
    };
    let quick = bar != Bar::Beside || links == [None, None];
    if depth == Depth::Quick && !quick {
        return None;
    }
    let file = match links[0] {
        Some(10) => &BULKS[0],
        Some(100) => &BULKS[1],
        _ => &BULKS[2],
    };
    let (id, title) = match links {
        [Some(service), Some(cluster)] => (
            format!("{way}-{service}-{cluster}"),
            format!("bulk {way}, service:cluster {service}:{cluster} Mbit/s"),
        ),
        _ => (format!("{way}-unshaped"), format!("bulk {way}, unshaped (bound by the processor)")),
    };
    let head = head(scheme, id, Section::Bulk, title, "Mbit/s", bar);
    let sides = Sides {
        columns: vec![Column::Both(head)],
        service: links[0],
        cluster: links[1],
        repetitions: match (depth, bar) {
            (Depth::Full, Bar::AtLeast(_) | Bar::AtMost(_)) => 15,
            _ => 7,
        },
        run_s: file.bytes as f64 * 8e-6 / links[0].unwrap_or(5_000) as f64 + 0.1,
    };
    Some(sides.experiment(move |twin, side| bulk_run(twin, side, inward, file)))
}

fn bulk_run(twin: &Twin, side: Side, inward: bool, file: &Bulk) -> anyhow::Result<Vec<f64>> {
    let at = twin.at(side, inward);
    let rate = twin.client(side)?.in_netns(|| match inward {
        true => upload(at, file.bytes),
        false => download(at, file.path),
    })??;
    Ok(vec![rate])
}

fn small(scheme: Scheme, depth: Depth, link: Mbit, suffix: &str) -> [Experiment; 2] {
    let at = link.map_or("unshaped".to_owned(), |mbit| match mbit {
        1000 => "1 Gbit/s".to_owned(),
        mbit => format!("{mbit} Mbit/s"),
    });
    let (bars, judged) = (scheme.bars(), link == Some(1000));
    let bar = |bar| if judged { bar } else { Bar::Beside };
    let row = |id: &str, section, title: &str, unit: &str, bar| -> Head {
        head(scheme, format!("{id}{suffix}"), section, format!("{title}, {at}"), unit, bar)
    };
    let repetitions = if depth == Depth::Full { 30 } else { 15 };
    let sides =
        |columns, run_s| Sides { columns, service: link, cluster: link, repetitions, run_s };
    let (requests, cost) = (Section::Requests, Section::Cost);
    let one = vec![
        row("small-p50", requests, "1 KiB request, 1 client, p50", "µs", bar(bars.small_p50)),
        row("small-p99", requests, "1 KiB request, 1 client, p99", "µs", Bar::Beside),
    ];
    let title = "1 KiB requests, 50 keep-alive clients, throughput";
    let of = |host: &str| format!("processor time of the {host} per request");
    let fifty = vec![
        Column::Both(row("small-50", requests, title, "requests/s", bar(bars.small_50))),
        Column::Both(row("cpu", cost, &of("primary"), "µs", bar(bars.primary_cpu))),
        Column::Both(row("cpu-client", cost, &of("clients"), "µs", Bar::Beside)),
        Column::Both(row("cpu-nodes", cost, &of("primary and the backup"), "µs", Bar::Beside)),
        Column::Protected(row("cpu-backup", cost, &of("backup"), "µs", Bar::Beside)),
        Column::Both(row(
            "sleeps",
            cost,
            "how often the server slept per request",
            "",
            Bar::Beside,
        )),
    ];
    [
        sides(one.into_iter().map(Column::Both).collect(), 0.32).experiment(one_client),
        sides(fifty, 0.75).experiment(fifty_clients),
    ]
}

fn one_client(twin: &Twin, side: Side) -> anyhow::Result<Vec<f64>> {
    let (at, span) = (twin.at(side, false), Duration::from_millis(300));
    let times = twin.client(side)?.in_netns(|| latencies(at, SMALL, span))??;
    Ok(vec![percentile(&times, 50.0), percentile(&times, 99.0)])
}

fn fifty_clients(twin: &Twin, side: Side) -> anyhow::Result<Vec<f64>> {
    let (at, span) = (twin.at(side, false), Duration::from_millis(700));
    let (client, server, backup) = (twin.client(side)?, twin.server(side)?, twin.backup(side)?);
    let spent = || anyhow::Ok([cpu_us(server)?, cpu_us(backup)?, sleeps(server)?]);
    let mut before = [0.0; 3];
    let served = client.in_netns(|| {
        closed_loop(at, SMALL, 50, span, || {
            before = spent()?;
            Ok(())
        })
    })??;
    let after = spent()?;
    let requests = served.requests as f64;
    let [server, backup, sleeps] = [0, 1, 2].map(|i| (after[i] - before[i]) / requests);
    let rate = requests / served.took.as_secs_f64();
    Ok(vec![rate, server, served.client_us / requests, server + backup, backup, sleeps])
}

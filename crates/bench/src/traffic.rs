//! The bars of normal operation: bulk transfers, and small requests with what they cost.

use std::net::SocketAddr;
use std::time::Duration;

use crate::cost::{cpu_us, sleeps};
use crate::load::{Idle, closed_loop, download, latencies, upload};
use crate::plan::{Depth, Experiment, head};
use crate::record::{Bar, Head, Section};
use crate::scheme::Scheme;
use crate::sides::{Column, Mbit, Sides};
use crate::stats::percentile;
use crate::twin::{BULKS, Bulk, SMALL, Side, Twin};

/// All of them.
pub fn experiments(scheme: Scheme, depth: Depth) -> Vec<Experiment> {
    let bulk = LINKS.iter().flat_map(|links| {
        let ways: &[Way] = match scheme {
            Scheme::Track => &[Way::Out, Way::In],
            Scheme::Message => &[Way::Out, Way::OutStreamed, Way::In],
        };
        ways.iter().filter_map(move |&way| bulk(scheme, depth, *links, way))
    });
    // At 100 Mbit/s the link is the bound, at 1 Gbit/s on a small machine its processors.
    let links = [(Some(1000), ""), (Some(100), "-100"), (None, "-unshaped")];
    let small = links
        .into_iter()
        .filter(|(link, _)| all_links(scheme, depth) || *link == Some(1000))
        .flat_map(|(link, suffix)| small(scheme, depth, link, suffix));
    let detour = (scheme == Scheme::Track).then(|| beside_a_detour(scheme, depth));
    bulk.chain(small).chain(detour).collect()
}

/// Whether rows without a bar are measured as well; the quick run has the time for one scheme's.
fn all_links(scheme: Scheme, depth: Depth) -> bool {
    scheme == Scheme::Track || depth == Depth::Full
}

/// What is sent, and how it is protected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
    /// With the scheme `message`, each piece of the file held by two nodes before it leaves.
    OutStreamed,
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
        Ok(vec![fifty_clients(twin, side, twin.at(side, false), SMALL, FIFTY_SPAN)?.rate])
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

fn bulk(scheme: Scheme, depth: Depth, links: Links, way: Way) -> Option<Experiment> {
    let bars = scheme.bars();
    let bar = match (way, links) {
        (Way::In, [Some(100), Some(100)]) => bars.bulk_in_100,
        (Way::In, [Some(1000), _]) => bars.bulk_in_1000,
        (Way::Out | Way::OutStreamed, [Some(1000), _]) => bars.bulk_out,
        _ => Bar::Beside,
    };
    let unshaped = links == [None, None] && all_links(scheme, depth);
    // How much faster the cluster link must be was asked of `track`.
    let alike = links[0] == links[1] && links[0] != Some(10);
    let measured = match (depth, scheme) {
        (Depth::Quick, _) => bar != Bar::Beside || unshaped,
        (Depth::Full, Scheme::Track) => true,
        (Depth::Full, Scheme::Message) => alike,
    };
    if !measured {
        return None;
    }
    // The files are longer than the reply budget.
    let (way_id, long) = match (scheme, way) {
        (_, Way::In) => ("in", ""),
        (Scheme::Track, _) => ("out", ""),
        (Scheme::Message, Way::Out) => ("out", "; long_replies = \"regenerate\""),
        (Scheme::Message, Way::OutStreamed) => ("out-stream", "; long_replies = \"stream\""),
    };
    let direction = if way == Way::In { "in" } else { "out" };
    let file = match links[0] {
        Some(10) => &BULKS[0],
        Some(100) => &BULKS[1],
        _ => &BULKS[2],
    };
    let (id, title) = match links {
        [Some(service), Some(cluster)] => (
            format!("{way_id}-{service}-{cluster}"),
            format!("bulk {direction}, service:cluster {service}:{cluster} Mbit/s{long}"),
        ),
        _ => (
            format!("{way_id}-unshaped"),
            format!("bulk {direction}, unshaped (bound by the processor){long}"),
        ),
    };
    let head = head(scheme, id, Section::Bulk, title, "Mbit/s", bar);
    let sides = Sides {
        columns: vec![Column::Both(head)],
        service: links[0],
        cluster: links[1],
        repetitions: match (depth, bar) {
            (Depth::Full, Bar::AtLeast(_) | Bar::AtMost(_)) => 15,
            (Depth::Quick, _) if scheme == Scheme::Message => 5,
            _ => 7,
        },
        run_s: file.bytes as f64 * 8e-6 / links[0].unwrap_or(5_000) as f64 + 0.1,
    };
    Some(sides.experiment(move |twin, side| bulk_run(twin, side, way, file)))
}

fn bulk_run(twin: &Twin, side: Side, way: Way, file: &Bulk) -> anyhow::Result<Vec<f64>> {
    let rate = twin.client(side)?.in_netns(|| match way {
        Way::In => upload(twin.at(side, true), file.bytes),
        Way::Out => download(twin.at(side, false), file.path),
        Way::OutStreamed => download(twin.streaming_at(side), file.path),
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
    let repetitions = match (depth, scheme) {
        (Depth::Full, Scheme::Track) => 30,
        (Depth::Full, Scheme::Message) => 20,
        (Depth::Quick, Scheme::Track) => 15,
        (Depth::Quick, Scheme::Message) => 9,
    };
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
        sides(fifty, 0.75).experiment(|twin, side| {
            let at = twin.at(side, false);
            let cost = fifty_clients(twin, side, at, SMALL, FIFTY_SPAN)?;
            let Cost { rate, primary, clients, backup, sleeps } = cost;
            Ok(vec![rate, primary, clients, primary + backup, backup, sleeps])
        }),
    ]
}

fn one_client(twin: &Twin, side: Side) -> anyhow::Result<Vec<f64>> {
    let (at, span) = (twin.at(side, false), Duration::from_millis(300));
    let times = twin.client(side)?.in_netns(|| latencies(at, SMALL, span))??;
    Ok(vec![percentile(&times, 50.0), percentile(&times, 99.0)])
}

/// How long the fifty clients ask.
const FIFTY_SPAN: Duration = Duration::from_millis(700);

/// What fifty clients got, and what it cost.
pub struct Cost {
    /// Requests per second.
    pub rate: f64,
    /// Processor time per request, µs.
    pub primary: f64,
    /// The same of the clients.
    pub clients: f64,
    /// The same of the backup; of one that is dead nothing.
    pub backup: f64,
    /// How often the server slept per request.
    pub sleeps: f64,
}

/// Fifty clients ask the server `at` for `path`, again as soon as they are answered.
///
/// # Errors
/// A reply is not right.
pub fn fifty_clients(
    twin: &Twin,
    side: Side,
    at: SocketAddr,
    path: &str,
    span: Duration,
) -> anyhow::Result<Cost> {
    let (client, server, backup) = (twin.client(side)?, twin.server(side)?, twin.backup(side)?);
    let of_backup = || if backup.is_up() { cpu_us(backup) } else { Ok(0.0) };
    let spent = || anyhow::Ok([cpu_us(server)?, of_backup()?, sleeps(server)?]);
    let mut before = [0.0; 3];
    let served = client.in_netns(|| {
        closed_loop(at, path, 50, Idle::Sleeps, span, || {
            before = spent()?;
            Ok(())
        })
    })??;
    let after = spent()?;
    let requests = served.requests as f64;
    let [primary, backup, sleeps] = [0, 1, 2].map(|i| (after[i] - before[i]) / requests);
    let (rate, clients) = (requests / served.took.as_secs_f64(), served.client_us / requests);
    Ok(Cost { rate, primary, clients, backup, sleeps })
}

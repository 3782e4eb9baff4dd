//! How things change with the number of clients, the length of the replies, the number of
//! transfers: the curves that the papers draw, and the rate of new connections.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::ensure;

use crate::load::{
    Idle, Opened, closed_loop, connect_times, connections, downloads, latencies, uploads,
};
use crate::plan::{Depth, Experiment, Run, head};
use crate::record::{Bar, Section};
use crate::scheme::Scheme;
use crate::sides::{Column, Mbit, Sides};
use crate::stats::percentile;
use crate::twin::{BULKS, SMALL, Side, reply_path};

const MB: u64 = 1_000_000;
/// Clients of the Webstone curve.
const CLIENTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Lengths of the replies of the curves, KiB.
pub const REPLIES_KIB: [usize; 6] = [0, 1, 5, 10, 20, 50];
/// Transfers at a time.
const PARALLEL: [usize; 7] = [2, 4, 8, 16, 32, 64, 128];
/// Of so many new connections one may be reset, which the kernel does: see [`Opened`].
const RESET_IN: u64 = 5_000;
/// Pairs of runs of a curve's point.
const REPETITIONS: usize = 5;

/// All of them. Of `message` the curves are in [`crate::curve`], but for new connections.
pub fn experiments(scheme: Scheme, depth: Depth) -> Vec<Experiment> {
    let full = depth == Depth::Full;
    if scheme == Scheme::Message {
        return if full { vec![new_connections(scheme)] } else { Vec::new() };
    }
    let mut all = Vec::new();
    if full {
        for (link, name) in [(1000, "1 Gbit/s"), (100, "100 Mbit/s")] {
            all.extend(CLIENTS.map(|clients| webstone(scheme, clients, link, name)));
        }
    }
    let replies = REPLIES_KIB.into_iter().filter(|&kib| kib > 0 && (full || kib == 1 || kib == 50));
    all.extend(replies.map(|kib| replies_of(scheme, kib)));
    if full {
        for inward in [true, false] {
            all.extend(PARALLEL.map(|count| parallel(scheme, count, inward)));
        }
    }
    all.push(new_connections(scheme));
    all
}

fn sides(columns: Vec<Column>, link: Mbit, run_s: f64) -> Sides {
    Sides { columns, service: link, cluster: link, repetitions: REPETITIONS, run_s }
}

fn webstone(scheme: Scheme, clients: usize, link: u64, name: &str) -> Experiment {
    let plural = if clients == 1 { "" } else { "s" };
    let title = format!("1 KiB requests, {clients} keep-alive client{plural}, throughput, {name}");
    let id = format!("clients-{clients}-{link}");
    let row = head(scheme, id, Section::Requests, title, "requests/s", Bar::Beside)
        .on(&format!("clients-{link}"), clients as f64);
    sides(vec![Column::Both(row)], Some(link), 0.45).experiment(move |twin, side| {
        let (at, span) = (twin.at(side, false), Duration::from_millis(400));
        let served = twin
            .client(side)?
            .in_netns(|| closed_loop(at, SMALL, clients, Idle::Sleeps, span, || Ok(())))??;
        Ok(vec![served.requests as f64 / served.took.as_secs_f64()])
    })
}

fn replies_of(scheme: Scheme, kib: usize) -> Experiment {
    const LINK: u64 = 100;
    let row = |what: &str, title: String, unit: &str| {
        head(scheme, format!("reply-{kib}k-{what}"), Section::Requests, title, unit, Bar::Beside)
            .on(&format!("reply-{what}"), kib as f64)
    };
    let columns = [
        row("p50", format!("{kib} KiB replies, 1 client, p50, {LINK} Mbit/s"), "µs"),
        row(
            "rate",
            format!("{kib} KiB replies, 16 clients, throughput, {LINK} Mbit/s"),
            "requests/s",
        ),
    ];
    let columns = columns.into_iter().map(Column::Both).collect();
    sides(columns, Some(LINK), 0.65).experiment(move |twin, side| {
        let (at, path) = (twin.at(side, false), reply_path(kib));
        let span = Duration::from_millis(300);
        let (times, served) = twin.client(side)?.in_netns(|| {
            let times = latencies(at, &path, span)?;
            let served = closed_loop(at, &path, 16, Idle::Sleeps, span, || Ok(()))?;
            anyhow::Ok((times, served))
        })??;
        Ok(vec![percentile(&times, 50.0), served.requests as f64 / served.took.as_secs_f64()])
    })
}

fn parallel(scheme: Scheme, count: usize, inward: bool) -> Experiment {
    let way = if inward { "in" } else { "out" };
    let title = format!("{count} bulk transfers {way} at once, together, 1000:1000 Mbit/s");
    let id = format!("parallel-{way}-{count}");
    let row = head(scheme, id, Section::Bulk, title, "Mbit/s", Bar::Beside)
        .on(&format!("parallel-{way}"), count as f64);
    sides(vec![Column::Both(row)], Some(1000), 0.7).experiment(move |twin, side| {
        let (at, span) = (twin.at(side, inward), Duration::from_millis(500));
        let rate = twin.client(side)?.in_netns(|| match inward {
            true => uploads(at, 64 * MB, count),
            false => downloads(at, BULKS[2].path, count, span),
        })??;
        Ok(vec![rate])
    })
}

fn new_connections(scheme: Scheme) -> Experiment {
    let row = |id: &str, title: &str, unit: &str| {
        head(scheme, id, Section::Connections, title, unit, Bar::Beside)
    };
    let columns = [
        row("connect-p50", "connecting, 1 client, p50, 1 Gbit/s", "µs"),
        row("connect-p99", "connecting, 1 client, p99, 1 Gbit/s", "µs"),
        row(
            "connect-rate",
            "connections with one request of 1 KiB each, 16 clients, 1 Gbit/s",
            "connections/s",
        ),
    ];
    let columns = columns.into_iter().map(Column::Both).collect();
    let opened: Rc<[Cell<Opened>; 2]> = Rc::default();
    let counts = Rc::clone(&opened);
    let sides = sides(columns, Some(1000), 0.7);
    let experiment = sides.experiment(move |twin, side| {
        let (at, span) = (twin.at(side, false), Duration::from_millis(300));
        let ((times, alone), (rate, together)) = twin.client(side)?.in_netns(|| {
            anyhow::Ok((connect_times(at, SMALL, span)?, connections(at, SMALL, 16, span)?))
        })??;
        let count = &counts[usize::from(side == Side::Bare)];
        count.set(count.get() + alone + together);
        Ok(vec![percentile(&times, 50.0), percentile(&times, 99.0), rate])
    });
    let measure = experiment.measure;
    let measure = Box::new(move |run: &Run| {
        let mut measured = measure(run)?;
        for (side, opened) in [Side::Protected, Side::Bare].into_iter().zip(&*opened) {
            let Opened { answered, reset } = opened.get();
            ensure!(
                reset * RESET_IN <= answered,
                "{side:?}: {reset} new connections were reset, {answered} were answered"
            );
            measured.more.insert(format!("reset_{side:?}").to_lowercase(), reset.into());
        }
        Ok(measured)
    });
    Experiment { measure, ..experiment }
}

//! CoRAL's curves: what a request costs against the length of its reply, without Steadfast
//! (*standard*), with Steadfast but without a backup (*simplex*), and with all of it (*duplex*).
//! And what becomes of the throughput when more is asked for than can be answered (overload).
//!
//! Each mode is compared with the unprotected server in runs next to each other, so *standard* is
//! the unprotected side of all. For *simplex* the backup's host is dead: it would relay otherwise. For
//! *dual role* there is a pair of its own, of which each node serves one half of the connections.
//!
//! All hosts share this machine's processors: two servers are no faster than one. What two nodes in
//! dual role would answer beside two plain servers follows from what a request costs both of them
//! together, beside what it costs the plain one.
//!
//! The cables are not shaped. A shaped one lets 70 KiB or a millisecond's worth of bytes pass at once
//! when it has been idle. So a single client that asks for 50 KiB again and again would see how fast
//! the cable to it recovers, on either side the same, and not for how long replies were held.

use std::time::Duration;

use demo::config::Roles;

use crate::busy::REPLIES_KIB;
use crate::failover::RETURN_S;
use crate::load::{closed_loop, latencies, offered};
use crate::plan::{Depth, Experiment, head};
use crate::record::{Bar, Section};
use crate::scheme::Scheme;
use crate::sides::{Column, Sides};
use crate::stats::percentile;
use crate::traffic::fifty_clients;
use crate::twin::{SMALL, Side, Twin, reply_path};

const LATENCY_SPAN: Duration = Duration::from_millis(250);
const LOAD_SPAN: Duration = Duration::from_millis(400);
const OFFER_SPAN: Duration = Duration::from_millis(300);
/// What is offered, as multiples of what fifty clients get that ask when they are answered.
const OFFERED: [u32; 3] = [1, 2, 3];
/// Connections that the offered requests are spread over. Those that wait on one of them are far
/// fewer than the thousand at which it would become simplex.
const OFFERED_OVER: usize = 256;

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Primary and backup.
    Duplex,
    /// A primary whose backup is dead.
    Simplex,
    /// Each node is primary of some connections and backup of others.
    DualRole,
}

impl Mode {
    /// All of them, in the order of the lines of a curve.
    pub const ALL: [Mode; 3] = [Mode::Duplex, Mode::Simplex, Mode::DualRole];

    /// How the pair is set up for it.
    fn roles(self) -> Roles {
        match self {
            Mode::Duplex | Mode::Simplex => Roles::Single,
            Mode::DualRole => Roles::Dual,
        }
    }

    /// As the paper calls it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Duplex => "duplex",
            Mode::Simplex => "simplex",
            Mode::DualRole => "dual role",
        }
    }

    /// What the names of its curves end with.
    pub fn suffix(self) -> &'static str {
        match self {
            Mode::Duplex => "",
            Mode::Simplex => "-simplex",
            Mode::DualRole => "-dual-role",
        }
    }
}

/// All of them for a pair with these roles.
pub fn experiments(scheme: Scheme, roles: Roles, depth: Depth) -> Vec<Experiment> {
    if scheme != Scheme::Message {
        return Vec::new();
    }
    let full = depth == Depth::Full;
    let repetitions = if full { 5 } else { 3 };
    let lengths = || REPLIES_KIB.into_iter().filter(|&kib| full || kib == 1 || kib == 50);
    let of = |mode| lengths().map(move |kib| replies(scheme, mode, kib, repetitions));
    let modes = Mode::ALL.into_iter().filter(|mode| mode.roles() == roles);
    let mut all: Vec<_> = modes.flat_map(of).collect();
    if roles == Roles::Single {
        all.push(overload(scheme, repetitions));
    }
    all
}

/// Latency, throughput and processor time with replies of this length.
fn replies(scheme: Scheme, mode: Mode, kib: usize, repetitions: usize) -> Experiment {
    let row = |what: &str, section, title: &str, unit: &str| {
        let id = format!("coral-{kib}k{}-{what}", mode.suffix());
        let title = format!("{kib} KiB replies, {}, {title}", mode.name());
        head(scheme, id, section, title, unit, Bar::Beside)
            .on(&format!("coral-{what}{}", mode.suffix()), kib as f64)
    };
    let nodes = "processor time of all nodes per request, unshaped";
    let mut columns = vec![
        row("p50", Section::Requests, "1 client, p50, unshaped", "µs"),
        row("rate", Section::Requests, "50 clients, throughput, unshaped", "requests/s"),
        row("cpu-nodes", Section::Cost, nodes, "µs"),
    ];
    // In dual role either node is both.
    if mode != Mode::DualRole {
        let primary = "processor time of the primary per request, unshaped";
        columns.push(row("cpu", Section::Cost, primary, "µs"));
    }
    let sides = Sides {
        columns: columns.into_iter().map(Column::Both).collect(),
        service: None,
        cluster: None,
        repetitions,
        run_s: (LATENCY_SPAN + LOAD_SPAN).as_secs_f64() + 0.05,
    };
    let path = reply_path(kib);
    let experiment = sides.experiment(move |twin, side| {
        let at = twin.at(side, false);
        let times = twin.client(side)?.in_netns(|| latencies(at, &path, LATENCY_SPAN))??;
        let cost = fifty_clients(twin, side, &path, LOAD_SPAN)?;
        let nodes = cost.primary + cost.backup;
        let mut figures = vec![percentile(&times, 50.0), cost.rate, nodes];
        if mode != Mode::DualRole {
            figures.push(cost.primary);
        }
        Ok(figures)
    });
    match mode {
        Mode::Simplex => without_backup(experiment),
        _ => experiment,
    }
}

/// The same while the backup's host is dead.
fn without_backup(experiment: Experiment) -> Experiment {
    let Experiment { heads, steps, step_s, measure } = experiment;
    Experiment {
        heads,
        steps,
        step_s: step_s + RETURN_S / steps as f64,
        measure: Box::new(move |run| {
            run.twin.lose_backup()?;
            let measured = measure(run);
            // Whatever went wrong: those that come next need both nodes.
            run.twin.mend()?;
            measured
        }),
    }
}

fn overload(scheme: Scheme, repetitions: usize) -> Experiment {
    let asked = |times: u32| {
        let title = format!(
            "answered when {times} × the peak is asked for (peak: 50 clients; 1 KiB, 1 Gbit/s)"
        );
        let id = format!("overload-{times}");
        head(scheme, id, Section::Requests, title, "requests/s", Bar::Beside)
            .on("overload", f64::from(times))
    };
    let mut rows: Vec<_> = OFFERED.map(asked).into();
    let title = "answered at 3 × the peak ÷ answered at 1 ×".to_owned();
    rows.push(head(scheme, "overload-flat", Section::Requests, title, "×", Bar::Beside));
    let sides = Sides {
        columns: rows.into_iter().map(Column::Both).collect(),
        service: Some(1000),
        cluster: Some(1000),
        repetitions,
        // With the answers that come late.
        run_s: 7.0 * OFFER_SPAN.as_secs_f64(),
    };
    sides.experiment(|twin, side| {
        let answered = twin.client(side)?.in_netns(|| answered(twin, side))??;
        let flat = answered[OFFERED.len() - 1] / answered[0];
        Ok(answered.into_iter().chain([flat]).collect())
    })
}

/// Answers per second at each of [`OFFERED`].
fn answered(twin: &Twin, side: Side) -> anyhow::Result<Vec<f64>> {
    let at = twin.at(side, false);
    let served = closed_loop(at, SMALL, 50, OFFER_SPAN, || Ok(()))?;
    let peak = served.requests as f64 / served.took.as_secs_f64();
    let ask = |times: u32| offered(at, SMALL, OFFERED_OVER, peak * f64::from(times), OFFER_SPAN);
    OFFERED.into_iter().map(ask).collect()
}

//! CoRAL's curves: what a request costs against the length of its reply, without Steadfast
//! (*standard*), with Steadfast but without a backup (*simplex*), and with all of it (*duplex*).
//! And what becomes of the throughput when more is asked for than can be answered (overload).
//!
//! The paper's replies are made by a program, byte for byte with a random function, and take most of a
//! request's time; the same is measured here, with Apache and a program of its own for each request, as
//! there. Replies from files cost next to nothing to make: what is added to them shows most.
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

use std::net::SocketAddr;
use std::time::Duration;

use demo::config::Roles;

use crate::busy::REPLIES_KIB;
use crate::failover::RETURN_S;
use crate::load::{Idle, closed_loop, latencies, offered};
use crate::plan::{Depth, Experiment, head};
use crate::record::{Bar, Section};
use crate::scheme::Scheme;
use crate::sides::{Column, Sides};
use crate::stats::percentile;
use crate::traffic::fifty_clients;
use crate::twin::{SMALL, Side, Twin, made_path, reply_path};

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

/// Where replies come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Files, by nginx.
    Files,
    /// A program, by Apache.
    Program,
}

impl Source {
    /// All of them.
    pub const ALL: [Source; 2] = [Source::Files, Source::Program];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Source::Files => "from files",
            Source::Program => "made by a program",
        }
    }

    /// What the names of its curves have in front of what is measured.
    pub fn infix(self) -> &'static str {
        match self {
            Source::Files => "",
            Source::Program => "made-",
        }
    }

    /// In the full plan, KiB. One that is made takes its time.
    fn lengths(self) -> &'static [usize] {
        match self {
            Source::Files => &REPLIES_KIB,
            Source::Program => &[0, 1, 10, 50],
        }
    }

    fn at(self, twin: &Twin, side: Side) -> SocketAddr {
        match self {
            Source::Files => twin.at(side, false),
            Source::Program => twin.making_at(side),
        }
    }

    fn path(self, kib: usize) -> String {
        match self {
            Source::Files => reply_path(kib),
            Source::Program => made_path(kib),
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
    let mut all = Vec::new();
    for source in Source::ALL {
        let lengths = || source.lengths().iter().filter(|&&kib| full || kib == 1 || kib == 50);
        // The backup's death and return take as long as all else.
        let too_long = |mode| !full && (source, mode) == (Source::Program, Mode::Simplex);
        let modes = Mode::ALL.into_iter().filter(|&mode| mode.roles() == roles && !too_long(mode));
        for mode in modes {
            all.extend(lengths().map(|&kib| replies(scheme, source, mode, kib, repetitions)));
        }
    }
    if roles == Roles::Single {
        all.push(overload(scheme, repetitions));
    }
    all
}

/// Latency, throughput and processor time with replies of this length.
fn replies(
    scheme: Scheme,
    source: Source,
    mode: Mode,
    kib: usize,
    repetitions: usize,
) -> Experiment {
    let (infix, suffix) = (source.infix(), mode.suffix());
    let row = |what: &str, section, title: &str, unit: &str, bar| {
        let id = format!("coral-{infix}{kib}k{suffix}-{what}");
        let title = format!("{kib} KiB replies {}, {}, {title}", source.name(), mode.name());
        head(scheme, id, section, title, unit, bar)
            .on(&format!("coral-{infix}{what}{suffix}"), kib as f64)
    };
    let nodes = "processor time of all nodes per request, unshaped";
    let (requests, beside) = (Section::Requests, Bar::Beside);
    let mut columns = vec![
        row("p50", requests, "1 client, p50, unshaped", "µs", beside),
        row("rate", requests, "50 clients, throughput, unshaped", "requests/s", beside),
        row("cpu-nodes", Section::Cost, nodes, "µs", nodes_bar(source, mode)),
    ];
    // In dual role either node is both.
    if mode != Mode::DualRole {
        let primary = "processor time of the primary per request, unshaped";
        columns.push(row("cpu", Section::Cost, primary, "µs", beside));
    }
    let sides = Sides {
        columns: columns.into_iter().map(Column::Both).collect(),
        service: None,
        cluster: None,
        repetitions,
        run_s: (LATENCY_SPAN + LOAD_SPAN).as_secs_f64() + 0.05,
    };
    let path = source.path(kib);
    let experiment = sides.experiment(move |twin, side| {
        let at = source.at(twin, side);
        let times = twin.client(side)?.in_netns(|| latencies(at, &path, LATENCY_SPAN))??;
        let cost = fifty_clients(twin, side, at, &path, LOAD_SPAN)?;
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

/// Two nodes in dual role should answer four fifths of what two plain servers do, with replies as the
/// paper's.
fn nodes_bar(source: Source, mode: Mode) -> Bar {
    match (source, mode) {
        (Source::Program, Mode::DualRole) => Bar::AtMost(1.0 / 0.8),
        _ => Bar::Beside,
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
            run.on.lose_backup()?;
            let measured = measure(run);
            // Whatever went wrong: those that come next need both nodes.
            run.on.mend()?;
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
    let served = closed_loop(at, SMALL, 50, Idle::Sleeps, OFFER_SPAN, || Ok(()))?;
    let peak = served.requests as f64 / served.took.as_secs_f64();
    let ask = |times: u32| offered(at, SMALL, OFFERED_OVER, peak * f64::from(times), OFFER_SPAN);
    OFFERED.into_iter().map(ask).collect()
}

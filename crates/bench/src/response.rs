//! How long clients wait for replies, without a failure and with one in the middle.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use lab::Kill;
use serde_json::{Map, json};

use crate::failover::{RETURN_S, await_event};
use crate::paced::{Answer, Paced};
use crate::plan::{Depth, Experiment, Measured, head};
use crate::record::{Bar, Graph, Line, Mark, Samples, Section};
use crate::scheme::Scheme;
use crate::stats::{cdf, percentile};
use crate::twin::{SMALL, Side, Twin};

/// Clients, and how often each asks: 1,600 requests a second, far from any bound.
const CLIENTS: usize = 16;
const PAUSE: Duration = Duration::from_millis(10);
const SPAN: Duration = Duration::from_millis(2_500);
/// When the host dies. Of what comes after, a lost SYN alone takes a second: its first
/// retransmission.
const DIES_AFTER: Duration = Duration::from_millis(800);
const LINK_MBIT: u64 = 100;
/// Answers are counted in spans of this length, ms.
const COUNT_MS: f64 = 20.0;
/// Most corners of a curve.
const MOST: usize = 400;

/// All of them.
pub fn experiments(scheme: Scheme, depth: Depth) -> Vec<Experiment> {
    match (scheme, depth) {
        (Scheme::Track, _) => {
            [true, false].map(|keep_alive| responses(scheme, depth, keep_alive)).into()
        }
        (Scheme::Message, Depth::Full) => vec![responses(scheme, depth, true)],
        (Scheme::Message, Depth::Quick) => Vec::new(),
    }
}

fn paced(keep_alive: bool) -> Paced {
    Paced { clients: CLIENTS, pause: PAUSE, span: SPAN, keep_alive }
}

fn responses(scheme: Scheme, depth: Depth, keep_alive: bool) -> Experiment {
    let (prefix, connections) = match keep_alive {
        true => ("response", "a connection each"),
        false => ("response-fresh", "a connection for each request"),
    };
    let repetitions = if depth == Depth::Full { 10 } else { 3 };
    let row = |id: &str, title: &str| {
        let title = format!("{title}; {CLIENTS} clients, {connections}, 1,600 requests/s");
        head(scheme, format!("{prefix}-{id}"), Section::Failover, title, "ms", Bar::Beside)
    };
    let heads = vec![
        row("p50", "response time, p50"),
        row("p99", "response time, p99"),
        row("failure-p50", "response time over 2.5 s with a host death, p50"),
        row("failure-p99", "response time over 2.5 s with a host death, p99"),
        row("failure-max", "response time over 2.5 s with a host death, longest"),
    ];
    let id = heads[0].id.clone();
    let measure = move |run: &crate::plan::Run| {
        run.on.shape(Some(LINK_MBIT), Some(LINK_MBIT))?;
        let mut calm = [Vec::new(), Vec::new()];
        let mut failed = Ok(Vec::new());
        for round in 0..repetitions {
            let mut order = [Side::Protected, Side::Bare];
            if round % 2 == 1 {
                order.reverse();
            }
            run.on.mend()?;
            for side in order {
                calm[usize::from(side == Side::Bare)].push(ask(run.on, side, paced(keep_alive))?);
                run.step();
            }
            // What goes wrong in a failure does not spoil the times without one.
            failed = failed.and_then(|mut runs: Vec<Failed>| {
                runs.push(ask_through_death(run.on, paced(keep_alive))?);
                Ok(runs)
            });
            run.step();
        }
        let of = |runs: &[Vec<f64>], percent| -> Vec<f64> {
            runs.iter().map(|times| percentile(times, percent)).collect()
        };
        let pairs = |percent| Samples::Pairs {
            protected: of(&calm[0], percent),
            bare: of(&calm[1], percent),
        };
        let why = failed.as_ref().err().map(|e: &anyhow::Error| format!("{e:#}"));
        let failed = failed.unwrap_or_default();
        let times: Vec<_> = failed.iter().map(Failed::times_ms).collect();
        let with = |percent| match &why {
            Some(why) => Samples::Failed(why.clone()),
            None => Samples::Alone { values: of(&times, percent), percentile: 50 },
        };
        let samples = vec![pairs(50.0), pairs(99.0), with(50.0), with(99.0), with(100.0)];
        let mut graphs = vec![distribution(&id, connections, &calm, &times)];
        graphs.extend(failed.last().map(|last| counted(&id, connections, last)));
        let more = Map::from_iter([(
            "requests".to_owned(),
            json!(times.iter().map(Vec::len).sum::<usize>()),
        )]);
        Ok(Measured { samples, more, graphs })
    };
    Experiment {
        heads,
        steps: 3 * repetitions,
        step_s: SPAN.as_secs_f64() + RETURN_S / 3.0,
        measure: Box::new(measure),
    }
}

/// Response times without a failure, ms.
fn ask(twin: &Twin, side: Side, paced: Paced) -> anyhow::Result<Vec<f64>> {
    let at = twin.at(side, false);
    let client = twin.client(side)?;
    let answers = client.in_netns(|| paced.run(at, SMALL, || Ok(())))??;
    Ok(answers.iter().map(time_ms).collect())
}

/// Answers around a host's death.
struct Failed {
    answers: Vec<Answer>,
    killed_ns: u64,
}

fn ask_through_death(twin: &Twin, paced: Paced) -> anyhow::Result<Failed> {
    let victim = twin.mend()?;
    let at = twin.at(Side::Protected, false);
    let client = twin.client(Side::Protected)?;
    let (started, starts) = mpsc::channel();
    let (answers, killed_ns) = thread::scope(|scope| {
        let clients = scope.spawn(move || {
            client.in_netns(|| {
                paced.run(at, SMALL, || started.send(()).context("nobody waits for the clients"))
            })
        });
        // An end without a start is an error of the clients, which is told below.
        let killed = starts.recv().ok().map(|()| {
            thread::sleep(DIES_AFTER); // a time of the run, like the requests' own
            twin.pair.kill(victim, &Kill::Host)
        });
        let answers = clients.join().expect("clients do not panic")??;
        anyhow::Ok((answers, killed.context("the clients did not start")??))
    })?;
    await_event(twin, demo::pair::other(victim), "promoted", killed_ns)?;
    twin.pair.bring_back(victim)?;
    Ok(Failed { answers, killed_ns })
}

impl Failed {
    fn times_ms(&self) -> Vec<f64> {
        self.answers.iter().map(time_ms).collect()
    }

    /// Answers per second over the time since the death, ms.
    fn rates(&self) -> Vec<[f64; 2]> {
        let at = |a: &Answer| (a.done_ns as f64 - self.killed_ns as f64) / 1e6;
        let [before_ms, all_ms] = [DIES_AFTER, SPAN].map(|d| d.as_secs_f64() * 1e3);
        let spans = (0..).map(|i| COUNT_MS * f64::from(i) - before_ms + 2.0 * COUNT_MS);
        spans
            .take_while(|from| *from < all_ms - before_ms - 3.0 * COUNT_MS)
            .map(|from| {
                let inside = |a: &&Answer| (from..from + COUNT_MS).contains(&at(a));
                let count = self.answers.iter().filter(inside).count();
                [from + COUNT_MS / 2.0, count as f64 * 1e3 / COUNT_MS]
            })
            .collect()
    }
}

fn time_ms(answer: &Answer) -> f64 {
    (answer.done_ns - answer.due_ns) as f64 / 1e6
}

fn distribution(
    row: &str,
    connections: &str,
    calm: &[Vec<Vec<f64>>; 2],
    failed: &[Vec<f64>],
) -> Graph {
    let line = |name: &str, runs: &[Vec<f64>]| Line {
        name: name.to_owned(),
        points: cdf(&runs.concat(), MOST),
    };
    Graph {
        row: row.to_owned(),
        title: format!("Response times, {connections}"),
        x: "ms".to_owned(),
        y: "share of the requests".to_owned(),
        log_x: true,
        lines: [
            line("unprotected", &calm[1]),
            line("protected", &calm[0]),
            line("protected, a host dies", failed),
        ]
        .into_iter()
        .filter(|line| !line.points.is_empty())
        .collect(),
        marks: Vec::new(),
    }
}

fn counted(row: &str, connections: &str, failed: &Failed) -> Graph {
    Graph {
        row: row.to_owned(),
        title: format!("Answers around a host's death, {connections}"),
        x: "ms after the host's death".to_owned(),
        y: "answers per second".to_owned(),
        log_x: false,
        lines: vec![Line {
            name: "16 clients, 1,600 requests/s".to_owned(),
            points: failed.rates(),
        }],
        marks: vec![Mark { x: 0.0, name: "host dies".to_owned() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_where_they_came() {
        let ms = 1_000_000;
        let answer = |at: u64| Answer { due_ns: (at - 1) * ms, done_ns: at * ms };
        let answers = (5_000..8_000).filter(|at| !(6_000..6_100).contains(at)).map(answer);
        let failed = Failed { answers: answers.collect(), killed_ns: 6_000 * ms };
        let rates = failed.rates();
        let at = |ms: f64| rates.iter().find(|p| (p[0] - ms).abs() < 10.0).unwrap()[1];
        assert_eq!((at(-50.0), at(50.0), at(150.0)), (1_000.0, 0.0, 1_000.0));
        assert!(rates.iter().all(|p| (-800.0..1_700.0).contains(&p[0])));
        assert!(failed.times_ms().iter().all(|&t| (t - 1.0).abs() < 1e-9));
    }
}

//! What the in-process runtime costs a server, beside tools that watch one from outside.
//!
//! Two hosts have the same server: one by itself, the other under what is measured. Both are up for
//! all runs of a row, so that these can alternate within a second; one rests while the other is asked.

use serde_json::{Map, json};

use crate::hosts::{Hosts, Seen, Server, Under};
use crate::plan::{Depth, Experiment, Measured, head};
use crate::record::{Bar, Head, Samples, Section};
use crate::sides::{in_turn, samples};
use crate::stats::percentile;
use crate::subject::Subject;

/// Records that a request may take, bytes.
const REDIS_BYTES: Bar = Bar::AtMost(100.0);
/// The hosts come up and go, the servers start, s.
const HOSTS_S: f64 = 1.0;

/// All of them.
pub fn experiments(depth: Depth) -> Vec<Experiment<()>> {
    let full = depth == Depth::Full;
    let measured = |under: &Under| full || bar(*under) != Bar::Beside;
    let repetitions = |under| match (full, bar(under)) {
        (false, _) => 5,
        (true, Bar::Beside) => 7,
        (true, _) => 15,
    };
    let of = |server| {
        let all = Under::ALL.into_iter().filter(measured);
        all.map(move |under| experiment(server, under, repetitions(under)))
    };
    Server::ALL.into_iter().flat_map(of).collect()
}

/// Processor time of a request, under it ÷ by itself.
fn bar(under: Under) -> Bar {
    match under {
        Under::Passthrough => Bar::AtMost(1.05),
        Under::Record => Bar::AtMost(1.15),
        Under::Strace | Under::Rr => Bar::Beside,
    }
}

fn rows(server: Server, under: Under) -> Vec<Head> {
    let row = |what: &str, title: &str, unit: &str, bar| {
        let id = format!("{}-{}{what}", server.id(), under.id());
        let title = format!("{}, 50 clients, {}: {title}", server.name(), under.name());
        head(Subject::Runtime, id, Section::Runtime, title, unit, bar)
    };
    let mut rows = vec![row("", "processor time per request", "µs", bar(under))];
    if under == Under::Record {
        let bar = if server == Server::Redis { REDIS_BYTES } else { Bar::Beside };
        rows.push(row("-bytes", "length of the recording per request", "bytes", bar));
    }
    rows
}

fn experiment(server: Server, under: Under, repetitions: usize) -> Experiment<()> {
    let heads = rows(server, under);
    let columns = heads.len();
    let steps = 2 * (repetitions + 1);
    Experiment {
        heads,
        steps,
        step_s: server.run_s() + HOSTS_S / steps as f64,
        measure: Box::new(move |run| {
            let mut hosts = Hosts::up(server, under)?;
            if let Some(why) = hosts.unable()? {
                let samples = vec![Samples::Unable(why); columns];
                return Ok(Measured { samples, ..Measured::default() });
            }
            hosts.serve()?;
            let on_a_side = |side| {
                let Seen { cpu_us, recorded_bytes, rate } = hosts.run(side)?;
                run.step();
                Ok(vec![cpu_us, recorded_bytes, rate])
            };
            let figures = in_turn(repetitions, on_a_side, || Ok(true))?;
            let samples = samples(&figures, &[true, false][..columns]);
            let rates = figures.map(|runs| runs.iter().map(|run| run[2]).collect::<Vec<_>>());
            let [under_it, by_itself] = rates.map(|rates| percentile(&rates, 50.0));
            let rates = json!({"under_it": under_it, "by_itself": by_itself});
            let more = Map::from_iter([("requests_per_s".to_owned(), rates)]);
            Ok(Measured { samples, more, graphs: Vec::new() })
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(depth: Depth) -> Vec<String> {
        experiments(depth).into_iter().flat_map(|e| e.heads).map(|head| head.id).collect()
    }

    #[test]
    fn the_bars_are_in_the_quick_run_and_other_tools_in_the_full_one() {
        let quick = ["passthrough", "record", "record-bytes"];
        let names = |server: &str| quick.map(|what| format!("runtime-{server}-{what}"));
        assert_eq!(ids(Depth::Quick), [names("redis"), names("nginx")].concat());
        let full = ids(Depth::Full);
        assert_eq!(full.len(), 10);
        assert!(full.contains(&"runtime-redis-strace".to_owned()), "{full:?}");
        assert!(full.contains(&"runtime-nginx-rr".to_owned()), "{full:?}");
    }

    #[test]
    fn only_the_length_of_a_recording_has_no_other_side() {
        for experiment in experiments(Depth::Full) {
            let units: Vec<_> = experiment.heads.iter().map(|head| head.unit.as_str()).collect();
            assert!(units == ["µs"] || units == ["µs", "bytes"], "{units:?}");
        }
    }
}

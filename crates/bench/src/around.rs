//! A download through its host's death, looked at closely: where the time goes, and how fast it
//! is before and after.
//!
//! The client's cable is captured. What the survivor does between its promotion and the client's
//! first new byte shows there: the acknowledgement with which the flow opens ends birth and
//! replay, and the first new byte ends the server's own work. The survivor's `all_open` event
//! would not do; it comes as late as the log is read.

use anyhow::Context;
use demo::clock::ms_between;
use lab::CaptureOptions;
use serde_json::Map;

use crate::failover::{RETURN_S, Survived, Work, survive};
use crate::plan::{Depth, Experiment, Measured, head};
use crate::record::{Bar, Graph, Line, Mark, Samples, Section};
use crate::scheme::Scheme;
use crate::twin::Twin;
use crate::wire::{Segment, outstream};

const MB: u64 = 1_000_000;
/// Where the host dies, and how much comes afterwards: half a second and a second.
const DELIVERED: [u64; 2] = [8 * MB, 16 * MB];
const LINK_MBIT: u64 = 100;
/// What the graphs show around the death, ms.
const SEQUENCE_MS: [f64; 2] = [-60.0, 240.0];
const RATE_MS: [f64; 2] = [-400.0, 1200.0];
/// Throughput is counted in spans of this length, ms.
const SPAN_MS: f64 = 20.0;
/// Most points of a line.
const MOST: f64 = 600.0;

/// All of them. What is looked at is a reply that is made again: `track` shows it.
pub fn experiments(scheme: Scheme, depth: Depth) -> Vec<Experiment> {
    if scheme == Scheme::Message {
        return Vec::new();
    }
    let repetitions = if depth == Depth::Full { 15 } else { 5 };
    let row = |id: &str, title: &str, unit: &str| {
        head(scheme, id, Section::Failover, title, unit, Bar::Beside)
    };
    let stages = [
        row("stage-detection", "host death to suspicion", "ms"),
        row("stage-promotion", "suspicion to promotion", "ms"),
        row("stage-adoption", "promotion to open flow: birth and replay", "ms"),
        row("stage-reply", "open flow to first new byte on the client's cable", "ms"),
        row("stage-delivery", "first new byte on the cable to the client's program", "ms"),
    ];
    let mut heads = stages.to_vec();
    heads.push(row(
        "after-failure",
        "throughput of a download after its host's death ÷ before, 100 Mbit/s",
        "×",
    ));
    let id = heads[0].id.clone();
    vec![Experiment {
        heads,
        steps: repetitions,
        step_s: RETURN_S + 3.0,
        measure: Box::new(move |run| {
            run.on.shape(Some(LINK_MBIT), Some(LINK_MBIT))?;
            let mut seen = Vec::new();
            for _ in 0..repetitions {
                seen.push(look(run.on)?);
                run.step();
            }
            let column = |of: &dyn Fn(&Seen) -> f64| Samples::Alone {
                values: seen.iter().map(of).collect(),
                percentile: 50,
            };
            let mut samples: Vec<_> =
                (0..stages.len()).map(|stage| column(&|s| s.stages_ms()[stage])).collect();
            samples.push(column(&Seen::after_to_before));
            let graphs = seen.last().map(|s| s.graphs(&id)).unwrap_or_default();
            Ok(Measured { samples, more: Map::new(), graphs })
        }),
    }]
}

/// One failover.
struct Seen {
    survived: Survived,
    segments: Vec<Segment>,
    /// Where the dead host's stream ends at the client.
    had: u32,
    /// The survivor's first segment to the client, and the first with a byte that it lacks.
    opened: Segment,
    new: Segment,
}

fn look(twin: &Twin) -> anyhow::Result<Seen> {
    let capture = twin.pair.lab.capture("client.svc", CaptureOptions::default())?;
    let path = capture.path().to_owned();
    let survived = survive(twin, Work::Download, DELIVERED[0], DELIVERED[1]);
    capture.stop()?;
    let read = survived.and_then(|survived| {
        let segments = outstream(&path, survived.port)?;
        Seen::of(survived, segments)
    });
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    read
}

impl Seen {
    fn of(survived: Survived, segments: Vec<Segment>) -> anyhow::Result<Seen> {
        // What the dead host sent and the switch still held has long arrived by then.
        let (dead, alive): (Vec<Segment>, Vec<Segment>) =
            segments.iter().partition(|s| s.at_ns < survived.promoted_ns);
        let had = dead.iter().map(Segment::end).max().context("nothing came before the death")?;
        let opened = *alive.first().context("nothing came after the promotion")?;
        let new = *alive.iter().find(|s| s.end() > had).context("no new byte came")?;
        Ok(Seen { survived, segments, had, opened, new })
    }

    /// The parts of the time from the host's death to the client's next byte.
    fn stages_ms(&self) -> [f64; 5] {
        let Survived { killed_ns, suspected_ns, promoted_ns, stall, .. } = &self.survived;
        let ends = [
            *killed_ns,
            *suspected_ns,
            *promoted_ns,
            self.opened.at_ns,
            self.new.at_ns,
            stall.to_ns,
        ];
        std::array::from_fn(|i| ms_between(ends[i], ends[i + 1]))
    }

    /// When it was there, ms after the death.
    fn at_ms(&self, segment: &Segment) -> f64 {
        (segment.at_ns as f64 - self.survived.killed_ns as f64) / 1e6
    }

    fn after_to_before(&self) -> f64 {
        let before = self.rate(RATE_MS[0], 0.0);
        let from = self.at_ms(&self.new);
        let to = self.segments.last().map_or(from, |last| self.at_ms(last));
        self.rate(from, to) / before
    }

    /// Mbit/s of payload in this span.
    fn rate(&self, from_ms: f64, to_ms: f64) -> f64 {
        let inside = |s: &&Segment| (from_ms..to_ms).contains(&self.at_ms(s));
        let bytes: f64 = self.segments.iter().filter(inside).map(|s| f64::from(s.len)).sum();
        bytes * 8e-3 / (to_ms - from_ms)
    }

    fn graphs(&self, row: &str) -> Vec<Graph> {
        let mark = |x: f64, name: &str| Mark { x, name: name.to_owned() };
        let [detection, promotion, ..] = self.stages_ms();
        let marks = vec![
            mark(0.0, "host dies"),
            mark(detection, "suspected"),
            mark(detection + promotion, "promoted"),
        ];
        let graph = |title: &str, y: &str, points| Graph {
            row: row.to_owned(),
            title: title.to_owned(),
            x: "ms after the host's death".to_owned(),
            y: y.to_owned(),
            log_x: false,
            lines: vec![Line { name: "download, 100 Mbit/s".to_owned(), points }],
            marks: marks.clone(),
        };
        vec![
            graph("Sequence number against time", "MB after the last byte before", self.sequence()),
            graph("Throughput before and after", "Mbit/s of payload", self.rates()),
        ]
    }

    fn sequence(&self) -> Vec<[f64; 2]> {
        let had = f64::from(self.had);
        let points =
            self.segments.iter().map(|s| [self.at_ms(s), (f64::from(s.end()) - had) / 1e6]);
        let shown = points.filter(|[ms, _]| (SEQUENCE_MS[0]..SEQUENCE_MS[1]).contains(ms));
        thin(shown, (SEQUENCE_MS[1] - SEQUENCE_MS[0]) / MOST)
    }

    fn rates(&self) -> Vec<[f64; 2]> {
        let last = self.segments.last().map_or(0.0, |last| self.at_ms(last));
        let first = self.segments.first().map_or(0.0, |first| self.at_ms(first));
        let spans = (0..).map(|i| RATE_MS[0] + SPAN_MS * f64::from(i));
        spans
            .take_while(|from| from + SPAN_MS <= RATE_MS[1].min(last))
            .filter(|&from| from >= first)
            .map(|from| [from + SPAN_MS / 2.0, self.rate(from, from + SPAN_MS)])
            .collect()
    }
}

/// Only points that are at least `step` apart; the first after a pause is always kept.
fn thin(points: impl Iterator<Item = [f64; 2]>, step: f64) -> Vec<[f64; 2]> {
    let mut kept: Vec<[f64; 2]> = Vec::new();
    for point in points {
        if kept.last().is_none_or(|last| point[0] - last[0] >= step) {
            kept.push(point);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use demo::download::Stall;

    use super::*;

    const MS: u64 = 1_000_000;

    /// 1,000 bytes a millisecond from 0 to 500 ms, and again from 620 ms; the host dies at 500.
    fn seen() -> Seen {
        let segment = |ms: u64, offset: u32, len| Segment { at_ns: ms * MS, offset, len };
        let mut segments: Vec<_> =
            (0..500).map(|ms| segment(u64::from(ms), ms * 1000, 1000)).collect();
        segments.push(segment(615, 490_000, 0));
        segments.push(segment(617, 490_000, 1000));
        segments.extend((0..500).map(|ms| segment(u64::from(ms) + 620, (500 + ms) * 1000, 1000)));
        let survived = Survived {
            killed_ns: 500 * MS,
            stall: Stall { from_ns: 499 * MS, to_ns: 621 * MS },
            suspected_ns: 600 * MS,
            promoted_ns: 610 * MS,
            port: 1,
        };
        Seen::of(survived, segments).unwrap()
    }

    #[test]
    fn the_stages_end_where_the_cable_says() {
        assert_eq!(seen().stages_ms(), [100.0, 10.0, 5.0, 5.0, 1.0]);
    }

    #[test]
    fn throughput_is_compared_without_the_pause() {
        let ratio = seen().after_to_before();
        assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
    }

    #[test]
    fn graphs_show_the_pause() {
        let [sequence, rates] = &seen().graphs("x")[..] else { panic!("two graphs") };
        let quiet = sequence.lines[0].points.windows(2).map(|w| w[1][0] - w[0][0]);
        assert!((quiet.fold(0.0, f64::max) - 116.0).abs() < 1.0, "from 499 to 615 ms");
        let none = rates.lines[0].points.iter().filter(|p| p[1] == 0.0).count();
        assert_eq!(none, 5, "100 ms without a byte, in spans of 20: {rates:?}");
        assert_eq!(sequence.marks[2].x, 110.0);
    }
}

//! What was measured, and what it says about a bar.
//!
//! Protected and unprotected runs alternate, so each repetition is a pair that met the same
//! weather; the ratio is taken within the pair, and the median over pairs. A median alone would
//! hide that the next run might say the opposite: if the bar lies between the quartiles of the
//! ratios, the verdict says that the noise is larger than the difference.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::stats::{Spread, percentile};
use crate::subject::Subject;

/// One run of the benchmark. The pages are made from this and nothing else.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// When it began, RFC 3339.
    pub time: String,
    /// The command that repeats it.
    pub command: String,
    /// Commit, with `+` if the sources differed from it.
    pub commit: String,
    /// Kernel release.
    pub kernel: String,
    /// Processors and memory.
    pub machine: String,
    /// Processes that were running or ready, one-minute mean, at the start and at the end.
    pub load: [f64; 2],
    /// How long it took, s.
    pub took_s: f64,
    /// The rows, in order.
    pub rows: Vec<Row>,
    /// What single runs looked like.
    pub graphs: Vec<Graph>,
}

/// What a row is about; known before it is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Its name for `--only`.
    pub id: String,
    /// Whose row it is. In the figures of earlier runs, always a scheme's.
    #[serde(alias = "scheme")]
    pub subject: Subject,
    /// The table it stands in.
    pub section: Section,
    /// What is measured.
    pub title: String,
    /// Unit of the samples.
    pub unit: String,
    /// What it should be.
    pub bar: Bar,
    /// The curve that it is a point of.
    pub point: Option<Point>,
}

/// One bar, or one figure without a bar.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What it is about.
    #[serde(flatten)]
    pub head: Head,
    /// What it is.
    pub samples: Samples,
    /// Whatever else was seen, for people who look into the JSON. Rows that are measured
    /// together have it once, in the first of them.
    pub more: Map<String, Value>,
}

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Large transfers.
    Bulk,
    /// Requests and their replies.
    Requests,
    /// Connections that begin and end, many at a time.
    Connections,
    /// Processor time and memory.
    Cost,
    /// Hosts die.
    Failover,
    /// Servers under the in-process runtime.
    Runtime,
}

impl Section {
    /// In the order of the report.
    pub const ALL: [Section; 6] = [
        Section::Bulk,
        Section::Requests,
        Section::Connections,
        Section::Cost,
        Section::Failover,
        Section::Runtime,
    ];

    /// Its heading.
    pub fn title(self) -> &'static str {
        match self {
            Section::Bulk => "Bulk transfers",
            Section::Requests => "Requests",
            Section::Connections => "Connections",
            Section::Cost => "Processor time and memory",
            Section::Failover => "Failover",
            Section::Runtime => "Processor time, and length of a recording",
        }
    }
}

/// Where on which curve a row lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The curve.
    pub curve: String,
    /// Clients, connections, bytes: the curve says what.
    pub x: f64,
}

/// What a row should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// No less than.
    AtLeast(f64),
    /// No more than.
    AtMost(f64),
    /// Only reported.
    Beside,
}

/// What a row is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Samples {
    /// Interleaved pairs; the bar is for protected ÷ bare.
    Pairs {
        /// With Steadfast, or with what it is compared with.
        protected: Vec<f64>,
        /// Without.
        bare: Vec<f64>,
    },
    /// Measurements that have no unprotected counterpart; the bar is for this percentile.
    Alone {
        /// All of them.
        values: Vec<f64>,
        /// 50, 99, 100.
        percentile: u8,
    },
    /// It could not be measured, and why.
    Failed(String),
    /// It cannot be measured on this machine, and why; no failure.
    Unable(String),
}

/// Lines in a coordinate system, drawn as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// The row that it belongs to.
    pub row: String,
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: String,
    /// The vertical axis.
    pub y: String,
    /// Whether the horizontal axis is logarithmic.
    pub log_x: bool,
    /// The lines.
    pub lines: Vec<Line>,
    /// Instants on the horizontal axis.
    pub marks: Vec<Mark>,
}

/// A line of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What it stands for.
    pub name: String,
    /// From left to right.
    pub points: Vec<[f64; 2]>,
}

/// A vertical mark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Where.
    pub x: f64,
    /// What happened.
    pub name: String,
}

/// What a row says about its bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// At the bar or better.
    Met,
    /// Worse by so much, in the bar's unit.
    Missed(f64),
    /// The bar lies within the noise.
    Noise {
        /// What the median alone would say.
        met: bool,
    },
    /// There is no bar, and the two sides differ, or there is only one.
    Reported,
    /// There is no bar, and the noise is larger than the difference between the sides.
    Alike,
    /// There is no measurement.
    Failed,
    /// There is none, and on this machine there cannot be.
    Unable,
}

impl Samples {
    /// What the bar is compared with: the ratios of the pairs, or the values.
    pub fn judged(&self) -> Vec<f64> {
        match self {
            Samples::Pairs { protected, bare } => {
                protected.iter().zip(bare).map(|(p, b)| p / b).collect()
            }
            Samples::Alone { values, .. } => values.clone(),
            Samples::Failed(_) | Samples::Unable(_) => Vec::new(),
        }
    }
}

impl Row {
    /// The figure that is held against the bar.
    pub fn figure(&self) -> Option<f64> {
        let judged = self.samples.judged();
        let percent = match self.samples {
            Samples::Alone { percentile, .. } => f64::from(percentile),
            _ => 50.0,
        };
        (!judged.is_empty()).then(|| percentile(&judged, percent))
    }

    /// What it says about the bar.
    pub fn verdict(&self) -> Verdict {
        let Some(figure) = self.figure() else {
            return match self.samples {
                Samples::Unable(_) => Verdict::Unable,
                _ => Verdict::Failed,
            };
        };
        let open = |value| match self.samples {
            Samples::Pairs { .. } => Spread::of(&self.samples.judged()).leaves_open(value),
            _ => false,
        };
        let (worse_by, bar) = match self.head.bar {
            Bar::AtLeast(bar) => (bar - figure, bar),
            Bar::AtMost(bar) => (figure - bar, bar),
            Bar::Beside if open(1.0) => return Verdict::Alike,
            Bar::Beside => return Verdict::Reported,
        };
        let met = worse_by <= 0.0;
        match () {
            () if open(bar) => Verdict::Noise { met },
            () if met => Verdict::Met,
            () => Verdict::Missed(worse_by),
        }
    }
}

impl Record {
    /// The row of that name.
    pub fn row(&self, id: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.head.id == id)
    }

    /// The names of all curves, in order.
    pub fn curves(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            let Some(point) = &row.head.point else { continue };
            if !names.contains(&point.curve.as_str()) {
                names.push(&point.curve);
            }
        }
        names
    }

    /// The rows that could not be measured.
    pub fn failed(&self) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.verdict() == Verdict::Failed).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::scheme::Scheme;

    pub(crate) fn head(id: &str, bar: Bar) -> Head {
        Head {
            id: id.into(),
            subject: Scheme::Track.into(),
            section: Section::Requests,
            title: format!("the row {id}"),
            unit: "ms".into(),
            bar,
            point: None,
        }
    }

    fn verdict(bar: Bar, samples: Samples) -> Verdict {
        Row { head: head("x", bar), samples, more: Map::new() }.verdict()
    }

    fn pairs(protected: &[f64]) -> Samples {
        let bare = vec![100.0; protected.len()];
        Samples::Pairs { protected: protected.to_vec(), bare }
    }

    #[test]
    fn a_bar_between_the_quartiles_is_not_decided() {
        let clear = pairs(&[99.5, 99.6, 99.7, 99.8, 99.9]);
        assert_eq!(verdict(Bar::AtLeast(0.99), clear), Verdict::Met);
        let noisy = pairs(&[90.0, 95.0, 99.5, 101.0, 110.0]);
        assert_eq!(verdict(Bar::AtLeast(0.99), noisy.clone()), Verdict::Noise { met: true });
        assert_eq!(verdict(Bar::AtMost(0.99), noisy), Verdict::Noise { met: false });
        let bad = pairs(&[90.0, 90.0, 90.0]);
        let Verdict::Missed(by) = verdict(Bar::AtLeast(0.99), bad) else { panic!("not missed") };
        assert!((by - 0.09).abs() < 1e-9);
    }

    #[test]
    fn without_a_bar_the_sides_differ_or_they_do_not() {
        assert_eq!(verdict(Bar::Beside, pairs(&[90.0, 99.0, 103.0, 120.0])), Verdict::Alike);
        assert_eq!(verdict(Bar::Beside, pairs(&[80.0, 81.0, 82.0, 83.0])), Verdict::Reported);
        let alone = Samples::Alone { values: vec![0.5, 1.0, 1.5, 2.0], percentile: 50 };
        assert_eq!(verdict(Bar::Beside, alone), Verdict::Reported);
    }

    #[test]
    fn the_percentile_that_the_bar_is_for_decides() {
        let mut values = vec![1.0; 19];
        values.push(30.0);
        let alone = |percentile| Samples::Alone { values: values.clone(), percentile };
        assert_eq!(verdict(Bar::AtMost(20.0), alone(50)), Verdict::Met);
        assert_eq!(verdict(Bar::AtMost(20.0), alone(99)), Verdict::Missed(10.0));
    }

    #[test]
    fn what_failed_is_neither_met_nor_missed() {
        let failed = Samples::Failed("no".into());
        assert_eq!(verdict(Bar::AtMost(1.0), failed), Verdict::Failed);
        let unable = Samples::Unable("no".into());
        assert_eq!(verdict(Bar::AtMost(1.0), unable), Verdict::Unable, "nobody's fault");
    }
}

//! What was measured, and what it says about a bar.
//!
//! Protected and unprotected runs alternate, so each repetition is a pair that met the same
//! weather; the ratio is taken within the pair, and the median over pairs. A median alone would
//! hide that the next run might say the opposite: if the bar lies between the quartiles of the
//! ratios, the verdict says that the noise is larger than the difference.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One run of the benchmark. The page is made from this and nothing else.
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
}

/// One bar, or one figure without a bar.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name for `--only`.
    pub id: String,
    /// What is measured.
    pub title: String,
    /// Unit of the samples.
    pub unit: String,
    /// What it should be.
    pub bar: Bar,
    /// What it is.
    pub samples: Samples,
    /// Whatever else was seen, for people who look into the JSON.
    pub more: Map<String, Value>,
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
        /// With Steadfast.
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
    /// It could not be measured.
    Failed(String),
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
    /// There is no bar.
    Reported,
    /// There is no measurement.
    Failed,
}

/// Median and quartiles, and the extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// A quarter is smaller.
    pub q1: f64,
    /// Half is smaller.
    pub median: f64,
    /// A quarter is larger.
    pub q3: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: &[f64]) -> Spread {
        let at = |percent| percentile(values, percent);
        Spread { min: at(0.0), q1: at(25.0), median: at(50.0), q3: at(75.0), max: at(100.0) }
    }
}

/// The smallest value that at least `percent` of all do not exceed (nearest rank); the mean of
/// the middle two for the median of an even number.
pub fn percentile(values: &[f64], percent: f64) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if percent == 50.0 && n.is_multiple_of(2) {
        return f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]);
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to n
    let rank = (percent / 100.0 * n as f64).ceil() as usize;
    sorted[rank.clamp(1, n) - 1]
}

impl Samples {
    /// What the bar is compared with: the ratios of the pairs, or the values.
    pub fn judged(&self) -> Vec<f64> {
        match self {
            Samples::Pairs { protected, bare } => {
                protected.iter().zip(bare).map(|(p, b)| p / b).collect()
            }
            Samples::Alone { values, .. } => values.clone(),
            Samples::Failed(_) => Vec::new(),
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
        let Some(figure) = self.figure() else { return Verdict::Failed };
        let (worse_by, bar) = match self.bar {
            Bar::AtLeast(bar) => (bar - figure, bar),
            Bar::AtMost(bar) => (figure - bar, bar),
            Bar::Beside => return Verdict::Reported,
        };
        let met = worse_by <= 0.0;
        if let Samples::Pairs { .. } = self.samples {
            let spread = Spread::of(&self.samples.judged());
            if spread.q1 < bar && bar < spread.q3 {
                return Verdict::Noise { met };
            }
        }
        if met { Verdict::Met } else { Verdict::Missed(worse_by) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(bar: Bar, samples: Samples) -> Verdict {
        let (id, title, unit) = ("x".into(), "x".into(), "x".into());
        Row { id, title, unit, bar, samples, more: Map::new() }.verdict()
    }

    fn pairs(protected: &[f64]) -> Samples {
        let bare = vec![100.0; protected.len()];
        Samples::Pairs { protected: protected.to_vec(), bare }
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 99.0), 99.0);
        assert_eq!(percentile(&hundred, 50.0), 50.5);
        assert_eq!(percentile(&[3.0, 1.0, 2.0], 50.0), 2.0);
        assert_eq!((percentile(&[4.0], 0.0), percentile(&[4.0], 100.0)), (4.0, 4.0));
        assert_eq!(percentile(&[1.0; 20], 99.0), 1.0);
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
    }
}

//! How figures, bars and verdicts are spelled on every page.

use crate::record::{Bar, Row, Samples, Verdict};
use crate::stats::{Spread, percentile};
use crate::subject::Subject;

/// What stands above the rows of a subject: words, and a name behind them if it has one.
pub fn heading(subject: Subject) -> (&'static str, &'static str) {
    match subject {
        Subject::Scheme(scheme) => ("Scheme", scheme.name()),
        Subject::Runtime => ("Servers under the in-process runtime", ""),
    }
}

/// What the columns of a subject's tables mean.
pub fn compared_how(subject: Subject) -> &'static str {
    match subject {
        Subject::Scheme(_) => {
            "Side by side with the same server unprotected, runs alternate. Each ratio is \
             protected ÷ unprotected of two runs next to each other; the median of the ratios is \
             held against the bar. Within noise: the bar (without a bar, 1) lies between the \
             quartiles of the ratios, so this run does not decide. In a failover a host dies, \
             links and processes at one instant; beyond detection counts from the survivor's \
             suspicion."
        }
        Subject::Runtime => {
            "Side by side with the same server by itself, runs alternate. Each ratio is under it ÷ \
             by itself of two runs next to each other, where \"it\" is what the row names: the \
             runtime in pass-through, the runtime that records, or a tool that watches from \
             outside. The median of the ratios is held against the bar. Within noise: the bar \
             (without a bar, 1) lies between the quartiles of the ratios, so this run does not \
             decide."
        }
    }
}

/// What stands above the figures in which a subject's rows are beside others.
pub fn beside(subject: Subject) -> &'static str {
    match subject {
        Subject::Scheme(_) => "Beside published systems",
        Subject::Runtime => "Beside tools that watch from outside",
    }
}

/// What the two sides of a subject's rows are called.
pub fn sides(subject: Subject) -> [&'static str; 2] {
    match subject {
        Subject::Scheme(_) => ["protected", "unprotected"],
        Subject::Runtime => ["under it", "by itself"],
    }
}

/// What a bar and its samples are given in: `×` where sides are compared.
pub fn judged_unit(row: &Row) -> String {
    match row.samples {
        Samples::Pairs { .. } => "×".to_owned(),
        _ => format!(" {}", row.head.unit),
    }
}

/// What it should be; nothing without a bar.
pub fn bar(row: &Row) -> String {
    let unit = judged_unit(row);
    match row.head.bar {
        Bar::AtLeast(bar) => format!("≥ {bar}{unit}"),
        Bar::AtMost(bar) => format!("≤ {bar}{unit}"),
        Bar::Beside => String::new(),
    }
}

/// Whether it is.
pub fn verdict(row: &Row) -> String {
    match row.verdict() {
        Verdict::Met => "met".to_owned(),
        Verdict::Missed(by) => match row.samples {
            Samples::Pairs { .. } => format!("missed by {by:.3}"),
            _ => format!("missed by {} {}", short(by), row.head.unit),
        },
        Verdict::Noise { met: true } => "met, but within noise".to_owned(),
        Verdict::Noise { met: false } => "missed, but within noise".to_owned(),
        Verdict::Reported => String::new(),
        Verdict::Alike => "no difference beyond noise".to_owned(),
        Verdict::Failed => "not measured".to_owned(),
        Verdict::Unable => "not on this machine".to_owned(),
    }
}

/// Three digits or more.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The cells of a row that compares sides: ratio with its quartiles, either side, number of runs.
pub fn compared(row: &Row) -> Option<[String; 4]> {
    let Samples::Pairs { protected, bare } = &row.samples else { return None };
    let ratio = Spread::of(&row.samples.judged());
    let median = |values: &[f64]| format!("{} {}", short(percentile(values, 50.0)), row.head.unit);
    Some([
        format!("{:.3} ({:.3} to {:.3})", ratio.median, ratio.q1, ratio.q3),
        median(protected),
        median(bare),
        protected.len().to_string(),
    ])
}

/// The cells of a row without a counterpart: figure, median with extremes, number of runs.
pub fn alone(row: &Row) -> [String; 3] {
    let none = || "–".to_owned();
    match (&row.samples, row.figure()) {
        (Samples::Alone { values, .. }, Some(figure)) => {
            let s = Spread::of(values);
            [
                format!("{} {}", short(figure), row.head.unit),
                format!("{} ({} to {})", short(s.median), short(s.min), short(s.max)),
                values.len().to_string(),
            ]
        }
        (Samples::Failed(why) | Samples::Unable(why), _) => [none(), why.clone(), "0".to_owned()],
        _ => [none(), none(), "0".to_owned()],
    }
}

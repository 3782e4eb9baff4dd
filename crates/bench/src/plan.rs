//! What will be measured: experiments, each of which yields one row or several.
//!
//! The plan is made before anything runs. So it can be listed, its length estimated, and a row
//! that fails has its place in the report.

use std::cell::Cell;

use demo::config::Roles;
use serde_json::Map;

use crate::progress::Progress;
use crate::record::{Bar, Graph, Head, Point, Row, Samples, Section};
use crate::scheme::Scheme;
use crate::subject::Subject;
use crate::twin::Twin;
use crate::{around, busy, curve, failover, memory, response, runtime, traffic};

/// How long the labs of a pair take to come up and to go, s.
pub const PAIR_S: f64 = 12.0;

/// How much is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The bars, in a few minutes.
    Quick,
    /// Everything.
    Full,
}

/// Rows that are measured together, on both labs of a [`Twin`]; or on nothing, `()`, if the experiment
/// brings its own hosts.
pub struct Experiment<On = Twin> {
    /// The rows, in the order of [`Measured::samples`].
    pub heads: Vec<Head>,
    /// Measurements, for the progress: as often as [`Run::step`] is called.
    pub steps: usize,
    /// How long one takes, s.
    pub step_s: f64,
    /// Measures. The experiment is the one that this belongs to.
    pub measure: Measure<On>,
}

/// See [`Experiment::measure`].
pub type Measure<On = Twin> = Box<dyn Fn(&Run<On>) -> anyhow::Result<Measured>>;

/// What an experiment has to work with.
pub struct Run<'a, On = Twin> {
    /// What is there already: both labs, or nothing.
    pub on: &'a On,
    progress: &'a Progress,
    step_s: f64,
    steps_done: Cell<usize>,
}

/// What an experiment found.
#[derive(Debug, Default)]
pub struct Measured {
    /// One for each row.
    pub samples: Vec<Samples>,
    /// Whatever else was seen.
    pub more: Map<String, serde_json::Value>,
    /// What single runs looked like.
    pub graphs: Vec<Graph>,
}

impl<On> Run<'_, On> {
    /// One measurement is done.
    pub fn step(&self) {
        self.steps_done.set(self.steps_done.get() + 1);
        self.progress.done(self.step_s);
    }
}

impl<On> Experiment<On> {
    /// How long it should take, s.
    pub fn estimate_s(&self) -> f64 {
        self.steps as f64 * self.step_s
    }

    /// Measures; prints each row. A row that cannot be measured says why.
    pub fn run(&self, on: &On, progress: &Progress) -> (Vec<Row>, Vec<Graph>) {
        progress.begin(&self.heads[0].title);
        let run = Run { on, progress, step_s: self.step_s, steps_done: Cell::new(0) };
        let measured = (self.measure)(&run).unwrap_or_else(|e| Measured {
            samples: vec![Samples::Failed(format!("{e:#}")); self.heads.len()],
            ..Measured::default()
        });
        // What an experiment that failed leaves out will not be waited for either.
        let left_out = self.steps.saturating_sub(run.steps_done.get());
        progress.done(left_out as f64 * self.step_s);
        assert_eq!(measured.samples.len(), self.heads.len(), "every row has its samples");
        let mut more = Some(measured.more);
        let rows = self.heads.iter().zip(measured.samples).map(|(head, samples)| {
            let row = Row { head: head.clone(), samples, more: more.take().unwrap_or_default() };
            progress.say(&said(&row));
            row
        });
        (rows.collect(), measured.graphs)
    }
}

/// What a pair is brought up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// How it protects.
    pub scheme: Scheme,
    /// Who serves.
    pub roles: Roles,
}

impl Setting {
    /// All of a scheme, in the order in which they are measured.
    pub fn of(scheme: Scheme) -> [Setting; 2] {
        [Roles::Single, Roles::Dual].map(|roles| Setting { scheme, roles })
    }

    /// All of all schemes.
    pub fn all() -> impl Iterator<Item = Setting> {
        Scheme::ALL.into_iter().flat_map(Setting::of)
    }
}

/// What is asked for.
pub struct Plan {
    /// Of each pair.
    pub pairs: Vec<(Setting, Vec<Experiment>)>,
    /// Of the in-process runtime.
    pub runtime: Vec<Experiment<()>>,
}

impl Plan {
    /// Everything.
    pub fn of(depth: Depth) -> Plan {
        let pair = |setting| (setting, of_pair(setting, depth));
        let pairs = Setting::all().map(pair).filter(|(_, all)| !all.is_empty()).collect();
        Plan { pairs, runtime: runtime::experiments(depth) }
    }

    /// All rows, in the order in which they are measured.
    pub fn heads(&self) -> impl Iterator<Item = &Head> {
        let of_pairs = self.of_pairs().flat_map(|e| &e.heads);
        of_pairs.chain(self.runtime.iter().flat_map(|e| &e.heads))
    }

    fn of_pairs(&self) -> impl Iterator<Item = &Experiment> {
        self.pairs.iter().flat_map(|(_, all)| all)
    }

    /// Leaves out experiments none of whose rows is wanted, and pairs that are not needed.
    pub fn retain(&mut self, wanted: impl Fn(&[Head]) -> bool) {
        self.pairs.iter_mut().for_each(|(_, all)| all.retain(|e| wanted(&e.heads)));
        self.pairs.retain(|(_, all)| !all.is_empty());
        self.runtime.retain(|e| wanted(&e.heads));
    }

    /// How long it should take, s.
    pub fn estimate_s(&self) -> f64 {
        let of_pairs = self.of_pairs().map(Experiment::estimate_s);
        let of_runtime = self.runtime.iter().map(Experiment::estimate_s);
        PAIR_S * self.pairs.len() as f64 + of_pairs.chain(of_runtime).sum::<f64>()
    }
}

/// Everything that is asked for, of a pair set up so.
fn of_pair(setting: Setting, depth: Depth) -> Vec<Experiment> {
    let Setting { scheme, roles } = setting;
    if roles == Roles::Dual {
        return curve::experiments(scheme, roles, depth);
    }
    let curves = |scheme, depth| curve::experiments(scheme, Roles::Single, depth);
    let parts: [fn(Scheme, Depth) -> Vec<Experiment>; 7] = [
        traffic::experiments,
        busy::experiments,
        curves,
        memory::experiments,
        response::experiments,
        around::experiments,
        failover::experiments,
    ];
    parts.into_iter().flat_map(|part| part(scheme, depth)).collect()
}

/// A row of `subject` called `id` within it.
pub fn head(
    subject: impl Into<Subject>,
    id: impl AsRef<str>,
    section: Section,
    title: impl Into<String>,
    unit: &str,
    bar: Bar,
) -> Head {
    let subject = subject.into();
    let id = format!("{}{}", subject.prefix(), id.as_ref());
    Head { id, subject, section, title: title.into(), unit: unit.to_owned(), bar, point: None }
}

impl Head {
    /// The same as a point of a curve.
    pub fn on(mut self, curve: &str, x: f64) -> Head {
        self.point = Some(Point { curve: format!("{}{curve}", self.subject.prefix()), x });
        self
    }
}

/// One line for a person who watches.
fn said(row: &Row) -> String {
    let figure = row.figure().map_or("–".to_owned(), |f| format!("{f:.3}"));
    let verdict = match &row.samples {
        Samples::Failed(why) => format!("not measured: {why}"),
        Samples::Unable(why) => format!("not on this machine: {why}"),
        _ => format!("{:?}", row.verdict()),
    };
    let Head { id, unit, bar, .. } = &row.head;
    format!("{id:<28} {figure:>10}  {verdict}  ({unit}, {bar:?})")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn ids(depth: Depth) -> Vec<String> {
        Plan::of(depth).heads().map(|head| head.id.clone()).collect()
    }

    #[test]
    fn every_row_has_a_name_of_its_own_and_quick_rows_are_among_all() {
        for depth in [Depth::Quick, Depth::Full] {
            let ids = ids(depth);
            let different: BTreeSet<_> = ids.iter().collect();
            assert_eq!(different.len(), ids.len(), "{ids:?}");
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
            assert!(ids.iter().all(|id| id.chars().all(plain)), "{ids:?}");
        }
        let full: BTreeSet<_> = ids(Depth::Full).into_iter().collect();
        let lost: Vec<_> = ids(Depth::Quick).into_iter().filter(|id| !full.contains(id)).collect();
        assert!(lost.is_empty(), "{lost:?}");
    }

    #[test]
    fn runs_are_as_long_as_promised() {
        let minutes = |depth| Plan::of(depth).estimate_s() / 60.0;
        let (quick, full) = (minutes(Depth::Quick), minutes(Depth::Full));
        assert!(quick < 10.0, "quick: {quick} min");
        assert!(full < 45.0, "full: {full} min");
    }

    #[test]
    fn every_comparison_is_repeated() {
        for depth in [Depth::Quick, Depth::Full] {
            let plan = Plan::of(depth);
            for experiment in plan.of_pairs() {
                let compared =
                    matches!(experiment.heads[0].section, Section::Bulk | Section::Requests);
                assert!(!compared || experiment.steps >= 5, "{}", experiment.heads[0].id);
            }
            assert!(plan.runtime.iter().all(|experiment| experiment.steps >= 5));
        }
    }
}

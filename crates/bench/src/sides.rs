//! Interleaved runs on both sides.

use anyhow::{Context, ensure};
use demo::clock::now_ns;
use serde_json::{Map, Value};

use crate::plan::{Experiment, Measured};
use crate::record::{Head, Samples};
use crate::twin::{Side, Twin};

/// Mbit/s of a link; `None`: as fast as it goes.
pub type Mbit = Option<u64>;

/// A row of an experiment on both sides.
pub enum Column {
    /// Both sides are compared.
    Both(Head),
    /// The unprotected side has no such thing.
    Protected(Head),
}

/// Rows that are measured together on either side in turn.
pub struct Sides {
    /// One row for each figure of a run.
    pub columns: Vec<Column>,
    /// The service link.
    pub service: Mbit,
    /// The cluster link.
    pub cluster: Mbit,
    /// Recorded pairs of runs.
    pub repetitions: usize,
    /// How long one run takes, s.
    pub run_s: f64,
}

impl Sides {
    /// The experiment. `measure` runs once on a side and returns a figure for each column.
    ///
    /// The runs are [`in_turn`]. A pair in which a flow has lost its protection is measured again.
    pub fn experiment(
        self,
        measure: impl Fn(&Twin, Side) -> anyhow::Result<Vec<f64>> + 'static,
    ) -> Experiment {
        let Sides { columns, service, cluster, repetitions, run_s } = self;
        let compared: Vec<_> = columns.iter().map(|c| matches!(c, Column::Both(_))).collect();
        let head = |c| match c {
            Column::Both(head) | Column::Protected(head) => head,
        };
        Experiment {
            heads: columns.into_iter().map(head).collect(),
            steps: 2 * (repetitions + 1),
            step_s: run_s,
            measure: Box::new(move |run| {
                run.on.shape(service, cluster)?;
                let (mut opened, mut lost) = (run.on.opened()?, 0);
                let on_a_side = |side| {
                    let began_ns = now_ns();
                    let got = measure(run.on, side).with_context(|| {
                        let history = run.on.history(began_ns);
                        format!("{side:?}, where the nodes did: {history}")
                    })?;
                    run.step();
                    Ok(got)
                };
                let counts = || {
                    let now = run.on.opened()?;
                    let same = now == opened;
                    if !same {
                        // What is not protected says nothing about what is. Where the processors are
                        // all that limits, a flow may outrun its budget now and then.
                        lost += 1;
                        ensure!(
                            lost <= repetitions,
                            "flows lose their protection again and again: {now:?}"
                        );
                        opened = now;
                    }
                    Ok(same)
                };
                let figures = in_turn(repetitions, on_a_side, counts)?;
                let samples = samples(&figures, &compared);
                let mbit = |mbit: Mbit| mbit.map_or(Value::Null, Value::from);
                let more = Map::from_iter([
                    ("service_mbit".to_owned(), mbit(service)),
                    ("cluster_mbit".to_owned(), mbit(cluster)),
                    ("pairs_without_protection".to_owned(), lost.into()),
                ]);
                Ok(Measured { samples, more, graphs: Vec::new() })
            }),
        }
    }
}

/// What was measured on either side, [`Side::Protected`] first, run by run: a figure for each column.
pub type Figures = [Vec<Vec<f64>>; 2];

/// So many pairs of runs. One unrecorded round comes first, then A B, B A, A B, …, so that neither
/// side always follows the other. `counts` is asked after each pair; one that does not count is
/// measured again.
///
/// # Errors
/// Those of `measure` and `counts`.
pub fn in_turn(
    repetitions: usize,
    mut measure: impl FnMut(Side) -> anyhow::Result<Vec<f64>>,
    mut counts: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Figures> {
    let mut figures = [Vec::new(), Vec::new()];
    let mut round = 0;
    while round <= repetitions {
        let mut order = [Side::Protected, Side::Bare];
        if round % 2 == 1 {
            order.reverse();
        }
        let mut pair = [Vec::new(), Vec::new()];
        for side in order {
            pair[usize::from(side == Side::Bare)] = measure(side)?;
        }
        if !counts()? {
            continue;
        }
        if round > 0 {
            for (figures, got) in figures.iter_mut().zip(pair) {
                figures.push(got);
            }
        }
        round += 1;
    }
    Ok(figures)
}

/// The samples of each column; `compared`: whether both sides have it.
pub fn samples(figures: &Figures, compared: &[bool]) -> Vec<Samples> {
    compared.iter().enumerate().map(|(i, &both)| column(figures, i, both)).collect()
}

fn column(figures: &Figures, column: usize, both: bool) -> Samples {
    let side = |side: usize| figures[side].iter().map(|run| run[column]).collect::<Vec<f64>>();
    if both {
        Samples::Pairs { protected: side(0), bare: side(1) }
    } else {
        Samples::Alone { values: side(0), percentile: 50 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_take_turns_and_what_does_not_count_is_measured_again() {
        let (mut order, mut pairs) = (Vec::new(), 0);
        let measure = |side| {
            order.push(side);
            Ok(vec![order.len() as f64])
        };
        let counts = || {
            pairs += 1;
            Ok(pairs != 2)
        };
        let figures = in_turn(2, measure, counts).unwrap();
        assert_eq!(figures, [[vec![6.0], vec![7.0]], [vec![5.0], vec![8.0]]]);
        use Side::{Bare, Protected};
        let turns = [Protected, Bare, Bare, Protected, Bare, Protected, Protected, Bare];
        assert_eq!(order, turns, "the first pair is unrecorded, the second did not count");
    }

    #[test]
    fn columns_are_taken_apart() {
        let figures =
            [vec![vec![1.0, 10.0], vec![2.0, 20.0]], vec![vec![3.0, 0.0], vec![4.0, 0.0]]];
        let pairs = Samples::Pairs { protected: vec![1.0, 2.0], bare: vec![3.0, 4.0] };
        assert_eq!(column(&figures, 0, true), pairs);
        let alone = Samples::Alone { values: vec![10.0, 20.0], percentile: 50 };
        assert_eq!(column(&figures, 1, false), alone);
    }
}

//! A record as a full run leaves it, with figures that nobody measured.

use serde_json::Map;

use crate::plan::{Depth, Plan};
use crate::record::{Graph, Head, Line, Mark, Record, Row, Samples};

/// A record of these rows.
pub fn record_of(rows: Vec<Row>) -> Record {
    Record {
        time: "2026-01-01T00:00:00Z".into(),
        command: "make bench".into(),
        commit: "0123abc".into(),
        kernel: "6.18".into(),
        machine: "2 processors".into(),
        load: [0.5, 1.5],
        took_s: 60.0,
        rows,
        graphs: Vec::new(),
    }
}

/// Every row of every subject, and graphs as large as real ones.
pub fn full() -> Record {
    let plan = Plan::of(Depth::Full);
    let values = |from: f64| (0..30).map(|i| from + f64::from(i) / 3.0).collect::<Vec<_>>();
    let row = |(number, head): (usize, &Head)| {
        let samples = match number % 3 {
            0 => Samples::Alone { values: values(5.0), percentile: 99 },
            1 => Samples::Pairs { protected: values(97.0), bare: values(98.0) },
            _ => Samples::Pairs { protected: values(108.0), bare: values(91.0) },
        };
        Row { head: head.clone(), samples, more: Map::new() }
    };
    let mut record = record_of(plan.heads().enumerate().map(row).collect());
    record.command = "make bench FULL=1".into();
    let line = |name: &str| Line {
        name: name.into(),
        points: (0..600).map(|i| [f64::from(i) / 7.0, f64::from(i) * 1.5]).collect(),
    };
    let graph = |title: &str, log_x| Graph {
        row: record.rows[0].head.id.clone(),
        title: title.into(),
        x: "ms".into(),
        y: "MB".into(),
        log_x,
        lines: vec![line("one"), line("another")],
        marks: vec![Mark { x: 3.0, name: "host dies".into() }],
    };
    record.graphs = vec![graph("Something against time", false), graph("A distribution", true)];
    record
}

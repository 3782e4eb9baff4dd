//! `docs/benchmarks.md`, made from a record. No figure on it is typed by hand.

use std::fmt::Write;

use crate::record::{Bar, Record, Row, Samples, Spread, Verdict, percentile};

/// The page.
pub fn page(record: &Record) -> String {
    let mut text = format!(
        "# Benchmarks\n\n\
         Written by `make bench` from what it measured; edits are lost.\n\n\
         | | |\n|---|---|\n\
         | command | `{}` |\n| commit | {} |\n| when | {}, for {:.0} s |\n| kernel | {} |\n\
         | machine | {} |\n| load of the machine (1 min), begin and end | {:.1}, {:.1} |\n\n",
        record.command,
        record.commit,
        record.time,
        record.took_s,
        record.kernel,
        record.machine,
        record.load[0],
        record.load[1],
    );
    text += "## Scheme `track`, side by side with the same server unprotected\n\n\
             Runs alternate. Each ratio is protected ÷ unprotected of two runs next to each other; \
             the median of the ratios is held against the bar. *Within noise*: the bar lies \
             between the quartiles of the ratios, so this run does not decide.\n\n\
             | what | bar | ratio: median (quartiles) | protected | unprotected | runs | verdict |\n\
             |---|---|---|---|---|---|---|\n";
    let pairs = |row: &&Row| matches!(row.samples, Samples::Pairs { .. });
    for row in record.rows.iter().filter(pairs) {
        pair_line(&mut text, row);
    }
    text += "\n## Failover and memory\n\n\
             A host dies: links and processes at one instant. *Beyond detection* counts from the \
             survivor's suspicion.\n\n\
             | what | bar | measured | median (min to max) | runs | verdict |\n\
             |---|---|---|---|---|---|\n";
    for row in record.rows.iter().filter(|row| !pairs(row)) {
        alone_line(&mut text, row);
    }
    text += NOTES;
    text
}

const NOTES: &str = "\n## How to read this\n\n\
- *Unprotected* is a second lab in which nothing of Steadfast was ever started: the same hosts, \
switch, shaping, server, configuration. Its path differs only by Steadfast. Both labs stand \
side by side so that runs can alternate within a second; one rests while the other is measured.\n\
- All hosts are namespaces of one machine and share its processors: where nothing is shaped, the \
backup's work competes with the primary's, which two real hosts would not do.\n\
- Fifty clients at 1 Gbit/s or unshaped use up the processors of a small machine. What such a row \
then compares is the work of all hosts together; a protected request crosses the switch once \
more than an unprotected one (to the backup, and on to the primary).\n\
- Processor time is that of the primary's cgroup: server and daemon. The kernel charges what a \
process sends, and the switching and receiving that this causes, to the sender. So the way of \
the reply is in the figure; the way of the request to the server, timers and kernel threads \
are not.\n\
- Idle flows have one short request behind them, which the journal keeps. *Flow table* is the \
kernel's own account of the hash maps (`memlock`), *journal* the daemon's account of its heap.\n\
- With 20 kills the 99th percentile is the worst of them.\n\
- `make bench FULL=1` has more rows and more repetitions. The raw figures are in \
`bench/out`, one file for each run.\n";

fn pair_line(text: &mut String, row: &Row) {
    let Samples::Pairs { protected, bare } = &row.samples else { return };
    let ratio = Spread::of(&row.samples.judged());
    let [protected_median, bare_median] = [protected, bare].map(|v| percentile(v, 50.0));
    line(
        text,
        &[
            row.title.clone(),
            bar(row, "×"),
            format!("{:.3} ({:.3} to {:.3})", ratio.median, ratio.q1, ratio.q3),
            format!("{} {}", short(protected_median), row.unit),
            format!("{} {}", short(bare_median), row.unit),
            protected.len().to_string(),
            verdict(row, ""),
        ],
    );
}

fn alone_line(text: &mut String, row: &Row) {
    let (figure, spread, runs) = match (&row.samples, row.figure()) {
        (Samples::Alone { values, .. }, Some(figure)) => {
            let s = Spread::of(values);
            let spread = format!("{} ({} to {})", short(s.median), short(s.min), short(s.max));
            (format!("{} {}", short(figure), row.unit), spread, values.len().to_string())
        }
        (Samples::Failed(why), _) => ("–".to_owned(), why.replace(['|', '\n'], " "), String::new()),
        _ => ("–".to_owned(), String::new(), String::new()),
    };
    let unit = format!(" {}", row.unit);
    let cells = [row.title.clone(), bar(row, &unit), figure, spread, runs, verdict(row, &unit)];
    line(text, &cells);
}

fn line(text: &mut String, cells: &[String]) {
    writeln!(text, "| {} |", cells.join(" | ")).expect("writing to a string cannot fail");
}

fn bar(row: &Row, unit: &str) -> String {
    match row.bar {
        Bar::AtLeast(bar) => format!("≥ {bar}{unit}"),
        Bar::AtMost(bar) => format!("≤ {bar}{unit}"),
        Bar::Beside => String::new(),
    }
}

fn verdict(row: &Row, unit: &str) -> String {
    match row.verdict() {
        Verdict::Met => "met".to_owned(),
        Verdict::Missed(by) if unit.is_empty() => format!("**missed** by {by:.3}"),
        Verdict::Missed(by) => format!("**missed** by {}{unit}", short(by)),
        Verdict::Noise { met: true } => "met, but within noise".to_owned(),
        Verdict::Noise { met: false } => "missed, but within noise".to_owned(),
        Verdict::Reported => String::new(),
        Verdict::Failed => "**not measured**".to_owned(),
    }
}

/// Three digits or more.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    fn record(samples: Samples, bar: Bar) -> Record {
        Record {
            time: "2026-01-01T00:00:00Z".into(),
            command: "make bench".into(),
            commit: "0123abc".into(),
            kernel: "6.18".into(),
            machine: "2 processors".into(),
            load: [0.5, 1.5],
            took_s: 60.0,
            rows: vec![Row {
                id: "x".into(),
                title: "a row".into(),
                unit: "ms".into(),
                bar,
                samples,
                more: Map::new(),
            }],
        }
    }

    fn check(samples: Samples, bar: Bar, expected: &str) {
        let page = page(&record(samples, bar));
        assert!(page.contains(expected), "no {expected:?} in\n{page}");
        // Every row of a table has as many cells as its head.
        for table in page.split("\n\n").filter(|block| block.starts_with('|')) {
            let bars = |line: &str| line.matches('|').count();
            let first = bars(table.lines().next().unwrap());
            assert!(table.lines().all(|line| bars(line) == first), "{table}");
        }
    }

    #[test]
    fn the_page_says_what_the_record_says() {
        let pairs = Samples::Pairs { protected: vec![98.0, 98.0], bare: vec![100.0, 100.0] };
        check(
            pairs.clone(),
            Bar::AtLeast(0.99),
            "| a row | ≥ 0.99× | 0.980 (0.980 to 0.980) | 98.0 ms | 100 ms | 2 | **missed** by 0.010 |",
        );
        check(pairs, Bar::Beside, "| 2 |  |");
        let alone = Samples::Alone { values: vec![1.0, 25.0], percentile: 99 };
        check(
            alone,
            Bar::AtMost(20.0),
            "| a row | ≤ 20 ms | 25.0 ms | 13.0 (1.00 to 25.0) | 2 | **missed** by 5.00 ms |",
        );
        check(
            Samples::Failed("no | host".into()),
            Bar::AtMost(20.0),
            "| – | no   host |  | **not measured** |",
        );
    }
}

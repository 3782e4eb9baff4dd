//! `docs/benchmarks.md`: the tables.

use std::fmt::Write;

use super::words;
use crate::record::{Record, Row, Samples, Section, Verdict};
use crate::subject::Subject;

/// The page.
pub fn page(record: &Record) -> String {
    let mut text = format!(
        "# Benchmarks\n\n\
         Written by `make bench` from what it measured; edits are lost. With plots, and beside the \
         papers' figures: [benchmarks.html](benchmarks.html).\n\n\
         | | |\n|---|---|\n\
         | command | `{}` |\n| commit | {} |\n| when | {}, for {:.0} s |\n| kernel | {} |\n\
         | machine | {} |\n| load of the machine (1 min), begin and end | {:.1}, {:.1} |\n",
        record.command,
        record.commit,
        record.time,
        record.took_s,
        record.kernel,
        record.machine,
        record.load[0],
        record.load[1],
    );
    for subject in Subject::ALL {
        let rows: Vec<&Row> = record.rows.iter().filter(|r| r.head.subject == subject).collect();
        if !rows.is_empty() {
            part(&mut text, subject, &rows);
        }
    }
    text += "\n## How to read this\n\n";
    for note in NOTES {
        writeln!(text, "- {note}").expect("writing to a string cannot fail");
    }
    text
}

fn part(text: &mut String, subject: Subject, rows: &[&Row]) {
    let heading = match words::heading(subject) {
        (plain, "") => plain.to_owned(),
        (plain, name) => format!("{plain} `{name}`"),
    };
    *text += &format!("\n## {heading}\n\n{}\n", words::compared_how(subject));
    let [with, without] = words::sides(subject);
    for section in Section::ALL {
        let rows: Vec<&Row> = rows.iter().filter(|r| r.head.section == section).copied().collect();
        if rows.is_empty() {
            continue;
        }
        *text += &format!("\n### {}\n", section.title());
        let (pairs, alone): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| matches!(row.samples, Samples::Pairs { .. }));
        if !pairs.is_empty() {
            *text += &format!(
                "\n| what | bar | ratio: median (quartiles) | {with} | {without} | runs | verdict \
                 |\n|---|---|---|---|---|---|---|\n"
            );
            pairs.iter().for_each(|row| pair_line(text, row));
        }
        if !alone.is_empty() {
            *text += "\n| what | bar | measured | median (min to max) | runs | verdict |\n\
                      |---|---|---|---|---|---|\n";
            alone.iter().for_each(|row| alone_line(text, row));
        }
    }
}

/// What one should know before one believes a figure.
pub const NOTES: [&str; 16] = [
    "Unprotected is a second lab in which nothing of Steadfast was ever started: the same hosts, \
     switch, shaping, server, configuration. Its path differs only by Steadfast. Both labs stand \
     side by side so that runs can alternate within a second; one rests while the other is \
     measured.",
    "All hosts are namespaces of one machine and share its processors: where nothing is shaped, \
     the backup's work competes with the primary's, which two real hosts would not do.",
    "Many clients at 1 Gbit/s or unshaped use up the processors of a small machine. What such a \
     row then compares is the work of all hosts together; a protected request crosses the switch \
     once more than an unprotected one (to the backup, and on to the primary).",
    "Processor time of a node is that of its cgroup: server and daemon. The kernel charges what a \
     process sends, and the switching and receiving that this causes, to the sender. So the way of \
     the reply is in the primary's figure, the way of the request through the backup to the \
     primary in the clients'; timers and kernel threads are in none.",
    "Idle flows have one short request behind them, which the journal keeps; busy ones a hundred. \
     Flow table is the kernel's own account of the hash maps (memlock), journal the daemon's \
     account of its heap.",
    "Response times count from when a request was due, not from when it could be sent, so those \
     that wait behind a failure are in the figures. Who begins a connection while nobody answers \
     waits a second until TCP sends the SYN again: with a connection for each request that is most \
     of what a failure costs.",
    "Stages of a failover are told by the survivor's events and by a capture of the client's \
     cable, their medians one by one; they need not add up to the median of the whole.",
    "Scheme message: the web server's files are the same on both nodes, and its long_replies is \
     regenerate, so a file over the reply budget (1 MiB) leaves at once and is written again after \
     a takeover. A second server of the same files has long_replies = stream: each piece leaves \
     once the backup has it. Replies of up to 50 KiB are under the budget: each is held until the \
     backup has all of it.",
    "Standard is the unprotected server; simplex is a primary whose backup's host is dead, so that \
     clients' segments come to it directly; duplex has both. The replies of all three come from \
     files and cost the server next to nothing to make, so shares of a request are larger here \
     than with programs that take their time.",
    "Overload: what fifty clients get that ask again when they are answered is called the peak, of \
     either side its own. Then requests come at that rate, and at multiples of it, whether or not \
     those before them were answered: they wait on 256 connections, behind each other. Clients and \
     servers share the machine's processors, so what the clients do at 3 × is missing to the \
     servers of both sides.",
    "The rows of simplex and duplex are not shaped: the time that a reply needs on the cable is in \
     neither side's, and a held one crosses two (50 KiB take 0.41 ms more at 1 Gbit/s, 4.1 ms more \
     at 100 Mbit/s). Shaped, it would not show either: a shaped cable lets 70 KiB, or a \
     millisecond's worth of bytes if that is more, pass at once when it has been idle. So one client \
     that asks again at once for replies of this order sees the cable's rate, whatever else a reply \
     had to wait for.",
    "Memory on the primary is that of its hash maps, its journal, and with the scheme message the \
     gate's value in each socket; what the kernel needs beside such a value to find it is not in \
     it.",
    "Of a row of the runtime, two hosts of a lab have the same server, one by itself and one under \
     it; both are up for the whole row. Fifty clients ask over the host's own loopback, again as \
     soon as they are answered, so no cable's work makes what is added look smaller: \
     redis-benchmark sets and gets 3 bytes, a client of our own asks nginx, which has one worker, \
     for 1 KiB. That client never sleeps: to wake it would be work of the server's, the more the \
     slower it answers. Processor time is that of the server's cgroup, so that of strace and rr is \
     in their rows; that of the clients is in none.",
    "The length of a recording is that of the records that a run has added, divided by its \
     requests. strace writes to /dev/null. rr needs the processor's performance counters, which \
     most virtual machines do not have.",
    "With 20 kills the 99th percentile is the worst of them.",
    "make bench FULL=1 has more rows and more repetitions; make bench ONLY=ROW measures one. The \
     raw figures are in bench/out, one file for each run.",
];

fn pair_line(text: &mut String, row: &Row) {
    let [ratio, protected, bare, runs] = words::compared(row).expect("the caller has looked");
    let title = row.head.title.clone();
    line(text, &[title, words::bar(row), ratio, protected, bare, runs, verdict(row)]);
}

fn alone_line(text: &mut String, row: &Row) {
    let [figure, spread, runs] = words::alone(row);
    line(text, &[row.head.title.clone(), words::bar(row), figure, spread, runs, verdict(row)]);
}

fn line(text: &mut String, cells: &[String]) {
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace(['|', '\n'], " ")).collect();
    writeln!(text, "| {} |", cells.join(" | ")).expect("writing to a string cannot fail");
}

fn verdict(row: &Row) -> String {
    let words = words::verdict(row);
    match row.verdict() {
        Verdict::Missed(_) => words.replacen("missed", "**missed**", 1),
        Verdict::Failed => format!("**{words}**"),
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Bar, tests::head};
    use serde_json::Map;

    fn check(samples: Samples, bar: Bar, expected: &str) {
        let mut head = head("x", bar);
        head.title = "a row".into();
        let rows = vec![Row { head, samples, more: Map::new() }];
        let page = page(&crate::report::fixture::record_of(rows));
        assert!(page.contains(expected), "no {expected:?} in\n{page}");
        check_tables(&page);
    }

    /// Every row of a table has as many cells as its head.
    fn check_tables(page: &str) {
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
        let open =
            Samples::Pairs { protected: vec![98.0, 99.0, 101.0, 102.0], bare: vec![100.0; 4] };
        check(open, Bar::Beside, "| 4 | no difference beyond noise |");
        let alone = Samples::Alone { values: vec![1.0, 25.0], percentile: 99 };
        check(
            alone,
            Bar::AtMost(20.0),
            "| a row | ≤ 20 ms | 25.0 ms | 13.0 (1.00 to 25.0) | 2 | **missed** by 5.00 ms |",
        );
        check(
            Samples::Failed("no | host".into()),
            Bar::AtMost(20.0),
            "| – | no   host | 0 | **not measured** |",
        );
        check(
            Samples::Unable("there is no rr".into()),
            Bar::Beside,
            "| – | there is no rr | 0 | not on this machine |",
        );
    }

    #[test]
    fn every_row_of_a_full_run_is_on_the_page() {
        let record = crate::report::fixture::full();
        let page = page(&record);
        check_tables(&page);
        let lost =
            record.rows.iter().find(|row| !page.contains(&format!("| {} |", row.head.title)));
        assert!(lost.is_none(), "{lost:?}");
    }
}

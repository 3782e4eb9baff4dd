//! The page that shows a campaign: `docs/torture.md`, written by a program, never typed.

use std::fmt::Write;

use demo::config::Roles;

use crate::campaign::{DETECTION_MS, argument, command};
use crate::plan::Scheme;
use crate::rules::RULES;
use crate::summary::{Bad, Row, Summary};

/// The page, in Markdown.
pub fn page(summary: &Summary) -> String {
    let s = summary;
    let mut text = format!(
        "# Fault campaign\n\n\
         Written by `make torture RUNS={} SEED={}{}{}{} PAGE=1`. Each run: a pair of nodes{}, random work \
         of real clients, a random fault at a random moment, all from the run's seed. With the \
         scheme `track`, and in some runs of `message`, they download and upload files, and every \
         byte is compared; in the others they buy in a shop whose replies cannot be made twice, \
         and what they were told is held against the shop's own logs. Every frame at every port is \
         judged by the oracle. The scheme is drawn since there are two: half of the seeds mean \
         another run than they did before.\n\n\
         {}; a node is suspected after {} ms of silence; {:.0} minutes.\n\n",
        s.all.runs,
        s.seed,
        s.wanted,
        match s.detection_ms {
            DETECTION_MS => String::new(),
            ms => format!(" DETECTION_MS={ms}"),
        },
        argument(s.roles()),
        match s.roles() {
            Roles::Single => "",
            Roles::Dual => " that both serve (\"the primary\" is that of the first share)",
        },
        s.machine,
        s.detection_ms,
        s.took_s / 60.0
    );
    let figures = [
        ("runs", s.all.runs),
        ("runs in which no client noticed anything", s.all.good),
        ("runs in which what clients noticed had to be (rules below)", s.all.explained),
        ("runs with corruption that flipped bits explain", s.all.corrupted),
        ("**runs that failed**", s.all.failed),
        ("downloads", s.downloads),
        ("uploads", s.uploads),
        ("clients of shops", s.shoppers),
        ("idle connections", s.idle),
        ("connections, or a shop's clients, that saw an error", s.client_visible_errors),
        ("of these, without an explanation", s.unexplained_errors),
        ("flows that the product reset, and listed", s.resets),
        ("crashes by flipped bits that no client noticed", s.flip_crashes_recovered),
        ("runs with little memory in which it was wanting", s.starved),
        ("of these, only once one more program was started there", s.prompted),
        ("processes killed in them for want of memory", s.starved_to_death),
        ("segments that the oracle judged", s.segments_judged),
        ("runs without its judgement, since captures lacked frames", s.blind),
        ("runs played again because the machine itself stood still", s.stalls),
    ];
    text += "| what | how many |\n|---|---:|\n";
    for (what, count) in figures {
        line(&mut text, format_args!("| {what} | {count} |"));
    }
    text += "\n## By scheme\n\n| scheme | kills | requests | replies | executed twice | clients with \
             errors |\n|---|---:|---:|---:|---:|---:|\n";
    for (scheme, r) in &s.schemes {
        let twice = match scheme {
            Scheme::Track => "not counted".to_owned(),
            Scheme::Message => r.executed_twice.to_string(),
        };
        let (kills, requests, replies, errors) = (r.kills, r.requests, r.replies, r.errors);
        line(
            &mut text,
            format_args!("| {scheme} | {kills} | {requests} | {replies} | {twice} | {errors} |"),
        );
    }
    text += "\nA download, an upload and an idle connection count as one request. Requests that the \
             shop executed twice had no reply that was held by two nodes when the first server was \
             lost; no client has seen it.\n";
    let schemes = s.schemes.iter().map(|(scheme, r)| (scheme.to_string(), &r.row));
    rows(&mut text, "Outcomes by scheme", "scheme", schemes);
    let kinds = s.kinds.iter().map(|(kind, row)| (kind.name(), row));
    rows(&mut text, "By fault", "fault", kinds);
    let moments = s.moments.iter().map(|(moment, row)| (moment.clone(), row));
    rows(&mut text, "By the moment of the last fault", "moment", moments);
    text += "\nGaps: a client's longest wait for a byte after the last fault, ms. A run *missed* if \
             its moment did not come, such as a frame of a download that was over, or if nobody \
             asked for memory while there was little.\n";
    if !s.findings.is_empty() {
        text += "\n## The oracle's findings\n\n| class | findings |\n|---|---:|\n";
        for (class, count) in &s.findings {
            line(&mut text, format_args!("| `{class}` | {count} |"));
        }
    }
    text += "\n## What may be noticed\n\nEverything else is a failure.\n\n| rule | why | runs |\n\
             |---|---|---:|\n";
    for rule in RULES {
        let runs = s.rules.get(rule.name).copied().unwrap_or(0);
        let runs = if rule.apart { "counted as corruption".to_owned() } else { runs.to_string() };
        line(&mut text, format_args!("| {} | {} | {runs} |", rule.name, rule.why));
    }
    list(&mut text, "Failed runs", &s.failures, s.roles());
    list(&mut text, "Runs with corruption by flipped bits", &s.corruptions, s.roles());
    text
}

fn rows<'a>(
    text: &mut String,
    title: &str,
    first: &str,
    rows: impl Iterator<Item = (String, &'a Row)>,
) {
    line(text, format_args!("\n## {title}\n"));
    line(
        text,
        format_args!(
            "| {first} | runs | good | explained | corrupted | failed | missed | gap p50 | p90 | \
             p99 | max |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
        ),
    );
    for (name, r) in rows {
        let g = &r.gaps;
        line(
            text,
            format_args!(
                "| {name} | {} | {} | {} | {} | {} | {} | {:.0} | {:.0} | {:.0} | {:.0} |",
                r.runs,
                r.good,
                r.explained,
                r.corrupted,
                r.failed,
                r.missed,
                g.p50,
                g.p90,
                g.p99,
                g.max
            ),
        );
    }
}

fn list(text: &mut String, title: &str, runs: &[Bad], roles: Roles) {
    if runs.is_empty() {
        return;
    }
    line(text, format_args!("\n## {title}\n"));
    for run in runs {
        line(text, format_args!("- `{}`: {}", command(run.seed, roles), run.plan));
        for complaint in run.complaints.iter().take(3) {
            let first = complaint.text.lines().find(|l| !l.trim().is_empty()).unwrap_or_default();
            line(text, format_args!("  - {:?}: {first}", complaint.sort));
        }
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string cannot fail");
}

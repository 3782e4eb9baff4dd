//! `torture`: plays a fault campaign; exit status 1 if something happened that must not.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use demo::config::Roles;
use torture::campaign::Run;
use torture::{Campaign, Kind, Options, Outcome, Scheme, Summary, Wanted, page};

/// Plays random faults at random moments of random work, and judges each run.
#[derive(Parser, Debug)]
struct Args {
    /// Number of runs.
    #[arg(long, default_value_t = 100)]
    runs: u64,
    /// Seed of the first run; the following runs count up from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// No run begins after so long, such as 10m.
    #[arg(long, value_parser = humantime::parse_duration)]
    within: Option<Duration>,
    /// Only runs of this kind; seeds of others are passed over.
    #[arg(long, value_enum)]
    only: Option<Kind>,
    /// Only runs of this scheme; seeds of others are passed over.
    #[arg(long, value_enum)]
    scheme: Option<Scheme>,
    /// Where captures and logs of runs go that must be looked at.
    #[arg(long, default_value = "target/torture")]
    keep: PathBuf,
    /// Writes the figures here, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Goes on behind the runs of which the figures are there: the same campaign was ended.
    #[arg(long, requires = "json")]
    resume: bool,
    /// Writes the figures here, as a page of Markdown.
    #[arg(long)]
    page: Option<PathBuf>,
    /// The daemon's program.
    #[arg(long, env = "STEADFAST_BIN", default_value = "target/release/steadfast")]
    product: PathBuf,
    /// Silence after which the nodes suspect each other, ms. Longer ones are for machines that stand
    /// still again and again.
    #[arg(long, default_value_t = torture::DETECTION_MS)]
    detection_ms: u32,
    /// Both nodes serve, each a share of the connections.
    #[arg(long)]
    dual: bool,
    /// Shows what the runs would be, and plays none.
    #[arg(long)]
    list: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let wanted = Wanted { kind: args.only, scheme: args.scheme };
    if args.list {
        let plans = torture::Plan::from(args.seed, wanted);
        plans.zip(0..args.runs).for_each(|(plan, _)| println!("{plan}"));
        return Ok(ExitCode::SUCCESS);
    }
    let full = |path: &PathBuf| std::path::absolute(path).context("there is no current folder");
    let campaign = Campaign::new(Options {
        runs: args.runs,
        seed: args.seed,
        within: args.within,
        wanted,
        product: full(&args.product)?,
        detection_ms: args.detection_ms,
        roles: if args.dual { Roles::Dual } else { Roles::Single },
        keep: full(&args.keep)?,
        earlier: earlier(&args)?,
    })?;
    // After each run: a campaign may be ended, and what it has found counts.
    let summary = campaign.play(|run, so_far, left| {
        show(run, so_far.all.runs, args.runs, left);
        write(&args, so_far)
    })?;
    write(&args, &summary)?;
    let all = &summary.all;
    println!(
        "{} runs in {:.0} s: {} good, {} explained, {} corrupted by flipped bits, {} failed; {} \
         played again",
        all.runs,
        summary.took_s,
        all.good,
        all.explained,
        all.corrupted,
        all.failed,
        summary.stalls
    );
    for bad in &summary.failures {
        println!("failed: {}\n  again: {}\n  files: {}", bad.plan, bad.again, bad.files);
    }
    Ok(if summary.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a campaign goes on with, if it is to.
fn earlier(args: &Args) -> anyhow::Result<Option<Summary>> {
    let Some(path) = args.json.as_ref().filter(|_| args.resume) else { return Ok(None) };
    let figures = || anyhow::Ok(serde_json::from_slice(&fs::read(path)?)?);
    figures().with_context(|| format!("cannot go on from {}", path.display())).map(Some)
}

fn write(args: &Args, summary: &Summary) -> anyhow::Result<()> {
    if let Some(path) = &args.json {
        put(path, &serde_json::to_string_pretty(summary)?)?;
    }
    if let Some(path) = &args.page {
        put(path, &page::page(summary))?;
    }
    Ok(())
}

/// Whole or not at all, whenever the campaign ends.
fn put(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    fs::write(&draft, text)
        .and_then(|()| fs::rename(&draft, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Complaints shown of one run.
const SHOWN: usize = 4;

/// One line for a run, and more for one that went wrong.
fn show(run: &Run, number: u64, runs: u64, left: Duration) {
    let word = match &run.outcome {
        Outcome::Good if run.evidence.missed.is_some() => "good (missed)",
        Outcome::Good => "good",
        Outcome::Explained(_) => "explained",
        Outcome::Corrupted(_) => "CORRUPTED",
        Outcome::Failed(_) => "FAILED",
    };
    let left = left.as_secs();
    println!(
        "{number}/{runs} {word} in {:.1} s: {} ({}:{:02}:{:02} left)",
        run.evidence.took_s,
        run.plan,
        left / 3600,
        left / 60 % 60,
        left % 60
    );
    if let Outcome::Failed(complaints) | Outcome::Corrupted(complaints) = &run.outcome {
        for complaint in complaints.iter().take(SHOWN) {
            println!("    {:?}: {}", complaint.sort, complaint.text.trim_end());
        }
        if complaints.len() > SHOWN {
            println!("    and {} more", complaints.len() - SHOWN);
        }
    }
}

//! `make bench`: measures the bars, writes the raw figures and the pages that show them.

#![forbid(unsafe_code)]

mod around;
mod busy;
mod cost;
mod curve;
mod failover;
mod hosts;
mod load;
mod machine;
mod memory;
mod paced;
mod plan;
mod progress;
mod ready;
mod record;
mod report;
mod response;
mod runtime;
mod scheme;
mod sides;
mod sink;
mod stats;
mod subject;
mod traffic;
mod twin;
mod watched;
mod wire;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};

use crate::failover::LARGE_BYTES;
use crate::plan::{Depth, PAIR_S, Plan};
use crate::progress::Progress;
use crate::record::{Head, Record};
use crate::twin::Twin;

#[derive(Parser)]
#[command(about = "Measures Steadfast side by side with the same server unprotected")]
struct Cli {
    #[command(subcommand)]
    command: Option<What>,
    /// More rows and more repetitions.
    #[arg(long)]
    full: bool,
    /// Only this row, or all rows whose name begins so if none has it, and those that are
    /// measured with them; may be repeated.
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
    /// Measure nothing: say which rows there are, and how long they take.
    #[arg(long)]
    list: bool,
    /// Where the raw figures and the report go.
    #[arg(long, value_name = "FOLDER", default_value = "bench/out")]
    out: PathBuf,
    /// The page of tables to write.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// A copy of the report.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Measure nothing: write the pages from an earlier run's figures.
    #[arg(long, value_name = "JSON")]
    from: Option<PathBuf>,
}

#[derive(Subcommand)]
enum What {
    /// The server of the upload rows.
    #[command(hide = true)]
    Sink { at: SocketAddr },
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    if let Some(What::Sink { at }) = cli.command {
        return sink::serve(at);
    }
    let plan = chosen(&cli)?;
    if cli.list {
        list(&plan);
        return Ok(());
    }
    let record = match &cli.from {
        Some(path) => {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("{} holds no figures", path.display()))?
        }
        None => measure(&cli, &plan)?,
    };
    let html = report::html::page(&record)?;
    fs::create_dir_all(&cli.out).with_context(|| format!("cannot make {}", cli.out.display()))?;
    write(&cli.out.join("report.html"), &html)?;
    if let Some(path) = &cli.report {
        ensure!(
            html.len() < report::html::MOST_BYTES,
            "the report has {} bytes, more than belong into a repository: {} is left as it was",
            html.len(),
            path.display()
        );
        write(path, &html)?;
    }
    if let Some(path) = &cli.page {
        write(path, &report::markdown::page(&record))?;
    }
    let failed: Vec<_> = record.failed().iter().map(|row| row.head.id.as_str()).collect();
    ensure!(failed.is_empty(), "these rows could not be measured: {}", failed.join(", "));
    Ok(())
}

fn chosen(cli: &Cli) -> anyhow::Result<Plan> {
    let mut plan = Plan::of(if cli.full { Depth::Full } else { Depth::Quick });
    let ids: Vec<_> = plan.heads().map(|head| head.id.clone()).collect();
    let named = |id: &str, only: &String| match ids.contains(only) {
        true => id == only,
        false => id.starts_with(only.as_str()),
    };
    let wanted = |heads: &[Head]| {
        let any = |only| heads.iter().any(|head| named(&head.id, only));
        cli.only.is_empty() || cli.only.iter().any(any)
    };
    plan.retain(wanted);
    let hint = if cli.full { "" } else { ", or it needs FULL=1" };
    ensure!(
        plan.heads().next().is_some(),
        "no row begins with {}{hint}: \"bench --list\" says which there are",
        cli.only.join(" or ")
    );
    Ok(plan)
}

fn list(plan: &Plan) {
    for head in plan.heads() {
        println!("{:<28} {:<8} {}", head.id, head.subject.name(), head.title);
    }
    println!("\nabout {:.0} minutes", (plan.estimate_s() / 60.0).ceil());
}

fn measure(cli: &Cli, plan: &Plan) -> anyhow::Result<Record> {
    ready::check()?;
    let (begin, time) = (Instant::now(), SystemTime::now());
    let time = humantime::format_rfc3339_seconds(time).to_string();
    let load_before = machine::load()?;
    if load_before > 0.5 {
        eprintln!(
            "The machine is busy (load {load_before:.1}): what it does else is in the figures."
        );
    }
    let progress = Progress::new(plan.estimate_s());
    let (mut rows, mut graphs) = (Vec::new(), Vec::new());
    let mut add = |(new_rows, new_graphs)| {
        rows.extend::<Vec<_>>(new_rows);
        graphs.extend::<Vec<_>>(new_graphs);
    };
    for (setting, experiments) in &plan.pairs {
        let name = setting.scheme.name();
        progress.begin(&format!("bringing up a pair with {name} and an unprotected server"));
        let twin = Twin::up(*setting, LARGE_BYTES)?;
        progress.done(PAIR_S);
        experiments.iter().for_each(|experiment| add(experiment.run(&twin, &progress)));
    }
    plan.runtime.iter().for_each(|experiment| add(experiment.run(&(), &progress)));
    progress.finish();
    let record = Record {
        time: time.clone(),
        command: command(cli.full, &cli.only),
        commit: machine::commit()?,
        kernel: machine::kernel()?,
        machine: machine::machine()?,
        load: [load_before, machine::load()?],
        took_s: begin.elapsed().as_secs_f64(),
        rows,
        graphs,
    };
    let path = cli.out.join(format!("{}.json", time.replace(':', "-")));
    fs::create_dir_all(&cli.out).with_context(|| format!("cannot make {}", cli.out.display()))?;
    write(&path, &(serde_json::to_string_pretty(&record)? + "\n"))?;
    Ok(record)
}

/// The command that measures these rows.
pub(crate) fn command(full: bool, only: &[String]) -> String {
    let mut command = "make bench".to_owned();
    if full {
        command += " FULL=1";
    }
    match only {
        [] => {}
        [only] => command += &format!(" ONLY={only}"),
        several => command += &format!(" ONLY=\"{}\"", several.join(" ")),
    }
    command
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("Written: {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_ids(words: &[&str]) -> Vec<String> {
        let cli = Cli::parse_from([&["bench"], words].concat());
        let plan = chosen(&cli).unwrap();
        plan.heads().map(|head| head.id.clone()).collect()
    }

    #[test]
    fn every_row_is_chosen_by_its_command() {
        for id in chosen_ids(&["--full"]) {
            let chosen = chosen_ids(&["--full", "--only", &id]);
            assert!(chosen.contains(&id), "{id}: {chosen:?}");
            assert!(
                chosen.len() <= 6,
                "{id} brings more than what is measured with it: {chosen:?}"
            );
        }
    }

    #[test]
    fn rows_are_chosen_by_name_or_by_its_beginning() {
        assert_eq!(chosen_ids(&["--full", "--only", "catch-up"]), ["catch-up"]);
        assert_eq!(chosen_ids(&["--full", "--only", "catch-"]).len(), 5);
        assert_eq!(chosen_ids(&["--only", "takeover-1", "--only", "memory-active"]).len(), 8);
        let cli = Cli::parse_from(["bench", "--only", "clients-"]);
        let error = chosen(&cli).err().unwrap().to_string();
        assert!(error.contains("FULL=1"), "{error}");
    }

    #[test]
    fn a_command_is_as_one_would_type_it() {
        assert_eq!(command(true, &["a".into()]), "make bench FULL=1 ONLY=a");
        assert_eq!(command(false, &["a".into(), "b".into()]), "make bench ONLY=\"a b\"");
    }
}

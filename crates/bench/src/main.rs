//! `make bench`: measures the bars, writes the raw figures and the page that shows them.

#![forbid(unsafe_code)]

mod cost;
mod failover;
mod load;
mod page;
mod record;
mod sink;
mod traffic;
mod twin;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Instant, SystemTime};

use anyhow::Context;
use clap::{Parser, Subcommand};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::record::{Record, Row, Verdict};
use crate::twin::Twin;

/// The 1 GB download, and all others.
const LARGE_BYTES: u64 = 1_000_000_000;

#[derive(Parser)]
#[command(about = "Measures Steadfast side by side with the same server unprotected")]
struct Cli {
    #[command(subcommand)]
    command: Option<What>,
    /// More rows and more repetitions.
    #[arg(long)]
    full: bool,
    /// Only rows whose name begins so; may be repeated.
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
    /// Where the raw figures go.
    #[arg(long, value_name = "FOLDER", default_value = "bench/out")]
    out: PathBuf,
    /// The page to write.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Measure nothing: write the page from an earlier run's figures.
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
    let record = match &cli.from {
        Some(path) => {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            serde_json::from_str(&text)
                .with_context(|| format!("{} holds no figures", path.display()))?
        }
        None => measure(&cli)?,
    };
    if let Some(path) = &cli.page {
        write(path, &page::page(&record))?;
        eprintln!("Written: {}", path.display());
    }
    Ok(())
}

fn measure(cli: &Cli) -> anyhow::Result<Record> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // 10,000 connections here, and as many in the servers, which inherit the limit.
    anyhow::ensure!(hard >= 12_000, "only {hard} files may be open: raise the limit (ulimit -Hn)");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("cannot open many files")?;
    let (begin, time) = (Instant::now(), SystemTime::now());
    let time = humantime::format_rfc3339_seconds(time).to_string();
    let load_before = load()?;
    eprintln!("Bringing up a protected pair and an unprotected server…");
    let twin = Twin::up(LARGE_BYTES, traffic::BULK, traffic::BULK_BYTES)?;
    let wanted =
        |id: &str| cli.only.is_empty() || cli.only.iter().any(|o| id.starts_with(o.as_str()));
    let mut rows = traffic::rows(&twin, cli.full, &wanted);
    rows.extend(failover::rows(&twin, cli.full, &wanted));
    drop(twin);
    let mut command = "make bench".to_owned();
    if cli.full {
        command += " FULL=1";
    }
    for only in &cli.only {
        command += &format!(" ONLY={only}");
    }
    let record = Record {
        time: time.clone(),
        command,
        commit: commit()?,
        kernel: nix::sys::utsname::uname()?.release().to_string_lossy().into_owned(),
        machine: machine()?,
        load: [load_before, load()?],
        took_s: begin.elapsed().as_secs_f64(),
        rows,
    };
    let path = cli.out.join(format!("{}.json", time.replace(':', "-")));
    fs::create_dir_all(&cli.out).with_context(|| format!("cannot make {}", cli.out.display()))?;
    write(&path, &(serde_json::to_string_pretty(&record)? + "\n"))?;
    eprintln!("Raw figures: {}", path.display());
    Ok(record)
}

/// One line for a person who watches.
pub(crate) fn say(row: &Row) {
    let figure = row.figure().map_or("–".to_owned(), |f| format!("{f:.3}"));
    let verdict = match (row.verdict(), &row.samples) {
        (Verdict::Failed, record::Samples::Failed(why)) => format!("not measured: {why}"),
        (verdict, _) => format!("{verdict:?}"),
    };
    eprintln!("{:<16} {figure:>10}  {verdict}  ({}, {:?})", row.id, row.unit, row.bar);
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Processes that ran or were ready, mean of the last minute.
fn load() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    let first = text.split(' ').next().context("/proc/loadavg is empty")?;
    Ok(first.parse()?)
}

fn machine() -> anyhow::Result<String> {
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown processor", |m| m.trim_start_matches([' ', '\t', ':']));
    let count = std::thread::available_parallelism()?;
    let memory = fs::read_to_string("/proc/meminfo")?;
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: f64 = kib.and_then(|k| k.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
    Ok(format!("{count} × {model}, {:.0} GiB", kib / (1 << 20) as f64))
}

fn commit() -> anyhow::Result<String> {
    let git = |args: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("git").args(args).output().context("cannot run git")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let head = git(&["rev-parse", "--short", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--", "crates", "Cargo.lock"])?.is_empty();
    Ok(format!(
        "{}{}",
        if head.is_empty() { "unknown" } else { &head },
        if changed { "+" } else { "" }
    ))
}

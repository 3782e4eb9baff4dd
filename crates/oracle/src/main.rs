//! `oracle FILE..`: judges captures and prints the verdict.

#![forbid(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;
use oracle::{Capture, Class, Story};

/// Judges packet captures of a pair of nodes.
///
/// The files are named after the ports they were taken at: a.svc.pcap, b.clu.2.pcap. Exit status
/// 1: something is wrong; 2: the captures do not tell enough.
#[derive(Parser, Debug)]
struct Args {
    /// What the test knew; story.json beside the first file unless given.
    #[arg(long)]
    story: Option<PathBuf>,
    /// Findings of these classes are shown, but change no exit status.
    #[arg(long, value_enum)]
    tolerate: Vec<Tolerable>,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// The captures.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Tolerable {
    EdgeShrunk,
    Replaced,
    Volatile,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let beside = || args.files[0].with_file_name("story.json");
    let path = args.story.clone().unwrap_or_else(beside);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("cannot read the story {}", path.display()))?;
    let story: Story = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a story", path.display()))?;
    let mut captures = Vec::new();
    for file in &args.files {
        let capture = Capture::named(file);
        ensure!(capture.is_some(), "{} is not named after a port, as a.svc.pcap", file.display());
        captures.extend(capture);
    }
    let verdict = oracle::judge(&captures, &story)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&verdict)?);
    } else {
        println!("{verdict}");
    }
    let class = |tolerable: &Tolerable| match tolerable {
        Tolerable::EdgeShrunk => Class::EdgeShrunk,
        Tolerable::Replaced => Class::Replaced,
        Tolerable::Volatile => Class::Volatile,
    };
    let tolerated: Vec<Class> = args.tolerate.iter().map(class).collect();
    Ok(match (verdict.without(&tolerated).is_empty(), verdict.is_conclusive()) {
        (true, true) => ExitCode::SUCCESS,
        (false, true) => ExitCode::from(1),
        (_, false) => ExitCode::from(2),
    })
}

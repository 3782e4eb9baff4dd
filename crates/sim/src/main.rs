//! Thousands of seeded histories of a pair of nodes; exit 1 and the whole story of the first
//! that breaks an invariant.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use cluster::ArbiterKind;
use sim::{Sabotage, Setup, run_many, story};

/// Simulates pairs of nodes under faults and checks their invariants after every step.
#[derive(Parser)]
struct Args {
    /// Number of runs for each kind of arbiter.
    #[arg(long, default_value_t = 10_000)]
    runs: u64,
    /// Seed of the first run; the following runs count up from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Who decides when both links are silent.
    #[arg(long, value_enum, default_value_t = Arbiter::Both)]
    arbiter: Arbiter,
    /// Print the story of the run even if it is good (of the first run only).
    #[arg(long)]
    story: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Arbiter {
    /// Nobody: fail-stop holds.
    None,
    /// An outside party: any loss and any partition.
    External,
    /// First the one, then the other.
    Both,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // A panic is a finding like any other, told with its story below.
    std::panic::set_hook(Box::new(|_| {}));
    let kinds = [("none", ArbiterKind::None), ("external", ArbiterKind::External)];
    for (name, arbiter) in kinds {
        let wanted = match args.arbiter {
            Arbiter::None => arbiter == ArbiterKind::None,
            Arbiter::External => arbiter == ArbiterKind::External,
            Arbiter::Both => true,
        };
        let setup = Setup { arbiter, sabotage: Sabotage::None };
        if wanted && args.story {
            println!("{}", story(args.seed, setup).0.join("\n"));
        }
        if wanted && !simulate(&args, name, setup) {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn simulate(args: &Args, name: &str, setup: Setup) -> bool {
    let begun = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let tenth = (args.runs / 10).max(1);
    let summary = run_many(args.seed..args.seed + args.runs, threads, setup, |n| {
        if n > 0 && n.is_multiple_of(tenth) {
            eprintln!("arbiter {name}: {n} of {} runs", args.runs);
        }
    });
    if let Some((seed, violation)) = summary.failure {
        let (lines, again) = story(seed, setup);
        println!("{}", lines.join("\n"));
        assert_eq!(again.err().as_ref(), Some(&violation), "a run must depend on its seed alone");
        println!("arbiter {name}, seed {seed}: {violation}");
        println!("again: cargo run --release -p sim -- --arbiter {name} --runs 1 --seed {seed}");
        return false;
    }
    println!("arbiter {name}: {summary}");
    println!("took {:.1} s", begun.elapsed().as_secs_f64());
    true
}

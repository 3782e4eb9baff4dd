//! Many runs: plays them one after the other, plays again what the machine disturbed, and keeps
//! the files of those that must be looked at.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use demo::clock::now_ns;
use demo::config::Roles;
use e2e::machine::{stood_still_since, wait_for_calm};
use serde::Serialize;

use crate::evidence::Evidence;
use crate::plan::{Plan, Wanted};
use crate::play::play;
use crate::rules::{Complaint, Outcome, Sort, judge};
use crate::summary::Summary;

/// How often a run is played before the machine is given up on.
const ATTEMPTS: u32 = 8;

/// Silence after which the nodes of a campaign suspect each other, unless another is chosen: what a
/// user gets unasked.
pub const DETECTION_MS: u32 = 100;

/// What to play.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many runs.
    pub runs: u64,
    /// The first one's seed; the following runs count up from it.
    pub seed: u64,
    /// No run begins after so long.
    pub within: Option<Duration>,
    /// Seeds of others are passed over.
    pub wanted: Wanted,
    /// The daemon's program.
    pub product: PathBuf,
    /// Who serves while both nodes live.
    pub roles: Roles,
    /// Silence after which the nodes suspect each other.
    pub detection_ms: u32,
    /// Where the files of runs go that must be looked at, a folder for each seed.
    pub keep: PathBuf,
    /// The figures of an earlier part of the same campaign, which goes on behind it.
    pub earlier: Option<Summary>,
}

/// A run that is over.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What was to happen.
    pub plan: Plan,
    /// What was seen.
    pub evidence: Evidence,
    /// What that means.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How often the machine disturbed it before.
    pub disturbed: u32,
}

/// A campaign under way.
#[derive(Debug)]
pub struct Campaign {
    options: Options,
    started: Instant,
    summary: Summary,
}

impl Campaign {
    /// Checks whether it can be played here.
    ///
    /// # Errors
    /// The machine cannot run a lab, or the product is not there.
    pub fn new(options: Options) -> anyhow::Result<Campaign> {
        lab::preflight()?;
        ensure!(
            options.product.is_file(),
            "the product is not at {}: run make build, or name it in STEADFAST_BIN",
            options.product.display()
        );
        // A process's first lab starts a thread that the others share: no run shall be blamed for it.
        drop(lab::Lab::builder().up()?);
        let mut summary = Summary::new(&options)?;
        if let Some(earlier) = &options.earlier {
            let other = |what| format!("cannot go on with a campaign that differs in {what}");
            summary.is_like(earlier).map_err(other).map_err(anyhow::Error::msg)?;
            summary = earlier.clone();
        }
        Ok(Campaign { options, started: Instant::now(), summary })
    }

    /// Plays everything. `seen` is told of each run, of the figures so far, and how long the other
    /// runs may take.
    ///
    /// # Errors
    /// Files cannot be kept; or `seen`'s.
    pub fn play(
        mut self,
        mut seen: impl FnMut(&Run, &Summary, Duration) -> anyhow::Result<()>,
    ) -> anyhow::Result<Summary> {
        let plans = Plan::from(self.summary.next_seed, self.options.wanted);
        let (earlier_runs, earlier_s) = (self.summary.all.runs, self.summary.took_s);
        for (number, plan) in (earlier_runs + 1..=self.options.runs).zip(plans) {
            if self.options.within.is_some_and(|time| self.started.elapsed() >= time) {
                break;
            }
            let run = self.run(plan)?;
            self.summary.add(&run, &self.options.keep);
            let elapsed = self.started.elapsed();
            let each = elapsed / u32::try_from(number - earlier_runs).unwrap_or(u32::MAX);
            let left = each * u32::try_from(self.options.runs - number).unwrap_or(u32::MAX);
            let most = self.options.within.unwrap_or(Duration::MAX).saturating_sub(elapsed);
            self.summary.took_s = earlier_s + elapsed.as_secs_f64();
            seen(&run, &self.summary, left.min(most))?;
        }
        Ok(self.summary)
    }

    fn run(&self, plan: Plan) -> anyhow::Result<Run> {
        let dir = self.options.keep.join(plan.seed.to_string());
        let mut disturbed = 0;
        loop {
            forget(&dir)?;
            let began_ns = now_ns();
            let (evidence, outcome) = match play(&plan, &self.options, &dir) {
                Ok(evidence) => {
                    let outcome = judge(&plan, &evidence);
                    (evidence, outcome)
                }
                Err(e) => {
                    let text = format!("{e:#}");
                    let complaint = Complaint {
                        sort: Sort::NotPlayed,
                        early: false,
                        text,
                        class: None,
                        at_ns: None,
                        flow_began_ns: None,
                    };
                    let disturbed = stood_still_since(began_ns).map(|took| format!("{took:?}"));
                    let evidence = Evidence { disturbed, ..Evidence::default() };
                    (evidence, Outcome::Failed(vec![complaint]))
                }
            };
            // Errors that flipped bits would explain, and a moment that did not come, as well: who did
            // what was in vain cannot be told.
            let spoilt = evidence.missed.is_some()
                || matches!(outcome, Outcome::Failed(_) | Outcome::Corrupted(_));
            if spoilt && evidence.disturbed.is_some() && disturbed + 1 < ATTEMPTS {
                disturbed += 1;
                wait_for_calm();
                continue;
            }
            let run = Run { plan, evidence, outcome, disturbed };
            if matches!(run.outcome, Outcome::Failed(_) | Outcome::Corrupted(_)) {
                keep(&run, self.options.roles, &dir)?;
            }
            return Ok(run);
        }
    }
}

/// The command that repeats a run.
pub fn command(seed: u64, roles: Roles) -> String {
    format!("make torture RUNS=1 SEED={seed}{}", argument(roles))
}

/// As an argument of `make torture`, behind a space.
pub fn argument(roles: Roles) -> &'static str {
    match roles {
        Roles::Single => "",
        Roles::Dual => " DUAL=1",
    }
}

/// Removes what an earlier run of this seed left.
fn forget(dir: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Puts what is known of a run beside its captures.
fn keep(run: &Run, roles: Roles, dir: &Path) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("run.json"), serde_json::to_string_pretty(run)?)?;
        let said: String = run
            .evidence
            .said
            .iter()
            .map(|s| format!("{:>16.3} {} {}: {}\n", s.at_ns as f64 / 1e6, s.node, s.event, s.text))
            .collect();
        let done: String = run
            .evidence
            .done
            .iter()
            .map(|d| format!("{:>16.3} {}\n", d.at_ns as f64 / 1e6, d.what))
            .collect();
        let text = format!(
            "{}\n\nagain: {}\n\n{:#?}\n\n{}\n\ndone (ms):\n{done}\nsaid (ms):\n{said}",
            run.plan,
            command(run.plan.seed, roles),
            run.outcome,
            run.evidence.last_words.join("\n")
        );
        fs::write(dir.join("run.txt"), text)
    };
    write().with_context(|| format!("cannot keep the run in {}", dir.display()))
}

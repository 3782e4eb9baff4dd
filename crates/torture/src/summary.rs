//! The figures of a campaign.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use demo::config::Roles;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use anyhow::Context;

use crate::campaign::{Options, Run, command};
use crate::evidence::{Evidence, Job};
use crate::fault::Kind;
use crate::plan::{Scheme, Wanted};
use crate::rules::{Complaint, Outcome};

/// A distribution of times, ms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// How many times.
    pub count: usize,
    /// Half are no longer.
    pub p50: f64,
    /// Nine of ten are no longer.
    pub p90: f64,
    /// Ninety-nine of a hundred are no longer.
    pub p99: f64,
    /// None is longer.
    pub max: f64,
}

impl Distribution {
    /// Of these times, ms.
    pub fn of(times_ms: &[f64]) -> Distribution {
        let mut sorted = times_ms.to_vec();
        sorted.sort_by(f64::total_cmp);
        // Nearest rank.
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or(0.0)
        };
        Distribution { count: sorted.len(), p50: at(50), p90: at(90), p99: at(99), max: at(100) }
    }
}

/// The runs of one kind, or at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Runs.
    pub runs: u64,
    /// Nobody noticed anything.
    pub good: u64,
    /// What was noticed had to be.
    pub explained: u64,
    /// What was noticed comes of flipped bits.
    pub corrupted: u64,
    /// What must not be.
    pub failed: u64,
    /// Runs in which a moment did not come, so that not everything was done.
    pub missed: u64,
    /// A client's longest time without progress after the fault, one for each client.
    pub gaps: Distribution,
    /// All of them, ms: a campaign that goes on needs them.
    gaps_ms: Vec<f64>,
}

impl Row {
    fn add(&mut self, run: &Run) {
        self.runs += 1;
        *match run.outcome {
            Outcome::Good => &mut self.good,
            Outcome::Explained(_) => &mut self.explained,
            Outcome::Corrupted(_) => &mut self.corrupted,
            Outcome::Failed(_) => &mut self.failed,
        } += 1;
        self.missed += u64::from(run.evidence.missed.is_some());
        let clients = run.evidence.clients.iter().filter(|client| !client.noticed());
        self.gaps_ms.extend(clients.filter_map(|client| client.gap_ms));
        self.gaps = Distribution::of(&self.gaps_ms);
    }
}

/// What was done to the services of a scheme, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SchemeRow {
    /// Runs and gaps.
    pub row: Row,
    /// Hosts, servers and daemons that were killed.
    pub kills: u64,
    /// Connections, or a shop's clients, that saw an error, explained or not.
    pub errors: u64,
    /// Requests: a download, an upload and an idle connection's last one count as one.
    pub requests: u64,
    /// Right replies to them.
    pub replies: u64,
    /// Requests executed by both nodes, one after the other, as they may be. Only a shop can tell.
    pub executed_twice: u64,
}

impl SchemeRow {
    fn add(&mut self, run: &Run) {
        let evidence = &run.evidence;
        self.row.add(run);
        let done = run.plan.steps.iter().zip(&evidence.done);
        self.kills += done.filter(|(step, _)| step.act.victim().is_some()).count() as u64;
        self.errors += errors(evidence);
        if let Some(shop) = &evidence.shop {
            self.requests += shop.requests;
            self.replies += shop.replies;
            self.executed_twice += (shop.twice.len() + shop.unanswered.len()) as u64;
        } else {
            let requests = evidence.clients.len() as u64 + evidence.idle as u64;
            self.requests += requests;
            self.replies += requests - errors(evidence);
        }
    }
}

fn errors(evidence: &Evidence) -> u64 {
    let noticed = evidence.clients.iter().filter(|client| client.noticed()).count();
    (noticed + evidence.idle_failures.len()) as u64
}

/// A run that must be looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bad {
    /// Its seed.
    pub seed: u64,
    /// Its plan, in words.
    pub plan: String,
    /// What is wrong.
    pub complaints: Vec<Complaint>,
    /// What the nodes said of themselves.
    pub last_words: Vec<String>,
    /// Where its files are.
    pub files: String,
    /// The command that repeats it.
    pub again: String,
}

/// The figures of a campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The first seed.
    pub seed: u64,
    /// Which seeds were played.
    pub wanted: Wanted,
    /// The seed of the next run, if there is to be one.
    pub next_seed: u64,
    /// Kernel and processors.
    pub machine: String,
    /// SHA-256 of the daemon's program.
    pub product: String,
    /// Both nodes serve, each a share of the connections.
    #[serde(default)]
    pub dual: bool,
    /// Silence after which the nodes suspected each other.
    pub detection_ms: u32,
    /// By scheme.
    pub schemes: BTreeMap<Scheme, SchemeRow>,
    /// All runs.
    pub all: Row,
    /// By kind of fault.
    pub kinds: BTreeMap<Kind, Row>,
    /// By the moment of the last fault.
    pub moments: BTreeMap<String, Row>,
    /// Downloads.
    pub downloads: u64,
    /// Uploads.
    pub uploads: u64,
    /// Clients of shops.
    pub shoppers: u64,
    /// Idle connections.
    pub idle: u64,
    /// Connections, or a shop's clients, that saw an error, in all runs.
    pub client_visible_errors: u64,
    /// Of these, those in runs that failed.
    pub unexplained_errors: u64,
    /// Flows that the product says it has reset.
    pub resets: u64,
    /// Runs by the rule that explains them.
    pub rules: BTreeMap<String, u64>,
    /// Servers and daemons that flipped bits made crash while no client noticed.
    pub flip_crashes_recovered: u64,
    /// Runs with little memory in which the limit was in the way.
    pub starved: u64,
    /// Of these, those in which daemon and server had not felt it by themselves.
    pub prompted: u64,
    /// Processes killed in them for want of memory.
    pub starved_to_death: u64,
    /// Runs played again because the machine stood still.
    pub stalls: u64,
    /// Segments that the oracle judged.
    pub segments_judged: u64,
    /// The oracle's findings by class, tolerated ones included.
    pub findings: BTreeMap<String, u64>,
    /// Runs without the oracle's judgement, since captures lacked frames.
    pub blind: u64,
    /// Runs that failed.
    pub failures: Vec<Bad>,
    /// Runs with corruption that flipped bits explain.
    pub corruptions: Vec<Bad>,
    /// How long it took, s.
    pub took_s: f64,
}

impl Summary {
    pub(crate) fn new(options: &Options) -> anyhow::Result<Summary> {
        let product = fs::read(&options.product)
            .with_context(|| format!("cannot read {}", options.product.display()))?;
        let product = Sha256::digest(product).iter().map(|byte| format!("{byte:02x}")).collect();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Summary {
            seed: options.seed,
            wanted: options.wanted,
            next_seed: options.seed,
            product,
            dual: options.roles == Roles::Dual,
            machine: format!("Linux {}, {processors} processors", kernel.trim()),
            detection_ms: options.detection_ms,
            schemes: BTreeMap::new(),
            all: Row::default(),
            kinds: BTreeMap::new(),
            moments: BTreeMap::new(),
            downloads: 0,
            uploads: 0,
            shoppers: 0,
            idle: 0,
            client_visible_errors: 0,
            unexplained_errors: 0,
            resets: 0,
            rules: BTreeMap::new(),
            flip_crashes_recovered: 0,
            starved: 0,
            prompted: 0,
            starved_to_death: 0,
            stalls: 0,
            segments_judged: 0,
            findings: BTreeMap::new(),
            blind: 0,
            failures: Vec::new(),
            corruptions: Vec::new(),
            took_s: 0.0,
        })
    }

    /// Who serves while both nodes live.
    pub fn roles(&self) -> Roles {
        if self.dual { Roles::Dual } else { Roles::Single }
    }

    /// Whether another campaign's runs may be counted with those of this one.
    pub(crate) fn is_like(&self, other: &Summary) -> Result<(), &'static str> {
        let alike = [
            (self.seed == other.seed, "its first seed"),
            (self.wanted == other.wanted, "which seeds it plays"),
            (self.machine == other.machine, "the machine"),
            (self.detection_ms == other.detection_ms, "the detection time"),
            (self.product == other.product, "the daemon's program"),
            (self.dual == other.dual, "who serves"),
        ];
        alike.iter().find(|(alike, _)| !alike).map_or(Ok(()), |(_, what)| Err(*what))
    }

    /// Adds a run; its files are in a folder of `keep` if it must be looked at.
    pub(crate) fn add(&mut self, run: &Run, keep: &Path) {
        let (plan, evidence) = (&run.plan, &run.evidence);
        self.next_seed = plan.seed + 1;
        self.all.add(run);
        self.schemes.entry(plan.scheme).or_default().add(run);
        self.kinds.entry(plan.kind).or_default().add(run);
        if let Some(step) = plan.steps.last() {
            self.moments.entry(step.moment.name()).or_default().add(run);
        }
        for client in &evidence.clients {
            *match client.job {
                Job::Download => &mut self.downloads,
                Job::Upload => &mut self.uploads,
                Job::Shopping => &mut self.shoppers,
            } += 1;
        }
        self.idle += evidence.idle as u64;
        let errors = errors(evidence);
        self.client_visible_errors += errors;
        self.resets += evidence.resets as u64;
        if let Some(felt) = evidence.starved.filter(|felt| felt.reached > 0) {
            self.starved += 1;
            self.prompted += u64::from(evidence.prompted);
            self.starved_to_death += felt.killed;
        }
        self.stalls += u64::from(run.disturbed);
        self.segments_judged += evidence.oracle.segments;
        self.blind += u64::from(evidence.oracle.blind);
        for (class, count) in &evidence.oracle.classes {
            *self.findings.entry(class.clone()).or_default() += count;
        }
        let roles = self.roles();
        let bad = |complaints: &[Complaint]| Bad {
            seed: plan.seed,
            plan: plan.to_string(),
            complaints: complaints.to_vec(),
            last_words: evidence.last_words.clone(),
            files: keep.join(plan.seed.to_string()).display().to_string(),
            again: command(plan.seed, roles),
        };
        match &run.outcome {
            Outcome::Good => {
                if [Kind::FlipServer, Kind::FlipDaemon].contains(&plan.kind) {
                    self.flip_crashes_recovered += u64::from(evidence.crashed());
                }
            }
            Outcome::Explained(rules) => {
                for rule in rules {
                    *self.rules.entry((*rule).to_owned()).or_default() += 1;
                }
            }
            Outcome::Corrupted(complaints) => self.corruptions.push(bad(complaints)),
            Outcome::Failed(complaints) => {
                self.unexplained_errors += errors;
                self.failures.push(bad(complaints));
            }
        }
    }

    /// Whether nothing happened that must not.
    pub fn is_good(&self) -> bool {
        self.failures.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::rules::Sort;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let expected = Distribution { count: 200, p50: 100.0, p90: 180.0, p99: 198.0, max: 200.0 };
        assert_eq!(Distribution::of(&times), expected);
        assert_eq!(Distribution::of(&[7.0]).p99, 7.0);
        assert_eq!(Distribution::of(&[]), Distribution::default());
    }

    #[test]
    fn a_campaign_goes_on_only_with_what_is_like_it() {
        let options = Options {
            runs: 3,
            seed: 7,
            within: None,
            wanted: Wanted::kind(Kind::KillHost),
            product: std::env::current_exe().unwrap(),
            detection_ms: 100,
            roles: Roles::Single,
            keep: "kept".into(),
            earlier: None,
        };
        let mut summary = Summary::new(&options).unwrap();
        let plan = Plan::new(7);
        let evidence = Evidence { took_s: 1.5, resets: 2, ..Evidence::default() };
        let complaint = Complaint {
            sort: Sort::Oracle,
            early: false,
            text: "a byte has changed".into(),
            class: Some("I6".into()),
            at_ns: Some(3),
            flow_began_ns: None,
        };
        let outcome = Outcome::Failed(vec![complaint]);
        summary.add(&Run { plan, evidence, outcome, disturbed: 1 }, &options.keep);
        summary.all.gaps_ms.extend([120.5, 7.25]);
        let text = serde_json::to_string_pretty(&summary).unwrap();
        let mut read: Summary = serde_json::from_str(&text).unwrap();
        assert_eq!(read, summary);
        assert_eq!(read.next_seed, 8);
        let anew = Summary::new(&options).unwrap();
        assert_eq!(anew.is_like(&read), Ok(()));
        read.product = "another".into();
        assert_eq!(anew.is_like(&read), Err("the daemon's program"));
        read.seed = 8;
        assert_eq!(anew.is_like(&read), Err("its first seed"));
    }
}

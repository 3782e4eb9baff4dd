//! A short campaign: a run of each kind of fault, with fixed seeds.

use std::path::{Path, PathBuf};

use torture::{Campaign, Kind, Options, Plan};

/// Seeds of fast runs, chosen so that every kind comes up once, with servers that keep connections
/// open and ones that a takeover has to replay.
const SEEDS: [(Kind, u64); 15] = [
    (Kind::KillHost, 61),
    (Kind::KillServer, 154),
    (Kind::CrashServer, 34),
    (Kind::AbortServer, 123),
    (Kind::KillDaemon, 556),
    (Kind::Hang, 53),
    (Kind::Cut, 24),
    (Kind::BadCables, 181),
    (Kind::BadCablesKill, 867),
    (Kind::Slow, 20),
    (Kind::FlipServer, 471),
    (Kind::FlipDaemon, 158),
    (Kind::BackupThenPrimary, 125),
    (Kind::KillDuringTakeover, 320),
    (Kind::DaemonDuringTakeover, 289),
];

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/torture is two deep")
}

/// `$STEADFAST_BIN`, else what `make build` makes.
fn product() -> PathBuf {
    let built = || workspace().join("target/release/steadfast");
    std::env::var_os("STEADFAST_BIN").map_or_else(built, PathBuf::from)
}

#[test]
fn a_run_of_each_kind() {
    let mut bad = Vec::new();
    for (kind, seed) in SEEDS {
        assert_eq!(Plan::new(seed).kind, kind, "the plans have changed: choose seeds anew");
        let campaign = Campaign::new(Options {
            runs: 1,
            seed,
            within: None,
            only: None,
            product: product(),
            keep: workspace().join("target/torture"),
        });
        let campaign = campaign.unwrap_or_else(|e| panic!("{e:#}"));
        let summary = campaign
            .play(|run, _, _| eprintln!("{} in {:.1} s", run.plan, run.evidence.took_s))
            .unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!(summary.all.missed, 0, "seed {seed}: its moment did not come");
        bad.extend(summary.failures);
    }
    assert!(Kind::ALL.iter().all(|kind| SEEDS.iter().any(|(k, _)| k == kind)));
    assert!(bad.is_empty(), "{bad:#?}");
}

//! A short campaign: a run of each kind of fault, with fixed seeds.

use std::path::{Path, PathBuf};

use torture::{Campaign, Kind, Options, Plan, Wanted};

/// Seeds of fast runs, chosen so that every kind comes up once, and both schemes do: with a shop,
/// servers that keep connections open, and ones that a takeover has to replay.
const SEEDS: [(Kind, u64); 17] = [
    (Kind::KillHost, 61),
    (Kind::KillServer, 32),
    (Kind::CrashServer, 154),
    (Kind::AbortServer, 95),
    (Kind::KillDaemon, 22),
    (Kind::Hang, 89),
    (Kind::Cut, 70),
    (Kind::Partition, 24),
    (Kind::BadCables, 69),
    (Kind::BadCablesKill, 98),
    (Kind::Slow, 30),
    (Kind::Memory, 280),
    (Kind::FlipServer, 46),
    (Kind::FlipDaemon, 448),
    (Kind::BackupThenPrimary, 74),
    (Kind::KillDuringTakeover, 82),
    (Kind::DaemonDuringTakeover, 11),
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
            wanted: Wanted::default(),
            product: product(),
            detection_ms: e2e::machine::DETECTION_MS,
            roles: demo::config::Roles::Single,
            keep: workspace().join("target/torture"),
            earlier: None,
        });
        let campaign = campaign.unwrap_or_else(|e| panic!("{e:#}"));
        let summary = campaign
            .play(|run, _, _| {
                eprintln!("{} in {:.1} s", run.plan, run.evidence.took_s);
                Ok(())
            })
            .unwrap_or_else(|e| panic!("{e:#}"));
        assert_eq!(summary.all.missed, 0, "seed {seed}: its moment did not come");
        bad.extend(summary.failures);
    }
    assert!(Kind::ALL.iter().all(|kind| SEEDS.iter().any(|(k, _)| k == kind)));
    assert!(bad.is_empty(), "{bad:#?}");
}

//! The real pair survives; every pair with a bug put in on purpose is caught.

use cluster::ArbiterKind::{self, External, None as FailStop};
use sim::{Sabotage, Setup, Violation, run, run_many, story};

const RUNS: u64 = 500;

fn check(arbiter: ArbiterKind) {
    let setup = Setup { arbiter, sabotage: Sabotage::None };
    let summary = run_many(1..1 + RUNS, 2, setup, |_| {});
    if let Some((seed, violation)) = summary.failure {
        panic!("seed {seed}: {violation}\n{}", story(seed, setup).0.join("\n"));
    }
    assert_eq!(summary.runs, RUNS);
    assert!(summary.steps > RUNS * 500, "the runs do something: {} steps", summary.steps);
    let deaths = summary.failovers_us.len();
    assert!(deaths > 300, "most runs end in service and measure a failover: {deaths}");
}

#[test]
fn fail_stop_pairs_keep_the_invariants_and_recover() {
    check(FailStop);
}

#[test]
fn pairs_with_an_arbiter_keep_the_invariants_under_any_partition() {
    check(External);
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    let setup = Setup { arbiter: FailStop, sabotage: Sabotage::None };
    let (first, outcome) = story(7, setup);
    assert!(first.len() > 100 && outcome.is_ok());
    assert_eq!(first, story(7, setup).0);
    assert_ne!(first, story(8, setup).0);
}

/// The first run that fails must show `wanted`.
fn caught(arbiter: ArbiterKind, sabotage: Sabotage, wanted: impl Fn(&Violation) -> bool) {
    let setup = Setup { arbiter, sabotage };
    let failure = (1..20_000).find_map(|seed| Some((seed, run(seed, setup).err()?)));
    let Some((seed, violation)) = failure else { panic!("{sabotage:?} was not caught") };
    assert!(wanted(&violation), "{sabotage:?} under {arbiter:?}, seed {seed}: {violation}");
}

fn two_emitters(violation: &Violation) -> bool {
    matches!(violation, Violation::TwoEmitters(..))
}

/// Both emit, or one goes on with flows that the other has carried on meanwhile.
fn served_at_once(violation: &Violation) -> bool {
    two_emitters(violation) || matches!(violation, Violation::StaleFlows(_))
}

#[test]
fn a_lease_that_never_ends_is_caught() {
    caught(FailStop, Sabotage::EndlessLease, two_emitters);
    caught(External, Sabotage::EndlessLease, two_emitters);
}

#[test]
fn a_promotion_before_the_lease_has_run_out_is_caught() {
    caught(External, Sabotage::HastyBackup, two_emitters);
}

#[test]
fn a_deadline_counted_from_when_it_is_written_is_caught() {
    caught(External, Sabotage::RelativeLease, served_at_once);
}

#[test]
fn flows_kept_from_an_earlier_epoch_are_caught() {
    let stale = |violation: &Violation| matches!(violation, Violation::StaleFlows(_));
    caught(FailStop, Sabotage::KeepsFlows, stale);
}

#[test]
fn two_nodes_that_do_not_ask_the_arbiter_are_caught() {
    caught(External, Sabotage::IgnoresArbiter, served_at_once);
}

#[test]
fn an_arbiter_that_forgets_the_kernel_of_a_dead_daemon_is_caught() {
    caught(External, Sabotage::HastyArbiter, two_emitters);
}

#[test]
fn a_service_without_an_address_is_caught() {
    let unsettled = |violation: &Violation| matches!(violation, Violation::NotSettled { .. });
    caught(FailStop, Sabotage::NoAddress, unsettled);
}

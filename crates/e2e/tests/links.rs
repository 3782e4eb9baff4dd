//! Links fail, both hosts live: no split brain, and no connection breaks that a node can carry.

use demo::pair::other;
use e2e::{MB, Moment, PATIENCE, Scenario, Stage, undisturbed};

/// Cuts a link in mid-transfer; downloads and idle connections must not notice.
fn cut(stage: &Stage, link: &str) -> u64 {
    let (idle, batch) = (stage.open_idle(), stage.start_downloads());
    batch.wait_for(Moment::Middle);
    let cut_ns = stage.cut(link);
    stage.finish_idle(idle);
    batch.finish().expect_identical().expect_no_stall_above(PATIENCE, cut_ns);
    stage.expect_one_primary(cut_ns);
    cut_ns
}

fn stage() -> Stage {
    Scenario::new().size(25 * MB).up()
}

/// The primary is silent on one link only: the two agree over the other.
#[test]
fn the_cluster_link_is_cut() {
    undisturbed(|| {
        let stage = stage();
        let primary = stage.primary();
        let cut_ns = cut(&stage, "cluster");
        assert_eq!(stage.primary(), primary, "one silent link is no reason to move");
        stage.expect_no("promoted", cut_ns);
        stage.heal("cluster");
        stage.pair.wait_ready().unwrap_or_else(|e| panic!("{e:#}"));
        cut(&stage, &format!("{primary}.clu"));
    });
}

/// Nobody can hear the primary any more, and it knows.
#[test]
fn the_primarys_service_link_is_cut() {
    undisturbed(|| {
        let stage = stage();
        let primary = stage.primary();
        cut(&stage, &format!("{primary}.svc"));
        assert_eq!(stage.primary(), other(primary));
        stage.heal(&format!("{primary}.svc"));
        stage.pair.wait_ready().unwrap_or_else(|e| panic!("{e:#}"));
        stage.start_downloads().finish().expect_identical();
    });
}

/// Clients' segments reach the backup first: the address must move.
#[test]
fn the_backups_service_link_is_cut() {
    undisturbed(|| {
        let stage = stage();
        let primary = stage.primary();
        cut(&stage, &format!("{}.svc", other(primary)));
        assert_eq!(stage.primary(), primary);
        stage.heal(&format!("{}.svc", other(primary)));
        stage.pair.wait_ready().unwrap_or_else(|e| panic!("{e:#}"));
        stage.start_downloads().finish().expect_identical();
    });
}

/// Nobody hears the primary, and it hears nobody: the other one serves. Once it is plugged in again
/// it follows, although its name is the lower one as a rule, and has sent nothing in between.
#[test]
fn the_primary_is_cut_off_and_returns() {
    undisturbed(|| {
        let stage = stage();
        let primary = stage.primary();
        let (idle, batch) = (stage.open_idle(), stage.start_downloads());
        batch.wait_for(Moment::Middle);
        let cut_ns = stage.cut(primary);
        stage.wait_for_status(other(primary), "takes over", |s| s.role == "primary");
        batch.wait_for_more(MB);
        stage.heal(primary);
        stage.finish_idle(idle);
        batch.finish().expect_identical().expect_no_stall_above(PATIENCE, cut_ns);
        stage.wait_for_status(other(primary), "has a backup again", |s| s.duplex);
        stage.expect_one_primary(cut_ns);
        stage.expect_silence(primary, cut_ns);
    });
}

/// Nobody hears the backup. It does not take itself for the last one.
#[test]
fn the_backup_is_cut_off_and_returns() {
    undisturbed(|| {
        let stage = stage();
        let primary = stage.primary();
        let (idle, batch) = (stage.open_idle(), stage.start_downloads());
        batch.wait_for(Moment::Middle);
        let cut_ns = stage.cut(other(primary));
        stage.wait_for_status(primary, "serves alone", |s| s.role == "primary" && !s.duplex);
        batch.wait_for_more(MB);
        stage.heal(other(primary));
        stage.finish_idle(idle);
        batch.finish().expect_identical().expect_no_stall_above(PATIENCE, cut_ns);
        stage.wait_for_status(primary, "has a backup again", |s| s.duplex);
        stage.expect_one_primary(cut_ns);
        stage.expect_no("promoted", cut_ns);
    });
}

/// A blink shorter than the detection time.
#[test]
fn both_links_blink() {
    undisturbed(|| {
        let stage = stage();
        let batch = stage.start_downloads();
        batch.wait_for(Moment::Middle);
        let primary = stage.primary();
        let cut_ns = stage.cut(primary);
        stage.heal(primary);
        batch.finish().expect_identical();
        stage.expect_one_primary(cut_ns);
    });
}

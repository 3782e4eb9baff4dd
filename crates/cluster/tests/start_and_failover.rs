//! Start, detection, promotion, pauses and rejoin of a pair without an arbiter.

mod pair;

use cluster::{Action, Epoch, Event, Link, Notice, PromoteReason, Role, SimplexReason};
use pair::{A, B, MS, Pair};

fn promoted(reason: PromoteReason) -> impl Fn(&Action) -> bool {
    move |action| matches!(action, Action::Promote { reason: r, .. } if *r == reason)
}

#[test]
fn two_fresh_nodes_make_the_lower_name_primary_and_the_other_its_backup() {
    let mut pair = Pair::new();
    pair.event(A, Event::ServiceReady(true));
    pair.event(B, Event::ServiceReady(true));
    pair.expect_within(200, "duplex", |p| p.is_duplex(A));
    // A backup begins with nothing that it could mistake for the primary's flows.
    assert!(pair.did(B, |a| *a == Action::DiscardFlows));
    assert!(!pair.did(B, |a| matches!(a, Action::Promote { .. })));
}

#[test]
fn the_preferred_node_wins_over_the_lower_name() {
    let mut pair = Pair::with(|config| config.prefers_primary = config.name == "b");
    pair.event(A, Event::ServiceReady(true));
    pair.event(B, Event::ServiceReady(true));
    pair.expect_within(200, "duplex under b", |p| p.is_duplex(B));
}

#[test]
fn a_backup_whose_servers_do_not_listen_is_not_enrolled() {
    let mut pair = Pair::new();
    pair.event(A, Event::ServiceReady(true));
    pair.run_ms(1000);
    assert!(pair.is_simplex(A) && pair.nodes[A].holds_address && !pair.nodes[B].holds_address);
    pair.event(B, Event::ServiceReady(true));
    pair.expect_within(100, "duplex once ready", |p| p.is_duplex(A));
}

#[test]
fn a_lone_node_serves_after_the_start_up_wait_and_not_before() {
    let mut pair = Pair::new();
    pair.kill(A);
    pair.run_ms(2_950);
    assert_eq!(pair.nodes[B].role, Role::Starting);
    assert!(!pair.nodes[B].holds_address);
    pair.expect_within(100, "b serves alone", |p| p.is_simplex(B));
    assert!(pair.nodes[B].holds_address);
}

#[test]
fn a_node_that_finds_a_primary_becomes_its_backup_whatever_the_names() {
    let mut pair = Pair::new();
    pair.kill(A);
    pair.event(B, Event::ServiceReady(true));
    pair.expect_within(3_200, "b serves alone", |p| p.is_simplex(B));
    pair.restart(A);
    pair.expect_within(200, "a protects b", |p| p.is_duplex(B));
}

#[test]
fn invariant_3_the_backup_promotes_at_the_detection_time_and_after_the_lease() {
    for detection in [20, 100, 1_000] {
        let mut pair = Pair::duplex_with(|config| config.detection = detection * MS);
        let epoch = pair.nodes[A].epoch;
        let killed = pair.now;
        pair.nodes[A].paused = true; // Its kernel may go on emitting: the fence must close.
        pair.expect_within(detection + detection / 5 + 5, "b promotes", |p| {
            p.did(B, promoted(PromoteReason::PrimarySilent))
        });
        // The pair asserted at each step that not both may emit. No time is lost besides.
        let took = pair.now - killed;
        assert!(took <= detection * MS + MS, "took {took} ns");
        assert!(took >= detection * MS * 3 / 4, "took {took} ns");
        assert_eq!(pair.nodes[B].epoch, epoch.plus(1));
        assert!(pair.is_simplex(B) && pair.nodes[B].holds_address);
    }
}

#[test]
fn the_lease_alone_keeps_a_silenced_primary_from_emitting() {
    let mut pair = Pair::duplex();
    pair.pause(A);
    pair.run_ms(65);
    assert!(pair.may_emit(A), "the lease still runs");
    pair.run_ms(26);
    assert!(!pair.may_emit(A), "the lease has run out, and the queue has ten more milliseconds");
}

#[test]
fn a_primary_paused_for_five_seconds_never_emits_again_on_waking() {
    let mut pair = Pair::duplex();
    pair.pause(A);
    pair.run_ms(5_000);
    assert!(pair.is_simplex(B));
    pair.clear_logs();
    pair.resume(A);
    assert!(!pair.may_emit(A));
    pair.expect_within(300, "a is the backup of b", |p| p.is_duplex(B));
    assert!(pair.did(A, |a| *a == Action::DiscardFlows));
    assert!(pair.reported(A, |n| matches!(n, Notice::Paused { .. })));
    assert!(pair.reported(A, |n| matches!(n, Notice::Superseded { .. })));
    // What a says on waking, before it knows, is no split brain to b either.
    for node in [A, B] {
        assert!(!pair.reported(node, |n| matches!(n, Notice::TwoPrimaries { .. })));
    }
}

#[test]
fn a_paused_backup_wakes_without_taking_over() {
    let mut pair = Pair::duplex();
    pair.pause(B);
    pair.expect_within(130, "a goes simplex", |p| p.is_simplex(A));
    assert!(pair.nodes[A].holds_address);
    assert!(
        pair.reported(A, |n| matches!(
            n,
            Notice::Simplex { reason: SimplexReason::BackupSilent, .. }
        ))
    );
    pair.run_ms(4_000);
    pair.resume(B);
    assert!(!pair.may_emit(B));
    pair.expect_within(300, "duplex again", |p| p.is_duplex(A));
    assert!(pair.did(B, |a| *a == Action::DiscardFlows));
    assert!(!pair.did(B, |a| matches!(a, Action::Promote { .. })));
}

#[test]
fn both_nodes_paused_at_once_find_back_without_a_second_primary() {
    let mut pair = Pair::duplex();
    pair.pause(A);
    pair.pause(B);
    pair.run_ms(2_000);
    pair.resume(B);
    pair.run_ms(500);
    assert!(!pair.is_primary(B), "b cannot know whether a went on without it");
    pair.resume(A);
    pair.expect_within(500, "duplex", |p| p.is_duplex(A) || p.is_duplex(B));
}

#[test]
fn a_backup_in_doubt_that_stops_for_moments_still_serves_one_day() {
    let mut pair = Pair::duplex();
    pair.pause(B);
    // With the time since its last heartbeat, most of a detection time.
    pair.run_ms(60);
    pair.kill(A);
    pair.resume(B);
    // Each stop lasts more than half a detection time: silence begins anew with it.
    for _ in 0..5 {
        pair.run_ms(550);
        assert!(!pair.is_primary(B), "b cannot know whether a went on without it");
        pair.pause(B);
        pair.run_ms(50);
        pair.resume(B);
    }
    assert!(pair.reported(B, |n| matches!(n, Notice::InDoubt { .. })));
    pair.expect_within(250, "b serves alone", |p| p.is_simplex(B));
    assert!(pair.did(B, |a| *a == Action::DiscardFlows));
}

#[test]
fn a_primary_that_wakes_beside_a_frozen_successor_waits_for_its_fence() {
    let mut pair = Pair::duplex();
    pair.pause(A);
    pair.expect_within(130, "b promotes", |p| p.is_simplex(B));
    // The successor freezes before it has told anybody; its kernel goes on for the solo lease.
    pair.flush_network();
    pair.pause(B);
    pair.resume(A);
    pair.run_ms(1_500);
    assert!(pair.may_emit(B) && !pair.may_emit(A));
    pair.expect_within(2_000, "a serves alone", |p| p.is_simplex(A));
    assert!(pair.did(A, |a| *a == Action::DiscardFlows), "b may have served the flows meanwhile");
    pair.resume(B);
    pair.expect_within(500, "b is the backup of a", |p| p.is_duplex(A));
}

#[test]
fn a_lone_primary_that_pauses_beyond_its_lease_asks_before_it_serves_again() {
    let mut pair = Pair::duplex();
    pair.kill(B);
    pair.expect_within(130, "a goes simplex", |p| p.is_simplex(A));
    pair.run_ms(500);
    pair.pause(A);
    pair.run_ms(1_900);
    assert!(pair.may_emit(A), "short pauses do not stop a lone primary");
    pair.run_ms(200);
    assert!(!pair.may_emit(A));
    pair.restart(B);
    pair.run_ms(100);
    pair.resume(A);
    pair.expect_within(500, "the one with the newer epoch serves", |p| p.is_duplex(A));
}

#[test]
fn a_lone_primary_that_runs_for_instants_only_does_not_extend_its_lease() {
    let mut pair = Pair::duplex();
    pair.kill(B);
    pair.expect_within(130, "a goes simplex", |p| p.is_simplex(A));
    pair.run_ms(500);
    pair.pause(A);
    pair.restart(B);
    // It wakes for an instant, is not heard, and freezes again; the returned node cannot tell
    // that from death. The pair asserts that its start finds the other fence closed.
    pair.run_ms(1_900);
    pair.resume(A);
    pair.flush_network();
    pair.pause(A);
    pair.expect_within(1_500, "b serves alone", |p| p.is_simplex(B));
}

#[test]
fn the_death_of_the_backup_leaves_a_simplex_primary_with_the_address() {
    let mut pair = Pair::duplex();
    let epoch = pair.nodes[A].epoch;
    pair.kill(B);
    let took = pair.expect_within(130, "a goes simplex", |p| p.is_simplex(A));
    assert!(took >= 75.0, "took {took} ms");
    assert_eq!(pair.nodes[A].epoch, epoch.plus(1));
    assert!(pair.nodes[A].holds_address);
    assert!(!pair.did(A, |a| *a == Action::DiscardFlows), "its own flows go on");
}

#[test]
fn a_returned_node_protects_again_and_survives_the_next_death() {
    let mut pair = Pair::duplex();
    pair.kill(A);
    pair.expect_within(130, "b promotes", |p| p.is_simplex(B));
    pair.run_ms(1_000);
    pair.restart(A);
    pair.expect_within(200, "duplex under b", |p| p.is_duplex(B));
    pair.run_ms(100);
    pair.clear_logs();
    pair.kill(B);
    pair.expect_within(130, "a promotes", |p| p.is_simplex(A));
    assert!(pair.did(A, promoted(PromoteReason::PrimarySilent)));
}

#[test]
fn the_address_moves_only_after_the_backup_has_the_new_tables() {
    let mut pair = Pair::new();
    pair.event(A, Event::ServiceReady(true));
    pair.event(B, Event::ServiceReady(true));
    pair.expect_within(500, "duplex", |p| p.is_duplex(A));
    let armed =
        |a: &Action| matches!(a, Action::SetRole { role: Role::Backup { armed: true }, .. });
    let position = |what: &dyn Fn(&Action) -> bool| {
        pair.nodes[B].log.iter().position(|(_, a)| what(a)).expect("it happened")
    };
    assert!(position(&armed) < position(&|a| *a == Action::HoldAddress(true)));
    let dropped = pair.nodes[A].log.iter().rev().find(|(_, a)| *a == Action::HoldAddress(false));
    assert!(dropped.expect("a let go").0 > pair.when(B, armed).expect("b armed"));
}

#[test]
fn a_primary_restarted_within_the_detection_time_is_replaced_at_once() {
    let mut pair = Pair::duplex();
    pair.restart(A);
    let took = pair.expect_within(60, "b promotes", |p| p.is_simplex(B));
    assert!(took < 30.0, "took {took} ms");
    assert!(pair.did(B, promoted(PromoteReason::PrimaryRestarted)));
    pair.expect_within(200, "duplex under b", |p| p.is_duplex(B));
}

#[test]
fn a_backup_restarted_within_the_detection_time_does_not_count_as_the_old_one() {
    let mut pair = Pair::duplex();
    pair.restart(B);
    pair.expect_within(60, "a notices", |p| p.changed_role(A));
    assert!(pair.reported(A, |n| matches!(
        n,
        Notice::Simplex { reason: SimplexReason::BackupRestarted, .. }
    )));
    pair.expect_within(200, "duplex again", |p| p.is_duplex(A));
}

#[test]
fn losing_single_heartbeats_changes_nothing() {
    let mut pair = Pair::duplex();
    for round in 0..20 {
        pair.partition();
        pair.run_ms(30 + round);
        pair.heal_all();
        pair.run_ms(45);
    }
    assert!(pair.is_duplex(A) && !pair.changed_role(A) && !pair.changed_role(B));
}

#[test]
fn after_a_wrong_judgement_two_primaries_become_one_and_say_so() {
    let mut pair = Pair::duplex();
    pair.kill(B);
    pair.expect_within(130, "a goes simplex", |p| p.is_simplex(A));
    // Epochs far apart, both serving: built by hand, since the rules do not allow it.
    let mut rival = last_heartbeat(&pair, A);
    rival.incarnation.0 = 9;
    rival.epoch = Epoch(40);
    pair.event(A, Event::Heartbeat { link: Link::Cluster, msg: rival.clone() });
    assert!(!pair.may_emit(A));
    assert_eq!(
        (pair.nodes[A].role, pair.nodes[A].epoch),
        (Role::Backup { armed: false }, Epoch(40))
    );
    assert!(pair.reported(A, |n| matches!(n, Notice::TwoPrimaries { yielded: true, .. })));

    let mut pair = Pair::duplex();
    pair.kill(B);
    pair.expect_within(130, "a goes simplex", |p| p.is_simplex(A));
    rival.epoch = pair.nodes[A].epoch;
    pair.event(A, Event::Heartbeat { link: Link::Cluster, msg: rival });
    assert!(pair.may_emit(A), "equal epochs: the lower name stays");
    assert!(pair.reported(A, |n| matches!(n, Notice::TwoPrimaries { yielded: false, .. })));
}

fn last_heartbeat(pair: &Pair, n: usize) -> cluster::Heartbeat {
    let sent = pair.nodes[n].log.iter().rev().find_map(|(_, action)| match action {
        Action::Send { msg, .. } => Some(msg.clone()),
        _ => None,
    });
    sent.expect("nodes send heartbeats")
}

#[test]
fn a_primary_that_was_away_trusts_no_life_that_came_to_its_epoch_meanwhile() {
    let mut pair = Pair::duplex();
    pair.kill(B);
    pair.expect_within(130, "a serves alone", |p| p.is_simplex(A));
    pair.run_ms(100);
    let late = pair.nodes[A].log.iter().rev().find_map(|(_, action)| match action {
        Action::Send { link, msg } => Some(Event::Heartbeat { link: *link, msg: msg.clone() }),
        _ => None,
    });
    pair.flush_network();
    pair.pause(A);
    // A new life of b that remembers no epoch hears nobody and serves, in a lower epoch.
    pair.restart(B);
    pair.expect_within(3_500, "b serves alone", |p| p.is_simplex(B));
    assert!(pair.nodes[B].epoch < pair.nodes[A].epoch);
    // A copy of what a said long ago was under way all the time.
    pair.event(B, late.expect("a sent heartbeats"));
    assert!(!pair.may_emit(B), "the higher epoch wins");
    pair.clear_logs();
    pair.resume(A);
    pair.expect_within(3_500, "one of them serves", |p| p.may_emit(A) || p.may_emit(B));
    assert!(pair.did(A, |action| *action == Action::DiscardFlows), "b has served since");
}

#[test]
fn a_primary_that_restarts_in_a_later_epoch_has_gone_on_without_its_backup() {
    for later in [0, 1] {
        let mut pair = Pair::duplex();
        pair.run_ms(20);
        let last = pair.nodes[A].log.iter().rev().find_map(|(_, action)| match action {
            Action::Send { msg, .. } => Some(msg.clone()),
            _ => None,
        });
        let mut msg = last.expect("a sends heartbeats");
        pair.kill(A);
        pair.flush_network();
        msg.incarnation.0 += 1;
        (msg.seq, msg.role, msg.enrolled) = (1, Role::Starting, None);
        msg.epoch = msg.epoch.plus(later);
        pair.event(B, Event::Heartbeat { link: Link::Cluster, msg });
        let promoted = |action: &Action| matches!(action, Action::Promote { .. });
        assert_eq!(pair.did(B, promoted), later == 0);
        assert_eq!(pair.did(B, |action| *action == Action::DiscardFlows), later == 1);
    }
}

//! Hand-overs, server crashes, shutdown, and links that break one at a time.

mod pair;

use cluster::{
    Action, Event, Evidence, HandoverReason, Link, Notice, PromoteReason, Refusal, Role,
};
use pair::{A, B, Pair};

const SWITCHOVER: Event = Event::SwitchoverRequested { by_user: true };

fn handed_over(action: &Action) -> bool {
    matches!(action, Action::Promote { reason: PromoteReason::HandedOver, .. })
}

fn handing_over(reason: HandoverReason) -> impl Fn(&Notice) -> bool {
    move |notice| matches!(notice, Notice::HandingOver { reason: r, .. } if *r == reason)
}

fn refused(reason: Refusal) -> impl Fn(&Notice) -> bool {
    move |notice| *notice == Notice::SwitchoverRefused { reason }
}

#[test]
fn a_switchover_takes_one_journey_and_the_old_primary_becomes_the_backup() {
    let mut pair = Pair::duplex();
    let epoch = pair.nodes[A].epoch;
    pair.event(A, SWITCHOVER);
    assert!(!pair.may_emit(A), "fenced before the peer hears of it");
    let took = pair.expect_within(5, "b promotes", |p| p.is_simplex(B));
    assert!(took < 1.0, "took {took} ms");
    assert!(pair.did(B, handed_over));
    assert_eq!(pair.nodes[B].epoch, epoch.plus(1));
    pair.expect_within(200, "duplex under b", |p| p.is_duplex(B));
    pair.event(B, SWITCHOVER);
    pair.expect_within(200, "and back", |p| p.is_duplex(A));
}

#[test]
fn a_switchover_without_an_able_backup_is_refused_with_the_reason() {
    let mut pair = Pair::duplex();
    pair.event(B, SWITCHOVER);
    assert!(pair.reported(B, refused(Refusal::NotPrimary)));

    pair.event(B, Event::ServiceReady(false));
    pair.run_ms(50);
    pair.event(A, SWITCHOVER);
    assert!(pair.reported(A, refused(Refusal::BackupNotReady)));

    pair.kill(B);
    pair.expect_within(130, "a goes simplex", |p| p.is_simplex(A));
    pair.event(A, SWITCHOVER);
    assert!(pair.reported(A, refused(Refusal::NoBackup)));
    assert!(pair.may_emit(A));
}

#[test]
fn a_server_crash_on_the_primary_moves_the_flows_at_once() {
    let mut pair = Pair::duplex();
    pair.nodes[A].fence_until = 0; // What the kernel does in the instant of the crash.
    pair.event(A, Event::ServerCrashed);
    let took = pair.expect_within(5, "b promotes", |p| p.is_simplex(B));
    assert!(took < 1.0, "took {took} ms");
    assert!(pair.did(B, handed_over));
    assert!(pair.reported(A, handing_over(HandoverReason::ServerCrashed)));
    pair.run_ms(500);
    assert!(pair.is_simplex(B), "a node without a server is no new backup");
    pair.event(A, Event::ServiceReady(true));
    pair.expect_within(100, "duplex under b", |p| p.is_duplex(B));
}

#[test]
fn a_server_crash_without_an_able_backup_opens_the_fence_again() {
    let mut pair = Pair::duplex();
    pair.event(B, Event::ServiceReady(false));
    pair.run_ms(50);
    pair.nodes[A].fence_until = 0;
    pair.event(A, Event::ServerCrashed);
    assert!(pair.may_emit(A), "duplex, but the backup cannot serve");

    // As soon as the backup can, it should.
    pair.event(B, Event::ServiceReady(true));
    pair.expect_within(50, "b takes over", |p| p.is_simplex(B));
    assert!(pair.reported(A, handing_over(HandoverReason::ServiceNotReady)));

    pair.kill(A);
    pair.nodes[B].fence_until = 0;
    pair.event(B, Event::ServerCrashed);
    assert!(pair.may_emit(B), "simplex");
}

/// Both hosts died; the one that came back first has no server that starts.
#[test]
fn a_primary_whose_servers_never_came_up_gives_way_to_a_backup_whose_servers_did() {
    let mut pair = Pair::new();
    pair.kill(B);
    pair.expect_within(3_200, "a serves alone, or would", |p| p.is_simplex(A));
    pair.restart(B);
    pair.event(B, Event::ServiceReady(true));
    pair.expect_within(200, "b takes over", |p| p.is_simplex(B));
    assert!(pair.reported(A, handing_over(HandoverReason::ServiceNotReady)));
    pair.run_ms(5_000);
    assert!(pair.is_simplex(B), "and keeps the role: a has nothing to offer");
    pair.event(A, Event::ServiceReady(true));
    pair.expect_within(100, "duplex under b", |p| p.is_duplex(B));
}

#[test]
fn a_backup_whose_server_is_down_keeps_the_log_and_promotes_if_it_must() {
    let mut pair = Pair::duplex();
    pair.event(B, Event::ServerCrashed);
    pair.run_ms(300);
    assert!(pair.is_duplex(A) && !pair.did(B, |a| *a == Action::DiscardFlows));
    pair.kill(A);
    pair.expect_within(130, "b promotes", |p| p.is_simplex(B));
}

#[test]
fn the_shutdown_of_a_primary_is_a_switchover() {
    let mut pair = Pair::duplex();
    pair.event(A, Event::Shutdown);
    pair.expect_within(5, "b promotes", |p| p.is_simplex(B));
    pair.expect_within(100, "a may exit", |p| p.did(A, |a| *a == Action::Stop));
    let served = pair.when(B, handed_over).expect("promoted");
    assert!(pair.when(A, |a| *a == Action::Stop).expect("stopped") > served);
    pair.run_ms(500);
    assert!(pair.is_simplex(B), "a leaving node is not enrolled");
}

#[test]
fn the_shutdown_of_a_backup_costs_no_detection_time() {
    let mut pair = Pair::duplex();
    pair.event(B, Event::Shutdown);
    assert!(!pair.nodes[B].holds_address, "let go before the primary takes it");
    let took = pair.expect_within(5, "a simplex", |p| p.is_simplex(A) && p.nodes[A].holds_address);
    assert!(took < 1.0, "took {took} ms");
    assert!(!pair.did(A, |a| *a == Action::DiscardFlows), "flows unharmed");
    pair.expect_within(100, "b may exit", |p| p.did(B, |a| *a == Action::Stop));
}

#[test]
fn the_shutdown_of_a_lone_primary_fences_and_ends() {
    let mut pair = Pair::duplex();
    pair.kill(B);
    pair.expect_within(130, "a goes simplex", |p| p.is_simplex(A));
    pair.event(A, Event::Shutdown);
    assert!(!pair.may_emit(A) && pair.did(A, |a| *a == Action::Stop));
}

#[test]
fn a_cut_cluster_link_moves_the_relay_and_nothing_else() {
    let mut pair = Pair::duplex();
    pair.cut(Link::Cluster);
    pair.expect_within(250, "relay over the service link", |p| {
        p.nodes.iter().all(|node| node.relay_via == Link::Service)
    });
    pair.run_ms(1_000);
    assert!(pair.is_duplex(A) && !pair.changed_role(A) && !pair.changed_role(B));
    pair.heal(Link::Cluster);
    pair.run_ms(300);
    assert_eq!(pair.nodes[B].relay_via, Link::Service, "a healed link must prove itself");
    pair.expect_within(500, "relay back", |p| {
        p.nodes.iter().all(|node| node.relay_via == Link::Cluster)
    });
}

#[test]
fn a_cut_that_only_one_direction_feels_moves_the_relay_on_both_nodes() {
    let mut pair = Pair::duplex();
    pair.cut_from(B, Link::Cluster);
    pair.expect_within(250, "relay over the service link", |p| {
        p.nodes.iter().all(|node| node.relay_via == Link::Service)
    });
    assert!(pair.is_duplex(A) && !pair.changed_role(A));
}

#[test]
fn a_primary_cut_off_from_its_clients_hands_over() {
    let mut pair = Pair::duplex();
    pair.nodes[A].clients_answer = false;
    pair.cut(Link::Service);
    pair.expect_within(250, "b serves", |p| p.is_simplex(B));
    assert!(pair.reported(A, handing_over(HandoverReason::ServiceLinkDead)));
    pair.run_ms(1_000);
    assert!(pair.is_simplex(B), "a cannot hold the address, so it is no backup");
    pair.nodes[A].clients_answer = true;
    pair.heal(Link::Service);
    pair.expect_within(1_500, "duplex under b", |p| p.is_duplex(B));
}

#[test]
fn a_primary_that_loses_its_carrier_hands_over_without_delay() {
    let mut pair = Pair::duplex();
    pair.cut(Link::Service);
    pair.event(A, Event::Carrier { link: Link::Service, up: false });
    let took = pair.expect_within(250, "b serves", |p| p.is_simplex(B));
    assert!(took < 1.0, "took {took} ms");
}

#[test]
fn a_backup_cut_off_from_the_clients_gives_the_address_back() {
    let mut pair = Pair::duplex();
    pair.nodes[B].clients_answer = false;
    pair.cut(Link::Service);
    pair.expect_within(250, "a simplex", |p| p.is_simplex(A) && p.nodes[A].holds_address);
    let given = pair.when(B, |a| *a == Action::HoldAddress(false)).expect("let go");
    let taken = pair.when(A, |a| *a == Action::HoldAddress(true)).expect("taken");
    assert!(given < taken);
    assert!(!pair.did(A, |a| *a == Action::Fence || *a == Action::DiscardFlows));
    pair.nodes[B].clients_answer = true;
    pair.heal(Link::Service);
    pair.expect_within(1_500, "duplex again", |p| p.is_duplex(A));
}

#[test]
fn when_nobody_answers_either_node_all_stays_as_it_is() {
    let mut pair = Pair::duplex();
    pair.nodes[A].clients_answer = false;
    pair.nodes[B].clients_answer = false;
    pair.cut(Link::Service);
    pair.run_ms(1_000);
    assert!(pair.is_duplex(A) && !pair.changed_role(A) && !pair.changed_role(B));
    pair.kill(A);
    pair.run_ms(5_000);
    assert!(!pair.is_primary(B), "it may be b that everybody has lost sight of");
    assert!(pair.reported(B, |n| *n == Notice::CutOff));
    pair.nodes[B].clients_answer = true;
    pair.run_ms(2_900);
    assert!(!pair.is_primary(B), "a may stand still, and its kernel go on");
    pair.expect_within(700, "b serves", |p| p.nodes[B].role == Role::Primary { duplex: false });
    assert!(pair.did(B, |a| *a == Action::DiscardFlows), "a may have served alone before it died");
}

#[test]
fn a_late_answer_is_as_good_as_one_in_time() {
    let mut pair = Pair::duplex();
    pair.nodes[B].clients_answer = false;
    pair.kill(A);
    pair.run_ms(115);
    assert!(!pair.is_primary(B));
    pair.event(B, Event::ServiceLinkEvidence(Evidence::Alive));
    assert!(!pair.is_primary(B), "whoever went on without it must be heard first");
    pair.expect_within(31, "b promotes", |p| p.is_simplex(B));
    assert!(pair.did(B, |a| matches!(a, Action::Promote { .. })));
}

#[test]
fn whoever_is_cut_off_from_everybody_gives_way() {
    for (cut_off, other) in [(A, B), (B, A)] {
        for ms in [30, 60, 90, 110, 200, 2_000, 5_000] {
            let mut pair = Pair::duplex();
            pair.nodes[cut_off].clients_answer = false;
            pair.partition();
            pair.run_ms(ms);
            let was_primary = pair.may_emit(cut_off);
            assert!(ms < 100 || (!was_primary && pair.is_simplex(other)), "after {ms} ms");
            pair.heal_all();
            pair.nodes[cut_off].clients_answer = true;
            pair.expect_within(1_000, "duplex", |p| p.is_duplex(A) || p.is_duplex(B));
            assert!(ms < 100 || pair.is_duplex(other), "after {ms} ms");
            for node in [A, B] {
                assert!(!pair.reported(node, |n| matches!(n, Notice::TwoPrimaries { .. })));
            }
        }
    }
}

#[test]
fn a_hand_over_to_a_backup_that_dies_ends_in_service_by_the_old_primary() {
    let mut pair = Pair::duplex();
    pair.kill(B);
    pair.event(A, SWITCHOVER);
    assert_eq!(pair.nodes[A].role, Role::Fenced);
    // The backup could have promoted and be frozen: only the alone wait proves otherwise.
    pair.run_ms(2_800);
    assert!(!pair.may_emit(A));
    pair.expect_within(400, "a serves alone", |p| p.is_simplex(A));
}

#[test]
fn a_late_word_of_a_fenced_primary_is_not_obeyed() {
    let mut pair = Pair::duplex();
    pair.pause(B);
    pair.run_ms(90);
    pair.event(A, SWITCHOVER); // Still within the detection time.
    pair.expect_within(3_500, "a gave b up", |p| p.is_simplex(A));
    pair.resume(B);
    pair.run_ms(500);
    assert!(!pair.did(B, |a| matches!(a, Action::Promote { .. })));
}

//! An outside arbiter, hostile input, and settings.

mod pair;

use cluster::{
    Action, ArbiterKind, Claim, Config, ConfigError, Core, Echo, Epoch, Event, Evidence,
    Incarnation, Link, Notice, Role, Verdict,
};
use pair::{A, B, MS, Pair};

fn with_arbiter() -> Pair {
    let mut pair = Pair::with(|config| config.arbiter = ArbiterKind::External);
    pair.event(A, Event::ServiceReady(true));
    pair.event(B, Event::ServiceReady(true));
    pair.expect_within(500, "duplex without asking anybody", |p| p.is_duplex(A));
    pair.run_ms(300);
    pair.clear_logs();
    assert!(pair.asked.is_empty());
    pair
}

/// Grants every lease claim to one node and nothing to the other.
fn favour<const WINNER: usize>(n: usize, epoch: Epoch, claim: Claim) -> Verdict {
    if n == WINNER && claim == Claim::Lease { Verdict::Granted { epoch } } else { Verdict::Refused }
}

#[test]
fn in_a_partition_the_arbiters_choice_serves_and_the_other_does_not() {
    for winner in [A, B] {
        let mut pair = with_arbiter();
        pair.arbiter = Some(if winner == A { favour::<A> } else { favour::<B> });
        pair.partition();
        pair.expect_within(130, "the winner serves", |p| p.is_simplex(winner));
        pair.run_ms(5_000);
        assert!(pair.is_simplex(winner) && !pair.may_emit(1 - winner));
        pair.heal_all();
        pair.expect_within(300, "duplex under the winner", |p| p.is_duplex(winner));
        assert!(!pair.reported(winner, |n| matches!(n, Notice::TwoPrimaries { .. })));
    }
}

#[test]
fn without_an_answer_nobody_serves_and_the_question_is_repeated() {
    let mut pair = with_arbiter();
    pair.partition();
    pair.run_ms(2_000);
    assert!(!pair.may_emit(A) && !pair.may_emit(B));
    assert!(pair.asked.iter().filter(|(n, ..)| *n == B).count() > 10);
    pair.heal_all();
    pair.expect_within(200, "the lease is renewed", |p| p.is_duplex(A));
    assert!(!pair.changed_role(A) && !pair.changed_role(B), "as if nothing had happened");
}

#[test]
fn a_grant_that_comes_after_the_peer_is_back_is_not_used() {
    let mut pair = with_arbiter();
    pair.partition();
    pair.run_ms(200);
    let (_, epoch, _) = *pair.asked.iter().find(|(n, ..)| *n == B).expect("b asked");
    pair.heal_all();
    pair.expect_within(200, "the lease is renewed", |p| p.is_duplex(A));
    pair.event(B, Event::Arbiter { asked: epoch, verdict: Verdict::Granted { epoch } });
    pair.run_ms(500);
    assert!(pair.is_duplex(A));
}

#[test]
fn a_lone_start_asks_without_standing_and_takes_the_epoch_it_is_given() {
    let mut pair = Pair::with(|config| config.arbiter = ArbiterKind::External);
    pair.kill(A);
    pair.arbiter = Some(|_, _, claim| {
        assert_eq!(claim, Claim::Alone);
        Verdict::Granted { epoch: Epoch(77) }
    });
    pair.expect_within(3_200, "b serves alone", |p| p.is_simplex(B));
    assert_eq!(pair.nodes[B].epoch, Epoch(77));
    // A mad answer harms nobody.
    let mut pair = Pair::with(|config| config.arbiter = ArbiterKind::External);
    pair.kill(A);
    pair.arbiter = Some(|_, _, _| Verdict::Granted { epoch: Epoch(u64::MAX) });
    pair.expect_within(3_200, "b serves alone", |p| p.is_simplex(B));
    assert_eq!(pair.nodes[B].epoch, Epoch(1));
}

#[test]
fn a_lease_granted_in_another_epoch_answers_another_question() {
    for (extra, serves) in [(0, true), (1, false)] {
        let mut pair = with_arbiter();
        pair.partition();
        pair.run_ms(200);
        let (_, epoch, claim) = *pair.asked.iter().find(|(n, ..)| *n == B).expect("b asked");
        assert_eq!(claim, Claim::Lease);
        let verdict = Verdict::Granted { epoch: epoch.plus(extra) };
        pair.event(B, Event::Arbiter { asked: epoch, verdict });
        assert_eq!(pair.is_simplex(B), serves);
    }
}

/// A grant of `b` as `a` last heard it, changed.
fn grant(pair: &Pair, change: impl Fn(&mut cluster::Heartbeat)) -> Event {
    let sent = pair.nodes[B].log.iter().rev().find_map(|(_, action)| match action {
        Action::Send { msg, .. } => Some(msg.clone()),
        _ => None,
    });
    let mut msg = sent.expect("b sends heartbeats");
    msg.seq += 1;
    // It echoes the newest heartbeat of `a`.
    let newest = pair.nodes[A].log.iter().rev().find_map(|(_, action)| match action {
        Action::Send { msg, .. } => Some(msg.clone()),
        _ => None,
    });
    let newest = newest.expect("a sends heartbeats");
    msg.echo =
        Some(Echo { incarnation: newest.incarnation, seq: newest.seq, sent_at: newest.sent_at });
    change(&mut msg);
    Event::Heartbeat { link: Link::Cluster, msg }
}

#[test]
fn only_an_armed_backup_of_this_epoch_and_life_renews_the_lease() {
    let renews = |change: fn(&mut cluster::Heartbeat)| {
        let mut pair = Pair::duplex();
        // Let heartbeats of `a` go unanswered, so that there is something to grant.
        pair.cut_from(B, Link::Cluster);
        pair.cut_from(B, Link::Service);
        pair.run_ms(50);
        pair.clear_logs();
        pair.run_ms(25);
        let before = pair.nodes[A].fence_until;
        let event = grant(&pair, change);
        pair.event(A, event);
        pair.nodes[A].role == (Role::Primary { duplex: true }) && pair.nodes[A].fence_until > before
    };
    assert!(renews(|_| {}), "the untouched grant counts");
    assert!(!renews(|msg| msg.epoch.0 -= 1), "older epoch");
    assert!(!renews(|msg| msg.incarnation.0 += 1), "another life of the backup");
    assert!(!renews(|msg| msg.role = Role::Backup { armed: false }), "not armed");
    assert!(!renews(|msg| msg.role = Role::Starting), "not a backup");
    assert!(!renews(|msg| msg.echo = None), "no echo");
    assert!(!renews(|msg| msg.seq = 1), "an overtaken copy");
    assert!(!renews(|msg| msg.echo.as_mut().unwrap().incarnation.0 += 1), "echo of another life");
    assert!(!renews(|msg| msg.echo.as_mut().unwrap().sent_at = u64::MAX), "echo from the future");
}

#[test]
fn heartbeats_with_wild_values_never_panic() {
    let values = [0, 1, 2, 3, 1 << 40, (1 << 62) - 1, 1 << 62, u64::MAX - 1, u64::MAX];
    let roles = [
        Role::Starting,
        Role::Fenced,
        Role::Backup { armed: false },
        Role::Backup { armed: true },
        Role::Primary { duplex: false },
        Role::Primary { duplex: true },
    ];
    // A fixed multiplicative generator: the point is breadth, not randomness.
    let mut state = 1u64;
    let mut pick = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % n
    };
    for _ in 0..300 {
        let mut pair = if pick(2) == 0 { Pair::duplex() } else { Pair::new() };
        pair.run_ms(60);
        pair.kill(A); // A forger has its place.
        for _ in 0..20 {
            let Some((_, Action::Send { mut msg, .. })) = pair.nodes[A]
                .log
                .iter()
                .rev()
                .find(|(_, action)| matches!(action, Action::Send { .. }))
                .cloned()
            else {
                break;
            };
            msg.role = roles[pick(roles.len())];
            msg.epoch = Epoch(values[pick(values.len())]);
            msg.seq = msg.seq.saturating_add(values[pick(values.len())]);
            msg.sent_at = values[pick(values.len())];
            let (life, enrolled) = (values[pick(values.len())], pick(3));
            msg.incarnation = if pick(2) == 0 { Incarnation(life) } else { msg.incarnation };
            msg.enrolled = (enrolled > 0).then_some(Incarnation(1));
            msg.extra = vec![0; [0, 256, 257][pick(3)]];
            let link = Link::ALL[pick(2)];
            pair.event(B, Event::Heartbeat { link, msg });
            pair.run_ms([0, 1, 30, 120][pick(4)]);
        }
    }
}

#[test]
fn stray_answers_and_late_ticks_are_harmless() {
    let mut pair = Pair::duplex();
    for n in [A, B] {
        for verdict in [Verdict::Refused, Verdict::Granted { epoch: Epoch(9) }] {
            pair.event(n, Event::Arbiter { asked: Epoch(3), verdict });
        }
        pair.event(n, Event::ServiceLinkEvidence(Evidence::Silent));
        for _ in 0..50 {
            pair.event(n, Event::Tick);
        }
    }
    pair.run_ms(300);
    assert!(pair.is_duplex(A) && !pair.changed_role(A) && !pair.changed_role(B));
}

#[test]
fn settings_out_of_bounds_are_refused() {
    let check = |change: fn(&mut Config), wanted: &str| {
        let mut config = Config::new("a", "b");
        change(&mut config);
        let error = Core::new(config, 0, 1).expect_err(wanted);
        assert!(error.to_string().contains(wanted), "{error}");
    };
    check(|c| c.peer = "a".into(), "give each its own name");
    check(|c| c.detection = 19 * MS, "choose 20 ms to 10 s");
    check(|c| c.detection = 11_000 * MS, "choose 20 ms to 10 s");
    check(|c| c.startup_wait = 99 * MS, "start-up wait of 99 ms");
    check(|c| c.drift_ppm = 10_001, "at most 10000");
    check(|c| c.last_epoch = Epoch(u64::MAX), "remove the state file");
    assert_eq!(Config::new("a", "a").validate(), Err(ConfigError::Names("a".into())));
}

#[test]
fn the_times_keep_the_inequalities_that_safety_rests_on() {
    for detection in [20, 35, 100, 1_000, 10_000] {
        for startup_wait in [detection, 3_000.max(detection), 60_000] {
            for drift_ppm in [0, 200, 10_000] {
                let mut config = Config::new("a", "b");
                config.detection = detection * MS;
                config.startup_wait = startup_wait * MS;
                config.drift_ppm = drift_ppm;
                config.validate().expect("in bounds");
                // A lease measured on the slowest clock ends within D of the fastest.
                let real = |span: u64, ppm: i64| span as f64 / (1.0 + ppm as f64 / 1e6);
                let ppm = i64::from(drift_ppm);
                for queue in [None, Some(0), Some(config.detection / 2)] {
                    config.queue = queue;
                    config.validate().expect("in bounds");
                    let (d, lease) = (config.detection, config.lease());
                    let queue = config.queue() as f64;
                    assert!(real(lease, -ppm) + queue <= real(d, ppm) + 1.0);
                    assert!(lease > 0 && (queue > 0.0 || lease as f64 > 0.97 * d as f64));
                }
                let d = config.detection;
                let unattended = real(config.solo_lease(), -ppm) + real(d, -ppm);
                assert!(unattended < real(config.alone_wait(), ppm));
                assert!(config.alone_wait() >= config.startup_wait);
                assert!(config.heartbeat() * 5 <= d);
            }
        }
    }
}

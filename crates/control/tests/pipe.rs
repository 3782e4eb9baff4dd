//! Two channels and a bad network between them.

mod common;

use std::time::Duration;

use common::{Net, Side, channel, identity, key};
use control::{Channel, Limits, MAX_DATAGRAM, MAX_PLAINTEXT, Psk, Rejected};
use proptest::prelude::*;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_session_comes_up_at_once_and_carries_messages_both_ways() {
    let mut net = Net::perfect(channel("a", 1), channel("b", 1));
    net.run_until(ms(10), |net| net.both_established());
    for (from, length) in [(Side::A, 1), (Side::B, MAX_PLAINTEXT)] {
        let message = vec![7; length];
        let datagram = net.channel(from).seal(&message).unwrap();
        assert!(datagram.len() <= MAX_DATAGRAM);
        let input = net.deliver(from.other(), &datagram);
        assert_eq!(input.plaintext, Some(message));
        assert_eq!(input.rejected, None);
    }
    assert_eq!(net.channel(Side::A).peer().unwrap().name, "b");
}

#[test]
fn both_starting_at_once_agree_on_one_session() {
    for seed in 0..200 {
        let mut net = Net::new(channel("a", seed), channel("b", seed), seed).delay_ms(0, 4);
        net.heartbeats = true;
        net.run(ms(400));
        net.assert_agreed();
        // Each side must have settled, not swung to and fro.
        for side in [Side::A, Side::B] {
            let sessions = net.channel(side).stats().sessions;
            assert!((1..=2).contains(&sessions), "seed {seed}: {sessions} sessions");
        }
    }
}

#[test]
fn loss_disorder_and_duplicates_delay_but_never_forge_or_repeat() {
    for seed in 0..60 {
        let mut net = Net::new(channel("a", seed), channel("b", seed), seed)
            .delay_ms(0, 30)
            .loss_percent(30)
            .duplicate_percent(30);
        net.heartbeats = true;
        net.run(ms(3000));
        net.assert_agreed();
        // The pipe itself asserts that every message was sent by the peer and arrives once.
        for side in [Side::A, Side::B] {
            let opened = net.received(side);
            assert!(opened > 300, "seed {seed}: only {opened} of ~700 heartbeats");
            let stats = net.channel(side).stats();
            assert_eq!(stats.rejected_key + stats.rejected_garbage, 0, "{stats:?}");
        }
    }
}

#[test]
fn a_restarted_peer_is_back_at_once_and_known_as_restarted() {
    for (seed, side) in [(1, Side::A), (2, Side::B)] {
        let mut net = Net::new(channel("a", 1), channel("b", 1), seed).delay_ms(0, 1);
        net.heartbeats = true;
        net.run(ms(100));
        net.replace(side, channel(side.name(), 2));
        let since = net.now;
        net.run_until(ms(30), |net| net.both_established());
        net.run_until(ms(30), |net| {
            net.joined(side.other()).last().is_some_and(|peer| peer.incarnation == 2)
        });
        assert!(net.now - since <= ms(30));
        net.run(ms(100));
        net.assert_agreed();
        let incarnations: Vec<_> =
            net.joined(side.other()).iter().map(|peer| peer.incarnation).collect();
        assert_eq!(incarnations, [1, 2]);
    }
}

#[test]
fn a_peer_that_comes_late_is_asked_until_it_answers() {
    let mut net = Net::perfect(channel("a", 1), channel("b", 1));
    net.cut = true;
    net.run(ms(5000));
    assert!(!net.both_established());
    let sent = net.channel(Side::A).stats().handshakes_sent;
    assert!((20..60).contains(&sent), "{sent} attempts in 5 s");
    net.cut = false;
    net.run_until(ms(260), |net| net.both_established());
}

#[test]
fn sessions_are_renegotiated_without_losing_a_message() {
    let limits = Limits { rekey_after: ms(200), rekey_after_sealed: u64::MAX };
    let by_time = |name| channel(name, 1).with_limits(limits);
    let limits = Limits { rekey_after: ms(1_000_000), rekey_after_sealed: 50 };
    let by_count = |name| channel(name, 1).with_limits(limits);
    for (a, b) in [(by_time("a"), by_time("b")), (by_count("a"), by_count("b"))] {
        let mut net = Net::new(a, b, 3).delay_ms(1, 3);
        net.heartbeats = true;
        net.run(ms(20));
        let before = (net.sent(Side::A), net.received(Side::B));
        net.run(ms(2000));
        net.heartbeats = false;
        net.run(ms(20));
        let sessions = net.channel(Side::A).stats().sessions;
        assert!((5..=20).contains(&sessions), "{sessions} sessions");
        let missing = (net.sent(Side::A) - before.0).abs_diff(net.received(Side::B) - before.1);
        // What was under way when the counting began.
        assert!(missing <= 1, "{missing} messages lost by renegotiation");
        net.assert_agreed();
    }
}

#[test]
fn another_key_version_or_cluster_is_reported_as_such() {
    let mut other = identity("b", 1);
    other.cluster = "mail".to_owned();
    let stranger = Channel::new(key(), other, common::rng(9));
    assert_eq!(first_rejection(stranger), Rejected::Cluster);

    let stranger = Channel::new(Psk::from_bytes([9; 32]), identity("b", 1), common::rng(9));
    assert_eq!(first_rejection(stranger), Rejected::Key);

    let mut unknown = identity("c", 1);
    unknown.peer = "a".to_owned();
    let stranger = Channel::new(key(), unknown, common::rng(9));
    assert_eq!(first_rejection(stranger), Rejected::Name { theirs: "c".to_owned() });

    let (mut ours, mut peer) = (channel("a", 1), channel("b", 1));
    let mut datagram = peer.poll(ms(0)).remove(0);
    datagram[4] = 2;
    let rejected = ours.on_datagram(&datagram, ms(0)).rejected;
    assert_eq!(rejected, Some(Rejected::Version { theirs: 2 }));
    assert_eq!(ours.stats().rejected_version, 1);
}

/// Lets a stranger ask and says why it is refused; it must never get an answer.
fn first_rejection(mut stranger: Channel) -> Rejected {
    let mut ours = channel("a", 1);
    let datagram = stranger.poll(ms(0)).remove(0);
    let input = ours.on_datagram(&datagram, ms(0));
    assert_eq!((input.plaintext, input.replies), (None, Vec::new()));
    assert!(!ours.established());
    input.rejected.expect("a stranger is refused")
}

#[test]
fn a_reflected_handshake_is_refused() {
    let mut ours = channel("a", 1);
    let datagram = ours.poll(ms(0)).remove(0);
    let rejected = ours.on_datagram(&datagram, ms(1)).rejected;
    assert_eq!(rejected, Some(Rejected::Name { theirs: "a".to_owned() }));
}

#[test]
fn everything_recorded_and_sent_again_changes_nothing() {
    let mut net = Net::new(channel("a", 1), channel("b", 1), 5).delay_ms(0, 2);
    net.heartbeats = true;
    net.record = true;
    net.run(ms(200));
    // Let the handshake's leftovers expire, so that recorded ones cannot match them.
    net.record = false;
    net.run(ms(4000));
    net.heartbeats = false;
    net.run(ms(20));
    let recorded = std::mem::take(&mut net.recorded);
    assert!(recorded.len() > 80);
    for round in 0..3 {
        for (to, datagram) in &recorded {
            let input = net.deliver(*to, datagram);
            assert_eq!(input.plaintext, None, "round {round}");
            assert_eq!(input.joined, None, "round {round}");
        }
        net.assert_agreed();
    }
    assert!(net.channel(Side::A).stats().rejected_replay > 0);
}

#[test]
fn a_flood_of_recorded_handshakes_is_bounded_and_harmless() {
    // Handshakes that a peer made before: all genuine, all old.
    let recorded: Vec<_> = (0..200).map(|i| channel("b", i).poll(ms(0)).remove(0)).collect();
    let mut net = Net::perfect(channel("a", 1), channel("b", 999));
    net.run_until(ms(20), |net| net.both_established());
    net.heartbeats = true;
    net.run(ms(20));
    let mut answered = 0;
    for datagram in &recorded {
        let input = net.deliver(Side::A, datagram);
        assert_eq!(input.joined, None);
        answered += input.replies.len();
    }
    assert!(answered <= 20, "{answered} answers");
    assert!(net.channel(Side::A).stats().rejected_overload >= 180);
    net.run(ms(50));
    net.assert_agreed();
    // And a real restart still gets through, one flood later.
    net.replace(Side::B, channel("b", 1000));
    net.run_until(ms(400), |net| {
        net.joined(Side::A).last().is_some_and(|peer| peer.incarnation == 1000)
    });
}

#[test]
fn an_answer_that_never_arrives_does_not_cost_the_running_session() {
    let (mut a, mut b) = established();
    // The peer seems to ask again, and never speaks under the new keys.
    let mut ghost = channel("b", 2);
    let datagram = ghost.poll(ms(50)).remove(0);
    assert_eq!(a.on_datagram(&datagram, ms(50)).replies.len(), 1);
    let sealed = a.seal(b"still the old session").unwrap();
    assert!(b.on_datagram(&sealed, ms(60)).plaintext.is_some());
    let sealed = b.seal(b"and back").unwrap();
    assert!(a.on_datagram(&sealed, ms(60)).plaintext.is_some());
    assert_eq!(a.peer().unwrap().incarnation, 1);
}

fn established() -> (Channel, Channel) {
    let mut net = Net::perfect(channel("a", 1), channel("b", 1));
    net.run_until(ms(20), |net| net.both_established());
    net.run(ms(5));
    net.into_channels()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes, and any damaged real datagram: no panic, no message, and the session goes on.
    #[test]
    fn garbage_never_disturbs_an_established_session(
        noise in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1400), 1..8),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
    ) {
        let (mut a, mut b) = established();
        let samples = [
            b.seal(b"a message").unwrap(),
            channel("b", 5).poll(ms(0)).remove(0),
            {
                let asked = channel("a", 6).poll(ms(0)).remove(0);
                b.on_datagram(&asked, ms(40)).replies.remove(0)
            },
        ];
        let mut hostile = noise;
        for sample in &samples {
            for (index, flip) in &flips {
                let mut bytes = sample.clone();
                let at = index.index(bytes.len());
                bytes[at] ^= flip;
                hostile.push(bytes);
            }
            for cut in &cuts {
                hostile.push(sample[..cut.index(sample.len())].to_vec());
                let mut longer = sample.clone();
                longer.extend_from_slice(&noise_tail(cut.index(9) + 1));
                hostile.push(longer);
            }
        }
        for bytes in &hostile {
            let input = a.on_datagram(bytes, ms(50));
            prop_assert_eq!(input.plaintext, None);
            prop_assert_eq!(input.joined, None);
            prop_assert!(input.rejected.is_some());
            prop_assert!(input.replies.is_empty());
        }
        let input = a.on_datagram(&samples[0], ms(51));
        prop_assert_eq!(input.plaintext.as_deref(), Some(&b"a message"[..]));
        let sealed = a.seal(b"reply").unwrap();
        prop_assert!(b.on_datagram(&sealed, ms(52)).plaintext.is_some());
    }
}

fn noise_tail(length: usize) -> Vec<u8> {
    vec![0x5a; length]
}

//! Stories against which nothing can be said.

use crate::scene::{ACK, FIN, Fate, Frame, MS, PSH, SYN, Scene, Sum, US, mac};
use oracle::{Addresses, Beginning, Class, Dead, Excluded, Link};
use proptest::prelude::*;

fn normal(mut scene: Scene) -> Scene {
    scene.handshake().request(b"GET /1").reply(b"one").request(b"GET /2").reply(b"two");
    scene.server_ends().client_ends();
    scene
}

fn taken_over(mut scene: Scene) -> Scene {
    scene.handshake().request(b"GET /").reply(b"first half, ").takeover();
    scene.server_acks().reply(b"second half").server_ends().client_ends();
    scene
}

#[test]
fn nothing_happens() {
    let verdict = normal(Scene::new()).expect_good();
    let s = &verdict.statistics;
    assert_eq!((s.spans, s.passed_on, s.wild, s.bytes_not_compared), (1, 2, 0, 0));
    assert!(s.bytes_compared >= 2 * 12, "{verdict}");
    assert!(verdict.exemptions.is_empty());
}

#[test]
fn a_host_dies() {
    let verdict = taken_over(Scene::new()).expect_good();
    assert_eq!(verdict.statistics.spans, 2);
    // The flow has one node left, which is said.
    assert_eq!(verdict.exemptions.len(), 1, "{verdict}");
    let silence = verdict.statistics.longest_silence.unwrap();
    assert!((100 * MS..110 * MS).contains(&silence.ns), "{silence:?}");
}

/// A processor of the primary stands still with a segment in its hands.
pub fn overtaken(ns: u64) -> Scene {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /");
    let first = scene.server_says(PSH, b"one");
    scene.waits(2 * MS);
    let second = scene.server_says(PSH, b"two");
    scene.down(second, Fate::Arrives);
    scene.waits(ns);
    scene.down(first, Fate::Arrives);
    scene.server_ends().client_ends();
    scene
}

#[test]
fn segments_of_a_host_change_places() {
    overtaken(40 * MS).expect_good();
}

#[test]
fn over_ipv6() {
    normal(Scene::new().v6()).expect_good();
    taken_over(Scene::new().v6()).expect_good();
}

#[test]
fn sequence_numbers_wrap() {
    for back in 0..20 {
        let scene = Scene::new().isns(u32::MAX - back, u32::MAX - 19 + back);
        taken_over(scene).expect_good();
    }
}

#[test]
fn without_options() {
    let mut scene = Scene::new();
    (scene.stamps, scene.scale, scene.sack) = (false, None, false);
    (scene.client_window, scene.server_window) = (64000, 64000);
    taken_over(scene).expect_good();
}

#[test]
fn half_closed_by_the_client() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").client_ends().reply(b"one").takeover();
    scene.reply(b"two").server_ends();
    scene.expect_good();
}

#[test]
fn a_bounced_fin_overtakes_data() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /");
    let data = scene.server_says(PSH, b"slow");
    scene.down(data, Fate::Delayed(5 * MS));
    let fin = scene.server_says(FIN, b" quick");
    scene.bounce(fin, Fate::Arrives);
    scene.waits(6 * MS);
    scene.out_got = scene.out_sent;
    scene.client_acks().client_ends();
    scene.expect_good();
}

#[test]
fn offloaded_frames_are_cut_on_the_way() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /");
    let long: Vec<u8> = (0..60_000u32).map(|n| ((n * n) >> 3) as u8).collect();
    scene.reply(&long);
    let fin = scene.server_says(FIN | PSH, &long[..30_000]);
    scene.bounce(fin.clone(), Fate::Arrives);
    scene.client_acks().client_ends();
    // The backup's own queue cuts what it passes on; only the last piece carries the FIN.
    let cut = |frame: &Frame| {
        let is_fin = frame.seg == fin;
        let behind = frame.is("client", Link::Service) || (frame.is("b", Link::Service));
        if !is_fin || !behind {
            return vec![frame.clone()];
        }
        let piece = |(n, part): (usize, &[u8])| {
            let mut frame = frame.clone();
            frame.at_ns += n as u64 * US / 10;
            frame.seg.seq = fin.seq.wrapping_add(n as u32 * 1448);
            frame.seg.flags = if n == 20 { FIN | PSH | ACK } else { ACK };
            frame.seg.payload = part.to_vec();
            frame
        };
        fin.payload.chunks(1448).enumerate().map(piece).collect()
    };
    scene.frames = scene.frames.iter().flat_map(cut).collect();
    let verdict = scene.expect_good();
    assert_eq!(verdict.statistics.passed_on, 1 + 21);
    assert_eq!(verdict.statistics.spans, 1);
}

/// See `Emitters::way`.
#[test]
fn frames_captured_with_the_addresses_of_their_last_leg() {
    let bounced: Vec<usize> = {
        let good = normal(Scene::new());
        let is_bounced = |f: &Frame| !f.seg.inward && f.port.1 == Link::Cluster;
        (0..good.frames.len()).filter(|&n| is_bounced(&good.frames[n])).collect()
    };
    assert_eq!(bounced.len(), 4, "two segments at two ports");
    // The second time through the service link, as when the other one is cut.
    for link in Link::ALL {
        for looks in 0..1 << (2 * bounced.len()) {
            let mut scene = normal(Scene::new());
            for frame in scene.frames.iter_mut().filter(|f| f.port.1 == Link::Cluster) {
                let from_host = frame.is_from_host();
                let other = if frame.port.0 == "a" { "b" } else { "a" };
                let (from, to) =
                    if from_host { (frame.port.0, other) } else { (other, frame.port.0) };
                frame.port.1 = link;
                (frame.source, frame.target) = (mac(from, link), mac(to, link));
            }
            for (n, &frame) in bounced.iter().enumerate() {
                let frame = &mut scene.frames[frame];
                if looks >> (2 * n) & 1 == 1 {
                    frame.source = mac("b", Link::Service);
                }
                if looks >> (2 * n) & 2 == 2 {
                    frame.target = mac("client", Link::Service);
                }
            }
            let verdict = scene.expect_good();
            let s = &verdict.statistics;
            assert_eq!((s.spans, s.passed_on), (1, 2), "{link:?} {looks:b}");
        }
    }
}

#[test]
fn a_living_hosts_queue_may_run_empty() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /");
    let late = scene.server_says(PSH, b"late");
    scene.promoted();
    scene.server_acks();
    // Fenced, but already in the queue; the client throws it away for its old clock.
    scene.frames.push(Frame {
        at_ns: scene.now_ns,
        port: ("a", Link::Service),
        source: mac("a", Link::Service),
        target: mac("client", Link::Service),
        seg: late,
    });
    scene.waits(MS).reply(b"late");
    let verdict = scene.judge();
    assert!(verdict.findings.iter().any(|f| f.class == Class::I3), "{verdict}");
    scene.story.queue_ns = 20 * MS;
    let verdict = scene.expect_good();
    assert_eq!((verdict.statistics.late, verdict.statistics.spans), (1, 2));
}

#[test]
fn what_a_dead_host_says_is_not_heard() {
    let mut scene = taken_over(Scene::new());
    let dead_ns = scene.story.dead[0].time.from_ns;
    let mut fin = scene.frame(|f| f.seg.flags & FIN != 0 && f.is("b", Link::Service)).clone();
    fin.at_ns = dead_ns + MS;
    fin.port.0 = "a";
    fin.source = mac("a", Link::Service);
    fin.seg.seq -= 4;
    fin.seg.payload = b"garbage".to_vec();
    scene.frames.push(fin);
    let verdict = scene.expect_good();
    assert_eq!(verdict.statistics.swallowed, 1);
    // A host that is cut off says it to nobody either, until its cables are mended.
    scene.story.cut_off = std::mem::take(&mut scene.story.dead);
    assert_eq!(scene.expect_good().statistics.swallowed, 1);
    scene.story.cut_off[0].time.to_ns = Some(dead_ns + MS);
    let verdict = scene.judge();
    assert!(verdict.findings.iter().any(|f| f.class == Class::I5), "{verdict}");
}

#[test]
fn two_connections_one_after_the_other_on_the_same_port() {
    let mut scene = normal(Scene::new());
    let first = scene.frames.len();
    scene.waits(50 * MS).next_connection();
    let mut scene = normal(scene);
    // An old FIN comes by once more.
    let mut old = scene.frames[..first].iter().rfind(|f| f.seg.flags & FIN != 0).unwrap().clone();
    old.at_ns = scene.now_ns;
    scene.frames.push(old);
    let verdict = scene.judge();
    assert!(verdict.findings.is_empty() && verdict.gaps.is_empty(), "{verdict}");
    assert_eq!(verdict.statistics.flows, 2);
}

/// Every place that a checksum covers, and at every port but the one where it is the truth.
#[test]
fn what_no_receiver_takes_says_nothing() {
    for v6 in [false, true] {
        let scene = || if v6 { Scene::new().v6() } else { Scene::new() };
        let good = normal(scene());
        let len = if v6 { 40 } else { 20 } + 20 + 12 + 3;
        // IPv6 covers only the addresses of its own header.
        for bit in (if v6 { 64 } else { 0 }..len * 8).step_by(3) {
            let mut scene = normal(scene());
            let is_one = |f: &&mut Frame| f.seg.payload == b"one" && !f.is_from_host();
            let mut hit = scene.frames.iter_mut().find(is_one).unwrap().clone();
            hit.seg.sum = Sum::Flipped(bit);
            scene.frames.push(Frame { at_ns: hit.at_ns + 1, ..hit });
            let verdict = scene.expect_good();
            assert_eq!(verdict.statistics.damaged, 1, "bit {bit}");
            assert_eq!(verdict.statistics.segments, good.judge().statistics.segments);
        }
    }
}

/// One damaged frame in 2^16 has a complete checksum that could be a promise.
#[test]
fn damage_that_looks_like_a_promise_is_known_by_what_it_changes() {
    for v6 in [false, true] {
        let scene = |reply: &[u8]| {
            let mut scene = if v6 { Scene::new().v6() } else { Scene::new() };
            scene.handshake().request(b"GET /1").reply(reply).server_ends().client_ends();
            scene
        };
        let arrives = |scene: &Scene| {
            let is_reply = |f: &&Frame| !f.seg.payload.is_empty() && !f.seg.inward;
            scene.frames.iter().filter(is_reply).find(|f| !f.is_from_host()).unwrap().clone()
        };
        let draft = scene(b"?? one");
        let looks_alike = |reply: &[u8]| {
            let mut frame = arrives(&draft);
            frame.seg.payload = reply.to_vec();
            let promised = draft.encode(&frame);
            frame.seg.sum = Sum::Complete;
            draft.encode(&frame) == promised
        };
        let mut replies = (0..=u16::MAX).map(|word| [&word.to_be_bytes()[..], b" one"].concat());
        let reply = replies.find(|reply| looks_alike(reply)).unwrap();
        let headers = if v6 { 40 } else { 20 } + 20 + 12;
        for bit in 0..reply.len() * 8 {
            let mut scene = scene(&reply);
            let mut hit = arrives(&scene);
            hit.seg.sum = Sum::Flipped(headers * 8 + bit);
            scene.frames.push(Frame { at_ns: hit.at_ns + 1, ..hit });
            assert_eq!(scene.expect_good().statistics.damaged, 1, "bit {bit}");
        }
    }
}

/// A node that must ask for its neighbour's address keeps the SYN-ACK, and sends it with its repetition,
/// or alone if that is lost.
#[test]
fn a_syn_ack_waits() {
    const LATER_MS: u32 = 1006;
    let mut scene = normal(Scene::new());
    let is_syn_ack = |f: &Frame| !f.seg.inward && f.seg.flags & SYN != 0;
    let is_other = |f: &Frame| !f.seg.inward && !is_syn_ack(f);
    let make_later = |f: &mut Frame| {
        f.seg.stamps = f.seg.stamps.map(|(tsval, echo)| (tsval.wrapping_add(LATER_MS), echo));
    };
    let mut again: Vec<Frame> = scene.frames.iter().filter(|f| is_syn_ack(f)).cloned().collect();
    scene.frames.iter_mut().filter(|f| is_other(f)).for_each(make_later);
    for frame in &mut again {
        frame.at_ns += 1;
        make_later(frame);
    }
    scene.frames.extend(again);
    scene.expect_good();
    let mut scene = normal(Scene::new());
    scene.frames.iter_mut().filter(|f| is_other(f)).for_each(make_later);
    scene.expect_good();
    // Others do not wait there.
    let mut scene = normal(Scene::new());
    let first = scene.frames.iter().find(|f| is_other(f)).unwrap().seg.clone();
    let is_later = |f: &&mut Frame| is_other(f) && f.seg != first;
    scene.frames.iter_mut().filter(is_later).for_each(make_later);
    let classes: Vec<_> = scene.judge().findings.iter().map(|f| f.class).collect();
    assert_eq!(classes, [Class::I4]);
}

/// The client goes on to send into the window that the dead primary had.
#[test]
fn the_new_primarys_window_is_smaller() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").takeover();
    scene.server_window = 3;
    scene.server_acks().waits(2 * MS);
    let more = scene.client_says(PSH, &[1; 1000]);
    scene.up(more, Fate::LostBetween);
    scene.waits(2 * MS).server_acks();
    let verdict = scene.judge();
    assert!(verdict.without(&[Class::EdgeShrunk]).is_empty(), "{verdict}");
}

#[test]
fn a_checksum_may_be_complete() {
    let mut scene = taken_over(Scene::new());
    scene.frames.iter_mut().for_each(|f| f.seg.sum = Sum::Complete);
    assert_eq!(scene.expect_good().statistics.damaged, 0);
}

#[test]
fn a_cable_doubles_what_is_passed_on() {
    let mut scene = normal(Scene::new());
    let bounced = |f: &Frame| !f.seg.inward && f.is("b", Link::Cluster);
    let passed = |f: &Frame| !f.seg.inward && f.is("b", Link::Service);
    let again: Vec<Frame> =
        scene.frames.iter().filter(|f| bounced(f) || passed(f)).cloned().collect();
    assert_eq!(again.len(), 4, "SYN-ACK and FIN, in and out");
    scene.frames.extend(again.into_iter().map(|f| Frame { at_ns: f.at_ns + MS / 100, ..f }));
    assert_eq!(scene.expect_good().statistics.passed_on, 4);
}

/// Both hosts die, and the one that has served from the beginning comes back first.
#[test]
fn who_served_from_the_beginning_comes_back() {
    let mut scene = Scene::new();
    scene.story.beginnings.push(Beginning { host: "a".to_owned(), at_ns: 0 });
    scene.handshake().request(b"GET /").reply(b"first half, ").dies();
    let backup = Dead { host: "b".to_owned(), ..scene.story.dead[0].clone() };
    scene.story.dead.push(backup);
    scene.begins("a").next_connection();
    let verdict = normal(scene).judge();
    assert!(verdict.findings.is_empty() && verdict.gaps.is_empty(), "{verdict}");
}

/// Both hosts die; the first one to come back serves new connections alone.
#[test]
fn the_first_one_to_come_back_serves() {
    for back in ["a", "b"] {
        let mut scene = Scene::new();
        scene.handshake().request(b"GET /").reply(b"first half, ").takeover();
        scene.server_acks().dies().begins(back).next_connection();
        let verdict = normal(scene).judge();
        assert!(verdict.findings.is_empty() && verdict.gaps.is_empty(), "{verdict}");
        assert_eq!(verdict.statistics.flows, 2);
    }
}

#[test]
fn a_flow_is_excluded_by_name_and_the_verdict_says_so() {
    let mut scene = normal(Scene::new());
    scene.frames.retain(|f| f.seg.flags & SYN == 0);
    assert!(!scene.judge().is_conclusive(), "a stray is no matter of course");
    let flow = Addresses { client: scene.client, service: scene.service };
    scene.story.excluded.push(Excluded { flow, why: "older than the capture".into() });
    let verdict = scene.judge();
    assert!(verdict.is_conclusive() && verdict.exemptions.len() == 1, "{verdict}");
}

#[derive(Clone, Debug)]
enum Step {
    Request(u8, Fate),
    Reply(u16, Fate),
    ClientAck(Fate),
    ServerAck(Fate),
    /// Everything that the client lacks, again.
    ServerRepeats(Fate),
    /// Everything that the server lacks, again.
    ClientRepeats(Fate),
    Wait(u8),
    TakeOver,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Arrives),
        1 => (1u64..300).prop_map(|us| Fate::Delayed(us * US)),
        1 => Just(Fate::Twice),
        1 => Just(Fate::Lost),
        1 => Just(Fate::LostBetween),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u8.., fate()).prop_map(|(n, f)| Step::Request(n, f)),
        5 => (1u16..4000, fate()).prop_map(|(n, f)| Step::Reply(n, f)),
        3 => fate().prop_map(Step::ClientAck),
        2 => fate().prop_map(Step::ServerAck),
        3 => fate().prop_map(Step::ServerRepeats),
        3 => fate().prop_map(Step::ClientRepeats),
        1 => (1u8..50).prop_map(Step::Wait),
        1 => Just(Step::TakeOver),
    ]
}

/// The bytes of a stream from a position on.
fn bytes(from: u32, len: u32) -> Vec<u8> {
    (from..from + len).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn play(steps: &[Step], ends: bool) -> Scene {
    let mut scene = Scene::new().isns(u32::MAX - 700, u32::MAX - 9000);
    (scene.client_window, scene.server_window) = (5000, 5000);
    scene.handshake();
    for step in steps {
        match *step {
            Step::Request(len, fate) => {
                let payload = bytes(scene.in_sent, len.into());
                let seg = scene.client_says(PSH, &payload);
                scene.up(seg, fate);
            }
            Step::Reply(len, fate) => {
                let payload = bytes(scene.out_sent, len.into());
                let seg = scene.server_says(PSH, &payload);
                scene.down(seg, fate);
            }
            Step::ClientAck(fate) => {
                let seg = scene.client_says(0, b"");
                scene.up(seg, fate);
            }
            Step::ServerAck(fate) => {
                let seg = scene.server_says(0, b"");
                scene.down(seg, fate);
            }
            Step::ServerRepeats(fate) => {
                let (end, len) = (scene.out_sent, scene.out_sent - scene.out_got);
                scene.out_sent = scene.out_got;
                let payload = bytes(scene.out_got, len.min(20_000));
                let seg = scene.server_says(PSH, &payload);
                scene.out_sent = end;
                scene.down(seg, fate);
            }
            Step::ClientRepeats(fate) => {
                let (end, len) = (scene.in_sent, scene.in_sent - scene.in_got);
                scene.in_sent = scene.in_got;
                let payload = bytes(scene.in_got, len.min(20_000));
                let seg = scene.client_says(PSH, &payload);
                scene.in_sent = end;
                scene.up(seg, fate);
            }
            Step::Wait(ms) => {
                scene.waits(u64::from(ms) * MS);
            }
            Step::TakeOver if scene.backup.is_some() => {
                scene.takeover();
            }
            Step::TakeOver => {}
        }
    }
    if ends {
        scene.waits(MS);
        // A new primary has as much to say as the old one had.
        let said = scene
            .frames
            .iter()
            .filter(|f| !f.seg.inward)
            .map(|f| f.seg.seq.wrapping_sub(scene.iss) + f.seg.payload.len() as u32);
        let lacking = said.max().unwrap_or(0).saturating_sub(scene.out_sent);
        let payload = bytes(scene.out_sent, lacking);
        let rest = scene.server_says(PSH, &payload);
        scene.down(rest, Fate::Arrives);
        scene.server_ends().client_ends();
    }
    scene
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    /// Loss, duplication, delay and a takeover at any moment are TCP's daily life.
    #[test]
    fn whatever_a_network_may_do_is_no_finding(
        steps in prop::collection::vec(step(), 1..60),
        ends in any::<bool>(),
    ) {
        play(&steps, ends).expect_good();
    }

    /// But one changed byte is found wherever it is.
    #[test]
    fn a_changed_byte_is_found(
        steps in prop::collection::vec(step(), 5..40),
        pick in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
    ) {
        let mut scene = play(&steps, false);
        let twice: Vec<usize> = (0..scene.frames.len())
            .filter(|&n| {
                let f = &scene.frames[n];
                let same = |o: &&Frame| o.seg == f.seg && !o.seg.payload.is_empty();
                // Not on the first port, where it would be the truth.
                !f.is_from_host() && scene.frames.iter().filter(same).count() > 1
            })
            .collect();
        prop_assume!(!twice.is_empty());
        let frame = &mut scene.frames[twice[pick.index(twice.len())]];
        let at = at.index(frame.seg.payload.len());
        frame.seg.payload[at] ^= 1;
        let verdict = scene.judge();
        let is_byte = |c: Class| [Class::I6, Class::Replaced].contains(&c);
        prop_assert!(verdict.findings.iter().any(|f| is_byte(f.class)), "{verdict}");
        prop_assert!(verdict.findings.iter().all(|f| is_byte(f.class)), "{verdict}");
    }
}

/// A whole reply goes to the backup, which passes it on.
#[test]
fn a_backup_passes_a_reply_on() {
    let (mut scene, held) = Scene::with_reply();
    scene.bounce(held, Fate::Arrives);
    scene.client_acks().server_ends().client_ends();
    let s = scene.expect_good().statistics;
    assert_eq!((s.passed_on, s.bytes_not_compared), (3, 0), "SYN-ACK, reply and FIN");
}

/// The primary dies before that: its reply was never said, and another one may take its place.
#[test]
fn what_the_backup_has_not_passed_on_was_not_said() {
    let (mut scene, held) = Scene::with_reply();
    scene.confide(&held, Fate::Arrives);
    scene.takeover().server_acks().reply(b"order 2").server_ends().client_ends();
    assert_eq!(scene.expect_good().statistics.passed_on, 1, "the SYN-ACK alone");
}

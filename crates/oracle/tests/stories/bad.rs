//! Good stories with one thing changed: each must be rejected with exactly that finding.

use crate::good;
use crate::scene::{ACK, ECE, FIN, Fate, Frame, MS, PSH, RST, SYN, Scene, Seg, Sum, US, mac};
use oracle::{Addresses, Class, Crash, Dead, Gap, Handover, Interval, Left, Link};

/// A request, a reply of three segments, a takeover in the middle, and the end.
fn story() -> Scene {
    story_of(Scene::new())
}

fn story_of(mut scene: Scene) -> Scene {
    scene.handshake().request(b"GET / HTTP").reply(b"HTTP OK\nDate: 1\n\n").reply(b"second part");
    scene.waits(5 * MS).takeover();
    scene.server_acks().reply(b"third part").waits(5 * MS).request(b"GET /again").reply(b"fourth");
    scene.server_ends().client_ends();
    scene.expect_good();
    scene
}

fn says(text: &str) -> impl Fn(&Frame) -> bool {
    let text = text.as_bytes().to_vec();
    move |frame| frame.seg.payload == text
}

/// The n-th segment that a node emits itself, after the handshake.
fn emitted(host: &'static str, n: usize) -> impl Fn(&Scene) -> Frame {
    move |scene| {
        let own = scene.frames.iter().filter(|f| {
            let service = f.is(host, Link::Service);
            !f.seg.inward && service && f.is_from_host() && f.seg.flags & (SYN | FIN) == 0
        });
        own.clone().nth(n).expect("so many segments").clone()
    }
}

/// Changes a segment of the service's at all ports.
fn changed(frame: impl Fn(&Scene) -> Frame, change: impl Fn(&mut Seg)) -> Scene {
    let mut scene = story();
    let seg = frame(&scene).seg;
    scene.change(|f| f.seg == seg, change);
    scene
}

// Invariant 6.

#[test]
fn a_byte_that_arrives_changed() {
    let mut scene = story();
    scene.frame(|f| f.is("client", Link::Service) && says("third part")(f)).seg.payload[0] = b'T';
    let verdict = scene.expect(Class::I6, "seen 54");
    assert_eq!(verdict.findings[0].host, "client");
}

#[test]
fn a_byte_that_the_client_has_is_said_otherwise() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"first").reply(b"second").takeover();
    // The new primary does not know the last acknowledgement, and begins earlier.
    scene.out_sent -= 6;
    scene.reply(b"sEcond");
    scene.frames.retain(|f| !(f.is("client", Link::Service) && says("sEcond")(f)));
    let verdict = scene.expect(Class::I6, "65 63 6f 6e 64; seen 45 63 6f 6e 64");
    assert_eq!(verdict.findings[0].host, "b");
}

#[test]
fn a_byte_that_was_lost_is_said_otherwise() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"first");
    let lost = scene.server_says(PSH, b"second");
    scene.down(lost, Fate::Lost);
    scene.takeover().reply(b"sEcond");
    let verdict = scene.expect(Class::Replaced, "seen 45 63");
    assert_eq!(verdict.without(&[Class::Replaced]).len(), 0);
}

#[test]
fn a_clock_is_another_one_when_the_reply_is_computed_again() {
    for (declared, class) in [(true, Class::Volatile), (false, Class::I6)] {
        let mut scene = Scene::new();
        scene.handshake().request(b"GET /").reply(b"OK\nDate: 1\n\n").takeover();
        scene.out_sent -= 12;
        scene.reply(b"OK\nDate: 2\n\n");
        scene.frames.retain(|f| !(f.is("client", Link::Service) && says("OK\nDate: 2\n\n")(f)));
        if declared {
            scene.story.volatile_lines.push("Date: ".into());
        }
        scene.expect(class, "seen 32 0a 0a");
    }
}

#[test]
fn a_clients_byte_that_a_relay_changes() {
    let mut scene = story();
    scene.frame(|f| f.is("b", Link::Cluster) && says("GET / HTTP")(f)).seg.payload[4] = b'x';
    scene.expect(Class::I6, "client byte 5 and on to be 2f");
}

#[test]
fn a_late_acknowledgement_is_no_excuse_for_other_bytes() {
    // With an old clock, the client throws the first version away, and nothing has changed for it.
    for (stamped, class) in [(true, Class::Replaced), (false, Class::I6)] {
        let mut scene = Scene::new();
        scene.stamps = stamped;
        scene.handshake().request(b"GET /");
        let late = scene.server_says(PSH, b"first");
        scene.promoted();
        scene.story.queue_ns = 60 * MS;
        scene.server_acks();
        let (source, target) = (mac("a", Link::Service), mac("client", Link::Service));
        for (after, host) in [(0, "a"), (3 * US, "client")] {
            let (at_ns, port) = (scene.now_ns + after, (host, Link::Service));
            scene.frames.push(Frame { at_ns, port, source, target, seg: late.clone() });
        }
        scene.waits(MS);
        let other = scene.server_says(PSH, b"FIRST");
        scene.down(other, Fate::Lost);
        scene.expect(class, "seen 46 49");
    }
}

// Invariant 3.

#[test]
fn the_old_emitter_speaks_again() {
    let mut scene = story();
    scene.story.dead.clear();
    let mut again = emitted("a", 1)(&scene);
    again.at_ns = scene.story.handovers[0].at_ns + 500 * US;
    scene.frames.push(again.clone());
    let verdict = scene.expect(Class::I3, "segments of b only: b took over");
    assert_eq!((verdict.findings[0].host.as_str(), verdict.findings[0].more), ("a", 0));
    // And again and again, in one line.
    for n in 1..4 {
        scene.frames.push(Frame { at_ns: again.at_ns + n, ..again.clone() });
    }
    let verdict = scene.expect(Class::I3, "b took over");
    let found = &verdict.findings[0];
    assert_eq!((found.more, found.at_ns, found.last_ns), (3, again.at_ns, again.at_ns + 3));
    assert!(found.flow_began_ns < scene.story.handovers[0].at_ns);
    // A queue that can hold a frame so long explains it.
    scene.story.queue_ns = MS;
    assert_eq!(scene.expect_good().statistics.late, 4);
    scene.story.queue_ns = 499 * US;
    scene.expect(Class::I3, "b took over");
}

#[test]
fn a_queue_does_not_explain_what_was_made_later() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"one").waits(20 * MS);
    let (ahead, made) = (scene.clock_ahead_ms, scene.now_ns);
    scene.promoted().server_acks().waits(10 * MS);
    scene.story.queue_ns = 60 * MS;
    // Out of the old primary's queue: once made in time, once not.
    for (age_ms, good) in [(11, true), (0, false)] {
        let back = scene.clock_ahead_ms - ahead + age_ms;
        let tsval = scene.server_clock().wrapping_sub(back);
        let (source, target) = (mac("a", Link::Service), mac("client", Link::Service));
        let mut seg = emitted("a", 1)(&scene).seg;
        seg.stamps = Some((tsval, seg.stamps.unwrap().1));
        assert!(scene.now_ns - made > 10 * MS);
        let (at_ns, port) = (scene.now_ns, ("a", Link::Service));
        scene.frames.push(Frame { at_ns, port, source, target, seg });
        if good {
            assert_eq!(scene.expect_good().statistics.late, 1);
        } else {
            scene.expect(Class::I3, "no segment made after b took over");
        }
    }
}

#[test]
fn nobody_declared_the_new_emitter() {
    let mut scene = story();
    scene.story.handovers.clear();
    scene.expect(Class::I3, "segments of a only: no hand-over is declared");
}

#[test]
fn the_new_emitter_speaks_before_its_time() {
    let mut scene = story();
    scene.story.handovers[0].at_ns += 3 * MS;
    let verdict = scene.expect(Class::I3, "segments of a only");
    assert_eq!(verdict.findings[0].host, "b");
}

#[test]
fn a_backup_invents_a_control_segment() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"one").server_ends();
    let mut fin = scene.frame(|f| f.is("b", Link::Service) && f.seg.flags & FIN != 0).clone();
    scene.expect_good();
    // The same once more: nothing was sent to be passed on a second time.
    fin.at_ns += MS;
    scene.frames.push(fin);
    let verdict = scene.expect(Class::I3, "segments of a only");
    assert_eq!(verdict.findings[0].host, "b");
}

#[test]
fn a_backup_passes_on_more_often_than_it_has_received() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"one").server_ends();
    let of = |scene: &mut Scene, link| {
        scene.frame(|f| f.is("b", link) && f.seg.flags & FIN != 0 && !f.seg.inward).clone()
    };
    let (came, passed) = (of(&mut scene, Link::Cluster), of(&mut scene, Link::Service));
    for (after, frame) in [(1, &came), (2, &passed)] {
        scene.frames.push(Frame { at_ns: frame.at_ns + after * MS, ..frame.clone() });
    }
    scene.expect_good();
    scene.frames.push(Frame { at_ns: passed.at_ns + 3 * MS, ..passed });
    assert_eq!(scene.expect(Class::I3, "segments of a only").findings[0].host, "b");
}

#[test]
fn a_node_begins_to_serve_while_the_other_one_lives() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"one").takeover();
    scene.server_acks().dies().begins("a").next_connection();
    scene.handshake().request(b"GET /").reply(b"two");
    let verdict = scene.judge();
    assert!(verdict.findings.is_empty(), "{verdict}");
    // Nobody has died since the hand-over: b serves.
    scene.story.dead.retain(|d| d.host == "a");
    let verdict = scene.expect(Class::I3, "segments of b only: b took over");
    assert_eq!(verdict.findings[0].host, "a");
    // To be cut off is not to be dead.
    scene.story.cut_off = scene.story.dead.clone();
    scene.story.cut_off[0].host = "b".into();
    scene.story.cut_off[0].time.from_ns = scene.story.handovers[0].at_ns + 50 * MS;
    scene.expect(Class::I3, "segments of b only: b took over");
    scene.story.cut_off.clear();
    // b had died before, and lives again.
    scene.story.dead[0].host = "b".into();
    scene.expect(Class::I3, "segments of b only: b took over");
}

/// A partition that both nodes take for the other one's death.
#[test]
fn who_is_cut_off_hands_nothing_over() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"one");
    let (from_ns, at_ns) = (scene.now_ns, scene.now_ns + 100 * MS);
    let (from, to) = ("a".to_owned(), "b".to_owned());
    scene.story.handovers.push(Handover { from, to, at_ns });
    scene.story.simplex.push(Interval { from_ns, to_ns: None });
    scene.backup = None;
    scene.waits(200 * MS).reply(b"two");
    scene.expect(Class::I3, "segments of b only: b took over");
    let time = Interval { from_ns, to_ns: Some(scene.now_ns) };
    scene.story.cut_off.push(Dead { host: "b".into(), time });
    scene.expect_good();
    // What it says once its cables are mended, it says to the client.
    let mut second = emitted("a", 1)(&scene);
    second.at_ns = scene.now_ns - 50 * MS;
    second.port.0 = "b";
    second.source = mac("b", Link::Service);
    scene.frames.push(second.clone());
    assert_eq!(scene.expect_good().statistics.swallowed, 1);
    second.at_ns = scene.now_ns;
    second.seg.stamps = Some((scene.server_clock(), scene.echo));
    scene.frames.push(second);
    assert_eq!(scene.expect(Class::I3, "segments of a only").findings[0].host, "b");
    // The nodes meet, and b stays.
    let (from, to) = ("a".to_owned(), "b".to_owned());
    scene.story.handovers.push(Handover { from, to, at_ns: scene.now_ns });
    scene.expect_good();
}

#[test]
fn damage_does_not_hide_a_frame_that_is_intact() {
    let mut scene = story();
    scene.story.dead.clear();
    let mut again = emitted("a", 1)(&scene);
    again.at_ns = scene.story.handovers[0].at_ns + 500 * US;
    for (sum, found) in [(Sum::Flipped(200), 0), (Sum::Complete, 1), (Sum::Promised, 1)] {
        let frames = scene.frames.len();
        scene.frames.push(Frame { seg: Seg { sum, ..again.seg.clone() }, ..again.clone() });
        let verdict = scene.judge();
        assert_eq!(verdict.by_class().get(&Class::I3).copied().unwrap_or(0), found, "{verdict}");
        scene.frames.truncate(frames);
    }
}

// Invariant 4.

#[test]
fn an_acknowledgement_steps_back() {
    let scene = changed(emitted("b", 0), |s| s.ack -= 3);
    let verdict = scene.judge();
    let classes: Vec<_> = verdict.findings.iter().map(|f| f.class).collect();
    // The window's edge goes with it.
    assert_eq!(classes, [Class::I4, Class::EdgeShrunk], "{verdict}");
    assert_eq!(verdict.findings[0].by, Some(3));
}

#[test]
fn an_acknowledgement_that_the_client_never_sent_for() {
    let mut scene = story();
    let seg = emitted("b", 1)(&scene).seg;
    scene.change(
        |f| f.seg == seg,
        |s| {
            s.ack += 5;
            s.window -= 1;
        },
    );
    let verdict = scene.judge();
    assert!(verdict.findings.iter().all(|f| [Class::I4, Class::EdgeShrunk].contains(&f.class)));
    assert!(
        verdict.findings[0].to_string().contains("which the client has sent; seen"),
        "{verdict}"
    );
}

#[test]
fn a_sequence_space_of_its_own() {
    let scene = changed(emitted("b", 1), |s| s.seq = s.seq.wrapping_add(0x8000_0000));
    let verdict = scene.judge();
    assert!(verdict.findings.iter().all(|f| f.class == Class::I4), "{verdict}");
    let first = &verdict.findings[0];
    assert_eq!((first.host.as_str(), first.expected.contains("near position")), ("b", true));
}

#[test]
fn a_clock_steps_back() {
    let back = |s: &mut Seg| s.stamps = s.stamps.map(|(v, e)| (v.wrapping_sub(1500), e));
    changed(emitted("b", 0), back).expect(Class::I4, "TSval from");
    // Within a host as well, but not within an instant.
    changed(emitted("b", 3), back).expect(Class::I4, "TSval from");
    // No processor stands still for so long.
    good::overtaken(60 * MS).expect(Class::I4, "TSval from");
}

#[test]
fn a_clock_jumps_ahead() {
    let scene = changed(emitted("b", 2), |s| s.stamps = s.stamps.map(|(v, e)| (v + 10_000, e)));
    let verdict = scene.judge();
    assert!(verdict.findings[0].expected.contains("ms after its first reading"), "{verdict}");
    assert!(verdict.findings.iter().all(|f| f.class == Class::I4), "{verdict}");
}

#[test]
fn an_echo_of_what_was_never_said() {
    let scene = changed(emitted("a", 2), |s| s.stamps = s.stamps.map(|(v, e)| (v, e + 9)));
    scene.expect(Class::I4, "TSecr up to");
}

#[test]
fn a_timestamp_is_missing() {
    changed(emitted("b", 1), |s| s.stamps = None).expect(Class::I4, "a timestamp: it is agreed");
}

#[test]
fn options_that_were_not_agreed() {
    let mut bare = Scene::new();
    (bare.stamps, bare.scale, bare.sack) = (false, None, false);
    (bare.client_window, bare.server_window) = (64000, 64000);
    let bare = story_of(bare);
    type Change = fn(&mut Seg);
    let cases: [(Change, &str); 3] = [
        (|s| s.stamps = Some((5, 0)), "no timestamp: not agreed"),
        (|s| s.sacks = vec![(s.ack, s.ack + 1)], "no SACK: not agreed"),
        (|s| s.ecn = 2, "no ECN: not agreed"),
    ];
    for (change, said) in cases {
        let mut scene =
            story_of(Scene { frames: Vec::new(), story: bare.story.clone(), ..plain(&bare) });
        let seg = emitted("b", 1)(&scene).seg;
        scene.change(|f| f.seg == seg, change);
        scene.expect(Class::I4, said);
    }
    changed(emitted("a", 1), |s| s.flags |= ECE).expect(Class::I4, "no ECN: not agreed");
}

/// A scene before its beginning, with the same options.
fn plain(like: &Scene) -> Scene {
    let mut story = like.story.clone();
    (story.dead, story.handovers, story.simplex) = (vec![], vec![], vec![]);
    let fresh = Scene::new();
    Scene {
        story,
        stamps: like.stamps,
        scale: like.scale,
        sack: like.sack,
        client_window: like.client_window,
        server_window: like.server_window,
        ..fresh
    }
}

#[test]
fn a_sack_of_what_was_never_sent() {
    let ahead = |s: &mut Seg| s.sacks = vec![(s.ack + 100, s.ack + 200)];
    changed(emitted("b", 0), ahead).expect(Class::I4, "SACK blocks in what the client has sent");
}

#[test]
fn the_syn_ack_answers_what_was_not_asked() {
    let mut scene = Scene::new();
    scene.sack = false;
    scene.handshake();
    scene.change(|f| f.seg.flags == SYN | ACK, |s| s.sack_permitted = true);
    scene.expect(Class::I4, "options in the SYN-ACK that the client has offered; seen SACK");
}

#[test]
fn a_syn_ack_says_something_else_the_second_time() {
    let mut scene = Scene::new();
    scene.handshake();
    let mut again = scene.frame(|f| f.seg.flags == SYN | ACK).seg.clone();
    again.mss = Some(1400);
    scene.bounce(again, Fate::Lost);
    scene.expect(Class::I4, "the SYN-ACK's options as before");
}

#[test]
fn data_behind_the_clients_window() {
    let mut scene = Scene::new();
    scene.client_window = 20;
    scene.handshake().request(b"GET /");
    // The window of the SYN still allows more: 64240, unscaled.
    let far = vec![7; 60_000];
    scene.reply(&far);
    scene.reply(&vec![8; 20 << 7]);
    scene.expect_good();
    let much = scene.server_says(PSH, &vec![9; (20 << 7) + 3]);
    scene.down(much, Fate::Arrives);
    assert_eq!(scene.expect(Class::I4, "as the client allows").findings[0].by, Some(3));
}

#[test]
fn the_windows_edge_steps_back() {
    let verdict = changed(emitted("b", 0), |s| s.window -= 2).judge();
    let [one] = &verdict.findings[..] else { panic!("{verdict}") };
    assert_eq!((one.class, one.by), (Class::EdgeShrunk, Some(256)));
    assert!(verdict.without(&[Class::EdgeShrunk]).is_empty());
}

#[test]
fn the_windows_edge_steps_back_behind_what_the_client_has_sent() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /");
    let more = scene.client_says(PSH, &[1; 1000]);
    scene.up(more, Fate::LostBetween);
    scene.waits(2 * MS);
    scene.server_window = 3;
    scene.server_acks();
    let verdict = scene.expect(Class::I4, "a window's edge at");
    assert_eq!(verdict.findings[0].by, Some(1000 - (3 << 7)));
}

#[test]
fn an_edge_that_waited_for_its_port_is_not_behind_what_arrived_meanwhile() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /");
    let more = scene.client_says(PSH, &[1; 1000]);
    scene.up(more, Fate::LostBetween);
    scene.waits(2 * MS);
    scene.server_window = 3;
    scene.server_acks();
    scene.story.queue_ns = 5 * MS;
    let verdict = scene.judge();
    assert!(verdict.without(&[Class::EdgeShrunk]).is_empty(), "{verdict}");
}

// Invariant 5.

#[test]
fn the_end_moves() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"one").server_ends().waits(2 * MS);
    scene.out_sent -= 2;
    let fin = scene.server_says(FIN, b"");
    scene.bounce(fin, Fate::Lost);
    let verdict = scene.judge();
    assert!(!verdict.findings.is_empty(), "{verdict}");
    assert!(verdict.findings.iter().all(|f| f.class == Class::I5), "{verdict}");
    assert!(verdict.to_string().contains("the FIN at 4; seen at 3"), "{verdict}");
}

#[test]
fn the_stream_goes_on_behind_its_end() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"one").server_ends();
    scene.out_sent -= 1;
    let more = scene.server_says(PSH, b"more");
    scene.down(more, Fate::Lost);
    scene.expect(Class::I5, "the stream to end at 4; seen data up to 8");
}

fn with_reset() -> Scene {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"one");
    let mut reset = scene.server_says(0, b"");
    (reset.flags, reset.stamps) = (RST | ACK, None);
    scene.bounce(reset, Fate::Arrives);
    scene
}

#[test]
fn a_reset_needs_a_cause() {
    let mut scene = with_reset();
    scene.expect(Class::I5, "no RST: neither side has closed");
    scene.story.resets = vec![Addresses { client: scene.client, service: scene.service }];
    scene.expect_good();

    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").client_ends();
    let mut reset = scene.server_says(0, b"");
    (reset.flags, reset.stamps) = (RST | ACK, None);
    scene.bounce(reset, Fate::Arrives);
    scene.expect_good();
}

/// A server that ends without a backup leaves those behind that it has not accepted, and nobody else.
#[test]
fn a_server_leaves_its_queue_behind() {
    let scene = |answered: bool| {
        let mut scene = Scene::new();
        scene.handshake().request(b"GET /");
        if answered {
            scene.reply(b"one");
        }
        let mut reset = scene.server_says(0, b"");
        (reset.flags, reset.stamps) = (RST | ACK, None);
        scene.down(reset, Fate::Arrives);
        let at_ns = scene.frames.last().unwrap().at_ns;
        scene.story.left = vec![Left { host: "a".to_owned(), at_ns }];
        scene.story.simplex = vec![Interval { from_ns: 0, to_ns: None }];
        scene
    };
    scene(false).expect_good();
    scene(true).expect(Class::I5, "no RST: neither side has closed");
    let mut duplex = scene(false);
    duplex.story.simplex.clear();
    duplex.expect(Class::I5, "no RST: neither side has closed");
    let mut other = scene(false);
    other.story.left[0].host = "b".to_owned();
    other.expect(Class::I5, "no RST: neither side has closed");
}

#[test]
fn a_refusal_is_no_reset() {
    let mut scene = Scene::new();
    scene.handshake();
    scene.frames.retain(|f| f.seg.flags == SYN);
    let (ack, flags) = (scene.irs + 1, RST | ACK);
    let refusal = Seg { ack, flags, ..Seg::default() };
    scene.bounce(refusal, Fate::Arrives);
    scene.expect_good();
}

fn crashed() -> Scene {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"one");
    let time = Interval { from_ns: scene.now_ns, to_ns: None };
    scene.story.crashes.push(Crash { host: "a".into(), time });
    scene
}

#[test]
fn a_crash_is_silence() {
    // An end of the same instant may have left just before.
    let mut scene = crashed();
    scene.server_ends();
    scene.expect_good();
    let mut scene = crashed();
    scene.waits(2 * MS).server_ends();
    scene.expect(Class::I5, "no FIN from a server that crashed");
    // Without a backup it cannot be.
    scene.story.simplex.push(Interval { from_ns: 0, to_ns: None });
    scene.expect_good();

    let mut scene = with_reset();
    let time = Interval { from_ns: scene.frames[0].at_ns, to_ns: None };
    scene.story.crashes.push(Crash { host: "a".into(), time });
    scene.expect(Class::I5, "RST after its server crashed");
}

#[test]
fn an_end_from_before_the_crash_may_be_repeated() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /").reply(b"one");
    let fin = scene.server_says(FIN, b"");
    scene.bounce(fin, Fate::Lost);
    let time = Interval { from_ns: scene.now_ns, to_ns: None };
    scene.story.crashes.push(Crash { host: "a".into(), time });
    scene.out_sent -= 1;
    scene.server_ends();
    scene.expect_good();
}

// Invariant 1.

#[test]
fn an_acknowledgement_without_a_second_node() {
    let mut scene = Scene::new();
    scene.handshake();
    scene.backup = None; // the request takes the direct way, and nobody has said so
    scene.request(b"GET /");
    let verdict = scene.expect(Class::I1, "b has up to 1; seen 6 acknowledged");
    assert_eq!(verdict.findings[0].by, Some(5));
    scene.story.simplex.push(Interval { from_ns: scene.frames[0].at_ns, to_ns: None });
    assert_eq!(scene.expect_good().exemptions.len(), 1);
}

#[test]
fn an_acknowledgement_before_the_second_node_has_it() {
    let mut scene = Scene::new();
    scene.handshake().request(b"GET /");
    scene.expect_good();
    let ack = emitted("a", 0)(&scene);
    let late = |f: &mut Frame| f.at_ns = ack.at_ns + US;
    late(scene.frame(|f| f.is("b", Link::Service) && says("GET /")(f)));
    scene.expect(Class::I1, "b has up to 1; seen 6 acknowledged");
}

#[test]
fn what_comes_after_the_end_of_the_captures_is_not_read() {
    let mut scene = story();
    scene.story.end_ns = Some(scene.now_ns);
    let mut again = emitted("a", 1)(&scene);
    again.at_ns = scene.now_ns + 1;
    scene.story.dead.clear();
    scene.frames.push(again);
    scene.expect_good();
    scene.story.end_ns = None;
    let verdict = scene.judge();
    assert!(verdict.findings.iter().any(|f| f.class == Class::I3), "{verdict}");
}

// What is no fault of anybody's but the captures'.

#[test]
fn captures_that_do_not_tell_enough() {
    let good = story();
    let dir = tempfile::tempdir().unwrap();
    let mut captures = good.files(dir.path());
    let judge = |captures: &[oracle::Capture]| oracle::judge(captures, &good.story).unwrap();
    assert!(judge(&captures).is_conclusive());

    captures[1].missed = 3;
    let gap = Gap::Missed { file: "a.clu.pcap".into(), frames: 3 };
    assert_eq!(judge(&captures).gaps, [gap]);
    captures[1].missed = 0;

    let one = captures.remove(1);
    assert_eq!(judge(&captures).gaps, [Gap::NoCapture { port: "a.clu".into() }]);
    captures.insert(1, one);

    let path = &captures[0].path.clone();
    let whole = std::fs::read(path).unwrap();
    std::fs::write(path, &whole[..whole.len() - 5]).unwrap();
    let verdict = judge(&captures);
    assert!(matches!(verdict.gaps[..], [Gap::Unreadable { .. }]), "{verdict}");
    std::fs::write(path, b"nothing").unwrap();
    assert!(oracle::judge(&captures, &good.story).is_err());
}

#[test]
fn bytes_from_nowhere() {
    let mut scene = story();
    scene.frames.retain(|f| !(f.is("b", Link::Service) && says("third part")(f)));
    let verdict = scene.judge();
    assert!(matches!(verdict.gaps[..], [Gap::FromNowhere { .. }]), "{verdict}");
}

#[test]
fn a_verdict_is_lines_and_json() {
    let mut scene = story();
    scene.story.handovers.clear();
    let verdict = scene.judge();
    let text = verdict.to_string();
    assert!(text.starts_with("I3 10.77.0.101:40000 > 10.77.0.100:80 isn 1000 at 0.1"), "{text}");
    assert!(text.contains("of b.svc.pcap; ") && text.contains(" more)"), "{text}");
    let json = serde_json::to_value(&verdict).unwrap();
    assert_eq!(json["findings"][0]["class"], "I3");
    assert_eq!(json["statistics"]["flows"], 1);
    // The story is kept beside the captures.
    let story = serde_json::to_string(&scene.story).unwrap();
    assert_eq!(serde_json::from_str::<oracle::Story>(&story).unwrap(), scene.story);
}

#[test]
fn a_backup_passes_other_bytes_on() {
    let (mut scene, held) = Scene::with_reply();
    scene.confide(&held, Fate::Arrives);
    scene.pass_on(&Seg { payload: b"order 2".to_vec(), ..held }, Fate::Arrives);
    scene.expect(Class::I6, "as the primary said");
}

#[test]
fn a_backup_passes_on_what_was_not_confided_to_it() {
    let (mut scene, held) = Scene::with_reply();
    scene.pass_on(&held, Fate::Arrives);
    scene.expect(Class::I3, "expected segments of a only");
}

#[test]
fn a_backup_passes_another_segment_on() {
    let (mut scene, held) = Scene::with_reply();
    scene.confide(&held, Fate::Arrives);
    scene.pass_on(&Seg { window: held.window + 1, ..held }, Fate::Arrives);
    scene.expect(Class::I3, "expected segments of a only");
}

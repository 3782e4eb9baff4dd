//! The log's promises one by one, on single flows.

use std::sync::Arc;

use http::{Doubt, Limits, Routes, Treatment};
use journal::Opened;
use replies::{AHEAD_MAX, Excess, Orders, Plan, Policy, ReplyLog, TAIL, Why};

const FLOW: u8 = 1;
const GET: &[u8] = b"GET /page HTTP/1.1\r\n\r\n"; // 22 bytes
const FIXED: &[u8] = b"GET /fixed HTTP/1.1\r\n\r\n"; // 23 bytes
const POST: &[u8] = b"POST /buy HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"; // 45 bytes
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"; // 40 bytes

fn policy() -> Policy {
    let mut routes = Routes::default();
    routes.add("GET", "/fixed", Treatment::Regenerate).unwrap();
    Policy { routes, reply_bytes: 1000, ..Policy::default() }
}

/// One flow, both of whose streams begin at sequence number 0: those of the outstream are offsets.
struct Scene {
    log: ReplyLog<u8>,
    sent: u64,
    written: u64,
    acked: u64,
}

impl Scene {
    fn new(policy: Policy) -> Self {
        let mut log = ReplyLog::new(64 << 20);
        assert_eq!(log.open(FLOW, u32::MAX, &Arc::new(policy)), Opened::New);
        Self { log, sent: 0, written: 0, acked: 0 }
    }

    #[track_caller]
    fn client(&mut self, bytes: &[u8]) {
        assert_eq!(self.client_orders(bytes), Orders::default());
    }

    fn client_orders(&mut self, bytes: &[u8]) -> Orders {
        self.sent += bytes.len() as u64;
        self.log.instream(&FLOW, self.sent - bytes.len() as u64, bytes)
    }

    fn server(&mut self, bytes: &[u8]) -> Orders {
        let at = self.written;
        self.written += bytes.len() as u64;
        self.log.outstream(&FLOW, at as u32, bytes, false)
    }

    fn server_end(&mut self) -> Orders {
        self.log.outstream(&FLOW, self.written as u32, b"", true)
    }

    fn ack(&mut self, at: u64) -> Orders {
        self.log.acknowledged(&FLOW, at as u32)
    }

    fn plan(&self) -> Plan {
        self.log.plan(&FLOW).unwrap()
    }

    /// A takeover would begin there, behind so many bytes of the log.
    #[track_caller]
    fn adopts(&self, instream: u64, position: u64, logged: u64) {
        let position = position as u32;
        assert_eq!(self.plan(), Plan::Adopt { instream, position, logged, swallow: 0 });
        assert_eq!(self.log.unacknowledged(&FLOW).concat().len() as u64, logged);
    }
}

fn release(edge: u64) -> Orders {
    Orders { release: Some(edge as u32), ..Orders::default() }
}

fn open(why: Why) -> Orders {
    Orders { open: Some(why), ..Orders::default() }
}

const NOTHING: Orders = Orders { release: None, skip: None, open: None };

fn reply(length: u64) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into()
}

#[test]
fn a_reply_is_held_until_it_is_whole_and_kept_until_it_is_acknowledged() {
    let mut scene = Scene::new(policy());
    scene.client(POST);
    assert_eq!(scene.server(&OK[..39]), NOTHING);
    scene.adopts(0, 0, 0);
    assert_eq!(scene.server(&OK[39..]), release(40));
    scene.adopts(45, 40, 40);
    assert_eq!(scene.ack(30), NOTHING);
    scene.adopts(45, 40, 10);
    assert_eq!(scene.log.unacknowledged(&FLOW).concat(), &OK[30..]);
    assert_eq!(scene.ack(40), NOTHING);
    scene.adopts(45, 40, 0);
    assert_eq!(scene.log.instream_needed_from(&FLOW), Some(45));
    assert_eq!(scene.log.stats().logged, 1);
}

/// Who hands over waits for these.
#[test]
fn what_is_asked_is_unanswered_until_its_reply_is_whole() {
    let mut scene = Scene::new(policy());
    let unanswered = |scene: &Scene| scene.log.unanswered_from(&FLOW);
    assert_eq!(unanswered(&scene), None);
    scene.client(&[GET, &POST[..10]].concat());
    assert_eq!(unanswered(&scene), Some(0));
    let _ = scene.server(&OK[..39]);
    assert_eq!(unanswered(&scene), Some(0));
    let _ = scene.server(&OK[39..]);
    assert_eq!(unanswered(&scene), Some(22), "a part of a request");
    scene.client(&POST[10..43]);
    let _ = scene.server(OK);
    assert_eq!(unanswered(&scene), None, "answered before its body has come");
    scene.client(&[&POST[43..], GET].concat());
    assert_eq!(unanswered(&scene), Some(67));
    assert_eq!(scene.log.unanswered_from(&2), None);
}

/// RFC 9112 §9.3.2. Each reply leaves when it is whole; it waits for nothing behind it.
#[test]
fn pipelined_replies_are_released_one_by_one() {
    let mut scene = Scene::new(policy());
    scene.client(&[GET, POST, GET].concat());
    assert_eq!(scene.server(&[OK, &OK[..10]].concat()), release(40));
    scene.adopts(22, 40, 40);
    assert_eq!(scene.server(&[&OK[10..], OK].concat()), release(120));
    scene.adopts(89, 120, 120);
}

#[test]
fn interim_replies_leave_at_once() {
    let mut scene = Scene::new(policy());
    scene.client(b"PUT /x HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n");
    assert_eq!(scene.server(b"HTTP/1.1 100 Continue\r\n\r"), NOTHING);
    assert_eq!(scene.server(b"\n"), release(25));
    scene.adopts(0, 25, 25);
    scene.client(b"x");
    assert_eq!(scene.server(OK), release(65));
}

#[test]
fn the_body_of_an_answered_request_is_waited_for() {
    let mut scene = Scene::new(policy());
    scene.client(&POST[..43]);
    assert_eq!(scene.server(OK), release(40));
    assert_eq!(scene.plan(), Plan::WaitForBody { logged: 40 });
    assert_eq!(scene.log.instream_needed_from(&FLOW), None);
    scene.client(&POST[43..]);
    scene.adopts(45, 40, 40);
}

#[test]
fn a_connection_that_ends_is_finished_from_the_log() {
    // The server says so, and its FIN follows.
    let closing = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let finish = |logged, acknowledged| Plan::Finish { position: 57, logged, acknowledged };
    let mut scene = Scene::new(policy());
    scene.client(GET);
    assert_eq!(scene.server(closing), release(57));
    assert_eq!(scene.plan(), finish(57, false));
    assert_eq!(scene.server_end(), release(58));
    assert_eq!(scene.server_end(), NOTHING);
    assert_eq!(scene.ack(57), NOTHING);
    assert_eq!(scene.plan(), finish(0, false));
    assert_eq!(scene.ack(58), NOTHING);
    assert_eq!(scene.plan(), finish(0, true));
    // Only the FIN makes the reply whole.
    let mut scene = Scene::new(policy());
    scene.client(GET);
    assert_eq!(scene.server(b"HTTP/1.1 200 OK\r\n\r\nabc"), NOTHING);
    scene.adopts(0, 0, 0);
    assert_eq!(scene.server_end(), release(23));
    assert_eq!(scene.plan(), Plan::Finish { position: 22, logged: 22, acknowledged: false });
    // The client ended its stream, and waits for the reply.
    let mut scene = Scene::new(policy());
    scene.client(GET);
    assert_eq!(scene.log.instream_end(&FLOW, 22), NOTHING);
    scene.adopts(0, 0, 0);
    assert_eq!(scene.server(OK), release(40));
    // What was pipelined behind the last reply is executed by nobody, and takes no memory.
    for last in [&closing[..], b""] {
        let mut scene = Scene::new(policy());
        let empty = scene.log.bytes();
        scene.client(&GET.repeat(100));
        let _ = scene.server(last);
        let end = last.len() as u64 + 1;
        assert_eq!(scene.server_end().release, Some(end as u32));
        assert_eq!(scene.ack(end), NOTHING);
        assert_eq!(scene.log.bytes(), empty);
    }
    // The server closes an idle connection.
    let mut scene = Scene::new(policy());
    assert_eq!(scene.server_end(), release(1));
    assert_eq!(scene.plan(), Plan::Finish { position: 0, logged: 0, acknowledged: false });
}

/// Whatever can be read in two ways: once, and nothing is kept of it.
#[test]
fn a_doubt_opens_the_flow() {
    let opened = |scene: &mut Scene, why| {
        assert_eq!(scene.plan(), Plan::Reset { why, logged: 0 });
        assert_eq!(scene.log.why_open(&FLOW), Some(why));
        assert_eq!(scene.server(OK), NOTHING, "once");
        assert_eq!(scene.client_orders(GET), NOTHING);
        assert_eq!(scene.ack(1), NOTHING);
        assert!(scene.log.unacknowledged(&FLOW).is_empty());
        assert_eq!(scene.log.stats().opened, 1);
        assert!(scene.log.close(&FLOW));
        assert_eq!(scene.log.bytes(), 0);
    };
    // In the instream, while output is held.
    let mut scene = Scene::new(policy());
    scene.client(GET);
    assert_eq!(scene.server(&OK[..20]), NOTHING);
    let why = Why::Doubt(Doubt::BareLf);
    assert_eq!(scene.client_orders(b"GET / HTTP/1.1\n"), open(why));
    opened(&mut scene, why);
    // In the outstream.
    let mut scene = Scene::new(policy());
    scene.client(GET);
    let why = Why::Doubt(Doubt::LengthAndEncoding);
    let both = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(scene.server(both), open(why));
    opened(&mut scene, why);
    // An upgrade: what follows is not HTTP.
    let mut scene = Scene::new(policy());
    scene.client(GET);
    let why = Why::Doubt(Doubt::Upgraded);
    assert_eq!(scene.server(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), open(why));
    opened(&mut scene, why);
    // A reply that is cut off by its server.
    let mut scene = Scene::new(policy());
    scene.client(GET);
    assert_eq!(scene.server(&OK[..39]), NOTHING);
    let why = Why::Doubt(Doubt::TruncatedReply);
    assert_eq!(scene.server_end(), open(why));
    opened(&mut scene, why);
    // What the data path reports.
    let mut scene = Scene::new(policy());
    assert_eq!(scene.log.give_up(&FLOW, Why::NotCaptured), open(Why::NotCaptured));
    opened(&mut scene, Why::NotCaptured);
}

#[test]
fn output_may_come_again_but_not_otherwise() {
    let scene = || {
        let mut scene = Scene::new(policy());
        scene.client(&[GET, GET].concat());
        assert_eq!(scene.server(&[OK, &OK[..20]].concat()), release(40));
        scene
    };
    // A write that was cut short, and its rest, which reaches further than what was known.
    let mut same = scene();
    assert_eq!(same.log.outstream(&FLOW, 5, &OK[5..30], false), NOTHING);
    assert_eq!(same.log.outstream(&FLOW, 30, &[&OK[30..], OK].concat(), false), release(80));
    // Another byte, wherever it is.
    for at in [0u32, 39, 40, 59] {
        let mut other = scene();
        assert_eq!(other.log.outstream(&FLOW, at, b"?", false), open(Why::Rewritten));
    }
    // What the client has acknowledged is not compared: it is not there any more.
    let mut acknowledged = scene();
    assert_eq!(acknowledged.ack(40), NOTHING);
    assert_eq!(acknowledged.log.outstream(&FLOW, 40, &OK[..20], false), NOTHING);
    // A FIN where bytes are.
    let mut ended = scene();
    assert_eq!(ended.log.outstream(&FLOW, 50, b"", true), open(Why::Rewritten));
    // In front of the stream, behind a gap.
    assert_eq!(scene().log.outstream(&FLOW, u32::MAX - 5, b"x", false), open(Why::Rewritten));
    assert_eq!(scene().log.outstream(&FLOW, 61, b"x", false), open(Why::Gap));
}

#[test]
fn acknowledgements_that_cannot_be_change_nothing() {
    let mut scene = Scene::new(policy());
    scene.client(&[GET, GET].concat());
    assert_eq!(scene.server(&[OK, &OK[..9]].concat()), release(40));
    for wrong in [41, 49, 1 << 31, u64::from(u32::MAX)] {
        assert_eq!(scene.ack(wrong), NOTHING);
        scene.adopts(22, 40, 40);
    }
    assert_eq!(scene.ack(40), NOTHING);
    assert_eq!(scene.ack(12), NOTHING, "an old one");
    scene.adopts(22, 40, 0);
}

#[test]
fn a_flow_that_nobody_saw_begin_is_opened() {
    let mut log: ReplyLog<u8> = ReplyLog::new(1 << 20);
    assert_eq!(log.instream(&7, 0, GET), NOTHING);
    assert_eq!(log.plan(&7), None);
    assert_eq!(log.outstream(&7, 100, OK, false), open(Why::Unknown));
    assert_eq!(log.outstream(&7, 140, OK, false), NOTHING);
    assert_eq!(log.plan(&7), Some(Plan::Reset { why: Why::Unknown, logged: 0 }));
    assert!(log.close(&7));
    assert!(!log.close(&7));
    assert_eq!(log.bytes(), 0);
}

// Regenerated replies.

#[test]
fn a_regenerated_reply_leaves_as_soon_as_its_head_is_there() {
    let mut scene = Scene::new(policy());
    scene.client(FIXED);
    let head = reply(500);
    let end = head.len() as u64 + 500;
    assert_eq!(scene.server(&head[..9]), NOTHING, "whose reply it is is not known yet");
    assert_eq!(scene.server(&head[9..]), release(end), "ahead of what is written");
    // The primary dies; the client has a part, more than the backup.
    assert_eq!(scene.ack(300), NOTHING);
    let swallow = Plan::Adopt { instream: 0, position: 0, logged: 0, swallow: 300 };
    assert_eq!(scene.plan(), swallow);
    // Once it is whole it need not even be generated again.
    assert_eq!(scene.server(&vec![b'x'; 500]), NOTHING);
    scene.adopts(23, end, end - 300);
    assert_eq!(scene.log.stats().regenerated, 1);
}

#[test]
fn the_middle_of_a_long_regenerated_reply_is_not_needed() {
    let mut scene = Scene::new(policy());
    scene.client(FIXED);
    let long = 10_000_000_000;
    let head = reply(long);
    let end = head.len() as u64 + long;
    let mut at = head.len() as u64;
    let mut orders = scene.server(&head);
    let (mut rounds, mut released) = (0, 0);
    while let Some(skip) = orders.skip {
        at += (end - TAIL - at).min(AHEAD_MAX);
        let edge = at + (end - at).min(AHEAD_MAX);
        let news = (edge > released).then_some(edge as u32);
        assert_eq!((skip, orders.release), (at as u32, news));
        released = edge;
        // What was on its way is not wanted, and an acknowledgement of little skips no more.
        assert_eq!(scene.log.outstream(&FLOW, (at - 5000) as u32, &[b'x'; 5000], false), NOTHING);
        let least = scene.log.bytes();
        assert_eq!(scene.ack(1 + scene.acked), NOTHING);
        let Plan::Adopt { instream: 0, position: 0, logged: 0, .. } = scene.plan() else {
            panic!("{:?}", scene.plan())
        };
        assert!(scene.log.bytes() <= least);
        orders = scene.ack(at);
        scene.acked = at;
        rounds += 1;
    }
    assert_eq!(rounds, 38, "{long} B in pieces of {AHEAD_MAX}");
    assert_eq!(at, end - TAIL);
    scene.written = at;
    assert_eq!(scene.server(&vec![b'x'; TAIL as usize]), NOTHING);
    scene.adopts(23, end, TAIL);
    assert_eq!(scene.log.stats().skipped_bytes, long - TAIL);
}

/// A long reply, of which the client has not acknowledged the part that is missing in the log, and
/// a purchase behind it.
fn behind_a_hole() -> (Scene, u64, u64) {
    let mut scene = Scene::new(policy());
    scene.client(&[FIXED, POST].concat());
    let head = reply(1_000_000);
    let end = head.len() as u64 + 1_000_000;
    let hole = end - TAIL;
    let orders = scene.server(&head);
    assert_eq!(orders, Orders { release: Some(end as u32), skip: Some(hole as u32), open: None });
    scene.written = hole;
    assert_eq!(scene.server(&vec![b'x'; TAIL as usize]), NOTHING);
    (scene, hole, end)
}

/// Or else a takeover, which must begin in front of the hole, would execute the purchase again
/// although the client has its reply.
#[test]
fn a_reply_behind_a_hole_waits_until_the_hole_is_acknowledged() {
    let (mut scene, hole, end) = behind_a_hole();
    assert_eq!(scene.server(OK), NOTHING);
    assert_eq!(scene.ack(hole - 1), NOTHING);
    let before = Plan::Adopt { instream: 0, position: 0, logged: 0, swallow: hole - 1 };
    assert_eq!(scene.plan(), before);
    assert_eq!(scene.ack(hole), release(end + 40));
    scene.adopts(68, end + 40, TAIL + 40);
}

/// The same for what leaves before it is a whole reply.
#[test]
fn pieces_and_interim_replies_wait_behind_a_hole() {
    let head = reply(2000);
    let interim = b"HTTP/1.1 102 Processing\r\n\r\n".to_vec();
    for early in [head, interim] {
        let (mut scene, hole, end) = behind_a_hole();
        assert_eq!(scene.server(&early), NOTHING);
        assert_eq!(scene.ack(hole - 1), NOTHING);
        let Plan::Adopt { instream: 0, .. } = scene.plan() else { panic!("{:?}", scene.plan()) };
        assert_eq!(scene.ack(hole), release(end + early.len() as u64));
    }
}

#[test]
fn nothing_is_given_up_behind_a_reply_that_waits() {
    let (mut scene, hole, end) = behind_a_hole();
    scene.client(FIXED);
    assert_eq!(scene.server(OK), NOTHING);
    let head = reply(1_000_000);
    assert_eq!(scene.server(&head), NOTHING, "neither released nor skipped");
    let at = end + 40;
    assert_eq!(
        scene.ack(hole),
        Orders {
            release: Some((at + head.len() as u64 + 1_000_000) as u32),
            skip: None,
            open: None,
        }
    );
    // The purchase must be kept until it is acknowledged.
    scene.adopts(68, at, TAIL + 40);
    assert_eq!(scene.ack(at - 1), NOTHING);
    assert!(scene.ack(at).skip.is_some());
}

#[test]
fn a_long_reply_of_unknown_length_is_given_up_but_for_its_end() {
    let mut scene = Scene::new(policy());
    scene.client(FIXED);
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(scene.server(head), release(head.len() as u64));
    let empty = scene.log.bytes();
    for _ in 0..100 {
        let orders = scene.server(&[b"10000\r\n", &[b'x'; 65536][..], b"\r\n"].concat());
        assert_eq!(orders, release(scene.written));
    }
    let kept = scene.log.bytes() - empty;
    assert!(kept < 1 << 20, "{kept} B of {} B are kept", scene.written);
    let Plan::Adopt { instream: 0, position: 0, logged: 0, swallow: 0 } = scene.plan() else {
        panic!("{:?}", scene.plan())
    };
    assert_eq!(scene.server(b"0\r\n\r\n"), release(scene.written));
    scene.client(GET);
    assert_eq!(scene.server(OK), NOTHING, "behind the hole");
    // The hole ends so far in front of the next reply that no segment has parts of both.
    let behind = scene.written - 40 - TAIL;
    assert_eq!(scene.ack(behind).release, Some(scene.written as u32));
}

/// Another server need not send the same interim replies, so offsets would not agree.
#[test]
fn with_an_interim_reply_nothing_is_regenerated() {
    let mut scene = Scene::new(policy());
    scene.client(FIXED);
    assert_eq!(scene.server(b"HTTP/1.1 103 Early Hints\r\n\r\n"), release(28));
    assert_eq!(scene.server(&OK[..39]), NOTHING);
    assert_eq!(scene.server(&OK[39..]), release(68));
}

// Replies that are too long.

#[test]
fn a_reply_over_its_budget_is_streamed() {
    // By its length, from the head on; without one, once it has come so far.
    let streams = |head: &[u8], first: Orders| {
        let mut scene = Scene::new(policy());
        scene.client(&[POST, GET].concat());
        assert_eq!(scene.server(OK), release(40));
        assert_eq!(scene.server(head), first);
        (scene, 40 + head.len() as u64)
    };
    let head = reply(2000);
    let (mut scene, at) = streams(&head, release(40 + head.len() as u64));
    assert_eq!(scene.server(&vec![b'x'; 1500]), release(at + 1500));
    // What was whole is still sent.
    let partly = Plan::Reset { why: Why::PartlySent, logged: 40 };
    assert_eq!(scene.plan(), partly);
    assert_eq!(scene.log.unacknowledged(&FLOW).concat(), OK);
    assert_eq!(scene.server(&vec![b'x'; 500]), release(at + 2000));
    scene.adopts(67, at + 2000, at + 2000);
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (mut scene, at) = streams(chunked, NOTHING);
    assert_eq!(scene.server(&[b"bb8\r\n", &[b'x'; 900][..]].concat()), NOTHING);
    scene.adopts(45, 40, 40);
    assert_eq!(scene.server(&[b'x'; 100]), release(at + 1005));
    assert_eq!(scene.plan(), partly);
    assert_eq!(scene.log.stats().streamed, 0);
}

#[test]
fn an_excess_is_regenerated_for_get_only() {
    let regenerate = Policy { excess: Excess::Regenerate, ..policy() };
    let head = reply(2000);
    let end = head.len() as u64 + 2000;
    let mut scene = Scene::new(regenerate.clone());
    scene.client(GET);
    assert_eq!(scene.server(&head), release(end));
    assert_eq!(scene.ack(1000), NOTHING);
    let again = Plan::Adopt { instream: 0, position: 0, logged: 0, swallow: 1000 };
    assert_eq!(scene.plan(), again);
    let mut scene = Scene::new(regenerate);
    scene.client(POST);
    assert_eq!(scene.server(&head), release(head.len() as u64));
    assert_eq!(scene.plan(), Plan::Reset { why: Why::PartlySent, logged: 0 });
}

// Memory.

#[test]
fn budgets_open_flows_and_free_their_memory() {
    // The flow's own.
    let mut scene = Scene::new(Policy { flow_bytes: 20_000, ..policy() });
    scene.client(GET);
    let _ = scene.server(&reply(1_000_000));
    let orders = (0..100).map(|_| scene.server(&[b'x'; 1000]));
    let last = orders.take_while(|orders| orders.open.is_none()).count();
    assert!((10..20).contains(&last), "opened after {last} KB");
    assert_eq!(scene.log.why_open(&FLOW), Some(Why::FlowBudget));
    // All flows'.
    let policy = Arc::new(policy());
    let mut log: ReplyLog<u32> = ReplyLog::new(100_000);
    let mut refused = 0;
    for flow in 0..300 {
        refused += usize::from(log.open(flow, 0, &policy) == Opened::OverBudget);
        let _ = log.instream(&flow, 0, GET);
        let _ = log.outstream(&flow, 1, OK, false);
        assert!(log.bytes() <= 100_000);
    }
    assert!(refused > 0 && refused < 300, "{refused} refused");
    let open = log.keys().filter(|flow| log.why_open(flow).is_some()).count();
    assert!(open > 0 && open < 300, "{open} open");
    for flow in 0..300 {
        log.close(&flow);
    }
    assert_eq!(log.bytes(), 0);
}

#[test]
fn memory_returns_to_its_level_after_100_000_requests() {
    let mut scene = Scene::new(Policy { limits: Limits::default(), ..policy() });
    let empty = scene.log.bytes();
    let mut level = 0;
    for round in 0..100_000 {
        scene.client(POST);
        let _ = scene.server(&OK[..20]);
        assert!(scene.log.bytes() > empty);
        assert_eq!(scene.server(&OK[20..]), release(scene.written));
        assert_eq!(scene.ack(scene.written), NOTHING);
        assert_eq!(scene.log.instream_needed_from(&FLOW), Some(scene.sent));
        if round == 0 {
            level = scene.log.bytes();
            assert!(level - empty <= 256, "{} B for nothing", level - empty);
        }
        assert_eq!(scene.log.bytes(), level);
    }
}

/// The bar of the design for an idle flow is 1 KiB on each node, the journal's part included.
#[test]
fn an_idle_flow_is_cheap() {
    type Key = [u8; 36];
    let policy = Arc::new(policy());
    let mut log: ReplyLog<Key> = ReplyLog::new(1 << 30);
    for flow in 0..10_000u32 {
        let mut key = [0; 36];
        key[..4].copy_from_slice(&flow.to_le_bytes());
        assert_eq!(log.open(key, 0, &policy), Opened::New);
        let _ = log.instream(&key, 0, GET);
        assert_eq!(log.outstream(&key, 1, OK, false), release(41));
        assert_eq!(log.acknowledged(&key, 41), NOTHING);
    }
    let each = log.bytes() / 10_000;
    println!("an idle flow takes {each} B");
    assert!(each <= 700, "{each} B");
}

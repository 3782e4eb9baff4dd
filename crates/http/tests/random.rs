//! What must hold for every traffic and every way of cutting it.

mod common;

use common::*;
use http::{BodyLength, Connection, Doubt, Event, Limits, Resume, Takeover, Verdict};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// What passes, in order: whether the client sent it, and the bytes.
type Pieces = Vec<(bool, Vec<u8>)>;

/// One request and the replies to it, with what must be said of them.
#[derive(Clone, Debug)]
struct Exchange {
    method: &'static str,
    target: String,
    request: Message,
    expects_continue: bool,
    interim: Vec<u16>,
    status: u16,
    reply: Message,
}

/// A head and the body behind it, as bytes, and how the head announces it.
#[derive(Clone, Debug)]
struct Message {
    head: Vec<u8>,
    body: Vec<u8>,
    length: BodyLength,
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    // Bodies that look like messages, and bodies that look like nothing.
    let like_messages = select(vec![
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"0\r\n\r\n",
        b"\r\n",
    ]);
    prop_oneof![
        3 => vec(any::<u8>(), 0..40),
        1 => vec(like_messages, 0..4).prop_map(|pieces| pieces.concat()),
    ]
}

/// A body as chunks, of which any may have an extension, and with any trailer section.
fn chunked() -> impl Strategy<Value = Vec<u8>> {
    let chunk = (content(), select(vec!["", ";a", ";a=b", "; a = \"b c\""]), any::<bool>());
    let trailers = vec(select(vec!["A: b\r\n", "Checksum:\r\n", "C: d e\r\n"]), 0..3);
    (vec(chunk, 0..4), trailers).prop_map(|(chunks, trailers)| {
        let mut body = Vec::new();
        for (data, extension, upper) in chunks.into_iter().filter(|(data, ..)| !data.is_empty()) {
            let size = data.len();
            let size = if upper { format!("{size:03X}") } else { format!("{size:x}") };
            body.extend_from_slice(format!("{size}{extension}\r\n").as_bytes());
            body.extend_from_slice(&data);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("0\r\n{}\r\n", trailers.concat()).as_bytes());
        body
    })
}

/// Fields that frame nothing, around the one that does.
fn fields(framing: String) -> impl Strategy<Value = String> {
    let idle = select(vec![
        "Host: h\r\n",
        "A:\r\n",
        "X-Content-Length: 9\r\n",
        "Connection: keep-alive\r\n",
        "Te: trailers\r\n",
        "Cookie: a=b; c=d\r\n",
        "B: \t caf\u{e9} \r\n",
    ]);
    (vec(idle.clone(), 0..4), vec(idle, 0..4))
        .prop_map(move |(before, after)| format!("{}{framing}{}", before.concat(), after.concat()))
}

/// A message behind `first_line`, with no body (and nothing said), a counted or a chunked one.
fn message(first_line: String, unsaid: bool) -> impl Strategy<Value = Message> {
    let body = prop_oneof![
        content().prop_map(|body| (
            format!("Content-Length: {}\r\n", body.len()),
            BodyLength::Bytes(body.len() as u64),
            body
        )),
        chunked().prop_map(|body| (
            "transfer-encoding:chunked\r\n".to_owned(),
            BodyLength::Chunked,
            body
        )),
        Just((String::new(), BodyLength::NONE, Vec::new())),
    ];
    let body = body.prop_filter("a reply must say", move |(said, ..)| unsaid || !said.is_empty());
    body.prop_flat_map(move |(said, length, body)| {
        let first_line = first_line.clone();
        fields(said).prop_map(move |fields| Message {
            head: format!("{first_line}\r\n{fields}\r\n").into_bytes(),
            body: body.clone(),
            length,
        })
    })
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let method = select(vec!["GET", "POST", "HEAD", "PUT", "CONNECTED", "X"]);
    let target = "/[a-z%/.]{0,10}(\\?[a-z=&]{0,5})?";
    let interim = vec(select(vec![100, 102, 103, 199]), 0..3);
    let status = select(vec![200u16, 201, 204, 205, 304, 404, 500, 599]);
    (method, target, any::<bool>(), any::<bool>(), interim, status).prop_flat_map(
        |(method, target, empty_line, expects_continue, interim, status)| {
            let before = if empty_line { "\r\n" } else { "" };
            let expect = if expects_continue { "\r\nExpect: 100-continue" } else { "" };
            let request = message(format!("{before}{method} {target} HTTP/1.1{expect}"), true);
            // Whether a reply to HEAD, and 304, announce a body makes no difference.
            let reply = message(format!("HTTP/1.1 {status} Because"), false);
            (Just((method, target, expects_continue, interim, status)), request, reply).prop_map(
                |((method, target, expects_continue, interim, status), request, mut reply)| {
                    if status == 204 {
                        reply.head = b"HTTP/1.1 204 Nothing\r\n\r\n".to_vec();
                    }
                    if method == "HEAD" || matches!(status, 204 | 304) {
                        reply.body.clear();
                        reply.length = BodyLength::NONE;
                    }
                    Exchange { method, target, request, expects_continue, interim, status, reply }
                },
            )
        },
    )
}

/// Exchanges, pipelined: with each, how many requests are sent before its reply begins.
fn pipeline() -> impl Strategy<Value = (Vec<Exchange>, Vec<usize>)> {
    vec((exchange(), 0..4usize), 1..8).prop_map(|pairs| pairs.into_iter().unzip())
}

/// The two streams as pieces in causal order, and what must be said of them.
fn write(exchanges: &[Exchange], ahead: &[usize]) -> (Pieces, Vec<Seen>, Takeover) {
    let (mut pieces, mut seen) = (Vec::new(), Vec::new());
    let (mut instream, mut outstream, mut sent) = (0, 0, 0);
    for (i, (exchange, ahead)) in exchanges.iter().zip(ahead).enumerate() {
        while sent < exchanges.len() && sent <= i + ahead {
            let Exchange { request, method, target, .. } = &exchanges[sent];
            let (begin, head_end) = (instream, instream + request.head.len() as u64);
            instream = head_end + request.body.len() as u64;
            pieces.push((true, [&request.head[..], &request.body].concat()));
            seen.push(Seen::Request {
                number: sent as u64,
                begin,
                head_end,
                words: format!("{method} {target} HTTP/1.1"),
                body: request.length,
                expects_continue: exchanges[sent].expects_continue,
                persists: true,
            });
            seen.push(Seen::Other(Event::RequestEnd { number: sent as u64, end: instream }));
            sent += 1;
        }
        let request = i as u64;
        for &status in &exchange.interim {
            let begin = outstream;
            let head = format!("HTTP/1.1 {status} Wait\r\nA: b\r\n\r\n").into_bytes();
            outstream += head.len() as u64;
            pieces.push((false, head));
            seen.push(Seen::Other(Event::Interim { request, status, begin, end: outstream }));
        }
        let reply = &exchange.reply;
        let (begin, head_end) = (outstream, outstream + reply.head.len() as u64);
        outstream = head_end + reply.body.len() as u64;
        pieces.push((false, [&reply.head[..], &reply.body].concat()));
        let (status, body) = (exchange.status, reply.length);
        seen.push(Seen::Other(Event::Reply(http::Reply {
            request,
            begin,
            head_end,
            status,
            body,
            persists: true,
        })));
        seen.push(Seen::Other(Event::ReplyEnd { request, end: outstream, closes: false }));
    }
    let takeover = Takeover {
        resume: Resume::At(instream),
        outstream_at: outstream,
        last_reply_complete: true,
        unanswered: 0,
    };
    (pieces, seen, takeover)
}

/// The same pieces, those of one direction that follow each other joined, and then cut anywhere.
fn cut(pieces: &[(bool, Vec<u8>)], cuts: &[Index]) -> Pieces {
    let mut joined: Pieces = Vec::new();
    for (client, bytes) in pieces {
        match joined.last_mut() {
            Some((same, run)) if same == client => run.extend_from_slice(bytes),
            _ => joined.push((*client, bytes.clone())),
        }
    }
    let total: usize = joined.iter().map(|(_, run)| run.len()).sum();
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(total + 1)).collect();
    at.sort_unstable();
    let mut at = at.into_iter().peekable();
    let (mut pieces, mut begin) = (Vec::new(), 0);
    for (client, run) in joined {
        let mut rest = &run[..];
        while let Some(cut) = at.next_if(|cut| *cut < begin + rest.len()) {
            let (piece, behind) = rest.split_at(cut - begin);
            pieces.push((client, piece.to_vec()));
            (rest, begin) = (behind, cut);
        }
        pieces.push((client, rest.to_vec()));
        begin += rest.len();
    }
    pieces
}

fn script(pieces: &[(bool, Vec<u8>)]) -> Vec<Step<'_>> {
    pieces
        .iter()
        .map(|(client, bytes)| if *client { Client(bytes) } else { Server(bytes) })
        .collect()
}

/// Traffic that is nearly right: pieces of valid messages, shuffled, with bytes changed.
fn damaged() -> impl Strategy<Value = Pieces> {
    let words = select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /x HTTP/1.0\r\n",
        "CONNECT h:1 HTTP/1.1\r\n",
        "HEAD / HTTP/1.1\r\n\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 100 C\r\n\r\n",
        "HTTP/1.0 304 N\r\n",
        "HTTP/1.1 101 S\r\n",
        "\r\n",
        "Content-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "Expect: 100-continue\r\n",
        "3\r\nabc\r\n",
        "0\r\n\r\n",
        "abc",
        " ",
        "\n",
        "\r",
        ":",
        "\0",
        "GET / HTTP/1.1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ]);
    let text = vec(words, 1..8).prop_map(|words| words.concat().into_bytes());
    let noise = vec(any::<u8>(), 0..100);
    vec((any::<bool>(), prop_oneof![6 => text, 1 => noise]), 0..12)
}

const SMALL: Limits = Limits { head_bytes: 100, fields: 5, unanswered: 3 };

/// Plays, and checks after each piece what must hold whatever was in it.
fn play_watched(limits: Limits, script: &[Step<'_>]) -> Player {
    let mut player = Player::new(limits);
    for step in script {
        player.play(*step);
        assert_bounded(&player.connection, limits);
    }
    assert_tiled(&player.seen);
    player
}

fn assert_bounded(connection: &Connection, limits: Limits) {
    // 64 bytes are more than a waiting request takes, and a queue doubles when it grows.
    let most = 2 * limits.head_bytes + 64 * (2 * limits.unanswered).max(4);
    let held = connection.heap_bytes();
    assert!(held <= most, "{held} bytes are held, {most} allowed");
    assert_eq!(connection.takeover().is_none(), connection.verdict() != Verdict::Framed);
}

/// Each message begins where the one before it in its stream ends, each reply answers the oldest
/// request without one, and nothing comes behind a doubt.
fn assert_tiled(seen: &[Seen]) {
    let (mut instream, mut outstream, mut requests, mut replies) = (0, 0, 0, 0);
    for (i, event) in seen.iter().enumerate() {
        match event {
            Seen::Request { number, begin, head_end, .. } => {
                assert_eq!((*number, *begin), (requests, instream));
                assert!(head_end > begin);
                requests += 1;
                instream = *head_end;
            }
            Seen::Other(Event::RequestEnd { number, end }) => {
                assert!(*number + 1 == requests && *end >= instream);
                instream = *end;
            }
            Seen::Other(Event::Interim { request, begin, end, .. }) => {
                assert_eq!((*request, *begin), (replies, outstream));
                outstream = *end;
            }
            Seen::Other(Event::Reply(reply)) => {
                assert_eq!((reply.request, reply.begin), (replies, outstream));
                assert!(replies < requests, "an answer without a question");
                outstream = reply.head_end;
            }
            Seen::Other(Event::ReplyEnd { request, end, .. }) => {
                assert!(*request == replies && *end >= outstream);
                replies += 1;
                outstream = *end;
            }
            Seen::Other(Event::PassThrough(_)) => assert_eq!(i + 1, seen.len(), "the last event"),
            Seen::Other(Event::Request(_)) => unreachable!("owned"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn valid_pipelines_are_framed_exactly((exchanges, ahead) in pipeline(), cuts in vec(any::<Index>(), 0..40)) {
        let (pieces, expected, takeover) = write(&exchanges, &ahead);
        let cut = cut(&pieces, &cuts);
        for pieces in [&pieces, &cut] {
            let player = play_watched(Limits::default(), &script(pieces));
            prop_assert_eq!(&player.seen, &expected);
            prop_assert_eq!(player.connection.takeover(), Some(takeover));
            prop_assert_eq!(player.connection.heap_bytes() > 1024, false, "little is held between messages");
        }
    }

    #[test]
    fn how_a_stream_is_cut_does_not_show(pieces in damaged(), cuts in vec(any::<Index>(), 0..40)) {
        let joined = cut(&pieces, &[]);
        let whole = play_watched(SMALL, &script(&joined));
        for other in [cut(&pieces, &cuts), pieces] {
            let cut = play_watched(SMALL, &script(&other));
            prop_assert_eq!(&cut.seen, &whole.seen);
            prop_assert_eq!(cut.connection.takeover(), whole.connection.takeover());
        }
        let bytes = play_watched(SMALL, &bytewise(&script(&joined)));
        prop_assert_eq!(&bytes.seen, &whole.seen);
    }

    /// Where a takeover resumes, the streams can be read on by a connection that knows no more.
    #[test]
    fn a_takeover_anywhere_goes_on_as_if_nothing_had_been(
        (exchanges, ahead) in pipeline(),
        at in any::<Index>(),
        cuts in vec(any::<Index>(), 0..20),
    ) {
        let (pieces, _, end) = write(&exchanges, &ahead);
        let pieces = cut(&pieces, &cuts);
        let at = at.index(pieces.len() + 1);
        let before = play_watched(Limits::default(), &script(&pieces[..at]));
        let found = before.connection.takeover().expect("valid traffic");
        let Resume::At(begin) = found.resume else { panic!("nobody closes, nobody is hasty") };

        // Every client byte from there, then every reply from there: the second server's are as long.
        let stream = |client| {
            let of = |(side, bytes): &(bool, Vec<u8>)| (*side == client).then(|| bytes.clone());
            pieces.iter().filter_map(of).collect::<Vec<_>>().concat()
        };
        let (instream, outstream) = (stream(true), stream(false));
        let mut after = Connection::starting_at(begin, found.outstream_at, Limits::default());
        after.instream(begin, &instream[begin as usize..]).for_each(|_| ());
        let replies = &outstream[found.outstream_at as usize..];
        after.outstream(found.outstream_at, replies).for_each(|_| ());
        prop_assert_eq!(after.takeover(), Some(end));
    }

    #[test]
    fn arbitrary_bytes_never_panic(pieces in vec((any::<bool>(), vec(any::<u8>(), 0..300)), 0..8)) {
        play_watched(SMALL, &script(&pieces));
    }
}

/// A small generator, for runs that are too long to be shrunk. SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A long run of damaged traffic: valid exchanges with a few bytes changed, taken out or doubled, or
/// cut off. Whatever becomes of it, the same must become of it in other pieces, and nothing may
/// panic.
#[test]
fn a_long_run_of_damaged_exchanges() {
    let exchanges: [(&[u8], &[u8]); 6] = [
        (b"GET /a?b HTTP/1.1\r\nHost: h\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
        (b"HEAD / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        (
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nT: u\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n",
        ),
        (
            b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        ),
        (
            b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
        ),
        (b"\r\nGET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"),
    ];
    let mut random = Random(0x5eed);
    let (mut framed, mut doubts) = (0, std::collections::HashSet::<Doubt>::new());
    for _ in 0..RUNS {
        let mut pieces = Vec::new();
        for _ in 0..1 + random.below(4) {
            let (request, reply) = exchanges[random.below(exchanges.len())];
            for (client, bytes) in [(true, request), (false, reply)] {
                pieces.push((client, damage(bytes, &mut random)));
            }
        }
        let whole = play_watched(SMALL, &script(&pieces));
        let steps = script(&pieces);
        let mut cut = Vec::new();
        for step in steps {
            let (Client(mut rest) | Server(mut rest)) = step else { unreachable!("pieces only") };
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(1 + random.below(rest.len()));
                cut.push(if matches!(step, Client(_)) { Client(piece) } else { Server(piece) });
                rest = behind;
            }
        }
        assert_eq!(play_watched(SMALL, &cut).seen, whole.seen, "{pieces:?}");
        match whole.connection.verdict() {
            Verdict::Framed => framed += 1,
            Verdict::PassThrough { why } => drop(doubts.insert(why)),
        }
    }
    // Else the run was about nothing.
    assert!(framed > RUNS / 20 && framed < RUNS * 19 / 20, "{framed} of {RUNS} are framed");
    assert!(doubts.len() > 15, "only {doubts:?}");
}

const RUNS: usize = 60_000;

fn damage(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if random.below(3) > 0 {
        return bytes;
    }
    for _ in 0..1 + random.below(2) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] = b"\r\n \t:;,01\0"[random.below(10)],
            2 => drop(bytes.remove(at)),
            3 => bytes.insert(at, bytes[at]),
            4 => bytes.insert(at, b"\r\n \t:;,01\0"[random.below(10)]),
            _ => bytes.truncate(at + 1),
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

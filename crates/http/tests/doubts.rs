//! Every doubt, by scripts that must end in it. Each script is also played a byte at a time, and
//! with good traffic behind it: a doubt is for good.

mod common;

use std::collections::HashSet;

use common::*;
use http::{Connection, Doubt, Event, Limits, Verdict};

const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const CHUNKED_POST: &[u8] = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
const CHUNKED_OK: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Small, so that they are reached.
const LIMITS: Limits = Limits { head_bytes: 200, fields: 4, unanswered: 3 };

#[derive(Default)]
struct Covered(HashSet<Doubt>);

impl Covered {
    #[track_caller]
    fn check(&mut self, expected: Doubt, script: &[Step<'_>]) {
        let mut player = play(LIMITS, script);
        assert_eq!(
            player.connection.verdict(),
            Verdict::PassThrough { why: expected },
            "{script:?}"
        );
        let report = |seen: &[Seen]| {
            let reports = |one: &&Seen| matches!(one, Seen::Other(Event::PassThrough(_)));
            seen.iter().filter(reports).cloned().collect::<Vec<_>>()
        };
        assert_eq!(report(&player.seen), [Seen::Other(Event::PassThrough(expected))]);
        assert_eq!(player.seen.last(), Some(&Seen::Other(Event::PassThrough(expected))));
        assert_eq!(
            play(LIMITS, &bytewise(script)).seen,
            player.seen,
            "a byte at a time: {script:?}"
        );

        let before = player.seen.len();
        for step in [Client(GET), Server(OK), ClientEnd, ServerEnd] {
            player.play(step);
        }
        assert_eq!(player.seen.len(), before, "nothing is said any more");
        assert_eq!(player.connection.takeover(), None);
        assert_eq!(player.connection.heap_bytes(), 0);
        self.0.insert(expected);
    }

    /// A request with this text, to which nothing is added.
    #[track_caller]
    fn request(&mut self, expected: Doubt, text: impl AsRef<[u8]>) {
        self.check(expected, &[Client(text.as_ref())]);
        self.check(expected, &[Client(GET), Client(text.as_ref())]);
    }

    /// A request with these fields, each with its line end.
    #[track_caller]
    fn request_fields(&mut self, expected: Doubt, fields: &str) {
        self.request(expected, format!("POST / HTTP/1.1\r\n{fields}\r\n"));
    }

    /// A reply with this text to a GET.
    #[track_caller]
    fn reply(&mut self, expected: Doubt, text: impl AsRef<[u8]>) {
        self.check(expected, &[Client(GET), Server(text.as_ref())]);
    }

    /// A request and a reply with these fields.
    #[track_caller]
    fn fields(&mut self, expected: Doubt, fields: &str) {
        self.request_fields(expected, fields);
        self.reply(expected, format!("HTTP/1.1 200 OK\r\n{fields}\r\n"));
    }

    /// A chunked request and a chunked reply with this body.
    #[track_caller]
    fn chunks(&mut self, expected: Doubt, body: impl AsRef<[u8]>) {
        self.check(expected, &[Client(CHUNKED_POST), Client(body.as_ref())]);
        self.check(expected, &[Client(GET), Server(CHUNKED_OK), Server(body.as_ref())]);
    }
}

#[test]
fn every_doubt() {
    let mut covered = Covered::default();
    other_protocols(&mut covered);
    first_lines(&mut covered);
    field_lines(&mut covered);
    limits(&mut covered);
    lengths_and_codings(&mut covered);
    chunks(&mut covered);
    messages_that_do_not_fit(&mut covered);
    ends(&mut covered);
    for doubt in Doubt::ALL {
        assert!(covered.0.contains(doubt), "no script ends in {doubt:?}");
    }
}

fn other_protocols(c: &mut Covered) {
    // RFC 8446 §5.1: the beginning of a ClientHello.
    c.check(Doubt::Tls, &[Client(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")]);
    c.check(Doubt::Http2, &[Client(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0")]);
    c.request(Doubt::Http09, b"GET /\r\n");
    for version in
        ["HTTP/2.0", "HTTP/1.2", "HTTP/0.9", "http/1.1", "HTTP/1.10", "HTTP/1", "XTTP/1.1"]
    {
        c.request(Doubt::Version, format!("GET / {version}\r\n"));
    }
    for version in ["HTTP/2", "HTTP/1.2", "HTTP/1.", "HTTP/11", "HTTP/"] {
        c.reply(Doubt::Version, format!("{version} 200 OK\r\n"));
    }
    // RFC 6455 §1.3, and RFC 9110 §15.2.2 where nobody asked.
    let upgrade = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    let switching = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    c.check(Doubt::Upgraded, &[Client(upgrade), Server(switching), Server(b"\x81\x05Hello")]);
    c.check(Doubt::Upgraded, &[Client(GET), Server(switching)]);
    let connect = Client(b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n");
    c.check(Doubt::Tunnel, &[connect, Server(b"HTTP/1.1 200 OK\r\n\r\n"), Client(b"\x16\x03\x01")]);
    c.check(Doubt::Tunnel, &[connect, Server(b"HTTP/1.1 299 OK\r\nContent-Length: 5\r\n\r\n")]);
}

fn first_lines(c: &mut Covered) {
    for line in [
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        " GET / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET / a HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET",
        "POST /",
        "PRI *",
        "\0",
        "(GET) / HTTP/1.1",
        "G(T / HTTP/1.1",
        "GET /\x01 HTTP/1.1",
        "GET /\x7f HTTP/1.1",
        "\u{e9} / HTTP/1.1",
        ": x",
    ] {
        c.request(Doubt::BadRequestLine, format!("{line}\r\n\r\n"));
    }
    c.request(Doubt::BadRequestLine, b"GET /\xff HTTP/1.1\r\n\r\n");
    c.request(Doubt::BadRequestLine, b"\r\n\r\nGET / HTTP/1.1\r\n\r\n");
    // Other protocols that begin with a line.
    c.request(Doubt::BadRequestLine, b"SSH-2.0-OpenSSH_9.2\r\n");
    for line in [
        "",
        "\r\nHTTP/1.1 200 OK",
        "ICY 200 OK",
        "<html>",
        "\0",
        "hTTP/1.1 200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 +20 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 099 No",
        "HTTP/1.1 600 No",
        "HTTP/1.1 200OK",
        "HTTP/1.1",
        "HTTP/1.1 ",
        "HTTP/1.1 200 \x01",
    ] {
        c.reply(Doubt::BadStatusLine, format!("{line}\r\n\r\n"));
    }
}

fn field_lines(c: &mut Covered) {
    // RFC 9112 §2.2: line ends, anywhere in a head.
    c.request(Doubt::BareLf, b"GET / HTTP/1.1\n\n");
    c.request(Doubt::BareLf, b"\nGET / HTTP/1.1\r\n\r\n");
    c.reply(Doubt::BareLf, b"HTTP/1.1 200 OK\nContent-Length: 0\n\n");
    c.fields(Doubt::BareLf, "A: b\nTransfer-Encoding: chunked\r\n");
    c.fields(Doubt::BareLf, "A: b\r\n\n");
    c.request(Doubt::BareCr, b"GET /\rHTTP/1.1\r\n\r\n");
    c.request(Doubt::BareCr, b"\rGET / HTTP/1.1\r\n\r\n");
    c.fields(Doubt::BareCr, "A: b\rTransfer-Encoding: chunked\r\n");
    c.fields(Doubt::BareCr, "A: b\r\r\n");
    c.fields(Doubt::ObsFold, "A: b\r\n c\r\n");
    c.fields(Doubt::ObsFold, " Content-Length: 0\r\n");
    c.fields(Doubt::ObsFold, "Transfer-Encoding:\r\n\tchunked\r\n");
    c.fields(Doubt::SpaceBeforeColon, "Content-Length : 5\r\n");
    c.fields(Doubt::SpaceBeforeColon, "Transfer-Encoding\t: chunked\r\n");
    for line in [
        "no colon",
        ": no name",
        "a b: c",
        "a\0: c",
        "caf\u{e9}: c",
        "Transfer-Encoding\x0b: chunked",
        "(a): b",
    ] {
        c.fields(Doubt::BadFieldName, &format!("{line}\r\n"));
    }
    for value in ["\0", "a\x01b", "\x7f", "Content-Length: 5\x08"] {
        c.fields(Doubt::BadFieldValue, &format!("A: {value}\r\n"));
    }
    // In a trailer section as in a head.
    c.chunks(Doubt::BareLf, "0\r\n\n");
    c.chunks(Doubt::BareLf, "0\r\nA: b\n\r\n");
    c.chunks(Doubt::BareCr, "0\r\nA: \rb\r\n\r\n");
    c.chunks(Doubt::ObsFold, "0\r\n A: b\r\n\r\n");
    c.chunks(Doubt::SpaceBeforeColon, "0\r\nA : b\r\n\r\n");
    c.chunks(Doubt::BadFieldName, "0\r\nGET / HTTP/1.1\r\n\r\n");
    c.chunks(Doubt::BadFieldValue, "0\r\nA: \0\r\n\r\n");
}

fn limits(c: &mut Covered) {
    let long = "a".repeat(LIMITS.head_bytes);
    c.request(Doubt::HeadTooLarge, format!("GET /{long} HTTP/1.1\r\n\r\n"));
    c.request(Doubt::HeadTooLarge, format!("{long}a"));
    c.fields(Doubt::HeadTooLarge, &format!("A: {long}\r\n"));
    c.fields(Doubt::HeadTooLarge, &format!("A: {0}\r\nB: {0}\r\n", &long[..150]));
    c.chunks(Doubt::HeadTooLarge, format!("1;{long}"));
    c.chunks(Doubt::HeadTooLarge, format!("{}1\r\n", "0".repeat(LIMITS.head_bytes)));
    c.chunks(Doubt::HeadTooLarge, format!("0\r\nA: {long}"));
    c.fields(Doubt::TooManyFields, &"A: b\r\n".repeat(LIMITS.fields + 1));
    c.chunks(Doubt::TooManyFields, format!("0\r\n{}", "A: b\r\n".repeat(LIMITS.fields + 1)));
    c.check(Doubt::TooManyUnanswered, &[Client(&GET.repeat(LIMITS.unanswered + 1))]);
}

/// One byte less, one field less, one request less is no doubt.
#[test]
fn limits_are_reached_before_they_are_passed() {
    let frame = |filler: usize| format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(filler));
    let filler = LIMITS.head_bytes - frame(0).len();
    let script = |head: &str| {
        let script = [Client(head.as_bytes()), Server(OK), Client(GET)];
        assert_eq!(doubt(LIMITS, &script), doubt(LIMITS, &bytewise(&script)));
        doubt(LIMITS, &script)
    };
    assert_eq!(script(&frame(filler)), None);
    assert_eq!(script(&frame(filler + 1)), Some(Doubt::HeadTooLarge));
    let fields = |count| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(count));
    assert_eq!(script(&fields(LIMITS.fields)), None);
    assert_eq!(script(&fields(LIMITS.fields + 1)), Some(Doubt::TooManyFields));
    let requests = GET.repeat(LIMITS.unanswered);
    assert_eq!(doubt(LIMITS, &[Client(&requests), Server(OK), Client(GET)]), None);
    assert_eq!(doubt(LIMITS, &[Client(&requests), Client(GET)]), Some(Doubt::TooManyUnanswered));
}

/// A whole head comes byte by byte, a burst of requests waits: afterwards nothing of it is held.
#[test]
fn what_was_buffered_is_given_back() {
    // No power of two: what doubles as it grows would pass the limit.
    let limits = Limits { head_bytes: 50_000, ..Limits::default() };
    let head = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(limits.head_bytes - 18));
    let mut player = Player::new(limits);
    let mut most = 0;
    for byte in head.as_bytes().chunks(1) {
        player.play(Client(byte));
        most = most.max(player.connection.heap_bytes());
    }
    assert!((49_000..=limits.head_bytes).contains(&most), "{most} bytes were held");
    player.play(Server(OK));
    assert!(player.connection.heap_bytes() <= 512);
    player.play(Client(&GET.repeat(limits.unanswered)));
    assert!(player.connection.heap_bytes() >= limits.unanswered * 16);
    player.play(Server(&OK.repeat(limits.unanswered)));
    assert!(player.connection.heap_bytes() <= 512);
    assert_eq!(player.connection.takeover().unwrap().unanswered, 0);
}

fn lengths_and_codings(c: &mut Covered) {
    let chunked = "Transfer-Encoding: chunked\r\n";
    c.fields(Doubt::LengthAndEncoding, &format!("Content-Length: 5\r\n{chunked}"));
    c.fields(Doubt::LengthAndEncoding, &format!("{chunked}content-length: 0\r\n"));
    c.fields(Doubt::RepeatedLength, "Content-Length: 5\r\nContent-Length: 6\r\n");
    c.fields(Doubt::RepeatedLength, "Content-Length: 5\r\nA: b\r\nContent-Length: 5\r\n");
    c.fields(Doubt::RepeatedLength, "Content-Length: 5, 5\r\n");
    c.fields(Doubt::RepeatedLength, "Content-Length: 0, 5\r\n");
    for length in
        ["", "-1", "+1", "0x5", "5 5", "5;", "five", "1e3", "18446744073709551616", "\u{0665}"]
    {
        c.fields(Doubt::BadLength, &format!("Content-Length: {length}\r\n"));
    }
    for coding in [
        "",
        "identity",
        "gzip",
        "chunked, gzip",
        "chunked, chunked",
        "chunked,",
        ",chunked",
        "xchunked",
        "x, chunked",
        "chunked;q=1",
        "\"chunked\"",
        "chunked\r\nTransfer-Encoding: identity",
        "chunked\r\nTransfer-Encoding: chunked",
        "chun\u{212a}ed",
    ] {
        c.fields(Doubt::BadEncoding, &format!("Transfer-Encoding: {coding}\r\n"));
    }
    let keep = "Connection: keep-alive\r\n";
    c.request(Doubt::EncodingInHttp10, format!("POST / HTTP/1.0\r\n{keep}{chunked}\r\n"));
    c.reply(Doubt::EncodingInHttp10, format!("HTTP/1.0 200 OK\r\n{keep}{chunked}\r\n"));
    let old = Client(b"GET / HTTP/1.0\r\n\r\n");
    c.check(Doubt::EncodingInHttp10, &[old, Server(CHUNKED_OK)]);
    for field in ["Content-Length: 1\r\n", chunked] {
        c.reply(Doubt::BodyForbidden, format!("HTTP/1.1 204 No\r\n{field}\r\n"));
        c.reply(Doubt::BodyForbidden, format!("HTTP/1.1 100 Go on\r\n{field}\r\n"));
        c.request(Doubt::ConnectWithBody, format!("CONNECT h:1 HTTP/1.1\r\n{field}\r\n"));
    }
    c.chunks(Doubt::FramingInTrailer, "0\r\nContent-Length: 5\r\n\r\n");
    c.chunks(Doubt::FramingInTrailer, "0\r\nA: b\r\ntransfer-ENCODING: chunked\r\n\r\n");
}

fn chunks(c: &mut Covered) {
    for body in [
        "\r\n",
        ";a\r\n",
        " 1\r\nx",
        "1 \r\nx",
        "1 ;a\r\nx",
        "-1\r\n",
        "+1\r\n",
        "0x1\r\n",
        "1g\r\n",
        "1\nx",
        "1;a\nx",
        "1;a\rx",
        "1\rx",
        "1\r\nx\n",
        "1\r\nxx",
        "1\r\nx\rx",
        "1;\0\r\n",
        "10000000000000000\r\n",
        "fffffffffffffffff\r\n",
        "1\r\nx0\r\n\r\n",
    ] {
        c.chunks(Doubt::BadChunk, body);
    }
}

fn messages_that_do_not_fit(c: &mut Covered) {
    c.check(Doubt::ReplyWithoutRequest, &[Server(OK)]);
    c.check(Doubt::ReplyWithoutRequest, &[Server(b"220 mail ESMTP\r\n")]);
    c.check(Doubt::ReplyWithoutRequest, &[Client(GET), Server(OK), Server(OK)]);
    // A server that tires of waiting for the rest of a head.
    let timeout = b"HTTP/1.1 408 Too slow\r\nConnection: close\r\n\r\n";
    c.check(Doubt::ReplyWithoutRequest, &[Client(b"GET / HT"), Server(timeout)]);

    let closing = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    c.check(Doubt::BytesAfterClosingReply, &[Client(GET), Server(closing), Server(b"\r\n")]);
    let pipelined = [Client(GET), Client(GET), Server(closing), Server(OK)];
    c.check(Doubt::BytesAfterClosingReply, &pipelined);
    let last = Client(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
    c.check(Doubt::BytesAfterClosingReply, &[last, Server(OK), Server(OK)]);
    c.check(Doubt::BytesAfterLastRequest, &[last, Client(GET)]);
    c.check(
        Doubt::BytesAfterLastRequest,
        &[Client(b"POST / HTTP/1.0\r\nContent-Length: 1\r\n\r\nx\r\n")],
    );

    let connect = Client(b"CONNECT h:443 HTTP/1.1\r\n\r\n");
    c.check(Doubt::BytesBehindConnect, &[connect, Client(b"\x16\x03\x01")]);
    c.check(Doubt::BytesBehindConnect, &[connect, Client(GET)]);

    let put = Client(b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 18\r\n\r\n");
    let refused = Server(b"HTTP/1.1 417 No\r\nContent-Length: 0\r\n\r\n");
    c.check(Doubt::ContinueRefused, &[put, refused, Client(GET)]);
    let processing = Server(b"HTTP/1.1 102 Processing\r\n\r\n");
    c.check(Doubt::ContinueRefused, &[put, processing, refused]);
    let old = Client(b"GET / HTTP/1.0\r\n\r\n");
    c.check(Doubt::InterimToHttp10, &[old, Server(b"HTTP/1.1 100 Continue\r\n\r\n")]);
}

fn ends(c: &mut Covered) {
    c.check(Doubt::TruncatedRequest, &[Client(b"GET / HT"), ClientEnd]);
    c.check(Doubt::TruncatedRequest, &[Client(b"\r\nG"), ClientEnd]);
    let half = Client(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nx");
    c.check(Doubt::TruncatedRequest, &[half, ClientEnd]);
    c.check(Doubt::TruncatedRequest, &[Client(CHUNKED_POST), Client(b"0\r\n"), ClientEnd]);
    let get = Client(GET);
    c.check(Doubt::TruncatedReply, &[get, Server(b"HTTP/1.1 2"), ServerEnd]);
    c.check(
        Doubt::TruncatedReply,
        &[get, Server(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"), ServerEnd],
    );
    // RFC 9112 §8: without the last chunk a chunked body is not whole.
    c.check(Doubt::TruncatedReply, &[get, Server(CHUNKED_OK), Server(b"1\r\nx\r\n"), ServerEnd]);
    c.check(Doubt::Gap, &[ClientEnd, get]);
    c.check(Doubt::Gap, &[get, Server(OK), ServerEnd, Server(OK)]);
}

/// Feeds of which the offset is not where the stream ends.
#[test]
fn what_does_not_follow_is_a_gap() {
    let gap =
        |connection: &Connection| connection.verdict() == Verdict::PassThrough { why: Doubt::Gap };
    for offset in [0, 17, 19, u64::MAX] {
        let mut connection = Connection::new(Limits::default());
        connection.instream(0, GET).for_each(|_| ());
        let mut events = connection.instream(offset, GET);
        assert_eq!(events.next_event(), Some(Event::PassThrough(Doubt::Gap)));
        assert_eq!(events.next_event(), None);
        assert!(gap(&connection));
    }
    // A FIN elsewhere, a stream beyond what offsets can count, and a piece that was not read.
    let mut connection = Connection::new(Limits::default());
    connection.outstream_end(1).for_each(|_| ());
    assert!(gap(&connection));
    let mut connection = Connection::starting_at(u64::MAX - 1, 0, Limits::default());
    connection.instream(u64::MAX - 1, GET).for_each(|_| ());
    assert!(gap(&connection));
    let mut connection = Connection::new(Limits::default());
    let event = connection.instream(0, &GET.repeat(2)).next_event().is_some();
    assert!(event, "one was read");
    connection.instream(36, GET).for_each(|_| ());
    assert!(gap(&connection));
}

#[test]
fn every_doubt_has_a_name_of_its_own_and_a_sentence() {
    let names: HashSet<&str> = Doubt::ALL.iter().map(|doubt| doubt.name()).collect();
    assert_eq!(names.len(), Doubt::ALL.len());
    for doubt in Doubt::ALL {
        let name = doubt.name();
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        assert!(name.bytes().all(plain), "{name} is no name for a counter");
        let sentence = doubt.to_string();
        assert!(sentence.ends_with('.') && sentence.starts_with(char::is_uppercase), "{sentence}");
    }
}

//! How each kind of message is framed, by the section that says so. Where a message begins and ends
//! is known from how it is written here: head and body apart. Every script is played twice, a
//! message at a time and a byte at a time.

mod common;

use common::*;
use http::{Connection, Event, Limits};

/// A message of a script: its head, its body, and what is said of it, with `@` for its place.
#[derive(Clone, Copy)]
enum Message<'a> {
    Request(&'a str, &'a str, &'a str),
    Reply(&'a str, &'a str, &'a str),
    Interim(&'a str, &'a str),
    /// A reply that is whole when the server ends its stream.
    Last(&'a str, &'a str, &'a str),
}

use Message::{Interim, Last, Reply, Request};

#[track_caller]
fn check(messages: &[Message<'_>]) {
    let mut texts = Vec::new();
    let mut expected = Vec::new();
    let (mut instream, mut outstream) = (0, 0);
    let mut ends = false;
    for message in messages {
        let (at, head, body, said) = match *message {
            Request(head, body, said) => (&mut instream, head, body, said),
            Reply(head, body, said) | Last(head, body, said) => (&mut outstream, head, body, said),
            Interim(head, said) => (&mut outstream, head, "", said),
        };
        let (begin, head_end) = (*at, *at + head.len());
        *at = head_end + body.len();
        let place = match message {
            Interim(..) => format!("[{begin}..{head_end}]"),
            _ => format!("[{begin}..{head_end}..{at}]"),
        };
        expected.push(said.replacen('@', &place, 1));
        texts.push((matches!(message, Request(..)), format!("{head}{body}")));
        ends |= matches!(message, Last(..));
    }
    let piece = |(client, text)| if client { Client(text) } else { Server(text) };
    let pieces = texts.iter().map(|(client, text)| piece((*client, text.as_bytes())));
    let script: Vec<Step<'_>> = pieces.chain(ends.then_some(ServerEnd)).collect();

    let whole = play(Limits::default(), &script);
    assert_eq!(lines(&whole.seen), expected);
    let cut = play(Limits::default(), &bytewise(&script));
    assert_eq!(cut.seen, whole.seen, "a byte at a time");
    assert_eq!(cut.connection.takeover(), whole.connection.takeover());
}

const GET: &str = "GET / HTTP/1.1\r\n\r\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// An exchange of which only the request is of interest; it is followed by another one.
#[track_caller]
fn check_request(head: &str, body: &str, said: &str) {
    let next = "1: GET / HTTP/1.1 @";
    check(&[
        Request(head, body, said),
        Reply(EMPTY, "", "200 for 0 @"),
        Request(GET, "", next),
        Reply(EMPTY, "", "200 for 1 @"),
    ]);
    // Pipelined.
    check(&[
        Request(head, body, said),
        Request(GET, "", next),
        Reply(EMPTY, "", "200 for 0 @"),
        Reply(EMPTY, "", "200 for 1 @"),
    ]);
}

/// An exchange of which only the reply is of interest; it is followed by another one.
#[track_caller]
fn check_reply(method: &str, head: &str, body: &str, said: &str) {
    check(&[
        Request(&format!("{method} / HTTP/1.1\r\n\r\n"), "", &format!("0: {method} / HTTP/1.1 @")),
        Reply(head, body, said),
        Request(GET, "", "1: GET / HTTP/1.1 @"),
        Reply(EMPTY, "", "200 for 1 @"),
    ]);
}

#[test]
fn rfc_9112_2_2_one_empty_line_before_a_request_is_part_of_it() {
    check_request("\r\nGET / HTTP/1.1\r\n\r\n", "", "0: GET / HTTP/1.1 @");
    check_request(
        "\r\nPOST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n",
        "\r\n",
        "0: POST / HTTP/1.1 @",
    );
}

#[test]
fn rfc_9112_3_methods_and_targets_are_told_as_sent() {
    let targets =
        ["/a%2Fb?c=d", "http://h:80/x", "h:80", "*", "//", "/caf\u{e9}", "/a;b=c/../d", "/\"<>{}|"];
    for target in targets {
        let head = format!("M-SEARCH {target} HTTP/1.1\r\nHost: h\r\n\r\n");
        check_request(&head, "", &format!("0: M-SEARCH {target} HTTP/1.1 @"));
    }
}

#[test]
fn rfc_9112_4_a_reason_may_be_missing_or_anything() {
    for status in ["200 ", "200", "200 OK, but", "299 caf\u{e9}", "599 \t"] {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 1\r\n\r\n");
        check_reply("GET", &head, "x", &format!("{} for 0 @", &status[..3]));
    }
}

#[test]
fn rfc_9112_5_names_have_no_case_and_values_may_be_empty_or_have_space_around() {
    check_request(
        "PUT / HTTP/1.1\r\nx:\r\ncOnTeNt-LENGTH:\t 3 \t\r\nY: a: b,\tc \u{ff}\r\n\r\n",
        "abc",
        "0: PUT / HTTP/1.1 @",
    );
}

#[test]
fn rfc_9112_6_3_a_request_has_the_body_that_it_announces() {
    let say = "0: POST / HTTP/1.1 @";
    check_request("POST / HTTP/1.1\r\nHost: h\r\n\r\n", "", say);
    check_request("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "", say);
    check_request("POST / HTTP/1.1\r\nContent-Length: 0018\r\n\r\n", GET, say);
    check_request("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "0\r\n\r\n", say);
    // RFC 9110 §9.3.1: a body has no meaning in a GET, but it is there.
    check_request("GET / HTTP/1.1\r\nContent-Length: 2\r\n\r\n", "hi", "0: GET / HTTP/1.1 @");
    check_request("HEAD / HTTP/1.1\r\nContent-Length: 2\r\n\r\n", "hi", "0: HEAD / HTTP/1.1 @");
}

#[test]
fn rfc_9112_6_3_rule_1_some_replies_have_no_body_whatever_they_announce() {
    let announce = ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", ""];
    for announce in announce {
        let head = format!("HTTP/1.1 200 OK\r\n{announce}\r\n");
        check_reply("HEAD", &head, "", "200 for 0 @");
        let head = format!("HTTP/1.1 404 Not Found\r\n{announce}\r\n");
        check_reply("HEAD", &head, "", "404 for 0 @");
        let head = format!("HTTP/1.1 304 Not Modified\r\n{announce}\r\n");
        check_reply("GET", &head, "", "304 for 0 @");
    }
    check_reply("GET", "HTTP/1.1 204 No Content\r\n\r\n", "", "204 for 0 @");
    check_reply("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", "", "204 for 0 @");
    // RFC 9110 §15.3.6: 205 has no content either, but says so like any other reply.
    check_reply("GET", "HTTP/1.1 205 Reset\r\nContent-Length: 0\r\n\r\n", "", "205 for 0 @");
}

#[test]
fn rfc_9112_6_3_rule_2_a_connect_that_is_refused_is_like_any_other_request() {
    check(&[
        Request("CONNECT h:1 HTTP/1.1\r\n\r\n", "", "0: CONNECT h:1 HTTP/1.1 @"),
        Reply("HTTP/1.1 405 No\r\nContent-Length: 2\r\n\r\n", "no", "405 for 0 @"),
        Request(GET, "", "1: GET / HTTP/1.1 @"),
        Reply(EMPTY, "", "200 for 1 @"),
    ]);
}

#[test]
fn rfc_9112_6_3_rule_6_a_length_counts_bytes_and_nothing_else() {
    check_reply("GET", "HTTP/1.1 200 OK\r\nContent-Length: 38\r\n\r\n", EMPTY, "200 for 0 @");
    check_reply("GET", "HTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\n", "\n", "500 for 0 @");
}

#[test]
fn rfc_9112_6_3_rule_8_a_reply_without_a_length_ends_with_the_stream() {
    for head in
        ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.1 404 No\r\nA: b\r\n\r\n"]
    {
        for body in ["", "x", EMPTY] {
            check(&[
                Request(GET, "", "0: GET / HTTP/1.1 @"),
                Last(head, body, &format!("{} for 0 @ close", &head[9..12])),
            ]);
        }
    }
}

#[test]
fn rfc_9112_6_1_chunked_may_follow_other_codings() {
    let lines = [
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding:gzip,Chunked",
        "Transfer-Encoding: deflate\r\nTransfer-Encoding: CHUNKED",
    ];
    for line in lines {
        let head = format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n");
        check_reply("GET", &head, "1\r\nx\r\n0\r\n\r\n", "200 for 0 @");
    }
}

#[test]
fn rfc_9112_7_1_chunks_with_extensions_and_trailers() {
    let bodies = [
        "0\r\n\r\n",
        "000\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "0a\r\n0123456789\r\nA\r\n\r\n0\r\n\r\nGET\r\n0\r\n\r\n",
        "1;a\r\nx\r\n0;b=c;d=\"e f;\\\"\"\r\n\r\n",
        "1;\r\nx\r\n0; \t\r\n\r\n",
        "2\r\n\r\n\r\n0\r\nTrailer: yes\r\nChecksum: 1\r\n\r\n",
    ];
    for body in bodies {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        check_reply("GET", head, body, "200 for 0 @");
        let head = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        check_request(head, body, "0: POST / HTTP/1.1 @");
    }
}

#[test]
fn rfc_9112_9_3_who_says_that_the_connection_ends() {
    let cases = [
        // Version and fields of the request, of the reply; what is said of each.
        ("1.1", "", "1.1", "", "", ""),
        ("1.1", "Connection: close\r\n", "1.1", "", " close", " close"),
        ("1.1", "Connection: x, CLOSE ,y\r\n", "1.1", "", " close", " close"),
        ("1.1", "Connection: x\r\nConnection: close\r\n", "1.1", "", " close", " close"),
        ("1.1", "Connection: close, keep-alive\r\n", "1.1", "", " close", " close"),
        ("1.1", "Connection: closed\r\n", "1.1", "", "", ""),
        ("1.1", "", "1.1", "Connection: close\r\n", "", " close"),
        ("1.1", "", "1.0", "", "", " close"),
        ("1.1", "", "1.0", "Connection: Keep-Alive\r\n", "", ""),
        ("1.0", "", "1.1", "", " close", " close"),
        ("1.0", "", "1.0", "Connection: keep-alive\r\n", " close", " close"),
        ("1.0", "Connection: keep-alive\r\n", "1.0", "", "", " close"),
        ("1.0", "Connection: keep-alive\r\n", "1.0", "Connection: keep-alive\r\n", "", ""),
        ("1.0", "Connection: keep-alive\r\n", "1.1", "Connection: keep-alive\r\n", "", ""),
    ];
    for (asked, ask_fields, answered, answer_fields, asks, answers) in cases {
        let request = format!("GET / HTTP/{asked}\r\n{ask_fields}\r\n");
        let reply = format!("HTTP/{answered} 200 OK\r\nContent-Length: 2\r\n{answer_fields}\r\n");
        let said = format!("0: GET / HTTP/{asked} @{asks}");
        let answer = format!("200 for 0 @{answers}");
        let mut messages = vec![Request(&request, "", &said), Reply(&reply, "ok", &answer)];
        if answers.is_empty() {
            messages.push(Request(GET, "", "1: GET / HTTP/1.1 @"));
            messages.push(Reply(EMPTY, "", "200 for 1 @"));
        }
        check(&messages);
    }
}

#[test]
fn rfc_9112_9_3_2_replies_come_in_the_order_of_the_requests() {
    let [post, head] =
        ["POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\n", "HEAD /b HTTP/1.1\r\n\r\n"];
    check(&[
        Request(post, "abc", "0: POST /a HTTP/1.1 @"),
        Request(head, "", "1: HEAD /b HTTP/1.1 @"),
        Request(GET, "", "2: GET / HTTP/1.1 @"),
        Reply(
            "HTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n",
            "0\r\n\r\n",
            "201 for 0 @",
        ),
        Reply("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", "", "200 for 1 @"),
        Request(head, "", "3: HEAD /b HTTP/1.1 @"),
        Reply("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", "x", "200 for 2 @"),
        Last("HTTP/1.1 200 OK\r\n\r\n", "", "200 for 3 @"),
    ]);
}

#[test]
fn rfc_9110_10_1_1_and_15_2_interim_replies_belong_to_the_request_that_waits() {
    let put = "PUT / HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n";
    check(&[
        Request(put, "x", "0: PUT / HTTP/1.1 @ continue?"),
        Interim("HTTP/1.1 100 Continue\r\n\r\n", "100 for 0 @"),
        Interim("HTTP/1.1 102 Processing\r\nContent-Length: 0\r\n\r\n", "102 for 0 @"),
        Interim("HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n", "103 for 0 @"),
        Reply(EMPTY, "", "200 for 0 @"),
        Request(GET, "", "1: GET / HTTP/1.1 @"),
        Interim("HTTP/1.1 100 Continue\r\n\r\n", "100 for 1 @"),
        Reply(EMPTY, "", "200 for 1 @"),
    ]);
    // HTTP/1.0 knows no expectations.
    check(&[Request(
        "PUT / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
        "x",
        "0: PUT / HTTP/1.0 @ close",
    )]);
}

#[test]
fn rfc_9110_10_1_1_the_body_follows_100() {
    let head = b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n";
    let script = [
        Client(head),
        Server(b"HTTP/1.1 100 Continue\r\n\r\n"),
        Client(b"x"),
        Server(EMPTY.as_bytes()),
    ];
    let seen = play(Limits::default(), &script).seen;
    let expected =
        ["0: PUT / HTTP/1.1 [0..59..60] continue?", "100 for 0 [0..25]", "200 for 0 [25..63..63]"];
    assert_eq!(lines(&seen), expected);
    // Once it was told to go on, the client sends the body whatever the reply.
    let early = [
        Client(head),
        Server(b"HTTP/1.1 100 Continue\r\n\r\n"),
        Server(EMPTY.as_bytes()),
        Client(b"x"),
        Client(GET.as_bytes()),
    ];
    assert_eq!(doubt(Limits::default(), &early), None);
    // A refusal leaves no doubt if it ends the connection, or if the client did not wait.
    let closing = b"HTTP/1.1 417 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    assert_eq!(doubt(Limits::default(), &[Client(head), Server(closing)]), None);
    let hasty = [Client(head), Client(b"x"), Server(EMPTY.as_bytes()), Client(GET.as_bytes())];
    assert_eq!(doubt(Limits::default(), &hasty), None);
}

#[test]
fn rfc_9110_7_8_an_upgrade_that_is_not_taken_changes_nothing() {
    let head = "GET /chat HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    check_request(head, "", "0: GET /chat HTTP/1.1 @");
}

/// RFC 9112 §9.3: a server may reply before it has read the request.
#[test]
fn a_reply_may_come_before_its_request_is_whole() {
    let post = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n";
    let script = [
        Client(post),
        Client(b"ab"),
        Server(EMPTY.as_bytes()),
        Client(b"cd"),
        Client(GET.as_bytes()),
        Server(EMPTY.as_bytes()),
    ];
    let whole = play(Limits::default(), &script);
    let expected = [
        "0: POST / HTTP/1.1 [0..38..42]",
        "200 for 0 [0..38..38]",
        "1: GET / HTTP/1.1 [42..60..60]",
        "200 for 1 [38..76..76]",
    ];
    assert_eq!(lines(&whole.seen), expected);
    assert_eq!(play(Limits::default(), &bytewise(&script)).seen, whole.seen);
}

/// RFC 9112 §9.6: what comes behind the last reply is read by nobody.
#[test]
fn behind_a_reply_that_closes_there_are_no_requests() {
    let closing = b"HTTP/1.1 413 Too much\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let script = [
        Client(b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nab"),
        Server(closing),
        Client(b"cd"),
        Client(GET.as_bytes()),
        Client(b"\0\0"),
        ServerEnd,
        ClientEnd,
    ];
    let seen = play(Limits::default(), &script).seen;
    assert_eq!(lines(&seen), ["0: POST / HTTP/1.1 [0..38...]", "413 for 0 [0..63..63] close"]);
}

/// RFC 9112 §9.5: either side may end an idle connection, and the client its half of any.
#[test]
fn streams_may_end_between_messages() {
    let get = Client(GET.as_bytes());
    let reply = Server(EMPTY.as_bytes());
    for script in [
        &[ClientEnd, ServerEnd][..],
        &[ServerEnd, ClientEnd],
        &[get, ClientEnd, reply, ServerEnd],
        &[get, reply, ServerEnd, ClientEnd],
        &[get, ServerEnd, ClientEnd],
        &[get, reply, Client(b"\r\n"), ClientEnd],
        &[get, reply, ClientEnd, ClientEnd, ServerEnd, ServerEnd],
    ] {
        assert_eq!(doubt(Limits::default(), script), None, "{script:?}");
    }
}

#[test]
fn offsets_count_from_where_the_caller_begins() {
    let mut connection = Connection::starting_at(1000, 5 << 32, Limits::default());
    let mut places = Vec::new();
    connection.instream(1000, GET.as_bytes()).for_each(|event| {
        if let Event::Request(request) = event {
            places.push(request.begin);
        }
    });
    connection.outstream(5 << 32, EMPTY.as_bytes()).for_each(|event| match event {
        Event::Reply(reply) => places.push(reply.begin),
        Event::ReplyEnd { end, .. } => places.push(end),
        _ => {}
    });
    assert_eq!(places, [1000, 5 << 32, (5 << 32) + 38]);
}

/// A body's bytes are counted, so those between a head and the last byte need not be seen.
#[test]
fn a_part_of_a_body_with_a_known_length_may_be_left_out() {
    let mut connection = http::Connection::new(http::Limits::default());
    let get = b"GET / HTTP/1.1\r\n\r\n";
    connection.instream(0, get).for_each(|_| ());
    connection.instream(18, get).for_each(|_| ());
    assert_eq!(connection.unread_of_body(), None);
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n";
    let begin = head.len() as u64;
    connection.outstream(0, head).for_each(|_| ());
    assert_eq!(connection.unread_of_body(), Some(10_000_000_000));
    connection.outstream(begin, b"x").for_each(|_| ());
    connection.outstream_unseen(9_999_999_997);
    assert_eq!(connection.unread_of_body(), Some(2));
    let mut ends = Vec::new();
    connection.outstream(begin + 9_999_999_998, b"yz").for_each(|event| {
        if let http::Event::ReplyEnd { request, end, .. } = event {
            ends.push((request, end));
        }
    });
    assert_eq!(ends, [(0, begin + 10_000_000_000)]);
    assert_eq!(connection.unread_of_body(), None);
    assert_eq!(connection.takeover().unwrap().resume, http::Resume::At(18));
}

#[test]
#[should_panic(expected = "bytes that matter")]
fn the_end_of_a_body_cannot_be_left_out() {
    let mut connection = http::Connection::new(http::Limits::default());
    connection.instream(0, b"GET / HTTP/1.1\r\n\r\n").for_each(|_| ());
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
    connection.outstream(0, head).for_each(|_| ());
    connection.outstream_unseen(10);
}

//! The scheme `message` at its borders: memory, what is not HTTP, and replies that are too long.
//! `shop.rs` has replies that cannot be made twice.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use demo::clock::Bell;
use demo::config::Scheme;
use demo::download::Download;
use demo::find;
use demo::pair::other;
use demo::site::{SMALL_BYTES, Site};
use e2e::{How, MB, PATIENCE, Scenario, Server, Service, Stage, undisturbed};
use serde_json::Value;

fn stage(size: u64) -> Stage {
    let service = Service { scheme: Scheme::Message, ..Service::web(Server::Nginx) };
    Scenario::new().service(service).clients(0).idle(0).size(size).rate(1000).up()
}

fn connect(stage: &Stage) -> TcpStream {
    let at = stage.pair.at();
    let connected = stage.client().in_netns(|| TcpStream::connect_timeout(&at, PATIENCE));
    let stream = connected.unwrap_or_else(|e| panic!("{e}")).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A number of the backup's reply log.
fn replies(stage: &Stage, what: &str) -> u64 {
    let status = stage.status(other(stage.primary()));
    status.all["replies"][what].as_u64().unwrap_or_else(|| panic!("{:?}", status.all["replies"]))
}

/// Resident memory of a node's daemon, in bytes.
fn resident(stage: &Stage, node: &str) -> u64 {
    let host = stage.pair.lab.host(node).unwrap();
    let daemon = host.processes().unwrap().into_iter().find(|p| p.name == "steadfast").unwrap();
    let text = std::fs::read_to_string(format!("/proc/{}/statm", daemon.pid)).unwrap();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap() * 4096
}

#[test]
fn memory_returns_after_a_hundred_thousand_requests() {
    undisturbed(many_requests);
}

fn many_requests() {
    const CONNECTIONS: usize = 8;
    const EACH: usize = 12_500;
    let stage = stage(MB);
    let nodes = [stage.primary(), other(stage.primary())];
    // What a daemon takes once it has seen every kind of work.
    ask(&mut connect(&stage), 1000);
    let idle = || replies(&stage, "flows") == 0;
    stage.eventually("the first flow is forgotten", idle);
    let before = (replies(&stage, "bytes"), nodes.map(|node| resident(&stage, node)));

    thread::scope(|scope| {
        for mut stream in (0..CONNECTIONS).map(|_| connect(&stage)) {
            scope.spawn(move || ask(&mut stream, EACH));
        }
    });

    stage.eventually("all flows are forgotten", idle);
    let logged = replies(&stage, "logged");
    assert_eq!(logged, (1000 + CONNECTIONS * EACH) as u64, "every reply was held");
    let after = (replies(&stage, "bytes"), nodes.map(|node| resident(&stage, node)));
    assert_eq!(after.0, before.0, "the reply log's heap");
    for (node, (before, after)) in nodes.iter().zip(before.1.iter().zip(after.1)) {
        assert!(after < before + 4 * MB, "{node}: {before} bytes resident before, {after} after");
    }
    let journal = &stage.status(nodes[1]).all["journal"];
    assert_eq!((&journal["flows"], &journal["bytes"]), (&Value::from(0), &Value::from(0)));
}

/// Who leaves in the middle of a reply loses no protection, and leaves nothing behind.
#[test]
fn clients_leave_while_the_server_writes() {
    undisturbed(leaving_clients);
}

fn leaving_clients() {
    const CLIENTS: u64 = 40;
    let stage = stage(MB / 4);
    let request = format!("GET {} HTTP/1.1\r\nHost: shop\r\n\r\n", Site::LARGE);
    for _ in 0..CLIENTS {
        let mut stream = connect(&stage);
        stream.write_all(request.repeat(8).as_bytes()).unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        // What is unread makes the end a reset.
    }
    stage.eventually("all flows are forgotten", || replies(&stage, "flows") == 0);
    let status = stage.status(other(stage.primary()));
    assert_eq!(status.all["replies"]["opened"], Value::Object(Default::default()));
    ask(&mut connect(&stage), 10);
    let before = replies(&stage, "logged");
    ask(&mut connect(&stage), 10);
    stage.eventually("the next replies are held", || replies(&stage, "logged") >= before + 10);
}

/// Their gates open, some by themselves, some by order; nginx reads what is longer than its buffer in
/// pieces, and asks how much is left.
#[test]
fn long_requests_are_answered_when_the_backup_is_gone() {
    undisturbed(long_requests);
}

fn long_requests() {
    const CONNECTIONS: usize = 32;
    let stage = stage(MB);
    let field = format!("Cookie: {}\r\n", "c".repeat(3000));
    let (alone, field) = (&AtomicBool::new(false), &field);
    thread::scope(|scope| {
        for mut stream in (0..CONNECTIONS).map(|_| connect(&stage)) {
            scope.spawn(move || {
                while !alone.load(Relaxed) {
                    ask_with(&mut stream, field, 1);
                }
                ask_with(&mut stream, field, 10);
            });
        }
        let primary = stage.primary();
        let status = || stage.status(primary);
        stage.eventually("all are asking", || replies(&stage, "logged") > 1000);
        stage.kill(other(primary), How::Host);
        stage.eventually("the primary serves alone", || !status().duplex);
        alone.store(true, Relaxed);
    });
}

/// Asks for a small file again and again.
fn ask(stream: &mut TcpStream, times: usize) {
    ask_with(stream, "", times);
}

/// The same with further fields in the request's head.
fn ask_with(stream: &mut TcpStream, fields: &str, times: usize) {
    let request = format!("GET {} HTTP/1.1\r\nHost: shop\r\n{fields}\r\n", Site::small_path(0));
    let mut reply = vec![0; 64 * 1024];
    for _ in 0..times {
        stream.write_all(request.as_bytes()).unwrap();
        let mut got = 0;
        loop {
            got += match stream.read(&mut reply[got..]).unwrap() {
                0 => panic!("the server closed"),
                count => count,
            };
            let head = reply[..got].windows(4).position(|bytes| bytes == b"\r\n\r\n");
            if head.is_some_and(|end| got == end + 4 + SMALL_BYTES) {
                break;
            }
        }
        assert!(reply.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
}

/// It passes as if nobody held anything, is counted, and the client of the next takeover hears that
/// its connection is lost.
#[test]
fn what_is_not_http_is_passed_on_and_not_protected() {
    undisturbed(not_http);
}

fn not_http() {
    let stage = stage(MB);
    let mut stream = connect(&stage);
    // Two lengths: a smuggler's request (RFC 9112 §6.3).
    let request =
        b"POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd";
    stream.write_all(request).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 400");

    // More fields than anybody needs; the server waits for the rest.
    let mut odd = connect(&stage);
    let fields: String = (0..200).map(|n| format!("X-{n}: y\r\n")).collect();
    odd.write_all(format!("GET / HTTP/1.1\r\nHost: shop\r\n{fields}").as_bytes()).unwrap();
    let backup = other(stage.primary());
    let reasons = || {
        let status = stage.status(backup);
        let opened = status.all["replies"]["opened"].as_object().cloned().unwrap_or_default();
        (opened.values().filter_map(Value::as_u64).sum::<u64>(), format!("{opened:?}"))
    };
    stage.eventually("both flows are counted by reason", || reasons().0 == 2);

    let killed_ns = stage.kill(stage.primary(), How::Host);
    stage.eventually("the open flow is reset", || {
        stage
            .events("flow_reset", killed_ns)
            .iter()
            .any(|(_, event)| event.fields.get("reason").and_then(Value::as_str) == Some("simplex"))
    });
    let error = odd.read_to_end(&mut Vec::new()).expect_err("the connection is lost");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// A reply that is too long to be held leaves in pieces; its client is told if it cannot be
/// continued, and does not wait.
#[test]
fn a_long_reply_is_cut_loudly() {
    undisturbed(long_reply);
}

fn long_reply() {
    let stage = stage(64 * MB);
    let curl = find::program("curl", "curl").unwrap().display().to_string();
    let url = format!("http://{}{}", stage.pair.at(), Site::LARGE);
    let words = [&curl, "-q", "-sS", "--noproxy", "*", "--limit-rate", "40M", &url];
    let bell = Bell::default();
    let words = words.map(str::to_owned);
    let download = Download::run(stage.client(), &words, &bell).unwrap_or_else(|e| panic!("{e:#}"));
    stage.eventually("the download is under way", || download.bytes() > 8 * MB);
    let killed_ns = stage.kill(stage.primary(), How::Host);
    let outcome = download.finish().unwrap_or_else(|e| panic!("{e:#}"));
    assert!(outcome.error.is_some(), "the client was not told");
    let resets = || stage.events("flow_reset", killed_ns);
    stage.eventually("the node says why", || !resets().is_empty());
    let resets = resets();
    let reasons: Vec<_> = resets.iter().map(|(_, event)| &event.fields["reason"]).collect();
    assert_eq!(reasons, ["reply_cut"]);
    // Once it is over the next one is protected as ever.
    ask(&mut connect(&stage), 10);
}

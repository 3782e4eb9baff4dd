//! A stock nginx behind the gate.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use datapath::Counter;

use crate::bench::{Bench, PATIENCE, PORT, addresses, content, eventually};

/// Unpacked by `make deps-run`, or installed.
fn program() -> PathBuf {
    let unpacked =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers/usr/sbin/nginx");
    if unpacked.exists() { unpacked } else { "nginx".into() }
}

fn start(bench: &Bench) -> lab::Child {
    let dir = bench.lab.dir();
    fs::write(dir.join("large"), content()).unwrap();
    fs::write(dir.join("small"), &content()[..1024]).unwrap();
    let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {}/{what};", dir.display()))
        .concat();
    let config = format!(
        "daemon off; master_process off; pid {dir}/nginx.pid; error_log {dir}/nginx.log;\n\
         events {{}}\n\
         http {{ access_log off; sendfile on; {temp}\n\
         server {{ listen {address}:{PORT}; root {dir}; }} }}\n",
        dir = dir.display(),
        address = addresses(&bench.lab)[0],
    );
    fs::write(dir.join("nginx.conf"), config).unwrap();
    let host = bench.lab.host("a").unwrap();
    let mut command = host.command(program());
    command.arg("-p").arg(dir).arg("-c").arg(dir.join("nginx.conf"));
    let child = command.spawn().expect("nginx: make deps-run");
    eventually("nginx listens", || {
        let client = bench.lab.host("client").unwrap();
        let address = addresses(&bench.lab)[0];
        client.in_netns(|| TcpStream::connect((address, PORT))).unwrap().ok()
    });
    child
}

/// One reply: head and body.
fn reply(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut got = Vec::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        let end = got.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = end
            && got.len() >= end + 4 + length
        {
            assert_eq!(got.len(), end + 4 + length, "nothing behind the reply");
            return got.split_off(end + 4);
        }
        let read = stream.read(&mut piece).expect("the reply arrives");
        assert_ne!(read, 0, "the reply is whole");
        got.extend_from_slice(&piece[..read]);
    }
}

#[test]
fn replies_of_nginx_are_exact() {
    let bench = Bench::new();
    let mut server = start(&bench);
    bench.release_at_once();
    let mut client = bench.connect(addresses(&bench.lab)[0]);
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for (name, length) in [("small", 1024), ("large", content().len()), ("small", 1024)] {
        write!(client.stream, "GET /{name} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert!(reply(&mut client.stream, length) == content()[..length], "{name} is exact");
    }
    // The reply's end is the connection's: lingering close, with the client's FIN still to come.
    write!(client.stream, "GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    assert!(reply(&mut client.stream, content().len()) == content(), "the last one is exact");
    client.hears_the_end();
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Keep-alive and `Connection: close`: the end waits for the reply, however long that is held.
#[test]
fn a_held_reply_of_nginx_ends_the_connection_when_it_is_released() {
    let bench = Bench::new();
    let mut server = start(&bench);
    let mut client = bench.connect(addresses(&bench.lab)[0]);
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(client.stream, "GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let story = eventually("nginx has closed", || {
        let story = bench.story(&client.flow);
        story.ended.is_some().then_some(story)
    });
    bench.refused_again(2);
    client.hears_nothing();
    assert!(!bench.at_once.load(Ordering::Relaxed));
    client.release(story.bytes.len() + 1);
    assert!(reply(&mut client.stream, 1024) == content()[..1024], "the reply is exact");
    client.hears_the_end();
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Many flows at once, each with replies of every size, most of them larger than what may be held.
#[test]
fn replies_of_nginx_to_many_clients_are_exact() {
    const CLIENTS: usize = 32;
    const REQUESTS: usize = 30;
    let bench = Bench::new();
    let mut server = start(&bench);
    bench.release_at_once();
    let host = bench.lab.host("client").unwrap();
    let address = addresses(&bench.lab)[0];
    let connect = || TcpStream::connect((address, PORT)).expect("nginx accepts");
    let streams: Vec<_> = host.in_netns(|| (0..CLIENTS).map(|_| connect()).collect()).unwrap();
    std::thread::scope(|scope| {
        for (client, mut stream) in streams.into_iter().enumerate() {
            scope.spawn(move || {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                for request in 0..REQUESTS {
                    // From one byte to a megabyte, from anywhere.
                    let length = 1usize << ((client + request * 7) % 21);
                    let from = (client * 65_537 + request * 99_991) % (content().len() - length);
                    let to = from + length - 1;
                    write!(
                        stream,
                        "GET /large HTTP/1.1\r\nHost: a\r\nRange: bytes={from}-{to}\r\n\r\n"
                    )
                    .unwrap();
                    assert!(reply(&mut stream, length) == content()[from..=to], "exact");
                }
            });
        }
    });
    assert_eq!(bench.counters.get(Counter::OutputLost), 0);
    bench.stories_are_sound();
    server.kill().unwrap();
    server.wait().unwrap();
}

/// What a scheme needs that judges whole replies: the last byte is known before the first one leaves,
/// though the reply is larger than what TCP would send at once.
#[test]
fn a_whole_reply_of_nginx_is_known_before_its_first_byte_leaves() {
    const LENGTH: usize = 200_000;
    let bench = Bench::new();
    let mut server = start(&bench);
    let mut client = bench.connect(addresses(&bench.lab)[0]);
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut known = 0;
    for _ in 0..3 {
        let range = format!("bytes=0-{}", LENGTH - 1);
        write!(client.stream, "GET /large HTTP/1.1\r\nHost: a\r\nRange: {range}\r\n\r\n").unwrap();
        let story = eventually("the whole reply is captured", || {
            let story = bench.story(&client.flow);
            (story.bytes.len() > known + LENGTH).then_some(story)
        });
        assert!(story.bytes.ends_with(&content()[..LENGTH]), "the reply is captured whole");
        bench.refused_again(1);
        client.hears_nothing();
        known = story.bytes.len();
        client.release(known);
        assert!(reply(&mut client.stream, LENGTH) == content()[..LENGTH], "the reply is exact");
    }
    assert_eq!(bench.counters.get(Counter::CutShort), 0);
    server.kill().unwrap();
    server.wait().unwrap();
}

/// nginx asks how many bytes are left when a read has filled its buffer of 1 KiB, and is told none
/// because the socket is in a socket map. It must be rung at, or it waits for ever.
#[test]
fn nginx_reads_long_requests_to_their_end() {
    let bench = Bench::new();
    let mut server = start(&bench);
    bench.release_at_once();
    let mut client = bench.connect(addresses(&bench.lab)[0]);
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for length in [500, 1024, 1500, 3000, 7000, 20] {
        let long = "x".repeat(length);
        write!(client.stream, "GET /small HTTP/1.1\r\nHost: a\r\nX-Long: {long}\r\n\r\n").unwrap();
        assert!(reply(&mut client.stream, 1024) == content()[..1024], "{length} bytes are read");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

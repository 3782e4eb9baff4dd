//! Exchanges with real servers, framed as Python's HTTP client understood them. How they were
//! captured: `tests/captured/capture.py`.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use http::{BodyLength, Event, Limits, Resume, Verdict};
use serde_json::Value;

/// A capture, as its file has it.
struct Capture {
    pieces: Vec<(bool, Vec<u8>)>,
    server_ended: bool,
    /// Status and length of the decoded body.
    replies: Vec<(u16, u64)>,
}

fn read(path: &Path) -> Capture {
    let file: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let bytes = |text: &Value| {
        text.as_str().unwrap().chars().map(|c| u8::try_from(c).unwrap()).collect::<Vec<u8>>()
    };
    let pairs = |key: &str| file[key].as_array().unwrap().clone();
    Capture {
        pieces: pairs("pieces").iter().map(|p| (p[0] == "client", bytes(&p[1]))).collect(),
        server_ended: file["ended"] == "server",
        replies: pairs("replies")
            .iter()
            .map(|r| (r[0].as_u64().unwrap() as u16, r[1].as_u64().unwrap()))
            .collect(),
    }
}

fn check(capture: &Capture) {
    let pieces = &capture.pieces;
    let mut script: Vec<Step<'_>> = pieces
        .iter()
        .map(|(client, bytes)| if *client { Client(bytes) } else { Server(bytes) })
        .collect();
    if capture.server_ended {
        script.push(ServerEnd);
    }
    let whole = play(Limits::default(), &script);
    assert_eq!(whole.connection.verdict(), Verdict::Framed);
    assert_eq!(play(Limits::default(), &bytewise(&script)).seen, whole.seen);

    let mut heads = Vec::new();
    let mut found = Vec::new();
    for event in &whole.seen {
        match event {
            Seen::Other(Event::Reply(reply)) => heads.push(*reply),
            Seen::Other(Event::ReplyEnd { request, end, .. }) => {
                let head = heads.last().unwrap();
                assert_eq!(*request, found.len() as u64);
                let outstream = stream(pieces, false);
                let body = &outstream[head.head_end as usize..*end as usize];
                let decoded = match head.body {
                    BodyLength::Bytes(len) => len,
                    BodyLength::UntilClose => body.len() as u64,
                    BodyLength::Chunked => decoded(body),
                };
                found.push((head.status, decoded));
            }
            _ => {}
        }
    }
    assert_eq!(found, capture.replies);
    let takeover = whole.connection.takeover().unwrap();
    let ends = [true, false].map(|client| stream(pieces, client).len() as u64);
    assert_eq!((takeover.outstream_at, takeover.unanswered), (ends[1], 0));
    let resume = if capture.server_ended { Resume::Closed } else { Resume::At(ends[0]) };
    assert_eq!(takeover.resume, resume);
}

fn stream(pieces: &[(bool, Vec<u8>)], client: bool) -> Vec<u8> {
    let of = |(side, bytes): &(bool, Vec<u8>)| (*side == client).then(|| bytes.clone());
    pieces.iter().filter_map(of).collect::<Vec<_>>().concat()
}

/// The length of what a well-formed chunked body carries.
fn decoded(body: &[u8]) -> u64 {
    let (mut rest, mut total) = (body, 0);
    loop {
        let end = rest.windows(2).position(|pair| pair == b"\r\n").unwrap();
        let size = std::str::from_utf8(&rest[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return total;
        }
        total += size as u64;
        rest = &rest[end + 2 + size + 2..];
    }
}

#[test]
fn captured_exchanges_are_framed_as_a_client_understood_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captured");
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            println!("{name}");
            check(&read(&path));
            names.push(name);
        }
    }
    assert!(names.len() >= 9, "captures are missing, there are only {names:?}");
}

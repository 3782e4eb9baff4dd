//! Connections that sit idle while the server dies.
//!
//! They have a request behind them, or half of one, and no byte in flight: nothing but the
//! second node's memory says that they exist. After the failure each gets another request,
//! and must get the right answer on the same connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lab::Host;

use crate::site::Site;

/// A longer reply head is no head of ours.
const LONGEST_HEAD: usize = 16 << 10;

/// Open connections.
#[derive(Debug)]
pub struct Idle {
    connections: Vec<TcpStream>,
    at: SocketAddr,
    keep_alive: bool,
}

/// How they fared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleReport {
    /// How many there were.
    pub connections: usize,
    /// What went wrong, one line for each that failed.
    pub failures: Vec<String>,
}

impl Idle {
    /// Opens `count` connections from `host`. Each has so many requests of its `history` answered;
    /// without one, each sends the first half of its only request.
    ///
    /// # Errors
    /// The service does not answer rightly even before any failure.
    pub fn open(
        host: &Host,
        at: SocketAddr,
        site: &Site,
        count: usize,
        history: Option<usize>,
        patience: Duration,
    ) -> anyhow::Result<Idle> {
        let connect = || -> anyhow::Result<Vec<TcpStream>> {
            let mut open = Vec::new();
            for _ in 0..count {
                let stream = TcpStream::connect_timeout(&at, patience)?;
                stream.set_nodelay(true)?;
                open.push(stream);
            }
            Ok(open)
        };
        let connections = host
            .in_netns(connect)?
            .with_context(|| format!("cannot open {count} connections to {at}"))?;
        let mut idle = Idle { connections, at, keep_alive: history.is_some() };
        let deadline = Instant::now() + patience;
        for stream in &mut idle.connections {
            let mut first = || {
                if let Some(requests) = history {
                    (0..requests).try_for_each(|_| {
                        stream.write_all(request(at, 0).as_bytes())?;
                        check_reply(stream, &site.small[0], deadline)
                    })
                } else {
                    let request = request(at, 1);
                    Ok(stream.write_all(&request.as_bytes()[..request.len() / 2])?)
                }
            };
            first().with_context(|| format!("the first request to {at} failed"))?;
        }
        Ok(idle)
    }

    /// Sends every connection's next request, or the rest of its only one, all at once, and
    /// checks the answers.
    pub fn finish(mut self, site: &Site, patience: Duration) -> IdleReport {
        let deadline = Instant::now() + patience;
        let request = request(self.at, 1);
        let from = if self.keep_alive { 0 } else { request.len() / 2 };
        let mut failures = Vec::new();
        let sent: Vec<_> = self
            .connections
            .iter_mut()
            .map(|stream| stream.write_all(&request.as_bytes()[from..]))
            .collect();
        for (stream, sent) in self.connections.iter_mut().zip(sent) {
            let port = stream.local_addr().map_or(0, |a| a.port());
            let answered = sent
                .context("cannot send the request")
                .and_then(|()| check_reply(stream, &site.small[1], deadline));
            if let Err(e) = answered {
                failures.push(format!("idle connection from port {port}: {e:#}"));
            }
        }
        IdleReport { connections: self.connections.len(), failures }
    }
}

fn request(at: SocketAddr, small: usize) -> String {
    let path = Site::small_path(small);
    format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nUser-Agent: steadfast-demo\r\n\r\n")
}

/// Reads one reply and compares its body.
fn check_reply(stream: &mut TcpStream, body: &[u8], deadline: Instant) -> anyhow::Result<()> {
    let mut got = Vec::new();
    let head_len = loop {
        if let Some(at) = got.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        ensure!(got.len() < LONGEST_HEAD, "the reply's head does not end");
        read_some(stream, &mut got, deadline)?;
    };
    let head = String::from_utf8_lossy(&got[..head_len]).to_ascii_lowercase();
    let status = head.split_ascii_whitespace().nth(1).unwrap_or_default();
    ensure!(status == "200", "the reply is {:?}", head.lines().next().unwrap_or_default());
    let length = head.lines().find_map(|l| l.strip_prefix("content-length:"));
    let length: usize = length.context("the reply has no length")?.trim().parse()?;
    ensure!(length == body.len(), "the reply has {length} bytes, not {}", body.len());
    while got.len() < head_len + length {
        read_some(stream, &mut got, deadline)?;
    }
    ensure!(got.len() == head_len + length, "more bytes came than the reply has");
    ensure!(got[head_len..] == *body, "the reply has other bytes than the file");
    Ok(())
}

fn read_some(stream: &mut TcpStream, got: &mut Vec<u8>, deadline: Instant) -> anyhow::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    ensure!(!left.is_zero(), "no answer in time ({} bytes came)", got.len());
    stream.set_read_timeout(Some(left))?;
    let mut buffer = [0; 16 << 10];
    match stream.read(&mut buffer) {
        Ok(0) => anyhow::bail!("the connection was closed after {} bytes", got.len()),
        Ok(n) => got.extend_from_slice(&buffer[..n]),
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
            ) => {}
        Err(e) => return Err(e).with_context(|| format!("after {} bytes", got.len())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn check(reply: &'static [u8]) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.write_all(reply).unwrap();
        drop(far);
        let deadline = Instant::now() + Duration::from_secs(5);
        check_reply(&mut stream, b"body", deadline).map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn only_the_right_answer_is_right() {
        let ok = check(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody");
        assert_eq!(ok, Ok(()));
        for (reply, why) in [
            (&b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nb0dy"[..], "other bytes"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo", "closed after"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbodyX", "more bytes"),
            (b"HTTP/1.1 404 No\r\nContent-Length: 4\r\n\r\nbody", "404"),
            (b"HTTP/1.1 200 OK\r\n\r\nbody", "no length"),
            (b"", "closed after 0"),
        ] {
            let error = check(reply).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}

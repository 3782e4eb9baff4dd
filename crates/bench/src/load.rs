//! Clients: one request after the other, many at once, a large reply, a large request.
//!
//! They run on threads of this process inside the client host's network namespace, and read
//! replies no further than to know where they end; what is left to measure is the network and
//! the server. Every reply's length is checked, and its status: a fast error is no throughput.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use demo::clock::now_ns;
use demo::download::Stall;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Nothing at all happens for so long: it will not happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// Shorter pauses are scheduling, not stalls.
const STALL_NS: u64 = 2_000_000;

/// A keep-alive connection to a web server.
#[derive(Debug)]
pub struct Http {
    stream: TcpStream,
    request: Vec<u8>,
    buffer: Vec<u8>,
}

impl Http {
    /// Connects; all requests are for `path`.
    ///
    /// # Errors
    /// Nobody answers.
    pub fn connect(at: SocketAddr, path: &str) -> anyhow::Result<Http> {
        let stream = TcpStream::connect_timeout(&at, PATIENCE)
            .with_context(|| format!("cannot connect to {at}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n").into_bytes();
        Ok(Http { stream, request, buffer: vec![0; 16 << 10] })
    }

    /// Sends a request and reads the reply to its end; bytes of its head and of its body.
    ///
    /// # Errors
    /// The reply is not a complete `200`.
    pub fn get(&mut self) -> anyhow::Result<(usize, u64)> {
        self.stream.write_all(&self.request)?;
        let (head, length, mut got) = self.head()?;
        while got < length {
            got += self.read(0)? as u64;
        }
        ensure!(got == length, "more bytes came than the reply has");
        Ok((head, length))
    }

    /// Reads a reply's head; its length, the body's length, and how much of the body came along.
    fn head(&mut self) -> anyhow::Result<(usize, u64, u64)> {
        let mut got = 0;
        let head = loop {
            got += self.read(got)?;
            if let Some(at) = self.buffer[..got].windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            ensure!(got < self.buffer.len(), "the reply's head does not end");
        };
        let text = String::from_utf8_lossy(&self.buffer[..head]);
        ensure!(text.starts_with("HTTP/1.1 200 "), "the reply is {:?}", text.lines().next());
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length:"));
        let length = length.context("the reply has no length")?.trim().parse()?;
        Ok((head, length, (got - head) as u64))
    }

    fn read(&mut self, from: usize) -> anyhow::Result<usize> {
        loop {
            match self.stream.read(&mut self.buffer[from..]) {
                Ok(0) => anyhow::bail!("the server closed before the reply's end"),
                Ok(got) => return Ok(got),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e).context("cannot read the reply"),
            }
        }
    }
}

/// One client, one request after the other for `span`; every request's time, µs.
///
/// # Errors
/// A reply is not right.
pub fn latencies(at: SocketAddr, path: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
    let mut http = Http::connect(at, path)?;
    http.get()?;
    let (mut times, begin) = (Vec::new(), Instant::now());
    while begin.elapsed() < span {
        let sent = Instant::now();
        http.get()?;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    Ok(times)
}

/// What [`closed_loop`] did.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Complete replies.
    pub requests: u64,
    /// In how long.
    pub took: Duration,
}

/// `clients` connections, each asking again when it is answered, for `span`. Calls `ready` when
/// all of them have had their first answer, right before the clock starts.
///
/// # Errors
/// A reply is not right.
pub fn closed_loop(
    at: SocketAddr,
    path: &str,
    clients: usize,
    span: Duration,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Served> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut open = Vec::new();
    for number in 0..clients {
        let mut http = Http::connect(at, path)?;
        let (head, body) = http.get()?;
        http.stream.set_nonblocking(true)?;
        epoll.add(&http.stream, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))?;
        open.push((http, head + usize::try_from(body)?, 0));
    }
    ready()?;
    let begin = Instant::now();
    for (http, ..) in &mut open {
        http.stream.write_all(&http.request)?;
    }
    let (mut events, mut requests) = (vec![EpollEvent::empty(); clients], 0);
    while begin.elapsed() < span {
        let ready = epoll.wait(&mut events, EpollTimeout::try_from(PATIENCE)?)?;
        ensure!(ready > 0, "no client has had an answer for {PATIENCE:?}");
        for event in &events[..ready] {
            let (http, length, got) = &mut open[usize::try_from(event.data())?];
            let first = *got == 0;
            *got += match http.stream.read(&mut http.buffer) {
                Ok(0) => anyhow::bail!("the server closed a connection"),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
                Err(e) => return Err(e).context("cannot read a reply"),
            };
            ensure!(!first || http.buffer.starts_with(b"HTTP/1.1 200 "), "a reply is no 200");
            ensure!(*got <= *length, "a reply is longer than the first one");
            if *got == *length {
                *got = 0;
                requests += 1;
                http.stream.write_all(&http.request)?;
            }
        }
    }
    Ok(Served { requests, took: begin.elapsed() })
}

/// Downloads `path` on a connection of its own; Mbit/s of its body.
///
/// # Errors
/// The reply is not right.
pub fn download(at: SocketAddr, path: &str) -> anyhow::Result<f64> {
    let mut http = Http::connect(at, path)?;
    http.buffer = vec![0; 256 << 10];
    let begin = Instant::now();
    let (_, body) = http.get()?;
    Ok(mbit_per_s(body, begin.elapsed()))
}

/// Uploads `bytes` to a [`crate::sink`]; Mbit/s until its answer.
///
/// # Errors
/// The answer is not right.
pub fn upload(at: SocketAddr, bytes: u64) -> anyhow::Result<f64> {
    let mut stream =
        TcpStream::connect_timeout(&at, PATIENCE).with_context(|| format!("cannot reach {at}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (begin, block, mut left) = (Instant::now(), vec![0x5f; 256 << 10], bytes);
    stream.write_all(&bytes.to_be_bytes())?;
    while left > 0 {
        let now = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.write_all(&block[..now]).context("cannot send")?;
        left -= now as u64;
    }
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).context("the sink does not answer")?;
    let got = u64::from_be_bytes(answer);
    ensure!(got == bytes, "the sink got {got} of {bytes} bytes");
    Ok(mbit_per_s(bytes, begin.elapsed()))
}

fn mbit_per_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 * 8e-6 / took.as_secs_f64()
}

/// A download that others look at.
#[derive(Debug, Default)]
pub struct Watched {
    /// Bytes of the body so far.
    pub bytes: AtomicU64,
    /// Set it to end the download early.
    pub stop: AtomicBool,
    /// It has ended.
    pub ended: AtomicBool,
}

impl Watched {
    /// Downloads `path` to its end or until told to stop; all pauses of at least 2 ms, on
    /// [`now_ns`]'s clock.
    ///
    /// # Errors
    /// The connection breaks: what Steadfast is there to prevent.
    pub fn run(&self, at: SocketAddr, path: &str) -> anyhow::Result<Vec<Stall>> {
        let stalls = self.read(at, path);
        self.ended.store(true, Relaxed);
        stalls
    }

    fn read(&self, at: SocketAddr, path: &str) -> anyhow::Result<Vec<Stall>> {
        let mut http = Http::connect(at, path)?;
        http.buffer = vec![0; 256 << 10];
        http.stream.write_all(&http.request)?;
        let (_, length, mut got) = http.head()?;
        let (mut stalls, mut from_ns) = (Vec::new(), now_ns());
        while got < length && !self.stop.load(Relaxed) {
            got += http.read(0)? as u64;
            let to_ns = now_ns();
            if to_ns - from_ns >= STALL_NS {
                stalls.push(Stall { from_ns, to_ns });
            }
            from_ns = to_ns;
            self.bytes.store(got, Relaxed);
        }
        ensure!(got <= length, "more bytes came than the reply has");
        Ok(stalls)
    }
}

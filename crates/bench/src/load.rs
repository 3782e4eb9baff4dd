//! Clients: one request after the other, many at once, a large reply, a large request.
//!
//! They run on threads of this process inside the client host's network namespace, and read
//! replies no further than to know where they end; what is left to measure is the network and
//! the server. Every reply's length is checked, and its status: a fast error is no throughput.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Add;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Nothing at all happens for so long: it will not happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// The line of a request after whose reply the server closes.
const CLOSE: &str = "Connection: close\r\n";

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
        Http::connect_with(at, path, "")
    }

    /// The same with further lines in the request's head.
    fn connect_with(at: SocketAddr, path: &str, lines: &str) -> anyhow::Result<Http> {
        let stream = TcpStream::connect_timeout(&at, PATIENCE)
            .with_context(|| format!("cannot connect to {at}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n{lines}\r\n").into_bytes();
        Ok(Http { stream, request, buffer: vec![0; 16 << 10] })
    }

    /// Connects, asks, and sees the server close.
    ///
    /// # Errors
    /// The reply is not a complete `200`, or the server goes on after it.
    pub fn once(at: SocketAddr, path: &str) -> anyhow::Result<()> {
        Http::connect_with(at, path, CLOSE)?.last()
    }

    /// Asks once more. The server closes first: its end waits for stray segments, the client's
    /// port is free at once, and no row runs out of ports.
    fn last(mut self) -> anyhow::Result<()> {
        self.get()?;
        ensure!(self.stream.read(&mut [0])? == 0, "the server goes on after its last reply");
        Ok(())
    }

    /// Length of each request, bytes.
    pub fn request_bytes(&self) -> usize {
        self.request.len()
    }

    /// A larger buffer, for large replies.
    pub fn large(mut self) -> Http {
        self.buffer = vec![0; 256 << 10];
        self
    }

    /// Sends a request and reads the reply's head; length of the body, and how much of it came
    /// along.
    ///
    /// # Errors
    /// The reply is no `200`.
    pub fn begin(&mut self) -> anyhow::Result<(u64, u64)> {
        self.stream.write_all(&self.request)?;
        let (_, length, got) = self.head()?;
        Ok((length, got))
    }

    /// Reads more of a body.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn more(&mut self) -> anyhow::Result<u64> {
        Ok(self.read(0)? as u64)
    }

    /// The client's own address.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn local(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.stream.local_addr()?)
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
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    anyhow::bail!("nothing came for {PATIENCE:?}, and the reply is not complete")
                }
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
#[derive(Clone, Debug)]
pub struct Served {
    /// Complete replies.
    pub requests: u64,
    /// In how long.
    pub took: Duration,
    /// Processor time of the clients, µs: they are one thread.
    pub client_us: f64,
}

/// What a client does until its answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// It sleeps.
    Sleeps,
    /// It looks again and again. To wake one that sleeps is work of whose answer it waits for, and how often it
    /// sleeps depends on how fast the answers come: so of two servers the slower one would pay for that, too.
    Looks,
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
    idle: Idle,
    span: Duration,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Served> {
    let sleep = match idle {
        Idle::Sleeps => EpollTimeout::try_from(PATIENCE)?,
        Idle::Looks => EpollTimeout::ZERO,
    };
    let (epoll, mut open) = (Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?, Vec::new());
    for number in 0..clients {
        open.push(Asking::open(at, path, &epoll, number as u64)?);
    }
    ready()?;
    let (before_us, begin) = (thread_cpu_us()?, Instant::now());
    for client in &mut open {
        client.http.stream.write_all(&client.http.request)?;
    }
    let (mut events, mut requests) = (vec![EpollEvent::empty(); clients], 0);
    let mut last = begin;
    while begin.elapsed() < span {
        let ready = epoll.wait(&mut events, sleep)?;
        if ready > 0 {
            last = Instant::now();
        }
        ensure!(last.elapsed() < PATIENCE, "no client has had an answer for {PATIENCE:?}");
        for event in &events[..ready] {
            let client = &mut open[usize::try_from(event.data())?];
            let answered = client.read()?;
            ensure!(answered == 0 || client.got == 0, "a reply is longer than the first one");
            if answered > 0 {
                requests += answered;
                client.http.stream.write_all(&client.http.request)?;
            }
        }
    }
    let (took, client_us) = (begin.elapsed(), thread_cpu_us()? - before_us);
    Ok(Served { requests, took, client_us })
}

/// Asks `rate` times a second for `span`, however fast the answers come: whenever a request is due
/// the next of `clients` connections sends it, behind those that wait there already. Answers per
/// second until then; returns when the others have come, too.
///
/// # Errors
/// A reply is not right.
pub fn offered(
    at: SocketAddr,
    path: &str,
    clients: usize,
    rate: f64,
    span: Duration,
) -> anyhow::Result<f64> {
    let (epoll, mut open) = (Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?, Vec::new());
    for number in 0..clients {
        open.push(Asking::open(at, path, &epoll, number as u64)?);
    }
    let (begin, mut sent, mut answered) = (Instant::now(), 0, 0);
    let mut events = vec![EpollEvent::empty(); clients];
    let (mut last, mut in_time) = (begin, None);
    // Who leaves while answers are on their way makes work of another kind for those that come next.
    while in_time.is_none() || answered < sent {
        if begin.elapsed() < span {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // requests of a run
            let due = (begin.elapsed().as_secs_f64() * rate) as usize;
            for number in sent..due {
                open[number % clients].owed += 1;
            }
            sent = due;
        } else {
            in_time.get_or_insert(answered as f64 / begin.elapsed().as_secs_f64());
        }
        for client in open.iter_mut().filter(|client| client.owed > 0) {
            client.send()?;
        }
        // What becomes due within a millisecond is sent together.
        let ready = epoll.wait(&mut events, EpollTimeout::from(1u8))?;
        for event in &events[..ready] {
            answered += usize::try_from(open[usize::try_from(event.data())?].read()?)?;
            last = Instant::now();
        }
        ensure!(last.elapsed() < PATIENCE, "{} answers have not come", sent - answered);
    }
    in_time.context("the loop ends after the span")
}

/// A connection that does not block, all replies on which are alike.
struct Asking {
    http: Http,
    /// Length of a reply with its head, bytes.
    length: usize,
    /// Bytes of a reply that is not complete.
    got: usize,
    /// Requests that are due, and how many bytes of the first one have been sent.
    owed: usize,
    begun: usize,
}

impl Asking {
    /// Connects and has one answer. `number` is what `epoll` reports.
    fn open(at: SocketAddr, path: &str, epoll: &Epoll, number: u64) -> anyhow::Result<Asking> {
        let mut http = Http::connect(at, path)?;
        let (head, body) = http.get()?;
        http.stream.set_nonblocking(true)?;
        epoll.add(&http.stream, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        Ok(Asking { http, length: head + usize::try_from(body)?, got: 0, owed: 0, begun: 0 })
    }

    /// Sends what is owed, as far as there is room for it.
    fn send(&mut self) -> anyhow::Result<()> {
        let Http { stream, request, .. } = &mut self.http;
        let bytes = request.repeat(self.owed);
        match stream.write(&bytes[self.begun..]) {
            Ok(n) => self.begun += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e).context("cannot send a request"),
        }
        self.owed -= self.begun / request.len();
        self.begun %= request.len();
        Ok(())
    }

    /// Reads what is there; how many replies are complete with it.
    fn read(&mut self) -> anyhow::Result<u64> {
        let Http { stream, buffer, .. } = &mut self.http;
        let now = match stream.read(buffer) {
            Ok(0) => anyhow::bail!("the server closed a connection"),
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
            Err(e) => return Err(e).context("cannot read a reply"),
        };
        let first = self.got == 0 && now > 0;
        ensure!(!first || buffer.starts_with(b"HTTP/1.1 200 "), "a reply is no 200");
        self.got += now;
        let complete = self.got / self.length;
        self.got %= self.length;
        Ok(complete as u64)
    }
}

/// Processor time that the calling thread has used, µs.
fn thread_cpu_us() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let spent = usage.user_time() + usage.system_time();
    Ok(spent.num_microseconds() as f64)
}

/// New connections that had their answer, and those that were reset: see [`not_reset`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// With an answer.
    pub answered: u64,
    /// Without.
    pub reset: u64,
}

impl Add for Opened {
    type Output = Opened;

    fn add(self, more: Opened) -> Opened {
        Opened { answered: self.answered + more.answered, reset: self.reset + more.reset }
    }
}

impl Opened {
    fn note(&mut self, connection: anyhow::Result<()>) -> anyhow::Result<()> {
        match not_reset(connection)? {
            Some(()) => self.answered += 1,
            None => self.reset += 1,
        }
        Ok(())
    }
}

/// `None` of what the server has reset. Linux 6.18 does that to some new connections by itself,
/// protected or not (`docs/kernel-facts.md`, "An ACK may meet neither request nor child"): whoever
/// opens connections by the ten thousand counts them.
fn not_reset<T>(connection: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    let reset = |e: &std::io::Error| e.kind() == ErrorKind::ConnectionReset;
    match connection {
        Ok(done) => Ok(Some(done)),
        Err(e) if e.downcast_ref().is_some_and(reset) => Ok(None),
        Err(e) => Err(e),
    }
}

/// `clients` threads that each connect, ask once, and see the server close, for `span`;
/// connections per second, and how they went.
///
/// # Errors
/// A reply is not right.
pub fn connections(
    at: SocketAddr,
    path: &str,
    clients: usize,
    span: Duration,
) -> anyhow::Result<(f64, Opened)> {
    let begin = Instant::now();
    let each = on_threads(clients, |_| {
        let mut opened = Opened::default();
        while begin.elapsed() < span {
            opened.note(Http::once(at, path))?;
        }
        Ok(opened)
    })?;
    let took_s = begin.elapsed().as_secs_f64();
    let all = each.into_iter().fold(Opened::default(), Add::add);
    Ok((all.answered as f64 / took_s, all))
}

/// How long connecting takes, µs, one connection after the other for `span`, and how they went.
///
/// # Errors
/// Nobody answers.
pub fn connect_times(
    at: SocketAddr,
    path: &str,
    span: Duration,
) -> anyhow::Result<(Vec<f64>, Opened)> {
    let (mut times, mut opened, begin) = (Vec::new(), Opened::default(), Instant::now());
    while begin.elapsed() < span {
        let called = Instant::now();
        let http = Http::connect_with(at, path, CLOSE)?;
        times.push(called.elapsed().as_secs_f64() * 1e6);
        opened.note(http.last())?;
    }
    Ok((times, opened))
}

/// Downloads `path` on `count` connections at once, for `span` from when all of them have had a
/// beginning; Mbit/s of all together.
///
/// # Errors
/// A reply is not right, or ends before `span` is over.
pub fn downloads(at: SocketAddr, path: &str, count: usize, span: Duration) -> anyhow::Result<f64> {
    let (flowing, all_flow, failed) =
        (AtomicUsize::new(0), OnceLock::new(), AtomicBool::new(false));
    let download = || {
        let mut http = Http::connect(at, path)?.large();
        let (length, mut got) = http.begin()?;
        if flowing.fetch_add(1, Relaxed) + 1 == count {
            let _first = all_flow.set(Instant::now()); // only one can be the last
        }
        let mut counted = 0;
        // All read from the beginning on: what waits in a buffer would count as fast.
        loop {
            let now = http.more()?;
            got += now;
            ensure!(got < length, "the file is too small for this link");
            match all_flow.get().map(Instant::elapsed) {
                Some(since) if since >= span => return Ok(counted),
                Some(_) => counted += now,
                None => ensure!(!failed.load(Relaxed), "another download has failed"),
            }
        }
    };
    let counted = on_threads(count, |_| {
        download().inspect_err(|_: &anyhow::Error| failed.store(true, Relaxed))
    })?;
    Ok(mbit_per_s(counted.into_iter().sum(), span))
}

/// Uploads `bytes` in equal parts on `count` connections at once; Mbit/s until the last answer.
///
/// # Errors
/// An answer is not right.
pub fn uploads(at: SocketAddr, bytes: u64, count: usize) -> anyhow::Result<f64> {
    let (each, begin) = (bytes / count as u64, Instant::now());
    on_threads(count, |_| upload(at, each))?;
    Ok(mbit_per_s(each * count as u64, begin.elapsed()))
}

/// Runs `work` on so many threads of the caller's network namespace; all results, or the first
/// error.
fn on_threads<T: Send>(
    count: usize,
    work: impl Fn(usize) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|n| scope.spawn(move || work(n))).collect();
        threads.into_iter().map(|t| t.join().expect("a client does not panic")).collect()
    })
}

/// Downloads `path` on a connection of its own; Mbit/s of its body.
///
/// # Errors
/// The reply is not right.
pub fn download(at: SocketAddr, path: &str) -> anyhow::Result<f64> {
    let mut http = Http::connect(at, path)?.large();
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
    let head = format!("POST / HTTP/1.1\r\nHost: {at}\r\nContent-Length: {bytes}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    while left > 0 {
        let now = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.write_all(&block[..now]).context("cannot send")?;
        left -= now as u64;
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the sink does not answer")?;
    let got = answer.rsplit('\n').next();
    ensure!(got == Some(&bytes.to_string()), "the sink got {got:?} of {bytes} bytes");
    Ok(mbit_per_s(bytes, begin.elapsed()))
}

fn mbit_per_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 * 8e-6 / took.as_secs_f64()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that answers each of `connections` connections until it is closed, the way it
    /// was asked to; the first reply of each waits for `pause`.
    pub(crate) fn server(connections: usize, pause: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for _ in 0..connections {
                let (mut stream, _) = listener.accept().unwrap();
                std::thread::spawn(move || {
                    let (mut buffer, mut number) = ([0; 4096], 0);
                    let (mut got, mut answered) = (Vec::new(), 0);
                    while let Ok(now @ 1..) = stream.read(&mut buffer) {
                        got.extend_from_slice(&buffer[..now]);
                        let asked = got.windows(4).filter(|w| w == b"\r\n\r\n").count();
                        for _ in answered..asked {
                            number += 1;
                            if number == 3 {
                                std::thread::sleep(pause);
                            }
                            let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                            if stream.write_all(reply).is_err() {
                                return; // the client has what it wanted to know
                            }
                        }
                        answered = asked;
                        if String::from_utf8_lossy(&got).contains("Connection: close") {
                            return;
                        }
                    }
                });
            }
        });
        at
    }

    #[test]
    fn what_is_offered_does_not_wait_for_answers() {
        let at = server(8, Duration::ZERO);
        let rate = offered(at, "/", 4, 500.0, Duration::from_millis(400)).unwrap();
        assert!((350.0..=501.0).contains(&rate), "{rate}");
        // This one's third answer comes too late: two connections have no more than one.
        let at = server(8, Duration::from_secs(1));
        let begin = Instant::now();
        let rate = offered(at, "/", 2, 500.0, Duration::from_millis(400)).unwrap();
        assert!(rate < 50.0, "{rate}");
        assert!(begin.elapsed() >= Duration::from_secs(1), "those that wait come, too");
    }

    #[test]
    fn connections_end_with_the_server_closing() {
        let at = server(1_000_000, Duration::ZERO);
        let (rate, opened) = connections(at, "/", 2, Duration::from_millis(50)).unwrap();
        assert!(rate > 0.0 && opened.answered > 0 && opened.reset == 0, "{rate}, {opened:?}");
        let (times, opened) = connect_times(at, "/", Duration::from_millis(20)).unwrap();
        let expected = Opened { answered: times.len() as u64, reset: 0 };
        assert!(opened == expected && !times.is_empty(), "{opened:?}");
    }

    #[test]
    fn a_reset_is_counted_and_another_failure_is_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (first, _) = listener.accept().unwrap();
            first.peek(&mut [0]).unwrap();
            drop(first); // with a request that was not read: that is a reset
            let (mut second, _) = listener.accept().unwrap();
            assert!(second.read(&mut [0; 4096]).unwrap() > 0);
        });
        let mut opened = Opened::default();
        opened.note(Http::once(at, "/")).unwrap();
        assert_eq!(opened, Opened { answered: 0, reset: 1 });
        let error = opened.note(Http::once(at, "/")).unwrap_err().to_string();
        assert!(error.contains("closed before the reply's end"), "{error}");
    }

    #[test]
    fn clients_spend_processor_time() {
        let at = server(3, Duration::ZERO);
        let served =
            closed_loop(at, "/", 3, Idle::Sleeps, Duration::from_millis(50), || Ok(())).unwrap();
        assert!(served.requests >= 3 && served.client_us > 0.0, "{served:?}");
    }
}

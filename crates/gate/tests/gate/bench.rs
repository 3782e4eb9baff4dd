//! Two hosts, a server on one, its gate, and a daemon that releases what the test says.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use datapath::FlowKey;
use gate::{Counter, Counters, Gate, Orders, Record, Settings};
use lab::{Child, Lab, Link};

pub const PATIENCE: Duration = Duration::from_secs(20);
pub const PORT: u16 = 8080;
pub const HOLD: u32 = 256 << 10;
pub const CONTENT_LENGTH: usize = 16 << 20;

/// The outstream of every server here: no two windows of it look alike (xorshift64).
pub fn content() -> &'static [u8] {
    static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        (0..CONTENT_LENGTH / 8).flat_map(|_| next()).collect()
    });
    &CONTENT
}

/// Asks again until `condition` gives something.
pub fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// What the daemon knows of one flow.
#[derive(Default, Clone)]
pub struct Story {
    /// Sequence number of the first byte.
    pub start: Option<u32>,
    pub bytes: Vec<u8>,
    pub ended: Option<u32>,
    pub over: Option<Record>,
    pub lost: Option<u32>,
    /// What contradicts the records before it.
    pub wrong: Option<String>,
}

impl Story {
    fn add(&mut self, record: &Record, payload: &[u8]) {
        match *record {
            Record::Output { seq, .. } => {
                let start = *self.start.get_or_insert(seq);
                let at = seq.wrapping_sub(start) as usize;
                if at > self.bytes.len() {
                    self.wrong = Some(format!("a hole: {at} behind {}", self.bytes.len()));
                    return;
                }
                self.bytes.truncate(at);
                self.bytes.extend_from_slice(payload);
            }
            Record::Ended { seq, .. } => {
                self.start.get_or_insert(seq);
                self.ended = Some(seq);
            }
            Record::Lost { seq, .. } => {
                self.start.get_or_insert(seq);
                self.lost = Some(seq);
            }
            Record::Gone { .. } | Record::Aborted { .. } => self.over = Some(*record),
        }
    }

    /// The sequence number of byte `n`.
    pub fn seq(&self, n: usize) -> u32 {
        self.start.expect("output has begun").wrapping_add(n as u32)
    }
}

type Stories = Arc<Mutex<HashMap<FlowKey, Story>>>;

/// The reader of the ring.
struct Daemon {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// `at_once`: release whatever is captured.
    fn start(gate: &Gate, stories: &Stories, at_once: &Arc<AtomicBool>) -> Self {
        let source = gate.output().expect("the ring");
        let (orders, stories, at_once) = (gate.orders(), stories.clone(), at_once.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let reader = source.reader(|record, payload| {
                let mut stories = stories.lock().unwrap();
                let (Record::Output { flow, .. }
                | Record::Ended { flow, .. }
                | Record::Gone { flow, .. }
                | Record::Aborted { flow, .. }
                | Record::Lost { flow, .. }) = *record;
                stories.entry(flow).or_default().add(record, payload);
                drop(stories);
                if at_once.load(Ordering::Relaxed) {
                    let edge = match *record {
                        Record::Output { seq, .. } => seq.wrapping_add(payload.len() as u32),
                        Record::Ended { seq, .. } => seq.wrapping_add(1),
                        _ => return,
                    };
                    orders.release(&flow, edge).expect("an order");
                }
            });
            let reader = reader.expect("a reader");
            while !stopped.load(Ordering::Relaxed) {
                wait_readable(reader.fd().as_raw_fd(), Duration::from_millis(20));
                reader.drain().expect("records");
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("dropped once").join();
        if !std::thread::panicking() {
            ended.expect("the daemon's thread");
        }
    }
}

fn enter_network_of(pid: u32) {
    let namespace = fs::File::open(format!("/proc/{pid}/ns/net")).expect("the host's namespace");
    // SAFETY: the descriptor is open; only this thread moves.
    let moved = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(moved, 0, "setns: {}", std::io::Error::last_os_error());
}

fn wait_readable(fd: i32, patience: Duration) {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd, exclusively borrowed for the call.
    unsafe { libc::poll(&mut wanted, 1, patience.as_millis() as i32) };
}

pub struct Bench {
    pub orders: Arc<Orders>,
    pub counters: Counters,
    pub at_once: Arc<AtomicBool>,
    pub gate: Option<Gate>,
    stories: Stories,
    daemon: Option<Daemon>,
    pub lab: Lab,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let lab = Lab::builder().up().unwrap_or_else(|error| panic!("{error}"));
        let host = lab.host("a").unwrap();
        let services: Vec<SocketAddr> = addresses(&lab).map(|ip| (ip, PORT).into()).to_vec();
        let mut settings = Settings {
            service_ifindex: 0,
            services,
            hold_bytes: HOLD,
            send_buffer: Some(2 << 20),
            ring_bytes: 16 << 20,
            max_flows: 1024,
        };
        change(&mut settings);
        // The gate stays with the thread that has loaded it, so this one moves in.
        enter_network_of(host.init_pid().unwrap());
        let device = hostnet::Interface::by_name(Link::Service.interface());
        settings.service_ifindex = device.expect("the service link").index;
        let gate = Gate::load(&settings).unwrap_or_else(|error| panic!("{error}"));
        gate.set_holding(true);
        let (stories, at_once) = (Stories::default(), Arc::default());
        let daemon = Some(Daemon::start(&gate, &stories, &at_once));
        let (orders, counters) = (gate.orders(), gate.counters().unwrap());
        Self { orders, counters, at_once, gate: Some(gate), stories, daemon, lab }
    }

    /// From here on whatever is captured is released at once.
    pub fn release_at_once(&self) {
        self.at_once.store(true, Ordering::Relaxed);
    }

    /// The daemon dies: its links close, its filters stay.
    pub fn kill_daemon(&mut self) {
        self.daemon = None;
        self.gate = None;
    }

    pub fn python(&self) -> Server {
        self.server(addresses(&self.lab)[0])
    }

    pub fn server(&self, address: IpAddr) -> Server {
        let blob = self.lab.dir().join("content");
        fs::write(&blob, content()).expect("the content");
        let script = self.lab.dir().join("server.py");
        fs::write(&script, include_str!("server.py")).expect("the script");
        let host = self.lab.host("a").unwrap();
        let mut child = host
            .command("python3")
            .arg(script)
            .args([address.to_string(), PORT.to_string()])
            .arg(blob)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut server = Server { child, stdin, stdout };
        assert_eq!(server.line(), "listening");
        server
    }

    pub fn connect(&self, address: IpAddr) -> Client<'_> {
        let host = self.lab.host("client").unwrap();
        let stream = host.in_netns(|| TcpStream::connect((address, PORT))).unwrap();
        let stream = stream.expect("the server accepts");
        let flow = FlowKey::new(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        Client { bench: self, stream, flow, got: Vec::new() }
    }

    /// A python server with one connection, accepted.
    pub fn conversation(&self) -> (Server, Client<'_>) {
        let mut server = self.python();
        let client = self.connect(addresses(&self.lab)[0]);
        server.expect("accept", "ok");
        (server, client)
    }

    pub fn story(&self, flow: &FlowKey) -> Story {
        self.stories.lock().unwrap().get(flow).cloned().unwrap_or_default()
    }

    /// No flow's records contradict each other.
    pub fn stories_are_sound(&self) {
        for (flow, story) in self.stories.lock().unwrap().iter() {
            assert_eq!(story.wrong, None, "{flow}");
        }
    }

    /// Waits until TCP has been told again `times` times to keep what it has.
    pub fn refused_again(&self, times: u64) {
        let before = self.counters.get(Counter::Refused);
        let enough = || (self.counters.get(Counter::Refused) >= before + times).then_some(());
        eventually("TCP tries again", enough);
    }
}

pub fn addresses(lab: &Lab) -> [IpAddr; 2] {
    let host = lab.host("a").unwrap();
    [host.ipv4(Link::Service).into(), host.ipv6(Link::Service).into()]
}

pub struct Server {
    pub child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    pub fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").expect("the server reads");
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the server speaks");
        line.trim_end().to_owned()
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.line()
    }

    pub fn expect(&mut self, command: &str, answer: &str) {
        assert_eq!(self.ask(command), answer, "the server's answer to {command:?}");
    }
}

pub struct Client<'a> {
    bench: &'a Bench,
    pub stream: TcpStream,
    pub flow: FlowKey,
    pub got: Vec<u8>,
}

impl Client<'_> {
    /// Waits until the daemon has captured `count` bytes in all, and compares them.
    pub fn captured(&self, count: usize) -> Story {
        let story = eventually(&format!("{count} bytes are captured"), || {
            let story = self.bench.story(&self.flow);
            (story.bytes.len() >= count).then_some(story)
        });
        assert_eq!(story.wrong, None);
        assert_eq!(story.bytes.len(), count, "captured");
        let wrong = story.bytes.iter().zip(content()).position(|(got, want)| got != want);
        assert_eq!(wrong, None, "captured bytes are those written");
        story
    }

    /// Waits until the daemon knows that the server ended its stream behind `count` bytes.
    pub fn ended(&self, count: usize) -> Story {
        let story = eventually("the end is reported", || {
            let story = self.bench.story(&self.flow);
            story.ended.is_some().then_some(story)
        });
        assert_eq!(story.ended, Some(story.seq(count)), "the FIN is behind the last byte");
        story
    }

    pub fn release(&self, count: usize) {
        self.bench.orders.release(&self.flow, self.bench.story(&self.flow).seq(count)).unwrap();
    }

    /// Nothing has arrived, though TCP has tried to send.
    pub fn hears_nothing(&mut self) {
        self.stream.set_nonblocking(true).unwrap();
        let heard = self.stream.read(&mut [0; 1]);
        self.stream.set_nonblocking(false).unwrap();
        match heard {
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            other => panic!("the client heard something: {other:?}"),
        }
    }

    /// Reads up to byte `count` of the stream, and compares.
    pub fn hears(&mut self, count: usize) {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let already = self.got.len();
        self.got.resize(count, 0);
        self.stream.read_exact(&mut self.got[already..]).expect("the bytes arrive");
        assert!(self.got[already..] == content()[already..count], "bytes are exact");
    }

    pub fn hears_the_end(&mut self) {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let read = self.stream.read(&mut [0; 1]).expect("the end arrives");
        assert_eq!(read, 0, "nothing comes behind the last byte");
    }
}

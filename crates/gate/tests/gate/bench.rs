//! A server, its node's data path, and a daemon that releases what the test says.
//!
//! The client stands where the backup would: its segments are the peer's relayed ones, and control
//! segments bounce to it. So the node is a duplex primary, and one data path is enough. A second one
//! makes the other node a backup, for what a backup says to the primary.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use datapath::{
    Counter, Counters, Datapath, FlowKey, FlowTable, GateSettings, Output, Role, Service, Settings,
    Switchboard,
};
use gate::Orders;
use hostnet::{Interface, Offload, Tun, now_boottime_ns};
use lab::{Child, Host, Lab, Link};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

pub const PATIENCE: Duration = Duration::from_secs(20);
pub const PORT: u16 = 8080;
pub const HOLD: u32 = 256 << 10;
pub const CONTENT_LENGTH: usize = 16 << 20;
/// Longer than any test takes.
const HOUR_NS: u64 = 3_600_000_000_000;

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
    pub over: Option<Output>,
    pub lost: Option<u32>,
    pub unheld: bool,
    /// What contradicts the records before it.
    pub wrong: Option<String>,
}

impl Story {
    fn add(&mut self, output: &Output, payload: &[u8]) {
        match *output {
            Output::Bytes { seq, .. } => {
                let start = *self.start.get_or_insert(seq);
                let at = seq.wrapping_sub(start) as usize;
                if at > self.bytes.len() {
                    self.wrong = Some(format!("a hole: {at} behind {}", self.bytes.len()));
                    return;
                }
                self.bytes.truncate(at);
                self.bytes.extend_from_slice(payload);
            }
            Output::Ended { seq, .. } | Output::Crashed { seq, .. } => {
                self.start.get_or_insert(seq);
                self.ended = Some(seq);
            }
            Output::Lost { seq, .. } => {
                self.start.get_or_insert(seq);
                self.lost = Some(seq);
            }
            Output::Gone { .. } | Output::Aborted { .. } => self.over = Some(*output),
            Output::Unheld { .. } => self.unheld = true,
            Output::Unread { .. } => (),
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
    fn start(node: &Node, stories: &Stories, at_once: &Arc<AtomicBool>) -> Self {
        let source = node.datapath.output().expect("the ring");
        let ringer = node.datapath.ringer().expect("a ringer");
        let (orders, stories, at_once) = (node.orders.clone(), stories.clone(), at_once.clone());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let reader = source.reader(|output, payload| {
                let flow = output.flow();
                let mut stories = stories.lock().unwrap();
                let story = stories.entry(flow).or_default();
                story.add(output, payload);
                let end = story.ended;
                drop(stories);
                let edge = match *output {
                    Output::Bytes { seq, .. } => {
                        let edge = seq.wrapping_add(payload.len() as u32);
                        // The end had been reported before its last bytes.
                        edge.wrapping_add(u32::from(end == Some(edge)))
                    }
                    Output::Ended { seq, .. } | Output::Crashed { seq, .. } => seq.wrapping_add(1),
                    Output::Unread { .. } => {
                        ringer.iter().for_each(|ringer| ringer.ring().expect("the kernel rings"));
                        return;
                    }
                    _ => return,
                };
                if at_once.load(Ordering::Relaxed) {
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

/// The calling thread sees the network as `host` does.
fn enter_network_of(host: &Host) {
    let path = format!("/proc/{}/ns/net", host.init_pid().unwrap());
    let namespace = fs::File::open(path).expect("the host's namespace");
    setns(namespace, CloneFlags::CLONE_NEWNET).expect("only this thread moves");
}

/// A bpffs that goes with the calling thread: what a killed daemon leaves there ends with it.
fn own_bpffs() {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).expect("root (make test)");
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).expect("a bpffs");
}

/// The data path of one node.
pub struct Node {
    pub datapath: Datapath,
    pub switchboard: Switchboard,
    pub counters: Counters,
    pub orders: Arc<Orders>,
}

impl Node {
    /// Loads and attaches it in the calling thread's network namespace, that of `host`.
    fn start(host: &Host, change: impl FnOnce(&mut Settings)) -> Self {
        let index = |link: Link| Interface::by_name(link.interface()).expect("a link").index;
        let endpoints = services(host).map(|address| (address, PORT)).to_vec();
        let mut settings = Settings {
            service_ifindex: index(Link::Service),
            cluster_ifindex: index(Link::Cluster),
            own_address4: Some(host.ipv4(Link::Service)),
            ring_bytes: 1 << 20,
            max_flows: 1024,
            services: vec![Service { endpoints, held: true }],
            gate: GateSettings {
                hold_bytes: HOLD,
                send_buffer: Some(2 << 20),
                ring_bytes: 16 << 20,
                replies: false,
            },
        };
        change(&mut settings);
        let mut datapath = Datapath::load(&settings).unwrap_or_else(|error| panic!("{error}"));
        datapath.attach().unwrap_or_else(|error| panic!("{error}"));
        let tun = Tun::open("adopt", 65_535, Offload::None).expect("a TUN device");
        datapath.attach_adoption(tun.ifindex()).expect("the adoption program attaches");
        let switchboard = datapath.switchboard();
        switchboard.set_holding(true);
        switchboard.set_lease(now_boottime_ns() + HOUR_NS);
        let counters = datapath.counters().unwrap();
        Self { datapath, switchboard, counters, orders: Arc::new(Orders::new(tun)) }
    }
}

fn wait_readable(fd: i32, patience: Duration) {
    let mut wanted = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd, exclusively borrowed for the call.
    unsafe { libc::poll(&mut wanted, 1, patience.as_millis() as i32) };
}

pub struct Bench {
    pub orders: Arc<Orders>,
    pub counters: Counters,
    pub switchboard: Switchboard,
    pub at_once: Arc<AtomicBool>,
    stories: Stories,
    daemon: Option<Daemon>,
    node: Option<Node>,
    pub lab: Lab,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let lab = Lab::builder().up().unwrap_or_else(|error| panic!("{error}"));
        let [host, client, peer] = ["a", "client", "b"].map(|name| lab.host(name).unwrap().clone());
        // The data path stays with the thread that has loaded it, so this one moves in.
        own_bpffs();
        enter_network_of(&host);
        let node = Node::start(&host, change);
        let index = Interface::by_name(Link::Service.interface()).unwrap().index;
        let client = client.mac(Link::Service);
        node.switchboard.set_relay(index, host.mac(Link::Service), client);
        node.switchboard.set_peer_macs(client, peer.mac(Link::Cluster));
        node.switchboard.set_role(1, Role::Primary { duplex: true });
        let (stories, at_once) = (Stories::default(), Arc::default());
        let daemon = Some(Daemon::start(&node, &stories, &at_once));
        let (orders, counters) = (node.orders.clone(), node.datapath.counters().unwrap());
        let switchboard = node.switchboard;
        Self { orders, counters, switchboard, at_once, stories, daemon, node: Some(node), lab }
    }

    /// Host `b`, as the backup of what runs here.
    pub fn backup(&self) -> Node {
        let [host, primary] = ["b", "a"].map(|name| self.lab.host(name).unwrap());
        enter_network_of(host);
        let endpoints = services(primary).map(|address| (address, PORT)).to_vec();
        let node = Node::start(host, |settings| settings.services[0].endpoints = endpoints);
        let index = Interface::by_name(Link::Cluster.interface()).unwrap().index;
        let [own, peer] = [host, primary].map(|host| host.mac(Link::Cluster));
        node.switchboard.set_relay(index, own, peer);
        node.switchboard.set_role(1, Role::Backup);
        enter_network_of(primary);
        node
    }

    /// The tables of the node.
    pub fn table(&self) -> FlowTable {
        self.node.as_ref().expect("the daemon lives").datapath.flow_table().expect("a table")
    }

    /// The server crashes, and its node goes on: nobody else could carry the flows.
    pub fn survives(&self, server: &mut Server) {
        server.child.wait().expect("a crashed server");
        assert!(self.switchboard.crash_fenced());
        self.switchboard.clear_crash_fence();
    }

    /// From here on whatever is captured is released at once.
    pub fn release_at_once(&self) {
        self.at_once.store(true, Ordering::Relaxed);
    }

    /// The daemon dies: what it has attached and not kept goes, its filters stay.
    pub fn kill_daemon(&mut self) {
        self.daemon = None;
        self.node = None;
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
    services(lab.host("a").unwrap())
}

fn services(host: &Host) -> [IpAddr; 2] {
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

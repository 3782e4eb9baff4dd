//! What becomes of a flow whose records are read in another order than its segments came, of one
//! of which a record is missing, and of one that had only begun. Real frames make the flow in a real data path; only the way from the ring
//! to the engine is the test's. Root is needed (`make test`).

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use datapath::fixture::{Context, Program};
use datapath::{
    Datapath, FlowKey, FlowState, GateSettings, Record, RingReader, Role, Service, Settings,
};
use etherparse::{PacketBuilder, TcpHeader};
use hostnet::{Interface, Offload, Tun, now_boottime_ns};
use nix::sched::{CloneFlags, unshare};
use takeover::{Budgets, Engine, Notice, ResetReason};

const SERVICE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 80), 80);
const CLIENT: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 7), 40_000);
const PEER: [u8; 6] = [2, 0, 0, 0, 2, 2];
const IRS: u32 = 1000;
const ISS: u32 = 9000;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// Records with their payload.
type Logged = Vec<(Record, Vec<u8>)>;

/// A backup that has seen some frames.
struct Backup {
    datapath: Datapath,
    engine: Engine,
    log: RingReader<'static>,
    records: Rc<RefCell<Logged>>,
}

impl Backup {
    /// In a namespace of its own, which goes with the test's thread.
    fn new(frames: &[Vec<u8>]) -> Backup {
        unshare(CloneFlags::CLONE_NEWNET).expect("namespaces and BPF need root (make test)");
        ip("link add svc address 02:00:00:00:01:01 type veth peer name svc-far");
        ip("link set lo up");
        ip("link set svc up");
        ip("address add 192.0.2.1/24 dev svc");
        ip(&format!("address add {}/32 dev lo", SERVICE.0));
        let ifindex = Interface::by_name("svc").unwrap().index;
        let settings = Settings {
            service_ifindex: ifindex,
            cluster_ifindex: ifindex,
            own_address4: None,
            ring_bytes: 1 << 16,
            max_flows: 16,
            services: vec![Service { endpoints: vec![(SERVICE.0.into(), SERVICE.1)], held: false }],
            gate: GateSettings::default(),
        };
        let mut datapath = Datapath::load(&settings).expect("the data path loads");
        let tun = Tun::open("adopt", 1500, Offload::None).expect("a TUN device");
        datapath.attach_adoption(tun.ifindex()).unwrap();
        let switchboard = datapath.switchboard();
        switchboard.set_relay(ifindex, [2, 0, 0, 0, 1, 1], PEER);
        switchboard.set_peer_macs(PEER, PEER);
        switchboard.set_role(1, Role::Backup);
        switchboard.set_journal_alive(now_boottime_ns() + 3_600_000_000_000);
        let records = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&records);
        let log = datapath.log().unwrap();
        let log = log
            .reader(move |record, payload| sink.borrow_mut().push((*record, payload.to_vec())))
            .unwrap();
        let budgets = Budgets { total: 1 << 20, per_flow: vec![1 << 16] };
        let ringer = datapath.ringer().unwrap();
        let engine = Engine::new(datapath.flow_table().unwrap(), tun, ringer, budgets).unwrap();
        let backup = Backup { datapath, engine, log, records };
        backup.see(frames);
        backup
    }

    /// Frames come; their records stay unread.
    fn see(&self, frames: &[Vec<u8>]) {
        for frame in frames {
            self.datapath.run(Program::ServiceIn, frame, Context::default()).unwrap();
        }
        self.log.drain().unwrap();
    }

    /// That has seen a handshake and a request: two records.
    fn with_a_request() -> Backup {
        let backup = Backup::new(&[]);
        backup.see_a_request();
        backup
    }

    fn see_a_request(&self) {
        self.see(&handshake());
        self.see(&[frame(true, "A", 1, 1, REQUEST)]);
        let records = self.records.borrow();
        let kinds = records.iter().map(|(record, _)| matches!(record, Record::Opened { .. }));
        assert_eq!(kinds.collect::<Vec<bool>>(), [true, false], "{records:?}");
    }

    fn read(&mut self, index: usize) {
        let (record, payload) = &self.records.borrow()[index];
        self.engine.on_record(record, payload, Instant::now());
    }

    /// Reads whatever is in the ring and has not been read.
    fn read_all(&mut self) {
        self.log.drain().unwrap();
        for (record, payload) in self.records.take() {
            self.engine.on_record(&record, &payload, Instant::now());
        }
    }

    /// The adopted child sends, and what the data path makes of it is read.
    fn child_acknowledges(&mut self, ack: u32) {
        self.datapath.switchboard().set_lease(now_boottime_ns() + 3_600_000_000_000);
        let frame = frame(false, "A", 1, ack, b"");
        self.datapath.run(Program::NodeOut, &frame, Context::default()).unwrap();
        self.read_all();
    }

    fn state(&self) -> Option<FlowState> {
        self.datapath.flow_table().unwrap().get(&key()).map(|flow| flow.state())
    }

    fn promote(&mut self) {
        self.datapath.switchboard().set_role(2, Role::Primary { duplex: false });
        self.engine.promote(Instant::now());
    }

    /// Flows under adoption.
    fn pending(&self) -> u32 {
        self.engine.progress().pending
    }

    fn held(&self) -> u64 {
        self.engine.journal_stats().stored_bytes
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("iproute2");
    assert!(status.success(), "ip {arguments}");
}

/// A segment, its sequence numbers counted from the initial ones.
fn frame(from_client: bool, flags: &str, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let (from, to) = if from_client { (CLIENT, SERVICE) } else { (SERVICE, CLIENT) };
    let (initial, other) = if from_client { (IRS, ISS) } else { (ISS, IRS) };
    let source = if from_client { [2, 0, 0, 0, 3, 1] } else { PEER };
    let mut tcp = TcpHeader::new(from.1, to.1, initial.wrapping_add(seq), 64_000);
    tcp.syn = flags.contains('S');
    tcp.ack = flags.contains('A');
    tcp.acknowledgment_number = if tcp.ack { other.wrapping_add(ack) } else { 0 };
    let builder = PacketBuilder::ethernet2(source, [2, 0, 0, 0, 1, 1])
        .ipv4(from.0.octets(), to.0.octets(), 64)
        .tcp_header(tcp);
    let mut frame = Vec::with_capacity(builder.size(payload.len()));
    builder.write(&mut frame, payload).unwrap();
    frame
}

fn handshake() -> [Vec<u8>; 3] {
    [frame(true, "S", 0, 0, b""), frame(false, "SA", 0, 1, b""), frame(true, "A", 1, 1, b"")]
}

fn key() -> FlowKey {
    FlowKey::new(SocketAddr::from(CLIENT), SocketAddr::from(SERVICE))
}

/// Two processors log the handshake's last ACK and the request at the same time.
#[test]
fn a_request_read_before_its_handshake_is_kept() {
    let mut backup = Backup::with_a_request();
    backup.read(1);
    assert_eq!(backup.held(), REQUEST.len() as u64);
    backup.read(0);
    assert_eq!(backup.held(), REQUEST.len() as u64);
    backup.promote();
    assert_eq!((backup.pending(), backup.engine.progress().reset), (1, 0));
}

/// The role changes while the request's record is still in the ring.
#[test]
fn a_takeover_waits_for_what_is_still_in_the_ring() {
    let mut backup = Backup::with_a_request();
    backup.read(0);
    backup.promote();
    assert_eq!(backup.pending(), 0, "the request has passed this node, but is not held yet");
    backup.read(1);
    assert_eq!((backup.pending(), backup.engine.progress().reset), (1, 0));
}

/// A table that changes while it is read may not show every entry.
#[test]
fn a_flow_that_the_promotion_has_missed_is_taken_over_when_it_speaks() {
    let mut backup = Backup::new(&[]);
    backup.engine.promote(Instant::now());
    backup.see_a_request();
    backup.read(1);
    assert_eq!((backup.pending(), backup.engine.progress().reset), (1, 0));
}

/// A client that has said nothing yet speaks between the beginning of its adoption and the birth of
/// its child. The birth opens nothing then, though its segment held all that was known.
#[test]
fn a_request_that_comes_during_the_adoption_is_replayed() {
    let mut backup = Backup::new(&[]);
    backup.see(&handshake());
    backup.read(0);
    backup.records.take();
    backup.promote();
    backup.see(&[frame(true, "A", 1, 1, REQUEST)]);
    backup.engine.on_record(&Record::Born { key: key() }, b"", Instant::now());
    assert_eq!((backup.pending(), backup.state()), (1, Some(FlowState::Adopting)));
    backup.read_all();
    backup.child_acknowledges(1);
    assert_eq!((backup.pending(), backup.state()), (1, Some(FlowState::Adopting)));
    backup.child_acknowledges(1 + REQUEST.len() as u32);
    assert_eq!((backup.pending(), backup.state()), (0, Some(FlowState::Open)));
    assert_eq!((backup.engine.progress().adopted, backup.engine.progress().reset), (1, 0));
}

/// However it came to that: a stream with a missing end is not carried on (invariant 6).
#[test]
fn a_flow_whose_request_is_missing_is_reset() {
    let mut backup = Backup::with_a_request();
    backup.read(0);
    backup.promote();
    backup.engine.advance(Instant::now() + Duration::from_secs(1));
    let lost = Notice::Reset { key: key(), reason: ResetReason::NotLogged };
    assert!(backup.engine.take_notices().contains(&lost));
    assert_eq!((backup.pending(), backup.engine.progress().reset), (0, 1));
}

/// A request is lost on its way to this node, and an acknowledgement behind it is not: it tells of bytes
/// that nobody has, and that the client will send again.
#[test]
fn a_request_that_was_lost_is_waited_for() {
    let mut backup = Backup::with_a_request();
    let end = 1 + REQUEST.len() as u32;
    backup.see(&[frame(true, "A", end + 200, 1, b"")]);
    backup.read_all();
    backup.promote();
    backup.engine.advance(Instant::now() + Duration::from_secs(1));
    assert_eq!((backup.pending(), backup.engine.progress().reset), (1, 0));
    backup.child_acknowledges(end);
    assert_eq!((backup.pending(), backup.state()), (0, Some(FlowState::Open)));
}

/// The records of a connection that is over open nothing.
#[test]
fn a_straggler_of_an_ended_flow_opens_nothing() {
    let mut backup = Backup::with_a_request();
    backup.read(0);
    backup.engine.on_record(&Record::Closed { key: key() }, b"", Instant::now());
    backup.datapath.flow_table().unwrap().remove(&key());
    backup.read(1);
    assert_eq!(backup.engine.journal_stats().flows, 0);
}

/// Nobody makes a client wait for its SYN's retransmission.
#[test]
fn a_syn_that_the_dead_primary_has_not_answered_is_answered_here() {
    let mut backup = Backup::new(&[frame(true, "S", 0, 0, b"")]);
    let _listener = TcpListener::bind(SocketAddr::from(SERVICE)).unwrap();
    assert_eq!(half_open(), 0);
    backup.promote();
    assert_eq!(half_open(), 1);
    assert!(backup.datapath.flow_table().unwrap().unanswered(0, Duration::MAX).is_empty());
}

/// The answer to an earlier SYN has crossed the client's repetition: it looks unanswered, but the
/// client has spoken since. Another answer would be another connection's.
#[test]
fn a_syn_whose_client_has_spoken_since_is_not_answered_here() {
    let syn = frame(true, "S", 0, 0, b"");
    let mut backup = Backup::new(&[syn, frame(true, "A", 1, 1, b"")]);
    let _listener = TcpListener::bind(SocketAddr::from(SERVICE)).unwrap();
    let table = backup.datapath.flow_table().unwrap();
    assert_eq!(table.strays().len(), 1);
    backup.promote();
    // Who is answered is forgotten.
    assert_eq!(table.unanswered(0, Duration::MAX).len(), 1);
    assert_eq!(half_open(), 0);
}

/// Connections in SYN-RECEIVED.
fn half_open() -> usize {
    let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    sockets.lines().filter(|line| line.split_whitespace().nth(3) == Some("03")).count()
}

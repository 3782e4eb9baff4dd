//! Bad cables and trips, measured. Every test runs a lab of its own.

mod common;

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use common::{eventually, measure};
use lab::{
    CaptureOptions, Chance, Cut, Error, FaultCounts, Faults, FrameFilter, IpVersion, Lab, Link,
    Rate, Transport, Trip, Way, WayStatus,
};
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};

const PATIENCE: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);

fn up() -> Lab {
    Lab::builder().up().unwrap_or_else(|e| panic!("{e}"))
}

/// Numbered datagrams from the client to host a.
struct Datagrams {
    near: UdpSocket,
    far: UdpSocket,
}

impl Datagrams {
    /// Neighbours know each other when this returns and the hosts' kernels have nothing more
    /// to say on their own: no other frames disturb the dice.
    fn new(lab: &Lab, v6: bool) -> Datagrams {
        let (client, a) = (lab.host("client").unwrap(), lab.host("a").unwrap());
        let ips: [IpAddr; 2] = if v6 {
            [client.ipv6(Link::Service).into(), a.ipv6(Link::Service).into()]
        } else {
            [client.ipv4(Link::Service).into(), a.ipv4(Link::Service).into()]
        };
        let bind = |ip| move || UdpSocket::bind(SocketAddr::new(ip, 0)).unwrap();
        let near = client.in_netns(bind(ips[0])).unwrap();
        let far = a.in_netns(bind(ips[1])).unwrap();
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        setsockopt(&far, RcvBufForce, &(64 << 20)).unwrap();
        far.set_nonblocking(true).unwrap();
        let datagrams = Datagrams { near, far };
        for _ in 0..2 {
            datagrams.send(u32::MAX);
            eventually(PATIENCE, "a first datagram arrives", || {
                datagrams.receive() == Some(u32::MAX)
            });
            datagrams.far.send(b"back").unwrap();
            assert_eq!(datagrams.near.recv(&mut [0; 8]).unwrap(), 4);
        }
        quiet(lab);
        datagrams
    }

    fn send(&self, n: u32) {
        self.near.send(&n.to_be_bytes()).unwrap();
    }

    fn receive(&self) -> Option<u32> {
        let mut b = [0; 4];
        match self.far.recv(&mut b) {
            Ok(len) => {
                assert_eq!(len, 4);
                Some(u32::from_be_bytes(b))
            }
            Err(e) => {
                assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock, "{e}");
                None
            }
        }
    }

    /// Sends 0 to `count`, and receives until `expected` datagrams have come, which depends
    /// on what the cable did to them.
    fn exchange(&self, count: u32, expected: impl Fn() -> u64) -> Vec<u32> {
        (0..count).for_each(|n| self.send(n));
        let mut got = Vec::new();
        eventually(PATIENCE, "all datagrams that are not lost arrive", || {
            got.extend(std::iter::from_fn(|| self.receive()));
            got.len() as u64 >= expected()
        });
        got
    }
}

/// Puts off what the kernels of the hosts ask their neighbours now and then, and waits until
/// no interface has seen a frame for a while.
fn quiet(lab: &Lab) {
    let frames = || {
        let see = |host: &lab::Host| {
            let read = || {
                for version in ["ipv4", "ipv6"] {
                    let file = "neigh/svc0/delay_first_probe_time";
                    std::fs::write(format!("/proc/sys/net/{version}/{file}"), "600").unwrap();
                }
                std::fs::read_to_string("/proc/thread-self/net/dev").unwrap()
            };
            host.in_netns(read).unwrap()
        };
        lab.hosts().iter().filter(|h| h.is_up()).map(see).collect::<Vec<_>>()
    };
    let (mut last, mut since) = (frames(), Instant::now());
    eventually(PATIENCE, "the hosts are quiet", || {
        let now = frames();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > 200 * MS
    });
}

fn way(lab: &Lab, link: &str, way: Way) -> WayStatus {
    let status = lab.links().into_iter().find(|l| l.name == link).unwrap();
    match way {
        Way::FromHost => status.from_host,
        Way::ToHost => status.to_host,
    }
}

fn counts(lab: &Lab, link: &str, of: Way) -> FaultCounts {
    way(lab, link, of).counts
}

/// Whether `hits` of `n` is within five standard deviations of what `p` promises.
fn is_binomial(hits: u64, n: u32, p: f64) -> bool {
    let n = f64::from(n);
    (hits as f64 - n * p).abs() < 5.0 * (n * p * (1.0 - p)).sqrt()
}

#[test]
fn loss_is_as_frequent_as_asked_and_repeats_with_its_seed() {
    let lab = up();
    let datagrams = Datagrams::new(&lab, false);
    let run = |seed| {
        let faults = Faults { loss: Chance::percent(10), seed, ..Faults::NONE };
        lab.set_faults("client.svc", &[Way::FromHost], &faults).unwrap();
        let before = counts(&lab, "client.svc", Way::FromHost).lost;
        let lost = || counts(&lab, "client.svc", Way::FromHost).lost - before;
        let got = datagrams.exchange(5000, || 5000 - lost());
        assert!(got.is_sorted(), "loss alone does not reorder");
        assert!(is_binomial(lost(), 5000, 0.1), "{} of 5000", lost());
        assert_eq!(got.len() as u64 + lost(), 5000);
        got
    };
    let first = run(1);
    assert!(first == run(1), "the same seed must lose the same frames");
    assert!(first != run(2), "another seed must lose others");
    // The other way, and other cables, are perfect.
    for (link, of) in [("client.svc", Way::ToHost), ("a.svc", Way::ToHost)] {
        assert_eq!(way(&lab, link, of), WayStatus::default());
    }
    lab.heal("client.svc").unwrap();
    assert!(way(&lab, "client.svc", Way::FromHost).faults.is_none());
    assert_eq!(datagrams.exchange(1000, || 1000).len(), 1000, "a healed cable loses nothing");
}

#[test]
fn duplicates_arrive_and_are_counted_both_ways_of_the_cable() {
    let lab = up();
    let datagrams = Datagrams::new(&lab, true);
    for (link, of) in [("client.svc", Way::FromHost), ("a.svc", Way::ToHost)] {
        let faults = Faults { duplicate: Chance::percent(20), seed: 3, ..Faults::NONE };
        lab.set_faults(link, &[of], &faults).unwrap();
        let doubled = || counts(&lab, link, of).duplicated;
        let got = datagrams.exchange(2000, || 2000 + doubled());
        assert_eq!(got.len() as u64, 2000 + doubled());
        assert!(is_binomial(doubled(), 2000, 0.2), "{} of 2000", doubled());
        assert_eq!(got.iter().collect::<BTreeSet<_>>().len(), 2000, "nothing is lost");
        lab.clear_faults(link).unwrap();
    }
}

#[test]
fn reordered_frames_are_overtaken_and_none_is_lost() {
    let lab = up();
    let datagrams = Datagrams::new(&lab, false);
    for (link, of) in [("client.svc", Way::FromHost), ("a.svc", Way::ToHost)] {
        let faults = Faults { reorder: Chance::percent(10), seed: 5, ..Faults::NONE };
        lab.set_faults(link, &[of], &faults).unwrap();
        let run = || datagrams.exchange(2000, || 2000);
        let got = run();
        assert_eq!(got.iter().collect::<BTreeSet<_>>().len(), 2000, "nothing is lost or doubled");
        let mut newest = 0;
        let late = got.iter().filter(|&&n| {
            newest = newest.max(n);
            n < newest
        });
        let late = late.count() as u64;
        let counted = counts(&lab, link, of);
        assert_eq!((late, counted.overflowed), (counted.reordered, 0));
        assert!(is_binomial(late, 2000, 0.1), "{late} of 2000");
        lab.set_faults(link, &[of], &faults).unwrap();
        assert!(got == run(), "the same seed must give the same order");
        lab.clear_faults(link).unwrap();
        assert!(datagrams.exchange(500, || 500).is_sorted());
    }
}

#[test]
fn delay_and_jitter_stay_within_bounds_and_keep_the_order() {
    let lab = up();
    let datagrams = Datagrams::new(&lab, false);
    let faults = Faults { delay: 20 * MS, jitter: 5 * MS, seed: 1, ..Faults::NONE };
    lab.set_faults("a.svc", &[Way::ToHost], &faults).unwrap();
    let mut total = 0;
    let mut median = || {
        // One every millisecond, so that each has a delay of its own.
        let mut sent = Vec::new();
        let mut took = Vec::new();
        let start = Instant::now();
        eventually(PATIENCE, "all arrive", || {
            if sent.len() < 200 && start.elapsed() >= sent.len() as u32 * MS {
                sent.push(Instant::now());
                datagrams.send(sent.len() as u32 - 1);
            }
            while let Some(n) = datagrams.receive() {
                assert_eq!(n as usize, took.len(), "the order must stay");
                took.push(sent[n as usize].elapsed());
            }
            took.len() == 200
        });
        took.sort();
        println!("delay: least {:?}, median {:?}, most {:?}", took[0], took[100], took[199]);
        assert!(took[0] >= 15 * MS, "{:?}", took[0]);
        total += 200;
        took[100].as_secs_f64() * 1e3
    };
    measure("median delay in ms", 18.0..30.0, &mut median);
    assert_eq!(counts(&lab, "a.svc", Way::ToHost).delayed, total);

    // Healing lets go what is held, and holds nothing any more.
    let faults = Faults { delay: Duration::from_secs(600), ..Faults::NONE };
    lab.set_faults("a.svc", &[Way::ToHost], &faults).unwrap();
    (0..3000).for_each(|n| datagrams.send(n));
    eventually(PATIENCE, "they are held", || {
        counts(&lab, "a.svc", Way::ToHost).delayed == total + 3000
    });
    assert_eq!(datagrams.receive(), None);
    lab.heal("a.svc").unwrap();
    assert_eq!(datagrams.exchange(50, || 3050).len(), 3050);
    assert_eq!(counts(&lab, "a.svc", Way::ToHost).overflowed, 0);
}

/// `Tcp: InCsumErrors` and the like of a host.
fn snmp(lab: &Lab, host: &str, file: &str, key: &str) -> u64 {
    let out = lab.host(host).unwrap().command("cat").arg(file).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    if file.ends_with('6') {
        let line = text.lines().find(|l| l.split_whitespace().next() == Some(key));
        return line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    }
    let (table, column) = key.split_once(' ').unwrap();
    let mut lines = text.lines().filter(|l| l.starts_with(&format!("{table}: ")));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|n| n == column).unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}

#[test]
fn a_corrupted_frame_never_reaches_a_socket() {
    let lab = up();
    for v6 in [false, true] {
        let datagrams = Datagrams::new(&lab, v6);
        let faults = Faults { corrupt: Chance::percent(25), seed: 9, ..Faults::NONE };
        lab.set_faults("client.svc", &[Way::FromHost], &faults).unwrap();
        let before = counts(&lab, "client.svc", Way::FromHost).corrupted;
        let corrupted = || counts(&lab, "client.svc", Way::FromHost).corrupted - before;
        let got = datagrams.exchange(2000, || 2000 - corrupted());
        assert_eq!(got.len() as u64 + corrupted(), 2000);
        assert!(got.is_sorted() && got.iter().all(|n| *n < 2000), "wrong payload was delivered");
        assert!(is_binomial(corrupted(), 2000, 0.25), "{} of 2000", corrupted());
        // It did arrive, and it was a checksum that stopped it: of the payload here, of the
        // IPv4 header or by an address that is nobody's else.
        let errors = || match v6 {
            false => {
                snmp(&lab, "a", "/proc/net/snmp", "Udp InCsumErrors")
                    + snmp(&lab, "a", "/proc/net/snmp", "Ip InHdrErrors")
            }
            true => snmp(&lab, "a", "/proc/net/snmp6", "Udp6InCsumErrors"),
        };
        eventually(PATIENCE, "the receiver counts bad checksums", || errors() * 10 > corrupted());
        lab.clear_faults("client.svc").unwrap();
    }
}

/// Sends `len` bytes of a pattern from host a to the client over TCP and checks every one.
fn transfer(lab: &Lab, len: usize) -> Duration {
    let (client, a) = (lab.host("client").unwrap(), lab.host("a").unwrap());
    let ip = a.ipv4(Link::Service);
    let listener = a.in_netns(|| TcpListener::bind((ip, 0)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let mut near = client.in_netns(|| TcpStream::connect(to).unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    near.set_read_timeout(Some(PATIENCE)).unwrap();
    let pattern: Vec<u8> = (0..len).map(|i| ((i as u64 * 0x9e37_79b9) >> 13) as u8).collect();
    let mut got = vec![0; len];
    let start = Instant::now();
    std::thread::scope(|s| {
        s.spawn(|| far.write_all(&pattern).unwrap());
        near.read_exact(&mut got).unwrap();
    });
    assert!(got == pattern, "the stream differs");
    start.elapsed()
}

/// Super-segments with promised checksums take every detour and stay whole or are caught.
#[test]
fn tcp_survives_all_faults_at_once_on_a_shaped_link() {
    let lab = Lab::builder().rate(Link::Service, Rate::mbit(400)).up().unwrap();
    let faults = Faults {
        loss: Chance::percent(1),
        duplicate: Chance::percent(1),
        reorder: Chance::percent(1),
        corrupt: Chance::percent(1),
        delay: MS,
        jitter: MS / 2,
        seed: 4,
    };
    lab.set_faults("service", &Way::BOTH, &faults).unwrap();
    let from = || counts(&lab, "a.svc", Way::FromHost);
    let to = || counts(&lab, "client.svc", Way::ToHost);
    eventually(PATIENCE, "some frames meet every fate", || {
        transfer(&lab, 4 << 20);
        let errors = snmp(&lab, "client", "/proc/net/snmp", "Tcp InCsumErrors");
        [from(), to()].iter().all(|c| {
            c.delayed > 0 && c.lost > 0 && c.corrupted > 0 && c.duplicated > 0 && c.reordered > 0
        }) && errors > 0
    });
    println!("{:?}\n{:?}", from(), to());
    assert_eq!(from().overflowed + to().overflowed, 0);

    // Delay alone does not cost the rate.
    lab.set_faults("service", &Way::BOTH, &Faults { delay: MS, ..Faults::NONE }).unwrap();
    transfer(&lab, 4 << 20);
    measure("Mbit/s behind 4 ms of round trip", 200.0..440.0, || {
        (16 << 20) as f64 * 8.0 / 1e6 / transfer(&lab, 16 << 20).as_secs_f64()
    });
}

/// A frame is seen once where it enters its cable, whatever detours it takes.
#[test]
fn captures_show_a_delayed_frame_once() {
    let lab = up();
    let datagrams = Datagrams::new(&lab, false);
    let faults = Faults { delay: 2 * MS, ..Faults::NONE };
    lab.set_faults("client.svc", &[Way::FromHost], &faults).unwrap();
    let capture = |point| lab.capture(point, CaptureOptions::whole()).unwrap();
    let (cable, switch) = (capture("client.svc"), capture("svc"));
    datagrams.exchange(100, || 100);
    for capture in [cable, switch] {
        let path = capture.path().to_owned();
        capture.stop().unwrap();
        let frames = lab::read_pcap(&path).unwrap();
        let mac = lab.host("client").unwrap().mac(Link::Service);
        let ours = frames.iter().filter(|f| f.bytes[6..12] == mac && f.bytes[23] == 17);
        assert_eq!(ours.count(), 100, "{}", path.display());
    }
}

/// What a dying host had on its way does not come out when it is up again.
#[test]
fn held_frames_die_with_their_host() {
    let lab = up();
    let datagrams = Datagrams::new(&lab, false);
    let faults = Faults { delay: Duration::from_secs(600), ..Faults::NONE };
    lab.set_faults("client.svc", &[Way::FromHost], &faults).unwrap();
    (0..10).for_each(|n| datagrams.send(n));
    eventually(PATIENCE, "they are held", || {
        counts(&lab, "client.svc", Way::FromHost).delayed == 10
    });
    lab.kill_host("client").unwrap();
    lab.boot("client").unwrap();
    assert_eq!(way(&lab, "client.svc", Way::FromHost).faults, faults, "the cable is the same");
    lab.heal("client.svc").unwrap();
    let fresh = Datagrams::new(&lab, false);
    assert_eq!(datagrams.receive(), None, "a frame of the dead host came out");
    // And what is held when a cable is cut is lost when it leaves the delay.
    lab.set_faults("client.svc", &[Way::FromHost], &faults).unwrap();
    let before = counts(&lab, "client.svc", Way::FromHost).delayed;
    (0..10).for_each(|n| fresh.send(n));
    eventually(PATIENCE, "they are held", || {
        counts(&lab, "client.svc", Way::FromHost).delayed == before + 10
    });
    let dropped =
        || lab.links().into_iter().find(|l| l.name == "client.svc").unwrap().dropped_from_host;
    lab.cut("client.svc", Cut::default()).unwrap();
    let before = dropped();
    lab.clear_faults("client.svc").unwrap();
    assert_eq!(dropped() - before, 10);
    lab.heal("client.svc").unwrap();
    assert_eq!(fresh.exchange(1, || 1), [0]);
}

#[test]
fn a_trip_cuts_at_exactly_the_nth_frame() {
    for swallow in [false, true] {
        let lab = up();
        let datagrams = Datagrams::new(&lab, false);
        let mut sleeper = lab.host("b").unwrap().command("sleep").arg("600").spawn().unwrap();
        let port = datagrams.far.local_addr().unwrap().port();
        let frame = FrameFilter {
            version: Some(IpVersion::V4),
            transport: Some(Transport::Udp),
            destination: Some(port),
            payload: Some(true),
            ..FrameFilter::default()
        };
        let trip = Trip {
            link: "client.svc".into(),
            way: Way::FromHost,
            frame,
            nth: 137,
            swallow,
            victims: vec!["client".into(), "b".into()],
            kill: true,
        };
        let armed = lab.arm(&trip).unwrap();
        assert!(way(&lab, "client.svc", Way::FromHost).armed);
        assert_eq!(armed.wait(Duration::ZERO).unwrap(), None);
        let before = Instant::now();
        // Without a pause: whatever follows the frame must not pass.
        let passed = if swallow { 136 } else { 137 };
        let got = datagrams.exchange(1000, || passed);
        let tripped = armed.wait(PATIENCE).unwrap().expect("it trips");
        assert!(got.into_iter().eq(0..passed as u32), "not the first {passed}");
        assert_eq!(tripped.killed, ["client", "b"]);
        assert!(tripped.at >= before && tripped.at.elapsed() < PATIENCE);
        assert!(!lab.host("client").unwrap().is_up() && !lab.host("b").unwrap().is_up());
        assert!(lab.host("a").unwrap().is_up());
        assert!(sleeper.wait().is_ok());
        for link in lab.links() {
            let dead = !link.name.starts_with("a.");
            assert_eq!((link.cut_from_host, link.cut_to_host), (dead, dead), "{}", link.name);
        }
        assert_eq!(counts(&lab, "client.svc", Way::FromHost).swallowed, u64::from(swallow));
        assert!(!way(&lab, "client.svc", Way::FromHost).armed);
        // A trip is over when it has tripped.
        lab.boot("client").unwrap();
        let fresh = Datagrams::new(&lab, false);
        assert_eq!(fresh.exchange(300, || 300).len(), 300);
    }
}

/// A trip that is armed over another takes its place, whatever the other one just did.
#[test]
fn a_trip_replaces_the_one_before() {
    let lab = up();
    let datagrams = Datagrams::new(&lab, false);
    let trip = |nth, victims: &[&str]| Trip {
        link: "client.svc".into(),
        way: Way::FromHost,
        frame: FrameFilter { transport: Some(Transport::Udp), ..FrameFilter::default() },
        nth,
        swallow: false,
        victims: victims.iter().map(|v| (*v).to_owned()).collect(),
        kill: true,
    };
    for round in 0..20 {
        let first = lab.arm(&trip(1, &[])).unwrap();
        datagrams.send(round);
        let second = lab.arm(&trip(3, &[])).unwrap();
        datagrams.send(round);
        datagrams.send(round);
        assert_eq!(second.wait(20 * MS).unwrap(), None, "two of three frames have passed");
        datagrams.send(round);
        let tripped = second.wait(PATIENCE).unwrap().expect("the third frame trips it");
        if let Some(earlier) = first.wait(Duration::ZERO).unwrap() {
            assert!(earlier.at < tripped.at);
        }
    }
    lab.arm(&trip(1, &["b"])).unwrap();
    let last = lab.arm(&trip(1, &["a"])).unwrap();
    datagrams.send(0);
    assert_eq!(last.wait(PATIENCE).unwrap().unwrap().killed, ["a"]);
    assert!(lab.host("b").unwrap().is_up());
}

/// The points of a TCP connection that takeovers are aimed at.
#[test]
fn trips_tell_segments_apart() {
    let lab = up();
    for v6 in [false, true] {
        let (client, a) = (lab.host("client").unwrap(), lab.host("a").unwrap());
        let ip: IpAddr =
            if v6 { a.ipv6(Link::Service).into() } else { a.ipv4(Link::Service).into() };
        let version = Some(if v6 { IpVersion::V6 } else { IpVersion::V4 });
        let tripped = |name: &str, way: Way, nth, frame: FrameFilter, act: &dyn Fn(SocketAddr)| {
            let listener =
                a.in_netns(|| TcpListener::bind(SocketAddr::new(ip, 0)).unwrap()).unwrap();
            let to = listener.local_addr().unwrap();
            let (source, destination) = match way {
                Way::ToHost => (None, Some(to.port())),
                Way::FromHost => (Some(to.port()), None),
            };
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut all = Vec::new();
                let _ = stream.read_to_end(&mut all); // a cut ends it with an error
            });
            let trip = Trip {
                link: "a.svc".into(),
                way,
                frame: FrameFilter { version, source, destination, ..frame },
                nth,
                swallow: true,
                victims: Vec::new(),
                kill: false,
            };
            let armed = lab.arm(&trip).unwrap();
            act(to);
            assert!(armed.wait(PATIENCE).unwrap().is_some(), "{name} v6 {v6}");
            server.join().unwrap();
        };
        let connect = |to| client.in_netns(|| TcpStream::connect(to).unwrap()).unwrap();
        let talk = |to| {
            let mut stream = connect(to);
            stream.write_all(b"request").unwrap();
        };
        let syn = FrameFilter {
            flags: FrameFilter::SYN,
            without: FrameFilter::ACK,
            ..FrameFilter::default()
        };
        tripped("SYN", Way::ToHost, 1, syn, &talk);
        let syn_ack =
            FrameFilter { flags: FrameFilter::SYN | FrameFilter::ACK, ..FrameFilter::default() };
        tripped("SYN-ACK", Way::FromHost, 1, syn_ack, &talk);
        let data = FrameFilter { payload: Some(true), ..FrameFilter::default() };
        tripped("data", Way::ToHost, 1, data, &talk);
        let fin = FrameFilter { flags: FrameFilter::FIN, ..FrameFilter::default() };
        tripped("FIN", Way::ToHost, 1, fin, &talk);
        let bare = FrameFilter {
            payload: Some(false),
            without: FrameFilter::SYN | FrameFilter::FIN | FrameFilter::RST,
            ..FrameFilter::default()
        };
        tripped("the acknowledgement of the data", Way::FromHost, 1, bare, &talk);
    }
    // The other IP version, or the other port, does not count.
    let datagrams = Datagrams::new(&lab, false);
    let never = FrameFilter { version: Some(IpVersion::V6), ..FrameFilter::default() };
    let source = FrameFilter { source: Some(1), ..FrameFilter::default() };
    for frame in [never, source] {
        let trip = Trip {
            link: "client.svc".into(),
            way: Way::FromHost,
            frame,
            nth: 1,
            swallow: true,
            victims: vec!["client".into()],
            kill: true,
        };
        let armed = lab.arm(&trip).unwrap();
        assert_eq!(datagrams.exchange(100, || 100).len(), 100);
        assert_eq!(armed.wait(Duration::ZERO).unwrap(), None);
        lab.disarm("client.svc").unwrap();
    }
}

#[test]
fn impossible_faults_and_trips_are_refused() {
    let lab = up();
    let trip = Trip {
        link: "service".into(),
        way: Way::ToHost,
        frame: FrameFilter::default(),
        nth: 1,
        swallow: false,
        victims: Vec::new(),
        kill: false,
    };
    assert!(matches!(lab.arm(&trip), Err(Error::NoLink { .. })), "a trip is on one cable");
    let of_a = |victims, nth| Trip { link: "a.svc".into(), victims, nth, ..trip.clone() };
    assert!(matches!(lab.arm(&of_a(vec!["c".into()], 1)), Err(Error::NoHost { .. })));
    assert!(lab.arm(&of_a(Vec::new(), 0)).unwrap_err().to_string().contains("number 1"));
    let error = lab.set_faults("d.svc", &Way::BOTH, &Faults::NONE).unwrap_err().to_string();
    assert!(error.contains("a.svc"), "{error}");
}

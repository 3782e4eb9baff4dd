//! What the gate costs: nginx on one port held, with a daemon that releases at once, and on another
//! port left alone; by turns. Needs root and `make deps-run`.
//!
//!     cargo run --release -p gate --example measure

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapath::{Counter, Datapath, GateSettings, Output, Role, Service, Settings};
use gate::Orders;
use hostnet::{Interface, Offload, Tun, now_boottime_ns};
use lab::{Host, Lab, Link};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

const HELD: u16 = 8080;
const BARE: u16 = 8081;
const ROUND: Duration = Duration::from_secs(2);

fn main() {
    let rounds = std::env::args().nth(1).map_or(5, |word| word.parse().expect("a number"));
    let lab = Lab::builder().up().expect("a lab");
    let host = lab.host("a").expect("the server's host");
    let address = IpAddr::from(host.ipv4(Link::Service));
    let mut nginx = serve(&lab, address);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = lab.host("client").expect("the client's host");
        let (ready, loaded) = std::sync::mpsc::channel();
        let stop = &stop;
        scope.spawn(move || release_at_once(host, client, stop, &ready));
        loaded.recv().expect("the gate loads");
        for (name, length, clients) in [
            ("1 KiB", 1 << 10, 1),
            ("1 KiB", 1 << 10, 50),
            ("50 KiB", 50 << 10, 1),
            ("16 MiB", 16 << 20, 1),
        ] {
            let mut best: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
            for _ in 0..rounds {
                for (port, results) in [BARE, HELD].into_iter().zip(&mut best) {
                    results.push(load(&lab, (address, port).into(), length, clients));
                }
            }
            let [bare, held] = best.map(median);
            println!(
                "{name}, {clients} clients: p50 {:.1} / {:.1} us ({:.2}), {:.0} / {:.0} per s ({:.2}), \
                 cpu {:.1} / {:.1} us per request ({:.2})",
                bare.p50_us,
                held.p50_us,
                held.p50_us / bare.p50_us,
                bare.per_s,
                held.per_s,
                held.per_s / bare.per_s,
                bare.cpu_us,
                held.cpu_us,
                held.cpu_us / bare.cpu_us,
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
    nginx.kill().expect("nginx runs");
    nginx.wait().expect("nginx ends");
}

/// The daemon of this measurement: every byte is stable as soon as it is known. The client stands
/// where the backup would, so that its connections are those of a duplex primary.
fn release_at_once(
    host: &Host,
    client: &Host,
    stop: &AtomicBool,
    ready: &std::sync::mpsc::Sender<()>,
) {
    own_bpffs();
    let namespace = format!("/proc/{}/ns/net", host.init_pid().expect("it runs"));
    let namespace = fs::File::open(namespace).expect("the host's namespace");
    setns(namespace, CloneFlags::CLONE_NEWNET).expect("only this thread moves");
    let index = |link: Link| Interface::by_name(link.interface()).expect("a link").index;
    let service = index(Link::Service);
    let mut datapath = Datapath::load(&Settings {
        service_ifindex: service,
        cluster_ifindex: index(Link::Cluster),
        own_address4: Some(host.ipv4(Link::Service)),
        ring_bytes: 1 << 20,
        max_flows: 1024,
        services: vec![Service {
            endpoints: vec![(host.ipv4(Link::Service).into(), HELD)],
            held: true,
        }],
        gate: GateSettings::default(),
    })
    .unwrap_or_else(|error| panic!("{error}"));
    datapath.attach().unwrap_or_else(|error| panic!("{error}"));
    let tun = Tun::open("adopt", 65_535, Offload::None).expect("a TUN device");
    datapath.attach_adoption(tun.ifindex()).unwrap_or_else(|error| panic!("{error}"));
    let switchboard = datapath.switchboard();
    switchboard.set_holding(true);
    switchboard.set_lease(now_boottime_ns() + 3_600_000_000_000);
    let client = client.mac(Link::Service);
    switchboard.set_relay(service, host.mac(Link::Service), client);
    switchboard.set_peer_macs(client, client);
    switchboard.set_role(1, Role::Primary { duplex: true });
    let orders = Orders::new(tun);
    let ringer = datapath.ringer().expect("a ringer");
    let source = datapath.output().expect("the ring");
    // One order for all that a flow has written since the last look.
    let edges = RefCell::new(HashMap::new());
    let reader = source.reader(|output, payload| {
        let (flow, edge) = match *output {
            Output::Bytes { flow, seq, .. } => (flow, seq.wrapping_add(payload.len() as u32)),
            Output::Ended { flow, seq } | Output::Crashed { flow, seq } => {
                (flow, seq.wrapping_add(1))
            }
            Output::Unread { .. } => {
                ringer.iter().for_each(|ringer| ringer.ring().expect("the kernel rings"));
                return;
            }
            _ => return,
        };
        edges.borrow_mut().insert(flow, edge);
    });
    let reader = reader.expect("a reader");
    ready.send(()).expect("somebody waits");
    let mut wanted = libc::pollfd { fd: reader.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    while !stop.load(Ordering::Relaxed) {
        // SAFETY: one valid pollfd, exclusively borrowed for the call.
        unsafe { libc::poll(&mut wanted, 1, 50) };
        reader.drain().expect("records");
        for (flow, edge) in edges.borrow_mut().drain() {
            orders.release(&flow, edge).expect("an order");
        }
    }
    let counters = datapath.counters().expect("counters");
    let shown = Counter::ALL.iter().map(|&which| (which.name(), counters.get(which)));
    let shown =
        shown.filter(|&(_, count)| count > 0).map(|(name, count)| format!("{name} {count}"));
    println!("{}", shown.collect::<Vec<_>>().join(", "));
}

/// A bpffs that goes with the calling thread.
fn own_bpffs() {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).expect("root");
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private mounts");
    mount(Some("bpf"), "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).expect("a bpffs");
}

fn serve(lab: &Lab, address: IpAddr) -> lab::Child {
    let dir = lab.dir();
    for length in [1 << 10, 50 << 10, 16 << 20] {
        fs::write(dir.join(length.to_string()), vec![b'x'; length]).expect("a file");
    }
    let temp: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {}/{what};", dir.display()))
        .concat();
    let config = format!(
        "daemon off; master_process off; pid {dir}/nginx.pid; error_log {dir}/nginx.log;\n\
         events {{}}\n\
         http {{ access_log off; sendfile on; keepalive_requests 1000000000; {temp}\n\
         server {{ listen {address}:{HELD}; listen {address}:{BARE}; root {dir}; }} }}\n",
        dir = dir.display(),
    );
    fs::write(dir.join("nginx.conf"), config).expect("the configuration");
    let unpacked =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers/usr/sbin/nginx");
    let program = if unpacked.exists() { unpacked } else { "nginx".into() };
    let mut command = lab.host("a").expect("the server's host").command(program);
    command.arg("-p").arg(dir).arg("-c").arg(dir.join("nginx.conf"));
    let child = command.spawn().expect("nginx: make deps-run");
    let client = lab.host("client").expect("the client's host");
    let deadline = Instant::now() + Duration::from_secs(10);
    while client.in_netns(|| TcpStream::connect((address, BARE))).expect("it runs").is_err() {
        assert!(Instant::now() < deadline, "nginx listens");
        std::thread::yield_now();
    }
    child
}

#[derive(Clone, Copy)]
struct Round {
    p50_us: f64,
    per_s: f64,
    cpu_us: f64,
}

fn median(mut rounds: Vec<Round>) -> Round {
    let mut middle = |of: fn(&Round) -> f64| {
        rounds.sort_by(|a, b| of(a).total_cmp(&of(b)));
        of(&rounds[rounds.len() / 2])
    };
    Round { p50_us: middle(|r| r.p50_us), per_s: middle(|r| r.per_s), cpu_us: middle(|r| r.cpu_us) }
}

/// Requests one after the other on each of `clients` connections, for [`ROUND`].
fn load(lab: &Lab, to: SocketAddr, length: usize, clients: usize) -> Round {
    let host = lab.host("client").expect("the client's host");
    let connect = || {
        let stream = TcpStream::connect(to).expect("nginx accepts");
        stream.set_nodelay(true).expect("a TCP option");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
        stream
    };
    let streams: Vec<_> =
        host.in_netns(|| (0..clients).map(|_| connect()).collect()).expect("it runs");
    let (busy, began) = (busy(), Instant::now());
    let mut times: Vec<Duration> = std::thread::scope(|scope| {
        let running: Vec<_> =
            streams.into_iter().map(|stream| scope.spawn(move || ask(stream, length))).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    });
    let (elapsed, busy) = (began.elapsed(), self::busy() - busy);
    times.sort();
    let count = times.len() as f64;
    Round {
        p50_us: times[times.len() / 2].as_secs_f64() * 1e6,
        per_s: count / elapsed.as_secs_f64(),
        cpu_us: busy.as_secs_f64() * 1e6 / count,
    }
}

fn ask(mut stream: TcpStream, length: usize) -> Vec<Duration> {
    let began = Instant::now();
    let request = format!("GET /{length} HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut buffer = vec![0; 1 << 18];
    let mut times = Vec::new();
    while began.elapsed() < ROUND {
        let asked = Instant::now();
        stream.write_all(request.as_bytes()).expect("the request leaves");
        let mut left = None;
        while left != Some(0) {
            let read = stream.read(&mut buffer).expect("the reply arrives");
            assert_ne!(read, 0, "the reply is whole");
            left = Some(match left {
                None => {
                    let head = buffer[..read].windows(4).position(|window| window == b"\r\n\r\n");
                    head.expect("a head") + 4 + length - read
                }
                Some(left) => left - read,
            });
        }
        times.push(asked.elapsed());
    }
    times
}

/// Processor time of the whole machine that was not idle.
fn busy() -> Duration {
    let stat = fs::read_to_string("/proc/stat").expect("procfs");
    let fields: Vec<u64> = stat
        .lines()
        .next()
        .expect("a line")
        .split_whitespace()
        .skip(1)
        .map(|w| w.parse().expect("ticks"))
        .collect();
    // user, nice, system, idle, iowait, irq, softirq; a tick is 10 ms.
    Duration::from_millis(10 * (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]))
}

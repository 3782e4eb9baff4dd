//! Labs as their users meet them. Every test runs a lab of its own, several at a time.

mod common;

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::unix::{fs::OpenOptionsExt, process::ExitStatusExt},
    process::Stdio,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use common::{eventually, measure};
use lab::{Capture, CaptureOptions, Cut, Error, Host, Kill, Lab, Link, Rate, Way};

const PATIENCE: Duration = Duration::from_secs(5);

fn up() -> Lab {
    Lab::builder().up().unwrap_or_else(|e| panic!("{e}"))
}

/// Whether a datagram gets from one host to another and its answer back. `from` sends until
/// it is answered or `patience` runs out, so one lost neighbour lookup does not decide.
fn reaches(from: &Host, to: &Host, address: IpAddr, patience: Duration) -> bool {
    let any = |ip: &IpAddr| if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let far = to.in_netns(|| UdpSocket::bind(SocketAddr::new(address, 0)).unwrap()).unwrap();
    let near = from.in_netns(|| UdpSocket::bind(any(&address)).unwrap()).unwrap();
    let deadline = Instant::now() + patience;
    far.set_nonblocking(true).unwrap();
    near.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    near.connect(far.local_addr().unwrap()).unwrap();
    let mut b = [0; 8];
    loop {
        let _ = near.send(b"hello"); // an earlier ICMP error may be reported here
        while let Ok((n, peer)) = far.recv_from(&mut b) {
            let _ = far.send_to(&b[..n], peer);
        }
        if near.recv(&mut b).is_ok() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
    }
}

fn reachable(lab: &Lab, from: &str, to: &str, link: Link) -> bool {
    let (from, to) = (lab.host(from).unwrap(), lab.host(to).unwrap());
    reaches(from, to, to.ipv4(link).into(), PATIENCE)
}

fn silent(lab: &Lab, from: &str, to: &str, link: Link) -> bool {
    let (from, to) = (lab.host(from).unwrap(), lab.host(to).unwrap());
    !reaches(from, to, to.ipv4(link).into(), Duration::from_millis(100))
}

#[test]
fn every_host_reaches_every_other_over_v4_and_v6() {
    let lab = up();
    for (from, to, link) in [
        ("client", "a", Link::Service),
        ("client", "b", Link::Service),
        ("b", "client", Link::Service),
        ("a", "b", Link::Service),
        ("a", "b", Link::Cluster),
        ("b", "a", Link::Cluster),
    ] {
        let (from, to) = (lab.host(from).unwrap(), lab.host(to).unwrap());
        let addresses = [IpAddr::from(to.ipv4(link)), to.ipv6(link).into()];
        for ip in addresses {
            assert!(reaches(from, to, ip, PATIENCE), "{} to {ip}", from.name());
        }
    }
    // The client is not on the cluster link, and nothing leads out of the lab.
    let client = lab.host("client").unwrap();
    for outside in ["10.78.0.1:9", "1.1.1.1:9", "[fd78::1]:9"] {
        let socket = |any| client.in_netns(move || UdpSocket::bind(any).unwrap()).unwrap();
        let socket = socket(if outside.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" });
        let error = socket.connect(outside).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NetworkUnreachable, "{outside}");
    }
}

#[test]
fn a_cut_link_is_silent_and_the_other_works_on() {
    let lab = up();
    lab.cut("a.clu", Cut::default()).unwrap();
    assert!(silent(&lab, "a", "b", Link::Cluster));
    assert!(reachable(&lab, "a", "b", Link::Service));
    lab.heal("a.clu").unwrap();
    assert!(reachable(&lab, "a", "b", Link::Cluster));
    lab.cut("service", Cut::default()).unwrap();
    assert!(silent(&lab, "client", "b", Link::Service));
    assert!(reachable(&lab, "b", "a", Link::Cluster));
    let cut = lab.links().into_iter().find(|l| l.name == "client.svc").unwrap();
    assert!(cut.cut_from_host && cut.cut_to_host && cut.dropped_from_host > 0, "{cut:?}");
    lab.heal("service").unwrap();
    assert!(reachable(&lab, "client", "b", Link::Service));
}

#[test]
fn a_one_way_cut_lets_the_other_way_through() {
    let lab = up();
    let (client, a) = (lab.host("client").unwrap(), lab.host("a").unwrap());
    assert!(reachable(&lab, "client", "a", Link::Service)); // neighbours are known now
    let at = |h: &Host| {
        let ip = h.ipv4(Link::Service);
        h.in_netns(move || UdpSocket::bind((ip, 0)).unwrap()).unwrap()
    };
    let (c, s) = (at(client), at(a));
    c.connect(s.local_addr().unwrap()).unwrap();
    s.connect(c.local_addr().unwrap()).unwrap();
    c.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    s.set_read_timeout(Some(PATIENCE)).unwrap();
    lab.cut("a.svc", Cut { ways: vec![Way::FromHost], carrier: false }).unwrap();
    let mut b = [0; 8];
    c.send(b"in").unwrap();
    assert_eq!(s.recv(&mut b).unwrap(), 2);
    s.send(b"out").unwrap();
    assert!(c.recv(&mut b).is_err(), "a frame crossed the cut");
    let state = lab.links().into_iter().find(|l| l.name == "a.svc").unwrap();
    assert!(state.cut_from_host && !state.cut_to_host && state.dropped_from_host >= 1);
}

#[test]
fn a_cut_with_carrier_shows_in_the_host() {
    let lab = up();
    let a = lab.host("a").unwrap();
    let carrier = || {
        let out = a.command("cat").arg("/sys/class/net/svc0/carrier").output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(carrier(), "1");
    lab.cut("a.svc", Cut { carrier: true, ..Cut::default() }).unwrap();
    assert_eq!(carrier(), "0");
    assert!(silent(&lab, "client", "a", Link::Service));
    lab.heal("a.svc").unwrap();
    assert_eq!(carrier(), "1");
    assert!(reachable(&lab, "client", "a", Link::Service));
}

/// Streams from host a to the client on `flows` connections; counts what arrives.
fn stream(lab: &Lab, flows: usize, count: &'static AtomicU64) -> Vec<TcpStream> {
    let (client, a) = (lab.host("client").unwrap(), lab.host("a").unwrap());
    let ip = a.ipv4(Link::Service);
    // The server is a process of the host, so that its death closes the sockets.
    let script = r#"
import socket, threading, sys
s = socket.create_server((sys.argv[1], 80), backlog=100)
print("ready", flush=True)
def serve(c):
    while True: c.sendall(bytes(65536))
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"#;
    let mut server = a.command("python3");
    server.args(["-c", script, &ip.to_string()]).stdout(Stdio::piped());
    let mut server = server.spawn().unwrap();
    let mut ready = [0; 6];
    server.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let connect = || client.in_netns(|| TcpStream::connect((ip, 80)).unwrap()).unwrap();
    let flows: Vec<_> = (0..flows).map(|_| connect()).collect();
    for flow in &flows {
        let mut flow = flow.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65536];
            while let Ok(n) = flow.read(&mut buffer) {
                if n == 0 {
                    return;
                }
                count.fetch_add(n as u64, Relaxed);
            }
        });
    }
    flows
}

/// Not a packet leaves a killed host: the brief of `kill --how host`.
#[test]
fn a_killed_host_falls_silent_at_once() {
    static RECEIVED: AtomicU64 = AtomicU64::new(0);
    let lab = up();
    // Sent frames make a full capture: shaped, so that it can keep up.
    lab.shape("service", Some(Rate::mbit(500))).unwrap();
    let capture = |point| lab.capture(point, CaptureOptions::default()).unwrap();
    let (switch, client) = (capture("svc"), capture("client.svc"));
    let flows = stream(&lab, 10, &RECEIVED);
    eventually(PATIENCE, "10 flows stream", || RECEIVED.load(Relaxed) > 4_000_000);

    let killed = lab.kill("a", &Kill::Host).unwrap();

    assert!(!lab.host("a").unwrap().is_up());
    // Anything still under way would arrive while this datagram is answered.
    assert!(reachable(&lab, "client", "b", Link::Service));
    let mac = lab.host("a").unwrap().mac(Link::Service);
    let frames = |c: Capture| {
        let path = c.path().to_owned();
        assert_eq!(c.stop().unwrap().missed, 0);
        let frames = lab::read_pcap(&path).unwrap();
        frames.into_iter().filter(|f| f.bytes[6..12] == mac).collect::<Vec<_>>()
    };
    let from_a = frames(switch);
    assert!(from_a.len() > 100, "only {} frames captured from the streaming host", from_a.len());
    let late = from_a.iter().filter(|f| f.at > killed.wall).count();
    assert_eq!(late, 0, "frames of the dead host entered the switch after its death");
    // What sat in the switch's own queue may still come out, but no FIN or RST is in it.
    let closing = |f: &&lab::Frame| f.bytes.len() > 47 && f.bytes[47] & 0b101 != 0;
    assert_eq!(frames(client).iter().filter(closing).count(), 0, "FIN or RST seen");
    for flow in &flows {
        assert!(flow.take_error().unwrap().is_none(), "a connection broke");
    }
}

#[test]
fn a_killed_host_boots_again_as_itself() {
    let lab = up();
    let mut sleeper = lab.host("a").unwrap().command("sleep").arg("600").spawn().unwrap();
    lab.kill_host("a").unwrap();
    assert_eq!(sleeper.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(matches!(lab.kill_host("a"), Err(Error::HostDown(_))));
    assert!(matches!(lab.host("a").unwrap().command("true").spawn(), Err(Error::HostDown(_))));
    lab.heal("service").unwrap(); // must not plug a dead host in
    assert!(lab.links().iter().filter(|l| l.name.starts_with("a.")).all(|l| l.cut_from_host));
    for _ in 0..3 {
        lab.boot("a").unwrap();
        assert!(matches!(lab.boot("a"), Err(Error::HostUp(_))));
        assert!(reachable(&lab, "client", "a", Link::Service));
        assert!(reachable(&lab, "b", "a", Link::Cluster));
        let a = lab.host("a").unwrap();
        let mac = a.command("cat").arg("/sys/class/net/svc0/address").output().unwrap();
        assert_eq!(mac.stdout, b"02:4d:00:00:00:01\n");
        lab.kill_host("a").unwrap();
    }
}

#[test]
fn a_hung_host_stops_all_processes_but_not_its_kernel() {
    let lab = up();
    let a = lab.host("a").unwrap();
    // A process that forks all the time: stopping one by one would miss some.
    let mut forker = a.command("sh");
    forker.args(["-c", "while :; do /bin/true; done"]).spawn().unwrap();
    let state = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|s| s.chars().next())
    };
    let stopped = || {
        let all = a.processes().unwrap();
        // D: a parent in vfork waits, unstoppable, for its stopped child.
        !all.is_empty() && all.iter().all(|p| matches!(state(p.pid), Some('T' | 'Z' | 'D')))
    };
    lab.hang("a").unwrap();
    eventually(PATIENCE, "all processes are stopped", stopped);
    assert!(a.is_hung());
    assert!(matches!(a.command("true").spawn(), Err(Error::HostHung(_))));
    assert!(reachable(&lab, "client", "a", Link::Service), "its kernel must go on");
    lab.resume("a").unwrap();
    assert!(a.command("true").status().unwrap().success());

    // Long enough to be seen by whoever is held up for a while.
    let hanging = Duration::from_secs(1);
    let hung = lab.kill("a", &Kill::Hang(hanging)).unwrap();
    eventually(PATIENCE, "all processes are stopped", stopped);
    eventually(PATIENCE, "the host goes on", || !a.is_hung());
    assert!(hung.at.elapsed() >= hanging);
    // Dying while hung leaves nothing behind for the timer to disturb.
    lab.hang_for("a", Duration::from_millis(50)).unwrap();
    lab.kill_host("a").unwrap();
}

#[test]
fn processes_are_killed_by_predicate() {
    let lab = up();
    let a = lab.host("a").unwrap();
    let mut server = a.command("sleep").arg("601").spawn().unwrap();
    let other = a.command("sleep").arg("602").spawn().unwrap();
    let elsewhere = lab.host("b").unwrap().command("sleep").arg("601").spawn().unwrap();
    eventually(PATIENCE, "sleep runs", || {
        a.processes().unwrap().iter().filter(|p| p.name == "sleep").count() == 2
    });
    let how = Kill::Process { signal: libc::SIGSEGV, matching: Some("601".into()) };
    let killed = lab.kill("a", &how).unwrap();
    assert_eq!(killed.processes.len(), 1);
    assert_eq!(server.wait().unwrap().signal(), Some(libc::SIGSEGV));
    assert!(other.try_wait().unwrap().is_none());
    assert!(elsewhere.try_wait().unwrap().is_none(), "a process of another host was hit");
    assert!(matches!(lab.kill("a", &how), Err(Error::NoProcess { .. })));
}

#[test]
fn commands_behave_like_std() {
    let lab = up();
    let a = lab.host("a").unwrap();
    let out = |script: &str| {
        let out = a.command("sh").args(["-c", script]).output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap())
    };
    assert_eq!(out("hostname 2>/dev/null || cat /proc/sys/kernel/hostname").1, "a\n");
    assert_eq!(out("echo out; exit 7"), (Some(7), "out\n".into()));
    assert_eq!(out("cat /proc/1/comm").1, "lab-init\n");
    assert_eq!(out("cat /proc/self/cgroup | grep ^0::").1, "0::/\n");
    assert_eq!(out("grep -c $$ /sys/fs/cgroup/cgroup.procs").1, "1\n");
    assert_eq!(out("stat -f -c %T /sys/fs/bpf /run").1, "bpf_fs\ntmpfs\n");
    assert_eq!(out("grep -w b.clu /etc/hosts | head -1").1.trim(), "10.78.0.2 b.clu");
    assert_eq!(out("pwd").1.trim(), std::env::current_dir().unwrap().to_str().unwrap());
    let marker = lab.dir().join("hosts");
    assert_eq!(out(&format!("test -s {} && echo yes", marker.display())).1, "yes\n");
    // Orphans are reaped by the host's first process.
    out("(sleep 0.01 &)");
    eventually(PATIENCE, "orphans are gone", || a.processes().unwrap().is_empty());

    let mut cat = a.command("cat");
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    cat.feed(b"through").unwrap();
    assert_eq!(cat.wait_with_output().unwrap().stdout, b"through");
    let error = a.command("/no/such/program").spawn().unwrap_err().to_string();
    assert!(error.contains("/no/such/program") && error.contains("host a"), "{error}");
    let child = a.command("sleep").arg("600").spawn().unwrap();
    assert!(child.wait_timeout(Duration::from_millis(1)).unwrap().is_none());
    child.kill().unwrap();
    let status = child.wait_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL));
}

#[test]
fn shaping_holds_the_rate_in_both_directions() {
    // Slow enough that what has gathered in the bucket while a virtual machine was held (for up to
    // 57 ms) still fits into it: with a faster link that would be lost, and rightly so.
    const MBIT: u64 = 10;
    let lab = Lab::builder().rate(Link::Service, Rate::mbit(MBIT)).up().unwrap();
    let (client, a) = (lab.host("client").unwrap(), lab.host("a").unwrap());
    let ip = a.ipv4(Link::Service);
    let listener = a.in_netns(|| TcpListener::bind((ip, 0)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let near = client.in_netns(|| TcpStream::connect(to).unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let total = MBIT as usize * 125_000; // a second
    let send = |mut from: &TcpStream| {
        let chunk = vec![0; 65536];
        let mut left = total;
        while left > 0 {
            left -= from.write(&chunk[..left.min(chunk.len())]).unwrap();
        }
    };
    let receive = |mut to: &TcpStream| {
        // The bucket is full at first: count from when it must be empty.
        let mut buffer = vec![0; 65536];
        let mut got = 0;
        while got < total / 5 {
            got += to.read(&mut buffer).unwrap();
        }
        let (start, before) = (Instant::now(), got);
        while got < total {
            let n = to.read(&mut buffer).unwrap();
            assert!(n > 0);
            got += n;
        }
        (got - before) as f64 * 8.0 / start.elapsed().as_secs_f64()
    };
    // 1448 of 1514 bytes are payload.
    let expected = MBIT as f64 * 1e6 * 1448.0 / 1514.0;
    for (from, to) in [(&near, &far), (&far, &near)] {
        measure("rate, of what it should be", 0.9..1.1, || {
            std::thread::scope(|s| {
                s.spawn(|| send(from));
                receive(to) / expected
            })
        });
    }
}

#[test]
fn two_labs_do_not_see_each_other() {
    let (one, two) = (up(), up());
    assert_ne!(one.name(), two.name());
    let (a1, a2) = (one.host("a").unwrap(), two.host("a").unwrap());
    let ip = a1.ipv4(Link::Service);
    assert_eq!(ip, a2.ipv4(Link::Service));
    let bind = |h: &Host| h.in_netns(|| TcpListener::bind((ip, 80)).unwrap()).unwrap();
    let (l1, _l2) = (bind(a1), bind(a2));
    let client = one.host("client").unwrap();
    client.in_netns(|| TcpStream::connect((ip, 80)).unwrap()).unwrap();
    l1.accept().unwrap();
    two.kill_host("a").unwrap();
    assert!(reachable(&one, "client", "a", Link::Service));
    let taken = Lab::builder().name(one.name()).up().unwrap_err();
    assert!(matches!(taken, Error::NameTaken(_)), "{taken}");
}

#[test]
fn nothing_is_left_and_it_is_quick() {
    measure("seconds to bring it up", 0.0..1.0, || {
        let began = Instant::now();
        up();
        began.elapsed().as_secs_f64()
    });
    measure("seconds to take it down", 0.0..0.2, || {
        let lab = up();
        let dir = lab.dir().to_owned();
        let mut child = lab.host("a").unwrap().command("sleep").arg("600").spawn().unwrap();
        let pids: Vec<_> = lab.hosts().iter().map(|h| h.init_pid().unwrap()).collect();
        let began = Instant::now();
        drop(lab);
        let down_took = began.elapsed().as_secs_f64();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert!(!dir.exists());
        assert!(pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()));
        down_took
    });
}

/// A capture at a host's own cable shows what it tries to send into a cut; the switch's does
/// not.
#[test]
fn captures_show_both_sides_of_a_cut() {
    let lab = up();
    let capture = |point| lab.capture(point, CaptureOptions::whole()).unwrap();
    lab.cut("a.svc", Cut::default()).unwrap();
    let (cable, switch) = (capture("a.svc"), capture("svc"));
    assert!(silent(&lab, "a", "b", Link::Service));
    let mac = lab.host("a").unwrap().mac(Link::Service);
    let from_a = |capture: &Capture| {
        let frames = lab::read_pcap(capture.path()).unwrap();
        frames.iter().filter(|f| f.bytes[6..12] == mac).count()
    };
    eventually(PATIENCE, "the host's frames are in the file", || from_a(&cable) > 0);
    assert_eq!(from_a(&switch), 0);
    assert!(lab.capture("nowhere", CaptureOptions::default()).is_err());
    let again = lab.capture("svc", CaptureOptions::default()).unwrap();
    assert_ne!(again.path(), switch.path());
    drop(lab); // ends all captures, too
    assert!(cable.stop().unwrap().frames > 0);
}

/// `bpf_redirect_neigh` writes the next hop's addresses into the bytes that the capture holds.
#[test]
fn a_captured_frame_keeps_its_sender_when_a_host_forwards_it() {
    let lab = up();
    let [client, a, b] = ["client", "a", "b"].map(|name| lab.host(name).unwrap());
    assert!(reachable(&lab, "a", "b", Link::Cluster), "neighbours know each other");
    let (via, target) = (a.ipv4(Link::Service), b.ipv4(Link::Cluster));
    let mac = a.mac(Link::Service).map(|byte| format!("{byte:02x}")).join(":");
    let ip = |words: String| {
        assert!(client.command("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
    };
    ip(format!("neigh replace {via} lladdr {mac} dev svc0"));
    ip(format!("route add {target} via {via}"));
    // Host `a` forwards all that comes from the service link: r1 is the device, r2 to r4 are 0.
    let script = format!(
        r#"
import ctypes, signal, socket, struct
def bpf(command, attributes):
    fd = ctypes.CDLL(None, use_errno=True).syscall({SYS_bpf}, command, attributes, len(attributes))
    assert fd >= 0, ctypes.get_errno()
    return fd
service, cluster = map(socket.if_nametoindex, ("svc0", "clu0"))
steps = [(0xb7, 1, cluster), (0xb7, 2, 0), (0xb7, 3, 0), (0xb7, 4, 0), (0x85, 0, 152), (0x95, 0, 0)]
steps = [struct.pack("=BBhi", code, register, 0, value) for code, register, value in steps]
code, gpl = ctypes.create_string_buffer(b"".join(steps)), ctypes.create_string_buffer(b"GPL")
code_at, gpl_at = ctypes.addressof(code), ctypes.addressof(gpl)
PROG_LOAD, LINK_CREATE, SCHED_CLS, TCX_INGRESS = 5, 28, 3, 46
program = bpf(PROG_LOAD, struct.pack("=IIQQ24x", SCHED_CLS, len(steps), code_at, gpl_at))
link = bpf(LINK_CREATE, struct.pack("=IIII16x", program, service, TCX_INGRESS, 0))
print("ready", flush=True)
signal.pause()
"#,
        SYS_bpf = libc::SYS_bpf
    );
    let mut forwards = a.command("python3");
    let mut forwards = forwards.args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    forwards.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();

    let capture = |point| lab.capture(point, CaptureOptions::default()).unwrap();
    let (before, behind) = (capture("a.svc"), capture("b.clu"));
    let near = client.in_netns(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    for _ in 0..100 {
        near.send_to(b"forwarded", (target, 9)).unwrap();
    }
    let seen = |capture: &Capture| {
        let mut frames = lab::read_pcap(capture.path()).unwrap();
        frames.retain(|f| f.bytes.ends_with(b"forwarded"));
        frames
    };
    eventually(PATIENCE, "all are forwarded", || seen(&behind).len() == 100);
    eventually(PATIENCE, "all are in the file", || seen(&before).len() == 100);
    let sender = client.mac(Link::Service);
    assert!(seen(&before).iter().all(|f| f.bytes[6..12] == sender));
    let forwarder = a.mac(Link::Cluster);
    assert!(seen(&behind).iter().all(|f| f.bytes[6..12] == forwarder));
}

#[test]
fn files_are_kept_when_asked_and_when_a_test_fails() {
    let kept = tempfile::tempdir().unwrap();
    let lab = || Lab::builder().artifacts(kept.path()).up().unwrap();
    let fine = lab();
    let fine_dir = kept.path().join(fine.name());
    drop(fine);
    assert!(!fine_dir.exists());
    let asked = lab();
    let asked_dir = kept.path().join(asked.name());
    asked.keep_files();
    drop(asked);
    assert!(asked_dir.join("hosts").exists());
    let failing = lab();
    let failing_dir = kept.path().join(failing.name());
    std::thread::spawn(move || {
        let _failing = failing;
        panic!("a test that fails, on purpose");
    })
    .join()
    .unwrap_err();
    assert!(failing_dir.join("hosts").exists());
}

#[test]
fn a_node_that_is_not_ready_is_reported_with_its_log() {
    let lab = Lab::builder().steadfast("/bin/false").up().unwrap();
    let error = lab.start_node("a", "").unwrap().wait_ready(PATIENCE, || false).unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    assert!(error.to_string().contains("a.log"), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("daemon");
    let mut file = std::fs::OpenOptions::new();
    let mut file = file.create(true).write(true).mode(0o755).open(&program).unwrap();
    file.write_all(b"#!/bin/sh\necho starting\nexec sleep 600\n").unwrap();
    drop(file);
    let lab = Lab::builder().steadfast(&program).up().unwrap();
    let node = lab.start_node("b", "some = 1").unwrap();
    let error = node.wait_ready(Duration::from_millis(20), || false).unwrap_err();
    assert!(matches!(error, Error::NotReady { .. }), "{error}");
    assert_eq!(std::fs::read(node.config()).unwrap(), b"some = 1");
    eventually(PATIENCE, "its log fills", || std::fs::metadata(node.log()).unwrap().len() > 0);
    assert_eq!(lab.kill("b", &Kill::Daemon).unwrap().processes[0].pid, node.pid());
}

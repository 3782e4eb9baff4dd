//! Destroying a service's sockets: all of them, in every state, and nothing else.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};

use common::{Namespace, until};
use hostnet::{count_sockets, destroy_flow, destroy_sockets, is_listening};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket, sockopt,
};

const PORT: u16 = 8080;

fn local(text: &str) -> (IpAddr, u16) {
    (text.parse().unwrap(), PORT)
}

/// What `ss` shows of the sockets whose local port is the service's, one state a line.
fn states(ns: &Namespace) -> Vec<String> {
    let output = ns.run(|| {
        let port = format!("( sport = :{PORT} )");
        std::process::Command::new("ss").args(["-Htan", &port]).output().unwrap()
    });
    let text = String::from_utf8(output.stdout).unwrap();
    let mut states: Vec<String> =
        text.lines().map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    states.sort();
    states
}

/// A connection accepted by `listener`: (client's end, server's end).
fn connect(listener: &TcpListener, to: SocketAddr) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(to).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

/// One flow in each state that outlives `close`, or does not have a descriptor at all.
fn check_every_state(bound: &str, reached: &str, text: &str) {
    let ns = Namespace::new();
    let target = SocketAddr::new(reached.parse().unwrap(), PORT);
    let listener = ns.run(|| TcpListener::bind((bound, PORT)).unwrap());

    let (established, clients) = ns.run(|| {
        let (client, server) = connect(&listener, target);
        // TIME-WAIT on the server's side: it closes first, the client afterwards.
        let (time_wait_client, time_wait) = connect(&listener, target);
        drop(time_wait);
        drop(time_wait_client);
        // FIN-WAIT-2, orphaned: the server closed, the client does not.
        let (fin_wait_2_client, fin_wait_2) = connect(&listener, target);
        drop(fin_wait_2);
        // FIN-WAIT-1, orphaned: the client reads nothing, so the FIN waits behind the data.
        let (fin_wait_1_client, mut fin_wait_1) = connect(&listener, target);
        fin_wait_1.set_nonblocking(true).unwrap();
        while fin_wait_1.write(&[0; 65536]).is_ok() {}
        drop(fin_wait_1);
        // CLOSE-WAIT: the client closed, the server does not.
        let (close_wait_client, close_wait) = connect(&listener, target);
        close_wait_client.shutdown(Shutdown::Write).unwrap();
        // Never accepted: in the listener's queue.
        let queued = TcpStream::connect(target).unwrap();
        let clients = vec![client, fin_wait_2_client, fin_wait_1_client, close_wait_client, queued];
        (vec![server, close_wait], clients)
    });
    let all = ["CLOSE-WAIT", "ESTAB", "ESTAB", "FIN-WAIT-1", "FIN-WAIT-2", "LISTEN", "TIME-WAIT"];
    until("every state is there", || states(&ns) == all);

    let wanted = [local(text)];
    assert_eq!(ns.run(|| count_sockets(&wanted).unwrap()), 6);
    assert_eq!(ns.run(|| destroy_sockets(&wanted).unwrap()), 6);
    assert_eq!(ns.run(|| count_sockets(&wanted).unwrap()), 0);
    // CLOSE sockets that still have a descriptor are bound to nothing.
    assert_eq!(states(&ns), ["LISTEN"]);
    assert_eq!(ns.run(|| destroy_sockets(&wanted).unwrap()), 0);
    let error = (&established[0]).read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    drop(clients);
    // The listener is unharmed. What was queued in it may be handed out first, dead.
    ns.run(|| {
        let client = TcpStream::connect(target).unwrap();
        let mut accepted = listener.accept().unwrap().0;
        if accepted.peer_addr().is_err() {
            accepted = listener.accept().unwrap().0;
        }
        let ports = (accepted.peer_addr().unwrap().port(), client.local_addr().unwrap().port());
        assert_eq!(ports.0, ports.1);
    });
}

#[test]
fn every_state_v4() {
    check_every_state("127.0.0.1", "127.0.0.1", "127.0.0.1");
}

#[test]
fn every_state_v6() {
    check_every_state("::1", "::1", "::1");
}

/// SYN_RECV: a client that never acknowledges the SYN-ACK. Here the client's host drops it, a
/// blackhole route being enough.
#[test]
fn half_open_requests_too() {
    let (a, b) = common::joined();
    a.ip("address add 192.0.2.1/24 dev eth0");
    b.ip("address add 192.0.2.2/24 dev eth0");
    b.ip("address add 192.0.2.3/24 dev eth0");
    let listener = a.run(|| TcpListener::bind(("192.0.2.1", PORT)).unwrap());
    // The server's answers to .3 go nowhere.
    a.ip("route add 192.0.2.3/32 via 192.0.2.250 onlink dev eth0");
    a.ip("neigh add 192.0.2.250 lladdr 02:00:00:00:00:fa dev eth0");
    let client = b.run(|| {
        let flags = SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).unwrap();
        use std::os::fd::AsRawFd;
        let from: SocketAddr = "192.0.2.3:0".parse().unwrap();
        bind(fd.as_raw_fd(), &SockaddrStorage::from(from)).unwrap();
        let to: SocketAddr = SocketAddr::new("192.0.2.1".parse().unwrap(), PORT);
        let result = nix::sys::socket::connect(fd.as_raw_fd(), &SockaddrStorage::from(to));
        assert_eq!(result, Err(nix::errno::Errno::EINPROGRESS));
        fd
    });
    until("the request is half open", || states(&a) == ["LISTEN", "SYN-RECV"]);
    assert_eq!(a.run(|| destroy_sockets(&[local("192.0.2.1")]).unwrap()), 1);
    assert_eq!(states(&a), ["LISTEN"]);
    drop((client, listener));
}

/// IPv4 flows of a dual-stack listener are IPv6 sockets with mapped addresses.
#[test]
fn mapped_flows_are_found() {
    check_every_state("::", "127.0.0.1", "127.0.0.1");
    check_every_state("::", "127.0.0.1", "::ffff:127.0.0.1");
}

#[test]
fn other_services_are_left_alone() {
    let ns = Namespace::new();
    ns.ip("address add 192.0.2.80/32 dev lo");
    ns.run(|| {
        let mine = TcpListener::bind(("127.0.0.1", PORT)).unwrap();
        let other_port = TcpListener::bind(("127.0.0.1", 8081)).unwrap();
        let other_addr = TcpListener::bind(("192.0.2.80", PORT)).unwrap();
        let gone = connect(&mine, mine.local_addr().unwrap());
        let kept = [&other_port, &other_addr].map(|l| connect(l, l.local_addr().unwrap()));
        assert_eq!(destroy_sockets(&[local("127.0.0.1")]).unwrap(), 1);
        assert!((&gone.1).read(&mut [0]).is_err());
        for (client, server) in kept {
            (&client).write_all(b"x").unwrap();
            assert_eq!((&server).read(&mut [0]).unwrap(), 1);
        }
    });
}

/// The second call finds no flow; looked up by address alone it would destroy the listener.
#[test]
fn one_flow_goes_and_the_listener_stays() {
    let ns = Namespace::new();
    ns.run(|| {
        for bound in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((bound, PORT)).unwrap();
            let here = listener.local_addr().unwrap();
            let (gone, kept) = (connect(&listener, here), connect(&listener, here));
            let remote = gone.0.local_addr().unwrap();
            assert!(destroy_flow(here, remote).unwrap());
            assert!(!destroy_flow(here, remote).unwrap());
            (&kept.0).write_all(b"x").unwrap();
            assert_eq!((&kept.1).read(&mut [0]).unwrap(), 1);
            connect(&listener, here);
        }
    });
}

/// Several batches of requests, more than one datagram of listing.
#[test]
fn hundreds_of_flows() {
    let ns = Namespace::new();
    ns.run(|| {
        let listener = TcpListener::bind(("127.0.0.1", PORT)).unwrap();
        let here = listener.local_addr().unwrap();
        let flows: Vec<_> = (0..300).map(|_| connect(&listener, here)).collect();
        assert_eq!(count_sockets(&[local("127.0.0.1")]).unwrap(), 300);
        assert_eq!(destroy_sockets(&[local("127.0.0.1")]).unwrap(), 300);
        drop(flows);
    });
}

#[test]
fn listeners_are_found_where_a_client_would_find_them() {
    let ns = Namespace::new();
    let v4: IpAddr = "127.0.0.1".parse().unwrap();
    let v6: IpAddr = "::1".parse().unwrap();
    // (bound to, IPv6 only, finds v4, finds v6)
    let cases = [
        ("127.0.0.1", false, true, false),
        ("0.0.0.0", false, true, false),
        ("::1", false, false, true),
        ("::", false, true, true),
        ("::", true, false, true),
        ("::ffff:127.0.0.1", false, true, false),
        ("127.0.0.2", false, false, false),
    ];
    ns.run(|| {
        for (bound, v6_only, finds_v4, finds_v6) in cases {
            let addr: IpAddr = bound.parse().unwrap();
            let listener = listen(addr, v6_only);
            assert_eq!(is_listening(v4, PORT).unwrap(), finds_v4, "{bound} {v6_only}");
            assert_eq!(is_listening(v6, PORT).unwrap(), finds_v6, "{bound} {v6_only}");
            assert!(!is_listening(v4, PORT + 1).unwrap());
            drop(listener);
            // Another test's child process may hold a copy until it has executed its program.
            until("the listener is gone", || {
                !is_listening(v4, PORT).unwrap() && !is_listening(v6, PORT).unwrap()
            });
        }
    });
}

fn listen(addr: IpAddr, v6_only: bool) -> std::os::fd::OwnedFd {
    use std::os::fd::AsRawFd;
    let family = if addr.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    if addr.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &v6_only).unwrap();
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(addr, PORT))).unwrap();
    nix::sys::socket::listen(&fd, nix::sys::socket::Backlog::new(8).unwrap()).unwrap();
    fd
}

//! ARP and neighbour discovery against an unmodified kernel at the other end of a veth pair.

mod common;

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Namespace, PATIENCE, joined, readable, until};
use hostnet::{
    Announcer, ArpMode, Event, Holding, Interface, LinkError, LinkEvidence, Mac, Monitor,
    NeighbourResponder, Prober, ServiceAddress, User, users,
};

const VIP4: &str = "192.0.2.80";
const VIP6: &str = "2001:db8::80";
/// Long enough for an answer, short enough to wait out.
const MOMENT: Duration = Duration::from_millis(150);

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn eth0(ns: &Namespace) -> Interface {
    ns.run(|| Interface::by_name("eth0").unwrap())
}

fn mac(ns: &Namespace) -> Mac {
    eth0(ns).ethernet().unwrap()
}

/// A node (VIPs on `lo`, silent by itself) and a client on one link.
fn node_and_client() -> (Namespace, Namespace, [ServiceAddress; 2]) {
    let (node, client) = joined();
    node.write("/proc/sys/net/ipv4/conf/eth0/arp_ignore", "1");
    node.ip("address add 192.0.2.1/24 dev eth0");
    node.ip("address add 2001:db8::1/64 dev eth0 nodad");
    client.ip("address add 192.0.2.2/24 dev eth0");
    client.ip("address add 2001:db8::2/64 dev eth0 nodad");
    // A host repeats an unanswered question after a second; here, soon.
    for family in ["ipv4", "ipv6"] {
        client.write(&format!("/proc/sys/net/{family}/neigh/eth0/retrans_time_ms"), "20");
    }
    let vips = node.run(|| [VIP4, VIP6].map(|vip| ServiceAddress::install(addr(vip)).unwrap()));
    (node, client, vips)
}

/// What the kernel of `ns` believes about `vip`: its `ip neigh` line.
fn belief(ns: &Namespace, vip: &str) -> String {
    ns.ip(&format!("neigh show to {vip} dev eth0"))
}

/// Makes the kernel of `ns` resolve `vip`.
fn provoke(ns: &Namespace, vip: &str) {
    ns.run(|| {
        let any: IpAddr = if vip.contains(':') { addr("::") } else { addr("0.0.0.0") };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.send_to(b"?", (addr(vip), 9)).unwrap();
    });
}

/// Runs the responder until the test is done with it.
fn serving<T>(mut responder: NeighbourResponder, test: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                if readable(&responder, Duration::from_millis(5)) {
                    responder.handle().unwrap();
                }
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test));
        done.store(true, Ordering::Release);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn the_responder_makes_a_kernel_resolve_addresses_on_lo() {
    let (node, client, _vips) = node_and_client();
    let interface = eth0(&node);
    let holding = Holding::new();
    let responder = node.run(|| {
        let mut responder = NeighbourResponder::new(&interface, ArpMode::Answer).unwrap();
        for vip in [VIP4, VIP6] {
            responder.serve(addr(vip), holding.clone()).unwrap();
        }
        responder
    });
    serving(responder, || {
        for vip in [VIP4, VIP6] {
            holding.set(false);
            provoke(&client, vip);
            thread::sleep(MOMENT); // silence can only be waited for
            assert!(!belief(&client, vip).contains("lladdr"), "answered while not holding");

            holding.set(true);
            provoke(&client, vip);
            let ours = format!("lladdr {}", mac(&node));
            until("the client knows the node", || belief(&client, vip).contains(&ours));
            until("and believes it", || belief(&client, vip).contains("REACHABLE"));
        }
    });
}

/// A switch that snoops MLD forwards solicitations only to ports that reported the group.
#[test]
fn the_solicited_node_group_is_joined_while_the_responder_lives() {
    let (node, _client) = joined();
    let interface = eth0(&node);
    let responder = node.run(|| {
        let mut responder = NeighbourResponder::new(&interface, ArpMode::Leave).unwrap();
        responder.serve(addr("2001:db8::1:2345:6789"), Holding::new()).unwrap();
        responder
    });
    let groups = || node.ip("maddress show dev eth0");
    assert!(groups().contains("33:33:ff:45:67:89"), "{}", groups());
    assert!(groups().contains("ff02::1:ff45:6789"), "{}", groups());
    drop(responder);
    // Another test's child process may hold a copy until it has executed its program.
    until("the groups are left", || !groups().contains("6789") && !groups().contains("67:89"));
}

#[test]
fn only_questions_wake_the_responder() {
    let (node, client, _vips) = node_and_client();
    let interface = eth0(&node);
    let mut responder = node.run(|| {
        let mut responder = NeighbourResponder::new(&interface, ArpMode::Leave).unwrap();
        responder.serve(addr(VIP6), Holding::new()).unwrap();
        responder
    });
    client.ip(&format!("neigh add 192.0.2.1 lladdr {} dev eth0", mac(&node)));
    client.ip(&format!("neigh add 2001:db8::1 lladdr {} dev eth0", mac(&node)));
    // UDP of both families, and ARP requests (not ours to answer in this mode).
    for target in ["192.0.2.1", "2001:db8::1", "192.0.2.99"] {
        provoke(&client, target);
    }
    assert!(!readable(&responder, MOMENT), "woken by something else than a solicitation");
    provoke(&client, VIP6);
    assert!(readable(&responder, PATIENCE));
    assert_eq!(responder.handle().unwrap(), 0);
}

#[test]
fn an_announcement_moves_the_address() {
    let (node, client, _vips) = node_and_client();
    let interface = eth0(&node);
    let announcer = node.run(|| Announcer::new(&interface).unwrap());
    for vip in [VIP4, VIP6] {
        // The client believes in a host that has died.
        client.ip(&format!("neigh add {vip} lladdr 02:00:00:00:dd:dd nud stale dev eth0"));
        let ours = format!("lladdr {}", mac(&node));
        until("the client follows", || {
            announcer.announce(addr(vip)).unwrap();
            belief(&client, vip).contains(&ours)
        });
    }
}

#[test]
fn another_user_of_the_address_is_found() {
    let (node, other, _vips) = node_and_client();
    let interface = eth0(&node);
    for (vip, bits) in [(VIP4, 24), (VIP6, 64)] {
        let ask = || node.run(|| users(&interface, addr(vip), MOMENT)).unwrap();
        assert_eq!(ask(), []);
        let nodad = if bits == 64 { " nodad" } else { "" };
        other.ip(&format!("address add {vip}/{bits} dev eth0{nodad}"));
        assert_eq!(ask(), [User { mac: mac(&other), holds: true }]);
    }
}

#[test]
fn a_live_link_is_told_from_a_dead_one() {
    let (node, client, _vips) = node_and_client();
    let interface = eth0(&node);
    let prober = node.run(|| Prober::open(&interface).unwrap());
    let verdict_of = |besides: &[IpAddr], exclude: &[Mac]| {
        let probe = || prober.probe(&interface, besides, exclude, 16, MOMENT);
        let mut probe = node.run(|| probe().unwrap());
        loop {
            if let Some(evidence) = probe.poll(Instant::now()).unwrap() {
                return evidence;
            }
            let left = probe.next_wakeup().saturating_duration_since(Instant::now());
            readable(&probe.as_fd(), left + Duration::from_millis(1));
        }
    };
    let verdict = |exclude: &[Mac]| verdict_of(&[], exclude);
    assert_eq!(verdict(&[]), LinkEvidence::NobodyToAsk);
    let client_mac = mac(&client);
    // Whoever is not on the link cannot be asked; whoever is need not be in the table.
    let (far, near) = ("198.51.100.2".parse().unwrap(), "192.0.2.2".parse().unwrap());
    assert_eq!(verdict_of(&[far], &[]), LinkEvidence::NobodyToAsk);
    assert_eq!(verdict_of(&[far, near], &[]), LinkEvidence::Alive(client_mac));
    for neighbour in ["192.0.2.2", "2001:db8::2"] {
        node.ip(&format!("neigh add {neighbour} lladdr {client_mac} nud stale dev eth0"));
        assert_eq!(verdict(&[]), LinkEvidence::Alive(client_mac), "{neighbour}");
        assert_eq!(verdict(&[client_mac]), LinkEvidence::NobodyToAsk);
        // Frames go out, nobody answers: the cable is in, the far side is deaf.
        client.write("/proc/sys/net/ipv4/conf/eth0/arp_ignore", "8");
        client.ip("-6 address flush dev eth0");
        assert_eq!(verdict(&[]), LinkEvidence::Silent { asked: 1 }, "{neighbour}");
        client.write("/proc/sys/net/ipv4/conf/eth0/arp_ignore", "0");
        client.ip("-6 address add 2001:db8::2/64 dev eth0 nodad");
        node.ip(&format!("neigh del {neighbour} dev eth0"));
    }
}

#[test]
fn interfaces_without_ethernet_are_refused() {
    let ns = Namespace::new();
    ns.run(|| {
        let lo = Interface::by_name("lo").unwrap();
        let error = Announcer::new(&lo).unwrap_err();
        assert!(matches!(error, LinkError::Interface(_)), "{error}");
    });
}

#[test]
fn sending_on_a_downed_link_is_an_error_that_names_it() {
    let (node, _client) = joined();
    let interface = eth0(&node);
    let announcer = node.run(|| Announcer::new(&interface).unwrap());
    node.ip("link set eth0 down");
    let error = announcer.announce(addr(VIP4)).unwrap_err();
    assert!(error.to_string().contains("eth0"), "{error}");
}

#[test]
fn the_monitor_reports_carrier_mtu_addresses_and_removal() {
    let (a, b) = joined();
    a.ip("address add 192.0.2.1/24 dev eth0");
    let index = eth0(&a).index;
    let mut monitor = a.run(|| Monitor::new().unwrap());
    let mut expect = |what: &str, wanted: &dyn Fn(&Event) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(event) = monitor.next_event().unwrap() {
                if wanted(&event) {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "never reported: {what}");
            readable(&monitor, PATIENCE);
        }
    };
    b.ip("link set eth0 down");
    expect(
        "carrier lost",
        &|e| matches!(e, Event::Link(l) if l.ifindex == index && l.up && !l.carrier),
    );
    b.ip("link set eth0 up");
    expect("carrier back", &|e| matches!(e, Event::Link(l) if l.ifindex == index && l.carrier));
    a.ip("link set eth0 mtu 1400");
    expect("mtu", &|e| matches!(e, Event::Link(l) if l.mtu == 1400 && l.name == "eth0"));
    a.ip("address add 192.0.2.9/24 dev eth0");
    let added = Event::AddressAdded { ifindex: index, addr: addr("192.0.2.9") };
    expect("an address more", &|e| *e == added);
    a.ip("address del 192.0.2.1/24 dev eth0");
    let removed = Event::AddressRemoved { ifindex: index, addr: addr("192.0.2.1") };
    expect("an address less", &|e| *e == removed);
    a.ip("link del eth0");
    expect("the link's end", &|e| *e == Event::LinkGone { ifindex: index });
}

/// A reader that is too slow is told so, instead of believing what it has.
#[test]
fn the_monitor_says_when_it_lost_something() {
    let (a, _b) = joined();
    let mut monitor = a.run(|| Monitor::new().unwrap());
    let batch: String =
        (0..2000).map(|i| format!("link set eth0 mtu {}\n", 1400 + i % 2)).collect();
    let file = tempfile(&batch);
    a.ip(&format!("-batch {}", file.display()));
    std::fs::remove_file(&file).unwrap();
    let mut lost = false;
    while let Some(event) = monitor.next_event().unwrap() {
        lost |= event == Event::Lost;
    }
    assert!(lost);
}

fn tempfile(text: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("hostnet-batch-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

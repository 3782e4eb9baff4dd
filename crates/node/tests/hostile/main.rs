//! Bad input at the whole product: strangers, garbage, floods, forged segments, wrong
//! configurations. Each is told clearly, none disturbs a connection or keeps it from outliving its
//! server's host.

mod attack;
mod death;
mod stage;
mod stall;

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use e2e::undisturbed;
use lab::Link;
use serde_json::Value;

use attack::{Wire, checksum_at, position};
use stage::{CONTROL_PORT, Family, KEY, Stage};

/// Plays a scene over both families.
macro_rules! scenes {
    ($($name:ident, $name6:ident;)*) => {
        mod scenes {
            use super::{Family, undisturbed};
            $(
                #[test]
                fn $name() {
                    undisturbed(|| super::$name(Family::V4));
                }

                #[test]
                fn $name6() {
                    undisturbed(|| super::$name(Family::V6));
                }
            )*
        }
    };
}

scenes! {
    a_node_of_another_key_cluster_or_name_does_not_join,
        a_node_of_another_key_cluster_or_name_does_not_join_over_ipv6;
    a_node_of_another_key_does_not_serve_alone_beside_a_living_one,
        a_node_of_another_key_does_not_serve_alone_beside_a_living_one_over_ipv6;
    of_two_nodes_with_different_keys_started_together_one_serves,
        of_two_nodes_with_different_keys_started_together_one_serves_over_ipv6;
    a_node_with_other_roles_ends_beside_one_that_serves,
        a_node_with_other_roles_ends_beside_one_that_serves_over_ipv6;
    a_node_of_another_key_ends_beside_one_that_serves_whatever_its_address,
        a_node_of_another_key_ends_beside_one_that_serves_whatever_its_address_over_ipv6;
    garbage_on_both_links_disturbs_nobody, garbage_on_both_links_disturbs_nobody_over_ipv6;
    a_flood_and_forged_segments_cost_no_flow, a_flood_and_forged_segments_cost_no_flow_over_ipv6;
    an_address_that_another_host_uses_is_refused,
        an_address_that_another_host_uses_is_refused_over_ipv6;
}

/// Numbers without a meaning, the same in every run.
fn noise(seed: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(seed.wrapping_mul(2_654_435_769) | 1), |&x| {
        let x = x ^ x << 13;
        let x = x ^ x >> 17;
        Some(x ^ x << 5)
    })
}

fn garbage(length: usize, seed: u32) -> Vec<u8> {
    noise(seed).map(|x| (x >> 9) as u8).take(length).collect()
}

fn a_node_of_another_key_cluster_or_name_does_not_join(family: Family) {
    let stage = Stage::new(family);
    stage.start("a", "b", "", KEY);
    stage.until("a serves alone", || stage.status("a")["role"] == "primary");
    let config = stage
        .config("b", "a", "startup_wait_ms = 600000\n")
        .replace("startup_wait_ms = 1500\n", "");
    let strangers = [
        ("another key", config.clone(), [8; 32], "key"),
        ("another cluster", config.replace("\"lab\"", "\"elsewhere\""), KEY, "cluster"),
        ("another name", config.replace("name = \"b\"", "name = \"c\""), KEY, "name"),
    ];
    for (what, config, key, says) in strangers {
        let told = stage.events("a").len();
        stage.start_with("b", config, key);
        let refused = |event: &Value| {
            event["event"] == "datagram_refused"
                && event["text"].as_str().is_some_and(|text| text.contains(says))
        };
        stage.until(format!("a refuses {what} and says so"), || {
            stage.events("a").iter().skip(told).any(refused)
        });
        let status = stage.status("a");
        assert_eq!(status["peer"]["alive"], false, "{what}: {status}");
        assert_eq!(status["duplex"], false, "{what}: {status}");
        stage.kill_daemon("b");
        let node = stage.lab.node("b").unwrap();
        stage.until("b is gone", || node.ended().unwrap().is_some());
    }
    let mut client = stage.connect();
    client.expect_echo(100_000, "served by a alone");
}

/// Not to be understood is not to be dead: a node that took its neighbour's silence for that would
/// put the service's address on two hosts.
fn a_node_of_another_key_does_not_serve_alone_beside_a_living_one(family: Family) {
    let stage = Stage::new(family);
    stage.start("a", "b", "", KEY);
    stage.until("a serves alone", || stage.status("a")["role"] == "primary");
    let node = stage.start("b", "a", "", [8; 32]);
    stage.until("b gives up", || node.ended().unwrap().is_some());
    assert_eq!(node.ended().unwrap().unwrap().code(), Some(1));
    let log = std::fs::read_to_string(node.log()).unwrap();
    let peer = family.of(stage.lab.host("a").unwrap(), Link::Service).to_string();
    assert!(log.contains("another key") && log.contains(&peer), "{log}");
    assert!(!log.contains("primary"), "b never served:\n{log}");
    stage.connect().expect_echo(10_000, "served by a alone");
}

/// Each is a living stranger to the other. If both ended, and were started again, nobody would ever
/// serve.
fn of_two_nodes_with_different_keys_started_together_one_serves(family: Family) {
    let stage = Stage::new(family);
    stage.start("a", "b", "", KEY);
    let node = stage.start("b", "a", "prefer_primary = true\n", [8; 32]);
    stage.until("b gives up", || node.ended().unwrap().is_some());
    assert_eq!(node.ended().unwrap().unwrap().code(), Some(1));
    let log = std::fs::read_to_string(node.log()).unwrap();
    assert!(log.contains("lower address") && !log.contains("primary"), "{log}");
    stage.until("a serves alone", || stage.status("a")["role"] == "primary");
    // Another thread writes the events down.
    stage.until("a says why it serves", || {
        stage.events("a").iter().any(|e| e["event"] == "start_beside_stranger")
    });
    stage.connect().expect_echo(10_000, "served by a alone");
}

/// The lower address is no right to serve beside one who does.
fn a_node_of_another_key_ends_beside_one_that_serves_whatever_its_address(family: Family) {
    let stage = Stage::new(family);
    stage.start("b", "a", "", [8; 32]);
    stage.until("b serves alone", || stage.status("b")["role"] == "primary");
    let node = stage.start("a", "b", "prefer_primary = true\n", KEY);
    stage.until("a gives up", || node.ended().unwrap().is_some());
    let log = std::fs::read_to_string(node.log()).unwrap();
    assert!(log.contains("so it serves") && !log.contains("primary"), "{log}");
    stage.connect().expect_echo(10_000, "served by b alone");
}

/// It is the peer, but the two would not agree on who serves whom.
fn a_node_with_other_roles_ends_beside_one_that_serves(family: Family) {
    let stage = Stage::new(family);
    stage.start("a", "b", "", KEY);
    stage.until("a serves alone", || stage.status("a")["role"] == "primary");
    let node = stage.start("b", "a", "roles = \"dual\"\n", KEY);
    stage.until("b gives up", || node.ended().unwrap().is_some());
    assert_eq!(node.ended().unwrap().unwrap().code(), Some(1));
    let log = std::fs::read_to_string(node.log()).unwrap();
    assert!(log.contains("other `roles`") && !log.contains("primary"), "{log}");
    let status = stage.status("a");
    assert!(status["refused_datagrams"]["roles"].as_u64() > Some(0), "{status}");
    stage.connect().expect_echo(10_000, "served by a alone");
}

fn garbage_on_both_links_disturbs_nobody(family: Family) {
    let stage = Stage::pair(family);
    let mut client = stage.connect();
    client.expect_echo(50_000, "before");

    stage.witness.expect_garbage();
    let x = stage.lab.host("x").unwrap();
    for (node, peer) in [("a", "b"), ("b", "a")] {
        let node = stage.lab.host(node).unwrap();
        for link in Link::ALL {
            let any = if family == Family::V4 { "0.0.0.0:0" } else { "[::]:0" };
            let socket = x.in_netns(|| UdpSocket::bind(any)).unwrap().unwrap();
            let control = SocketAddr::new(family.of(node, link), CONTROL_PORT);
            for length in (0..80).chain([100, 500, 1400, 9000, 60_000]) {
                let bytes = garbage(length, length as u32);
                socket.send_to(&bytes, control).unwrap();
            }
            let wire = Wire::new(x, link);
            let mac = node.mac(link);
            // The same in the peer's name.
            let its = SocketAddr::new(family.of(stage.lab.host(peer).unwrap(), link), CONTROL_PORT);
            for length in (0..80).chain([500, 1400]) {
                let ends = (its, control);
                let bytes = garbage(length, length as u32);
                wire.send(&wire.datagram(mac, ends, &bytes));
            }
            // Frames for the service and in its name, cut and filled at random.
            for seed in 0..300u32 {
                let service = family.service();
                let stranger = (family.stranger(seed as u16 & 0xff), seed as u16).into();
                let ends = if seed % 2 == 0 { (stranger, service) } else { (service, stranger) };
                let mut frame = wire.segment(mac, ends, ("A", seed, seed), &garbage(64, seed));
                let mut at = noise(seed);
                for _ in 0..seed % 5 {
                    let (place, value) = (at.next().unwrap(), at.next().unwrap());
                    let place = 14 + place as usize % (frame.len() - 14);
                    frame[place] = value as u8;
                }
                frame.truncate(14 + at.next().unwrap() as usize % (frame.len() - 13));
                wire.send(&frame);
            }
        }
    }
    for node in ["a", "b"] {
        stage.until(format!("{node} tells of it"), || {
            let told = stage.events(node);
            told.iter().any(|event| event["event"] == "datagram_refused")
        });
    }
    client.expect_echo(50_000, "after");
    assert_eq!(stage.status("a")["duplex"], true, "the pair is as it was");
    stage.kill_host("a");
    client.expect_echo(50_000, "after the primary's death");
}

fn a_flood_and_forged_segments_cost_no_flow(family: Family) {
    const SYNS: u32 = 20_000;
    let stage = Stage::pair(family);
    let mut clients: Vec<_> = (0..16).map(|_| stage.connect()).collect();
    for client in &mut clients {
        client.expect_echo(30_000, "before");
    }
    // The oracle takes each segment in a client's name for the client's word.
    let attacked = 0..8;
    for client in &clients[attacked.clone()] {
        let client = client.stream.local_addr().unwrap();
        stage.witness.spare(client, "segments are forged in its client's name");
    }
    let host = stage.lab.host("client").unwrap();
    let wire = Wire::new(host, Link::Service);
    // The backup is where clients send.
    let mac = stage.lab.host("b").unwrap().mac(Link::Service);
    let service = family.service();

    for i in 0..SYNS {
        // Hosts that are not there: every handshake stays half open.
        let number = 1024 + (i % 60_000) as u16;
        let from = (family.stranger(number), number).into();
        wire.send(&wire.segment(mac, (from, service), ("S", i, 0), &[]));
    }
    for client in &clients[attacked] {
        let flow = (client.stream.local_addr().unwrap(), service);
        let (seq, ack) = position(&client.stream);
        let forge = |control: (&str, u32, u32), payload: &[u8], damage: bool| {
            let mut frame = wire.segment(mac, flow, control, payload);
            if damage {
                frame[checksum_at(flow)] ^= 0x55;
            }
            wire.send(&frame);
        };
        // In the window, but damaged on the way.
        forge(("A", seq, ack), b"damaged", true);
        forge(("FA", seq, ack), &[], true);
        forge(("R", seq, 0), &[], true);
        for step in 1..64 {
            let far = seq.wrapping_add(step << 26);
            forge(("A", far, ack), b"wild", false);
            forge(("FA", far, ack), b"wild", false);
            forge(("R", far, 0), &[], false);
            // What nobody has sent cannot be acknowledged.
            forge(("A", seq, ack.wrapping_add(step << 22)), &[], false);
        }
    }
    for client in &mut clients {
        client.expect_echo(30_000, "under attack");
    }
    assert_eq!(stage.status("b")["flows"]["tracked"], clients.len(), "every flow is tracked");
    stage.kill_host("a");
    for client in &mut clients {
        client.expect_echo(30_000, "after the primary's death");
    }
    // The data path opens a flow by itself; the daemon's books follow.
    stage.until("b counts the takeovers", || {
        stage.status("b")["takeover"]["adopted"] == clients.len()
    });
    let status = stage.status("b");
    assert_eq!(status["takeover"]["reset"], 0, "{status}");
}

fn an_address_that_another_host_uses_is_refused(family: Family) {
    let stage = Stage::new(family);
    let other = stage.lab.host("other").unwrap();
    let service = family.service().ip();
    let (bits, more) = if service.is_ipv4() { (24, vec![]) } else { (64, vec!["nodad"]) };
    let add = ["address", "add", &format!("{service}/{bits}"), "dev", "svc0"];
    assert!(other.command("ip").args(add).args(more).output().unwrap().status.success());
    let node = stage.start("a", "b", "", KEY);
    stage.until("the daemon gives up", || node.ended().unwrap().is_some());
    assert_eq!(node.ended().unwrap().unwrap().code(), Some(1));
    let log = std::fs::read_to_string(node.log()).unwrap();
    let mac: Vec<String> =
        other.mac(Link::Service).iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(log.contains(&mac.join(":")), "the log does not name {}:\n{log}", mac.join(":"));
    assert!(log.contains(&service.to_string()), "{log}");
}

/// Not hostile, but as bad: nothing could be taken over.
#[test]
fn a_multipath_listener_is_reported_everywhere() {
    undisturbed(|| {
        let stage = Stage::new(Family::V4);
        let server = "import socket\ns = socket.socket(2, 1, 262)\ns.bind(('10.77.0.200', 7000))\n\
                  s.listen()\nwhile True: s.accept()\n";
        std::fs::write(stage.lab.dir().join("multipath.py"), server).unwrap();
        let config = stage.config("a", "b", "").replace("echo.py", "multipath.py");
        let node = stage.start_with("a", config, KEY);
        stage.until("status tells", || stage.status("a")["services"][0]["multipath"] == true);
        // Events are written down by a thread of their own.
        let mut event = None;
        stage.until("an event tells", || {
            event = stage.events("a").into_iter().find(|e| e["event"] == "server_multipath");
            event.is_some()
        });
        let event = event.expect("it was waited for");
        assert!(event["text"].to_string().contains("GODEBUG=multipathtcp=0"), "{event}");
        let mut check = stage.lab.host("a").unwrap().command(stage::binary());
        let check = check.args(["check", "--config"]).arg(node.config()).output().unwrap();
        let said = String::from_utf8_lossy(&check.stdout);
        assert!(said.contains("the server of echo listens with Multipath TCP"), "{said}");
    });
}

#[test]
fn a_wrong_configuration_is_told_by_file_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wrong.toml");
    let cases = [
        ("[node]\nname = \"a\"\nnmae = \"a\"\n", "nmae", 3),
        ("[node]\nname = [\n", "TOML", 2),
        ("[node]\ndetection_ms = 1\n", "detection_ms", 2),
        ("\u{0}\u{1}\u{2}", "TOML", 1),
    ];
    for (text, says, line) in cases {
        std::fs::write(&file, text).unwrap();
        let output =
            Command::new(stage::binary()).args(["node", "--config"]).arg(&file).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{text:?}: {told}");
        assert!(told.contains(says), "{text:?}: {told}");
        let place = format!("{}:{line}", file.display());
        assert!(told.contains(&place), "{text:?} is not placed at {place}: {told}");
    }
}

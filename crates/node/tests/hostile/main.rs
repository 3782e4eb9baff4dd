//! Bad input at the whole product: strangers, garbage, floods, forged segments, wrong
//! configurations. Each is told clearly, none disturbs a connection or keeps it from outliving its
//! server's host.

mod attack;
mod stage;

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;

use lab::Link;
use serde_json::Value;

use attack::{Wire, address4, position};
use stage::{CONTROL_PORT, KEY, PORT, SERVICE, Stage};

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

#[test]
fn a_node_of_another_key_cluster_or_name_does_not_join() {
    let stage = Stage::new();
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
        stage.lab.kill_daemon("b").unwrap();
        let node = stage.lab.node("b").unwrap();
        stage.until("b is gone", || node.ended().unwrap().is_some());
    }
    let mut client = stage.connect();
    client.expect_echo(100_000, "served by a alone");
}

/// Not to be understood is not to be dead: a node that took its neighbour's silence for that would
/// put the service's address on two hosts.
#[test]
fn a_node_of_another_key_does_not_serve_alone_beside_a_living_one() {
    let stage = Stage::new();
    stage.start("a", "b", "", KEY);
    stage.until("a serves alone", || stage.status("a")["role"] == "primary");
    let node = stage.start("b", "a", "", [8; 32]);
    stage.until("b gives up", || node.ended().unwrap().is_some());
    assert_eq!(node.ended().unwrap().unwrap().code(), Some(1));
    let log = std::fs::read_to_string(node.log()).unwrap();
    let peer = stage.lab.host("a").unwrap().ipv4(Link::Service).to_string();
    assert!(log.contains("another key") && log.contains(&peer), "{log}");
    assert!(!log.contains("primary"), "b never served:\n{log}");
    stage.connect().expect_echo(10_000, "served by a alone");
}

#[test]
fn garbage_on_both_links_disturbs_nobody() {
    let stage = Stage::pair();
    let mut client = stage.connect();
    client.expect_echo(50_000, "before");

    let x = stage.lab.host("x").unwrap();
    for (node, peer) in [("a", "b"), ("b", "a")] {
        let node = stage.lab.host(node).unwrap();
        for link in Link::ALL {
            let socket = x.in_netns(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
            for length in (0..80).chain([100, 500, 1400, 9000, 60_000]) {
                let bytes = garbage(length, length as u32);
                socket.send_to(&bytes, (node.ipv4(link), CONTROL_PORT)).unwrap();
            }
            let wire = Wire::new(x, link);
            let mac = node.mac(link);
            // The same in the peer's name.
            let its = stage.lab.host(peer).unwrap().ipv4(link);
            for length in (0..80).chain([500, 1400]) {
                let ends = ((its, CONTROL_PORT), (node.ipv4(link), CONTROL_PORT));
                let bytes = garbage(length, length as u32);
                wire.send(&wire.datagram(mac, ends, &bytes));
            }
            // Frames for the service and in its name, cut and filled at random.
            for seed in 0..300u32 {
                let service = (SERVICE, PORT);
                let stranger = (Ipv4Addr::from(0x0a4d_0000 + (seed & 0xff)), seed as u16);
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
    stage.lab.kill_host("a").unwrap();
    client.expect_echo(50_000, "after the primary's death");
}

#[test]
fn a_flood_and_forged_segments_cost_no_flow() {
    const SYNS: u32 = 20_000;
    let stage = Stage::pair();
    let mut clients: Vec<_> = (0..8).map(|_| stage.connect()).collect();
    for client in &mut clients {
        client.expect_echo(30_000, "before");
    }
    let host = stage.lab.host("client").unwrap();
    let wire = Wire::new(host, Link::Service);
    // The backup is where clients send.
    let mac = stage.lab.host("b").unwrap().mac(Link::Service);
    let service = (SERVICE, PORT);

    for i in 0..SYNS {
        // Hosts that are not there: every handshake stays half open.
        let from = (Ipv4Addr::from(0x0a4d_0000 + 1024 + i % 60_000), 1024 + (i % 60_000) as u16);
        wire.send(&wire.segment(mac, (from, service), ("S", i, 0), &[]));
    }
    for client in &mut clients {
        let flow = (address4(client.stream.local_addr().unwrap()), service);
        let (seq, ack) = position(&client.stream);
        let forge = |control: (&str, u32, u32), payload: &[u8], damage: bool| {
            let mut frame = wire.segment(mac, flow, control, payload);
            if damage {
                frame[14 + 20 + 16] ^= 0x55;
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
    stage.lab.kill_host("a").unwrap();
    for client in &mut clients {
        client.expect_echo(30_000, "after the primary's death");
    }
    let status = stage.status("b");
    assert_eq!(status["takeover"]["adopted"], clients.len(), "{status}");
    assert_eq!(status["takeover"]["reset"], 0, "{status}");
}

#[test]
fn an_address_that_another_host_uses_is_refused() {
    let stage = Stage::new();
    let other = stage.lab.host("other").unwrap();
    let add = ["address", "add", &format!("{SERVICE}/24"), "dev", "svc0"];
    assert!(other.command("ip").args(add).output().unwrap().status.success());
    let node = stage.start("a", "b", "", KEY);
    stage.until("the daemon gives up", || node.ended().unwrap().is_some());
    assert_eq!(node.ended().unwrap().unwrap().code(), Some(1));
    let log = std::fs::read_to_string(node.log()).unwrap();
    let mac: Vec<String> =
        other.mac(Link::Service).iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(log.contains(&mac.join(":")), "the log does not name {}:\n{log}", mac.join(":"));
    assert!(log.contains(&SERVICE.to_string()), "{log}");
}

#[test]
fn a_wrong_configuration_is_told_by_file_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wrong.toml");
    let binary = std::env::var_os("STEADFAST_BIN");
    let binary = binary.unwrap_or(env!("CARGO_BIN_EXE_steadfast").into());
    let cases = [
        ("[node]\nname = \"a\"\nnmae = \"a\"\n", "nmae", 3),
        ("[node]\nname = [\n", "TOML", 2),
        ("[node]\ndetection_ms = 1\n", "detection_ms", 2),
        ("\u{0}\u{1}\u{2}", "TOML", 1),
    ];
    for (text, says, line) in cases {
        std::fs::write(&file, text).unwrap();
        let output = Command::new(&binary).args(["node", "--config"]).arg(&file).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{text:?}: {told}");
        assert!(told.contains(says), "{text:?}: {told}");
        let place = format!("{}:{line}", file.display());
        assert!(told.contains(&place), "{text:?} is not placed at {place}: {told}");
    }
}

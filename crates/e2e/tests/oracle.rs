//! The judge is awake: what must never be is made to happen on the network, behind the product's
//! back, and has to be found.

use demo::find;
use demo::pair::other;
use e2e::{MB, PATIENCE, Scenario};
use oracle::Class;

/// Acknowledges one client segment in the service's name, past every filter of the host: the second
/// emitter that the fence does not allow. Its checksum is a promise that nobody keeps, so no client
/// is disturbed.
const FORGER: &str = r#"
import pathlib, socket, struct, sys

def words(b):  # RFC 1071
    n = sum(struct.unpack("!%dH" % (len(b) // 2), b))
    n = (n & 0xffff) + (n >> 16)
    return (n & 0xffff) + (n >> 16)

s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("svc0", 3))
s.setsockopt(263, 20, 1)  # SOL_PACKET, PACKET_QDISC_BYPASS
pathlib.Path(sys.argv[1]).touch()
while True:
    f = s.recv(1 << 18)
    if f[12:14] != b"\x08\x00" or f[23] != 6:
        continue
    ports, seq, ack, offset = f[34:38], *struct.unpack("!IIB", f[38:47])
    if ports[2:] != b"\x00\x50" or 34 + (offset >> 2) >= len(f):
        continue
    ip = bytes([0x45, 0, 0, 40]) + bytes(4) + bytes([64, 6, 0, 0]) + f[30:34] + f[26:30]
    ip = ip[:10] + struct.pack("!H", 0xffff ^ words(ip)) + ip[12:]
    promise = words(ip[12:] + struct.pack("!HH", 6, 20))
    tcp = ports[2:] + ports[:2] + struct.pack("!IIBBHHH", ack, seq, 0x50, 0x10, 1, promise, 0)
    s.send(f[6:12] + f[0:6] + b"\x08\x00" + ip + tcp)
    break
"#;

#[test]
fn a_second_emitter_is_found() {
    let stage = Scenario::new().clients(1).idle(0).size(MB).up();
    let backup = other(stage.primary());
    let (python, ready) = (find::program("python3", "python3").unwrap(), "forger-listens");
    let ready = stage.pair.lab.dir().join(ready);
    let host = stage.pair.lab.host(backup).unwrap();
    let mut forger = host.command(python).args(["-c", FORGER]).arg(&ready).spawn().unwrap();
    stage.eventually("the forger listens", || ready.exists());
    stage.start_downloads().finish().expect_identical();
    assert!(
        forger.wait_timeout(PATIENCE).unwrap().is_some_and(|s| s.success()),
        "it forged nothing"
    );
    let _ = forger.wait();

    let verdict = stage.verdict();
    let found: Vec<_> = verdict.findings.iter().filter(|f| f.class == Class::I3).collect();
    assert_eq!(found.len(), 1, "{verdict}");
    assert_eq!((found[0].host.as_str(), found[0].more), (backup, 0), "{verdict}");
    // Nobody else is accused.
    assert!(verdict.findings.iter().all(|f| f.host == backup), "{verdict}");
}

#[test]
fn a_quiet_hour_has_nothing_to_report() {
    let stage = Scenario::new().clients(2).size(MB).up();
    let idle = stage.open_idle();
    stage.start_downloads().finish().expect_identical();
    stage.finish_idle(idle);
    let verdict = stage.verdict();
    assert!(verdict.findings.is_empty() && verdict.is_conclusive(), "{verdict}");
    let numbers = &verdict.statistics;
    assert_eq!((numbers.flows, numbers.spans, numbers.late, numbers.wild), (22, 22, 0, 0));
    // Each byte of the downloads was seen where it was sent and where it arrived.
    assert!(numbers.bytes_compared >= 2 * MB, "{verdict}");
    assert!(verdict.exemptions.is_empty(), "{verdict}");
}

//! The daemon dies, and then its server: the kernel of a node whose daemon is dead must say nothing
//! that the application did not say.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use e2e::machine::DETECTION_MS;
use e2e::undisturbed;
use libbpf_rs::Link;
use libbpf_rs::query::LinkInfoIter;

use crate::stage::{Family, Stage};

/// The files that keep the socket hooks of `host`, as seen from outside.
fn pins(stage: &Stage, host: &str) -> Vec<PathBuf> {
    let init = stage.lab.host(host).unwrap().init_pid().unwrap();
    let bpffs = PathBuf::from(format!("/proc/{init}/root/sys/fs/bpf"));
    let inside = |directory: PathBuf| fs::read_dir(directory).unwrap().map(|e| e.unwrap().path());
    let ours = |path: &PathBuf| path.to_string_lossy().contains("/steadfast-");
    inside(bpffs).filter(ours).flat_map(inside).collect()
}

fn links(stage: &Stage, host: &str) -> Vec<u32> {
    let id = |path: PathBuf| Link::open(path).unwrap().info().unwrap().id;
    pins(stage, host).into_iter().map(id).collect()
}

/// Invariants 5 and 8.
#[test]
fn a_server_that_crashes_after_its_daemon_is_silent() {
    undisturbed(|| {
        // The lease runs for longer than it takes to kill both.
        let stage = Stage::pair_with(Family::V4, |config| {
            config.replace(&format!("detection_ms = {DETECTION_MS}\n"), "detection_ms = 750\n")
        });
        let mut clients: Vec<_> = (0..8).map(|_| stage.connect()).collect();
        for client in &mut clients {
            client.expect_echo(30_000, "before");
        }
        let before = Instant::now();
        stage.kill_daemon("a");
        let daemon = stage.lab.node("a").unwrap();
        stage.until("the daemon is dead", || daemon.ended().unwrap().is_some());
        stage.crash_server("a", libc::SIGKILL);
        assert!(before.elapsed() < Duration::from_millis(600), "too slow to show anything");
        for client in &mut clients {
            client.expect_echo(30_000, "after both have died");
        }
        // The data path opens a flow by itself; the daemon's books follow.
        stage.until("b counts the takeovers", || {
            stage.status("b")["takeover"]["adopted"] == clients.len()
        });
        let status = stage.status("b");
        assert_eq!(status["takeover"]["reset"], 0, "{status}");
    });
}

/// The supervisor learns of it when the last process has ended, the data path at once.
#[test]
fn a_server_in_the_background_crashes_like_any_other() {
    undisturbed(|| {
        let stage = Stage::pair_with(Family::V4, |config| {
            let (before, rest) = config.split_once("command = [").unwrap();
            let (words, after) = rest.split_once(']').unwrap();
            let words = words.replace("\", \"", " ").replace('"', "");
            format!("{before}command = [\"sh\", \"-c\", \"setsid {words} & exit 0\"]{after}")
        });
        let mut client = stage.connect();
        client.expect_echo(30_000, "before");
        for node in ["a", "b"] {
            let told = stage.events(node);
            assert!(told.iter().any(|e| e["event"] == "server_backgrounded"), "{node}: {told:?}");
        }
        stage.crash_server("a", libc::SIGSEGV);
        client.expect_echo(30_000, "after the crash");
        // The data path opens a flow by itself; the daemon's books follow.
        stage.until("b counts the takeover", || stage.status("b")["takeover"]["adopted"] == 1);
        // It is started again, and its node protects the other.
        stage.until("a is the backup", || stage.status("a")["role"] == "backup");
        client.expect_echo(30_000, "later");
    });
}

/// Invariant 6. The server repeats what the client has, long after its kernel has read the whole
/// log, and the daemon is not needed any more.
#[test]
fn a_child_swallows_on_after_its_daemon_died() {
    undisturbed(|| {
        const BYTES: u64 = 40_000;
        let stage = Stage::pair_with(Family::V4, |config| {
            config.replace("\"7000\"]", "\"7000\", \"0.02\"]")
        });
        let mut client = stage.connect();
        client.expect_echo(BYTES, "before");
        stage.kill_host("a");
        stage.until("the child is open", || stage.status("b")["flows"]["open"] == 1);
        let swallowed = stage.status("b")["counters"]["swallowed_bytes"].as_u64().unwrap();
        stage.kill_daemon("b");
        assert!(swallowed < BYTES / 2, "{swallowed} bytes are swallowed already");
        // Longer than the repetition takes, and than the lease lasts.
        client.stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let heard = std::io::Read::read(&mut client.stream, &mut [0; 1]);
        let silent = heard.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        assert!(silent, "the client heard what it had: {heard:?}");
    });
}

#[test]
fn a_takeover_tells_its_steps() {
    undisturbed(|| {
        const DETECTION_NS: u64 = DETECTION_MS as u64 * 1_000_000;
        let stage = Stage::pair(Family::V4);
        let mut clients: Vec<_> = (0..4).map(|_| stage.connect()).collect();
        for client in &mut clients {
            client.expect_echo(30_000, "before");
        }
        assert_eq!(stage.status("b")["takeover"]["steps"], serde_json::Value::Null);
        stage.kill_host("a");
        for client in &mut clients {
            client.expect_echo(30_000, "after");
        }
        let status = stage.status("b");
        let at = |step: &str| {
            let shown = &status["takeover"]["steps"][step];
            assert!(shown["time"].is_string(), "{step}: {status}");
            shown["boottime_ns"].as_u64().unwrap()
        };
        let steps = ["last_heard", "suspected", "promoted", "first_open", "last_open"].map(at);
        assert!(steps.is_sorted(), "{steps:?}");
        assert!(steps[1] - steps[0] >= DETECTION_NS, "{steps:?}");
        // Another thread writes the events down.
        stage.until("b says that all flows are open", || {
            stage.events("b").iter().any(|e| e["event"] == "all_open")
        });
        let told: Vec<String> = stage.events("b").iter().map(|e| e["event"].to_string()).collect();
        let place = |name: &str| told.iter().position(|e| e.contains(name)).expect(name);
        let told = ["suspected", "promoted", "first_open", "all_open"].map(place);
        assert!(told.is_sorted(), "{told:?}");
    });
}

#[test]
fn nothing_stays_in_the_kernel() {
    undisturbed(|| {
        let stage = Stage::pair(Family::V4);
        let first = links(&stage, "a");
        assert_eq!(first.len(), 2, "both hooks are kept");

        // A daemon that is killed leaves them to the next.
        stage.kill_daemon("a");
        let dead = stage.lab.node("a").unwrap();
        stage.until("the daemon is dead", || dead.ended().unwrap().is_some());
        assert_eq!(links(&stage, "a"), first);
        let next = stage.lab.start_again("a").unwrap();
        // Or the primary again, if it was faster than the detection.
        stage.until("the next is ready", || stage.status("a")["ready"] == true);
        assert_eq!(links(&stage, "a"), first);

        // One that is told to stop takes them along.
        next.signal(libc::SIGTERM).unwrap();
        stage.until("it leaves", || next.ended().unwrap().is_some());
        assert_eq!(pins(&stage, "a"), Vec::<PathBuf>::new());

        // And a host that vanishes leaves nothing on the machine.
        let all: Vec<u32> = first.into_iter().chain(links(&stage, "b")).collect();
        assert_eq!(all.len(), 4);
        drop(stage);
        let deadline = Instant::now() + Duration::from_secs(20);
        while LinkInfoIter::default().any(|link| all.contains(&link.id)) {
            assert!(Instant::now() < deadline, "the hooks of dead hosts are still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

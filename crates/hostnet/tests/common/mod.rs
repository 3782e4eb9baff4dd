//! Network namespaces for tests: nothing here touches the machine's own network.
//!
//! A namespace lives as long as its descriptor; the devices in it go with it, so a test that
//! panics cleans up as well as one that passes. Needs root and `ip` (iproute2).
#![allow(dead_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};

/// How long any condition may take to come true; far more than it needs.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A fresh network namespace, with `lo` up.
pub struct Namespace {
    handle: File,
}

impl Namespace {
    pub fn new() -> Namespace {
        let handle = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("these tests make namespaces: run as root");
            File::open("/proc/thread-self/ns/net").unwrap()
        })
        .join()
        .unwrap();
        let namespace = Namespace { handle };
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs `work` on a thread of its own inside the namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(&self.handle, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            // Carry the panic itself over, so that the test shows its message.
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs one `ip` command, its arguments separated by spaces, inside the namespace.
    pub fn ip(&self, arguments: &str) -> String {
        self.run(|| {
            let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "ip {arguments}: {complaint}");
            String::from_utf8(output.stdout).unwrap()
        })
    }

    pub fn write(&self, path: &str, text: &str) {
        self.run(|| std::fs::write(path, text).unwrap_or_else(|e| panic!("{path}: {e}")));
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.handle.as_raw_fd())
    }
}

/// Two namespaces joined by a veth pair, `eth0` at either end, up, without addresses of their
/// own choosing (no IPv6 link-local duplicate detection to wait for).
pub fn joined() -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new(), Namespace::new());
    a.ip(&format!("link add eth0 type veth peer name eth0 netns {}", b.path()));
    for side in [&a, &b] {
        side.write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0");
        side.ip("link set eth0 up");
    }
    until("the veth pair has carrier", || a.ip("-br link show eth0").contains("LOWER_UP"));
    (a, b)
}

/// Waits for a condition, and says which one never came true.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `fd` is readable; false if `patience` runs out first.
pub fn readable(fd: &impl std::os::fd::AsFd, patience: Duration) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(patience).unwrap()).unwrap() > 0
}

//! Servers that tests run, and their clients.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::resume_unwind;
use std::process::{self, Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Servers begin and end within it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that is ended with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ended = self.0.kill().and_then(|()| self.0.wait());
        }
    }
}

impl Running {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the server is there");
    }

    pub fn end(&mut self) -> ExitStatus {
        let mut status = None;
        until("the server ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.expect("it has ended")
    }
}

/// A server with all its processes, of which none is left over. Some of them leave their group.
pub struct Family {
    /// Waited for as the last one: from then on its number, which is its group's, may be somebody else's.
    first: Running,
    has_ended: bool,
}

impl Family {
    /// Of one that was begun as the first of a group.
    pub fn of(first: Running) -> Family {
        Family { first, has_ended: false }
    }

    /// Those that live.
    fn members(&self) -> Vec<Pid> {
        let all = parents();
        let mut members = vec![self.first.pid()];
        for at in 0.. {
            let Some(&parent) = members.get(at) else { break };
            members.extend(all.iter().filter(|(_, its)| *its == parent).map(|(child, _)| child));
        }
        members.retain(|&pid| lives(pid));
        members
    }

    /// Signals its first process, or kills all; and waits for the end of all.
    pub fn end(mut self, with: Signal) -> ExitStatus {
        let members = self.members();
        match with {
            Signal::SIGKILL => self.kill(),
            _ => self.first.signal(with),
        }
        until("its processes end", || !members.iter().any(|&pid| lives(pid)));
        self.kill_group();
        self.has_ended = true;
        self.first.end()
    }

    /// Kills them all at the same moment: none finds out that another one is there no more.
    fn kill(&self) {
        let mut stopped = Vec::new();
        while let Some(&next) = self.members().iter().find(|pid| !stopped.contains(*pid)) {
            // It may have ended.
            let _stopped = kill(next, Signal::SIGSTOP);
            stopped.push(next);
        }
        // Parents last: the kernel has those go on that are stopped when their parents end.
        for pid in stopped.into_iter().rev() {
            let _killed = kill(pid, Signal::SIGKILL);
        }
        self.kill_group();
    }

    /// Those of them whose parents have ended.
    fn kill_group(&self) {
        let _killed = killpg(self.first.pid(), Signal::SIGKILL);
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if !self.has_ended {
            self.kill();
        }
    }
}

/// All processes, with their parents.
fn parents() -> Vec<(Pid, Pid)> {
    let number = |text: &str| text.parse().ok().map(Pid::from_raw);
    let processes = fs::read_dir("/proc").expect("/proc is there").flatten();
    let both = |entry: fs::DirEntry| {
        let pid = number(entry.file_name().to_str()?)?;
        Some((pid, number(&stat(pid)?[1])?))
    };
    processes.filter_map(both).collect()
}

/// Whether there is such a process, and more of it than its status.
fn lives(pid: Pid) -> bool {
    stat(pid).is_some_and(|words| words[0] != "Z" && words[0] != "X")
}

/// What the kernel says of a process, behind its name: its state, its parent's number, and so on.
fn stat(pid: Pid) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind) = text.rsplit_once(") ")?;
    Some(behind.split(' ').map(str::to_owned).collect())
}

/// Waits until it is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "it does not come to it that {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Ports that one test has for itself.
pub const PORTS: u16 = 32;

/// Where nobody listens, nor at the [`PORTS`] from there on. They are none of those that the kernel gives to
/// clients: one of these could be taken when a replay wants to listen there again.
pub fn free_port() -> SocketAddr {
    const FIRST: u32 = 10_000;
    const BLOCKS: u32 = (32_768 - FIRST) / PORTS as u32;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |at: &SocketAddr| TcpListener::bind(at).is_ok();
    // Tests of two processes begin at other places.
    let from = process::id().wrapping_mul(37);
    for _ in 0..BLOCKS {
        let block = from.wrapping_add(NEXT.fetch_add(1, Relaxed)) % BLOCKS;
        let first = (FIRST + block * u32::from(PORTS)) as u16;
        let mut all = (first..first + PORTS).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        if all.all(|at| is_free(&at)) {
            return SocketAddr::from(([127, 0, 0, 1], first));
        }
    }
    panic!("{PORTS} ports in a row are nowhere free");
}

/// Whether somebody listens there.
pub fn listens(at: SocketAddr) -> bool {
    TcpStream::connect(at).is_ok()
}

/// How many clients come at once.
pub const CLIENTS: usize = 6;

/// So many clients at once, with their numbers; what each has come back with.
pub fn at_once<T: Send>(client: impl Fn(usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let client = &client;
        let clients: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || client(n))).collect();
        // A client that fails has the test fail, with its words.
        let ends =
            |client: ScopedJoinHandle<T>| client.join().unwrap_or_else(|why| resume_unwind(why));
        clients.into_iter().map(ends).collect()
    })
}

/// What a client prints that ends well, and in time.
#[track_caller]
pub fn printed(client: &mut Command) -> Vec<u8> {
    let mut timeout = Command::new("timeout");
    timeout.arg("30").arg(client.get_program()).args(client.get_args());
    let output = timeout.output().expect("timeout is there");
    let (status, says) = (output.status, String::from_utf8_lossy(&output.stderr));
    let prints = String::from_utf8_lossy(&output.stdout);
    assert!(status.success(), "{client:?} ends with {status}: {says}{prints}");
    output.stdout
}

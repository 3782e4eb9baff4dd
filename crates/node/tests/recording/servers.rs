//! Servers with their clients: recorded, replayed, and gone on with for real. None of them knows.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use demo::server::{Place, Server};
use demo::site::Site;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::guests::serving::{Running, download, free_port};
use crate::{Ended, steadfast};
use tempfile::TempDir;

const CLIENTS: usize = 6;
const REPLAYS: usize = 3;
/// Servers begin within it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that is recorded.
struct Recorded {
    server: Server,
    at: std::net::SocketAddr,
    expected: Vec<u8>,
    /// What the server needs and writes, in `work`; what it was to begin with, in `before`; the recording.
    folder: TempDir,
}

impl Recorded {
    fn begin(server: Server) -> (Recorded, Running) {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().join("work");
        fs::create_dir(&work).unwrap();
        // Workers give up their rights, and must reach the files all the same.
        let open = |path: &Path| assert!(did(Command::new("chmod").arg("755").arg(path)));
        open(folder.path());
        open(&work);
        let site = Site::create(&folder.path().join("site"), 1_000_000).unwrap();
        let at = free_port();
        let place = Place { node: "n", dir: &work, site: &site, at };
        let words = server.command(&place).unwrap();
        assert!(did(Command::new("cp").arg("-a").arg(&work).arg(folder.path().join("before"))));
        let expected = fs::read(site.root().join(Site::LARGE.trim_start_matches('/'))).unwrap();
        let mut command = plain();
        command.args(["record", "-o"]).arg(folder.path().join("recording")).arg("--").args(words);
        // A group of its own: it may signal all of it, and it is killed as a whole.
        let running = Running(command.current_dir(&work).process_group(0).spawn().unwrap());
        let recorded = Recorded { server, at, expected, folder };
        recorded.serves();
        (recorded, running)
    }

    /// Clients get what is in the files.
    fn serves(&self) {
        self.answers();
        let client = || {
            for _ in 0..3 {
                let same = download(self.at, Site::LARGE) == self.expected;
                assert!(same, "{} sends something else", self.server);
            }
        };
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    }

    /// Waits until it does. (Some listen, and stop listening, while they begin.)
    fn answers(&self) {
        let begun = Instant::now();
        let url = format!("http://{}{}", self.at, Site::LARGE);
        let curl =
            || Command::new("curl").args(["-sfI", "--max-time", "5", &url]).output().unwrap();
        while !curl().status.success() {
            assert!(begun.elapsed() < PATIENCE, "{} does not answer", self.server);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Has this replay it, where nothing is yet of what it has written.
    fn replay(&self, mut command: Command) -> Command {
        let work = self.folder.path().join("work");
        fs::remove_dir_all(&work).unwrap();
        assert!(did(Command::new("cp")
            .arg("-a")
            .arg(self.folder.path().join("before"))
            .arg(&work)));
        command.arg("replay").arg(self.folder.path().join("recording"));
        command
    }
}

fn did(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

/// Without anybody who waits for it, and would get its signals.
fn plain() -> Command {
    Command::new(env!("CARGO_BIN_EXE_steadfast"))
}

/// Processes in a group of their own, of which none is left over.
struct Group(Pid);

impl Group {
    fn of(running: &Running) -> Group {
        Group(Pid::from_raw(running.0.id().cast_signed()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // There may be none any more.
        let _killed = killpg(self.0, Signal::SIGKILL);
    }
}

/// Ended as its operator ends it, and replayed: `whole` if it ends itself.
fn replayed(server: Server, ends_with: Signal, whole: bool) {
    let (recorded, running) = Recorded::begin(server);
    let _group = Group::of(&running);
    running.signal(ends_with);
    running.end();
    for _ in 0..REPLAYS {
        let replay = Ended::of(recorded.replay(steadfast()).output());
        let last = if whole { "to where it ended with status 0\n" } else { "or still runs\n" };
        assert!(replay.status == Some(0) && replay.says.ends_with(last), "{server}: {replay:?}");
    }
}

/// Killed with all its processes, and gone on with.
fn goes_on(server: Server, ends_with: Signal) {
    let (recorded, running) = Recorded::begin(server);
    drop(Group::of(&running));
    running.end();
    let mut live = recorded.replay(plain());
    let live = Running(live.arg("--go-live").process_group(0).spawn().unwrap());
    let _group = Group::of(&live);
    recorded.serves();
    live.signal(ends_with);
    live.end();
}

macro_rules! servers {
    ($($name:ident: $server:ident, $signal:ident, $whole:literal;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn is_replayed() {
                replayed(Server::$server, Signal::$signal, $whole);
            }

            #[test]
            fn goes_on_for_real() {
                goes_on(Server::$server, Signal::$signal);
            }
        }
    )*};
}

servers! {
    nginx: Nginx, SIGQUIT, true;
    apache: Apache, SIGTERM, true;
    python: Python, SIGTERM, false;
    busybox: Busybox, SIGTERM, false;
}

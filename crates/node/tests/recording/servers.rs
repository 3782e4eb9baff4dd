//! Servers with their clients: recorded, replayed, and gone on with for real. None of them knows.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::guests::servers::{self, Place, Server};
use crate::guests::serving::{Family, Running, free_port, until};
use crate::{Ended, replays, steadfast};

/// A server that is recorded.
struct Recorded {
    place: Place,
    server: Server,
}

impl Recorded {
    fn begin(set_up: fn(&Place) -> Server) -> (Recorded, Family) {
        let place = Place::new(free_port());
        let server = set_up(&place);
        copy(&place.work(), &place.path("before"));
        let mut command = plain();
        command.args(["record", "-o"]).arg(place.path("recording")).arg("--").args(&server.command);
        let recorded = Recorded { place, server };
        let family = recorded.start(command);
        (recorded, family)
    }

    /// Starts it in a group of its own: it may signal all of it, and it is killed as a whole.
    fn start(&self, mut command: Command) -> Family {
        let first = command.current_dir(self.place.work()).process_group(0).spawn().unwrap();
        Family::of(Running(first))
    }

    /// Clients get what they should.
    fn serves(&self) {
        until("the server answers", &self.server.answers);
        (self.server.serves)();
    }

    /// Has this replay it, where nothing is yet of what it has written.
    fn replay(&self, mut command: Command) -> Command {
        fs::remove_dir_all(self.place.work()).expect("its folder is there");
        copy(&self.place.path("before"), &self.place.work());
        command.arg("replay").arg(self.place.path("recording"));
        command
    }
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status().expect("cp is there");
    assert!(status.success(), "cannot copy {}: {status}", from.display());
}

/// Without anybody who waits for it, and would get its signals.
fn plain() -> Command {
    Command::new(env!("CARGO_BIN_EXE_steadfast"))
}

/// Ended as its operator ends it, and replayed.
fn is_replayed(set_up: fn(&Place) -> Server) {
    let (recorded, family) = Recorded::begin(set_up);
    recorded.serves();
    let end = recorded.server.end;
    end.expect(family.end(end.signal));
    let trace = crate::trace(&recorded.place.path("recording"));
    let last = trace.lines().next_back().expect("there are records");
    // Of whichever process was the last one: it may have outlived the server.
    let whole = match last.split_once("it ends with status ") {
        Some((_, status)) => format!("to where it ended with status {status}\n"),
        None => "there are no more: the program was killed, or still runs\n".to_owned(),
    };
    let was_killed = whole.starts_with("there are no more");
    assert!(!was_killed || end.status.is_none(), "it has ended by itself: {last}");
    for _ in 0..replays() {
        let replay = Ended::of(recorded.replay(steadfast()).output());
        assert!(replay.status == Some(0) && replay.says.ends_with(&whole), "{replay:?}");
    }
}

/// Killed with all its processes, and gone on with.
fn goes_on(set_up: fn(&Place) -> Server) {
    let (recorded, family) = Recorded::begin(set_up);
    recorded.serves();
    family.end(Signal::SIGKILL);
    let mut live = recorded.replay(plain());
    live.arg("--go-live");
    let family = recorded.start(live);
    recorded.serves();
    let end = recorded.server.end;
    end.expect(family.end(end.signal));
}

macro_rules! tests {
    ($($name:ident)*) => {$(
        mod $name {
            use crate::guests::servers::$name;

            #[test]
            fn is_replayed() {
                super::is_replayed($name);
            }

            #[test]
            fn goes_on_for_real() {
                super::goes_on($name);
            }
        }
    )*};
}

servers::each!(tests);

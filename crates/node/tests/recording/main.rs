//! Programs are recorded, and do the same again.
//!
//! Each guest in `guests/` prints what it sees, which is another each time. What a replay prints is not
//! shown; it is compared with what was recorded, byte by byte, as is everything that it asks for.

mod bad;
mod good;
#[path = "../guests/mod.rs"]
mod guests;
mod servers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use guests::{Linked, PATIENCE};
use tempfile::TempDir;

/// A program to record, and the folder that it runs in.
struct Case {
    folder: TempDir,
    program: PathBuf,
    args: Vec<String>,
}

impl Case {
    fn guest(name: &str, linked: Linked, args: &[&str]) -> Case {
        Case::of(guests::guest("recording", name, linked), args)
    }

    fn of(program: PathBuf, args: &[&str]) -> Case {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        let case = Case { folder: tempfile::tempdir().expect("a folder"), program, args };
        fs::create_dir(case.work()).expect("a folder");
        case
    }

    /// Where the program runs.
    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn recording(&self) -> PathBuf {
        self.folder.path().join("recording")
    }

    fn records(&self) -> PathBuf {
        self.recording().join("records")
    }

    /// The words that record it.
    fn command(&self) -> Command {
        let mut command = steadfast();
        command.arg("record").arg("-o").arg(self.recording()).arg("--");
        command.arg(&self.program).args(&self.args).current_dir(self.work());
        command
    }

    /// The same without anybody who waits for it, and would get its signals.
    fn alone(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
        command.args(self.command().get_args().skip(4)).current_dir(self.work());
        command
    }

    fn record(&self) -> Ended {
        Ended::of(self.command().output())
    }

    /// Replays it where there is nothing yet of what it has left.
    fn replay(&self) -> Ended {
        self.clear();
        let mut command = steadfast();
        Ended::of(command.arg("replay").arg(self.recording()).output())
    }

    /// Nothing is left of what the program has written.
    fn clear(&self) {
        fs::remove_dir_all(self.work()).and_then(|()| fs::create_dir(self.work())).unwrap();
    }

    fn trace(&self) -> String {
        trace(&self.recording())
    }
}

/// A line for each record.
fn trace(recording: &Path) -> String {
    let trace = Ended::of(steadfast().arg("trace").arg(recording).output());
    assert_eq!(trace.status, Some(0), "{}", trace.says);
    trace.prints
}

/// What a command has come to.
#[derive(Debug)]
struct Ended {
    status: Option<i32>,
    prints: String,
    says: String,
}

impl Ended {
    fn of(output: std::io::Result<Output>) -> Ended {
        let output = output.expect("timeout is there");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (prints, says) = (text(&output.stdout), text(&output.stderr));
        Ended { status: output.status.code(), prints, says }
    }

    /// A replay has come to the end, with everything as it was.
    #[track_caller]
    fn expect_whole(&self, status: i32) {
        let last = format!("to where it ended with status {status}\n");
        assert!(
            self.says.starts_with("steadfast: replayed ") && self.says.ends_with(&last),
            "{self:?}"
        );
        assert_eq!((self.status, self.prints.as_str()), (Some(0), ""), "nothing is said twice");
    }

    /// It has failed, and says this.
    #[track_caller]
    fn expect_refused(&self, why: &str) {
        assert!(self.status == Some(1) && self.says.contains(why), "not {why:?}: {self:?}");
    }
}

fn steadfast() -> Command {
    let mut timeout = Command::new("timeout");
    timeout.args(["--kill-after", "5", PATIENCE]).arg(Path::new(env!("CARGO_BIN_EXE_steadfast")));
    timeout.env("GUEST", "some words");
    timeout
}

/// How often a recording is replayed.
fn replays() -> usize {
    let asked = std::env::var("STEADFAST_REPLAYS").ok();
    asked.map_or(3, |text| text.parse().expect("STEADFAST_REPLAYS is a number"))
}

//! Programs under the in-process runtime: they see what they see without it, and it owns every system
//! call they make.
//!
//! Each guest in `guests/` is about one kind of behaviour, and prints what it finds. It runs twice, as
//! it is and under the runtime, and both outputs must be the same, to the byte. Under the runtime it
//! is started by the guest `prove`, whose filter kills whoever makes a call elsewhere.

mod behaviours;
mod collections;
#[path = "../guests/mod.rs"]
mod guests;
mod servers;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use guests::{Linked, PATIENCE};

/// The guest's program.
fn guest(name: &str, linked: Linked) -> PathBuf {
    guests::guest("passthrough", name, linked)
}

/// What `command` printed, and how it ended, after it was run in a folder of its own.
fn run(command: &[&Path]) -> (String, ExitStatus) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("output");
    let output = File::create(&path).expect("a file");
    let mut timeout = Command::new("timeout");
    timeout.args(["--kill-after", "5", PATIENCE]).args(command);
    timeout.env("GUEST", "some words").current_dir("/");
    let status = timeout.stdout(output.try_clone().unwrap()).stderr(output).status();
    let printed = fs::read(&path).expect("what it printed");
    (String::from_utf8_lossy(&printed).into_owned(), status.expect("timeout is there"))
}

/// The words that start a program under the runtime; the first call that is not owned kills it.
fn proved() -> Vec<PathBuf> {
    let steadfast = PathBuf::from(env!("CARGO_BIN_EXE_steadfast"));
    let words = ["passthrough".into(), "--".into(), guest("prove", Linked::Dynamically)];
    std::iter::once(steadfast).chain(words).collect()
}

/// Runs `command` as it is and under the runtime; what it printed both times.
fn same(command: &[&Path]) -> String {
    let (printed, status) = run(command);
    let words = proved();
    let under = words.iter().map(PathBuf::as_path).chain(command.iter().copied());
    let (printed_under, status_under) = run(&under.collect::<Vec<_>>());
    let both = format!(
        "--- as it is ({status}):\n{printed}--- under the runtime ({status_under}):\n{printed_under}"
    );
    assert!(printed == printed_under, "{command:?} sees something else\n{both}");
    assert_eq!(status, status_under, "{command:?} ends in another way\n{both}");
    printed
}

//! Small programs in C that tests run, and what servers need that are run by tests.

pub mod servers;
pub mod serving;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// A guest that takes longer hangs: `timeout` ends it, and says so with a status of its own.
pub const PATIENCE: &str = "120";

/// How a guest is linked.
#[derive(Clone, Copy, Debug)]
pub enum Linked {
    Dynamically,
    Statically,
}

/// The program of a guest of these tests, compiled once.
pub fn guest(tests: &str, name: &str, linked: Linked) -> PathBuf {
    // One after the other: tests that want the same guest wait for it.
    static COMPILER: Mutex<()> = Mutex::new(());
    let _turn = COMPILER.lock().unwrap_or_else(|broken| broken.into_inner());
    let (suffix, options): (_, &[&str]) = match linked {
        Linked::Dynamically => ("", &[]),
        Linked::Statically => ("-static", &["-static"]),
    };
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{tests}-{name}{suffix}"));
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let source = all.join(tests).join(format!("guests/{name}.c"));
    let changed = |file: &Path| fs::metadata(file).and_then(|known| known.modified()).ok();
    let newest = changed(&source).max(changed(&all.join("guests/guest.h")));
    if changed(&program) <= newest {
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(options);
        compiler.arg("-I").arg(all.join("guests"));
        let status = compiler.arg("-o").args([&program, &source]).status().expect("cc is there");
        assert!(status.success(), "{} does not compile: {status}", source.display());
    }
    program
}

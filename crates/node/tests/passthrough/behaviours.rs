//! One test for each guest, and some for how programs begin and end.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use crate::{Linked, guest, proved, run, same};

fn both_ways(name: &str, args: &[&str]) -> String {
    let args: Vec<&Path> = args.iter().map(Path::new).collect();
    let seen = [Linked::Dynamically, Linked::Statically].map(|linked| {
        let program = guest(name, linked);
        let command: Vec<&Path> = [program.as_path()].into_iter().chain(args.clone()).collect();
        same(&command)
    });
    let [dynamic, _] = seen;
    assert!(!dynamic.contains("line "), "a condition does not hold even without the runtime");
    dynamic
}

#[test]
fn a_program_begins() {
    let seen = both_ways("begin", &["one", "two words", ""]);
    assert!(seen.contains("environment: GUEST=some words\n"), "{seen}");
    assert!(seen.contains("argv: two words\n"), "{seen}");
}

#[test]
fn signals_are_handled() {
    both_ways("signals", &[]);
}

#[test]
fn signals_that_the_runtime_needs() {
    both_ways("held", &[]);
}

#[test]
fn a_signal_at_every_instruction_of_a_call() {
    both_ways("steps", &[]);
}

#[test]
fn signals_at_every_moment() {
    both_ways("storm", &[]);
}

#[test]
fn signals_that_restart_calls_at_every_moment() {
    both_ways("storm", &["restart"]);
}

#[test]
fn threads() {
    both_ways("threads", &[]);
}

#[test]
fn processes_and_what_they_execute() {
    let folder = tempfile::tempdir().unwrap();
    both_ways("processes", &[folder.path().to_str().unwrap()]);
}

#[test]
fn calls_that_cannot_be_made() {
    both_ways("mistakes", &[]);
}

#[test]
fn what_is_the_runtimes_own() {
    both_ways("own", &[]);
}

#[test]
fn seccomp() {
    // Under a filter that kills, another one cannot trap: this one is its own proof.
    let program = guest("sandbox", Linked::Dynamically);
    let (printed, status) = run(&[&program]);
    let steadfast = Path::new(env!("CARGO_BIN_EXE_steadfast"));
    let words = [steadfast, Path::new("passthrough"), Path::new("--"), &program];
    let (printed_under, status_under) = run(&words);
    assert_eq!((&printed, status), (&printed_under, status_under));
    assert!(printed.contains("sandboxed: 0\n"), "{printed}");
}

#[test]
fn a_call_that_is_not_owned_is_found() {
    let prove = guest("prove", Linked::Dynamically);
    let (_, status) = run(&[&prove, Path::new("/bin/true")]);
    assert_eq!(status.signal(), Some(libc::SIGSYS));
}

#[test]
fn features_that_no_recording_could_follow_are_absent() {
    let seen = |command: &[&Path]| run(command).0;
    let program = guest("absent", Linked::Dynamically);
    let steadfast = Path::new(env!("CARGO_BIN_EXE_steadfast"));
    let printed = seen(&[steadfast, Path::new("passthrough"), Path::new("--"), &program]);
    let expected = "io_uring_setup: ENOSYS\nio_setup: ENOSYS\nrseq: ENOSYS\n\
        syscall_user_dispatch: EINVAL\narch_prctl: EPERM\nmmap: EINVAL\nmunmap: EINVAL\n";
    assert_eq!(printed, expected);
}

/// What a user reads who cannot have what they asked for; and the status, as shells have it.
#[test]
fn what_cannot_be_executed_is_named() {
    let run = |program: &str| {
        let mut steadfast = Command::new(env!("CARGO_BIN_EXE_steadfast"));
        let output = steadfast.args(["passthrough", "--", program]).output().unwrap();
        (String::from_utf8(output.stderr).unwrap(), output.status.code())
    };
    let (said, status) = run("/etc/passwd");
    let expected = "steadfast: cannot execute \"/etc/passwd\": it may not be executed\n";
    assert_eq!((said.as_str(), status), (expected, Some(126)));
    let (said, status) = run("/nonexistent/program");
    let expected = "steadfast: cannot execute \"/nonexistent/program\": there is no such file\n";
    assert_eq!((said.as_str(), status), (expected, Some(127)));
    let (said, status) = run("no-such-program");
    let expected = "steadfast: there is no program \"no-such-program\" in PATH\n";
    assert_eq!((said.as_str(), status), (expected, Some(127)));
}

#[test]
fn interpreters_and_their_children() {
    for script in [
        "import subprocess as s; print(s.check_output(['sh', '-c', 'echo $((6 * 7))']))",
        "import threading as t; a = [t.Thread(target=print, args=(i,)) for i in range(9)]\n\
         for i in a: i.start(); i.join()",
        "import os; print(os.readlink('/proc/self/exe')); os.abort()",
    ] {
        same(&[Path::new("python3"), Path::new("-c"), Path::new(script)]);
    }
    let shell = "for i in 1 2 3; do echo $i | tr 1-3 a-c; done; trap 'echo usr1' USR1; kill -USR1 $$; \
                 (exit 4); echo $?; cat < /proc/self/cmdline | tr '\\0' ' '";
    same(&[Path::new("/bin/bash"), Path::new("-c"), Path::new(shell)]);
    let [first, ..] = &proved()[..] else { unreachable!("there are words") };
    same(&[Path::new("/bin/ls"), first.parent().unwrap()]);
}

/// Whoever executes a program without rights is told the same about it.
#[test]
fn an_unprivileged_program_finds_itself() {
    let program = "import os, sys; os.setgid(65534); os.setuid(65534)\n\
        os.execv('/bin/sh', ['sh', '-c', 'readlink /proc/self/exe; exec readlink /proc/self/exe'])";
    let seen = same(&[Path::new("python3"), Path::new("-c"), Path::new(program)]);
    assert!(seen.ends_with("/readlink\n") || seen.contains("coreutils"), "{seen}");
}

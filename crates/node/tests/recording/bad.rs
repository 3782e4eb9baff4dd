//! What cannot be recorded, or replayed: it is said, and nothing is guessed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::guests::{Linked, guest};
use crate::{Case, Ended};

fn recorded(name: &str) -> Case {
    let case = Case::guest(name, Linked::Statically, &[]);
    assert_eq!(case.record().status, Some(0));
    case
}

/// Recording ends at what it does not know, with its name; the program does not notice.
#[test]
fn a_recording_ends_before_it_would_have_to_guess() {
    for what in ["clone", "ioctl", "prctl"] {
        let case = Case::guest("ends", Linked::Dynamically, &[what]);
        let alone = Ended::of(Command::new(&case.program).arg(what).output());
        let seen = case.record();
        assert_eq!((seen.status, seen.prints), (Some(7), alone.prints), "{}", seen.says);
        let ends = format!("the recording ends here: {what}(");
        assert!(seen.says.contains(&ends), "{}", seen.says);
        let replayed = case.replay();
        assert_eq!(replayed.status, Some(0));
        assert!(replayed.says.contains(&ends), "{}", replayed.says);
        assert!(case.trace().contains(&format!("{what}(")));
    }
}

/// A thread that waits for another one without a system call has the others wait for it: that is not recorded
/// for ever, and they go on.
#[test]
fn a_thread_makes_no_calls() {
    let case = Case::guest("spins", Linked::Dynamically, &[]);
    let seen = case.record();
    assert_eq!((seen.status, seen.prints.as_str()), (Some(0), "flag: 1\n"), "{}", seen.says);
    let ends = "the recording ends here: thread 2 makes no system calls";
    assert!(seen.says.contains(ends), "{}", seen.says);
    assert!(case.trace().lines().last().unwrap().contains("thread 2 makes no system calls"));
}

/// All that a program had written when it was killed is there.
#[test]
fn a_program_is_killed() {
    let mut case = Case::guest("ends", Linked::Dynamically, &["killed"]);
    let mut command = Command::new("timeout");
    command.args(["--signal", "KILL", "0.5"]).arg(env!("CARGO_BIN_EXE_steadfast"));
    command.args(case.alone().get_args()).current_dir(case.work());
    let seen = Ended::of(command.output());
    let replayed = case.replay();
    assert_eq!(replayed.status, Some(0));
    assert!(replayed.says.contains("there are no more: the program was killed"), "{replayed:?}");
    let again = case.trace().lines().filter(|line| line.contains("write = 6")).count();
    let printed = seen.prints.lines().count();
    assert!(
        (printed..=printed + 1).contains(&(again + 1)) || again == printed,
        "{again} {printed}"
    );
    // What is in front of a cut is good.
    let bytes = fs::read(case.records()).unwrap();
    fs::write(case.records(), &bytes[..bytes.len() / 2]).unwrap();
    case.args.clear();
    let cut = case.replay();
    assert!(cut.says.contains("its last record is cut off") || cut.status == Some(0), "{cut:?}");
}

#[test]
fn a_recording_is_damaged() {
    let case = recorded("files");
    let bytes = fs::read(case.records()).unwrap();
    let replay = |bytes: &[u8]| {
        fs::write(case.records(), bytes).unwrap();
        case.replay()
    };
    let mut damaged = bytes.clone();
    let at = bytes.len() / 2;
    damaged[at] ^= 4;
    let seen = replay(&damaged);
    seen.expect_refused("of the recording: ");
    let place = seen.says.split("at byte ").nth(1).unwrap().split(' ').next().unwrap();
    let place: usize = place.parse().unwrap();
    assert!(place <= at && at < place + 300, "damaged at {at}, and it says {place}");
    assert!(case.trace().lines().last().unwrap().contains(&place.to_string()));
    replay(&bytes[..bytes.len() - 2]).expect_refused("its last record is cut off");
    replay(b"something else").expect_refused("it is no recording");
    replay(&[]).expect_refused("it is no recording");
    replay(&bytes).expect_whole(0);
}

/// The program reads a file that has changed meanwhile.
#[test]
fn a_file_is_another_one() {
    let case = Case::of("/usr/bin/cat".into(), &["../words"]);
    let file = case.folder.path().join("words");
    fs::write(&file, "those words").unwrap();
    assert_eq!(case.record().prints, "those words");
    fs::write(&file, "other words").unwrap();
    let differs = case.replay();
    differs.expect_refused("the program makes: read(0x3, ");
    differs.expect_refused("its bytes are not those that were recorded");
    differs.expect_refused("libc");
    fs::write(&file, "longer words").unwrap();
    case.replay().expect_refused("it returned 12; recorded is 11");
    fs::remove_file(&file).unwrap();
    case.replay().expect_refused("it returned -2; recorded is 3");
    fs::write(&file, "those words").unwrap();
    case.replay().expect_whole(0);
}

#[test]
fn the_program_is_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let put = |name: &str| {
        // The old one may still be running.
        let _none = fs::remove_file(&program);
        fs::copy(guest("recording", name, Linked::Statically), &program).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    };
    put("clocks");
    let case = Case::of(program.clone(), &[]);
    assert_eq!(case.record().status, Some(0));
    case.replay().expect_whole(0);
    put("files");
    case.replay()
        .expect_refused("the program, or the interpreter that it names (ld.so), is another");
    fs::remove_file(&program).unwrap();
    let none = case.replay();
    assert_eq!(none.status, Some(127), "{none:?}");
}

#[test]
fn a_command_line_or_a_machine_is_another_one() {
    let case = recorded("clocks");
    let about = case.recording().join("about.json");
    let text = fs::read_to_string(&about).unwrap();
    let replay = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        fs::write(&about, text.replace(from, to)).unwrap();
        case.replay()
    };
    replay("\"some words\"", "\"some words and a good deal more\"")
        .expect_refused("the program's stack begins at");
    replay("\"fpu\"", "\"no-fpu\"").expect_refused("lacks [no-fpu] and has besides [fpu]");
    replay("\"version\": 2", "\"version\": 99").expect_refused("another version of Steadfast");
    replay("\"fpu\"", "\"fpu\"").expect_whole(0);
}

#[test]
fn there_is_no_room() {
    let case = Case::guest("files", Linked::Statically, &[]);
    assert_eq!(case.record().status, Some(0));
    assert!(case.record().says.contains("is not empty"));
    // A disk of that size. What the program gets of chance does not fit on it.
    let program = ["if=/dev/urandom", "of=there", "bs=100k", "count=90"];
    let on_disk_of = |size: &str| {
        let case = Case::of("/bin/dd".into(), &program);
        let script = "mount -t tmpfs -o size=$1 none \"$2\" && shift 2 && exec \"$@\"";
        fs::create_dir(case.recording()).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", size]).arg(case.recording());
        command.arg(env!("CARGO_BIN_EXE_steadfast")).args(case.alone().get_args());
        (Ended::of(command.current_dir(case.work()).output()), case)
    };
    let (seen, _) = on_disk_of("128k");
    seen.expect_refused("cannot use the file of the recording: the disk is full");
    // The program goes on.
    let (seen, case) = on_disk_of("6m");
    let ends = "the recording ends here: what follows could not be written: the disk is full\n";
    assert!(seen.status == Some(0) && seen.says.contains(ends), "{seen:?}");
    assert_eq!(fs::metadata(case.work().join("there")).unwrap().len(), 90 * 100 * 1024);
}

//! What is recorded is replayed.

use std::fs;
use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use demo::find;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::guests::serving::{CLIENTS, Running, at_once, free_port, listens, printed, until};
use crate::guests::{self, Linked};
use crate::{Case, Ended, replays, steadfast};
use tempfile::TempDir;

/// Records it, and replays it several times, each time from the beginning.
fn again_and_again(case: &Case, status: i32) -> String {
    let recorded = case.record();
    assert_eq!(
        (recorded.status, recorded.says.as_str()),
        (Some(status), ""),
        "{}",
        recorded.prints
    );
    for _ in 0..replays() {
        case.replay().expect_whole(status);
    }
    recorded.prints
}

fn both_ways(name: &str) {
    both_ways_with_status(name, 0);
}

fn both_ways_with_status(name: &str, status: i32) {
    for linked in [Linked::Dynamically, Linked::Statically] {
        let seen = again_and_again(&Case::guest(name, linked, &[]), status);
        assert!(!seen.is_empty(), "{name} sees nothing");
    }
}

#[test]
fn time_chance_and_identity() {
    both_ways("clocks");
}

#[test]
fn files_pipes_and_memory() {
    both_ways("files");
}

#[test]
fn signals_at_every_moment() {
    both_ways("interrupted");
}

/// Threads that change each other's memory, wait for each other, make descriptors and memory at once, and get
/// signals; again and again, since each time they go on in another order.
#[test]
fn threads_at_every_step() {
    for _ in 0..4 {
        both_ways_with_status("crew", 3);
    }
}

/// Processes that share memory, files, and pipes, wait for each other, are killed, and execute programs.
#[test]
fn processes_at_every_step() {
    for _ in 0..4 {
        both_ways_with_status("family", 4);
    }
}

/// Handlers of SIGSYS, seccomp filters, and clocks that no filter is asked about.
#[test]
fn what_the_runtime_needs_as_well() {
    both_ways("filters");
}

/// The program's mistakes are its own: it is told, as ever.
#[test]
fn memory_that_is_not_there() {
    both_ways("nowhere");
}

/// Signals that the runtime needs as well, and calls that fail: what is seen is not another thing than ever.
#[test]
fn what_passes_through_is_recorded() {
    for name in ["held", "mistakes"] {
        for linked in [Linked::Dynamically, Linked::Statically] {
            let guest = guests::guest("passthrough", name, linked);
            let as_it_is = Command::new(&guest).output().unwrap();
            let seen = again_and_again(&Case::of(guest, &[]), 0);
            assert_eq!(seen, String::from_utf8_lossy(&as_it_is.stdout));
        }
    }
}

/// Processes that are killed between two calls, or by their own: others go on.
#[test]
fn who_is_killed() {
    const ROUNDS: usize = 20;
    let case = Case::guest("victims", Linked::Dynamically, &[&ROUNDS.to_string()]);
    let mut guest = Running(case.alone().stdout(Stdio::piped()).spawn().unwrap());
    let out = std::io::BufReader::new(guest.0.stdout.take().unwrap());
    let mut killed = 0;
    for line in out.lines() {
        let line = line.unwrap();
        assert!(!line.starts_with("line "), "{line}");
        if let Some(victim) = line.strip_prefix("victim: ") {
            // At any moment of its life.
            std::thread::sleep(std::time::Duration::from_micros(fastrand::u64(..3000)));
            kill(Pid::from_raw(victim.parse().unwrap()), Signal::SIGKILL).unwrap();
        }
        killed += usize::from(line == "killed: 9");
    }
    assert_eq!((guest.end().code(), killed), (Some(5), ROUNDS));
    for _ in 0..3 {
        case.replay().expect_whole(5);
    }
}

/// Whoever replays it learns what has come of all of it, also from a program without standard error: the first
/// process has ended long before, or was killed.
#[test]
fn the_last_process_says_how_it_came_out() {
    for end in ["exit 3", "kill -KILL $$"] {
        let script = format!("(while kill -0 $$; do sleep 0.01; done; mkdir made) 2>&- & {end}");
        let case = Case::of("/bin/sh".into(), &["-c", &script]);
        let recorded = case.record();
        assert!(recorded.status != Some(0), "{recorded:?}");
        case.replay().expect_whole(0);
        case.clear();
        std::fs::create_dir(case.work().join("made")).unwrap();
        let other = Ended::of(steadfast().arg("replay").arg(case.recording()).output());
        other.expect_refused("the replay is not what was recorded");
    }
}

/// The one who finds out may not kill anybody, and sees no numbers of processes.
#[test]
fn who_is_killed_is_found_without_rights() {
    both_ways_with_status("jailed", 6);
}

#[test]
fn the_first_thread_need_not_be_the_last() {
    both_ways("leaders");
}

#[test]
fn programs_of_every_day() {
    let words = "import time, random, os\nprint(time.time(), random.random(), os.urandom(3))\n";
    let commands: [(&str, &[&str]); 7] = [
        // One program executes the next, which another one could not be found for.
        ("/bin/sh", &["-c", "echo $$; exec env -i PATH=/none:/usr/bin nice env date +%N"]),
        ("/usr/bin/date", &["+%N"]),
        ("/usr/bin/sort", &["-R", "/etc/passwd"]),
        ("/usr/bin/ls", &["/proc"]),
        ("/usr/bin/perl", &["-e", "print time, \" \", rand, \" $$\\n\""]),
        ("/usr/bin/python3", &["-c", words]),
        ("/bin/busybox", &["wc", "/etc/passwd"]),
    ];
    for (program, args) in commands {
        let seen = again_and_again(&Case::of(PathBuf::from(program), args), 0);
        assert!(!seen.is_empty(), "{program} prints nothing");
    }
}

/// What waits for another processor would wait in vain.
#[test]
fn there_is_one_processor() {
    assert_eq!(again_and_again(&Case::of("/usr/bin/nproc".into(), &[]), 0), "1\n");
}

/// One process of nginx, to be recorded at its work.
struct Nginx {
    at: SocketAddr,
    /// Its configuration, and what it serves.
    folder: TempDir,
    large: Vec<u8>,
    case: Case,
}

impl Nginx {
    fn new() -> Nginx {
        let nginx = find::program("nginx", "nginx").expect("nginx is there");
        let (at, folder) = (free_port(), tempfile::tempdir().unwrap());
        let file = folder.path().join("nginx.conf");
        let text = format!(
            "daemon off; master_process off; user root; pid pid; error_log error.log;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log access.log; client_body_temp_path body; proxy_temp_path proxy; \
             fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi; \
             server {{ listen {at}; location / {{ root {}; }} \
             location /now {{ return 200 \"$msec $request_id $connection $pid\"; }} }} }}\n",
            folder.path().display()
        );
        fs::write(&file, text).unwrap();
        let large: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        fs::write(folder.path().join("large"), &large).unwrap();
        let mut case = Case::of(nginx, &["-e", "stderr", "-c", file.to_str().unwrap(), "-p"]);
        case.args.push(format!("{}/", case.work().display()));
        Nginx { at, folder, large, case }
    }

    fn serves(&self) {
        assert!(download(self.at, "/large") == self.large, "nginx sends something else");
        assert!(!download(self.at, "/now").is_empty());
    }
}

/// A server that was killed at its work answers again, with everything that it had, but for its connections.
#[test]
fn nginx_goes_on_for_real() {
    let nginx = Nginx::new();
    let mut server = Running(nginx.case.alone().spawn().unwrap());
    wait_for(nginx.at);
    nginx.serves();
    // It goes on with a connection that is not there any more.
    let open = TcpStream::connect(nginx.at).unwrap();
    (&open).write_all(b"GET /large HTTP/1.1\r\nHost: ").unwrap();
    nginx.serves();
    server.0.kill().unwrap();
    server.end();
    drop(open);
    nginx.case.clear();
    let mut live = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    live.arg("replay").arg(nginx.case.recording()).arg("--go-live");
    let mut live = Running(live.spawn().unwrap());
    wait_for(nginx.at);
    for _ in 0..3 {
        nginx.serves();
    }
    live.signal(Signal::SIGQUIT);
    assert_eq!(live.end().code(), Some(0));
    drop(nginx.folder);
}

/// A server with all its clients: one process of nginx, whose connections, times and files are what they
/// were. It answers with what is in its files, also while it is recorded.
#[test]
fn nginx_under_load() {
    let nginx = Nginx::new();
    let case = &nginx.case;
    let mut server = Running(case.alone().spawn().unwrap());
    wait_for(nginx.at);
    at_once(|_| (0..5).for_each(|_| nginx.serves()));
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.end().code(), Some(0));
    for _ in 0..replays() {
        case.replay().expect_whole(0);
    }
    let log = fs::read_to_string(case.work().join("access.log")).unwrap();
    assert_eq!(log.lines().count(), 2 * 5 * CLIENTS, "a replay logs what was logged");
    let trace = case.trace();
    let ends = trace.lines().last().unwrap();
    assert!(trace.contains("accept4 = ") && ends.ends_with("it ends with status 0"), "{ends}");
}

/// A server with threads that was killed at its work answers with what it had counted.
#[test]
fn threads_go_on_for_real() {
    let at = free_port();
    let case = Case::guest("workers", Linked::Dynamically, &[&at.port().to_string()]);
    let mut server = Running(case.alone().spawn().unwrap());
    wait_for(at);
    let answers = || -> Vec<[i64; 3]> {
        let numbers = |text: String| -> Vec<i64> {
            text.split_whitespace().map(|word| word.parse().unwrap()).collect()
        };
        let one = || numbers(String::from_utf8(download(at, "/")).unwrap()).try_into().unwrap();
        at_once(|_| (0..10).map(|_| one()).collect::<Vec<_>>()).concat()
    };
    let before = answers();
    server.signal(Signal::SIGKILL);
    server.end();
    let mut live = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    live.arg("replay").arg(case.recording()).arg("--go-live");
    let mut live = Running(live.spawn().unwrap());
    wait_for(at);
    let after = answers();
    let mut numbers: Vec<i64> = before.iter().chain(&after).map(|answer| answer[0]).collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(1..=2 * 10 * CLIENTS as i64), "{numbers:?}");
    assert!(before.iter().chain(&after).all(|answer| answer[2] == before[0][2]), "another process");
    live.signal(Signal::SIGKILL);
    live.end();
}

/// Waits until somebody listens there.
fn wait_for(at: SocketAddr) {
    until(&format!("somebody listens at {at}"), || listens(at));
}

/// What a client gets.
fn download(at: SocketAddr, path: &str) -> Vec<u8> {
    printed(Command::new("curl").arg("-sS").arg(format!("http://{at}{path}")))
}

/// The lines of the guest: turns, and alarms, and whether the other timer was heard.
fn turns(prints: &str) -> Vec<(u32, u32, bool)> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("turn: ")?.split(", ");
        let turn = words.next()?.parse().ok()?;
        let alarms = words.next()?.strip_suffix(" alarms")?.parse().ok()?;
        Some((turn, alarms, words.next()? == "timer"))
    };
    prints.lines().map_while(line).collect()
}

/// Ends the command with SIGKILL a moment later.
fn for_a_moment(mut command: Command) -> String {
    let running = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut running = running;
    let mut prints = String::new();
    let mut out = std::io::BufReader::new(running.0.stdout.take().unwrap());
    while turns(&prints).iter().filter(|(.., timer)| *timer).count() < 5 {
        assert!(out.read_line(&mut prints).unwrap() > 0, "it has ended");
    }
    running.signal(Signal::SIGKILL);
    out.read_to_string(&mut prints).unwrap();
    running.end();
    prints
}

/// Behind its recording a program goes on where it was, and its timers run.
#[test]
fn timers_go_on_for_real() {
    let case = Case::guest("counts", Linked::Dynamically, &[]);
    let recorded = turns(&for_a_moment(case.alone()));
    let mut live = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    live.arg("replay").arg(case.recording()).arg("--go-live");
    let live = turns(&for_a_moment(live));
    let (last, first) = (recorded.last().unwrap(), live.first().unwrap());
    // What it printed last may not have been recorded any more.
    assert!((last.0..=last.0 + 1).contains(&first.0), "{last:?}, and then {first:?}");
    for both in recorded.windows(2).chain(live.windows(2)) {
        assert!(both[1].0 == both[0].0 + 1 && both[1].1 >= both[0].1, "{both:?}");
    }
    assert!(live.last().unwrap().1 >= first.1 + 3, "alarms go on: {live:?}");
}

/// What the guest says it has heard: alarms, signals of the other timer, and of the two descriptors'. Until
/// `enough`; each with how long it took, from the first one on.
fn beats(
    mut command: Command,
    enough: impl Fn(Duration, [u32; 4]) -> bool,
) -> Vec<(Duration, [u32; 4])> {
    let mut running = Running(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = std::io::BufReader::new(running.0.stdout.take().unwrap()).lines();
    let mut beats = Vec::new();
    let mut begin = None;
    loop {
        let line = lines.next().expect("it goes on until it is killed").unwrap();
        let words = line.strip_prefix("beat: ").unwrap_or_else(|| panic!("{line:?}"));
        let heard: Vec<u32> = words.split(' ').map(|word| word.parse().unwrap()).collect();
        let beat = (begin.get_or_insert_with(Instant::now).elapsed(), heard.try_into().unwrap());
        beats.push(beat);
        if enough(beat.0, beat.1) {
            break;
        }
        assert!(beat.0 < Duration::from_secs(60), "{beat:?}");
    }
    running.signal(Signal::SIGKILL);
    running.end();
    beats
}

/// Each timer has the time left that it had; those that have fired for good do not fire again.
#[test]
fn timers_go_on_with_the_time_left() {
    let case = Case::guest("remains", Linked::Dynamically, &[]);
    let seconds = Duration::from_secs_f64;
    let recorded = beats(case.alone(), |passed, _| passed > seconds(2.0));
    let (passed, heard) = *recorded.last().unwrap();
    assert_eq!(heard, [0, 1, 1, 1], "behind {passed:?}: the machine is too slow for this test");
    let mut live = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    live.arg("replay").arg(case.recording()).arg("--go-live");
    let live = beats(live, |_, [alarms, ..]| alarms > 0);
    let (alarmed, heard) = *live.last().unwrap();
    let is_near = |found: Duration, wanted: Duration| found.abs_diff(wanted) < seconds(0.7);
    assert!(is_near(alarmed + passed, seconds(4.0)), "{passed:?} of 4 s had passed: {alarmed:?}");
    assert_eq!(heard[1..3], [1, 1], "what has fired does not again");
    let (ticked, _) = *live.iter().find(|(_, [.., every])| *every == 2).expect("one fires again");
    assert!(is_near(ticked + passed, seconds(2.5)), "{passed:?} of 2.5 s had passed: {ticked:?}");
}

#[test]
fn a_replay_stops_where_it_is_told_to() {
    let case = Case::guest("clocks", Linked::Dynamically, &[]);
    assert_eq!(case.record().status, Some(0));
    let mut command = Command::new(env!("CARGO_BIN_EXE_steadfast"));
    command.arg("replay").arg(case.recording()).args(["--stop-at", "30"]).stderr(Stdio::piped());
    let mut replay = Running(command.spawn().unwrap());
    let stopped = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", replay.0.id())).unwrap();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    until("the replay stops", stopped);
    replay.signal(Signal::SIGCONT);
    assert_eq!(replay.end().code(), Some(0));
}

#[test]
fn a_trace_names_every_call() {
    let case = Case::guest("files", Linked::Statically, &[]);
    assert_eq!(case.record().status, Some(0));
    let trace = case.trace();
    for expected in
        ["the program begins", "openat = 3", "read = 6", "mremap = ", "ends with status 0"]
    {
        assert!(trace.contains(expected), "no {expected:?} in\n{trace}");
    }
    let mut head = steadfast();
    head.arg("trace").arg(case.recording()).stdout(Stdio::piped());
    let mut child = head.spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success(), "whoever reads it may have enough");
}

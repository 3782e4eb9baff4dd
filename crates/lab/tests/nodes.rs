//! Faults of hosts other than death: bit flips in processes, too little CPU, too little
//! memory. Every test runs a lab of its own.

mod common;

use std::{
    fs::File,
    io::{BufRead, BufReader},
    os::unix::{fs::FileExt, process::ExitStatusExt},
    process::Stdio,
    time::{Duration, Instant},
};

use common::{eventually, measure};
use lab::{Child, Error, Flip, FlippedBit, Host, Lab, Slow, Starved, Where};

const PATIENCE: Duration = Duration::from_secs(20);

fn up() -> Lab {
    Lab::builder().up().unwrap_or_else(|e| panic!("{e}"))
}

fn flip(process: &str, place: Where, seed: u64) -> Flip {
    Flip { process: process.into(), place, seed }
}

/// Starts a Python program and returns it with the first line that it prints.
fn python(
    host: &Host,
    script: &str,
    marker: &str,
) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut command = host.command("python3");
    command.args(["-c", script, marker]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (child, out, line.trim().to_owned())
}

/// A loop without system calls, whose registers are its own.
const SPIN: &str = r#"
print("ready", flush=True)
n = 0
while True: n = (n + 1) & 1023
"#;

#[test]
fn a_flipped_program_counter_kills() {
    let lab = up();
    let a = lab.host("a").unwrap();
    // The seed alone says which register and which bit: these hit a high bit of rip, so that
    // it points far from anything mapped, or is no address at all.
    for (seed, bit) in [(13, 60), (45, 41)] {
        let (victim, _out, _) = python(a, SPIN, "victim");
        let hit = lab.flip("a", &flip("victim", Where::Register, seed)).unwrap();
        assert_eq!((hit.pid, hit.before ^ hit.after), (victim.id(), 1 << bit), "{hit}");
        assert_eq!((&hit.what, hit.bit), (&FlippedBit::Register("rip".into()), bit), "{hit}");
        let status = victim.wait_timeout(PATIENCE).unwrap().expect("it dies");
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{hit}");
    }
}

/// A host that hangs goes on hanging: the flip shows when it is resumed.
#[test]
fn a_flip_does_not_wake_a_hung_process() {
    let lab = up();
    let a = lab.host("a").unwrap();
    let (victim, _out, _) = python(a, SPIN, "victim");
    lab.hang("a").unwrap();
    let hit = lab.flip("a", &flip("victim", Where::Register, 13)).unwrap();
    assert_eq!(hit.what, FlippedBit::Register("rip".into()));
    // The kernel stops it again before it runs any of its code, which would kill it.
    let status = || std::fs::read_to_string(format!("/proc/{}/status", victim.id())).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !status().contains("State:\tT") {
        assert!(Instant::now() < deadline, "{}", status());
    }
    assert!(status().contains("TracerPid:\t0"), "{}", status());
    lab.resume("a").unwrap();
    let status = victim.wait_timeout(PATIENCE).unwrap().expect("it dies");
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}

/// Whoever started a process is told of its end, even one under the knife: a host that is killed
/// waits for that.
#[test]
fn a_death_during_a_flip_is_not_kept_from_the_host() {
    let lab = up();
    let a = lab.host("a").unwrap();
    // A process that waits in vfork does not stop for ptrace, but it can be killed. The child is
    // in a PID namespace of its own, or it would be a process of the host to be picked.
    let script = format!(
        "import ctypes, time\nprint('ready', flush=True)\n\
         ctypes.CDLL(None).syscall({}, {}, 0, 0, 0, 0)\ntime.sleep(600)",
        libc::SYS_clone,
        libc::CLONE_VFORK | libc::CLONE_NEWPID | libc::SIGCHLD
    );
    let (victim, _out, _) = python(a, &script, "victim");
    let until = |so: &dyn Fn(&str) -> bool| {
        let status = || std::fs::read_to_string(format!("/proc/{}/status", victim.id())).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !so(&status()) {
            assert!(Instant::now() < deadline, "{}", status());
        }
    };
    until(&|status| status.contains("State:\tD"));
    let flipped = std::thread::scope(|s| {
        let flip = s.spawn(|| lab.flip("a", &flip("victim", Where::Register, 1)));
        until(&|status| !status.contains("TracerPid:\t0"));
        victim.kill().unwrap();
        flip.join().unwrap()
    });
    let refused = flipped.unwrap_err().to_string();
    assert!(refused.contains("it has ended"), "{refused}");
    lab.kill_host("a").unwrap();
    let status = victim.wait_timeout(PATIENCE).unwrap().expect("it was killed");
    assert_eq!(status.signal(), Some(libc::SIGKILL));
}

#[test]
fn a_flipped_bit_of_memory_is_seen_by_the_process() {
    let lab = up();
    let a = lab.host("a").unwrap();
    // Most of its memory is one array of zeros; it says which byte changed and to what.
    let script = r#"
import ctypes
size = 64 << 20
memory = (ctypes.c_char * size)()
ctypes.memset(memory, 0, size)
print(ctypes.addressof(memory), flush=True)
zeros = bytes(1 << 20)
view = memoryview(memory).cast("B")
while True:
    for at in range(0, size, 1 << 20):
        if view[at:at + (1 << 20)] != zeros:
            n = next(n for n in range(at, size) if view[n])
            print(ctypes.addressof(memory) + n, view[n], flush=True)
            raise SystemExit(7)
"#;
    for seed in 0..10 {
        let (mut victim, mut out, address) = python(a, script, "victim");
        let array: u64 = address.parse().unwrap();
        let hit = lab.flip("a", &flip("victim", Where::Memory, seed)).unwrap();
        let FlippedBit::Memory { address, .. } = hit.what else { panic!("{hit}") };
        if !(array..array + (64 << 20)).contains(&address) {
            victim.kill().unwrap(); // the interpreter's own memory: anything may happen
            victim.wait().unwrap();
            continue;
        }
        assert_eq!((hit.before, hit.after), (0, 1 << hit.bit));
        let mut said = String::new();
        out.read_line(&mut said).unwrap();
        assert_eq!(said.trim(), format!("{address} {}", hit.after), "{hit}");
        assert_eq!(victim.wait().unwrap().code(), Some(7));
        return;
    }
    panic!("none of ten flips hit the array that is nearly all of the memory");
}

#[test]
fn flips_go_where_they_are_asked_to_and_nowhere_else() {
    let lab = up();
    let a = lab.host("a").unwrap();
    let program = std::fs::canonicalize("/bin/sh").unwrap();
    let file = std::fs::read(&program).unwrap();
    for place in [Where::Stack, Where::Heap, Where::Text, Where::Data] {
        let mut victim = a.command("/bin/sh");
        let mut victim = victim.args(["-c", "sleep 600; true"]).spawn().unwrap();
        let sleeps = || a.processes().unwrap().iter().any(|p| p.name == "sleep");
        eventually(PATIENCE, "the shell runs sleep", sleeps);
        let hit = lab.flip("a", &flip("sleep 600; true", place, 5)).unwrap();
        let FlippedBit::Memory { address, mapping, protection } = &hit.what else {
            panic!("{hit}")
        };
        let (kind, writable) = match place {
            Where::Stack => ("[stack]", true),
            Where::Heap => ("[heap]", true),
            Where::Text => ("/", false),
            _ => ("/", true),
        };
        assert!(mapping.starts_with(kind) && protection.contains('w') == writable, "{hit}");
        let mut byte = [0];
        let memory = File::open(format!("/proc/{}/mem", victim.id())).unwrap();
        memory.read_exact_at(&mut byte, *address).unwrap();
        assert_eq!(u64::from(byte[0]), hit.after, "{hit}");
        assert_eq!((hit.before ^ hit.after).count_ones(), 1);
        // It goes on: nothing holds it.
        let status = std::fs::read_to_string(format!("/proc/{}/status", victim.id())).unwrap();
        assert!(status.contains("TracerPid:\t0") && !status.contains("State:\tt"), "{status}");
        victim.kill().unwrap();
        victim.wait().unwrap();
        lab.kill(
            "a",
            &lab::Kill::Process { signal: libc::SIGKILL, matching: Some("sleep".into()) },
        )
        .unwrap();
        eventually(PATIENCE, "it is gone", || !sleeps());
    }
    assert!(std::fs::read(&program).unwrap() == file, "the program's file was written");
    let nobody = lab.flip("a", &flip("nobody", Where::Memory, 1));
    assert!(matches!(nobody, Err(Error::NoProcess { .. })));
}

/// Percent of one CPU that a busy loop gets in a host for a while.
fn cpu_percent(host: &Host) -> f64 {
    let script = r#"
import time
end = time.monotonic() + 1
start = time.process_time()
while time.monotonic() < end: pass
print((time.process_time() - start) * 100)
"#;
    let out = host.command("python3").args(["-c", script]).output().unwrap();
    String::from_utf8(out.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn a_slow_host_gets_as_much_cpu_as_it_is_given() {
    let lab = up();
    let a = lab.host("a").unwrap();
    // One that runs already and forks all the time, so that moving has to catch it.
    let mut busy = a.command("sh");
    let busy = busy.args(["-c", "while :; do /bin/true; done"]).spawn().unwrap();
    let slow = Slow { cpu_percent: Some(20), ..Slow::default() };
    lab.slow("a", &slow).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(a.slowness().unwrap(), slow);
    let time = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<u64> =
            stat.rsplit(") ").next().unwrap().split(' ').skip(1).flat_map(str::parse).collect();
        fields[10] + fields[11] + fields[12] + fields[13] // own and its children's ticks
    };
    // Processes old and new share what the host has.
    measure("20%: the loop and the forking shell", 1.0..26.0, || {
        let (start, before) = (Instant::now(), time(busy.id()));
        let percent = cpu_percent(a);
        assert!(percent > 1.0, "{percent}");
        percent + (time(busy.id()) - before) as f64 / start.elapsed().as_secs_f64()
    });
    busy.kill().unwrap();
    measure("20%: the loop alone", 10.0..26.0, || cpu_percent(a));
    // A real-time thread can start, and is held to it too.
    let real_time = "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))";
    assert!(a.command("python3").args(["-c", real_time]).status().unwrap().success());

    for percent in 1..=100 {
        let slow = Slow { cpu_percent: Some(percent), ..Slow::default() };
        lab.slow("a", &slow).unwrap_or_else(|e| panic!("{percent}%: {e}"));
    }
    lab.slow("a", &Slow { cpu_percent: Some(5), ..Slow::default() }).unwrap();
    let less = measure("5%: the loop alone", 2.0..8.0, || cpu_percent(a));
    lab.slow("a", &Slow::default()).unwrap();
    let deadline = Instant::now() + PATIENCE;
    // Twice as much is enough: others use this machine, too.
    while cpu_percent(a) < 2.0 * less {
        assert!(Instant::now() < deadline, "the limit stays");
    }
    // A host that boots is a new one.
    lab.slow("a", &slow).unwrap();
    lab.kill_host("a").unwrap();
    assert!(matches!(lab.slow("a", &slow), Err(Error::HostDown(_))));
    lab.boot("a").unwrap();
    assert_eq!(a.slowness().unwrap(), Slow::default());
    lab.slow("a", &slow).unwrap();
    measure("20% after a boot: the loop alone", 10.0..26.0, || cpu_percent(a));
    let nothing = Slow { cpu_percent: Some(0), ..Slow::default() };
    assert!(lab.slow("a", &nothing).unwrap_err().to_string().contains("at least 1"));
}

#[test]
fn a_host_without_memory_loses_who_takes_too_much() {
    let lab = up();
    assert_eq!(lab.starved("a").unwrap(), Starved::default());
    assert!(lab.tighten("a").unwrap_err().to_string().contains("no memory limit"));
    let slow = Slow { memory_mib: Some(64), ..Slow::default() };
    lab.slow("a", &slow).unwrap_or_else(|e| panic!("{e}"));
    // Locked, so that swapping is no way out.
    let script = "import ctypes, sys; assert ctypes.CDLL(None).mlockall(2) == 0; \
                  x = bytearray(int(sys.argv[1]) << 20)";
    let take = |host: &str, mib: &str| {
        let mut command = lab.host(host).unwrap().command("python3");
        command.args(["-c", script, mib]).status().unwrap()
    };
    assert!(take("a", "8").success());
    let before = lab.starved("a").unwrap();
    assert_eq!(before.killed, 0);
    assert_eq!(take("a", "200").signal(), Some(libc::SIGKILL));
    let after = lab.starved("a").unwrap();
    assert!(after.reached > before.reached && after.killed == 1, "{before:?}, then {after:?}");
    assert!(take("b", "200").success(), "another host has its memory");
    // It took as much before.
    lab.tighten("a").unwrap();
    assert_eq!(take("a", "8").signal(), Some(libc::SIGKILL));
    assert!(lab.starved("a").unwrap().reached > after.reached);
    // The host's own first process, a copy of this one, looks larger than what it runs.
    lab.slow("a", &Slow { memory_mib: Some(4), ..Slow::default() }).unwrap();
    assert_eq!(take("a", "8").signal(), Some(libc::SIGKILL));
    lab.slow("a", &Slow::default()).unwrap();
    assert!(take("a", "200").success());
}

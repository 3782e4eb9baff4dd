//! Does the machine itself stand still? Virtual processors are taken away by their host, and a
//! kernel without preemption may hold one for long. A pause of a good part of the detection time
//! is then indistinguishable from a dead node, and the product rightly acts on it: what a test
//! says about failures it did not cause is worth nothing. So a thread per processor, of the
//! highest priority, sleeps and looks how much too late it wakes. It shares nothing with the
//! product.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use demo::clock::{Bell, now_ns};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Silence after which the nodes of a test suspect each other, in milliseconds: four times what a
/// user gets unasked. Where processors are taken away for tens of milliseconds again and again,
/// nodes that do not wait longer rightly fail over without a failure, time after time. What
/// becomes of flows then does not depend on it; how soon it becomes so, benchmarks measure.
pub const DETECTION_MS: u32 = 400;
/// How often a watcher looks at the clock.
const TICK: Duration = Duration::from_millis(2);
/// Lateness worth remembering.
const NOTABLE: Duration = Duration::from_millis(10);
/// Lateness, within one detection time, that can cost a node its role if that is the default:
/// heartbeats come each 20 ms, and silence is death after 100 ms.
const DISTURBING: Duration = Duration::from_millis(40);
/// A standstill that, with a heartbeat's interval, makes a backup doubt: it then does not take over
/// if its primary dies just now (`in_doubt`). Longer ones look like a death.
pub(crate) const DEADLY: Duration = Duration::from_millis(50);
/// How often a test is played again.
const ATTEMPTS: u32 = 8;
/// A machine that has not stood still for so long is calm; and how long a test waits for one.
const CALM: Duration = Duration::from_secs(3);
const STORM: Duration = Duration::from_secs(60);
/// How long all tests of a program together: they must come to an end.
const STORMS: Duration = Duration::from_secs(300);

/// A processor did not run.
#[derive(Clone, Copy, Debug)]
struct Stall {
    cpu: usize,
    /// When it ran again, on [`now_ns`]'s clock.
    until_ns: u64,
    took: Duration,
}

/// The machine stood still while a test ran, and the product acted on it.
#[derive(Debug)]
pub struct Disturbed(String);

impl fmt::Display for Disturbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

static STALLS: Mutex<Vec<Stall>> = Mutex::new(Vec::new());

/// Starts the watchers, once.
pub fn watch() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        for cpu in 0..cpus {
            thread::spawn(move || watch_cpu(cpu));
        }
    });
}

fn watch_cpu(cpu: usize) {
    let mut only = CpuSet::new();
    // Where the number names no processor of ours the watcher floats: it sees less, and never more.
    if only.set(cpu).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &only);
    }
    let highest = libc::sched_param { sched_priority: 98 };
    // SAFETY: plain system call; 0 names the calling thread. Without the priority, lateness may be
    // that of a busy machine, and a test is played again in vain.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &highest) };
    let mut last = now_ns();
    loop {
        thread::sleep(TICK);
        let now = now_ns();
        let took = Duration::from_nanos(now - last).saturating_sub(TICK);
        if took >= NOTABLE {
            let stall = Stall { cpu, until_ns: now, took };
            STALLS.lock().unwrap_or_else(PoisonError::into_inner).push(stall);
        }
        last = now;
    }
}

/// Ends a test whose pair, with such a detection time, has failed over without a failure: for another
/// attempt if the machine is the cause.
///
/// # Panics
/// Always.
pub fn blame(what: &str, at_ns: u64, detection_ms: u32) -> ! {
    let detection_ns = u64::from(detection_ms) * 1_000_000;
    // Suspicion follows a stall within two detection times.
    let window = at_ns.saturating_sub(2 * detection_ns + 50_000_000)..at_ns + 50_000_000;
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let near: Vec<&Stall> = stalls.iter().filter(|s| window.contains(&s.until_ns)).collect();
    let worst = near.iter().map(|stall| stall.took).max().unwrap_or_default();
    let list: Vec<String> =
        near.iter().map(|s| format!("processor {} for {:?}", s.cpu, s.took)).collect();
    drop(stalls);
    if worst >= DISTURBING {
        panic_any(Disturbed(format!("{what}: the machine stood still ({})", list.join(", "))));
    }
    panic!("{what}, and the machine was not at a standstill ({list:?})");
}

/// The longest standstill since then that a pair may take for a death, on [`now_ns`]'s clock.
pub fn stood_still_since(began_ns: u64) -> Option<Duration> {
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let since = stalls.iter().filter(|stall| stall.until_ns >= began_ns).map(|stall| stall.took);
    since.max().filter(|took| *took >= DEADLY)
}

/// Who takes a processor away takes it for more than one test: waits until that is over.
pub fn wait_for_calm() {
    static WAITED: Mutex<Duration> = Mutex::new(Duration::ZERO);
    let mut waited = WAITED.lock().unwrap_or_else(PoisonError::into_inner);
    let standstill =
        || stood_still_since(now_ns().saturating_sub(CALM.as_nanos() as u64)).is_some();
    let began = Instant::now();
    let patience = STORM.min(STORMS.saturating_sub(*waited));
    if !Bell::default().wait_until(patience, || !standstill()) {
        eprintln!("the machine goes on to stand still");
    }
    *waited += began.elapsed();
}

/// Plays a test; again if the machine stood still and so made a failure of its own. Whatever a test
/// complains of then may follow from a failover that nobody has asked for.
///
/// # Panics
/// As the test does, or if it was disturbed each time.
pub fn undisturbed<T>(play: impl Fn() -> T) -> T {
    for _ in 0..ATTEMPTS {
        let began_ns = now_ns();
        match catch_unwind(AssertUnwindSafe(&play)) {
            Ok(done) => return done,
            Err(panic) => match panic.downcast::<Disturbed>() {
                Ok(disturbed) => eprintln!("played again: {disturbed}"),
                Err(panic) => match stood_still_since(began_ns) {
                    Some(took) => eprintln!("played again: the machine stood still for {took:?}"),
                    None => resume_unwind(panic),
                },
            },
        }
        wait_for_calm();
    }
    panic!("the machine stood still in {ATTEMPTS} attempts: it is too busy for these tests");
}

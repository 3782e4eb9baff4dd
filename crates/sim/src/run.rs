//! One run from its seed, many runs on all cores, and what they add up to.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use cluster::Nanos;

use crate::setup::Setup;
use crate::watch::Violation;
use crate::world::{Due, World};

const MS: Nanos = 1_000_000;

/// What a good run yields.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Steps of both cores.
    pub steps: u64,
    /// Simulated time.
    pub simulated: Nanos,
    /// After the clean death of the primary's host: time until the other node serves, beyond
    /// the detection time, in µs. Negative if the last heartbeat was some time old. `None` if
    /// the run ended with one node only.
    pub failover_us: Option<i64>,
}

/// The run of one seed.
pub fn run(seed: u64, setup: Setup) -> Result<Outcome, Violation> {
    guarded(&mut World::new(seed, setup, false))
}

/// The run of one seed again, with the last lines of its story.
pub fn story(seed: u64, setup: Setup) -> (Vec<String>, Result<Outcome, Violation>) {
    let mut world = World::new(seed, setup, true);
    let result = guarded(&mut world);
    world.note(World::state);
    (world.take_trace(), result)
}

fn guarded(world: &mut World) -> Result<Outcome, Violation> {
    catch_unwind(AssertUnwindSafe(|| live(world))).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(Violation::Panic(text.unwrap_or("no message").to_owned()))
    })
}

fn live(world: &mut World) -> Result<Outcome, Violation> {
    let detection = world.detection;
    for n in [0, 1] {
        let after = world.dice.below(3 * detection);
        world.hosts[n].kill(0, true);
        world.plan(after, Due::Start { node: n });
    }
    // Half of the runs begin their faults with a pair that is in service.
    if world.dice.coin() {
        let end = 2 * world.alone_wait;
        world.run_until(end, |w| w.is_settled(None))?;
    }
    world.mischief = true;
    world.plan(0, Due::Mischief);
    let span = world.dice.below(200 * detection);
    world.run_until(world.now + span, |_| false)?;
    let end = world.now + 3 * detection;
    world.run_until(end, |w| !w.net.is_delicate(w.now))?;

    let dead = world.make_peace()?;
    settle(world, dead)?;
    let primary = usize::from(!world.is_duplex(0));
    // An arbiter grants an epoch once and for all, to a claim that was withdrawn, or to a life
    // that counted the same epochs, too. If the next one is the primary's in that way, its death
    // is survived, but with the alone wait and without the flows.
    let burnt = world.next_epoch_belongs_to(primary);
    let failover_us = if dead.is_none() && !burnt { Some(failover(world, primary)?) } else { None };
    Ok(Outcome { steps: world.steps, simulated: world.now, failover_us })
}

/// Settled means calm: in order, and no change for ten detection times, in which lost links are
/// trusted again.
fn settle(world: &mut World, dead: Option<usize>) -> Result<(), Violation> {
    let (peace, calm) = (world.now, 10 * world.detection);
    let end = peace + world.patience();
    loop {
        if !world.run_until(end, |w| w.is_settled(dead))? {
            let after_ms = (world.now - peace) / MS;
            return Err(Violation::NotSettled { after_ms, state: world.state() });
        }
        let changes = world.role_changes;
        world.run_until(world.now + calm, |w| w.role_changes != changes)?;
        if world.role_changes == changes && world.is_settled(dead) {
            return Ok(());
        }
    }
}

/// The primary's host dies; how long beyond the detection time until the backup serves?
fn failover(world: &mut World, primary: usize) -> Result<i64, Violation> {
    let (detection, heartbeat) = (world.detection, world.hosts[0].config.heartbeat());
    let phase = world.dice.below(heartbeat);
    world.run_until(world.now + phase, |_| false)?;
    assert!(world.is_duplex(primary), "calm, but not for long: {}", world.state());
    world.kill(primary, true);
    let died = world.now;
    world.run_until(died + 3 * detection, |w| w.is_simplex(1 - primary))?;
    let micros = |span: Nanos| i64::try_from(span / 1_000).expect("a short span");
    let late_us = micros(world.now - died) - micros(detection);
    if late_us > micros(heartbeat) {
        return Err(Violation::LateFailover { late_us });
    }
    Ok(late_us)
}

/// What many runs add up to.
#[derive(Debug, Default)]
pub struct Summary {
    /// Good runs.
    pub runs: u64,
    /// Steps of both cores in all runs.
    pub steps: u64,
    /// Simulated time in all runs.
    pub simulated: Nanos,
    /// Sorted.
    pub failovers_us: Vec<i64>,
    /// The lowest seed that failed, and why.
    pub failure: Option<(u64, Violation)>,
}

/// Runs `seeds` on `threads` threads; ends early once one has failed. `progress` is called with
/// the number of runs begun.
pub fn run_many(
    seeds: std::ops::Range<u64>,
    threads: usize,
    setup: Setup,
    progress: impl Fn(u64) + Sync,
) -> Summary {
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicU64::new(u64::MAX);
    let work = || {
        let mut part = Summary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            // Lower seeds are all begun: the failure reported is the lowest, on any machine.
            if seed >= seeds.end || seed > failed.load(Ordering::Relaxed) {
                return part;
            }
            progress(seed - seeds.start);
            match run(seed, setup) {
                Ok(outcome) => part.add(outcome),
                Err(violation) => {
                    failed.fetch_min(seed, Ordering::Relaxed);
                    part.failure.get_or_insert((seed, violation));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().fold(Summary::default(), |sum, worker| {
            sum.joined(worker.join().expect("runs catch their panics"))
        })
    })
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.steps += outcome.steps;
        self.simulated += outcome.simulated;
        self.failovers_us.extend(outcome.failover_us);
    }

    fn joined(mut self, other: Summary) -> Summary {
        self.runs += other.runs;
        self.steps += other.steps;
        self.simulated += other.simulated;
        self.failovers_us.extend(other.failovers_us);
        self.failovers_us.sort_unstable();
        let failures = self.failure.into_iter().chain(other.failure);
        self.failure = failures.min_by_key(|&(seed, _)| seed);
        self
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated as f64 / 3.6e12;
        writeln!(f, "{} runs good: {} steps, {hours:.1} hours simulated", self.runs, self.steps)?;
        let count = self.failovers_us.len();
        if count == 0 {
            return Ok(());
        }
        let at = |percent: usize| self.failovers_us[(count - 1) * percent / 100] as f64 / 1e3;
        write!(
            f,
            "clean deaths of a primary: {count}; until the backup serves, beyond detection, \
             in ms: min {:.2}, p50 {:.2}, p99 {:.2}, max {:.2}",
            at(0),
            at(50),
            at(99),
            at(100)
        )
    }
}

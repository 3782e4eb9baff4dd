//! One clock for everything, and a bell for whoever waits on progress.
//!
//! The nodes stamp their events with `CLOCK_BOOTTIME`. All hosts of a lab share the kernel and
//! so that clock; the demo reads it too, and its times can be subtracted from theirs.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_BOOTTIME`.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
    u64::try_from(t.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec()).unwrap_or(0)
}

/// The same instant on [`now_ns`]'s clock. For instants of the last hours.
pub fn boottime_ns(at: Instant) -> u64 {
    let ago = u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX);
    now_ns().saturating_sub(ago)
}

/// Milliseconds from one reading to a later one; 0 if it is not later.
pub fn ms_between(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e6
}

/// Rung at every step of progress.
#[derive(Clone, Debug, Default)]
pub struct Bell(Arc<(Mutex<u64>, Condvar)>);

impl Bell {
    /// Something moved.
    pub fn ring(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.1.notify_all();
    }

    /// Waits until `done` or until `patience` is over; whether it was `done`. `done` is asked
    /// after every ring, and now and then in between.
    pub fn wait_until(&self, patience: Duration, mut done: impl FnMut() -> bool) -> bool {
        let deadline = Instant::now() + patience;
        let mut heard = self.rings();
        loop {
            if done() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let rings = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
            let pause = left.min(Duration::from_millis(20));
            let quiet = |rings: &mut u64| *rings == heard;
            let waited = self.0.1.wait_timeout_while(rings, pause, quiet);
            heard = *waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn rings(&self) -> u64 {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[test]
    fn a_ring_wakes_the_waiter_and_patience_ends() {
        let (bell, steps) = (Bell::default(), Arc::new(AtomicU32::new(0)));
        let (far, counter) = (bell.clone(), steps.clone());
        let thread = std::thread::spawn(move || {
            for _ in 0..3 {
                counter.fetch_add(1, SeqCst);
                far.ring();
            }
        });
        assert!(bell.wait_until(Duration::from_secs(5), || steps.load(SeqCst) == 3));
        thread.join().unwrap();
        assert!(!bell.wait_until(Duration::from_millis(1), || false));
    }

    #[test]
    fn an_instant_reads_the_same_on_the_other_clock() {
        let (at, before) = (Instant::now(), now_ns());
        assert!(boottime_ns(at).abs_diff(before) < 50_000_000);
        assert_eq!(ms_between(2_000_000, 3_500_000), 1.5);
    }
}

//! Clocks that disagree: each node has its own zero and its own rate, and the rate changes.

use cluster::Nanos;

/// Monotonic clock of one node, as a function of real time.
#[derive(Debug, Clone)]
pub struct Clock {
    real_base: Nanos,
    own_base: Nanos,
    /// 1,000,000 is a perfect clock; a million times the seconds it counts in a real one.
    micros_per_second: u64,
}

const TRUE_RATE: u64 = 1_000_000;

impl Clock {
    /// A clock that shows `own` at real time 0 and errs by `drift_ppm`.
    pub fn new(own: Nanos, drift_ppm: i64) -> Clock {
        let mut clock = Clock { real_base: 0, own_base: own, micros_per_second: TRUE_RATE };
        clock.set_drift(0, drift_ppm);
        clock
    }

    /// Changes the rate from the real time `real` on.
    pub fn set_drift(&mut self, real: Nanos, drift_ppm: i64) {
        self.own_base = self.at(real);
        self.real_base = real;
        self.micros_per_second = TRUE_RATE.checked_add_signed(drift_ppm).expect("a small drift");
    }

    /// What the clock shows at real time `real`.
    pub fn at(&self, real: Nanos) -> Nanos {
        let passed = u128::from(real - self.real_base) * u128::from(self.micros_per_second);
        self.own_base + u64::try_from(passed / u128::from(TRUE_RATE)).expect("a short run")
    }

    /// Earliest real time, not before `now`, at which the clock shows `own` or more.
    pub fn real_of(&self, own: Nanos, now: Nanos) -> Nanos {
        let left = u128::from(own.saturating_sub(self.own_base)) * u128::from(TRUE_RATE);
        let passed = left.div_ceil(u128::from(self.micros_per_second));
        now.max(self.real_base + u64::try_from(passed).unwrap_or(Nanos::MAX / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_converts_to_the_first_instant_that_shows_it() {
        for ppm in [-200, -1, 0, 1, 200] {
            let mut clock = Clock::new(77_000, ppm);
            clock.set_drift(123_456_789, -ppm);
            for own in [200_000_000u64, 200_000_001, 987_654_321] {
                let real = clock.real_of(own, 123_456_789);
                assert!(clock.at(real) >= own && clock.at(real - 1) < own, "{ppm} ppm, {own}");
            }
        }
    }

    #[test]
    fn a_fast_clock_gains_what_its_drift_says() {
        assert_eq!(Clock::new(5, 200).at(1_000_000_000), 1_000_200_005);
        assert_eq!(Clock::new(5, -200).at(1_000_000_000), 999_800_005);
    }
}

//! What the tests of every file need.

use std::time::{Duration, Instant};

/// Asks again until `condition` holds.
pub fn eventually(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        std::thread::yield_now();
    }
}

/// How often a measurement may be spoilt.
const MEASUREMENTS: usize = 10;

/// Measures until the result is what it must be, and returns it. A virtual machine that is held for
/// a while falsifies a measurement of speed, in either direction, but not each time.
///
/// # Panics
/// If it never is.
#[allow(dead_code)] // not every test measures
pub fn measure(what: &str, range: std::ops::Range<f64>, mut once: impl FnMut() -> f64) -> f64 {
    let mut results = Vec::new();
    for _ in 0..MEASUREMENTS {
        let result = once();
        println!("{what}: {result:.3}");
        if range.contains(&result) {
            return result;
        }
        results.push(result);
    }
    panic!("{what} is never within {range:?}: {results:.3?}");
}

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

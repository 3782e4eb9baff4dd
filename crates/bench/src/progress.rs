//! How far a run is, and how long it will take: a bar on a terminal, a line per row elsewhere.
//!
//! Repetitions differ by a factor of a thousand in length, so they are not counted but weighed:
//! every experiment says how long one of its repetitions takes, and how the machine keeps up with
//! what was said so far corrects the rest.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Estimates are given in seconds, the bar counts thousandths.
const PER_SECOND: f64 = 1e3;

/// The progress of one run.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    begin: Instant,
    /// Estimated length of everything, s.
    total_s: f64,
    /// Estimated length of what is done, s.
    done_s: Cell<f64>,
}

impl Progress {
    /// Of a run that should take `total_s`.
    pub fn new(total_s: f64) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let target =
            if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{bar:30.green/dim} {percent:>3} %  {msg}")
            .expect("the template is right")
            .progress_chars("━╸─");
        let bar = ProgressBar::with_draw_target(Some(thousandths(total_s)), target);
        Progress {
            bar: bar.with_style(style),
            begin: Instant::now(),
            total_s,
            done_s: Cell::new(0.0),
        }
    }

    /// An experiment begins.
    pub fn begin(&self, what: &str) {
        let line = format!("{what}  ({})", in_words(self.left()));
        if self.bar.is_hidden() {
            eprintln!("… {line}");
        }
        self.bar.set_message(line);
    }

    /// So much of what was estimated is done.
    pub fn done(&self, estimated_s: f64) {
        self.done_s.set(self.done_s.get() + estimated_s);
        self.bar.set_position(thousandths(self.done_s.get().min(self.total_s)));
    }

    /// A line that stays.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn left(&self) -> Duration {
        left(self.total_s, self.done_s.get(), self.begin.elapsed())
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // seconds of a run
fn thousandths(seconds: f64) -> u64 {
    (seconds * PER_SECOND).max(0.0) as u64
}

/// How long it will take yet, if `done_s` of `total_s` took `elapsed`. The estimate's own error
/// weighs less the more there is to learn it from.
fn left(total_s: f64, done_s: f64, elapsed: Duration) -> Duration {
    /// As if so much had gone as estimated.
    const PRIOR_S: f64 = 20.0;
    let pace = (elapsed.as_secs_f64() + PRIOR_S) / (done_s + PRIOR_S);
    Duration::from_secs_f64(((total_s - done_s) * pace).max(0.0))
}

/// For people.
pub fn in_words(left: Duration) -> String {
    match left.as_secs() {
        s @ 0..90 => format!("about {s} s left"),
        s => format!("about {} min left", s.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_the_pace() {
        let secs = Duration::from_secs;
        assert_eq!(left(100.0, 0.0, secs(0)), secs(100));
        // Half as fast as estimated: 160 s of estimates take nearly 320 s.
        let slow = left(200.0, 40.0, secs(100));
        assert_eq!(slow, secs(320));
        assert_eq!(left(100.0, 120.0, secs(100)), secs(0), "an estimate may be exceeded");
        assert_eq!(in_words(secs(89)), "about 89 s left");
        assert_eq!(in_words(secs(121)), "about 3 min left");
    }

    #[test]
    fn repetitions_are_weighed() {
        let progress = Progress::new(10.0);
        progress.done(2.5);
        progress.done(0.5);
        assert_eq!(progress.bar.position(), 3_000);
        assert_eq!(progress.bar.length(), Some(10_000));
    }
}

//! The steps of the last takeover, each with its instant on this node's boot-time clock.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use takeover::Progress;

/// Nanoseconds since boot.
type Instant = u64;

/// What led to a promotion. Known to the membership thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The peer's silence, if that was the reason: its last heartbeat, and when it was suspected.
    pub silence: Option<(Instant, Instant)>,
    /// The data path holds the primary's role from here on.
    pub promoted: Instant,
}

/// A decision, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeline {
    pub decision: Decision,
    /// When the journal thread began to adopt: what `Progress` counts from.
    pub began: Instant,
}

impl Timeline {
    /// Names and instants, in order; `None`: not so far, or not at all.
    pub fn steps(&self, progress: &Progress) -> [(&'static str, Option<Instant>); 5] {
        let after = |took: Duration| self.began + took.as_nanos() as u64;
        // While flows are pending, the newest one to open is not the last.
        let last = progress.last_open.filter(|_| progress.pending == 0);
        [
            ("last_heard", self.decision.silence.map(|(heard, _)| heard)),
            ("suspected", self.decision.silence.map(|(_, suspected)| suspected)),
            ("promoted", Some(self.decision.promoted)),
            ("first_open", progress.first_open.map(after)),
            ("last_open", last.map(after)),
        ]
    }

    /// One object per step: `boottime_ns`, and the same instant as `time` on the wall clock.
    pub fn shown(&self, progress: &Progress, now: Instant, wall: SystemTime) -> Value {
        let show = |at: Instant| {
            let ago = Duration::from_nanos(now.saturating_sub(at));
            let time = humantime::format_rfc3339_micros(wall - ago).to_string();
            json!({"boottime_ns": at, "time": time})
        };
        self.steps(progress).map(|(name, at)| (name.to_owned(), at.map(show))).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_stand_on_both_clocks() {
        let decision = Decision { silence: Some((1_000, 2_000)), promoted: 3_000 };
        let timeline = Timeline { decision, began: 4_000 };
        let mut progress = Progress {
            pending: 1,
            first_open: Some(Duration::from_nanos(500)),
            last_open: Some(Duration::from_nanos(700)),
            ..Progress::default()
        };
        let shown = |progress: &Progress| {
            timeline.shown(progress, 1_004_000, SystemTime::UNIX_EPOCH + Duration::from_secs(1))
        };
        assert_eq!(shown(&progress)["last_open"], Value::Null, "one is still pending");
        progress.pending = 0;
        let shown = shown(&progress);
        for (name, at) in [
            ("last_heard", 1_000),
            ("suspected", 2_000),
            ("promoted", 3_000),
            ("first_open", 4_500),
            ("last_open", 4_700),
        ] {
            assert_eq!(shown[name]["boottime_ns"], at, "{shown}");
        }
        assert_eq!(shown["promoted"]["time"], "1970-01-01T00:00:00.998999Z");
    }
}

//! Downloads that run together.

use std::time::Duration;

use demo::clock::Bell;
use demo::download::{Download, Outcome};

/// Longest that a batch may take from any point on.
const PATIENCE: Duration = Duration::from_secs(40);

/// When a failure comes, as the clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// One client has its first byte; others may not even be connected.
    Start,
    /// All have started and half of all bytes have arrived.
    Middle,
    /// One client lacks only its last kilobyte (or two: the last segment).
    LastKilobyte,
}

/// Running downloads of one file.
#[derive(Debug)]
pub struct Batch {
    downloads: Vec<Download>,
    bell: Bell,
    size: u64,
    sha256: [u8; 32],
}

/// Ended downloads.
#[derive(Debug)]
pub struct Finished {
    /// As they ended.
    pub outcomes: Vec<Outcome>,
    size: u64,
    sha256: [u8; 32],
}

impl Batch {
    pub(crate) fn new(downloads: Vec<Download>, bell: Bell, size: u64, sha256: [u8; 32]) -> Batch {
        Batch { downloads, bell, size, sha256 }
    }

    /// Bytes that have arrived, all downloads together.
    pub fn bytes(&self) -> u64 {
        self.downloads.iter().map(Download::bytes).sum()
    }

    /// Waits for a moment.
    ///
    /// # Panics
    /// If it passed or does not come.
    pub fn wait_for(&self, moment: Moment) {
        let half = self.size * self.downloads.len() as u64 / 2;
        let reached = || match moment {
            Moment::Start => self.bytes() > 0,
            Moment::Middle => self.bytes() >= half && self.downloads.iter().all(|d| d.bytes() > 0),
            Moment::LastKilobyte => self.downloads.iter().any(|d| d.bytes() + 2048 >= self.size),
        };
        self.wait(&format!("the moment {moment:?}"), reached);
        let running = self.downloads.iter().any(|d| !d.ended());
        assert!(running, "the downloads were over at the moment {moment:?}: they need more bytes");
    }

    /// Waits until so many more bytes have arrived.
    ///
    /// # Panics
    /// If they do not come.
    pub fn wait_for_more(&self, bytes: u64) {
        let goal = self.bytes() + bytes;
        assert!(
            goal <= self.size * self.downloads.len() as u64,
            "there are not so many bytes left: choose a larger size"
        );
        self.wait(&format!("{bytes} bytes more"), || self.bytes() >= goal);
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) {
        let ended = || self.downloads.iter().all(Download::ended);
        self.bell.wait_until(PATIENCE, || done() || ended());
        if !done() {
            let each: Vec<_> = self.downloads.iter().map(Download::bytes).collect();
            panic!("not within {PATIENCE:?}: {what}; of {} bytes have arrived {each:?}", self.size);
        }
    }

    /// Waits for the end of all.
    ///
    /// # Panics
    /// If they do not end.
    pub fn finish(self) -> Finished {
        self.wait("the end of all downloads", || self.downloads.iter().all(Download::ended));
        let outcome = |download: Download| {
            download.finish().unwrap_or_else(|e| panic!("a download could not be watched: {e:#}"))
        };
        let outcomes = self.downloads.into_iter().map(outcome).collect();
        Finished { outcomes, size: self.size, sha256: self.sha256 }
    }
}

impl Finished {
    /// Every client got the bytes of the file (invariant 6) and had nothing to complain about
    /// (invariant 5).
    ///
    /// # Panics
    /// If one did not.
    pub fn expect_identical(&self) -> &Self {
        let wrong = |(number, outcome): (usize, &Outcome)| {
            let complaint = match &outcome.error {
                Some(error) => error.as_str(),
                None if outcome.sha256 != self.sha256 => "no complaint, but other bytes",
                None => return None,
            };
            Some(format!("client {number}: {} of {} bytes: {complaint}", outcome.bytes, self.size))
        };
        let wrong: Vec<_> = self.outcomes.iter().enumerate().filter_map(wrong).collect();
        assert!(wrong.is_empty(), "clients noticed:\n{}", wrong.join("\n"));
        self
    }

    /// No client waited longer than this for its next byte, from `since_ns` on.
    ///
    /// # Panics
    /// If one did.
    pub fn expect_no_stall_above(&self, limit: Duration, since_ns: u64) -> &Self {
        for (number, outcome) in self.outcomes.iter().enumerate() {
            if let Some(stall) = outcome.longest_stall_after(since_ns) {
                let waited = Duration::from_nanos(stall.to_ns - stall.from_ns);
                assert!(waited <= limit, "client {number} waited {waited:?} (limit {limit:?})");
            }
        }
        self
    }
}

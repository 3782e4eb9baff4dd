//! A download, or many replies one after the other, looked at while it runs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};

use anyhow::Context;
use demo::clock::now_ns;
use demo::download::Stall;

use crate::load::Http;

/// Shorter pauses are scheduling, not stalls.
const STALL_NS: u64 = 2_000_000;

/// A download that others look at.
#[derive(Debug, Default)]
pub struct Watched {
    /// Bytes of the body so far.
    pub bytes: AtomicU64,
    /// Set it to end the download early.
    pub stop: AtomicBool,
    /// It has ended.
    pub ended: AtomicBool,
    /// The client's port, once it is connected.
    pub port: AtomicU16,
    /// Whether the same is asked for again and again, on the same connection.
    pub again: bool,
}

impl Watched {
    /// Downloads `path`, to its end unless it is again and again, or until told to stop; all pauses of at least 2 ms, on
    /// [`now_ns`]'s clock.
    ///
    /// # Errors
    /// The connection breaks: what Steadfast is there to prevent.
    pub fn run(&self, at: SocketAddr, path: &str) -> anyhow::Result<Vec<Stall>> {
        let stalls = self.read(at, path);
        self.ended.store(true, Relaxed);
        stalls
    }

    fn read(&self, at: SocketAddr, path: &str) -> anyhow::Result<Vec<Stall>> {
        let mut http = Http::connect(at, path)?.large();
        self.port.store(http.local()?.port(), Relaxed);
        let more = "more bytes came than the reply has";
        let (length, mut got) = http.begin()?;
        let mut left = length.checked_sub(got).context(more)?;
        let (mut stalls, mut from_ns) = (Vec::new(), now_ns());
        while (left > 0 || self.again) && !self.stop.load(Relaxed) {
            let now = if left > 0 {
                http.more()?
            } else {
                let (length, now) = http.begin()?;
                left = length;
                now
            };
            left = left.checked_sub(now).context(more)?;
            got += now;
            let to_ns = now_ns();
            if to_ns - from_ns >= STALL_NS {
                stalls.push(Stall { from_ns, to_ns });
            }
            from_ns = to_ns;
            self.bytes.store(got, Relaxed);
        }
        Ok(stalls)
    }
}

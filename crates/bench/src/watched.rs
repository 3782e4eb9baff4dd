//! A download that is looked at while it runs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};

use anyhow::ensure;
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
}

impl Watched {
    /// Downloads `path` to its end or until told to stop; all pauses of at least 2 ms, on
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
        let (length, mut got) = http.begin()?;
        let (mut stalls, mut from_ns) = (Vec::new(), now_ns());
        while got < length && !self.stop.load(Relaxed) {
            got += http.more()?;
            let to_ns = now_ns();
            if to_ns - from_ns >= STALL_NS {
                stalls.push(Stall { from_ns, to_ns });
            }
            from_ns = to_ns;
            self.bytes.store(got, Relaxed);
        }
        ensure!(got <= length, "more bytes came than the reply has");
        Ok(stalls)
    }
}

//! Where random bytes come from: the system, or a test's generator.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::Random;

type Fill = dyn FnMut(&mut [u8]) + Send;

/// A source of random bytes, shared by the handshakes of a channel.
#[derive(Clone)]
pub struct Rng(Arc<Mutex<Fill>>);

impl Rng {
    /// The operating system's generator: the only one fit for use outside of tests.
    pub fn system() -> Rng {
        let mut random = DefaultResolver.resolve_rng().expect("snow is built with getrandom");
        Rng::from_fn(move |bytes| {
            // getrandom(2) blocks until it is seeded and fails on no Linux that has BPF.
            random.try_fill_bytes(bytes).expect("getrandom(2) works");
        })
    }

    /// Any function that fills a slice: a seeded generator makes a simulation repeatable.
    pub fn from_fn(fill: impl FnMut(&mut [u8]) + Send + 'static) -> Rng {
        Rng(Arc::new(Mutex::new(fill)))
    }

    /// Overwrites the slice with random bytes.
    pub fn fill(&self, bytes: &mut [u8]) {
        // A panic inside the generator leaves nothing half-done that matters to the next caller.
        let mut fill = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fill(bytes);
    }

    pub(crate) fn u32(&self) -> u32 {
        let mut bytes = [0; 4];
        self.fill(&mut bytes);
        u32::from_ne_bytes(bytes)
    }
}

impl Random for Rng {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), snow::Error> {
        self.fill(bytes);
        Ok(())
    }
}

impl fmt::Debug for Rng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rng(..)")
    }
}

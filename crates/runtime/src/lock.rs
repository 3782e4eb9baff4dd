//! A lock that threads, and processes that share memory, may wait for.

use core::sync::atomic::{AtomicU32, Ordering::*};

use linux_raw_sys::general::{FUTEX_WAIT, FUTEX_WAKE};

use crate::own;

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// A lock. Whoever holds it runs code of the runtime's alone, to the end: a signal that arrives is put
/// off, and no call of the program's is made meanwhile.
pub struct Lock(AtomicU32);

/// Held.
pub struct Guard<'a>(&'a Lock);

impl Lock {
    /// Held by nobody.
    pub const fn free() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Waits until nobody else holds it.
    pub fn lock(&self) -> Guard<'_> {
        if self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            while self.0.swap(AWAITED, Acquire) != FREE {
                // SAFETY: waits for the word to change; coming back early is no harm.
                let _woken = unsafe { own!(futex, self.0.as_ptr(), FUTEX_WAIT, AWAITED, 0) };
            }
        }
        Guard(self)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Release) == AWAITED {
            // SAFETY: wakes a waiter. Not a private futex: a child of `vfork` may hold the lock.
            let _woken = unsafe { own!(futex, self.0.0.as_ptr(), FUTEX_WAKE, 1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn one_at_a_time() {
        static LOCK: Lock = Lock::free();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        let _guard = LOCK.lock();
                        COUNT.store(COUNT.load(Relaxed) + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(COUNT.load(Relaxed), 200_000);
    }
}

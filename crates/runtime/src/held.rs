//! Signals that the program blocks, and the kernel does not, since the runtime needs them ([`SigSet::real`]).
//! One that somebody sends meanwhile is held here, until the program would let it come: then the thread sends it
//! to itself once more.

use core::cell::Cell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general::{SIGSEGV, SIGSYS, SIGTRAP};

use crate::frame::SigInfo;
use crate::sigset::SigSet;
use crate::{own, record, signal};

/// Those that may have to be.
const SOME: [u32; 3] = [SIGSYS, SIGTRAP, SIGSEGV];

/// Those that a thread holds: each once, as the kernel does. All-zero bytes are none.
pub struct Held {
    /// The set of them. A signal may interrupt what changes it, and change it as well.
    which: AtomicU64,
    as_they_came: [Cell<SigInfo>; SOME.len()],
}

impl Held {
    /// Which ones.
    pub fn signals(&self) -> SigSet {
        SigSet(self.which.load(Relaxed))
    }

    /// Holds a signal, if somebody has sent it and it is blocked by the program alone.
    pub fn holds(&self, info: &SigInfo, blocked: SigSet) -> bool {
        let signal = info.signal.cast_unsigned();
        let is_sent = info.code <= 0;
        let place = SOME.iter().position(|&some| some == signal);
        let Some(place) = place.filter(|_| is_sent && blocked.contains(signal)) else {
            return false;
        };
        if !self.signals().contains(signal) {
            self.as_they_came[place].set(*info);
            self.which.fetch_or(SigSet::default().with(signal).0, Relaxed);
        }
        true
    }

    /// One of them, which is not held any more.
    pub fn take(&self, wanted: SigSet) -> Option<SigInfo> {
        let is_wanted = |&signal: &u32| wanted.contains(signal) && self.signals().contains(signal);
        let place = SOME.iter().position(is_wanted)?;
        let info = self.as_they_came[place].get();
        self.which.fetch_and(SigSet(!0).without(SOME[place]).0, Relaxed);
        Some(info)
    }

    /// Sends those that are not blocked any more. All signals must be blocked, by the runtime.
    pub fn release(&self, blocked: SigSet) {
        // Not until there are none: one that comes at once, while another one is deferred, is held again.
        for _ in SOME {
            let Some(info) = self.take(SigSet(!blocked.0)) else { return };
            // In a replay they come from the record.
            if !record::is_replaying() {
                send(&info);
            }
        }
    }

    /// Does so where a call blocks less than before: what has waited for that comes behind this call.
    pub fn release_behind(&self, blocked: SigSet) {
        self.release(blocked);
        if record::is_recording() {
            // The kernel would interrupt the program, and that be heard of at its next call.
            signal::block(blocked.real());
            signal::block_all();
        }
    }

    /// In a child: what was sent to its parent was not sent to it.
    pub fn forget(&self) {
        self.which.store(0, Relaxed);
    }
}

/// Sends a signal to the calling thread, as it came.
pub fn send(info: &SigInfo) {
    // SAFETY: to the calling thread itself.
    unsafe {
        let (pid, tid) = (own!(getpid).unwrap_or(0), own!(gettid).unwrap_or(0));
        let _sent = own!(rt_tgsigqueueinfo, pid, tid, info.signal, core::ptr::from_ref(info));
    }
}

//! The processors that a recorded program may run on: it is told of one.
//!
//! One thread at a time runs, so there is no more than that to have. A program that knows of several may have
//! a thread wait for what another one does this very moment, without a system call, and in vain: the other one
//! waits for its turn. Programs that know of one have it wait in the kernel. Go's are such ones; its
//! collector's sweeper waits for another sweeper so.

use core::slice;

use systable::Sysno;

use crate::sys::Args;

/// Behind a call, if it is the one that asks for them: leaves the first one of them.
pub fn leave_one(name: Sysno, args: &Args, result: isize) {
    if name != Sysno::sched_getaffinity || result <= 0 {
        return;
    }
    // SAFETY: the kernel has written it a moment ago.
    let set = unsafe { slice::from_raw_parts_mut(args[2] as *mut u8, result.unsigned_abs()) };
    let first = set.iter().position(|&byte| byte != 0);
    for (at, byte) in set.iter_mut().enumerate() {
        *byte = if Some(at) == first { *byte & byte.wrapping_neg() } else { 0 };
    }
}

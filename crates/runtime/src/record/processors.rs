//! The processors that a recorded program may run on: it is told of one.
//!
//! One thread at a time runs, so there is no more than that to have. A program that knows of several may have
//! a thread wait for what another one does this very moment, without a system call, and in vain: the other one
//! waits for its turn. Programs that know of one have it wait in the kernel. Go's are such ones; its
//! collector's sweeper waits for another sweeper so.

use systable::Sysno;

use crate::memory;
use crate::sys::Args;

/// Behind a call, if it is the one that asks for them: leaves the first one of them.
pub fn leave_one(name: Sysno, args: &Args, result: isize) {
    if name != Sysno::sched_getaffinity || result <= 0 {
        return;
    }
    let mut is_found = false;
    for at in (args[2]..).take(result.unsigned_abs()) {
        let mut byte = [0];
        // It was written a moment ago.
        let written = memory::read_bytes(at, &mut byte).and_then(|()| {
            let left = if is_found { 0 } else { byte[0] & byte[0].wrapping_neg() };
            memory::write_bytes(at, &[left])
        });
        is_found |= byte[0] != 0;
        if written.is_err() {
            return;
        }
    }
}

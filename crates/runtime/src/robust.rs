//! Locks that a thread holds when it ends (`set_robust_list`). The kernel marks those that have the thread's number
//! in them, once the thread is no more. Of a recorded program that has to happen while it has the turn, and a
//! replayed one has another number in its locks than the kernel knows.

use linux_raw_sys::general::{
    FUTEX_OWNER_DIED, FUTEX_TID_MASK, FUTEX_WAITERS, FUTEX_WAKE, ROBUST_LIST_LIMIT,
};

use crate::thread::Thread;
use crate::{memory, own};

/// `struct robust_list_head`, in words.
type Head = [usize; 3];

/// What the kernel does at the end of the calling thread, whose locks have this number in them.
pub fn release(thread: &Thread, tid: i32) {
    let head = thread.robust.take();
    if head == 0 {
        return;
    }
    let word = |at: usize| memory::read::<usize>(at).unwrap_or(0);
    let [first, offset, pending]: Head = [0, 8, 16].map(|at| word(head + at));
    let mut entry = first;
    for _ in 0..ROBUST_LIST_LIMIT {
        if entry == head || entry == 0 {
            break;
        }
        let next = word(entry & !1);
        if entry & !1 != pending & !1 {
            mark(entry, offset, tid);
        }
        entry = next;
    }
    if pending != 0 {
        mark(pending, offset, tid);
    }
}

fn mark(entry: usize, offset: usize, tid: i32) {
    // The lowest bit says that it inherits priority: those end a recording.
    let at = (entry & !1).wrapping_add(offset);
    let Ok(value) = memory::read::<u32>(at) else { return };
    if entry & 1 != 0 || value & FUTEX_TID_MASK != tid.cast_unsigned() & FUTEX_TID_MASK {
        return;
    }
    let marked = memory::write(at, &(value & FUTEX_WAITERS | FUTEX_OWNER_DIED));
    if marked.is_ok() && value & FUTEX_WAITERS != 0 {
        // SAFETY: wakes who waits there.
        let _woken = unsafe { own!(futex, at, FUTEX_WAKE, 1) };
    }
}

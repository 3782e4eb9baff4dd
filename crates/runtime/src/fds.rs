//! The one descriptor that is the runtime's: its own image, from which it starts programs. The
//! program is not to close it, and finds its number free if it wants it.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general::F_DUPFD;

use crate::own;
use crate::thread::Thread;
use crate::{site, sys};

/// Of `close_range`: the caller gets a table of descriptors of its own.
const CLOSE_RANGE_UNSHARE: usize = 2;

/// Whether this is the runtime's own descriptor.
pub fn is_own(thread: &Thread, fd: usize) -> bool {
    thread.process().image_fd.load(Relaxed) == fd as i32
}

/// Moves the runtime's descriptor, if it is where the program wants to have one.
pub fn make_room(thread: &Thread, fd: usize) {
    if !is_own(thread, fd) {
        return;
    }
    let held = &thread.process().image_fd;
    // SAFETY: a further descriptor for the same file, above that number or else below it.
    let moved =
        unsafe { own!(fcntl, fd, F_DUPFD, fd + 1).or_else(|_| own!(fcntl, fd, F_DUPFD, 3)) };
    // There is none left: the program cannot execute another one, but for the rest it goes on.
    // Threads remember where it was.
    site::report(systable::Sysno::close);
    held.store(moved.map_or(-1, |fd| fd as i32), Relaxed);
}

/// `close_range(first, last, flags)`, around the runtime's.
pub fn close_range(thread: &Thread, first: usize, last: usize, flags: usize) -> isize {
    let (first, last) = (first as u32, last as u32);
    let call = |first: u32, last: u32, flags: usize| {
        let args = [first as usize, last as usize, flags, 0, 0, 0];
        // SAFETY: the program's call; the runtime's descriptor is not among them.
        unsafe { sys::guest(systable::Sysno::close_range as usize, &args) }
    };
    let held = thread.process().image_fd.load(Relaxed);
    match u32::try_from(held) {
        Ok(held) if first <= held && held <= last => {
            let below = if first < held { call(first, held - 1, flags) } else { 0 };
            // The table is unshared once.
            let flags = if first < held { flags & !CLOSE_RANGE_UNSHARE } else { flags };
            if below != 0 || held == last { below } else { call(held + 1, last, flags) }
        }
        _ => call(first, last, flags),
    }
}

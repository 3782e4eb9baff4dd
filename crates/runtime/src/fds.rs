//! The descriptors that are the runtime's: its own image, from which it starts programs, and the recording.
//! The program is not to close them, and finds their numbers free if it wants them.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general::F_DUPFD;
use systable::Sysno;

use crate::thread::Thread;
use crate::{own, record, say, site, sys};

/// Of `close_range`: the caller gets a table of descriptors of its own.
const CLOSE_RANGE_UNSHARE: usize = 2;

/// Whether this is one of the runtime's own.
pub fn is_own(thread: &Thread, fd: usize) -> bool {
    own(thread).contains(&Some(fd))
}

/// The image, the recording, and what is left of standard error.
fn own(thread: &Thread) -> [Option<usize>; 4] {
    let image = usize::try_from(thread.process().image_fd.load(Relaxed)).ok();
    let [recording, group] = record::own_fds();
    [image, recording, group, say::own_fd()]
}

/// Moves the runtime's descriptor, if it is where the program wants to have one.
pub fn make_room(thread: &Thread, fd: usize) {
    if !is_own(thread, fd) {
        return;
    }
    // SAFETY: a further descriptor for the same file, above that number or else below it.
    let moved =
        unsafe { own!(fcntl, fd, F_DUPFD, fd + 1).or_else(|_| own!(fcntl, fd, F_DUPFD, 3)) };
    if record::own_fds().contains(&Some(fd)) {
        let _stays = moved.map(|to| record::move_fd(fd, to));
    } else if say::own_fd() == Some(fd) {
        let _stays = moved.map(say::to);
    } else {
        // There is none left: the program cannot execute another one, but for the rest it goes on.
        // Threads remember where it was.
        site::report(Sysno::close);
        thread.process().image_fd.store(moved.map_or(-1, |fd| fd as i32), Relaxed);
    }
}

/// `close_range(first, last, flags)`, around the runtime's.
pub fn close_range(thread: &Thread, first: usize, last: usize, mut flags: usize) -> isize {
    let (first, last) = (u64::from(first as u32), u64::from(last as u32));
    let mut held = own(thread);
    held.sort_unstable();
    let held = held.into_iter().flatten().map(|fd| fd as u64);
    let held = held.filter(|fd| (first..=last).contains(fd));
    // A range that is none is the kernel's to refuse.
    let mut from = first;
    let mut result = 0;
    for end in held.chain([last + 1]) {
        if end > from || first > last {
            let args = [from as usize, end as usize - 1, flags, 0, 0, 0];
            // SAFETY: the program's call; the runtime's descriptors are not among them.
            result = unsafe { sys::guest(Sysno::close_range as usize, &args) };
            if result != 0 {
                break;
            }
            // The table is unshared once.
            flags &= !CLOSE_RANGE_UNSHARE;
        }
        from = end + 1;
    }
    result
}

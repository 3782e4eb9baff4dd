//! The descriptors that are the runtime's: its own image, from which it starts programs, and the recording.
//! The program is not to close them, and finds their numbers free if it wants them.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use linux_raw_sys::general::F_DUPFD;
use systable::Sysno;

use crate::thread::Thread;
use crate::{own, record, say, site, sys};

/// Of `close_range`: the caller gets a table of descriptors of its own.
const CLOSE_RANGE_UNSHARE: usize = 2;

/// One of them, if there is one. It may have to move.
pub struct Own(AtomicUsize);

const NONE: usize = usize::MAX;

impl Own {
    /// None.
    pub const fn none() -> Own {
        Own(AtomicUsize::new(NONE))
    }

    /// Its number.
    pub fn get(&self) -> Option<usize> {
        let fd = self.0.load(Relaxed);
        (fd != NONE).then_some(fd)
    }

    /// It has this number from now on.
    pub fn set(&self, fd: usize) {
        self.0.store(fd, Relaxed);
    }

    /// Gives it back.
    pub fn close(&self) {
        let fd = self.0.swap(NONE, Relaxed);
        if fd != NONE {
            // SAFETY: the runtime's own, which nothing uses any more.
            let _closed = unsafe { own!(close, fd) };
        }
    }
}

/// The recording, what its processes share, and what is left of standard error.
static MOVABLE: [&Own; 3] = [&record::STREAM_FD, &record::GROUP_FD, &say::VOICE];

/// Calls that are told that the runtime's descriptors are not open.
pub const TOLD: [Sysno; 5] =
    [Sysno::close, Sysno::fstat, Sysno::newfstatat, Sysno::fcntl, Sysno::dup];

/// Whether this is one of the runtime's own.
pub fn is_own(thread: &Thread, fd: usize) -> bool {
    // -1 is none.
    let image = thread.process().image_fd.load(Relaxed) as usize;
    fd != NONE && (fd == image || MOVABLE.iter().any(|own| fd == own.0.load(Relaxed)))
}

/// The image, and the others.
fn own(thread: &Thread) -> [Option<usize>; 4] {
    let image = usize::try_from(thread.process().image_fd.load(Relaxed)).ok();
    let [recording, group, voice] = MOVABLE.map(Own::get);
    [image, recording, group, voice]
}

/// Moves the runtime's descriptor, if it is where the program wants to have one.
pub fn make_room(thread: &Thread, fd: usize) {
    if !is_own(thread, fd) {
        return;
    }
    // SAFETY: a further descriptor for the same file, above that number or else below it.
    let moved =
        unsafe { own!(fcntl, fd, F_DUPFD, fd + 1).or_else(|_| own!(fcntl, fd, F_DUPFD, 3)) };
    if let Some(own) = MOVABLE.iter().find(|own| own.get() == Some(fd)) {
        let _stays = moved.map(|to| own.set(to));
    } else {
        // There is none left: the program cannot execute another one, but for the rest it goes on.
        // Threads remember where it was.
        TOLD.into_iter().for_each(site::report);
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

//! Calls that may wait: for the world, or for another thread of the program.

use core::ptr::null_mut;

use linux_raw_sys::errno::{ECONNREFUSED, ECONNRESET, EINTR, EPIPE};
use linux_raw_sys::general::{F_GETFL, O_NONBLOCK, POLLIN, POLLOUT, SA_RESTART};
use systable::{Class, Sysno};

use super::engine::Turn;
use super::kinds::{self, Kind};
use super::pieces;
use crate::own;
use crate::sys::{Args, NOT_MADE, error};
use crate::thread::Thread;

/// What a call may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It does not wait, or not for long.
    No,
    /// The world, or something that is answered from the record: others go on meanwhile.
    Apart,
    /// Something inside of the program, at which it must be somebody's turn: so it is made only once it need
    /// not wait any more. These events say so.
    Inside(u32),
}

/// For so many bytes there is room in a pipe if there is any.
pub const PIPE_BUF: usize = 4096;

/// What such a call may wait for.
pub fn of(name: Sysno, class: Class, args: &Args) -> Wait {
    use Sysno::*;
    let is_inside = || kinds::of(args[0]) == Kind::Inside;
    match name {
        read | readv | recvfrom | recvmsg if is_inside() => Wait::Inside(POLLIN),
        write | writev | sendto | sendmsg if is_inside() => Wait::Inside(POLLOUT),
        read | readv | preadv2 | recvfrom | recvmsg | accept | accept4 | connect | write
        | writev | pwritev2 | sendto | sendmsg | sendfile | mq_timedsend | mq_timedreceive
            if class != Class::Execute =>
        {
            Wait::Apart
        }
        poll | ppoll | select | pselect6 | epoll_wait | epoll_pwait | epoll_pwait2 => Wait::Apart,
        nanosleep | clock_nanosleep | pause | rt_sigsuspend | rt_sigtimedwait => Wait::Apart,
        wait4 | waitid => Wait::Apart,
        semop | semtimedop | flock | fsync | fdatasync | sync | syncfs | msync => Wait::Apart,
        fcntl if super::command::waits_for_lock(args[1]) => Wait::Apart,
        name if is_futex_wait(name, args) => Wait::Apart,
        _ => Wait::No,
    }
}

/// Whether a call may have come to this because a process has ended: its descriptors are closed, and its locks
/// free.
pub fn tells_of_ends(name: Sysno, args: &Args, result: isize) -> bool {
    use Sysno::*;
    let is_inside = || kinds::of(args[0]) == Kind::Inside;
    let is_closed = [error(EPIPE), error(ECONNRESET)].contains(&result);
    match name {
        read | readv | recvfrom | recvmsg => (result == 0 || is_closed) && is_inside(),
        write | writev | sendto | sendmsg => is_closed && is_inside(),
        connect => result == error(ECONNREFUSED),
        fcntl => result == 0 && super::command::locks(args[1]),
        flock => result == 0,
        _ => false,
    }
}

/// Whether it waits for a word of memory. It may come back without a reason: whoever waits so looks again.
pub fn is_futex_wait(name: Sysno, args: &Args) -> bool {
    match name {
        Sysno::futex_wait | Sysno::futex_waitv => true,
        Sysno::futex => super::command::is_futex_wait(args[1]),
        _ => false,
    }
}

/// Waits until a call can be made that would wait for other threads of the program, while they go on. What
/// the call comes to instead, if a signal has come first.
pub fn until_ready(
    turn: &mut Turn,
    thread: &Thread,
    name: Sysno,
    args: &Args,
    events: u32,
) -> Option<isize> {
    if !waits(name, args) {
        return None;
    }
    // What is asked here the program has not asked, so a filter of its (seccomp) must not see it.
    while !is_ready(args[0], events) && !turn.is_over() {
        turn.apart(|| {
            // A signal that comes a moment before the kernel waits would not end the waiting.
            while !thread.has_deferred() && !comes_ready(args[0], events, LOOK) {}
        });
        if thread.has_deferred() {
            let signal = thread.deferred_signal()?;
            let restarts = thread.process().action(signal).flags & SA_RESTART as usize != 0;
            return Some(if restarts { NOT_MADE } else { error(EINTR) });
        }
    }
    None
}

/// Milliseconds for which a signal may be overlooked.
const LOOK: u32 = 20;

/// Whether there is what a replayed call reads, or room for what it writes: it was there when it was made, or
/// comes from a process that is about to end.
pub fn would_wait(name: Sysno, args: &Args, events: u32) -> bool {
    /// Milliseconds.
    const PATIENCE: u32 = 5000;
    waits(name, args) && !comes_ready(args[0], events, PATIENCE)
}

/// Whether more is written at once than there may be room for: half of it may have to wait.
pub fn is_too_long(name: Sysno, args: &Args) -> bool {
    let len = match name {
        Sysno::write | Sysno::sendto => args[2],
        Sysno::writev => pieces::vectors_len(args[1], args[2]),
        Sysno::sendmsg => pieces::message_len(args[1]),
        _ => 0,
    };
    len > PIPE_BUF && waits(name, args)
}

/// Whether it was not told not to.
fn waits(name: Sysno, args: &Args) -> bool {
    const MSG_DONTWAIT: usize = 0x40;
    let flags = match name {
        Sysno::recvfrom | Sysno::sendto => args[3],
        Sysno::recvmsg | Sysno::sendmsg => args[2],
        _ => 0,
    };
    // SAFETY: asks, and changes nothing.
    let of_descriptor = unsafe { own!(fcntl, args[0], F_GETFL) };
    flags & MSG_DONTWAIT == 0 && of_descriptor.is_ok_and(|flags| flags & O_NONBLOCK as usize == 0)
}

/// `fd_set`, which has room for so many.
const SET: usize = 1024;

fn is_ready(fd: usize, events: u32) -> bool {
    comes_ready(fd, events, 0)
}

/// Whether it becomes so within some milliseconds. By `select`: of a process that may open no more files
/// (`RLIMIT_NOFILE`) the kernel refuses `poll`.
fn comes_ready(fd: usize, events: u32, patience: u32) -> bool {
    // It is a 32-bit number, and what is above it may be anything.
    let fd = fd as u32 as usize;
    let mut time = [u64::from(patience) / 1000, u64::from(patience) % 1000 * 1000];
    let mut set = [0u64; SET / 64];
    let mut poll = [fd as u64 | u64::from(events) << 32];
    // SAFETY: looks at a descriptor of the program's.
    let found = unsafe {
        if fd < SET {
            set[fd / 64] = 1 << (fd % 64);
            let set = set.as_mut_ptr();
            let [reads, writes] =
                if events == POLLIN { [set, null_mut()] } else { [null_mut(), set] };
            own!(select, fd + 1, reads, writes, 0, time.as_mut_ptr())
        } else {
            own!(poll, poll.as_mut_ptr(), 1, patience)
        }
    };
    // What cannot be asked for the call itself will say.
    found != Ok(0) && found != Err(error(EINTR))
}

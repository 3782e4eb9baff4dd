//! Calls that may wait: for the world, or for another thread of the program.

use linux_raw_sys::errno::EINTR;
use linux_raw_sys::general::{F_GETFL, O_NONBLOCK, POLLIN, POLLOUT, SA_RESTART};
use systable::{Class, Sysno};

use super::engine::Turn;
use super::kinds::{self, Kind};
use super::pieces;
use crate::own;
use crate::sys::{self, Args, NOT_MADE, error};
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

/// The most that is written to a pipe at once.
const PIPE_BUF: usize = 4096;

/// What such a call may wait for.
pub fn of(name: Sysno, class: Class, args: &Args) -> Wait {
    use Sysno::*;
    let is_inside = kinds::of(args[0]) == Kind::Inside;
    match name {
        read | readv | recvfrom | recvmsg if is_inside => Wait::Inside(POLLIN),
        write | writev | sendto | sendmsg if is_inside => Wait::Inside(POLLOUT),
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
    while !is_ready(args[0], events) && !turn.is_over() {
        let mut poll = Poll { fd: args[0] as i32, events: events as u16, came: 0 };
        let at = &raw mut poll as usize;
        // SAFETY: looks at a descriptor of the program's.
        let came = turn
            .apart(|| unsafe { sys::guest(Sysno::poll as usize, &[at, 1, usize::MAX, 0, 0, 0]) });
        if [NOT_MADE, error(EINTR)].contains(&came) {
            let signal = thread.deferred_signal()?;
            let restarts = thread.process().action(signal).flags & SA_RESTART as usize != 0;
            return Some(if restarts { NOT_MADE } else { error(EINTR) });
        }
    }
    None
}

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

/// `struct pollfd`.
#[repr(C)]
struct Poll {
    fd: i32,
    events: u16,
    came: u16,
}

fn is_ready(fd: usize, events: u32) -> bool {
    comes_ready(fd, events, 0)
}

fn comes_ready(fd: usize, events: u32, patience: u32) -> bool {
    let mut poll = Poll { fd: fd as i32, events: events as u16, came: 0 };
    // SAFETY: looks at a descriptor of the program's.
    unsafe { own!(poll, &raw mut poll, 1, patience) != Ok(0) }
}

//! Calls that block signals, for good or while they wait. The kernel never blocks SIGSYS: the
//! program would not survive its next call.

use linux_raw_sys::errno::EINTR;
use linux_raw_sys::general::{SIG_BLOCK, SIG_SETMASK, SIG_UNBLOCK};
use systable::Sysno;

use crate::dispatch::{before_signals, is_set_size, value};
use crate::frame::Context;
use crate::sigset::SigSet;
use crate::sys::{self, Args, EINVAL, error};
use crate::thread::{Deferred, Thread};
use crate::{memory, signal};

/// Which argument of a call is the address of a set of signals.
pub struct At(pub usize);

/// `rt_sigprocmask(how, new, old, size)`.
pub fn sigprocmask(
    thread: &Thread,
    how: usize,
    new: usize,
    old: usize,
    size: usize,
    context: &mut Context,
) -> isize {
    let mut set = || {
        is_set_size(size)?;
        let before = thread.mask.get();
        if new != 0 {
            let given = memory::read::<SigSet>(new)?;
            let mask = match how as u32 {
                SIG_BLOCK => before.and(given),
                SIG_UNBLOCK => SigSet(before.0 & !given.0),
                SIG_SETMASK => given,
                _ => return Err(EINVAL),
            };
            before_signals(thread)?;
            let mask = SigSet(mask.0 & SigSet::ALL.0);
            thread.mask.set(mask);
            context.mask = mask.real();
            thread.held.release_behind(mask);
        }
        if old != 0 {
            memory::write(old, &before)?;
        }
        Ok(0)
    };
    value(set())
}

/// `rt_sigpending(set, size)`.
pub fn sigpending(thread: &Thread, args: Args) -> isize {
    // SAFETY: the program's call.
    let result = unsafe { sys::guest(Sysno::rt_sigpending as usize, &args) };
    let [set, size, ..] = args;
    if result != 0 || size != size_of::<SigSet>() || thread.held.signals() == SigSet::default() {
        return result;
    }
    let with_held = memory::read::<SigSet>(set).map(|known| known.and(thread.held.signals()));
    value(with_held.and_then(|all| memory::write(set, &all)).map(|()| 0))
}

/// `rt_sigtimedwait(set, info, timeout, size)`.
pub fn sigtimedwait(thread: &Thread, args: Args) -> isize {
    let [set, info, _, size, ..] = args;
    let take = || {
        is_set_size(size)?;
        let wanted = memory::read::<SigSet>(set)?;
        let Some(held) = thread.held.take(wanted) else { return Ok(None) };
        if info != 0 {
            memory::write_bytes(info, &held.bytes())?;
        }
        Ok(Some(held.signal as isize))
    };
    match take() {
        Ok(Some(signal)) => signal,
        Ok(None) => filtered(Sysno::rt_sigtimedwait as usize, args, 0, size),
        Err(error) => error,
    }
}

/// Whether a signal that is held ends a call during which `mask` is blocked, before it waits.
fn comes(thread: &Thread, mask: SigSet) -> bool {
    let wanted = SigSet(!mask.0);
    if thread.held.signals().0 & wanted.0 == 0 {
        return false;
    }
    signal::block(SigSet::ALL.real());
    // Another one that is deferred already keeps the call from being made.
    let held = if thread.has_deferred() { None } else { thread.held.take(wanted) };
    let Some(info) = held else { return false };
    thread.defer_here(Deferred { info, temporary: Some(mask) });
    true
}

/// A call during which another set is blocked, if it is given one.
pub fn during(thread: &Thread, number: usize, mut args: Args, at: At, size: usize) -> isize {
    if args[at.0] == 0 {
        // SAFETY: the program's call.
        return unsafe { sys::guest(number, &args) };
    }
    let mask = match is_set_size(size).and_then(|()| memory::read::<SigSet>(args[at.0])) {
        Ok(mask) => SigSet(mask.0 & SigSet::ALL.0),
        Err(error) => return error,
    };
    if comes(thread, mask) {
        return error(EINTR);
    }
    let real = mask.real();
    args[at.0] = &raw const real as usize;
    thread.temporary.set(Some(mask));
    // SAFETY: the program's call; the set is here until it returns.
    let result = unsafe { sys::guest(number, &args) };
    thread.temporary.set(None);
    result
}

/// `pselect6`, whose sixth argument is the address of the set's address and size.
pub fn during_select(thread: &Thread, number: usize, mut args: Args) -> isize {
    if args[5] == 0 {
        // SAFETY: the program's call.
        return unsafe { sys::guest(number, &args) };
    }
    let [set, size] = match memory::read::<[usize; 2]>(args[5]) {
        Ok(given) => given,
        Err(error) => return error,
    };
    let mut given = [set, size];
    let mut real = SigSet::default();
    if set != 0 {
        let mask = match is_set_size(size).and_then(|()| memory::read::<SigSet>(set)) {
            Ok(mask) => SigSet(mask.0 & SigSet::ALL.0),
            Err(error) => return error,
        };
        if comes(thread, mask) {
            return error(EINTR);
        }
        real = mask.real();
        given[0] = &raw const real as usize;
        thread.temporary.set(Some(mask));
    }
    args[5] = &raw const given as usize;
    // SAFETY: the program's call; both sets are here until it returns.
    let result = unsafe { sys::guest(number, &args) };
    thread.temporary.set(None);
    let _kept = (&raw const real, &raw const given);
    result
}

/// A call that is about the signals in the set that argument `at` points to.
pub fn filtered(number: usize, mut args: Args, at: usize, size: usize) -> isize {
    let call = || {
        is_set_size(size)?;
        let real = memory::read::<SigSet>(args[at])?.real();
        args[at] = &raw const real as usize;
        // SAFETY: the program's call; the set is here until it returns.
        Ok(unsafe { sys::guest(number, &args) })
    };
    let mut call = call;
    call().unwrap_or_else(|error| error)
}

//! `rt_sigaction` and `rt_sigreturn`.

use linux_raw_sys::general::{SIGKILL, SIGSTOP};

use crate::dispatch::{Outcome, before_signals, is_set_size, value};
use crate::frame::Context;
use crate::memory;
use crate::process::Action;
use crate::signal::{stack_of, tell_about};
use crate::sigset::{SIGNALS, SigSet};
use crate::sys::{EINVAL, NOT_MADE};
use crate::thread::Thread;

/// `rt_sigaction(signal, new, old, size)`.
pub fn sigaction(thread: &Thread, signal: usize, new: usize, old: usize, size: usize) -> isize {
    value(try_sigaction(thread, signal, new, old, size))
}

fn try_sigaction(
    thread: &Thread,
    signal: usize,
    new: usize,
    old: usize,
    size: usize,
) -> Result<usize, isize> {
    is_set_size(size)?;
    let signal = u32::try_from(signal & 0xffff_ffff).map_err(|_| EINVAL)?;
    if !(1..=SIGNALS).contains(&signal) || (new != 0 && [SIGKILL, SIGSTOP].contains(&signal)) {
        return Err(EINVAL);
    }
    let wanted = if new == 0 { None } else { Some(memory::read::<Action>(new)?) };
    if wanted.is_some() {
        before_signals(thread)?;
    }
    let before = thread.process().with(signal, |action| {
        let before = *action;
        if let Some(mut wanted) = wanted {
            wanted.mask = SigSet(wanted.mask.0 & SigSet::ALL.0);
            tell_about(signal, &wanted)?;
            *action = wanted;
        }
        Ok::<Action, isize>(before)
    })?;
    if old != 0 {
        memory::write(old, &before)?;
    }
    Ok(0)
}

/// `rt_sigreturn()`: the frame is on the stack.
pub fn sigreturn(thread: &Thread, context: &mut Context) -> Outcome {
    if before_signals(thread).is_err() {
        return Outcome::Value(NOT_MADE);
    }
    let given = context.registers.rsp as *const Context;
    // SAFETY: a program that returns from no handler dies of what it finds, as it would without the
    // runtime.
    let given = unsafe {
        let own = context.stack;
        context.pop(given);
        context.stack = own;
        given.read_unaligned()
    };
    debug_assert_eq!(context.stack.sp, stack_of(thread).sp);
    let mask = SigSet(given.mask.0 & SigSet::ALL.0);
    thread.mask.set(mask);
    context.mask = mask.real();
    thread.held.release_behind(mask);
    crate::altstack::restore(thread, given.stack, context.registers.rsp);
    Outcome::Context
}

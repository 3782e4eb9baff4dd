//! `sigaltstack`. The kernel knows the runtime's own stack; the program's is kept here.

use linux_raw_sys::errno::{ENOMEM, EPERM};
use linux_raw_sys::general::{SS_AUTODISARM, SS_DISABLE, SS_ONSTACK};

use crate::dispatch::value;
use crate::frame::AltStack;
use crate::memory;
use crate::sys::{EINVAL, error};
use crate::thread::Thread;

/// The smallest that the kernel takes, bytes (`MINSIGSTKSZ`).
const LEAST: usize = 2048;

/// `sigaltstack(new, old)` of a thread that runs at `sp`.
pub fn set(thread: &Thread, new: usize, old: usize, sp: usize) -> isize {
    let set = || {
        let before = thread.altstack.get();
        if new != 0 {
            thread.altstack.set(changed(before, memory::read(new)?, sp)?);
        }
        if old != 0 {
            memory::write(old, &before.seen_from(sp))?;
        }
        Ok(0)
    };
    value(set())
}

/// After a handler, the stack is what it was before, if it may be.
pub fn restore(thread: &Thread, before: AltStack, sp: usize) {
    if let Ok(stack) = changed(thread.altstack.get(), before, sp) {
        thread.altstack.set(stack);
    }
}

fn changed(now: AltStack, new: AltStack, sp: usize) -> Result<AltStack, isize> {
    if now.is_under(sp) {
        return Err(error(EPERM));
    }
    match new.flags & !SS_AUTODISARM {
        SS_DISABLE => Ok(AltStack { flags: new.flags, ..AltStack::NONE }),
        0 | SS_ONSTACK if new.size < LEAST => Err(error(ENOMEM)),
        0 | SS_ONSTACK => Ok(AltStack { flags: new.flags & SS_AUTODISARM, ..new }),
        _ => Err(EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(sp: usize, flags: u32, size: usize) -> AltStack {
        AltStack { sp, flags, padding: 0, size }
    }

    #[test]
    fn as_the_kernel_takes_them() {
        let (none, some) = (AltStack::NONE, stack(0x1_0000, 0, 0x8000));
        assert_eq!(changed(none, some, 0x50), Ok(some));
        assert_eq!(changed(none, stack(0x1_0000, SS_ONSTACK, 0x8000), 0x50), Ok(some));
        assert_eq!(changed(none, stack(0x1_0000, 0, 100), 0x50), Err(error(ENOMEM)));
        assert_eq!(changed(none, stack(0x1_0000, 4, 0x8000), 0x50), Err(EINVAL));
        assert_eq!(changed(some, stack(0, SS_DISABLE, 0), 0x50), Ok(none));
        assert_eq!(changed(some, none, 0x1_1000), Err(error(EPERM)), "it is in use");
        let disarms = stack(0x1_0000, SS_AUTODISARM, 0x8000);
        assert_eq!(changed(disarms, none, 0x1_1000), Ok(none), "whoever uses it has left it");
    }

    #[test]
    fn a_thread_on_it_sees_that() {
        let some = stack(0x1_0000, 0, 0x8000);
        assert_eq!(some.seen_from(0x1_8000).flags, SS_ONSTACK, "its highest address is on it");
        assert_eq!(some.seen_from(0x1_0000).flags, 0);
        assert_eq!(AltStack::NONE.seen_from(0).flags, SS_DISABLE);
    }
}

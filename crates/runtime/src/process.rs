//! What belongs to a process: what its signals do, and the descriptor that the runtime keeps.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering::*};

use linux_raw_sys::general::SA_RESETHAND;

use crate::lock::Lock;
use crate::sigset::{SIGNALS, SigSet};

/// No handler: what the kernel does of itself.
pub const SIG_DFL: usize = 0;
/// No handler: nothing.
pub const SIG_IGN: usize = 1;

/// `struct sigaction`, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Action {
    /// `SIG_DFL`, `SIG_IGN`, or an address.
    pub handler: usize,
    /// `SA_*`.
    pub flags: usize,
    /// Where the handler returns to.
    pub restorer: usize,
    /// What is blocked meanwhile.
    pub mask: SigSet,
}

impl Action {
    /// What every signal does that nobody has said anything about.
    pub const DEFAULT: Action = Action { handler: SIG_DFL, flags: 0, restorer: 0, mask: SigSet(0) };

    /// Whether a function of the program's is called.
    pub fn is_handled(&self) -> bool {
        ![SIG_DFL, SIG_IGN].contains(&self.handler)
    }
}

/// A process; shared by its threads.
pub struct Process {
    lock: Lock,
    actions: UnsafeCell<[Action; SIGNALS as usize]>,
    /// The runtime's own image, from which it starts the programs that this one executes.
    pub image_fd: AtomicI32,
}

// SAFETY: `actions` is looked at under the lock alone.
unsafe impl Sync for Process {}

/// The process that this one began as. After `fork` it is the child's, in the child's memory.
pub static FIRST: Process = Process::new();

impl Process {
    const fn new() -> Process {
        Process {
            lock: Lock::free(),
            actions: UnsafeCell::new([Action::DEFAULT; SIGNALS as usize]),
            image_fd: AtomicI32::new(-1),
        }
    }

    /// A process like this one at `place`, as a child that shares memory, but no handlers, begins.
    ///
    /// # Safety
    /// The place is nobody's.
    pub unsafe fn copy_to(&self, place: *mut Process) {
        let copy = Process::new();
        let _guard = self.lock.lock();
        // SAFETY: `actions` is read under the lock; the copy is nobody's yet, nor is the place.
        unsafe {
            *copy.actions.get() = *self.actions.get();
            copy.image_fd.store(self.image_fd.load(Relaxed), Relaxed);
            ptr::write(place, copy);
        }
    }

    /// What `signal` does.
    pub fn action(&self, signal: u32) -> Action {
        self.with(signal, |action| *action)
    }

    /// What `signal` does, for one delivery: once is enough for some.
    pub fn deliver(&self, signal: u32) -> Action {
        self.with(signal, |action| {
            let once = action.is_handled() && action.flags & SA_RESETHAND as usize != 0;
            let now = *action;
            if once {
                // Its flags stay.
                action.handler = SIG_DFL;
            }
            now
        })
    }

    /// Runs `change` on what `signal` does, while nobody else looks.
    pub fn with<T>(&self, signal: u32, change: impl FnOnce(&mut Action) -> T) -> T {
        let _guard = self.lock.lock();
        // SAFETY: under the lock.
        let actions = unsafe { &mut *self.actions.get() };
        change(&mut actions[signal as usize - 1])
    }

    /// While this is held nobody changes anything: a copy of the memory may be made.
    pub fn still(&self) -> impl Drop + '_ {
        self.lock.lock()
    }
}

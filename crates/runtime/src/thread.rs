//! What the runtime keeps for each thread of the program.
//!
//! A thread lives in a *slot*: a page that nobody may touch, the stack on which the runtime's
//! handlers run, and a [`Thread`]. The `gs` register points at it, which programs on x86-64 leave
//! alone. A slot belongs to its thread until the kernel says that there is no such thread any more:
//! a thread that ends runs on its slot's stack to its last instruction, so nobody could say so
//! earlier.
//!
//! Memory is shared with every thread of the process, and with a child of `vfork` until it execs.
//! After `fork` the child has a copy, in which only the calling thread's slot is in use.

use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use linux_raw_sys::errno::{EAGAIN, ESRCH};
use linux_raw_sys::general::{
    FUTEX_WAKE, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, PROT_NONE,
};
use linux_raw_sys::general::{PROT_READ, PROT_WRITE};

use crate::frame::{AltStack, SigInfo};
use crate::held::Held;
use crate::layout::{PAGE, SLOTS};
use crate::lock::Lock;
use crate::memory;
use crate::own;
use crate::process::Process;
use crate::record;
use crate::sigset::SigSet;
use crate::sys::error;

/// Bytes of a slot.
const SLOT: usize = 128 << 10;

/// Threads at a time, of a process and of children that share its memory.
const MAX_SLOTS: usize = (SLOTS.end - SLOTS.start) / SLOT;

/// A thread of the program.
#[repr(C)]
pub struct Thread {
    /// Where this is: what `gs:[0]` is read for.
    this: *const Thread,
    /// Whether [`Thread::signal`] holds a signal. Written by this thread's signal handler, which the
    /// rest of the thread is not written to expect: only `deferred` is looked at outside of it, by
    /// instructions at known addresses.
    pub deferred: AtomicU64,
    /// Where the program goes on behind the call that it is making at a patched site.
    pub tail: Cell<usize>,
    /// Where the context of a recorded call is that comes from a patched site.
    pub entry: usize,
    /// That call's number, and what it has returned.
    pub number: Cell<usize>,
    /// See [`Thread::number`].
    pub result: Cell<isize>,
    /// Whether a call that does not exist stands for it.
    pub pending: Cell<bool>,
    /// The runtime's descriptor, for `steadfast_site`, which asks nobody.
    pub image_fd: Cell<i32>,
    /// A signal that came while the runtime was at work. All signals are blocked from then on until
    /// the thread returns to the program, so there is never a second one but of those that can be held.
    signal: UnsafeCell<Deferred>,
    /// What the program believes to be blocked.
    pub mask: Cell<SigSet>,
    /// What is blocked instead during the call that is being made (`ppoll` and its like).
    pub temporary: Cell<Option<SigSet>>,
    /// Signals that it blocks and the kernel does not.
    pub held: Held,
    /// The program's alternate stack. The kernel's is the slot's.
    pub altstack: Cell<AltStack>,
    /// Handlers of signals, and what else is one process's.
    pub process: Cell<*const Process>,
    /// Of a child of `vfork`, whose parent's it must not change.
    pub own_process: UnsafeCell<Process>,
    /// Whether it has asked for seccomp's strict mode.
    pub strict: Cell<bool>,
    /// Whether it begins with all its handlers forgotten.
    pub clears_handlers: Cell<bool>,
    /// Of several that take turns: its seat.
    pub seat: Cell<u16>,
    /// Whether its last call was not made, since a signal had come before. Of one that is recorded.
    pub not_made: Cell<bool>,
    /// The word that is cleared, and woken, when it ends (`CLONE_CHILD_CLEARTID`), if that is not the
    /// kernel's to do: it would do it while another thread has the turn.
    pub clear_word: Cell<usize>,
    /// Where the list of its robust locks is, of a thread that is recorded, or replayed: see
    /// [`crate::robust`].
    pub robust: Cell<usize>,
    /// What a replayed program is told to be its number. 0: what the kernel says.
    pub told: Cell<i32>,
    /// Where it has noted what its descriptors are, if it has others than its process.
    pub kinds: Cell<usize>,
    /// Of a child of `vfork` while it is recorded: 0 as soon as it has memory of its own, or is no more.
    pub shares: AtomicU32,
    /// A child of `vfork`, for which it has yet to wait.
    pub vforked: Cell<Option<&'static Thread>>,
    /// Memory of an `execve` that is under way, for whoever shares it to free.
    pub scratch: Cell<(usize, usize)>,
}

/// A signal that waits for the thread to leave the runtime.
#[derive(Clone, Copy)]
pub struct Deferred {
    /// As it came.
    pub info: SigInfo,
    /// What was blocked in its place while it came: see [`Thread::temporary`].
    pub temporary: Option<SigSet>,
}

const _: () = assert!(offset_of!(Thread, this) == 0);
const _: () = assert!(size_of::<Thread>() <= PAGE);

/// Who is in a slot: the thread's id, [`FREE`], or [`TAKEN`].
static OWNERS: [AtomicI32; MAX_SLOTS] = [const { AtomicI32::new(FREE) }; MAX_SLOTS];
/// Slots from here on have never been used.
static FRESH: AtomicUsize = AtomicUsize::new(0);
/// Where the search for one that is free goes on.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static LOCK: Lock = Lock::free();

/// So many are asked for before a fresh one is used.
const ASKED: usize = 16;

const FREE: i32 = 0;
/// Handed out to a thread that is not born yet.
const TAKEN: i32 = -1;

/// A slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(usize);

impl Slot {
    /// A slot for a thread that is about to be made.
    ///
    /// # Errors
    /// `EAGAIN`: there are too many threads, or there is no memory.
    pub fn take() -> Result<Slot, isize> {
        let _guard = LOCK.lock();
        let (fresh, from) = (FRESH.load(Relaxed), NEXT.load(Relaxed));
        // Nobody says when a thread is gone, so somebody has to ask for it: of a few, each time.
        let asked = if fresh == MAX_SLOTS { fresh } else { fresh.min(ASKED) };
        let mut some = (0..asked).map(|i| (from + i) % fresh);
        if let Some(free) = some.find(|&i| Slot(i).is_free()) {
            OWNERS[free].store(TAKEN, Relaxed);
            NEXT.store(free + 1, Relaxed);
            return Ok(Slot(free));
        }
        NEXT.store(from + asked, Relaxed);
        let slot = Slot(fresh);
        if fresh == MAX_SLOTS || slot.map().is_err() {
            return Err(error(EAGAIN));
        }
        OWNERS[fresh].store(TAKEN, Relaxed);
        FRESH.store(fresh + 1, Relaxed);
        Ok(slot)
    }

    /// Says who is in it. Once it is said, the slot is free as soon as there is no such thread.
    pub fn belongs_to(self, tid: i32) {
        OWNERS[self.0].store(tid, Release);
    }

    /// Gives it back: no thread was made for it, or it is certainly gone.
    pub fn free(self) {
        OWNERS[self.0].store(FREE, Release);
    }

    fn is_free(self) -> bool {
        match OWNERS[self.0].load(Acquire) {
            FREE => true,
            TAKEN => false,
            // SAFETY: signal 0 does nothing.
            tid => unsafe { own!(tkill, tid, 0) == Err(error(ESRCH)) },
        }
    }

    fn map(self) -> Result<(), isize> {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        // SAFETY: nothing else is ever put here, and nothing that is here is replaced.
        unsafe {
            own!(mmap, self.start(), SLOT, PROT_READ | PROT_WRITE, flags, usize::MAX, 0)?;
            own!(mprotect, self.start(), PAGE, PROT_NONE)?;
        }
        Ok(())
    }

    /// Which one it is.
    pub fn number(self) -> usize {
        self.0
    }

    fn start(self) -> usize {
        SLOTS.start + self.0 * SLOT
    }

    /// Where its stack ends: the first byte above.
    pub fn stack_end(self) -> usize {
        self.start() + SLOT - PAGE
    }

    /// Its stack, as the kernel is told.
    pub fn stack(self) -> AltStack {
        AltStack { sp: self.start() + PAGE, flags: 0, padding: 0, size: SLOT - 2 * PAGE }
    }

    /// The thread in it. It has this content from [`Slot::fill`] on.
    pub fn thread(self) -> *mut Thread {
        self.stack_end() as *mut Thread
    }

    /// Puts a thread into it that has nothing yet but a mask.
    ///
    /// # Safety
    /// Nobody uses this slot's thread.
    pub unsafe fn fill(self, mask: SigSet, process: &Process) -> &'static Thread {
        let this = self.thread();
        // SAFETY: the slot is mapped, and by the caller's word nobody's. All-zero bytes are a valid
        // value of what is left out here: a signal that is not there, a process that is not used.
        unsafe {
            ptr::write_bytes(this, 0, 1);
            (&raw mut (*this).this).write(this);
            (&raw mut (*this).entry).write(self.stack_end() - record::entry::ROOM);
            (&raw mut (*this).mask).write(Cell::new(mask));
            (&raw mut (*this).altstack).write(Cell::new(AltStack::NONE));
            (&raw mut (*this).temporary).write(Cell::new(None));
            (&raw mut (*this).process).write(Cell::new(ptr::from_ref(process)));
            (&raw mut (*this).image_fd).write(Cell::new(process.image_fd.load(Relaxed)));
            &*this
        }
    }

    /// The slot of a thread.
    pub fn of(thread: &Thread) -> Slot {
        let at = ptr::from_ref(thread) as usize + PAGE - SLOT;
        assert!(SLOTS.contains(&at) && (at - SLOTS.start).is_multiple_of(SLOT), "no slot");
        Slot((at - SLOTS.start) / SLOT)
    }
}

/// In a child of `fork`: the other threads have stayed behind.
pub fn only(slot: Slot, tid: i32) {
    for owner in &OWNERS[..FRESH.load(Relaxed)] {
        owner.store(FREE, Relaxed);
    }
    slot.belongs_to(tid);
}

/// While this is held no other thread takes a slot: a copy of the memory may be made.
pub fn still() -> impl Drop {
    LOCK.lock()
}

impl Thread {
    /// This thread.
    pub fn current() -> &'static Thread {
        let this: *const Thread;
        // SAFETY: reads the thread's own pointer to itself; every thread that runs Rust code of the
        // runtime has set it, before it did anything else.
        unsafe {
            core::arch::asm!("mov {}, gs:[0]", out(reg) this, options(nostack, readonly, pure));
            &*this
        }
    }

    /// What its `gs` register holds.
    pub fn address(&self) -> usize {
        ptr::from_ref(self) as usize
    }

    /// Makes this the calling thread's.
    ///
    /// # Safety
    /// No other thread's, and it stays where it is for as long as this one runs.
    pub unsafe fn enter(&self) {
        // SAFETY: the program does not use `gs`: whoever sets it is refused.
        unsafe {
            core::arch::asm!("wrgsbase {}", in(reg) self.address(), options(nostack, nomem));
        }
    }

    /// Whether it belongs to the process whose memory this is: it is no child of `vfork`.
    pub fn has_process_alone(&self) -> bool {
        ptr::eq(self.process(), &raw const crate::process::FIRST)
    }

    /// The process it belongs to.
    pub fn process(&self) -> &'static Process {
        // SAFETY: set to what lives as long as the thread: a static, or its own slot.
        unsafe { &*self.process.get() }
    }

    /// Keeps a signal for later, which has interrupted the waiting of a call or not. By the signal
    /// handler alone.
    pub fn defer(&self, info: SigInfo, interrupted: bool) {
        if self.has_deferred() && self.held.holds(&info, SigSet::ALL) {
            return;
        }
        assert_eq!(self.deferred.load(Relaxed), 0, "all signals are blocked while one waits");
        // SAFETY: only this thread's handler writes here, and none nests in it.
        unsafe {
            let temporary = self.temporary.get().filter(|_| interrupted);
            *self.signal.get() = Deferred { info, temporary };
        }
        self.deferred.store(1, Release);
    }

    /// Has the thread find a signal on its way back to the program that nobody has sent just now. All
    /// signals must be blocked.
    pub fn defer_here(&self, deferred: Deferred) {
        assert_eq!(self.deferred.load(Relaxed), 0, "one signal is delivered at a time");
        // SAFETY: no handler runs while signals are blocked.
        unsafe { *self.signal.get() = deferred };
        self.deferred.store(1, Release);
    }

    /// The signal that waits. All signals must be blocked.
    pub fn deferred_signal(&self) -> Option<u32> {
        // SAFETY: no handler runs while signals are blocked.
        self.has_deferred().then(|| unsafe { (*self.signal.get()).info.signal.cast_unsigned() })
    }

    /// The thread ends: whoever waits for that finds out.
    pub fn clear_word(&self) {
        let at = self.clear_word.take();
        if at != 0 && memory::write(at, &0u32).is_ok() {
            // SAFETY: wakes who waits there.
            let _woken = unsafe { own!(futex, at, FUTEX_WAKE, 1) };
        }
    }

    /// Whether a signal waits. All signals must be blocked.
    pub fn has_deferred(&self) -> bool {
        self.deferred.load(Acquire) != 0
    }

    /// The signal that waits, if there is one, which then no longer does. All signals must be
    /// blocked.
    pub fn take_deferred(&self) -> Option<Deferred> {
        // SAFETY: no handler runs while signals are blocked.
        (self.deferred.swap(0, Acquire) != 0).then(|| unsafe { *self.signal.get() })
    }
}

//! `clone`, `clone3`, `fork`, `vfork`: threads and processes.
//!
//! A child that has a *copy* of the memory goes on where its parent is, on a stack that looks the
//! same. One that *shares* it (a thread, or a child of `vfork` until it execs) gets a slot, and begins
//! on the slot's stack with a copy of the context that its parent goes back with. Either has to have
//! its calls reported again, which the kernel does for nobody but the thread that has asked for it.
//!
//! Threads of a program that is recorded, or replayed, take turns, and what the kernel would write to memory
//! behind their backs (`CLONE_PARENT_SETTID` and its like) is written here.

use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering::*};

use linux_raw_sys::errno::E2BIG;
use linux_raw_sys::general::*;
use systable::Sysno;

use crate::dispatch::{before_signals, value};
use crate::frame::Context;
use crate::layout::PAGE;
use crate::process::{Action, Process};
use crate::sigset::SIGNALS;
use crate::sys::{self, Args, EINVAL, error};
use crate::thread::{self, Slot, Thread};
use crate::{exec, load_call, memory, own, record, signal, site};

/// `struct clone_args`, as words.
type Clone3 = [u64; 11];
const FLAGS: usize = word(offset_of!(clone_args, flags));
const EXIT_SIGNAL: usize = word(offset_of!(clone_args, exit_signal));
const CHILD_TID: usize = word(offset_of!(clone_args, child_tid));
const PARENT_TID: usize = word(offset_of!(clone_args, parent_tid));
const STACK: usize = word(offset_of!(clone_args, stack));
const STACK_SIZE: usize = word(offset_of!(clone_args, stack_size));
const _: () = assert!(size_of::<Clone3>() == size_of::<clone_args>());

/// The first version of `struct clone_args`, bytes.
const CLONE3_LEAST: usize = 64;

const VM: u64 = CLONE_VM as u64;
const VFORK: u64 = CLONE_VFORK as u64;
const SIGHAND: u64 = CLONE_SIGHAND as u64;
const CLEAR_SIGHAND: u64 = 0x1_0000_0000;

const fn word(offset: usize) -> usize {
    offset / size_of::<u64>()
}

global_asm!(
    ".text",
    ".globl steadfast_birth, steadfast_birth_behind",
    ".balign 16",
    // (number: rdi, arguments: rsi, the child's context: rdx, its thread: rcx)
    "steadfast_birth:",
    "push rbx",
    "push r12",
    "mov rbx, rdx",
    "mov r12, rcx",
    load_call!(),
    "syscall",
    "steadfast_birth_behind:",
    "test rax, rax",
    "jz 2f",
    "pop r12",
    "pop rbx",
    "ret",
    "2:",
    "wrgsbase r12",
    "mov rdi, rbx",
    "call {born}",
    "ud2",
    born = sym born,
);

unsafe extern "C" {
    fn steadfast_birth(
        number: usize,
        args: *const Args,
        context: *mut Context,
        thread: usize,
    ) -> isize;
    static steadfast_birth_behind: u8;
}

/// The address behind the instruction that makes a child that shares the memory.
pub fn behind_birth() -> usize {
    &raw const steadfast_birth_behind as usize
}

/// What the program has asked for.
struct Wanted {
    /// The call that makes it.
    name: Sysno,
    /// Its arguments, but that those of `clone3` are in `clone3`.
    args: Args,
    clone3: Clone3,
    flags: u64,
    /// Where the child's stack pointer is to be; 0: where its parent's is.
    sp: usize,
}

/// What a thread of a program that takes turns may be made with, and has to be.
const THREADS: u64 = (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD) as u64;
const TIDS: u64 = (CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) as u64;
const TURNS: u64 = THREADS | TIDS | (CLONE_SYSVSEM | CLONE_SETTLS | CLONE_DETACHED) as u64;
/// And what a process may be made with.
const PROCESS: u64 = 0xff | TIDS | CLEAR_SIGHAND | (CLONE_SETTLS | NAMESPACES) as u64;
const NAMESPACES: u32 = CLONE_NEWPID
    | CLONE_NEWIPC
    | CLONE_NEWNS
    | CLONE_NEWNET
    | CLONE_NEWUTS
    | CLONE_NEWUSER
    | CLONE_NEWCGROUP;
const CHILD_OF_VFORK: u64 = 0xff | CLEAR_SIGHAND | VM | VFORK;

/// What a call makes that can take turns with its maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    /// A thread of the process.
    Thread,
    /// A process: with a copy of the memory, or (`vfork`) until it has memory of its own.
    Process,
    /// Something else.
    Other,
    /// Nothing: it fails.
    Nothing,
}

/// What such a call makes.
pub fn makes(name: Sysno, args: Args) -> Makes {
    match Wanted::new(name, args) {
        Ok(wanted) if wanted.is_thread() => Makes::Thread,
        Ok(wanted) if wanted.flags & !PROCESS == 0 => Makes::Process,
        Ok(wanted) if wanted.is_vfork() && wanted.flags & !CHILD_OF_VFORK == 0 => Makes::Process,
        Ok(_) => Makes::Other,
        Err(_) => Makes::Nothing,
    }
}

/// Where a thread's number is to be written.
struct Tids {
    words: [usize; 2],
    /// And which word is cleared when it ends.
    clear: usize,
}

/// Makes a thread or a process.
pub fn make(thread: &'static Thread, name: Sysno, args: Args, context: &mut Context) -> isize {
    let mut make = || {
        let wanted = Wanted::new(name, args)?;
        before_signals(thread)?;
        if wanted.flags & VM == 0 {
            wanted.copy(thread, context)
        } else {
            wanted.share(thread, context)
        }
    };
    value(make())
}

impl Wanted {
    fn new(name: Sysno, args: Args) -> Result<Wanted, isize> {
        let plain = |flags: u64, sp| {
            let mut args = args;
            args[0] = flags as usize;
            Wanted { name: Sysno::clone, args, clone3: [0; 11], flags, sp }
        };
        match name {
            Sysno::clone3 => Wanted::clone3(args),
            Sysno::clone => Ok(plain(args[0] as u64, args[1])),
            Sysno::vfork => Ok(plain(VM | VFORK | u64::from(SIGCHLD), 0)),
            _ => Ok(plain(u64::from(SIGCHLD), 0)),
        }
    }

    fn clone3(args: Args) -> Result<Wanted, isize> {
        let [at, size, ..] = args;
        if size < CLONE3_LEAST {
            return Err(EINVAL);
        }
        let (size, more) =
            (size.min(size_of::<Clone3>()), size.saturating_sub(size_of::<Clone3>()));
        are_zeros(at.wrapping_add(size), more)?;
        let mut clone3: Clone3 = [0; 11];
        // SAFETY: any bytes are integers.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(clone3.as_mut_ptr().cast::<u8>(), size) };
        memory::read_bytes(at, bytes)?;
        if (clone3[STACK] == 0) != (clone3[STACK_SIZE] == 0) || clone3[EXIT_SIGNAL] > 0xff {
            return Err(EINVAL);
        }
        let (flags, sp) = (clone3[FLAGS], (clone3[STACK] + clone3[STACK_SIZE]) as usize);
        // What handlers do is not the kernel's to forget.
        clone3[FLAGS] &= !CLEAR_SIGHAND;
        Ok(Wanted { name: Sysno::clone3, args, clone3, flags, sp })
    }

    fn is_thread(&self) -> bool {
        self.flags & THREADS == THREADS && self.flags & !TURNS == 0
    }

    fn is_vfork(&self) -> bool {
        self.flags & (VM | VFORK) == VM | VFORK
    }

    /// Has the kernel not wait for a child of `vfork`, but say when it is done with the memory.
    fn wait_by_word(&mut self, word: &AtomicU32) {
        let clear = u64::from(CLONE_CHILD_CLEARTID);
        word.store(1, Relaxed);
        self.flags &= !VFORK;
        self.clone3[FLAGS] = (self.clone3[FLAGS] & !VFORK) | clear;
        self.clone3[CHILD_TID] = word.as_ptr() as u64;
        if self.name == Sysno::clone {
            self.args[0] = (self.args[0] & !(VFORK as usize)) | clear as usize;
            self.args[3] = word.as_ptr() as usize;
        }
    }

    /// Takes from the kernel what it would write to memory.
    fn take_tids(&mut self) -> Tids {
        let [parent, child] = match self.name {
            Sysno::clone3 => [PARENT_TID, CHILD_TID].map(|at| self.clone3[at] as usize),
            _ => [self.args[2], self.args[3]],
        };
        let given = |flag: u32, at| if self.flags & u64::from(flag) == 0 { 0 } else { at };
        let words = [given(CLONE_PARENT_SETTID, parent), given(CLONE_CHILD_SETTID, child)];
        let clear = given(CLONE_CHILD_CLEARTID, child);
        self.flags &= !TIDS;
        self.clone3[FLAGS] &= !TIDS;
        if self.name == Sysno::clone {
            self.args[0] &= !TIDS as usize;
        }
        Tids { words, clear }
    }

    /// The arguments, for a child on this stack; none: on its parent's.
    fn on_stack(&mut self, start: usize, end: usize) -> &Args {
        if self.name == Sysno::clone3 {
            self.clone3[STACK] = start as u64;
            self.clone3[STACK_SIZE] = (end - start) as u64;
            self.args[0] = &raw const self.clone3 as usize;
            self.args[1] = size_of::<Clone3>();
        } else {
            self.args[1] = end;
        }
        &self.args
    }

    /// A process with a copy of the memory.
    fn copy(mut self, thread: &'static Thread, context: &mut Context) -> Result<usize, isize> {
        let turns = match record::is_on() {
            true => Some((record::admit(thread, true)?, self.take_tids())),
            false => None,
        };
        let held = (thread::still(), thread.process().still(), site::still());
        let name = self.name as usize;
        // SAFETY: parent and child go on here, each with its memory.
        let made = unsafe { sys::guest(name, self.on_stack(0, 0)) };
        drop(held);
        if made == 0 {
            // SAFETY: changes nothing.
            let tid = unsafe { own!(gettid) }.unwrap_or(0);
            thread::only(Slot::of(thread), tid as i32);
            thread.clear_word.set(0);
            thread.robust.set(0);
            thread.held.forget();
            if self.sp != 0 {
                context.registers.rsp = self.sp;
            }
            if self.flags & CLEAR_SIGHAND != 0 {
                forget_handlers(thread.process());
            }
            signal::own_calls();
        }
        match (turns, sys::checked(made)) {
            (Some((newborn, tids)), Ok(0)) => {
                let told = newborn.begins(thread);
                thread.clear_word.set(tids.clear);
                tell(tids.words[1], told);
            }
            (Some((newborn, tids)), Ok(pid)) => {
                let told = newborn.is_made(pid as i32, true);
                tell(tids.words[0], told);
            }
            (Some((newborn, _)), Err(_)) => newborn.dismiss(),
            (None, Ok(0)) => record::ids::forget(thread),
            (None, _) => {}
        }
        sys::checked(made)
    }

    /// A thread, or a process that shares the memory.
    fn share(mut self, thread: &'static Thread, context: &Context) -> Result<usize, isize> {
        let slot = Slot::take()?;
        // SAFETY: the slot was taken for this child; nobody else uses it before it does.
        let (child, at) = unsafe {
            let child = slot.fill(thread.mask.get(), thread.process());
            if self.flags & SIGHAND == 0 {
                thread.process().copy_to(child.own_process.get());
                child.process.set(child.own_process.get());
                if self.flags & CLEAR_SIGHAND != 0 {
                    child.clears_handlers.set(true);
                }
            }
            child.strict.set(thread.strict.get());
            if self.flags & VFORK != 0 {
                child.altstack.set(thread.altstack.get());
            }
            let at = context.copy_below(slot.stack_end());
            (*at).stack = slot.stack();
            (*at).registers.rax = 0;
            if self.sp != 0 {
                (*at).registers.rsp = self.sp;
            }
            (child, at)
        };
        let vforks = self.is_vfork();
        let turns = self.takes_turns(thread, child).inspect_err(|_| slot.free())?;
        let (start, end) = (slot.stack().sp, at as usize);
        let name = self.name as usize;
        // SAFETY: the child begins in `born`, on its own stack, with its own context.
        let made = unsafe { steadfast_birth(name, self.on_stack(start, end), at, child.address()) };
        let waits = turns.is_some() && vforks;
        match (turns, sys::checked(made)) {
            (Some((newborn, tids)), Ok(tid)) => {
                let told = newborn.is_made(tid as i32, vforks);
                child.told.set(if told == tid as i32 { 0 } else { told });
                tids.words.into_iter().for_each(|at| tell(at, told));
            }
            (Some((newborn, _)), Err(_)) => {
                record::forget_table(child);
                newborn.dismiss();
            }
            (None, _) => {}
        }
        match sys::checked(made) {
            // It is waited for as soon as others may go on.
            Ok(_) if waits => thread.vforked.set(Some(child)),
            Ok(tid) if !vforks => slot.belongs_to(tid as i32),
            // It has memory of its own by now, or is no more.
            Ok(_) => {
                exec::free_scratch(child);
                slot.free();
            }
            Err(_) => slot.free(),
        }
        sys::checked(made)
    }

    /// Has the child take turns, if the program is recorded, or replayed.
    fn takes_turns(
        &mut self,
        thread: &Thread,
        child: &Thread,
    ) -> Result<Option<(record::Newborn, Tids)>, isize> {
        if !record::is_on() {
            return Ok(None);
        }
        let vforks = self.is_vfork();
        if vforks {
            record::table_for_child(child)?;
        }
        let newborn = record::admit(thread, vforks).inspect_err(|_| record::forget_table(child))?;
        newborn.sits(child);
        let tids = self.take_tids();
        child.clear_word.set(tids.clear);
        if vforks {
            self.wait_by_word(&child.shares);
        }
        Ok(Some((newborn, tids)))
    }
}

/// What a later kernel's `struct clone_args` has more, this one's does not ask for.
fn are_zeros(at: usize, len: usize) -> Result<(), isize> {
    let mut more = [0u8; PAGE];
    let more = more.get_mut(..len).ok_or(error(E2BIG))?;
    memory::read_bytes(at, more)?;
    if more.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(error(E2BIG)) }
}

/// Writes a thread's number, as the kernel, which does not say that it could not.
fn tell(at: usize, tid: i32) {
    if at != 0 {
        memory::write(at, &tid.cast_unsigned()).unwrap_or(());
    }
}

/// Waits until a child of `vfork` is done with the memory.
pub fn wait_for(child: &Thread) {
    while child.shares.load(Acquire) != 0 {
        // SAFETY: waits for the word to change; coming back early is no harm.
        let _woken = unsafe { own!(futex, child.shares.as_ptr(), FUTEX_WAIT, 1, 0) };
    }
    record::forget_table(child);
    exec::free_scratch(child);
    Slot::of(child).free();
}

/// A child that shares its parent's memory begins here.
unsafe extern "C" fn born(context: *mut Context) -> ! {
    let thread = Thread::current();
    signal::use_stack(&signal::stack_of(thread));
    if thread.clears_handlers.get() {
        forget_handlers(thread.process());
    }
    signal::own_calls();
    record::arrive(thread);
    // SAFETY: a copy that was made for this thread, at the top of its stack.
    unsafe { signal::go_back(context) }
}

fn forget_handlers(process: &Process) {
    for signal in 1..=SIGNALS {
        process.with(signal, |action| {
            if action.is_handled() {
                *action = Action::DEFAULT;
                let _default = signal::tell_about(signal, action);
            }
        });
    }
}

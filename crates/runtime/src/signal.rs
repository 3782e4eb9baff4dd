//! Signals, in the order in which the program would see them without the runtime.
//!
//! The rules of code that runs here: no allocation, no lock but those of [`crate::lock`], nothing that
//! can panic except on our own bugs.
//!
//! The kernel knows two handlers, both the runtime's. SIGSYS says that the program has made a system
//! call. Every other signal that the program wants to handle goes to `on_signal`, which asks what it
//! has interrupted:
//!
//! * *The program.* The frame that the kernel would have put on the program's stack is put there now,
//!   and the runtime's own goes back to the program's handler.
//! * *The runtime.* The signal is deferred: all signals are blocked, and it waits in the [`Thread`].
//!   A system call that the kernel was asked for returns, as it does for signals; one that has not
//!   been made yet is not made ([`sys::not_entered`]). On the way back to the program
//!   (`steadfast_back`) the frame is pushed after all. That way, too, ends at a known instruction up
//!   to which the signal would be overlooked, and begins again if one arrives in between.
//!
//! So a program's handler never runs on the runtime's stack, nor the runtime beneath a handler.

use core::arch::global_asm;
use core::mem::offset_of;

use linux_raw_sys::general::*;

use crate::frame::{AltStack, Context, SigInfo};
use crate::layout::{OWN, SLOTS};
use crate::process::{Action, FIRST, SIG_DFL};
use crate::sigset::SigSet;
use crate::sys::{behind_guest, error, not_entered};
use crate::thread::{Slot, Thread};
use crate::{dispatch, held, memory, own, record, seccomp, site};

/// `si_code` of the SIGSYS with which the kernel reports a system call.
const SYS_USER_DISPATCH: i32 = 2;
/// And of the one with which a filter of the program's does.
const SYS_SECCOMP: i32 = 1;

/// `si_code` of what an `int3` comes to.
pub const SI_KERNEL: i32 = 0x80;

/// What a call returns that a signal has interrupted.
const INTERRUPTED: usize = error(linux_raw_sys::errno::EINTR).cast_unsigned();

/// `sa_flags` that the kernel has to know of a handler of the program's.
const TOLD: usize = (SA_NOCLDSTOP | SA_NOCLDWAIT | SA_RESTART) as usize;

const SA_RESTORER: usize = 0x0400_0000;

global_asm!(
    ".text",
    ".globl steadfast_back, steadfast_back_last, steadfast_resume",
    ".balign 16",
    // Behind a system call of the program's; the stack pointer is at the context.
    "steadfast_back:",
    "cmp qword ptr gs:[{deferred}], 0",
    "jne 2f",
    "mov eax, {sigreturn}",
    "steadfast_back_last:",
    "syscall",
    "ud2",
    "2:",
    "mov rdi, rsp",
    "call {late}",
    "jmp steadfast_back",
    // Behind any other signal. (the context: rdi, or the stack pointer, for a handler's return)
    "steadfast_resume:",
    "mov eax, {sigreturn}",
    "syscall",
    "ud2",
    deferred = const offset_of!(Thread, deferred),
    sigreturn = const __NR_rt_sigreturn,
    late = sym late,
);

unsafe extern "C" {
    fn steadfast_back();
    fn steadfast_resume();
    static steadfast_back_last: u8;
}

/// Goes on with a context that a thread is to begin with: the way back from a system call.
///
/// # Safety
/// The context is whole, on this thread's own stack, and not needed any more.
pub unsafe fn go_back(context: *mut Context) -> ! {
    // SAFETY: by the caller's word.
    unsafe {
        core::arch::asm!("mov rsp, rdi", "jmp steadfast_back", in("rdi") context, options(noreturn));
    }
}

unsafe fn resume(context: *mut Context) -> ! {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("mov rsp, rdi", "jmp steadfast_resume", in("rdi") context, options(noreturn));
    }
}

/// Tells the kernel about the calling thread's stack for handlers.
pub fn use_stack(stack: &AltStack) {
    // SAFETY: the stack is the thread's own slot.
    let done = unsafe { own!(sigaltstack, core::ptr::from_ref(stack), 0) };
    assert!(done.is_ok(), "the kernel takes the stack");
}

/// Has the kernel report system calls, from now on all that are not made in the runtime.
pub fn own_calls() {
    const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
    const ON: usize = 1;
    let text = crate::image::text();
    // SAFETY: reported calls are dispatched by the handler that `handle_calls` has installed.
    let done = unsafe {
        own!(prctl, PR_SET_SYSCALL_USER_DISPATCH, ON, text.start, text.end - text.start, 0)
    };
    if done.is_err() {
        crate::die!("this kernel has no syscall user dispatch; Linux 5.11 and later have it");
    }
}

/// Installs the handlers of [`own_calls`], and of what patched sites may need.
pub fn handle_calls() {
    let trap = Action { handler: !0, ..Action::DEFAULT };
    tell(SIGTRAP, &told(&trap)).expect("a handler of SIGTRAP is taken");
    if record::is_on() {
        tell_about(SIGSEGV, &FIRST.action(SIGSEGV)).expect("a handler of SIGSEGV is taken");
    }
    let action = Action {
        handler: on_sigsys as *const () as usize,
        flags: (SA_SIGINFO | SA_ONSTACK | SA_NODEFER) as usize | SA_RESTORER,
        restorer: steadfast_back as *const () as usize,
        mask: SigSet::default(),
    };
    tell(SIGSYS, &action).expect("a handler of SIGSYS is taken");
}

/// Tells the kernel what a signal of the program's does.
///
/// # Errors
/// The kernel's.
pub fn tell_about(signal: u32, wanted: &Action) -> Result<(), isize> {
    match signal {
        SIGSYS | SIGTRAP => Ok(()), // stay the runtime's
        // It may be about the clock.
        SIGSEGV if record::was_on() => tell(signal, &told(&Action { handler: !0, ..*wanted })),
        _ if wanted.is_handled() && record::keeps_handlers(signal) => {
            tell(signal, &Action::DEFAULT)
        }
        _ if wanted.is_handled() => tell(signal, &told(wanted)),
        _ => tell(signal, wanted),
    }
}

/// What the kernel is told of a signal that the program handles.
fn told(wanted: &Action) -> Action {
    Action {
        handler: on_signal as *const () as usize,
        flags: wanted.flags & TOLD | (SA_SIGINFO | SA_ONSTACK) as usize | SA_RESTORER,
        restorer: steadfast_resume as *const () as usize,
        mask: SigSet(!0),
    }
}

fn tell(signal: u32, action: &Action) -> Result<(), isize> {
    // SAFETY: the handlers are this module's, or none.
    unsafe {
        own!(rt_sigaction, signal, core::ptr::from_ref(action), 0, size_of::<SigSet>())?;
    }
    Ok(())
}

/// Whether a signal is one that an instruction of the program's can come to.
pub fn may_be_fault(signal: u32) -> bool {
    [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP].contains(&signal)
}

/// Whether an instruction of the program's has come to this signal: nobody has sent it.
pub fn is_fault(info: &SigInfo) -> bool {
    may_be_fault(info.signal.cast_unsigned()) && info.code > 0
}

/// Blocks all signals; what was blocked before is in the context that the thread will go back to, or
/// is asked for with [`block`].
pub fn block_all() {
    block(SigSet(!0));
}

/// Blocks these, and no others; what was blocked before.
pub fn block(mask: SigSet) -> SigSet {
    let mut before = SigSet::default();
    // SAFETY: both sets are here.
    let done = unsafe {
        own!(rt_sigprocmask, SIG_SETMASK, &raw const mask, &raw mut before, size_of::<SigSet>())
    };
    assert!(done.is_ok(), "the kernel takes a mask");
    before
}

unsafe extern "C" fn on_sigsys(signal: i32, info: *const SigInfo, context: *mut Context) {
    // SAFETY: both are in the frame that the kernel has just made.
    unsafe {
        match (*info).code {
            SYS_USER_DISPATCH => dispatch::reported(Thread::current(), &*info, &mut *context),
            code => {
                if code == SYS_SECCOMP {
                    seccomp::broken(Thread::current());
                }
                on_signal(signal, info, context)
            }
        }
    }
}

unsafe extern "C" fn on_signal(_: i32, info: *const SigInfo, context: *mut Context) -> ! {
    let thread = Thread::current();
    // SAFETY: both are in the frame that the kernel has just made.
    unsafe {
        let (info, at) = (&*info, (*context).registers.rip);
        let back = steadfast_back as *const () as usize;
        if info.signal.cast_unsigned() == SIGTRAP
            && info.code == SI_KERNEL
            && site::trapped(&mut *context)
        {
            // Nobody has sent it: the program goes on.
        } else if is_fault(info) && memory::gives_up(&mut *context) {
            // The program has named memory that is not there.
        } else if !OWN.contains(&at) && record::reads_the_clock(thread, info, &mut *context) {
            // It goes on behind the instruction.
        } else if !OWN.contains(&at) && record::defers(info) {
            // Its next call finds it, and is not made.
            thread.defer(*info, false);
            (*context).mask = SigSet::ALL.real();
        } else if !OWN.contains(&at)
            || (!record::is_on() && site::interrupted(thread, &mut *context))
        {
            deliver(thread, &mut *context, info, None);
        } else {
            // The kernel undoes the mask of a call that waits as soon as no signal ends the waiting.
            let interrupted = at == behind_guest() && (*context).registers.rax == INTERRUPTED;
            thread.defer(*info, interrupted);
            // A recorded program's thread may leave by a report.
            (*context).mask = if record::was_on() { SigSet::ALL.real() } else { SigSet(!0) };
            if let Some(elsewhere) = not_entered(at) {
                (*context).registers.rip = elsewhere;
            } else if (back..=&raw const steadfast_back_last as usize).contains(&at) {
                (*context).registers.rip = back;
            }
        }
        resume(context)
    }
}

/// A signal was deferred, and the thread is about to go back to the program.
unsafe extern "C" fn late(context: *mut Context) {
    let thread = Thread::current();
    // SAFETY: the context that `steadfast_back` was called with.
    let context = unsafe { &mut *context };
    // Those that are otherwise never blocked as well: a replay delivers one behind a call.
    block_all();
    if let Some(deferred) = thread.take_deferred() {
        if thread.process().action(deferred.info.signal.cast_unsigned()).is_handled() {
            record::delivered(thread, &deferred);
        }
        deliver(thread, context, &deferred.info, deferred.temporary);
        thread.held.release(thread.mask.get());
    }
}

/// Lets `context`, which is the program's, go on in the program's handler.
fn deliver(thread: &Thread, context: &mut Context, info: &SigInfo, temporary: Option<SigSet>) {
    let signal = info.signal.cast_unsigned();
    if thread.held.holds(info, temporary.unwrap_or(thread.mask.get())) {
        context.mask = thread.mask.get().real();
        return;
    }
    // In a replay: it was held until now.
    let _no_more = thread.held.take(SigSet::default().with(signal));
    let action = thread.process().deliver(signal);
    if !action.is_handled() {
        // Another thread has changed its mind meanwhile, or it is a SIGSYS that nobody handles.
        if action.handler == SIG_DFL {
            again(signal, info);
        }
        context.mask = thread.mask.get().real();
        return;
    }
    if action.flags & SA_RESETHAND as usize != 0 {
        let _same = tell_about(signal, &Action { handler: SIG_DFL, ..action });
    }
    let (sp, altstack) = (context.registers.rsp, thread.altstack.get());
    let enters = action.flags & SA_ONSTACK as usize != 0
        && altstack.flags & SS_DISABLE == 0
        && !altstack.is_under(sp);
    let top = if enters { altstack.sp + altstack.size + crate::frame::RED_ZONE } else { sp };
    // SAFETY: the context is one that the kernel has made.
    let needed = unsafe { context.pushed_len() };
    let room = !(enters || altstack.is_under(sp)) || top - needed >= altstack.sp;
    if !room || action.flags & SA_RESTORER == 0 {
        return no_room(thread, context, signal, temporary);
    }
    let own = context.stack;
    context.stack = altstack;
    context.mask = thread.mask.get();
    // SAFETY: the program's stack, or the one that it has named.
    let pushed = unsafe { context.push(top, action.restorer, action.handler, info) };
    context.stack = own;
    if pushed.is_err() {
        return no_room(thread, context, signal, temporary);
    }
    if altstack.flags & SS_AUTODISARM != 0 {
        thread.altstack.set(AltStack::NONE);
    }
    let mut mask = temporary.unwrap_or(thread.mask.get()).and(action.mask);
    if action.flags & SA_NODEFER as usize == 0 {
        mask = mask.with(signal);
    }
    let mask = SigSet(mask.0 & SigSet::ALL.0);
    thread.mask.set(mask);
    context.mask = mask.real();
}

/// There is no stack for a handler: that is a fault, and may have a handler with another stack.
fn no_room(thread: &Thread, context: &mut Context, signal: u32, temporary: Option<SigSet>) {
    let is_blocked = thread.mask.get().contains(SIGSEGV);
    if signal == SIGSEGV || is_blocked || !thread.process().action(SIGSEGV).is_handled() {
        die(SIGSEGV);
    }
    deliver(thread, context, &SigInfo::of_kernel(SIGSEGV), temporary);
}

/// Has the kernel do what it does by default, once signals are not blocked any more.
fn again(signal: u32, info: &SigInfo) {
    if tell(signal, &Action::DEFAULT).is_err() {
        return;
    }
    held::send(info);
}

/// Ends the process the way this signal does when nobody handles it.
pub fn die(signal: u32) -> ! {
    let _told = tell(signal, &Action::DEFAULT);
    // SAFETY: to the calling thread itself; what follows is not reached unless it is not deadly.
    unsafe {
        let (pid, tid) = (own!(getpid).unwrap_or(0), own!(gettid).unwrap_or(0));
        let _sent = own!(tgkill, pid, tid, signal);
        block(SigSet::default());
        let _ended = own!(exit_group, 127);
    }
    unreachable!("a process that has ended does not go on")
}

/// The stack of the thread's handlers.
pub fn stack_of(thread: &Thread) -> AltStack {
    debug_assert!(SLOTS.contains(&(core::ptr::from_ref(thread) as usize)));
    Slot::of(thread).stack()
}

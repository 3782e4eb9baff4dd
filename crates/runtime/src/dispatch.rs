//! A system call of the program's: what becomes of it.
//!
//! Most are made as they are. Those that would take something from the runtime (handlers, masks, the
//! alternate stack, memory, a descriptor), and those that make threads, processes, and programs, are
//! made in its own way, so that the program sees what it would see without it.

use linux_raw_sys::errno::{EBADF, ENOSYS, EPERM};
use linux_raw_sys::general::*;
use systable::Sysno;

use crate::calls::{Calls, calls};
use crate::frame::{Context, SigInfo};
use crate::layout::is_own;
use crate::sigset::SigSet;
use crate::sys::{self, Args, EINVAL, NOT_MADE, error};
use crate::thread::Thread;
use crate::{
    altstack, birth, exe, exec, fds, handlers, masks, record, seccomp, signal, site, vdso,
};

/// What a call comes to.
pub enum Outcome {
    /// Its result, or an errno, negative.
    Value(isize),
    /// The context is what the program goes on with, as it is.
    Context,
}

/// The `si_arch` of 64-bit calls.
const AUDIT_ARCH_X86_64: u64 = 0xc000_003e;

/// The kernel has reported a call; `context` is what the program will go on with.
pub fn reported(thread: &'static Thread, info: &SigInfo, context: &mut Context) {
    let registers = &context.registers;
    let (number, arch) = (info.fields[1] & 0xffff_ffff, info.fields[1] >> 32);
    if arch != AUDIT_ARCH_X86_64 {
        crate::die!("a 32-bit system call (number {}), which the runtime does not have", number);
    }
    let args =
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
    if number as usize == record::entry::NONE && thread.pending.replace(false) {
        return made_before(thread, context);
    }
    let site = site::reported(context);
    let outcome = match record::is_on() {
        true => record::call(thread, number as usize, &args, context),
        false => call(thread, number as usize, &args, context),
    };
    match outcome {
        // The kernel has left the number in `rax`: the call is made once more, behind the handler of the
        // signal that came first.
        Outcome::Value(NOT_MADE) => context.registers.rip = site,
        Outcome::Value(value) => context.registers.rax = value.cast_unsigned(),
        Outcome::Context => {}
    }
}

/// A call was made at a patched site, or not yet, and a signal comes before the program goes on.
fn made_before(thread: &Thread, context: &mut Context) {
    match thread.result.get() {
        NOT_MADE => {
            context.registers.rax = thread.number.get();
            context.registers.rip = site::site_of(context.registers.rip);
        }
        value => context.registers.rax = value.cast_unsigned(),
    }
}

/// Calls that are about more of the program than their arguments, or that block signals meanwhile, which only
/// the way back from a report undoes.
pub const fn needs_context(name: Sysno) -> bool {
    matches!(
        name,
        Sysno::clone
            | Sysno::clone3
            | Sysno::fork
            | Sysno::vfork
            | Sysno::execve
            | Sysno::execveat
            | Sysno::rt_sigreturn
            | Sysno::rt_sigaction
            | Sysno::sigaltstack
            | Sysno::rt_sigprocmask
    )
}

/// Calls of which the runtime need not know, whatever their arguments are.
pub const fn is_made_as_it_is(name: Sysno) -> bool {
    let is_ours = matches!(
        name,
        Sysno::clone
            | Sysno::clone3
            | Sysno::fork
            | Sysno::vfork
            | Sysno::execve
            | Sysno::execveat
            | Sysno::exit
            | Sysno::set_tid_address
            | Sysno::set_robust_list
            | Sysno::rt_sigreturn
            | Sysno::rt_sigaction
            | Sysno::sigaltstack
            | Sysno::rt_sigprocmask
            | Sysno::rt_sigsuspend
            | Sysno::ppoll
            | Sysno::epoll_pwait
            | Sysno::epoll_pwait2
            | Sysno::pselect6
            | Sysno::rt_sigtimedwait
            | Sysno::rt_sigpending
            | Sysno::signalfd
            | Sysno::signalfd4
            | Sysno::close
            | Sysno::fstat
            | Sysno::newfstatat
            | Sysno::fcntl
            | Sysno::dup
            | Sysno::dup2
            | Sysno::dup3
            | Sysno::close_range
            | Sysno::mmap
            | Sysno::munmap
            | Sysno::mprotect
            | Sysno::pkey_mprotect
            | Sysno::madvise
            | Sysno::mremap
            | Sysno::prctl
            | Sysno::seccomp
            | Sysno::arch_prctl
            | Sysno::open
            | Sysno::openat
            | Sysno::readlink
            | Sysno::readlinkat
    );
    !is_ours && !systable::entry(name).is_absent()
}

static MADE_AS_THEY_ARE: Calls = calls!(is_made_as_it_is);

/// Makes a call, as it is or in the runtime's own way.
pub fn call(thread: &'static Thread, number: usize, args: &Args, context: &mut Context) -> Outcome {
    let &[a, b, c, d, _, f] = args;
    if let Some(name) = Sysno::new(number).filter(|_| record::is_over()) {
        if let Some(told) = record::ids::answer(thread, name) {
            return Outcome::Value(told);
        } else if record::ids::takes(name) {
            let Outcome::Value(result) = record::ids::given(name, *args, |args| made(number, args))
            else {
                unreachable!("such calls return")
            };
            return Outcome::Value(record::ids::returned(name, result));
        }
    }
    let name = match Sysno::new(number) {
        Some(name) if fds::TOLD.contains(&name) => {
            let is_own = fds::is_own(thread, a);
            return if is_own { Outcome::Value(error(EBADF)) } else { made(number, args) };
        }
        Some(name) if !MADE_AS_THEY_ARE.has(name) => name,
        Some(name) if vdso::is_asked(context.registers.rip) => {
            // SAFETY: it says what time it is, or where the thread runs, and no filter of the program's is asked.
            return Outcome::Value(unsafe { sys::own(name, *args) });
        }
        _ => return made(number, args),
    };
    let value = match name {
        // Threads, processes, programs.
        Sysno::clone | Sysno::clone3 | Sysno::fork | Sysno::vfork => {
            birth::make(thread, name, *args, context)
        }
        Sysno::execve => exec::execve(thread, AT_FDCWD, a, b, c, 0),
        Sysno::execveat => exec::execve(thread, a as i32, b, c, d, args[4] as u32),
        Sysno::exit => return exit(thread, args),
        Sysno::set_tid_address if record::is_on() => {
            thread.clear_word.set(a);
            return made(number, &[0; 6]);
        }
        Sysno::set_robust_list if record::is_on() => {
            // The kernel knows it too, for a thread that is killed.
            thread.robust.set(a);
            return made(number, args);
        }
        // Signals.
        Sysno::rt_sigreturn => return handlers::sigreturn(thread, context),
        Sysno::rt_sigaction => handlers::sigaction(thread, a, b, c, d),
        Sysno::sigaltstack => altstack::set(thread, a, b, context.registers.rsp),
        Sysno::rt_sigprocmask => masks::sigprocmask(thread, a, b, c, d, context),
        Sysno::rt_sigsuspend => masks::during(thread, number, *args, masks::At(0), b),
        Sysno::ppoll => masks::during(thread, number, *args, masks::At(3), args[4]),
        Sysno::epoll_pwait | Sysno::epoll_pwait2 => {
            masks::during(thread, number, *args, masks::At(4), f)
        }
        Sysno::pselect6 => masks::during_select(thread, number, *args),
        Sysno::rt_sigtimedwait => masks::sigtimedwait(thread, *args),
        Sysno::rt_sigpending => masks::sigpending(thread, *args),
        Sysno::signalfd | Sysno::signalfd4 => masks::filtered(number, *args, 1, c),
        // The runtime's descriptor.
        Sysno::dup2 | Sysno::dup3 if fds::is_own(thread, a) => error(EBADF),
        Sysno::dup2 | Sysno::dup3 => {
            fds::make_room(thread, b);
            return made(number, args);
        }
        Sysno::close_range => fds::close_range(thread, a, b, c),
        // The runtime's memory.
        Sysno::mmap if d & (MAP_FIXED | MAP_FIXED_NOREPLACE) as usize != 0 && is_own(a, b) => {
            EINVAL
        }
        Sysno::munmap | Sysno::mprotect | Sysno::pkey_mprotect | Sysno::madvise if is_own(a, b) => {
            EINVAL
        }
        Sysno::mremap if is_own(a, b) || (d & 2 != 0 && is_own(args[4], c)) => EINVAL,
        // What belongs to the runtime alone.
        Sysno::prctl if a == PR_SET_SYSCALL_USER_DISPATCH => EINVAL,
        Sysno::prctl if a == PR_SET_SECCOMP => seccomp::prctl(thread, number, *args),
        Sysno::seccomp => seccomp::seccomp(thread, number, *args),
        Sysno::arch_prctl if a == ARCH_SET_GS || a == ARCH_GET_GS => error(EPERM),
        // What no recording could follow. Programs do without it.
        name if systable::entry(name).is_absent() => error(ENOSYS),
        // What is executed, if the kernel does not know it.
        Sysno::open if exe::is_own(a) => return made(number, &exe::instead(*args, 0)),
        Sysno::openat if exe::is_own(b) => return made(number, &exe::instead(*args, 1)),
        Sysno::readlink if exe::is_own(a) => exe::readlink(b, c),
        Sysno::readlinkat if exe::is_own(b) => exe::readlink(c, d),
        _ => return made(number, args),
    };
    Outcome::Value(value)
}

/// The thread ends.
fn exit(thread: &Thread, args: &Args) -> Outcome {
    if thread.clear_word.get() != 0 {
        if before_signals(thread).is_err() {
            return Outcome::Value(NOT_MADE);
        }
        thread.clear_word();
    }
    made(Sysno::exit as usize, args)
}

/// As it is.
fn made(number: usize, args: &Args) -> Outcome {
    // SAFETY: the program has asked for it, and it touches nothing of the runtime's.
    Outcome::Value(unsafe { sys::guest(number, args) })
}

/// Blocks all signals for the rest of a call that changes what signals do: one that has come before
/// must be handled before.
///
/// # Errors
/// [`NOT_MADE`]: one has come.
pub fn before_signals(thread: &Thread) -> Result<(), isize> {
    signal::block_all();
    if thread.has_deferred() { Err(NOT_MADE) } else { Ok(()) }
}

/// The size of a set of signals, which calls are told: there is only one.
///
/// # Errors
/// `EINVAL`.
pub fn is_set_size(size: usize) -> Result<(), isize> {
    if size == size_of::<SigSet>() { Ok(()) } else { Err(EINVAL) }
}

/// The result of a call as it is returned.
pub fn value(result: Result<usize, isize>) -> isize {
    result.map_or_else(|error| error, usize::cast_signed)
}

const AT_FDCWD: i32 = linux_raw_sys::general::AT_FDCWD;
/// Has the kernel report calls, which it does for the runtime.
pub const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const PR_SET_SECCOMP: usize = 22;
const ARCH_SET_GS: usize = 0x1001;
const ARCH_GET_GS: usize = 0x1004;

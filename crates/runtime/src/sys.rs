//! System calls.
//!
//! There are two instructions in the runtime that make them, and which one it is matters. What the
//! program asked for goes through [`guest`], what the runtime needs for itself through [`own`]: a
//! seccomp filter that the program installs judges the first and must not see the second (it is told
//! apart by the instruction's address, see `seccomp.rs`).
//!
//! [`guest`] is also where a signal may interrupt. Between deciding to enter the kernel and being
//! there, a signal must not go unnoticed, or a program would sleep in `read` with its SIGTERM in our
//! pocket. From `window` to the instruction, [`crate::signal`]'s handler therefore sends the thread
//! to `interrupted`: the call has not been made.

use core::arch::global_asm;
use core::mem::offset_of;

use linux_raw_sys::errno;
use systable::Sysno;

use crate::thread::Thread;

/// The six arguments of a call.
pub type Args = [usize; 6];

/// The call has not been made because a signal has arrived before: its handler comes first. Not an
/// error of the kernel's that a program can see.
pub const NOT_MADE: isize = -512;

/// Instructions: from a number and the address of [`Args`] in `rdi` and `rsi` to what the kernel wants.
#[macro_export]
macro_rules! load_call {
    () => {
        "mov rax, rdi
        mov r11, rsi
        mov rdi, [r11]
        mov rsi, [r11 + 8]
        mov rdx, [r11 + 16]
        mov r10, [r11 + 24]
        mov r8, [r11 + 32]
        mov r9, [r11 + 40]"
    };
}

global_asm!(
    ".text",
    ".globl steadfast_own, steadfast_guest, steadfast_guest_behind",
    ".globl steadfast_window, steadfast_window_last, steadfast_interrupted",
    ".balign 16",
    // (number: rdi, arguments: rsi)
    "steadfast_own:",
    load_call!(),
    "syscall",
    "ret",
    ".balign 16",
    // (number: rdi, arguments: rsi)
    "steadfast_guest:",
    "steadfast_window:",
    "cmp qword ptr gs:[{deferred}], 0",
    "jne steadfast_interrupted",
    load_call!(),
    "steadfast_window_last:",
    "syscall",
    "steadfast_guest_behind:",
    "ret",
    "steadfast_interrupted:",
    "mov rax, {not_made}",
    "ret",
    deferred = const offset_of!(Thread, deferred),
    not_made = const NOT_MADE,
);

unsafe extern "C" {
    fn steadfast_own(number: usize, args: *const Args) -> isize;
    fn steadfast_guest(number: usize, args: *const Args) -> isize;
    static steadfast_guest_behind: u8;
    static steadfast_window: u8;
    static steadfast_window_last: u8;
    static steadfast_interrupted: u8;
}

/// A call of the runtime's own: its result, or an errno, negative.
///
/// # Safety
/// The kernel does with memory and threads what the arguments say.
pub unsafe fn own(number: Sysno, args: Args) -> isize {
    // SAFETY: as the caller's.
    unsafe { steadfast_own(number as usize, &raw const args) }
}

/// A call that the program has made: its result, an errno, negative, or [`NOT_MADE`].
///
/// # Safety
/// As [`own`]; this thread has its [`Thread`].
pub unsafe fn guest(number: usize, args: &Args) -> isize {
    // SAFETY: as the caller's.
    unsafe { steadfast_guest(number, args) }
}

/// The address behind the instruction that makes [`guest`] calls.
pub fn behind_guest() -> usize {
    &raw const steadfast_guest_behind as usize
}

/// Where to go on instead, if a thread that was at `ip` has not yet entered the kernel for a call of
/// the program's.
pub fn not_entered(ip: usize) -> Option<usize> {
    let window = &raw const steadfast_window as usize..=&raw const steadfast_window_last as usize;
    window.contains(&ip).then_some(&raw const steadfast_interrupted as usize)
}

/// An errno as calls return it.
pub const fn error(errno: u32) -> isize {
    -(errno as isize)
}

/// `EINVAL` as calls return it, the commonest.
pub const EINVAL: isize = error(errno::EINVAL);

/// `Ok` of a result that is none of the 4095 errors.
///
/// # Errors
/// The errno, negative, as the call returned it.
pub fn checked(result: isize) -> Result<usize, isize> {
    if (-4095..0).contains(&result) { Err(result) } else { Ok(result.cast_unsigned()) }
}

/// Shorthand: a checked [`own`] call; arguments that are left out are 0.
#[macro_export]
macro_rules! own {
    ($name:ident $(, $arg:expr)* $(,)?) => {{
        let given = [$($arg as usize),*];
        let mut args: $crate::sys::Args = [0; 6];
        args[..given.len()].copy_from_slice(&given);
        $crate::sys::checked($crate::sys::own(::systable::Sysno::$name, args))
    }};
}

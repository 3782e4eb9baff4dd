//! How a recorded program's call comes here from a patched site: without the kernel's report, by a jump.
//!
//! The thread's own stack is free while it runs the program, so the call is dispatched there, with the program's
//! registers in a context like the one of a report. Vector registers are saved, since Rust uses them.
//!
//! If a signal is to be delivered behind the call, or instead of it, a whole frame is needed, as only the kernel
//! makes it. So the stub then makes a call that does not exist ([`NONE`]), which is reported, and stands for the
//! one that was made. A signal that comes later than that is found at the next call.

use core::arch::global_asm;
use core::mem::offset_of;

use crate::dispatch::{self, Outcome};
use crate::frame::{Context, Registers};
use crate::relocate::CALL;
use crate::site;
use crate::thread::Thread;
use crate::vdso;

/// The number of no call.
pub const NONE: usize = 0x7fff_5afe;

/// Bytes of what is on the thread's stack meanwhile.
pub const ROOM: usize = CONTEXT + 16 * 16;
const CONTEXT: usize = size_of::<Context>();

const _: () = assert!(CONTEXT.is_multiple_of(16));

/// Instructions: from the program to the runtime, with its registers on the thread's stack.
macro_rules! leaves_program {
    () => {
        "mov gs:[{tail}], rcx
        mov gs:[{number}], rax
        mov r11, rsp
        mov rsp, gs:[{entry}]
        mov [rsp + {rax}], rax
        mov [rsp + {rdi}], rdi
        mov [rsp + {rsi}], rsi
        mov [rsp + {rdx}], rdx
        mov [rsp + {r10}], r10
        mov [rsp + {r8}], r8
        mov [rsp + {r9}], r9
        mov [rsp + {rbp}], rbp
        mov [rsp + {rsp_}], r11
        mov [rsp + {rip}], rcx"
    };
}

/// And back.
macro_rules! goes_back {
    () => {
        "mov rdi, [rsp + {rdi}]
        mov rsi, [rsp + {rsi}]
        mov rdx, [rsp + {rdx}]
        mov r10, [rsp + {r10}]
        mov r8, [rsp + {r8}]
        mov r9, [rsp + {r9}]
        mov rsp, [rsp + {rsp_}]
        cmp qword ptr gs:[{deferred}], 0
        jne steadfast_put_off
        jmp qword ptr gs:[{tail}]"
    };
}

global_asm!(
    ".text",
    ".globl steadfast_recorded, steadfast_asked",
    ".balign 16",
    // (a system call's registers, but the tail: rcx)
    "steadfast_recorded:",
    leaves_program!(),
    "movaps [rsp + {vectors}], xmm0",
    "movaps [rsp + {vectors} + 16], xmm1",
    "movaps [rsp + {vectors} + 32], xmm2",
    "movaps [rsp + {vectors} + 48], xmm3",
    "movaps [rsp + {vectors} + 64], xmm4",
    "movaps [rsp + {vectors} + 80], xmm5",
    "movaps [rsp + {vectors} + 96], xmm6",
    "movaps [rsp + {vectors} + 112], xmm7",
    "movaps [rsp + {vectors} + 128], xmm8",
    "movaps [rsp + {vectors} + 144], xmm9",
    "movaps [rsp + {vectors} + 160], xmm10",
    "movaps [rsp + {vectors} + 176], xmm11",
    "movaps [rsp + {vectors} + 192], xmm12",
    "movaps [rsp + {vectors} + 208], xmm13",
    "movaps [rsp + {vectors} + 224], xmm14",
    "movaps [rsp + {vectors} + 240], xmm15",
    "mov rdi, rsp",
    "call {entered}",
    "movaps xmm0, [rsp + {vectors}]",
    "movaps xmm1, [rsp + {vectors} + 16]",
    "movaps xmm2, [rsp + {vectors} + 32]",
    "movaps xmm3, [rsp + {vectors} + 48]",
    "movaps xmm4, [rsp + {vectors} + 64]",
    "movaps xmm5, [rsp + {vectors} + 80]",
    "movaps xmm6, [rsp + {vectors} + 96]",
    "movaps xmm7, [rsp + {vectors} + 112]",
    "movaps xmm8, [rsp + {vectors} + 128]",
    "movaps xmm9, [rsp + {vectors} + 144]",
    "movaps xmm10, [rsp + {vectors} + 160]",
    "movaps xmm11, [rsp + {vectors} + 176]",
    "movaps xmm12, [rsp + {vectors} + 192]",
    "movaps xmm13, [rsp + {vectors} + 208]",
    "movaps xmm14, [rsp + {vectors} + 224]",
    "movaps xmm15, [rsp + {vectors} + 240]",
    goes_back!(),
    // A signal has come.
    "steadfast_put_off:",
    "mov gs:[{result}], rax",
    "mov byte ptr gs:[{pending}], 1",
    "mov eax, {none}",
    "mov rcx, gs:[{tail}]",
    "sub rcx, {call}",
    "jmp rcx",
    // The same from a function of our vDSO. Its callers expect vector registers to be changed, as by any
    // function (System V ABI, 3.2.1).
    ".balign 16",
    "steadfast_asked:",
    leaves_program!(),
    "mov rdi, rsp",
    "call {entered}",
    goes_back!(),
    tail = const offset_of!(Thread, tail),
    number = const offset_of!(Thread, number),
    entry = const offset_of!(Thread, entry),
    deferred = const offset_of!(Thread, deferred),
    result = const offset_of!(Thread, result),
    pending = const offset_of!(Thread, pending),
    rax = const REGISTERS + offset_of!(Registers, rax),
    rdi = const REGISTERS + offset_of!(Registers, rdi),
    rsi = const REGISTERS + offset_of!(Registers, rsi),
    rdx = const REGISTERS + offset_of!(Registers, rdx),
    r10 = const REGISTERS + offset_of!(Registers, r10),
    r8 = const REGISTERS + offset_of!(Registers, r8),
    r9 = const REGISTERS + offset_of!(Registers, r9),
    rbp = const REGISTERS + offset_of!(Registers, rbp),
    rsp_ = const REGISTERS + offset_of!(Registers, rsp),
    rip = const REGISTERS + offset_of!(Registers, rip),
    vectors = const CONTEXT,
    none = const NONE,
    call = const CALL,
    entered = sym entered,
);

const REGISTERS: usize = offset_of!(Context, registers);

/// A call has come from a patched site: what it returns, or [`crate::sys::NOT_MADE`].
unsafe extern "C" fn entered(context: *mut Context) -> isize {
    // SAFETY: what stands above has made it, as far as it is looked at here: its registers.
    let context = unsafe { &mut *context };
    let registers = &mut context.registers;
    // For whoever is told where the program is.
    registers.rip = site::site_of(registers.rip) + CALL;
    let args =
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
    let (thread, number, behind) = (Thread::current(), registers.rax, registers.rip);
    if vdso::is_asked(behind)
        && let Some(answer) = super::clocks::call(thread, context, number, args)
    {
        return answer;
    }
    match super::call(thread, number, &args, context) {
        Outcome::Value(value) => value,
        Outcome::Context => unreachable!("such calls are reported"),
    }
}

/// Whether a call may come here: it needs no more of the program than its arguments.
pub const fn is_enough_for(name: systable::Sysno) -> bool {
    !dispatch::needs_context(name)
}

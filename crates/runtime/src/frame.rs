//! What the kernel puts on a stack when it delivers a signal, and what it wants back.
//!
//! A frame is, from its lowest address: where the handler returns to, the context, the signal's
//! information, and, with a gap in front for its alignment, the state of the floating-point and
//! vector registers, which is as long as the processor needs (`arch/x86/kernel/signal_64.c`,
//! `struct rt_sigframe`).

use core::mem::offset_of;
use core::{ptr, slice};

use linux_raw_sys::general::{SS_AUTODISARM, SS_DISABLE, SS_ONSTACK};

use crate::memory;
use crate::signal::SI_KERNEL;
use crate::sigset::SigSet;

/// `siginfo_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SigInfo {
    /// The signal.
    pub signal: i32,
    /// Unused by most.
    pub errno: i32,
    /// Why it was sent.
    pub code: i32,
    padding: i32,
    /// Says more; what, depends on `code`.
    pub fields: [u64; 14],
}

impl SigInfo {
    /// As the kernel has it.
    pub fn bytes(&self) -> [u8; 128] {
        // SAFETY: integers all through, one next to the other.
        unsafe { core::mem::transmute_copy(self) }
    }

    /// Of what the kernel comes to by itself.
    pub const fn of_kernel(signal: u32) -> SigInfo {
        let signal = signal.cast_signed();
        SigInfo { signal, errno: 0, code: SI_KERNEL, padding: 0, fields: [0; 14] }
    }

    /// From the beginning of such bytes; the rest are zeros.
    pub fn of_bytes(bytes: &[u8]) -> SigInfo {
        let mut whole = [0; 128];
        let len = bytes.len().min(whole.len());
        whole[..len].copy_from_slice(&bytes[..len]);
        // SAFETY: any bytes are one.
        unsafe { core::mem::transmute_copy(&whole) }
    }
}

/// `stack_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AltStack {
    /// Its lowest address.
    pub sp: usize,
    /// `SS_*`.
    pub flags: u32,
    /// Nothing.
    pub padding: u32,
    /// Bytes.
    pub size: usize,
}

impl AltStack {
    /// There is none.
    pub const NONE: AltStack = AltStack { sp: 0, flags: SS_DISABLE, padding: 0, size: 0 };

    /// Whether a thread with this stack pointer runs on it.
    pub fn is_under(&self, sp: usize) -> bool {
        // One that disarms itself counts as left as soon as it is entered: it may be entered again.
        self.flags & (SS_AUTODISARM | SS_DISABLE) == 0 && sp > self.sp && sp - self.sp <= self.size
    }

    /// The same with the flags that a program sees.
    #[must_use]
    pub fn seen_from(mut self, sp: usize) -> AltStack {
        if self.is_under(sp) {
            self.flags |= SS_ONSTACK;
        }
        self
    }
}

/// `struct sigcontext`: the registers.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)] // they are the processor's
pub struct Registers {
    pub r8: usize,
    pub r9: usize,
    pub r10: usize,
    pub r11: usize,
    pub r12: usize,
    pub r13: usize,
    pub r14: usize,
    pub r15: usize,
    pub rdi: usize,
    pub rsi: usize,
    pub rbp: usize,
    pub rbx: usize,
    pub rdx: usize,
    pub rax: usize,
    pub rcx: usize,
    pub rsp: usize,
    pub rip: usize,
    pub flags: usize,
    pub segments: u64,
    pub error: u64,
    pub trap: u64,
    pub old_mask: u64,
    pub cr2: u64,
    pub vectors: *mut u8,
    reserved: [u64; 8],
}

/// `struct ucontext`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Context {
    flags: u64,
    link: usize,
    /// The alternate stack.
    pub stack: AltStack,
    /// The registers.
    pub registers: Registers,
    /// What is blocked once the frame is taken back.
    pub mask: SigSet,
}

/// `struct rt_sigframe` without what follows it.
#[repr(C)]
struct Frame {
    back: usize,
    context: Context,
    info: SigInfo,
}

const _: () = assert!(size_of::<SigInfo>() == 128);
const _: () = assert!(size_of::<Registers>() == 256);
const _: () = assert!(size_of::<Context>() == 304);
// The handler's `ret` has taken `back` off the stack when it is given back to the kernel.
const _: () = assert!(offset_of!(Frame, context) == 8);

/// Below the stack pointer, the program may have put something without moving it.
pub const RED_ZONE: usize = 128;

/// Where in the state of the registers the kernel says how long it is (`struct _fpx_sw_bytes`), and
/// with which number it says so.
const SAID: usize = 464;
const MAGIC: u32 = 0x4650_5853;
/// Bytes of the state without what newer processors have added.
const LEGACY: usize = 512;
/// Where in the legacy state the control words are, and their values at a program's start.
const FCW: usize = 0;
const FCW_INITIAL: u16 = 0x37f;
const MXCSR: usize = 24;
const MXCSR_INITIAL: u32 = 0x1f80;
/// Where a longer state says which of its parts hold anything else than zeros.
const IN_USE: usize = 512;

/// How long the state at `vectors` is, bytes.
///
/// # Safety
/// The kernel has put it there, or it has been copied from what the kernel has put.
unsafe fn vectors_len(vectors: *const u8) -> usize {
    // SAFETY: by the caller's word it has at least the legacy state's length.
    let (magic, len) = unsafe {
        let said = vectors.add(SAID).cast::<u32>();
        (said.read_unaligned(), said.add(1).read_unaligned())
    };
    if magic == MAGIC { len as usize } else { LEGACY }
}

impl Context {
    /// Makes a frame on the stack at `sp`, above which the program has its own, for a handler that
    /// returns to `back`, and lets this context go on in `handler` with it. `self` becomes what the
    /// handler begins with; what it was is in the frame.
    ///
    /// # Safety
    /// `self` is a context that the kernel has made, or a copy that has its vectors. The stack's
    /// memory is the program's to write to.
    ///
    /// # Errors
    /// `EFAULT`: it cannot be written to. `self` is what it was.
    pub unsafe fn push(
        &mut self,
        sp: usize,
        back: usize,
        handler: usize,
        info: &SigInfo,
    ) -> Result<(), isize> {
        // SAFETY: by the caller's word.
        let len = unsafe { vectors_len(self.registers.vectors) };
        let vectors = (sp - RED_ZONE - len) & !63;
        let at = ((vectors - size_of::<Frame>()) & !15) - 8;
        let mut context = *self;
        context.registers.vectors = vectors as *mut u8;
        let frame = Frame { back, context, info: *info };
        // SAFETY: both are here; neither has padding. They go below the program's stack pointer and its red
        // zone, which is the program's own memory and nobody else's now.
        let pieces = unsafe {
            let frame = ptr::from_ref(&frame).cast::<u8>();
            [
                (at, slice::from_raw_parts(frame, size_of::<Frame>())),
                (vectors, slice::from_raw_parts(self.registers.vectors, len)),
            ]
        };
        memory::write_to_stack(pieces)?;
        let registers = &mut self.registers;
        registers.rdi = info.signal as usize;
        registers.rsi = at + offset_of!(Frame, info);
        registers.rdx = at + offset_of!(Frame, context);
        registers.rax = 0;
        registers.rsp = at;
        registers.rip = handler;
        // Direction, resume, and trap flags are a handler's own: as the kernel clears them.
        registers.flags &= !(0x400 | 0x1_0000 | 0x100);
        // SAFETY: `len` bytes are there.
        unsafe { forget_vectors(registers.vectors, len) };
        Ok(())
    }

    /// How far below `sp` [`Context::push`] goes at most.
    ///
    /// # Safety
    /// `self` is a context that the kernel has made.
    pub unsafe fn pushed_len(&self) -> usize {
        // SAFETY: by the caller's word.
        let len = unsafe { vectors_len(self.registers.vectors) };
        RED_ZONE + len + 63 + size_of::<Frame>() + 15 + 8
    }

    /// The context becomes the one that a handler of the program's has given back. The alternate
    /// stack, the mask, and the place of the vectors stay what they are here.
    ///
    /// # Safety
    /// `self` is a context that the kernel has made. `given` can be read.
    pub unsafe fn pop(&mut self, given: *const Context) {
        // SAFETY: by the caller's word; a program that gives back what is no context dies of it.
        unsafe {
            let given = given.read_unaligned();
            let (own, theirs) = (self.registers.vectors, given.registers.vectors);
            let len = vectors_len(own);
            if theirs.is_null() {
                forget_vectors(own, len);
            } else {
                let len = len.min(vectors_len(theirs));
                ptr::copy_nonoverlapping(theirs, own, len);
            }
            self.flags = given.flags;
            self.registers = given.registers;
            self.registers.vectors = own;
        }
    }

    /// A copy below `end`, vectors and all, as [`crate::signal::go_back`] wants it.
    ///
    /// # Safety
    /// `self` is a context that the kernel has made; the memory below `end` is nobody's.
    pub unsafe fn copy_below(&self, end: usize) -> *mut Context {
        // SAFETY: by the caller's word.
        unsafe {
            let len = vectors_len(self.registers.vectors);
            let vectors = (end - len) & !63;
            let at = ((vectors - size_of::<Context>()) & !15) as *mut Context;
            ptr::copy_nonoverlapping(self.registers.vectors, vectors as *mut u8, len);
            at.write(*self);
            (*at).registers.vectors = vectors as *mut u8;
            at
        }
    }
}

/// As at a program's start.
///
/// # Safety
/// `len` bytes of state are at `vectors`.
unsafe fn forget_vectors(vectors: *mut u8, len: usize) {
    // SAFETY: by the caller's word.
    unsafe {
        if len > LEGACY {
            // The rest need not be touched: it is not in use.
            vectors.add(IN_USE).cast::<u64>().write_unaligned(0);
        } else {
            ptr::write_bytes(vectors, 0, SAID);
        }
        vectors.add(FCW).cast::<u16>().write_unaligned(FCW_INITIAL);
        vectors.add(MXCSR).cast::<u32>().write_unaligned(MXCSR_INITIAL);
    }
}

//! The program's memory, as system calls see it: whoever names an address that is not there gets
//! `EFAULT`, not a fault in the runtime.

use core::arch::global_asm;
use core::ffi::CStr;

use linux_raw_sys::errno::{EFAULT, ENAMETOOLONG};

use crate::frame::Context;
use crate::layout::{PAGE, page_down};
use crate::sys::error;
use crate::{own, record};

/// `struct iovec`.
#[repr(C)]
struct Piece {
    at: usize,
    len: usize,
}

/// Reads `into.len()` bytes at `from`.
///
/// # Errors
/// `EFAULT`.
pub fn read_bytes(from: usize, into: &mut [u8]) -> Result<(), isize> {
    let here = Piece { at: into.as_mut_ptr() as usize, len: into.len() };
    let there = Piece { at: from, len: into.len() };
    // SAFETY: the kernel writes to `into` alone.
    let read =
        unsafe { own!(process_vm_readv, own_tid(), &raw const here, 1, &raw const there, 1, 0) };
    if read == Ok(into.len()) { Ok(()) } else { Err(error(EFAULT)) }
}

/// Writes `bytes` at `to`.
///
/// # Errors
/// `EFAULT`.
pub fn write_bytes(to: usize, bytes: &[u8]) -> Result<(), isize> {
    let here = Piece { at: bytes.as_ptr() as usize, len: bytes.len() };
    let there = Piece { at: to, len: bytes.len() };
    // SAFETY: the program has asked for these bytes to be written there.
    let written =
        unsafe { own!(process_vm_writev, own_tid(), &raw const here, 1, &raw const there, 1, 0) };
    if written == Ok(bytes.len()) { Ok(()) } else { Err(error(EFAULT)) }
}

/// Writes two pieces to the program's stack, the lower one first.
///
/// # Errors
/// `EFAULT`.
pub fn write_to_stack(pieces: [(usize, &[u8]); 2]) -> Result<(), isize> {
    let here = pieces.map(|(_, piece)| Piece { at: piece.as_ptr() as usize, len: piece.len() });
    let there = pieces.map(|(at, piece)| Piece { at, len: piece.len() });
    let len = pieces.iter().map(|(_, piece)| piece.len()).sum();
    // SAFETY: what is below a stack's pointer is for whoever puts something there.
    let write = || unsafe {
        own!(process_vm_writev, own_tid(), here.as_ptr(), 2, there.as_ptr(), 2, 0) == Ok(len)
    };
    // A stack grows for whoever writes to it, but not for that call: so another one does.
    // SAFETY: changes nothing but 8 bytes of the first piece's place.
    let grows = || unsafe { own!(rt_sigprocmask, 0, 0, pieces[0].0, size_of::<u64>()) }.is_ok();
    if write() || (grows() && write()) { Ok(()) } else { Err(error(EFAULT)) }
}

/// Reads a value of which any bytes are one.
///
/// # Errors
/// `EFAULT`.
pub fn read<T: Plain>(from: usize) -> Result<T, isize> {
    let mut value = T::ZERO;
    read_bytes(from, bytes_of(&mut value))?;
    Ok(value)
}

fn bytes_of<T: Plain>(value: &mut T) -> &mut [u8] {
    // SAFETY: any bytes are a `T`.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::from_mut(value).cast(), size_of::<T>()) }
}

/// Writes a value without padding.
///
/// # Errors
/// `EFAULT`.
pub fn write<T: Plain>(to: usize, value: &T) -> Result<(), isize> {
    // SAFETY: a `T` has no padding.
    let bytes = unsafe {
        core::slice::from_raw_parts(core::ptr::from_ref(value).cast::<u8>(), size_of::<T>())
    };
    write_bytes(to, bytes)
}

/// Reads a string into `buffer`; what there is of it, without the zero at its end.
///
/// # Errors
/// `EFAULT`; `ENAMETOOLONG` if the buffer has no room for it.
pub fn read_str(from: usize, buffer: &mut [u8]) -> Result<&CStr, isize> {
    let len = pagewise(from, buffer, read_bytes)?;
    let text = buffer.get(..=len).ok_or(error(ENAMETOOLONG))?;
    CStr::from_bytes_with_nul(text).map_err(|_| error(EFAULT))
}

/// Reads a string, page by page: the one behind its end need not be there. Its length, as far as it fits.
fn pagewise(
    from: usize,
    buffer: &mut [u8],
    read: impl Fn(usize, &mut [u8]) -> Result<(), isize>,
) -> Result<usize, isize> {
    let mut got = 0;
    while got < buffer.len() {
        let to_page = page_down(from + got) + PAGE - (from + got);
        let part = &mut buffer[got..];
        let now = to_page.min(part.len());
        let part = &mut part[..now];
        read(from + got, part)?;
        if let Some(end) = part.iter().position(|&byte| byte == 0) {
            return Ok(got + end);
        }
        got += now;
    }
    Ok(got)
}

global_asm!(
    ".text",
    ".globl steadfast_copy, steadfast_copy_at, steadfast_copy_end",
    ".balign 16",
    // (to: rdi, from: rsi, bytes: rdx) So many are left.
    "steadfast_copy:",
    "mov rcx, rdx",
    "steadfast_copy_at:",
    "rep movsb",
    "steadfast_copy_end:",
    "mov rax, rcx",
    "ret",
);

unsafe extern "C" {
    fn steadfast_copy(to: *mut u8, from: usize, len: usize) -> usize;
    static steadfast_copy_at: u8;
    static steadfast_copy_end: u8;
}

/// As [`read_bytes`], without a system call while the program is recorded: then a fault is the runtime's to
/// handle. By a thread that does not block SIGSEGV.
///
/// # Errors
/// `EFAULT`.
pub fn glance(from: usize, into: &mut [u8]) -> Result<(), isize> {
    if !record::is_on() {
        return read_bytes(from, into);
    }
    // SAFETY: writes to `into` alone; at a fault, see [`gives_up`].
    match unsafe { steadfast_copy(into.as_mut_ptr(), from, into.len()) } {
        0 => Ok(()),
        _ => Err(error(EFAULT)),
    }
}

/// As [`read`], by [`glance`].
///
/// # Errors
/// `EFAULT`.
pub fn glance_at<T: Plain>(from: usize) -> Result<T, isize> {
    let mut value = T::ZERO;
    glance(from, bytes_of(&mut value))?;
    Ok(value)
}

/// What a string begins with, as far as there is room in `buffer`, without the zero at its end. By [`glance`].
///
/// # Errors
/// `EFAULT`.
pub fn glance_at_str(from: usize, buffer: &mut [u8]) -> Result<&[u8], isize> {
    let len = pagewise(from, buffer, glance)?;
    Ok(&buffer[..len])
}

/// A fault: whether it was one of [`glance`]'s, which finds out behind this.
pub fn gives_up(context: &mut Context) -> bool {
    let is_one = context.registers.rip == &raw const steadfast_copy_at as usize;
    if is_one {
        context.registers.rip = &raw const steadfast_copy_end as usize;
    }
    is_one
}

/// Who has this memory: the calling thread. (The first one may have ended, and has none.)
fn own_tid() -> usize {
    // SAFETY: changes nothing.
    unsafe { own!(gettid) }.unwrap_or(0)
}

/// Types of which any bytes are a value, and which have no padding.
///
/// # Safety
/// They are so.
pub unsafe trait Plain: Sized {
    /// Any value.
    const ZERO: Self;
}

macro_rules! plain {
    ($($type:ty = $zero:expr),* $(,)?) => {$(
        // SAFETY: integers all through, one next to the other.
        unsafe impl Plain for $type {
            const ZERO: $type = $zero;
        }
    )*};
}

plain! {
    usize = 0,
    u64 = 0,
    u32 = 0,
    crate::sigset::SigSet = crate::sigset::SigSet(0),
    crate::process::Action = crate::process::Action::DEFAULT,
    crate::frame::AltStack = crate::frame::AltStack::NONE,
    crate::frame::SigInfo = crate::frame::SigInfo::of_kernel(0),
}

// SAFETY: one next to the other.
unsafe impl<T: Plain, const COUNT: usize> Plain for [T; COUNT] {
    const ZERO: [T; COUNT] = [const { T::ZERO }; COUNT];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_an_error() {
        assert_eq!(read::<u64>(8), Err(error(EFAULT)));
        assert_eq!(write(8, &1u32), Err(error(EFAULT)));
        let mut place = 7u64;
        write(&raw mut place as usize, &9u64).unwrap();
        assert_eq!((place, read::<u64>(&raw const place as usize)), (9, Ok(9)));
    }

    #[test]
    fn strings() {
        let (text, mut buffer) = (c"steadfast", [0; 16]);
        let at = text.as_ptr() as usize;
        assert_eq!(read_str(at, &mut buffer), Ok(text));
        assert_eq!(read_str(at, &mut buffer[..9]), Err(error(ENAMETOOLONG)));
        assert_eq!(read_str(16, &mut buffer), Err(error(EFAULT)));
    }

    #[test]
    fn a_string_at_the_end_of_what_is_mapped() {
        let map = |at: usize, flags| {
            // SAFETY: a fresh mapping, or the removal of a page of it.
            unsafe { own!(mmap, at, 2 * PAGE, 3, 0x22 | flags, usize::MAX, 0) }.unwrap()
        };
        let at = map(0, 0);
        // SAFETY: the second page is this test's.
        unsafe { own!(munmap, at + PAGE, PAGE) }.unwrap();
        let text = at + PAGE - 3;
        write_bytes(text, b"ab\0").unwrap();
        let mut buffer = [0; 64];
        assert_eq!(read_str(text, &mut buffer), Ok(c"ab"));
        assert_eq!(read_str(text + 3, &mut buffer), Err(error(EFAULT)));
    }
}

//! The program's memory, as system calls see it: whoever names an address that is not there gets
//! `EFAULT`, not a fault in the runtime.

use core::ffi::CStr;

use linux_raw_sys::errno::{EFAULT, ENAMETOOLONG};

use crate::layout::{PAGE, page_down};
use crate::own;
use crate::sys::error;

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

/// Reads a value of which any bytes are one.
///
/// # Errors
/// `EFAULT`.
pub fn read<T: Plain>(from: usize) -> Result<T, isize> {
    let mut value = T::ZERO;
    // SAFETY: any bytes are a `T`.
    let bytes =
        unsafe { core::slice::from_raw_parts_mut((&raw mut value).cast::<u8>(), size_of::<T>()) };
    read_bytes(from, bytes)?;
    Ok(value)
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
    let mut got = 0;
    while got < buffer.len() {
        // The page behind the string's end need not be there.
        let to_page = page_down(from + got) + PAGE - (from + got);
        let now = to_page.min(buffer.len() - got);
        read_bytes(from + got, &mut buffer[got..got + now])?;
        got += now;
        if buffer[got - now..got].contains(&0) {
            return CStr::from_bytes_until_nul(&buffer[..got]).map_err(|_| error(EFAULT));
        }
    }
    Err(error(ENAMETOOLONG))
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
    [usize; 2] = [0; 2],
    [u64; 11] = [0; 11],
    crate::sigset::SigSet = crate::sigset::SigSet(0),
    crate::process::Action = crate::process::Action::DEFAULT,
    crate::frame::AltStack = crate::frame::AltStack::NONE,
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

//! The runtime's own image.

use core::ops::Range;
use core::ptr;

use linux_raw_sys::elf::{Elf_Ehdr, Elf_Phdr, PF_W, PF_X, PT_LOAD};
use linux_raw_sys::general::*;

use crate::layout::{page_down, page_up};
use crate::own;

unsafe extern "C" {
    static __executable_start: u8;
    static etext: u8;
}

/// Where its instructions are: system calls that are made here are its own.
pub fn text() -> Range<usize> {
    &raw const __executable_start as usize..&raw const etext as usize
}

/// Moves it into memory that belongs to no file, where it is: the process may then be said to execute
/// the program's.
///
/// # Errors
/// The kernel's: it stays in its file.
pub fn leave_file() -> Result<(), isize> {
    let start = &raw const __executable_start as usize;
    // SAFETY: the image begins with its headers, which the linker has put there, and the kernel has
    // mapped it.
    let headers = unsafe {
        let header = &*(start as *const Elf_Ehdr);
        let first = (start + header.e_phoff) as *const Elf_Phdr;
        core::slice::from_raw_parts(first, usize::from(header.e_phnum))
    };
    // The headers themselves are among what moves: two words of each are all that is needed.
    let mut parts = [(0, 0, 0); 8];
    let loaded = headers.iter().filter(|header| header.p_type == PT_LOAD);
    let mut count = 0;
    for header in loaded {
        let at = page_down(header.p_vaddr);
        parts[count] = (at, page_up(header.p_vaddr + header.p_memsz) - at, header.p_flags);
        count += 1;
    }
    parts[..count].iter().try_for_each(|&(at, len, flags)| move_part(at, len, flags))
}

fn move_part(at: usize, len: usize, flags: u32) -> Result<(), isize> {
    let mut access = PROT_READ;
    for (flag, more) in [(PF_W, PROT_WRITE), (PF_X, PROT_EXEC)] {
        access |= if flags & flag != 0 { more } else { 0 };
    }
    let map = MAP_PRIVATE | MAP_ANONYMOUS;
    // SAFETY: the copy takes the place of what it is a copy of, in one step. The stack is elsewhere,
    // and there is no other thread yet.
    unsafe {
        let copy = own!(mmap, 0, len, PROT_READ | PROT_WRITE, map, usize::MAX, 0)?;
        ptr::copy_nonoverlapping(at as *const u8, copy as *mut u8, len);
        own!(mprotect, copy, len, access)?;
        own!(mremap, copy, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, at)?;
    }
    Ok(())
}

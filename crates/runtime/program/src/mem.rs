//! The functions on memory that the compiler takes for granted, and libc has elsewhere. What they
//! move here is short: registers, records, and paths.

use core::arch::asm;

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // An instruction that moves any number of bytes takes long to begin. So a few are read at once from
    // either end, with or without an overlap. (No loop: the compiler would make a call of this function.)
    // SAFETY: the caller says so.
    unsafe {
        match len {
            0 => {}
            1 => *to = *from,
            2..4 => ends::<u16>(to, from, len),
            4..8 => ends::<u32>(to, from, len),
            8..16 => ends::<u64>(to, from, len),
            16..=32 => ends::<u128>(to, from, len),
            33..=64 => ends::<[u128; 2]>(to, from, len),
            _ => long(to, from, len),
        }
    }
    to
}

/// Copies the bytes of two `T`, one at each end.
#[inline(always)]
unsafe fn ends<T>(to: *mut u8, from: *const u8, len: usize) {
    let last = len - size_of::<T>();
    // SAFETY: the caller says that there are as many bytes.
    unsafe {
        let (begin, end) =
            (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
        to.cast::<T>().write_unaligned(begin);
        to.add(last).cast::<T>().write_unaligned(end);
    }
}

#[inline(always)]
unsafe fn long(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller says so.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: from the front, nothing is overwritten before it is read.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: the caller says so; from the back.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") len => _,
            inout("rdi") to.add(len).sub(1) => _, inout("rsi") from.add(len).sub(1) => _,
            options(nostack));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    // SAFETY: the caller says so.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    for at in 0..len {
        // SAFETY: the caller says so. Volatile, or the compiler would make a call of this function.
        let (a, b) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    // SAFETY: the caller says so.
    unsafe { memcmp(a, b, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: the caller says that a zero comes.
    while unsafe { text.add(len).read_volatile() } != 0 {
        len += 1;
    }
    len
}

//! `/proc/self/exe`. The kernel says of a process that it executes the program, if it is told so by
//! somebody with the right to (`CAP_CHECKPOINT_RESTORE`). Of a program that an unprivileged user
//! executes it goes on saying that it is the runtime, and the program is answered here.
//!
//! Processes that look at each other are not: whoever looks from outside sees the runtime.

use core::ffi::CStr;
use core::ptr;

use systable::Sysno;

use crate::exec::Name;
use crate::sys::{Args, EINVAL};
use crate::{memory, own, site};

const MAX_PATH: usize = 4096;

/// Where the program is, with a zero at its end; empty if the kernel knows it. Written once, before
/// the program begins.
static mut PATH: [u8; MAX_PATH] = [0; MAX_PATH];

/// The link's names.
const NAMES: [&CStr; 2] = [c"/proc/self/exe", c"/proc/thread-self/exe"];

/// Keeps the path of the program that is open as `fd`.
pub fn remember(fd: usize) {
    let link = Name::of_descriptor(c"/proc/self/fd/", fd as i32);
    site::report(Sysno::open);
    site::report(Sysno::openat);
    // SAFETY: there is no other thread, and nothing that looks at it, yet. The last byte stays zero.
    let _unknown = unsafe {
        own!(readlink, link.as_c_str().as_ptr(), (&raw mut PATH).cast::<u8>(), MAX_PATH - 1)
    };
}

/// Where the program is. Empty: the kernel knows it.
pub fn path() -> &'static CStr {
    // SAFETY: it does not change while the program runs, and its last byte is zero.
    unsafe { CStr::from_ptr((&raw const PATH).cast()) }
}

/// Whether a path is that of the link, which would lead to the runtime.
pub fn is(path: &CStr) -> bool {
    !self::path().is_empty() && NAMES.contains(&path)
}

/// Whether the string at this address is.
pub fn is_own(at: usize) -> bool {
    // SAFETY: one byte of what does not change.
    let known = unsafe { ptr::read((&raw const PATH).cast::<u8>()) } == 0;
    let mut buffer = [0; 32];
    !known && memory::read_str(at, &mut buffer).is_ok_and(is)
}

/// An `open` with the program's path in place of the link's.
pub fn instead(mut args: Args, at: usize) -> Args {
    args[at] = path().as_ptr() as usize;
    args
}

/// `readlink` of the link.
pub fn readlink(buffer: usize, len: usize) -> isize {
    let path = path().to_bytes();
    let part = &path[..path.len().min(len)];
    match part.len() {
        0 => EINVAL,
        len => memory::write_bytes(buffer, part).map_or_else(|error| error, |()| len as isize),
    }
}

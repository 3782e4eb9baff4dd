//! The cgroup v2 hierarchy, wherever this host has mounted it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// A descriptor of the root of the cgroup v2 tree, as this process's cgroup namespace shows it,
/// from a mount of our own that appears nowhere in the file system: hosts mount the hierarchy in
/// different places, or not at all.
pub fn cgroup2_root() -> io::Result<File> {
    // SAFETY: the string is NUL-terminated; the call has no other memory arguments.
    let context =
        unsafe { libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), libc::FSOPEN_CLOEXEC) };
    let context = own(context)?;
    // SAFETY: the descriptor is open; FSCONFIG_CMD_CREATE takes no key and no value.
    let created = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            libc::FSCONFIG_CMD_CREATE,
            std::ptr::null::<u8>(),
            std::ptr::null::<u8>(),
            0,
        )
    };
    if created < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open; the other arguments are flags.
    let mount =
        unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), libc::FSMOUNT_CLOEXEC, 0) };
    let mount = own(mount)?;
    // fsmount() returns a path descriptor; attaching needs an open directory.
    // SAFETY: the descriptor is open and the string NUL-terminated.
    let directory = unsafe {
        libc::openat(
            mount.as_fd().as_raw_fd(),
            c".".as_ptr(),
            libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
        )
    };
    own(directory.into()).map(File::from)
}

fn own(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

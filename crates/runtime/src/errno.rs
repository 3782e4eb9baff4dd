//! Errors of the kernel's in words.

/// An error as people read it.
pub struct Errno(pub isize);

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        use linux_raw_sys::errno::*;
        match self.0.unsigned_abs() as u32 {
            ENOENT => f.write_str("there is no such file"),
            EACCES => f.write_str("it may not be executed"),
            ENOEXEC => f.write_str("it is no program for this processor"),
            ENOMEM => f.write_str("there is no room for it in memory"),
            EEXIST => f.write_str("it is linked to addresses that are the runtime's"),
            ENOSPC => f.write_str("the disk is full"),
            EFBIG => f.write_str("files may not be so long (RLIMIT_FSIZE)"),
            ELOOP => f.write_str("its interpreter is a script, and so on"),
            other => write!(f, "errno {other}"),
        }
    }
}

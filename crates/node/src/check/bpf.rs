//! Trying out BPF: the smallest program of each type, and maps, made and closed again.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;

use libbpf_rs::libbpf_sys as sys;

const BTF_KIND_FUNC: u32 = 12;

/// The kernel's own type information.
pub(super) struct Btf(NonNull<sys::btf>);

impl Btf {
    pub fn of_kernel() -> io::Result<Btf> {
        // What libbpf would print, the probe says better.
        datapath::log_to_tracing();
        // SAFETY: no arguments; a null pointer means an error, in errno.
        NonNull::new(unsafe { sys::btf__load_vmlinux_btf() })
            .map(Btf)
            .ok_or_else(io::Error::last_os_error)
    }

    /// The type id of a kernel function, if there is one of this name.
    pub fn function(&self, name: &str) -> Option<u32> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle is live until drop; the name ends with NUL.
        let id =
            unsafe { sys::btf__find_by_name_kind(self.0.as_ptr(), name.as_ptr(), BTF_KIND_FUNC) };
        u32::try_from(id).ok().filter(|&id| id > 0)
    }
}

impl Drop for Btf {
    fn drop(&mut self) {
        // SAFETY: libbpf made the handle, nobody else has it, and it is not used again.
        unsafe { sys::btf__free(self.0.as_ptr()) };
    }
}

/// Loads the program `return verdict`, for one place of attachment if its type has several.
pub(super) fn load(
    kind: sys::bpf_prog_type,
    place: sys::bpf_attach_type,
    verdict: i32,
) -> io::Result<OwnedFd> {
    let mut options = sys::bpf_prog_load_opts { expected_attach_type: place, ..Default::default() };
    options.sz = std::mem::size_of_val(&options) as sys::size_t;
    let [v0, v1, v2, v3] = verdict.to_ne_bytes();
    // struct bpf_insn: opcode, registers, offset (2), immediate (4).
    let program: [[u8; 8]; 2] = [
        [0xb7, 0, 0, 0, v0, v1, v2, v3], // r0 = verdict
        [0x95, 0, 0, 0, 0, 0, 0, 0],     // exit
    ];
    let name: &CStr = c"probe";
    // SAFETY: the strings end with NUL; the two instructions are copied by the kernel and lie in
    // an array whose size is given (the library only passes the pointer on, so their alignment
    // does not matter); `options` says its own size and its null pointers are unused.
    let fd = unsafe {
        sys::bpf_prog_load(
            kind,
            name.as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr().cast(),
            program.len() as sys::size_t,
            &mut options,
        )
    };
    owned(fd)
}

/// Makes a map of this type.
pub(super) fn map(
    kind: sys::bpf_map_type,
    (key, value): (u32, u32),
    entries: u32,
) -> io::Result<OwnedFd> {
    // SAFETY: the name ends with NUL; null options mean the defaults.
    let fd = unsafe {
        let name = c"probe".as_ptr();
        sys::bpf_map_create(kind, name, key, value, entries, std::ptr::null())
    };
    owned(fd)
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

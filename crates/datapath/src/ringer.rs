//! Ringing at servers that wait beside unread bytes, see `ring` in `bpf/server.h`.

use std::io::{self, Read};

use libbpf_rs::btf::{Btf, types::Func};
use libbpf_rs::{Iter, Link};

/// Rings at all adopted sockets that hold unread bytes. For kernels that give a wrong answer to
/// `FIONREAD` as long as output is swallowed.
#[derive(Debug)]
pub struct Ringer {
    link: Link,
}

impl Ringer {
    pub(crate) fn new(link: Link) -> Self {
        Self { link }
    }

    /// One pass over the TCP sockets of the calling thread's network namespace: some 100 ns for
    /// each of them.
    ///
    /// # Errors
    /// The kernel refuses, which it does not do twice in different ways.
    pub fn ring(&self) -> io::Result<()> {
        let mut pass = Iter::new(&self.link).map_err(io::Error::other)?;
        // The program writes nothing: the first read runs it to the end.
        while pass.read(&mut [0; 64])? > 0 {}
        Ok(())
    }
}

/// Does this kernel count only what lies in a socket map's own queue? Since
/// `tcp_bpf_ioctl` is there it does, and 6.18 has it.
pub(crate) fn is_needed() -> bool {
    Btf::from_vmlinux().is_ok_and(|btf| btf.type_by_name::<Func<'_>>("tcp_bpf_ioctl").is_some())
}

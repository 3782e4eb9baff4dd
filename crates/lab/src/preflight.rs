//! Whether this machine can run a lab, before anything is made.

use std::{fs::OpenOptions, path::Path};

use crate::error::{Error, Result};

/// Checks what can be checked without making anything.
///
/// # Errors
/// [`Error::Preflight`] with the first thing that is missing and how to mend it.
pub fn check() -> Result<()> {
    let need = |ok: bool, missing: &str, mend: &'static str| {
        if ok { Ok(()) } else { Err(Error::Preflight { missing: missing.into(), mend }) }
    };
    need(
        nix::unistd::geteuid().is_root(),
        "network namespaces need root",
        "run it as root (\"make test\" runs the tests as root)",
    )?;
    for (name, option) in [("net", "NET_NS"), ("pid", "PID_NS"), ("mnt", ""), ("cgroup", "CGROUPS")]
    {
        need(
            Path::new("/proc/self/ns").join(name).exists(),
            &format!("the kernel has no {name} namespaces (CONFIG_{option})"),
            "use a kernel with namespaces, as every distribution ships",
        )?;
    }
    for (kind, mend) in [
        ("cgroup2", "use a kernel with CONFIG_CGROUPS"),
        ("bpf", "use a kernel with CONFIG_BPF_SYSCALL"),
    ] {
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        need(
            known.lines().any(|l| l.split_whitespace().last() == Some(kind)),
            &format!("the kernel has no {kind} file system"),
            mend,
        )?;
    }
    need(
        OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok(),
        "/dev/net/tun cannot be opened",
        "load the module \"tun\", or give this container the device",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_root_it_says_how_to_run_the_tests() {
        let nobody = 65534;
        let keep = u32::MAX;
        let error = crate::sys::on_thread(|| {
            // SAFETY: no pointers. The raw call changes this thread alone, which then ends.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, keep, nobody, keep) }, 0);
            check().unwrap_err().to_string()
        });
        assert!(error.contains("root") && error.contains("make test"), "{error}");
        check().unwrap_or_else(|e| panic!("{e}"));
    }
}

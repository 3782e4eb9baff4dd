//! Where the programs sit: filters that outlive the daemon, links that do not.

use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::{Link, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};

use crate::Error;
use crate::skel::GateSkel;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Where {
    Ingress,
    Egress,
}

/// One tc filter. Handle and priority are fixed, so that a restarted daemon replaces its
/// predecessor's filter in one step; they differ from the data path's.
pub(crate) struct Filter {
    hook: TcHook,
    program: &'static str,
    place: String,
}

const HANDLE: u32 = 0x5f7e;
const PRIORITY: u32 = 0x5f7e;

impl Filter {
    pub(crate) fn attach(
        program: &'static str,
        fd: BorrowedFd<'_>,
        ifindex: u32,
        side: Where,
    ) -> Result<Self, Error> {
        let mut builder = TcHookBuilder::new(fd);
        builder.ifindex(ifindex as i32).replace(true).handle(HANDLE).priority(PRIORITY);
        let (hook, side) = match side {
            Where::Ingress => (builder.hook(TC_INGRESS), "ingress"),
            Where::Egress => (builder.hook(TC_EGRESS), "egress"),
        };
        let place = format!("{side} of interface {ifindex}");
        // Creating the clsact qdisc answers EEXIST where somebody else already has: it is shared.
        let mut hook = hook;
        hook.create()
            .and_then(|mut hook| hook.attach())
            .map(|hook| Self { hook, program, place: place.clone() })
            .map_err(|source| Error::Attach { program, place, source })
    }

    pub(crate) fn detach(mut self) -> Result<(), Error> {
        let Self { program, place, .. } = self;
        self.hook.detach().map_err(|source| Error::Attach { program, place, source })
    }
}

/// Attaches the programs that follow sockets to the root of the cgroup v2 tree: wherever the
/// operator runs a server, its sockets are below it. The programs look only at their own network
/// namespace and services.
pub(crate) fn to_sockets(skel: &mut GateSkel<'static>) -> Result<Vec<Link>, Error> {
    let attach = |program, place: &str, link: libbpf_rs::Result<Link>| {
        link.map_err(|source| Error::Attach { program, place: place.to_owned(), source })
    };
    let map = skel.maps.captured.as_fd().as_raw_fd();
    // This one is no link: it lasts as long as the map.
    skel.progs.capture.attach_sockmap(map).map_err(|source| Error::Attach {
        program: "capture",
        place: "the socket map".into(),
        source,
    })?;
    let cgroup = cgroup2_root().map_err(Error::Cgroup)?;
    let fd = cgroup.as_raw_fd();
    // The gate before what makes gates: no segment of a held socket goes unjudged.
    let gate_out = attach("gate_out", "the root cgroup", skel.progs.gate_out.attach_cgroup(fd))?;
    let moves = skel.progs.sock_moves.attach_cgroup(fd);
    let moves = attach("sock_moves", "the root cgroup", moves)?;
    Ok(vec![gate_out, moves])
}
/// A descriptor of the cgroup v2 root, from a mount of our own that appears nowhere in the file
/// system: hosts mount the hierarchy in different places, or not at all.
fn cgroup2_root() -> std::io::Result<File> {
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
        return Err(std::io::Error::last_os_error());
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

fn own(result: libc::c_long) -> std::io::Result<OwnedFd> {
    if result < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// Identity of the calling thread's network namespace, as `bpf_get_netns_cookie()` sees it.
pub(crate) fn netns_cookie() -> std::io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .or_else(|_| UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)))?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` = 8 bytes to `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(std::io::Error::last_os_error()) }
}

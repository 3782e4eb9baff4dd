//! Where the programs sit: tc filters that outlive the daemon, and cgroup and sockmap links that
//! do not.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::{Link, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};

use crate::Error;
use crate::skel::DatapathSkel;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Where {
    Ingress,
    Egress,
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Where::Ingress => "ingress",
            Where::Egress => "egress",
        })
    }
}

/// One tc filter. Handle and priority are fixed, so that a restarted daemon replaces its
/// predecessor's filter in one step, with no instant in which traffic passes unfiltered.
pub(crate) struct Hook {
    hook: TcHook,
    ifindex: u32,
    program: &'static str,
    place: String,
}

const HANDLE: u32 = 0x5f7d;
const PRIORITY: u32 = 0x5f7d;

impl Hook {
    pub(crate) fn attach(
        program: &'static str,
        fd: BorrowedFd<'_>,
        ifindex: u32,
        place: Where,
    ) -> Result<Self, Error> {
        let mut builder = TcHookBuilder::new(fd);
        builder.ifindex(ifindex as i32).replace(true).handle(HANDLE).priority(PRIORITY);
        let mut hook = builder.hook(match place {
            Where::Ingress => TC_INGRESS,
            Where::Egress => TC_EGRESS,
        });
        let place = format!("{place} of interface {ifindex}");
        // Creating the clsact qdisc answers EEXIST where somebody else already has: it is shared.
        hook.create()
            .and_then(|mut hook| hook.attach())
            .map(|hook| Self { hook, ifindex, program, place: place.clone() })
            .map_err(|source| Error::Attach { program, place, source })
    }

    /// An interface that is gone has taken its programs with it: the adoption device closes with
    /// the thread that writes to it.
    pub(crate) fn detach(mut self) -> Result<(), Error> {
        match self.hook.detach() {
            Err(source) if exists(self.ifindex) => {
                Err(Error::Attach { program: self.program, place: self.place, source })
            }
            _ => Ok(()),
        }
    }
}

fn exists(ifindex: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has room for the longest name there can be.
    !unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr()) }.is_null()
}

/// Attaches the programs that follow sockets. The root of the cgroup v2 tree is the place for
/// them: wherever the operator runs a server, its sockets are below it. The programs themselves
/// look only at their own network namespace and services.
pub(crate) fn to_sockets(skel: &mut DatapathSkel<'static>) -> Result<Vec<Link>, Error> {
    let root = |program| cgroup2_root().map_err(|source| Error::Cgroup { program, source });
    let attach = |program, place: &str, link: libbpf_rs::Result<Link>| {
        link.map_err(|source| Error::Attach { program, place: place.to_owned(), source })
    };
    let cgroup = root("sock_events")?;
    let fd = cgroup.as_raw_fd();
    let sock_events = skel.progs.sock_events.attach_cgroup(fd);
    let server_close = skel.progs.server_close.attach_cgroup(fd);
    let map = skel.maps.swallowing.as_fd().as_raw_fd();
    // This one is no link: it lasts as long as the map.
    let swallow = skel.progs.swallow.attach_sockmap(map);
    swallow.map_err(|source| Error::Attach {
        program: "swallow",
        place: "the socket map".into(),
        source,
    })?;
    Ok(vec![
        attach("sock_events", "the root cgroup", sock_events)?,
        attach("server_close", "the root cgroup", server_close)?,
    ])
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

//! The first process of a host.
//!
//! It is a plain fork of the keeper, PID 1 of a PID namespace, with network, mount, UTS,
//! IPC and cgroup namespaces of its own. It dies with the keeper, and when it dies the
//! kernel kills every process of the host and takes the host's interfaces away.
//!
//! The keeper has many threads, so this child inherits locks that nobody will ever
//! release: it makes system calls only, allocates nothing, and everything it needs is
//! prepared in [`Plan`] before the fork. Its jobs after set-up are two: orphans reap
//! themselves (SIGCHLD is ignored), and it stops or continues all processes of the host
//! with one `kill(-1)`. The kernel carries that out under the lock that fork also needs,
//! so no process slips through; iterating over /proc from outside could not promise that,
//! and a cgroup freezer would leave a directory behind when the keeper is SIGKILLed.

use std::{
    convert::Infallible,
    ffi::{CStr, CString, c_char, c_ulong},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    path::Path,
    ptr,
};

use nix::sched::CloneFlags;

use crate::{
    error::{Doing, Error, Result},
    sys::{self, Pidfd, cstring},
};

/// The namespaces that a host does not share. The cgroup namespace comes later, made by
/// init itself once it is in the host's cgroup.
const NAMESPACES: CloneFlags = CloneFlags::CLONE_NEWPID
    .union(CloneFlags::CLONE_NEWNET)
    .union(CloneFlags::CLONE_NEWNS)
    .union(CloneFlags::CLONE_NEWUTS)
    .union(CloneFlags::CLONE_NEWIPC);

/// What [`enter`](Pidfd::enter) takes to be wholly inside a host.
pub(crate) const EVERYTHING: CloneFlags = NAMESPACES.union(CloneFlags::CLONE_NEWCGROUP);

const MODE_DIR: libc::mode_t = 0o755;

/// Set-up steps, as reported by a child that cannot format text.
const STEPS: [&str; 11] = [
    "make mounts private",
    "mount /proc",
    "mount /sys",
    "mount a bpffs at /sys/fs/bpf",
    "enter a cgroup namespace",
    "mount the host's cgroup2 at /sys/fs/cgroup",
    "take hold of the lab's directory",
    "mount a tmpfs at /run",
    "show the lab's directory",
    "mount /etc/hosts",
    "set the host name",
];

/// Everything the first process needs, prepared before the fork.
struct Plan {
    hostname: CString,
    lab_dir: CString,
    /// The lab's directory and those above it, outermost first.
    lab_dir_chain: Vec<CString>,
    hosts_file: CString,
}

/// A host's first process.
#[derive(Debug)]
pub(crate) struct Init {
    pub(crate) pid: u32,
    pub(crate) pidfd: Pidfd,
}

/// The socket to a host's first process. Dropping it ends the host.
#[derive(Debug)]
pub(crate) struct Control(OwnedFd);

impl Init {
    /// Starts a host's first process and waits until its mounts are in place.
    /// `lab_dir` must hold the file `hosts`.
    pub(crate) fn start(
        hostname: &str,
        lab_dir: &Path,
        cgroup: OwnedFd,
    ) -> Result<(Init, Control)> {
        let doing = || format!("start host {hostname}");
        let plan = Plan::new(hostname, lab_dir).doing(doing)?;
        let (control, far) = socket_pair().doing(doing)?;
        let (pid, pidfd) = sys::on_keeper_thread(move || {
            let far_fd = far.as_raw_fd();
            sys::fork_into(NAMESPACES, cgroup.as_fd(), || run(&plan, far_fd))
        })
        .doing(doing)?;
        let (init, control) = (Init { pid, pidfd }, Control(control));
        match control.answer().doing(doing)? {
            (_, 0) => Ok((init, control)),
            (step, errno) => {
                let step = STEPS.get(step as usize).copied().unwrap_or("start");
                let _ = init.pidfd.reap(); // it has exited; its status says nothing more
                Err(Error::Sys {
                    doing: format!("{step} in host {hostname}"),
                    source: io::Error::from_raw_os_error(errno),
                })
            }
        }
    }
}

impl Control {
    /// Sends `signal` to every process of the host but the first, at one instant.
    pub(crate) fn signal_all(&self, signal: i32) -> io::Result<()> {
        let word = signal.to_ne_bytes();
        // SAFETY: pointer and length describe `word`.
        let sent = unsafe {
            libc::send(self.0.as_raw_fd(), word.as_ptr().cast(), word.len(), libc::MSG_NOSIGNAL)
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        match self.answer()? {
            (_, 0 | libc::ESRCH) => Ok(()), // ESRCH: a host without processes
            (_, errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn answer(&self) -> io::Result<(i32, i32)> {
        let mut b = [0u8; 8];
        // SAFETY: pointer and length describe `b`.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), b.as_mut_ptr().cast(), b.len(), 0) };
        match got {
            8 => {
                let word = |i: usize| i32::from_ne_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
                Ok((word(0), word(4)))
            }
            0.. => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its first process ended")),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Plan {
    fn new(hostname: &str, lab_dir: &Path) -> io::Result<Plan> {
        use std::os::unix::ffi::OsStrExt;
        let mut chain: Vec<CString> = lab_dir
            .ancestors()
            .map(|p| cstring(p.as_os_str().as_bytes()))
            .collect::<io::Result<_>>()?;
        chain.reverse();
        Ok(Plan {
            hostname: cstring(hostname)?,
            lab_dir: cstring(lab_dir.as_os_str().as_bytes())?,
            lab_dir_chain: chain,
            hosts_file: cstring(lab_dir.join("hosts").as_os_str().as_bytes())?,
        })
    }
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

/// The child's life. From here on: system calls only.
fn run(plan: &Plan, control: RawFd) -> Infallible {
    // SAFETY: plain system calls on values that live in `plan` or on this stack. Nothing
    // of the parent's memory is written, freed or locked.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, c"lab-init".as_ptr());
        // The keeper's descriptors must not outlive it here, its locks least of all.
        // If it died before the prctl above, the control socket is at its end, and the
        // first answer or read below finds out.
        libc::dup2(control, 0);
        libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0);
        libc::setsid();
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        if let Err((step, errno)) = set_up(plan) {
            answer(step, errno);
            libc::_exit(1);
        }
        answer(0, 0);
        loop {
            let mut word = [0u8; 4];
            if libc::recv(0, word.as_mut_ptr().cast(), word.len(), 0) != 4 {
                libc::_exit(0); // the keeper has let go
            }
            let rc = libc::kill(-1, i32::from_ne_bytes(word));
            answer(0, if rc < 0 { *libc::__errno_location() } else { 0 });
        }
    }
}

fn answer(step: i32, errno: i32) {
    let (s, e) = (step.to_ne_bytes(), errno.to_ne_bytes());
    let b = [s[0], s[1], s[2], s[3], e[0], e[1], e[2], e[3]];
    // SAFETY: pointer and length describe `b`.
    if unsafe { libc::send(0, b.as_ptr().cast(), b.len(), libc::MSG_NOSIGNAL) } < 0 {
        // SAFETY: always sound.
        unsafe { libc::_exit(1) }; // nobody listens any more
    }
}

/// Returns the number of the step that failed, and errno.
///
/// # Safety
/// Only in the forked child.
unsafe fn set_up(plan: &Plan) -> Result<(), (i32, i32)> {
    let mut step = -1;
    let mut check = |rc: libc::c_long| {
        step += 1;
        // SAFETY: errno of this thread.
        if rc < 0 { Err((step, unsafe { *libc::__errno_location() })) } else { Ok(rc) }
    };
    let hidden = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: all strings are C strings that outlive the calls.
    unsafe {
        check(mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None))?;
        check(mount(Some(c"proc"), c"/proc", Some(c"proc"), hidden, None))?;
        check(mount(Some(c"sysfs"), c"/sys", Some(c"sysfs"), hidden, None))?;
        check(mount(Some(c"bpf"), c"/sys/fs/bpf", Some(c"bpf"), hidden, Some(c"mode=0700")))?;
        check(libc::unshare(libc::CLONE_NEWCGROUP).into())?;
        check(mount(Some(c"cgroup2"), c"/sys/fs/cgroup", Some(c"cgroup2"), hidden, None))?;
        // The lab's directory is usually below /run, which is about to be covered.
        let clone_tree = 1 | libc::O_CLOEXEC; // OPEN_TREE_CLONE
        let tree = check(libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            plan.lab_dir.as_ptr(),
            clone_tree,
        ))?;
        let flags = libc::MS_NOSUID | libc::MS_NODEV;
        check(mount(Some(c"tmpfs"), c"/run", Some(c"tmpfs"), flags, Some(c"mode=0755")))?;
        libc::mkdir(c"/run/lock".as_ptr(), 0o777);
        for dir in &plan.lab_dir_chain {
            libc::mkdir(dir.as_ptr(), MODE_DIR); // where it matters, move_mount tells
        }
        let empty_from = 4; // MOVE_MOUNT_F_EMPTY_PATH
        check(libc::syscall(
            libc::SYS_move_mount,
            tree,
            c"".as_ptr(),
            libc::AT_FDCWD,
            plan.lab_dir.as_ptr(),
            empty_from,
        ))?;
        check(mount(Some(&plan.hosts_file), c"/etc/hosts", None, libc::MS_BIND, None))?;
        let name = &plan.hostname;
        check(libc::sethostname(name.as_ptr(), name.count_bytes()).into())?;
    }
    Ok(())
}

/// # Safety
/// As mount(2); any C strings are fine.
unsafe fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: c_ulong,
    data: Option<&CStr>,
) -> libc::c_long {
    let p = |s: Option<&CStr>| s.map_or(ptr::null::<c_char>(), CStr::as_ptr);
    // SAFETY: null or C strings that outlive the call.
    unsafe { libc::mount(p(source), target.as_ptr(), p(kind), flags, p(data).cast()) }.into()
}

/// A host's network namespace, for netlink requests that want one by descriptor.
pub(crate) fn net_ns_of(pid: u32) -> io::Result<std::fs::File> {
    std::fs::File::open(format!("/proc/{pid}/ns/net"))
}

//! Namespaces, processes and cgroups: the kernel calls that std and nix do not wrap.
//!
//! The problem: a lab must vanish with its keeper even if that is SIGKILLed, and
//! nothing but the kernel is left to do it then. So every object hangs on a process
//! or a file descriptor of the keeper. Hosts' first processes ask for
//! PR_SET_PDEATHSIG; but that signal comes when the *thread* that forked ends, not
//! the process. Hence [`on_keeper_thread`]: one thread that never ends does all
//! forking of hosts.

use std::{
    ffi::CString,
    io,
    mem::{size_of, zeroed},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, setns};

use crate::error::{Doing, Result};

/// A network namespace that lives as long as this value (or a process in it).
#[derive(Debug)]
pub(crate) struct NetNs(OwnedFd);

impl NetNs {
    /// Makes a new, empty network namespace.
    pub(crate) fn new() -> Result<NetNs> {
        let doing = || "create a network namespace (unshare)".to_owned();
        on_thread(|| {
            nix::sched::unshare(CloneFlags::CLONE_NEWNET).doing(doing)?;
            let file = std::fs::File::open("/proc/thread-self/ns/net").doing(doing)?;
            Ok(NetNs(file.into()))
        })
    }

    /// The calling thread joins this namespace.
    pub(crate) fn enter(&self) -> Result<()> {
        setns(&self.0, CloneFlags::CLONE_NEWNET)
            .doing(|| "enter the switch's network namespace".to_owned())
    }

    /// Runs `f` on a thread of its own inside this namespace.
    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_thread(|| {
            self.enter()?;
            f()
        })
    }
}

/// Runs `f` on a new thread, for calls that change the thread's namespaces.
pub(crate) fn on_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|s| match s.spawn(f).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

type Job = Box<dyn FnOnce() + Send>;

/// Runs `f` on the one thread of this process that lasts until the process ends.
pub(crate) fn on_keeper_thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    static KEEPER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let jobs = KEEPER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::Builder::new()
            .name("lab-keeper".into())
            .spawn(move || queue.into_iter().for_each(|job| job()))
            .expect("the system has room for one more thread");
        jobs
    });
    let (done, result) = mpsc::sync_channel(1);
    let job = Box::new(move || {
        let _ = done.send(f()); // the asker waits below
    });
    jobs.send(job).expect("the keeper thread never ends");
    result.recv().expect("jobs of the keeper thread do not panic")
}

/// A process, by a descriptor that cannot come to mean another one.
#[derive(Debug)]
pub(crate) struct Pidfd(OwnedFd);

impl Pidfd {
    /// Opens the process `pid`, which must not have been reaped.
    pub(crate) fn open(pid: u32) -> io::Result<Pidfd> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is new and ours alone.
        Ok(Pidfd(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Sends a signal. A process that has ended is not an error.
    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: a null siginfo is allowed.
        let rc = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, 0usize, 0)
        };
        let error = io::Error::last_os_error();
        if rc == 0 || error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) }
    }

    /// Waits until the process has ended; `false` if `timeout` passes first.
    pub(crate) fn ended(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.map(|t| Instant::now() + t);
        loop {
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            // Rounded up, or the last millisecond would be polled away.
            let ms = left
                .map_or(-1, |l| i32::try_from(l.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
            let mut poll =
                libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid pollfd.
            match unsafe { libc::poll(&mut poll, 1, ms) } {
                1.. => return Ok(true),
                0 if left.is_some_and(|l| l.is_zero()) || ms == 0 => return Ok(false),
                0 => {}
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Reaps the process, a child of ours, once it has ended.
    pub(crate) fn reap(&self) -> io::Result<ExitStatus> {
        // SAFETY: `info` is plain data, filled by the kernel.
        let mut info: libc::siginfo_t = unsafe { zeroed() };
        let id = self.0.as_raw_fd() as libc::id_t;
        // SAFETY: `info` outlives the call.
        while unsafe { libc::waitid(libc::P_PIDFD, id, &mut info, libc::WEXITED) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        // SAFETY: waitid succeeded, so the union holds a child's status.
        let status = unsafe { info.si_status() };
        let exited = info.si_code == libc::CLD_EXITED;
        Ok(ExitStatus::from_raw(if exited { status << 8 } else { status }))
    }

    /// The calling thread joins the process's namespaces named by `flags`.
    pub(crate) fn enter(&self, flags: CloneFlags) -> nix::Result<()> {
        if flags.contains(CloneFlags::CLONE_NEWNS) {
            // A mount namespace can be entered only with a root and cwd of one's own.
            nix::sched::unshare(CloneFlags::CLONE_FS)?;
        }
        setns(&self.0, flags)
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Pidfd {
    fn from(fd: OwnedFd) -> Pidfd {
        Pidfd(fd)
    }
}

/// Mounts the machine's cgroup2 tree privately: visible through the descriptor only, so
/// it does not matter whether and where the machine itself has mounted it.
pub(crate) fn cgroup_root() -> io::Result<OwnedFd> {
    const FSCONFIG_CMD_CREATE: u32 = 6;
    let cloexec = 1; // FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC
    let fd = |rc: libc::c_long| {
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, ours alone.
        Ok(unsafe { OwnedFd::from_raw_fd(rc as RawFd) })
    };
    // SAFETY: the name is a C string; the other calls take null pointers and numbers.
    unsafe {
        let fs = fd(libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), cloexec))?;
        let raw = fs.as_raw_fd();
        if libc::syscall(libc::SYS_fsconfig, raw, FSCONFIG_CMD_CREATE, 0usize, 0usize, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        fd(libc::syscall(libc::SYS_fsmount, raw, cloexec, 0))
    }
}

/// Removes a cgroup below `root` with all cgroups in it. Its processes must have ended or
/// be dying: SIGKILL takes effect a little after the call that sent it.
pub(crate) fn remove_cgroup(root: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    use nix::{
        dir::{Dir, Type},
        fcntl::{OFlag, openat},
        poll::{PollFd, PollFlags, poll},
        sys::stat::Mode,
        unistd::{UnlinkatFlags, unlinkat},
    };
    let open = |dir: BorrowedFd<'_>, path: &str, flags| {
        openat(dir, path, flags | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
    };
    let dir = match open(root, name, OFlag::O_DIRECTORY) {
        Err(nix::Error::ENOENT) => return Ok(()),
        other => other?,
    };
    let mut inner = Vec::new();
    for entry in Dir::from_fd(dir.try_clone()?)?.iter() {
        let entry = entry?;
        let child = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type() == Some(Type::Directory) && child != "." && child != ".." {
            inner.push(child);
        }
    }
    inner.iter().try_for_each(|child| remove_cgroup(dir.as_fd(), child))?;
    // A cgroup of version 1 has no such file: there is only the time limit below.
    let events = open(dir.as_fd(), "cgroup.events", OFlag::empty()).ok();
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match unlinkat(root, name, UnlinkatFlags::RemoveDir) {
            Err(nix::Error::EBUSY) if Instant::now() < deadline => {}
            Err(nix::Error::ENOENT) => return Ok(()),
            other => return Ok(other?),
        }
        // The kernel raises POLLPRI when the last process is gone. It may have done so
        // before we began to listen, hence the limit.
        let watch = events.as_ref().map(|e| PollFd::new(e.as_fd(), PollFlags::POLLPRI));
        poll(watch.into_iter().collect::<Vec<_>>().as_mut_slice(), 10u16)?;
    }
}

/// Makes a cgroup below `root` and opens it.
pub(crate) fn make_cgroup(root: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    use nix::{fcntl::OFlag, sys::stat::Mode};
    nix::sys::stat::mkdirat(root, name, Mode::from_bits_truncate(0o755))?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::openat(root, name, flags, Mode::empty())?)
}

/// Forks a child into new namespaces and a cgroup; `child` never returns and must
/// restrict itself to async-signal-safe calls, because other threads' locks are copied
/// as they are. Every signal is blocked in the child. Call on the keeper thread.
///
/// # Errors
/// The kernel's refusal of clone3.
pub(crate) fn fork_into(
    namespaces: CloneFlags,
    cgroup: BorrowedFd<'_>,
    child: impl FnOnce() -> std::convert::Infallible,
) -> io::Result<(u32, Pidfd)> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000; // libc's constant overflows
    let mut pidfd: RawFd = -1;
    // SAFETY: clone_args is plain data; zero means "not used".
    let mut args: libc::clone_args = unsafe { zeroed() };
    args.flags = namespaces.bits() as u64 | libc::CLONE_PIDFD as u64 | CLONE_INTO_CGROUP;
    args.pidfd = (&raw mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = cgroup.as_raw_fd() as u64;

    let all = nix::sys::signal::SigSet::all();
    let before = all.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_SETMASK)?;
    // SAFETY: `args` and `pidfd` outlive the call. No stack is given, so the child runs on
    // a copy of ours, like after fork(); what it may call is the caller's duty.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of_val(&args)) };
    if pid == 0 {
        child();
    }
    let error = io::Error::last_os_error();
    before.thread_set_mask()?;
    if pid < 0 {
        return Err(error);
    }
    // SAFETY: the kernel stored a new descriptor, ours alone.
    Ok((pid as u32, Pidfd(unsafe { OwnedFd::from_raw_fd(pidfd) })))
}

/// A path or name as the kernel wants it.
pub(crate) fn cstring(text: impl Into<Vec<u8>>) -> io::Result<CString> {
    CString::new(text)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "NUL byte in a path"))
}

/// Sets `option` of `fd` to an integer.
pub(crate) fn set_int_option(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the value is an int that outlives the call.
    let rc =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

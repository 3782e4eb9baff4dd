//! Starting one server: own cgroup and session, chosen user, quiet input.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::fcntl::OFlag;
use nix::unistd::{Gid, User, getgrouplist, pipe2};

use super::cgroup::{self, Cgroup};
use super::output::Output;
use crate::config::Service;

/// A server that runs.
pub(super) struct Spawned {
    pub pid: u32,
    pub pidfd: OwnedFd,
    pub outputs: Vec<Output>,
}

/// Starts a service's command in `cgroup`.
pub(super) fn spawn(service: &Service, cgroup: &Cgroup) -> Result<Spawned, String> {
    let words = service.command.as_ref().expect("only services with a command are started");
    let account = service.user.as_deref().map(Account::look_up).transpose()?;
    let entrance = cgroup.entrance().map_err(|error| format!("the server's cgroup: {error}"))?;
    let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(|errno| format!("a pipe for output: {errno}"));
    let (stdout, stderr) = (pipe()?, pipe()?);
    let readers = [stdout.0.as_raw_fd(), stderr.0.as_raw_fd()];
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .current_dir(service.workdir.as_deref().unwrap_or("/".as_ref()))
        .stdin(Stdio::null())
        .stdout(Stdio::from(stdout.1))
        .stderr(Stdio::from(stderr.1))
        .env_clear();
    for name in ["PATH", "LANG"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    if let Some(account) = &account {
        command.env("HOME", &account.user.dir).env("USER", &account.user.name);
    }
    command.envs(&service.environment);
    let prepare = move || prepare(&entrance, readers, account.as_ref());
    // The readers' numbers stay theirs until both `stdout.0` and `stderr.0` are turned into outputs,
    // after the fork.
    // SAFETY: between fork and exec `prepare` makes system calls only: it neither allocates nor
    // takes a lock, and everything it reads was made before the fork.
    unsafe { command.pre_exec(prepare) };

    let child = command.spawn().map_err(|error| {
        let place = service.workdir.as_ref().map(|dir| format!(" in {}", dir.display()));
        format!("cannot run {:?}{}: {error}", words[0], place.unwrap_or_default())
    })?;
    let pid = child.id();
    // Nobody has waited for the child, so the number is still its own.
    let pidfd = cgroup::open(pid).map_err(|error| format!("pidfd_open: {error}"));
    let outputs: io::Result<Vec<Output>> =
        [stdout.0, stderr.0].into_iter().map(Output::new).collect();
    match (pidfd, outputs) {
        (Ok(pidfd), Ok(outputs)) => Ok(Spawned { pid, pidfd, outputs }),
        (Err(why), _) => Err(abandon(child, why)),
        (_, Err(error)) => Err(abandon(child, format!("its output: {error}"))),
    }
}

/// Ends a child that cannot be watched.
fn abandon(mut child: std::process::Child, why: String) -> String {
    let _ = child.kill();
    let _ = child.wait();
    why
}

/// In the child, before exec. Must stay async-signal-safe.
fn prepare(entrance: &File, readers: [RawFd; 2], account: Option<&Account>) -> io::Result<()> {
    fn check(result: libc::c_int) -> io::Result<()> {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
    // The server keeps the other ends of its output open, so that output without a daemon to read
    // it is no error. A server that fails to write its log may give up the request or itself,
    // and close connections that the other node is about to carry on (invariant 8).
    for reader in readers {
        // SAFETY: fcntl takes integers here.
        check(unsafe { libc::fcntl(reader, libc::F_SETFD, 0) })?;
    }
    // Before anything of the server runs, so that all of it is in there.
    // SAFETY: the descriptor is open, and one byte is read from the string.
    let entered = unsafe { libc::write(entrance.as_raw_fd(), c"0".as_ptr().cast(), 1) };
    check(entered as libc::c_int)?;
    // SAFETY: setsid has no arguments.
    check(unsafe { libc::setsid() })?;
    // The daemon runs with real-time priority, and may block signals; its servers do not inherit
    // either.
    // SAFETY: both structures are valid for any bytes, live on this stack, and are only read.
    unsafe {
        let param: libc::sched_param = std::mem::zeroed();
        check(libc::sched_setscheduler(0, libc::SCHED_OTHER, &param))?;
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        check(libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()))?;
    }
    if let Some(account) = account {
        let (uid, gid) = (account.user.uid.as_raw(), account.user.gid.as_raw());
        // SAFETY: the pointer and length are those of a vector that outlives the call; the
        // groups must go before the privilege to change them does.
        unsafe {
            check(libc::setgroups(account.groups.len(), account.groups.as_ptr().cast()))?;
            check(libc::setgid(gid))?;
            check(libc::setuid(uid))?;
        }
    }
    Ok(())
}

/// The user that a server runs as.
struct Account {
    user: User,
    groups: Vec<Gid>,
}

impl Account {
    fn look_up(name: &str) -> Result<Account, String> {
        let unknown = || format!("there is no user {name:?}");
        let user = User::from_name(name).map_err(|error| format!("user {name:?}: {error}"))?;
        let user = user.ok_or_else(unknown)?;
        let text = CString::new(name).map_err(|_| unknown())?;
        let groups = getgrouplist(&text, user.gid);
        let groups = groups.map_err(|error| format!("the groups of {name:?}: {error}"))?;
        Ok(Account { user, groups })
    }
}

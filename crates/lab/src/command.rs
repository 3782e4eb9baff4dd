//! Processes inside hosts, with the manners of `std::process`.
//!
//! A thread joins all namespaces of the host and spawns from there. The child is born in
//! the host (a PID namespace applies to children only, which is what is wanted) and is
//! still our own child, so std's `Child` works: exit status, pipes, kill. Running a helper
//! such as nsenter instead would put a process in between that has to pass signals and
//! statuses on.

use std::{
    ffi::OsStr,
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::process::CommandExt},
    path::Path,
    process::{self, ChildStderr, ChildStdin, ChildStdout, ExitStatus, Output, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::{
    error::{Doing, Error, Result},
    host::Host,
    init,
    sys::{self, Pidfd},
};

/// Most cgroups a host has: cgroup2, and two controllers of version 1.
const PROCS: usize = 3;

/// A command to run inside a host. Like [`std::process::Command`]; the process leads a
/// process group of its own and starts in the caller's working directory.
#[derive(Debug)]
pub struct Command {
    inner: process::Command,
    host: Host,
    /// Each `cgroup.procs` of the host during [`spawn`](Self::spawn), for the child; -1 is none.
    cgroup_procs: Arc<[AtomicI32; PROCS]>,
}

impl Command {
    /// `own_group`: the process leads a process group of its own.
    pub(crate) fn new(host: Host, program: &OsStr, own_group: bool) -> Command {
        let mut inner = process::Command::new(program);
        if let Ok(dir) = std::env::current_dir() {
            inner.current_dir(dir);
        }
        if own_group {
            inner.process_group(0);
        }
        let cgroup_procs = Arc::new([const { AtomicI32::new(-1) }; PROCS]);
        let procs = cgroup_procs.clone();
        // SAFETY: between fork and exec only write(2) is called, on descriptors that
        // `spawn` keeps open meanwhile. "0" moves the writing process into the cgroup.
        unsafe {
            inner.pre_exec(move || {
                for fd in procs.iter().map(|fd| fd.load(SeqCst)).filter(|fd| *fd >= 0) {
                    if libc::write(fd, c"0".as_ptr().cast(), 1) != 1 {
                        return Err(io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        Command { inner, host, cgroup_procs }
    }

    /// Adds an argument.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.inner.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args(&mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        self.inner.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.inner.env(name, value);
        self
    }

    /// Sets the working directory.
    pub fn current_dir(&mut self, dir: impl AsRef<Path>) -> &mut Self {
        self.inner.current_dir(dir);
        self
    }

    /// Sets standard input.
    pub fn stdin(&mut self, io: impl Into<Stdio>) -> &mut Self {
        self.inner.stdin(io);
        self
    }

    /// Sets standard output.
    pub fn stdout(&mut self, io: impl Into<Stdio>) -> &mut Self {
        self.inner.stdout(io);
        self
    }

    /// Sets standard error.
    pub fn stderr(&mut self, io: impl Into<Stdio>) -> &mut Self {
        self.inner.stderr(io);
        self
    }

    /// The std command underneath, for anything else (user, resource limits, …).
    pub fn as_std_mut(&mut self) -> &mut process::Command {
        &mut self.inner
    }

    /// Starts the process.
    ///
    /// # Errors
    /// [`Error::HostDown`], [`Error::HostHung`], or the program cannot be run.
    pub fn spawn(&mut self) -> Result<Child> {
        let host = self.host.running()?;
        let inner = &mut self.inner;
        let program = inner.get_program().to_string_lossy().into_owned();
        // Held until the child is on the host's list: a host that hangs or dies either does
        // so before, and refuses, or afterwards, and takes this child with it.
        let mut children = host.children();
        children.accept(&host.name)?;
        let procs = host.procs(); // kept from changing by the lock above
        assert!(procs.len() <= PROCS);
        for (n, slot) in self.cgroup_procs.iter().enumerate() {
            slot.store(procs.get(n).map_or(-1, |fd| fd.as_raw_fd()), SeqCst);
        }
        let (child, pidfd) = sys::on_thread(|| {
            host.init
                .pidfd
                .enter(init::EVERYTHING)
                .map_err(|_| Error::HostDown(host.name.clone()))?;
            let mut child =
                inner.spawn().doing(|| format!("run {program} in host {}", host.name))?;
            match Pidfd::open(child.id()) {
                Ok(pidfd) => Ok((child, pidfd)),
                Err(e) => {
                    let _ = child.kill(); // without a descriptor it could not be managed
                    let _ = child.wait();
                    Err(e).doing(|| format!("open the process of {program}"))
                }
            }
        })?;
        let child = Child::new(child, pidfd);
        children.add(child.process.clone());
        Ok(child)
    }

    /// Runs the process to its end; standard streams are inherited unless set.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn status(&mut self) -> Result<ExitStatus> {
        self.spawn()?.wait()
    }

    /// Runs the process to its end, with empty standard input, and collects what it prints.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn), or reading its pipes failed.
    pub fn output(&mut self) -> Result<Output> {
        self.inner.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.spawn()?.wait_with_output()
    }
}

/// The part of a child that its host also knows, to reap it when the host dies.
#[derive(Debug)]
pub(crate) struct Process {
    child: Mutex<process::Child>,
    pub(crate) pidfd: Pidfd,
    pub(crate) pid: u32,
}

impl Process {
    fn child(&self) -> MutexGuard<'_, process::Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        self.child().try_wait()
    }

    /// `None` if `timeout` passes first. The lock is not held while waiting, so the host
    /// and the owner can both wait.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = self.try_wait()? {
            return Ok(Some(status));
        }
        if self.pidfd.ended(timeout)? { self.child().wait().map(Some) } else { Ok(None) }
    }
}

/// A process inside a host. Dropping it lets the process run on until the host dies.
#[derive(Debug)]
pub struct Child {
    pub(crate) process: Arc<Process>,
    /// The writing end of its standard input, if piped.
    pub stdin: Option<ChildStdin>,
    /// The reading end of its standard output, if piped.
    pub stdout: Option<ChildStdout>,
    /// The reading end of its standard error, if piped.
    pub stderr: Option<ChildStderr>,
}

impl Child {
    fn new(mut child: process::Child, pidfd: Pidfd) -> Child {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pid = child.id();
        let process = Arc::new(Process { child: Mutex::new(child), pidfd, pid });
        Child { process, stdin, stdout, stderr }
    }

    /// Its process id as seen from outside the host.
    pub fn id(&self) -> u32 {
        self.process.pid
    }

    /// Sends a signal; a process that has ended is not an error.
    ///
    /// # Errors
    /// The kernel refuses the signal.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.process.pidfd.signal(signal).doing(|| format!("send signal {signal}"))
    }

    /// Sends SIGKILL.
    ///
    /// # Errors
    /// As [`signal`](Self::signal).
    pub fn kill(&self) -> Result<()> {
        self.signal(libc::SIGKILL)
    }

    /// The exit status, if it has ended.
    ///
    /// # Errors
    /// The kernel refuses to say.
    pub fn try_wait(&self) -> Result<Option<ExitStatus>> {
        self.process.try_wait().doing(|| self.waiting())
    }

    /// Closes its standard input and waits until it ends.
    ///
    /// # Errors
    /// The kernel refuses to say.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        drop(self.stdin.take());
        let status = self.process.wait(None).doing(|| self.waiting())?;
        Ok(status.expect("an endless wait ends with a status"))
    }

    /// Like [`wait`](Self::wait), but gives up with `None` after `timeout`. Standard input
    /// stays open.
    ///
    /// # Errors
    /// The kernel refuses to say.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<ExitStatus>> {
        self.process.wait(Some(timeout)).doing(|| self.waiting())
    }

    /// Collects what it prints into pipes until it ends.
    ///
    /// # Errors
    /// Reading a pipe failed.
    pub fn wait_with_output(mut self) -> Result<Output> {
        drop(self.stdin.take());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let (out, err) = (self.stdout.take(), self.stderr.take());
        // Both at once, or a process that fills one pipe while we read the other is stuck.
        let read = std::thread::scope(|s| {
            let other = s.spawn(|| err.map_or(Ok(0), |mut p| p.read_to_end(&mut stderr)));
            let first = out.map_or(Ok(0), |mut p| p.read_to_end(&mut stdout));
            first.and(other.join().expect("reading does not panic"))
        });
        read.doing(|| format!("read what process {} prints", self.id()))?;
        Ok(Output { status: self.wait()?, stdout, stderr })
    }

    /// Writes all of `input` to its standard input and closes that.
    ///
    /// # Errors
    /// Standard input is not a pipe, or the process does not read it.
    pub fn feed(&mut self, input: &[u8]) -> Result<()> {
        let pipe = self.stdin.take().ok_or(io::ErrorKind::BrokenPipe.into());
        pipe.and_then(|mut p| p.write_all(input))
            .doing(|| format!("write to the standard input of process {}", self.id()))
    }

    fn waiting(&self) -> String {
        format!("wait for process {}", self.id())
    }
}

//! The processes of one server: whatever it forks, under whatever session or parent.
//!
//! Sessions and process groups hold only those that stay in them, and a process number names nobody
//! for long. A process leaves its cgroup only if somebody with the right to moves it, so a cgroup
//! that is made for one start of one server, with a name that no other has, is that server. The
//! kernel tells when the last of it ends, and ends all of it at once, forks under way included.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Status;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// The hierarchy, and this daemon's place in it.
pub(super) struct Tree {
    /// Where the hierarchy's root can be reached as long as this lives.
    root: PathBuf,
    _root: File,
    /// This process's own cgroup: a path from the root, beginning with `/`.
    own: String,
}

impl Tree {
    pub fn open() -> io::Result<Tree> {
        let file = datapath::cgroup2_root()?;
        // A mount that appears nowhere has a path through its descriptor.
        let root = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let own = of_process(std::process::id()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "this process has no place in it")
        })?;
        Ok(Tree { root, _root: file, own })
    }

    /// The path, from the root, of a cgroup below the daemon's own.
    pub fn below_own(&self, name: &str) -> String {
        format!("{}/{name}", self.own.trim_end_matches('/'))
    }

    pub fn create(&self, path: &str) -> io::Result<Cgroup> {
        fs::create_dir(self.directory(path))?;
        self.at(path)
    }

    /// `None` if there is no such cgroup.
    pub fn find(&self, path: &str) -> io::Result<Option<Cgroup>> {
        match self.at(path) {
            Ok(cgroup) => Ok(Some(cgroup)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn at(&self, path: &str) -> io::Result<Cgroup> {
        let directory = self.directory(path);
        let events = File::open(directory.join("cgroup.events"))?;
        Ok(Cgroup { directory, path: path.to_owned(), events })
    }

    fn directory(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// One start of one server. It must not outlive its [`Tree`].
pub(super) struct Cgroup {
    directory: PathBuf,
    path: String,
    events: File,
}

impl Cgroup {
    /// A process that writes "0" here becomes a member.
    pub fn entrance(&self) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.directory.join("cgroup.procs"))
    }

    /// Whether a process lives in it or below it. [`Cgroup::events`] wakes when this changes after
    /// it was asked.
    pub fn is_populated(&self) -> io::Result<bool> {
        let mut text = [0; 256];
        let length = self.events.read_at(&mut text, 0)?;
        Ok(String::from_utf8_lossy(&text[..length]).lines().any(|line| line == "populated 1"))
    }

    /// For poll(2): POLLPRI.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// The processes in it and below it, as this process numbers them.
    pub fn processes(&self) -> Vec<u32> {
        let mut found = Vec::new();
        walk(&self.directory, &mut |directory| {
            let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            // 0: in another process-number namespace.
            let pids = text.lines().filter_map(|line| line.parse::<u32>().ok());
            found.extend(pids.filter(|&pid| pid != 0));
        });
        found
    }

    /// Sends a signal to every process, those that are forked meanwhile included.
    pub fn signal(&self, signal: i32) {
        let mut signalled = Vec::new();
        loop {
            let new = self.processes().into_iter().filter(|pid| !signalled.contains(pid));
            let new: Vec<u32> = new.collect();
            if new.is_empty() {
                return;
            }
            new.iter().for_each(|&pid| self.signal_one(pid, signal));
            signalled.extend(new);
        }
    }

    fn signal_one(&self, pid: u32, signal: i32) {
        let Ok(pidfd) = open(pid) else { return };
        // The pidfd pins the process: if the number means a member now, so does the pidfd, or the
        // process that it means has ended.
        if self.has(pid) {
            // SAFETY: pidfd_send_signal reads no memory when its third argument is null; the file
            // descriptor is open for as long as `pidfd` lives.
            unsafe {
                let no_info = std::ptr::null::<libc::siginfo_t>();
                libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, no_info, 0);
            }
        }
    }

    fn has(&self, pid: u32) -> bool {
        let place = of_process(pid).unwrap_or_default();
        place.strip_prefix(&self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Ends every process, without asking.
    pub fn kill(&self) -> io::Result<()> {
        fs::write(self.directory.join("cgroup.kill"), "1")
    }

    /// Reaps those of its dead that have become this process's children, but not `other`, which
    /// somebody waits for. Says how the last of them ended, if there is one.
    pub fn reap(&self, other: Option<u32>) -> Option<Status> {
        let own = std::process::id();
        let mut last = None;
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let fell_to_us = |pid: &u32| Some(*pid) != other && zombie_of(*pid) == Some(own);
            if let Some(pid) = pid.filter(fell_to_us).filter(|&pid| self.has(pid)) {
                let pid = Pid::from_raw(pid as i32);
                let ended = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
                last = ended.ok().and_then(status).or(last);
            }
        }
        last
    }

    /// Removes it and those that the server made below it. Nothing may live there.
    pub fn remove(&self) -> io::Result<()> {
        let mut result = Ok(());
        walk(&self.directory, &mut |directory| match fs::remove_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => result = Err(error),
            _ => {}
        });
        result
    }
}

/// Every cgroup below `directory`, deepest first, and then itself.
fn walk(directory: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), visit);
        }
    }
    visit(directory);
}

/// The cgroup of a process or of its remains: a path from the root.
fn of_process(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let place = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(place.strip_suffix(" (deleted)").unwrap_or(place).to_owned())
}

/// The parent of a process that is a zombie (proc_pid_stat(5)); `None` if it is none.
fn zombie_of(pid: u32) -> Option<u32> {
    let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let line = String::from_utf8_lossy(&line);
    // The name stands in parentheses and may contain any of them.
    let (_, fields) = line.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace();
    (fields.next()? == "Z").then(|| fields.next()?.parse().ok())?
}

/// How a process ended; `None` if it has not.
pub(super) fn status(waited: WaitStatus) -> Option<Status> {
    match waited {
        WaitStatus::Exited(_, code) => Some(Status::Code(code)),
        WaitStatus::Signaled(_, signal, _) => Some(Status::Signal(signal as i32)),
        _ => None,
    }
}

/// A file descriptor that stands for the process and becomes readable at its end.
pub(super) fn open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, close-on-exec, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_are_signalled_and_all_of_them_killed() {
        let tree = Tree::open().expect("cgroups need root (make test)");
        let name = format!("steadfast-test-{}", std::process::id());
        let cgroup = tree.create(&tree.below_own(&name)).unwrap();
        assert!(!cgroup.is_populated().unwrap());
        let sleep = || std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (mut member, mut stranger) = (sleep(), sleep());
        fs::write(cgroup.directory.join("cgroup.procs"), member.id().to_string()).unwrap();
        assert!(cgroup.is_populated().unwrap());
        assert_eq!(cgroup.processes(), [member.id()]);

        cgroup.signal_one(stranger.id(), libc::SIGKILL);
        cgroup.signal_one(member.id(), libc::SIGSTOP);
        cgroup.kill().unwrap();
        assert_eq!(status_of(&mut member), Some(Status::Signal(libc::SIGKILL)));
        assert_eq!(stranger.try_wait().unwrap(), None, "a stranger was signalled");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        assert!(!cgroup.is_populated().unwrap());
        fs::create_dir(cgroup.directory.join("inner")).unwrap();
        cgroup.remove().unwrap();
        assert!(tree.find(&tree.below_own(&name)).unwrap().is_none());
    }

    fn status_of(child: &mut std::process::Child) -> Option<Status> {
        let pid = Pid::from_raw(child.id() as i32);
        status(waitid(Id::Pid(pid), WaitPidFlag::WEXITED).unwrap())
    }
}

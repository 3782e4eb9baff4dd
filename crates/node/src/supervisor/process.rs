//! Processes by number, told apart from later ones of the same number.
//!
//! A process number alone names nobody for long. [`Stat`] adds the start time; [`signal`] holds a
//! pidfd while it looks again, so what it signals is what it looked at.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The line of /proc/PID/stat, as far as it matters here (proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    pub pid: u32,
    pub state: char,
    pub parent: u32,
    pub group: u32,
    pub session: u32,
    /// Clock ticks since boot.
    pub started: u64,
}

impl Stat {
    /// The process with this number now; `None` if there is none.
    pub fn of(pid: u32) -> Option<Stat> {
        Stat::parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    pub fn parse(line: &[u8]) -> Option<Stat> {
        let line = String::from_utf8_lossy(line);
        // The name stands in parentheses and may contain any of them.
        let (pid, rest) = line.split_once(" (")?;
        let (_, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Stat {
            pid: pid.trim().parse().ok()?,
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// The same process at another time; it may have changed its session, group and parent.
    pub fn is_same_process(&self, other: &Stat) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }
}

/// Every process of the session that `leader` founded, and of its group; zombies and the leader
/// included.
pub(super) fn members(leader: u32) -> Vec<Stat> {
    let mut members = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(stat) = pid.and_then(Stat::of)
            && (stat.session == leader || stat.group == leader)
        {
            members.push(stat);
        }
    }
    members
}

/// Sends a signal to this very process; one that is gone needs none.
pub(super) fn signal(process: &Stat, signal: i32) {
    let Ok(pidfd) = open(process.pid) else { return };
    // The pidfd pins the process: if the number still means the one we saw, so does the pidfd.
    if Stat::of(process.pid).is_some_and(|now| now.is_same_process(process)) {
        // SAFETY: pidfd_send_signal reads no memory when its third argument is null; the file
        // descriptor is open for as long as `pidfd` lives.
        unsafe {
            let no_info = std::ptr::null::<libc::siginfo_t>();
            libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, no_info, 0);
        }
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
    fn a_stat_line_is_read_past_any_name() {
        let line = b"42 (a) b (c) S 1 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2\n";
        let stat = Stat::parse(line).unwrap();
        let expected =
            Stat { pid: 42, state: 'S', parent: 1, group: 42, session: 41, started: 987_654 };
        assert_eq!(stat, expected);
        for end in 0..line.len() - 12 {
            // Never a panic; a shortened number at the end is all that may pass.
            let _ = Stat::parse(&line[..end]);
        }
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn a_later_process_of_the_same_number_is_not_signalled() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let stat = Stat::of(child.id()).unwrap();
        signal(&Stat { started: stat.started + 1, ..stat }, libc::SIGKILL);
        assert_eq!(child.try_wait().unwrap(), None);
        signal(&stat, libc::SIGKILL);
        assert!(!child.wait().unwrap().success());
    }
}

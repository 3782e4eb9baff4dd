//! What a daemon's successor must know about the servers it had started.
//!
//! One file per service, `servers/NAME` in the state directory, made for each start and removed
//! when the server's whole session is gone. First line: the boot and the process-number
//! namespace in which the second line means anything, and a token that the server's environment
//! contains too. Second line: /proc/self/stat, written by the child itself.
//!
//! Whether a process found under an old number is the server is decided so:
//! - The leader lives and has the recorded start time: it is, and so is its session. While any of
//!   the session lives, the kernel gives its number to nobody else.
//! - Somebody else has the number: the session had died out before. Nothing to end.
//! - Nobody has it, but there are processes of that session: the leader died. They are ours if
//!   they carry the token; otherwise the number was used twice, and they are left alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use super::SupervisorError;
use super::process::{self, Stat};

/// The environment variable that marks a server and what it starts.
pub(super) const TOKEN: &str = "STEADFAST_SERVER";

/// How long killed processes may take to be gone.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The directory of records, locked against a second daemon.
pub(super) struct Records {
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Records {
    pub fn open(state_dir: &Path) -> Result<Records, SupervisorError> {
        let dir = state_dir.join("servers");
        let unusable = |source| SupervisorError::StateDir { path: dir.clone(), source };
        fs::create_dir_all(&dir).map_err(unusable)?;
        let mut options = OpenOptions::new();
        let lock = options.write(true).create(true).truncate(false).mode(0o600);
        // A service cannot have this name: names do not begin with a dot.
        let lock = lock.open(dir.join(".lock")).map_err(unusable)?;
        match Flock::lock(lock, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Records { dir, _lock: lock }),
            Err((_, nix::Error::EWOULDBLOCK)) => Err(SupervisorError::InUse(state_dir.to_owned())),
            Err((_, errno)) => Err(unusable(errno.into())),
        }
    }

    /// Begins the record of a server about to be started.
    pub fn create(&self, service: &str, token: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(self.dir.join(service))?;
        writeln!(file, "{} {token}", world()?)?;
        Ok(file)
    }

    /// Removes the record of a server that is gone.
    pub fn remove(&self, service: &str) {
        if let Err(error) = fs::remove_file(self.dir.join(service))
            && error.kind() != io::ErrorKind::NotFound
        {
            // Harmless: its process is gone, and a successor will see that.
            tracing::warn!("{service}: cannot remove the record of its server: {error}");
        }
    }

    /// Ends the servers that a dead daemon left behind and returns once they are gone.
    pub fn end_orphans(&self) -> Result<(), SupervisorError> {
        let unusable = |source| SupervisorError::StateDir { path: self.dir.clone(), source };
        let world = world().map_err(unusable)?;
        for entry in fs::read_dir(&self.dir).map_err(unusable)? {
            let entry = entry.map_err(unusable)?;
            let service = entry.file_name().to_string_lossy().into_owned();
            if service.starts_with('.') {
                continue;
            }
            let text = fs::read(entry.path()).map_err(unusable)?;
            if let Some(record) = Record::parse(&text, &world) {
                end(&service, &record)?;
            }
            self.remove(&service);
        }
        Ok(())
    }
}

/// What one file says.
struct Record {
    token: String,
    leader: Stat,
}

impl Record {
    /// `None` if the record is of another boot, or its server was never executed.
    fn parse(text: &[u8], world: &str) -> Option<Record> {
        let end = text.iter().position(|&byte| byte == b'\n')?;
        let header = str::from_utf8(&text[..end]).ok()?;
        let (theirs, token) = header.rsplit_once(' ')?;
        let leader = Stat::parse(&text[end + 1..])?;
        let sound = theirs == world && !token.is_empty() && leader.session == leader.pid;
        sound.then(|| Record { token: token.to_owned(), leader })
    }

    /// The processes that are certainly the server's and still run.
    fn processes(&self, service: &str) -> Vec<Stat> {
        let leader = Stat::of(self.leader.pid);
        if leader.is_some_and(|now| !now.is_same_process(&self.leader)) {
            return Vec::new();
        }
        let mut members = process::members(self.leader.pid);
        members.retain(|member| !member.is_zombie());
        if leader.is_none() {
            members.retain(|member| {
                let ours = carries(member.pid, &self.token);
                if !ours {
                    let (pid, session) = (member.pid, member.session);
                    tracing::warn!(
                        "{service}: process {pid} has the session {session} of a dead daemon's \
                         server but not its mark; left alone"
                    );
                }
                ours
            });
        }
        members
    }
}

fn end(service: &str, record: &Record) -> Result<(), SupervisorError> {
    let deadline = Instant::now() + END_LIMIT;
    let mut told = false;
    loop {
        // Again each time: a process may have forked while it was being killed.
        let processes = record.processes(service);
        if processes.is_empty() {
            return Ok(());
        }
        let left: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        if !told {
            tracing::warn!("{service}: ending {left:?}, left behind by a dead daemon");
            told = true;
        }
        if Instant::now() > deadline {
            return Err(SupervisorError::Orphans { service: service.to_owned(), left });
        }
        for process in &processes {
            process::signal(process, libc::SIGKILL);
        }
        // They are not our children: there is nothing to wait on but their numbers.
        thread::sleep(Duration::from_millis(2));
    }
}

/// Whether the process was started with the token in its environment.
fn carries(pid: u32, token: &str) -> bool {
    let mark = format!("{TOKEN}={token}");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
}

/// This boot and this process-number namespace.
fn world() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/pid")?;
    Ok(format!("{} {}", boot.trim(), namespace.display()))
}

//! What a daemon's successor must know about the servers it had started.
//!
//! One file per service, `servers/NAME` in the state directory, made before each start and removed
//! when the last process is gone. First line: the boot in which the second line means anything.
//! Second line: the path of the server's cgroup, whose name no other start has had. So a cgroup
//! that is there under this path is the server, and nobody else.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use super::SupervisorError;
use super::cgroup::{Cgroup, Tree};

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

    /// Notes the cgroup of a server that is about to be started.
    pub fn create(&self, service: &str, cgroup: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(self.dir.join(service))?;
        file.write_all(format!("{}\n{cgroup}\n", boot()?).as_bytes())
    }

    /// Removes the record of a server that is gone.
    pub fn remove(&self, service: &str) {
        if let Err(error) = fs::remove_file(self.dir.join(service))
            && error.kind() != io::ErrorKind::NotFound
        {
            // Harmless: its cgroup is gone, and a successor will see that.
            tracing::warn!("{service}: cannot remove the record of its server: {error}");
        }
    }

    /// Ends the servers that a dead daemon left behind and returns once they are gone.
    pub fn end_orphans(&self, tree: &Tree) -> Result<(), SupervisorError> {
        let unusable = |source| SupervisorError::StateDir { path: self.dir.clone(), source };
        let boot = boot().map_err(unusable)?;
        for entry in fs::read_dir(&self.dir).map_err(unusable)? {
            let entry = entry.map_err(unusable)?;
            let service = entry.file_name().to_string_lossy().into_owned();
            if service.starts_with('.') {
                continue;
            }
            let text = fs::read(entry.path()).map_err(unusable)?;
            if let Some(path) = parse(&text, &boot)
                && let Some(cgroup) = tree.find(path).map_err(SupervisorError::Cgroup)?
            {
                end(&service, &cgroup)?;
            }
            self.remove(&service);
        }
        Ok(())
    }
}

/// The cgroup's path; `None` if the record is of another boot, or none of ours.
fn parse<'a>(text: &'a [u8], boot: &str) -> Option<&'a str> {
    let (theirs, path) = str::from_utf8(text).ok()?.strip_suffix('\n')?.split_once('\n')?;
    let name = path.rsplit_once('/')?.1;
    let sound = theirs == boot && name.starts_with(PREFIX) && !path.contains("..");
    sound.then_some(path)
}

/// What the names of servers' cgroups begin with.
pub(super) const PREFIX: &str = "steadfast-";

fn end(service: &str, cgroup: &Cgroup) -> Result<(), SupervisorError> {
    let unusable = SupervisorError::Cgroup;
    if cgroup.is_populated().map_err(unusable)? {
        tracing::warn!("{service}: ending {:?}, left behind by a dead daemon", cgroup.processes());
        cgroup.kill().map_err(unusable)?;
    }
    let deadline = Instant::now() + END_LIMIT;
    while cgroup.is_populated().map_err(unusable)? {
        if Instant::now() > deadline {
            let left = cgroup.processes();
            return Err(SupervisorError::Orphans { service: service.to_owned(), left });
        }
        // They are not our children, and the end of the last is near.
        thread::sleep(Duration::from_millis(2));
    }
    cgroup.remove().map_err(unusable)
}

/// This boot of the host.
fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_of_this_boot_name_a_cgroup() {
        let path = "/system.slice/steadfast.service/steadfast-www-12";
        let check = |text: &str, expected| assert_eq!(parse(text.as_bytes(), "boot"), expected);
        check(&format!("boot\n{path}\n"), Some(path));
        check(&format!("other\n{path}\n"), None);
        check(&format!("boot\n{path}"), None);
        check("boot\n/system.slice\n", None);
        check("boot\n/../steadfast-x\n", None);
        check("boot\n", None);
        check("", None);
        assert_eq!(parse(b"boot\n/\xff/steadfast-x\n", "boot"), None);
    }
}

//! The lab's directory: where it is, who owns it, and what is left of dead labs.
//!
//! A lab owns `<base>/<name>/` for as long as it holds a lock on the file `lock` in it.
//! The kernel drops the lock when the keeper dies, however it dies, so a directory whose
//! lock can be taken belongs to nobody. A pid file could not tell: pids are reused.
//! Making and sweeping happen under a lock on the base, so that nobody sweeps a directory
//! that is just being made.

use std::{
    env,
    fs::{self, File},
    io,
    os::fd::AsFd,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};

use crate::{
    error::{Doing, Error, Result},
    sys, throttle,
    topology::check_name,
};

/// What the names of a lab's cgroups begin with; the host's name follows. cgroups have one
/// name space for the whole machine, while labs of the same name can live below two base
/// directories: the directory's own identity tells them apart.
pub(crate) fn cgroup_prefix(dir: &Path) -> io::Result<String> {
    let meta = fs::metadata(dir)?;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("steadfast-lab.{name}.{:x}-{:x}.", meta.dev(), meta.ino()))
}

/// Where labs keep their directories: `$STEADFAST_LAB_DIR`, else `$XDG_RUNTIME_DIR` if it
/// is root's own, else `/run`, and in it `steadfast-lab`.
pub fn base_dir() -> PathBuf {
    if let Some(dir) = env::var_os("STEADFAST_LAB_DIR") {
        return dir.into();
    }
    // Under `sudo -E` the variable names the user's directory; labs are root's.
    let own = |p: &PathBuf| fs::metadata(p).is_ok_and(|m| m.uid() == 0 && m.is_dir());
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(own);
    runtime.unwrap_or_else(|| "/run".into()).join("steadfast-lab")
}

/// A lab's directory. Removed when dropped.
#[derive(Debug)]
pub(crate) struct RunDir {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    _lock: Flock<File>,
}

impl RunDir {
    /// Makes a directory for a new lab; without a name, `lab1`, `lab2`, ….
    pub(crate) fn create(name: Option<&str>) -> Result<RunDir> {
        if let Some(name) = name {
            check_name("lab", name, 32)?;
        }
        let base = base_dir();
        let _guard = lock_base(&base)?;
        let names = match name {
            Some(name) => vec![name.to_owned()],
            None => (1..10_000).map(|n| format!("lab{n}")).collect(),
        };
        for candidate in names {
            let path = base.join(&candidate);
            sweep_one(&path)?;
            if !path.exists() {
                fs::DirBuilder::new()
                    .mode(0o700)
                    .create(&path)
                    .doing(|| format!("create {}", path.display()))?;
                let lock = take_lock(&path)?.expect("nobody else makes directories here now");
                return Ok(RunDir { name: candidate, path, _lock: lock });
            }
        }
        Err(Error::NameTaken(name.unwrap_or("lab1 to lab9999").to_owned()))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = remove(&self.path); // what cannot be removed now is swept later
    }
}

/// Removes what dead labs left behind, and names the living, sorted.
pub fn sweep() -> Result<Vec<String>> {
    let base = base_dir();
    if !base.exists() {
        return Ok(Vec::new());
    }
    let _guard = lock_base(&base)?;
    let doing = || format!("list {}", base.display());
    let mut living = Vec::new();
    for entry in fs::read_dir(&base).doing(doing)? {
        let path = entry.doing(doing)?.path();
        if path.is_dir() && !sweep_one(&path)? {
            living.extend(path.file_name().map(|n| n.to_string_lossy().into_owned()));
        }
    }
    living.sort();
    Ok(living)
}

/// Removes a directory unless a living lab owns it. `true` if it is not there afterwards.
fn sweep_one(path: &Path) -> Result<bool> {
    if !path.exists() {
        return Ok(true);
    }
    let Some(_lock) = take_lock(path)? else { return Ok(false) };
    remove(path).doing(|| format!("remove {}, left by a dead lab", path.display()))?;
    Ok(true)
}

/// The directory's identity names the cgroups, so it goes last.
fn remove(path: &Path) -> io::Result<()> {
    remove_cgroups(path)?;
    fs::remove_dir_all(path)
}

/// Removes the cgroups of a lab whose processes have ended or are about to.
fn remove_cgroups(dir: &Path) -> io::Result<()> {
    let prefix = cgroup_prefix(dir)?;
    for place in throttle::places(dir)?.into_iter().chain([sys::cgroup_root()?]) {
        let flags = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_CLOEXEC;
        let mode = nix::sys::stat::Mode::empty();
        let mut listing = nix::dir::Dir::openat(place.as_fd(), ".", flags, mode)?;
        let mut names = Vec::new();
        for entry in listing.iter() {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names
            .iter()
            .filter(|n| n.starts_with(&prefix))
            .try_for_each(|n| sys::remove_cgroup(place.as_fd(), n))?;
    }
    Ok(())
}

fn lock_base(base: &Path) -> Result<Flock<File>> {
    let doing = || format!("lock {}", base.display());
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(base)
        .doing(|| format!("create {}", base.display()))?;
    let file = File::create(base.join(".lock")).doing(doing)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| e).doing(doing)
}

/// `None` if somebody holds it.
fn take_lock(path: &Path) -> Result<Option<Flock<File>>> {
    let doing = || format!("lock {}", path.display());
    let file = File::create(path.join("lock")).doing(doing)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::Error::EWOULDBLOCK)) => Ok(None),
        Err((_, e)) => Err(e).doing(doing),
    }
}

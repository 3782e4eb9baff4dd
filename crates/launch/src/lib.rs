//! Starts programs under the in-process runtime, and keeps what it records of them.
//!
//! The runtime's image is part of this library. It is put into a file that has no name, and executed
//! from there: so it needs no installation, is there in a program's `chroot`, and cannot be another
//! version than the one that this was built with.

mod folder;
mod trace;
mod watch;

use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nix::fcntl::AtFlags;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::personality::{self, Persona};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::{AccessFlags, access, execveat};
use runtime::config::{Config, MARK, NAME, Recorder, Way};
use runtime::record::GROUP_LEN;

use folder::{About, Folder};
pub use trace::trace;

/// Status of whoever cannot find the program to start.
pub const NOT_FOUND: u8 = runtime::say::NOT_FOUND as u8;

/// The image.
static RUNTIME: &[u8] = include_bytes!(env!("STEADFAST_RUNTIME"));

/// There is no such program.
#[derive(Debug, thiserror::Error)]
#[error("there is no program {0:?} in PATH")]
pub struct NotFound(OsString);

/// The descriptor that the runtime has of its own image is high, where a program does not expect its
/// own, and low enough for tables of descriptors to stay small.
const IMAGE_FD: i32 = 1000;

/// Becomes `command`, under the runtime, which makes its system calls as they are.
///
/// # Errors
/// It cannot be started: there is no such program, or this kernel cannot do what the runtime needs.
/// What only the runtime finds out it says on standard error, and ends with status 127.
pub fn passthrough(command: &[OsString]) -> anyhow::Result<Infallible> {
    let path = find(first(command)?)?;
    execute(&path, command, env::vars_os(), None)
}

/// Becomes `command`, under the runtime, which records what it does in `folder`.
///
/// # Errors
/// As of [`passthrough`]; the folder cannot be made, or has something in it.
pub fn record(folder: &Path, command: &[OsString]) -> anyhow::Result<Infallible> {
    let path = find(first(command)?)?;
    let records = Folder::at(folder).create(&path, command)?;
    let fd = keep(&records)?;
    let group = group()?;
    let recorder = Recorder::new(fd.as_raw_fd(), group.as_raw_fd(), Way::Record);
    execute(&path, command, env::vars_os(), Some(recorder))
}

/// Has the program that was recorded in `folder` do what it did, from the beginning to the end. The status that
/// says what has come of it: 0, if it did the same.
///
/// # Errors
/// There is no recording, or it cannot be replayed on this machine. What only the runtime finds out (it is
/// damaged, the program does something else) it says on standard error, and the status is 1.
pub fn replay(folder: &Path) -> anyhow::Result<u8> {
    let replay = Replay::of(folder)?;
    watch::watch(&replay.group, || replay.become_it(None, false))
}

/// Becomes the program that was recorded in `folder`, and has it do what it did: to the end, or until it has
/// followed so many records, where it stops (SIGSTOP). With `live` it goes on for real where the recording ends.
///
/// # Errors
/// As of [`replay`]; what the runtime finds out it ends with.
pub fn become_replay(folder: &Path, until: Option<u64>, live: bool) -> anyhow::Result<Infallible> {
    Replay::of(folder)?.become_it(until, live)
}

/// What a replay begins with.
struct Replay {
    about: About,
    records: OwnedFd,
    group: OwnedFd,
}

impl Replay {
    fn of(folder: &Path) -> anyhow::Result<Replay> {
        let (about, records) = Folder::at(folder).open()?;
        Ok(Replay { about, records: keep(&records)?, group: group()? })
    }

    fn become_it(&self, until: Option<u64>, live: bool) -> anyhow::Result<Infallible> {
        let About { folder, program, command, environment, .. } = &self.about;
        env::set_current_dir(folder)
            .with_context(|| format!("cannot go to {}, where it began", folder.display()))?;
        let way = Way::Replay { until, live };
        let recorder = Recorder::new(self.records.as_raw_fd(), self.group.as_raw_fd(), way);
        let command: Vec<OsString> = command.iter().map(OsString::from).collect();
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        execute(program, &command, environment, Some(recorder))
    }
}

fn first(command: &[OsString]) -> anyhow::Result<&OsStr> {
    command.first().map(OsString::as_os_str).context("there is no command to run")
}

fn execute(
    path: &Path,
    command: &[OsString],
    environment: impl Iterator<Item = (OsString, OsString)>,
    recorder: Option<Recorder>,
) -> anyhow::Result<Infallible> {
    let image = image()?;
    // Programs written in Rust ignore it from their start on, and what is ignored stays so.
    // SAFETY: no handler is installed.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.context("cannot reset SIGPIPE")?;
    // What addresses depend on is the same in every process from here on.
    let persona = personality::get().context("cannot read this process's personality")?;
    personality::set(persona | Persona::ADDR_NO_RANDOMIZE)
        .context("cannot have the kernel leave addresses as they are")?;
    let config = Config { image: image.as_raw_fd(), program: None, recorder };
    let mut words = vec![NAME.to_owned(), config.word().as_c_str().to_owned()];
    words.push(c_string(path.as_os_str().to_owned())?);
    words.push(MARK.to_owned());
    for word in command {
        words.push(c_string(word.clone())?);
    }
    let environment = environment.map(|(name, value)| {
        let mut variable = name;
        variable.push("=");
        variable.push(value);
        c_string(variable)
    });
    let environment = environment.collect::<anyhow::Result<Vec<_>>>()?;
    execveat(&image, c"", &words, &environment, AtFlags::AT_EMPTY_PATH)
        .context("cannot execute the runtime")
}

/// The memory that the processes of a recording share.
fn group() -> anyhow::Result<OwnedFd> {
    let file = memfd_create(c"steadfast-group", MFdFlags::MFD_CLOEXEC)
        .context("cannot make a file in memory for what processes share")?;
    nix::unistd::ftruncate(&file, GROUP_LEN as i64)
        .context("cannot make room for what processes share")?;
    keep(&file)
}

/// The runtime in a file that executed programs inherit.
fn image() -> anyhow::Result<OwnedFd> {
    let file = memfd_create(c"steadfast-runtime", MFdFlags::MFD_CLOEXEC)
        .context("cannot make a file for the runtime in memory")?;
    let mut left = RUNTIME;
    while !left.is_empty() {
        let written = nix::unistd::write(&file, left).context("cannot write the runtime")?;
        left = &left[written..];
    }
    keep(&file)
}

/// A descriptor of it that executed programs inherit.
fn keep(file: &impl AsFd) -> anyhow::Result<OwnedFd> {
    let (soft, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    let least = IMAGE_FD.min(i32::try_from(soft).unwrap_or(i32::MAX) - 1);
    ensure!(least > 2, "a process may have {soft} files open (ulimit -n): that is too few");
    // Not closed by `execve`: the program executes others.
    let fd = nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_DUPFD(least))
        .context("cannot keep a descriptor for the runtime")?;
    // SAFETY: it was made a moment ago, and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Where a shell would find this program.
fn find(program: &OsStr) -> anyhow::Result<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Ok(program.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let may_be = |file: &PathBuf| file.is_file() && access(file, AccessFlags::X_OK).is_ok();
    let found = env::split_paths(&path).map(|dir| dir.join(program)).find(may_be);
    Ok(found.ok_or_else(|| NotFound(program.to_owned()))?)
}

fn c_string(text: OsString) -> anyhow::Result<CString> {
    CString::new(text.into_vec()).context("a word of a command line cannot have a zero in it")
}

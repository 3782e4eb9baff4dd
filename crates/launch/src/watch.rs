//! Whoever has begun a replay learns from its status how it came out. That is not the status of the replay's
//! first process, which may end long before the others, or be killed where it was killed.

use std::convert::Infallible;
use std::os::fd::AsFd;

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::uio::pread;
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{ForkResult, Pid, fork};
use runtime::record::{OVER_AT, Over};

/// Status of a replay that failed.
const FAILED: u8 = runtime::record::FAILED as u8;

/// Has `replay` become a replay in a process of its own, and waits until all its processes have ended. The
/// status that says what has come of it. `group` is what they share.
///
/// # Errors
/// The processes cannot be made, or be waited for; `replay`'s, with which that process ends as well.
pub fn watch(
    group: &impl AsFd,
    replay: impl FnOnce() -> anyhow::Result<Infallible>,
) -> anyhow::Result<u8> {
    // Those whose parents have ended are waited for as well.
    prctl::set_child_subreaper(true)
        .context("cannot become the one who waits for all processes")?;
    // SAFETY: this process has one thread.
    match unsafe { fork() }.context("cannot make a process for the replay")? {
        ForkResult::Child => {
            prctl::set_pdeathsig(Signal::SIGKILL).context("cannot ask to end with the parent")?;
            match replay()? {}
        }
        ForkResult::Parent { child } => {
            let first = ends(child)?;
            let mut word = [0; 4];
            pread(group, &mut word, OVER_AT as i64).context("cannot read how it ended")?;
            Ok(match (Over::of(u32::from_ne_bytes(word)), first) {
                (Some(Over::End), _) => 0,
                // It could not begin.
                (None, WaitStatus::Exited(_, status)) if status != 0 => status as u8,
                (None, WaitStatus::Signaled(_, signal, _)) => 128 + signal as u8,
                _ => FAILED,
            })
        }
    }
}

/// Waits until there are no processes. How this one has ended.
fn ends(child: Pid) -> anyhow::Result<WaitStatus> {
    let mut first = None;
    loop {
        match wait() {
            Ok(status) if status.pid() == Some(child) => first = Some(status),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::ECHILD) => break,
            Err(errno) => bail!("cannot wait for the replay's processes: {}", errno.desc()),
        }
    }
    first.context("somebody else has waited for the replay's first process")
}

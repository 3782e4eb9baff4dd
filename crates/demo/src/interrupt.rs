//! Ctrl-C asks for an orderly end: the lab is taken down and nothing stays behind.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use anyhow::{Context, bail};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn ask(_: libc::c_int) {
    ASKED.store(true, SeqCst);
}

/// From now on SIGINT, SIGTERM and SIGHUP only ask, once; the second one ends the process, and
/// the lab's hosts with it.
pub(crate) fn listen() -> anyhow::Result<()> {
    let flags = SaFlags::SA_RESTART | SaFlags::SA_RESETHAND;
    let action = SigAction::new(SigHandler::Handler(ask), flags, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler stores an atomic and nothing else.
        unsafe { sigaction(signal, &action) }.context("cannot catch signals")?;
    }
    Ok(())
}

/// Fails once an end was asked for.
pub(crate) fn check() -> anyhow::Result<()> {
    if ASKED.load(SeqCst) {
        bail!("interrupted; the lab is taken down");
    }
    Ok(())
}

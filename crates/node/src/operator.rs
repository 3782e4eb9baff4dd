//! Commands that speak to a running daemon through the socket in its state directory.

use std::path::Path;

use crate::cli::{EventsArgs, StatusArgs};

/// Prints roles, links, services and flows.
pub fn status(state_dir: &Path, _args: &StatusArgs) -> anyhow::Result<()> {
    unavailable(state_dir)
}

/// Prints what happened, oldest first.
pub fn events(state_dir: &Path, _args: &EventsArgs) -> anyhow::Result<()> {
    unavailable(state_dir)
}

/// Makes the other node primary without waiting for a failure.
pub fn switchover(state_dir: &Path) -> anyhow::Result<()> {
    unavailable(state_dir)
}

fn unavailable(state_dir: &Path) -> anyhow::Result<()> {
    anyhow::bail!("no daemon answers in {}: this build contains none", state_dir.display())
}

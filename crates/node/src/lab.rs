//! `steadfast lab` and `steadfast demo`: hosts in network namespaces.

use crate::cli::{DemoArgs, LabCommand};

/// Builds, uses or removes the lab.
pub fn run(_command: LabCommand) -> anyhow::Result<()> {
    anyhow::bail!("this build contains no lab")
}

/// Downloads through a pair of nodes, kills the primary, and checks every byte.
pub fn demo(_args: DemoArgs) -> anyhow::Result<()> {
    anyhow::bail!("this build contains no lab to run the demo in")
}

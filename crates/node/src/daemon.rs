//! The daemon behind `steadfast node`.

use crate::config::Config;

/// Runs the node until it is told to stop.
pub fn run(config: Config) -> anyhow::Result<()> {
    let name = &config.node.name;
    anyhow::bail!("node {name:?} cannot run: this build contains no daemon")
}

//! The lab without the product: hosts, links and faults from a shell.
//!
//! `cargo run -p lab --example lab -- up`, then `exec a -- sh`, `kill a`, `down`.

use std::process::ExitCode;

use clap::Parser;
use lab::{
    Lab, Node, NodeSpec,
    cli::{self, LabArgs, Product, Up},
};

#[derive(Parser)]
struct Main {
    #[command(flatten)]
    lab: LabArgs,
}

/// Hands the configuration file as it is to every node's `$STEADFAST_BIN`.
struct AsItIs;

impl Product for AsItIs {
    fn plan(&self, up: &Up, lab: &Lab) -> anyhow::Result<Vec<NodeSpec>> {
        let config = up.config.as_deref().map(std::fs::read_to_string).transpose()?;
        let node = |host: &lab::Host| NodeSpec {
            host: host.name().to_owned(),
            config_toml: config.clone().unwrap_or_default(),
            files: Vec::new(),
        };
        Ok(lab.hosts().iter().filter(|h| h.is_node()).map(node).collect())
    }

    /// A daemon that has said something is ready.
    fn is_ready(&self, _: &Lab, node: &Node) -> bool {
        std::fs::metadata(node.log()).is_ok_and(|m| m.len() > 0)
    }
}

fn main() -> ExitCode {
    cli::run(Main::parse().lab, &AsItIs).unwrap_or_else(|e| {
        eprintln!("error: {e:#}");
        ExitCode::FAILURE
    })
}

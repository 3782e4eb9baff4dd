//! A service that answers an upload with its hash, and serves files as well.

use std::sync::Arc;

use crate::config::Scheme;
use crate::find;
use crate::pair::Service;

const SCRIPT: &str = include_str!("hashing.py");

/// The service, on port 80. One flow may have so many MiB of client bytes in the journal.
pub fn service(flow_budget_mib: u32) -> Service {
    Service {
        name: "hashing".into(),
        port: 80,
        program: Arc::new(|place| {
            let python = find::program("python3", "python3")?.display().to_string();
            let (ip, port) = (place.at.ip().to_string(), place.at.port().to_string());
            let root = place.site.root().display().to_string();
            Ok(vec![python, "-c".into(), SCRIPT.into(), ip, port, root])
        }),
        scheme: Scheme::Track,
        flow_budget_mib,
    }
}

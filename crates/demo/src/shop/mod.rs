//! A shop: an application whose replies cannot be made twice, and clients that find out whether
//! one was.
//!
//! The application (`shop.py`) runs behind gunicorn, unmodified. Sizes, contents and framing of its
//! pages are random, so are order numbers; whatever a client gets of two executions of one request
//! cannot be taken for one reply. Each reply says in its head which request it answers, which
//! instance made it, as which order and as how manieth, and what its body hashes to. Each instance
//! writes one line into a log of its own for each request that it executes.
//!
//! The clients ([`Crowd`]) use HTTP/1 as it may be used, and check each reply as it comes. When all
//! is over, what they were told is joined with the logs ([`Audit`]): a reply that no execution
//! made, and a request that was executed more often than the scheme `message` may, come to light.
//!
//! `perform` is `steadfast demo --scheme message`.

mod audit;
mod client;
mod customer;
mod reply;
mod request;
mod run;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

pub use audit::{Audit, Execution, Reign, Twice, read_logs};
pub use client::{Crowd, CrowdSpec, Dial, Failure, Notes, Receipt, dial_from};
pub use customer::Customer;
pub use reply::Trouble;
pub use request::{Kind, Request};
pub(crate) use run::{check, explain, perform};

use crate::config::Scheme;
use crate::find;
use crate::pair::Service;

const APPLICATION: &str = include_str!("shop.py");

/// The shop on port 80, as both nodes run it. Its logs are in the pair's folder.
pub fn service() -> Service {
    Service {
        name: "shop".into(),
        port: 80,
        program: Arc::new(|place| command(place.node, place.dir, place.at)),
        scheme: Scheme::Message,
        flow_budget_mib: 64,
    }
}

/// Puts the application into a folder below `dir` and returns the command line of its server.
/// Logs are written to `dir`; the names of instances begin with `node`.
///
/// # Errors
/// gunicorn is not on this machine, or the folder cannot be written.
pub fn command(node: &str, dir: &Path, at: SocketAddr) -> anyhow::Result<Vec<String>> {
    let program = find::program("gunicorn", "gunicorn")?.display().to_string();
    let folder = dir.join(format!("shop-{node}"));
    let write = || {
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("shop.py"), APPLICATION)
    };
    write().with_context(|| format!("cannot write to {}", folder.display()))?;
    let folder = folder.display().to_string();
    let at = at.to_string();
    // One worker is one instance; its connections are as many light threads (gevent). No
    // connection is closed because it is idle (seconds), no worker because it is slow.
    let options = [
        ["--worker-class", "gevent"],
        ["--workers", "1"],
        ["--worker-connections", "16384"],
        ["--backlog", "4096"],
        ["--keep-alive", "3600"],
        ["--timeout", "0"],
        ["--log-level", "warning"],
        ["--chdir", &folder],
        ["--bind", &at],
    ];
    let application = format!("shop:shop({node:?}, {:?})", dir.display().to_string());
    let words = options.as_flattened().iter().map(|&word| word.to_owned());
    Ok([program].into_iter().chain(words).chain([application]).collect())
}

//! Scenarios for end-to-end tests: they read like the story they tell, and say what must hold.
//!
//! ```no_run
//! use e2e::{How, Moment, Scenario, Server};
//! Scenario::new().server(Server::Nginx).clients(8).kill(How::Host, Moment::Middle).run();
//! ```
//!
//! A [`Scenario`] describes; [`Scenario::up`] makes a [`Stage`], a pair of nodes with everything
//! running; [`Scenario::run`] plays the usual story on it. One stage at a time: on a machine with
//! two processors, two labs would measure each other. Nothing sleeps for luck: a scenario waits
//! for what clients have received or daemons report, with a deadline. A test that fails leaves
//! captures, logs, configurations, events and both nodes' status behind, and says how to repeat
//! it.

mod batch;
pub mod machine;
mod scenario;
mod stage;
mod trace;
pub mod witness;

pub use batch::{Batch, Finished, Moment};
pub use demo::download::Client;
pub use demo::pair::{CLIENT, Service};
pub use demo::server::{Place, Server};
pub use machine::undisturbed;
pub use scenario::{How, Scenario};
pub use stage::{PATIENCE, Stage};

/// A million bytes.
pub const MB: u64 = 1_000_000;

/// Whether the whole matrix is asked for (`STEADFAST_E2E=full`), not only what `make test` has
/// time for.
pub fn full() -> bool {
    std::env::var("STEADFAST_E2E").is_ok_and(|v| v == "full")
}

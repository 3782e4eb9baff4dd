//! Deterministic simulation of a pair of nodes.
//!
//! The problem: what breaks membership protocols are histories that nobody thought of, and real
//! hosts show few of them per hour. So the real `cluster::Core` of both nodes runs here in
//! virtual time, against hosts, clocks, links and an arbiter that fail in every way the fault
//! model allows, thousands of histories per second. A history is a function of its seed: what
//! failed once fails again, with the whole story printed.
//!
//! One run: two fresh nodes; some hundred detection times of faults, with [`watch`] judging every
//! action; then peace, in which the pair must settle within a bound and stay so; then one clean
//! death of the primary's host, whose failover time is measured.
//!
//! The fault model depends on the arbiter. Without one, the pair assumes fail-stop, and so does
//! `network.rs`. With one, anything may be lost and cut. Freezes, deaths of daemons and hosts,
//! drift, and restarts happen in both.

#![forbid(unsafe_code)]

mod arbiter;
mod clock;
mod dice;
mod host;
mod mischief;
mod network;
mod run;
mod setup;
mod watch;
mod world;

pub use crate::run::{Outcome, Summary, run, run_many, story};
pub use crate::setup::{Sabotage, Setup};
pub use crate::watch::Violation;

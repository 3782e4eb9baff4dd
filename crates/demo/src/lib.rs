//! A pair of nodes under load: real servers, real clients, a failure, and what the clients
//! noticed.
//!
//! [`run()`] is `steadfast demo`. The pieces it is made of ([`pair`], [`server`], [`download`],
//! [`idle`], [`shop`], [`report`]) are public, because the end-to-end tests ask the same questions of other
//! failures, servers and networks.

pub mod clock;
pub mod config;
mod display;
pub mod download;
pub mod find;
pub mod hashing;
pub mod idle;
mod interrupt;
pub mod operator;
pub mod pair;
pub mod report;
mod run;
pub mod server;
pub mod shop;
pub mod site;

pub use run::{Downloads, Options, Work, run};

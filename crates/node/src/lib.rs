//! The node: what runs on each host of the pair, and the command line that operates it.
//!
//! A library, so that tests reach every part; the `steadfast` program only calls [`cli::main`].

pub mod check;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod lab;
pub mod logging;
pub mod operator;
pub mod sock_diag;
pub mod supervisor;

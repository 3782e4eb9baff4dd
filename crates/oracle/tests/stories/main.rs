//! Captures made by hand, and what the oracle says of them.

mod bad;
mod good;
mod scene;

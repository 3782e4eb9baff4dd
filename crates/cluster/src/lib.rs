#![forbid(unsafe_code)]
pub mod config;
pub mod event;
pub mod message;
pub mod notice;

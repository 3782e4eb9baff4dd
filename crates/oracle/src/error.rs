//! Why there is no verdict at all.

use std::io;

/// Captures that cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// A file cannot be read.
    #[error("cannot read the capture {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// A file is no capture.
    #[error("{file} is not a pcap file: {why}")]
    NotPcap {
        /// The file.
        file: String,
        /// What is odd.
        why: String,
    },
    /// The story does not know a capture's host.
    #[error("{file} is a capture at host {host}, which the story does not know")]
    NoHost {
        /// The file.
        file: String,
        /// The host.
        host: String,
    },
    /// More files than can be numbered.
    #[error("so many captures cannot be judged at once")]
    TooMany,
}

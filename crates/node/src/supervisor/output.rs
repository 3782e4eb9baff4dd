//! A server's standard output and error, turned into log lines.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// Longer lines are cut into pieces: a server may write without ever ending a line.
const LINE_MAX: usize = 4096;
/// How much is read before others get their turn.
const TURN: usize = 64 * 1024;

/// One end of a pipe that a server writes to.
pub(super) struct Output {
    pipe: std::fs::File,
    lines: Lines,
}

impl Output {
    pub fn new(pipe: OwnedFd) -> std::io::Result<Output> {
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok(Output { pipe: pipe.into(), lines: Lines::default() })
    }

    /// Logs what has come; returns whether more can.
    pub fn pump(&mut self, service: &str) -> bool {
        let mut buffer = [0; 4096];
        for _ in 0..TURN / buffer.len() {
            match self.pipe.read(&mut buffer) {
                Ok(0) => {
                    self.lines.end(&mut |line| log(service, line));
                    return false;
                }
                Ok(length) => self.lines.push(&buffer[..length], &mut |line| log(service, line)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!("{service}: cannot read the server's output: {error}");
                    return false;
                }
            }
        }
        true
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

fn log(service: &str, line: &str) {
    tracing::info!(target: "server", "{service}: {line}");
}

/// Bytes collected into lines.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, bytes: &[u8], line: &mut dyn FnMut(&str)) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            for piece in piece.chunks(LINE_MAX) {
                if self.0.len() + piece.len() > LINE_MAX {
                    self.end(line);
                }
                self.0.extend_from_slice(piece);
            }
            if self.0.ends_with(b"\n") {
                self.end(line);
            }
        }
    }

    /// Hands out what is there, if anything. Control characters, which could rewrite a terminal
    /// or forge a log line, become visible escapes.
    fn end(&mut self, line: &mut dyn FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.0);
        let text = text.trim_end_matches(['\n', '\r']);
        if !text.is_empty() {
            let mut clean = String::with_capacity(text.len());
            for c in text.chars() {
                if c.is_control() && c != '\t' {
                    clean.extend(c.escape_default());
                } else {
                    clean.push(c);
                }
            }
            line(&clean);
        }
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.push(piece, &mut |line| out.push(line.to_owned()));
        }
        lines.end(&mut |line| out.push(line.to_owned()));
        out
    }

    #[test]
    fn lines_are_whole_whatever_the_reads_were() {
        assert_eq!(lines(&[b"one\ntw", b"o\n\nthree"]), ["one", "two", "three"]);
        assert_eq!(lines(&[b"a\x1b[2J\r\n"]), ["a\\u{1b}[2J"]);
        assert_eq!(lines(&[b"caf\xc3", b"\xa9\n"]), ["café"]);
        let long = lines(&[&[b'x'; 3000], &[b'x'; 3000], &[b'x'; 10_000]]);
        assert!(long.iter().all(|line| line.len() <= LINE_MAX));
        assert_eq!(long.concat().len(), 16_000);
    }
}

//! One client: a real program that downloads the large file, watched from its output.
//!
//! What counts is what the program hands on, so its standard output is a pipe to us: every
//! byte is hashed, and the time between two arrivals is what a user would have felt. Stalls are
//! kept as intervals rather than as one maximum, because only afterwards is it known when the
//! failure happened.

use std::io::Read;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use anyhow::Context;
use lab::{Child, Host};
use sha2::{Digest, Sha256};

use crate::clock::{Bell, now_ns};
use crate::find;

/// Shorter pauses are scheduling, not stalls.
pub(crate) const STALL_NS: u64 = 2_000_000;

/// A program that downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// curl.
    Curl,
    /// GNU wget.
    Wget,
}

impl Client {
    /// Program and arguments that write `url` to standard output, without the user's own
    /// settings, proxies, output buffers and, above all, retries.
    fn command(self, url: &str) -> anyhow::Result<Vec<String>> {
        let (program, args): (_, &[&str]) = match self {
            Client::Curl => {
                ("curl", &["-q", "-sS", "-g", "-N", "--fail", "--noproxy", "*", "-o", "-"])
            }
            Client::Wget => {
                let quiet = ["--no-config", "--no-verbose", "--no-proxy"];
                ("wget", &[quiet[0], quiet[1], quiet[2], "--tries=1", "--timeout=120", "-O", "-"])
            }
        };
        let mut command = vec![find::program(program, program)?.display().to_string()];
        command.extend(args.iter().map(|&arg| arg.to_owned()));
        command.push(url.to_owned());
        Ok(command)
    }
}

/// What other threads may look at while a download runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes that have arrived.
    pub bytes: AtomicU64,
    /// The program has ended.
    pub ended: AtomicBool,
}

/// A time in which nothing arrived, on [`now_ns`]'s clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The last arrival before it, or the program's start.
    pub from_ns: u64,
    /// The next arrival, or the program's end.
    pub to_ns: u64,
}

impl Stall {
    /// Whether this instant lies in it.
    pub fn covers(&self, at_ns: u64) -> bool {
        (self.from_ns..=self.to_ns).contains(&at_ns)
    }
}

/// How a download ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: [u8; 32],
    /// What the program complained about; `None` if it ended well.
    pub error: Option<String>,
    /// All times of at least 2 ms in which nothing arrived, in order.
    pub stalls: Vec<Stall>,
}

impl Outcome {
    /// The longest stall that was not over at `at_ns`.
    pub fn longest_stall_after(&self, at_ns: u64) -> Option<Stall> {
        longest_after(&self.stalls, at_ns)
    }
}

/// The longest stall that was not over at `at_ns`.
pub fn longest_after(stalls: &[Stall], at_ns: u64) -> Option<Stall> {
    let late = stalls.iter().filter(|s| s.to_ns > at_ns);
    late.max_by_key(|s| s.to_ns - s.from_ns).copied()
}

/// A running download.
#[derive(Debug)]
pub struct Download {
    progress: Arc<Progress>,
    thread: JoinHandle<anyhow::Result<Outcome>>,
}

impl Download {
    /// Starts `client` in `host` for a file of the server at `at`; rings `bell` at every
    /// arrival and at the end.
    ///
    /// # Errors
    /// The program is missing or cannot be started.
    pub fn start(
        host: &Host,
        client: Client,
        at: SocketAddr,
        path: &str,
        bell: &Bell,
    ) -> anyhow::Result<Download> {
        let words = client.command(&format!("http://{at}{path}"))?;
        Download::run(host, &words, bell)
    }

    /// Starts any program whose standard output is the download.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run(host: &Host, command: &[String], bell: &Bell) -> anyhow::Result<Download> {
        let child = host
            .command(&command[0])
            .args(&command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (progress, bell) = (Arc::<Progress>::default(), bell.clone());
        let shared = progress.clone();
        let thread = std::thread::Builder::new()
            .name("download".to_owned())
            .spawn(move || {
                let outcome = watch(child, &shared, &bell);
                shared.ended.store(true, Relaxed);
                bell.ring();
                outcome
            })
            .context("cannot start a thread")?;
        Ok(Download { progress, thread })
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.progress.bytes.load(Relaxed)
    }

    /// Whether the program has ended.
    pub fn ended(&self) -> bool {
        self.progress.ended.load(Relaxed)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The program's output could not be read.
    pub fn finish(self) -> anyhow::Result<Outcome> {
        self.thread.join().expect("the thread does not panic")
    }
}

fn watch(mut child: Child, progress: &Progress, bell: &Bell) -> anyhow::Result<Outcome> {
    let mut from = child.stdout.take().context("the output is not piped")?;
    let (mut hash, mut bytes, mut stalls) = (Sha256::new(), 0, Vec::new());
    let (mut buffer, mut last_ns) = (vec![0; 64 << 10], now_ns());
    loop {
        let got = match from.read(&mut buffer) {
            Ok(got) => got,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e).context("cannot read a client's output"),
        };
        let now = now_ns();
        if now - last_ns >= STALL_NS {
            stalls.push(Stall { from_ns: last_ns, to_ns: now });
        }
        last_ns = now;
        if got == 0 {
            break;
        }
        hash.update(&buffer[..got]);
        bytes += got as u64;
        progress.bytes.store(bytes, Relaxed);
        bell.ring();
    }
    let mut said = String::new();
    if let Some(mut from) = child.stderr.take() {
        from.read_to_string(&mut said).context("cannot read a client's complaints")?;
    }
    let status = child.wait()?;
    let error = (!status.success()).then(|| match said.trim() {
        "" => status.to_string(),
        said => format!("{said} ({status})"),
    });
    Ok(Outcome { bytes, sha256: hash.finalize().into(), error, stalls })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stall_that_counts_is_the_longest_one_that_ends_after_the_failure() {
        let stall = |from_ns, to_ns| Stall { from_ns, to_ns };
        let outcome = Outcome {
            bytes: 0,
            sha256: [0; 32],
            error: None,
            stalls: vec![stall(0, 90), stall(95, 130), stall(140, 160)],
        };
        assert_eq!(outcome.longest_stall_after(100), Some(stall(95, 130)));
        assert_eq!(outcome.longest_stall_after(130), Some(stall(140, 160)));
        assert_eq!(outcome.longest_stall_after(160), None);
    }

    #[test]
    fn clients_do_not_try_again() {
        let wget = Client::Wget.command("http://[fd77::100]:80/x").unwrap();
        assert!(wget.contains(&"--tries=1".to_owned()));
        let curl = Client::Curl.command("http://[fd77::100]:80/x").unwrap();
        assert!(!curl.iter().any(|arg| arg.contains("retry")));
    }
}

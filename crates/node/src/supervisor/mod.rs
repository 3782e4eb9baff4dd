//! The server processes of this node's services.
//!
//! Both nodes run their servers all the time, so that a takeover finds a listener. A server that
//! ends is started again, and its end reported before anything else happens to its processes: a
//! crash of the primary's server has to become a failover. A daemon that was killed leaves its
//! servers behind, holding the ports; the next one must find and end them, and must never end a
//! stranger that happens to have an old process number.
//!
//! The obvious way, to remember process numbers and signal them, does the latter sooner or later.
//! So:
//! - Every server leads its own session. While the daemon lives it leaves a dead leader unreaped
//!   until the rest of its session is gone: the kernel cannot give the number to anybody else,
//!   and signals to the group reach nobody else ([`worker`]).
//! - The child notes its own /proc/self/stat in the state directory before it executes the
//!   server, so there is no moment at which a running server is not on record. The start time
//!   in that line, with the boot and the process-number namespace, tells it from strangers
//!   ([`record`]).
//!
//! The supervisor is a thread. Commands go in through [`Supervisor`]; events come out through
//! the function that [`Supervisor::start`] was given.

mod output;
mod process;
mod record;
mod spawn;
mod worker;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::prctl;

use crate::config::Service;
use worker::{Command, Worker};

/// What happened to a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Its command runs.
    Started { service: String, pid: u32 },
    /// Its command could not be run; it will be tried again.
    Unstartable { service: String, why: String },
    /// Its command ended. Reported before the rest of its processes are signalled, and before
    /// it is started again.
    Exited {
        service: String,
        pid: u32,
        status: Status,
        /// It was not asked to stop, and ended by a signal or with an error (C4).
        crashed: bool,
    },
    /// Every address of the service has a listener.
    Listening { service: String },
    /// This is no longer so.
    NotListening { service: String },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Code(i32),
    Signal(i32),
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Status::Code(code) => write!(f, "exit code {code}"),
            Status::Signal(number) => match nix::sys::signal::Signal::try_from(number) {
                Ok(signal) => write!(f, "{signal}"),
                Err(_) => write!(f, "signal {number}"),
            },
        }
    }
}

/// Why servers cannot be supervised.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    #[error("another daemon supervises servers with {}; stop it, or give this node another \
             state_dir", .0.display())]
    InUse(PathBuf),
    #[error("cannot use the state directory {}; make it writable for the daemon", path.display())]
    StateDir { path: PathBuf, source: io::Error },
    #[error("cannot {what}")]
    System { what: &'static str, source: io::Error },
    #[error(
        "{service}: processes {left:?} of a dead daemon's server do not end, though killed; \
             they may hang in the kernel"
    )]
    Orphans { service: String, left: Vec<u32> },
}

/// The running supervisor. Dropping it kills the servers.
#[derive(Debug)]
pub struct Supervisor {
    commands: mpsc::Sender<Command>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Ends what a dead daemon left behind, then starts every service that has a command.
    ///
    /// `on_event` runs on the supervisor's thread and should be quick. The thread, and with it
    /// the servers, is in the network namespace of the caller's thread. Makes this process the
    /// reaper of its servers' orphans.
    pub fn start(
        services: &[Service],
        state_dir: &Path,
        on_event: impl FnMut(Event) + Send + 'static,
    ) -> Result<Supervisor, SupervisorError> {
        let system =
            |what| move |errno: nix::Error| SupervisorError::System { what, source: errno.into() };
        let records = record::Records::open(state_dir)?;
        records.end_orphans()?;
        prctl::set_child_subreaper(true).map_err(system("become a child subreaper"))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags).map_err(system("make an eventfd"))?;
        let wake = Arc::new(wake);
        let (commands, inbox) = mpsc::channel();
        let worker = Worker::new(services, records, inbox, Arc::clone(&wake), Box::new(on_event));
        let thread = std::thread::Builder::new()
            .name("supervisor".to_owned())
            .spawn(move || worker.run())
            .map_err(|source| SupervisorError::System { what: "start a thread", source })?;
        Ok(Supervisor { commands, wake, thread: Some(thread) })
    }

    /// Starts a stopped service, or one that waits for its next attempt, now.
    pub fn start_service(&self, service: &str) {
        self.send(Command::Start(service.to_owned()));
    }

    /// Asks a service to stop: SIGTERM to its group, SIGKILL after `grace`. It stays stopped.
    pub fn stop_service(&self, service: &str, grace: Duration) {
        self.send(Command::Stop(service.to_owned(), grace));
    }

    /// Stops every service, returns when all their processes are gone.
    pub fn stop(mut self, grace: Duration) {
        self.finish(grace);
    }

    fn finish(&mut self, grace: Duration) {
        self.send(Command::Finish(grace));
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by its own message.
            let _ = thread.join();
        }
    }

    fn send(&self, command: Command) {
        // A finished thread has nothing left to command.
        if self.commands.send(command).is_ok() {
            // EAGAIN: the counter is full of wake-ups already.
            let _ = self.wake.write(1);
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.finish(Duration::ZERO);
        }
    }
}

/// The socket addresses of a service.
fn socket_addresses(service: &Service) -> Vec<SocketAddr> {
    service.addresses.iter().map(|&ip| SocketAddr::new(ip, service.port)).collect()
}

//! The server processes of this node's services.
//!
//! Both nodes run their servers all the time, so that a takeover finds a listener. A server that
//! ends is started again, and its end reported before anything else happens to its processes: a
//! crash of the primary's server has to become a failover. A daemon that was killed leaves its
//! servers behind, holding the ports; the next one must find and end them, and must never end a
//! stranger that happens to have an old process number.
//!
//! The obvious way, to remember process numbers and signal them, does the latter sooner or later,
//! and misses what a server forks into sessions of its own. So every start of a server gets a
//! cgroup of its own, below the daemon's ([`cgroup`]). Its path is noted in the state directory
//! before there is a process, so there is no moment at which a running server is not on record
//! ([`record`]). [`worker`] has the life of a server, also of one that goes into the background.
//!
//! The supervisor is a thread. Commands go in through [`Supervisor`]; events come out through
//! the function that [`Supervisor::start`] was given.

mod cgroup;
mod output;
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
    /// Its command ended with exit code 0, but left processes behind: the server counts as running
    /// until the last of them has ended.
    Backgrounded { service: String, pid: u32 },
    /// Its command ended, or the last process of a server in the background. Reported before the
    /// rest of its processes are signalled, and before it is started again.
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
    /// A listener of the service is a Multipath TCP socket, which adopts no connections, or none is
    /// any more. Reported before [`Event::Listening`].
    Multipath { service: String, multipath: bool },
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
    #[error(
        "cannot use cgroup v2, where servers' processes are found: {0}; `steadfast check` says more"
    )]
    Cgroup(#[source] io::Error),
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
        let tree = cgroup::Tree::open().map_err(SupervisorError::Cgroup)?;
        records.end_orphans(&tree)?;
        prctl::set_child_subreaper(true).map_err(system("become a child subreaper"))?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = EventFd::from_value_and_flags(0, flags).map_err(system("make an eventfd"))?;
        let wake = Arc::new(wake);
        let (commands, inbox) = mpsc::channel();
        let keep = worker::Keep { records, tree };
        let worker = Worker::new(services, keep, inbox, Arc::clone(&wake), Box::new(on_event));
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

    /// Asks a service to stop: SIGTERM to all of its processes, SIGKILL after `grace`. It stays
    /// stopped.
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

/// Whether servers can have cgroups here: makes one and removes it.
pub(crate) fn try_cgroups() -> io::Result<()> {
    let tree = cgroup::Tree::open()?;
    tree.create(&tree.below_own(&worker::name("check")))?.remove()
}

/// The socket addresses of a service.
fn socket_addresses(service: &Service) -> Vec<SocketAddr> {
    service.addresses.iter().map(|&ip| SocketAddr::new(ip, service.port)).collect()
}

//! The supervisor's thread: one loop over what can happen next.
//!
//! A server's life: waiting for its start, running, ending (its command has ended, and the rest of
//! its processes are ended), then waiting again or stopped. A command that ends with exit code 0
//! and leaves processes behind has gone into the background, as daemons do: it is running until the
//! last of them has ended. Exits, output and commands wake the loop through file descriptors. Listeners cannot: the kernel tells nobody
//! that a socket began to listen, so while a server comes up its address is looked for every
//! 10 ms, and every 100 ms afterwards.

use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

use super::cgroup::{self, Cgroup, Tree};
use super::output::Output;
use super::record::{self, Records};
use super::spawn::{Spawned, spawn};
use super::{Event, Status, socket_addresses};
use crate::config::Service;
use crate::sock_diag::{Listener, listeners};

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A server that ran this long starts its backoff afresh.
const SETTLED: Duration = Duration::from_secs(10);
/// How long killed processes may take before they are killed again.
const LEAVE: Duration = Duration::from_secs(1);
const LOOK_OFTEN: Duration = Duration::from_millis(10);
const LOOK_SELDOM: Duration = Duration::from_millis(100);
/// How long after a start listeners are looked for often.
const COMING_UP: Duration = Duration::from_secs(10);
/// How often orphans that fell to us are reaped.
const REAP: Duration = Duration::from_secs(1);

pub(super) enum Command {
    Start(String),
    Stop(String, Duration),
    Finish(Duration),
}

/// What a successor finds servers by.
pub(super) struct Keep {
    pub records: Records,
    pub tree: Tree,
}

pub(super) struct Worker {
    servers: Vec<Server>,
    keep: Keep,
    inbox: Receiver<Command>,
    wake: Arc<EventFd>,
    on_event: Box<dyn FnMut(Event) + Send>,
    next_reap: Instant,
    next_look: Instant,
    finishing: bool,
}

struct Server {
    service: Service,
    life: Life,
    /// Whether it is to run again once it has ended.
    wanted: bool,
    backoff: Duration,
    listening: bool,
    /// One of its listeners is a Multipath TCP socket.
    multipath: bool,
    since: Instant,
}

enum Life {
    Stopped,
    Waiting { until: Instant },
    Running(Running),
    Ending(Ending),
}

struct Running {
    /// The command's process.
    pid: u32,
    /// `None` once it has gone into the background.
    pidfd: Option<OwnedFd>,
    cgroup: Cgroup,
    outputs: Vec<Output>,
    /// How the last of those ended that fell to us, if one has.
    last: Status,
    /// Asked to stop; killed at this moment.
    kill_at: Option<Instant>,
}

/// The command has ended; others may not.
struct Ending {
    cgroup: Cgroup,
    outputs: Vec<Output>,
    kill_at: Instant,
}

impl Worker {
    pub fn new(
        services: &[Service],
        keep: Keep,
        inbox: Receiver<Command>,
        wake: Arc<EventFd>,
        on_event: Box<dyn FnMut(Event) + Send>,
    ) -> Worker {
        let now = Instant::now();
        let server = |service: &Service| {
            let wanted = service.command.is_some();
            Server {
                service: service.clone(),
                life: if wanted { Life::Waiting { until: now } } else { Life::Stopped },
                wanted,
                backoff: BACKOFF_FIRST,
                listening: false,
                multipath: false,
                since: now,
            }
        };
        Worker {
            servers: services.iter().map(server).collect(),
            keep,
            inbox,
            wake,
            on_event,
            next_reap: now,
            next_look: now,
            finishing: false,
        }
    }

    pub fn run(mut self) {
        loop {
            self.obey();
            let now = Instant::now();
            for index in 0..self.servers.len() {
                self.advance(index, now);
            }
            if self.finishing && self.servers.iter().all(Server::is_over) {
                return;
            }
            self.look_for_listeners(now);
            self.reap_orphans(now);
            self.wait();
        }
    }

    fn obey(&mut self) {
        // EAGAIN: nobody woke us.
        let _ = self.wake.read();
        let now = Instant::now();
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Start(name) => {
                    for server in self.servers.iter_mut().filter(|s| s.service.name == name) {
                        server.wanted = server.service.command.is_some();
                        if server.wanted && server.is_over() {
                            server.life = Life::Waiting { until: now };
                        }
                    }
                }
                Command::Stop(name, grace) => {
                    for server in self.servers.iter_mut().filter(|s| s.service.name == name) {
                        server.stop(now, grace);
                    }
                }
                Command::Finish(grace) => {
                    self.finishing = true;
                    self.servers.iter_mut().for_each(|server| server.stop(now, grace));
                }
            }
        }
    }

    /// Moves one server on as far as it goes.
    fn advance(&mut self, index: usize, now: Instant) {
        let server = &mut self.servers[index];
        let name = server.service.name.clone();
        match &mut server.life {
            Life::Stopped => {}
            Life::Waiting { until } if *until <= now => self.start(index, now),
            Life::Waiting { .. } => {}
            Life::Running(running) => {
                running.outputs.retain_mut(|output| output.pump(&name));
                match running.ended() {
                    Some(Ended::All(status)) => self.exited(index, status, now),
                    Some(Ended::Background) => {
                        let pid = running.pid;
                        running.pidfd = None;
                        (self.on_event)(Event::Backgrounded { service: name, pid });
                    }
                    None if running.kill_at.is_some_and(|at| at <= now) => {
                        running.kill_at = Some(now + LEAVE);
                        kill(&name, &running.cgroup);
                    }
                    None => {}
                }
            }
            Life::Ending(ending) => {
                ending.outputs.retain_mut(|output| output.pump(&name));
                ending.cgroup.reap(None);
                if is_populated(&name, &ending.cgroup) {
                    if ending.kill_at <= now {
                        ending.kill_at = now + LEAVE;
                        kill(&name, &ending.cgroup);
                    }
                    return;
                }
                if let Err(error) = ending.cgroup.remove() {
                    tracing::warn!("{name}: the cgroup of a server that ended stays: {error}");
                }
                self.keep.records.remove(&name);
                server.life = Life::Stopped;
                if server.wanted {
                    if now - server.since >= SETTLED {
                        server.backoff = BACKOFF_FIRST;
                    }
                    server.life = Life::Waiting { until: now + server.backoff };
                    server.backoff = (server.backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    fn start(&mut self, index: usize, now: Instant) {
        let server = &mut self.servers[index];
        let service = server.service.name.clone();
        match self.keep.start(&server.service) {
            Ok((cgroup, Spawned { pid, pidfd, outputs })) => {
                let pidfd = Some(pidfd);
                let last = Status::Code(0);
                server.life =
                    Life::Running(Running { pid, pidfd, cgroup, outputs, last, kill_at: None });
                server.since = now;
                self.next_look = now;
                (self.on_event)(Event::Started { service, pid });
            }
            Err(why) => {
                server.life = Life::Waiting { until: now + server.backoff };
                server.backoff = (server.backoff * 2).min(BACKOFF_MAX);
                (self.on_event)(Event::Unstartable { service, why });
            }
        }
    }

    /// A server has ended: report it, then end what is left of it.
    fn exited(&mut self, index: usize, status: Status, now: Instant) {
        let server = &mut self.servers[index];
        let Life::Running(mut running) = mem::replace(&mut server.life, Life::Stopped) else {
            unreachable!("only a running server is seen to exit");
        };
        let crashed = running.kill_at.is_none() && status != Status::Code(0);
        let service = server.service.name.clone();
        // What it said last belongs before the news of its end.
        running.outputs.retain_mut(|output| output.pump(&service));
        let pid = running.pid;
        (self.on_event)(Event::Exited { service, pid, status, crashed });
        self.set_multipath(index, false);
        self.set_listening(index, false);
        let Running { cgroup, outputs, kill_at, .. } = running;
        // What a crash leaves behind is not asked.
        let kill_at = kill_at.unwrap_or(now);
        self.servers[index].life = Life::Ending(Ending { cgroup, outputs, kill_at });
        // A server without other processes is gone at once.
        self.advance(index, now);
    }

    fn look_for_listeners(&mut self, now: Instant) {
        if now < self.next_look || !self.servers.iter().any(Server::may_listen) {
            return;
        }
        let coming_up = |server: &Server| {
            server.may_listen() && !server.listening && now - server.since < COMING_UP
        };
        let often = self.servers.iter().any(coming_up);
        self.next_look = now + if often { LOOK_OFTEN } else { LOOK_SELDOM };
        match listeners() {
            Ok(found) => {
                for index in 0..self.servers.len() {
                    if self.servers[index].may_listen() {
                        let (listening, multipath) = self.servers[index].is_reached_by(&found);
                        self.set_multipath(index, multipath);
                        self.set_listening(index, listening);
                    }
                }
            }
            Err(error) => {
                self.next_look = now + REAP;
                tracing::error!("cannot list listening sockets: {error}");
            }
        }
    }

    fn set_multipath(&mut self, index: usize, multipath: bool) {
        let server = &mut self.servers[index];
        if mem::replace(&mut server.multipath, multipath) != multipath {
            let service = server.service.name.clone();
            (self.on_event)(Event::Multipath { service, multipath });
        }
    }

    fn set_listening(&mut self, index: usize, listening: bool) {
        let server = &mut self.servers[index];
        if mem::replace(&mut server.listening, listening) != listening {
            let service = server.service.name.clone();
            let event = if listening {
                Event::Listening { service }
            } else {
                Event::NotListening { service }
            };
            (self.on_event)(event);
        }
    }

    /// Processes whose parents died fall to us as the subreaper. Other parts of the daemon have
    /// children too, which they wait for themselves: only members of our servers are reaped here.
    fn reap_orphans(&mut self, now: Instant) {
        if now < self.next_reap {
            return;
        }
        self.next_reap = now + REAP;
        let any = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        if !matches!(waitid(Id::All, any), Ok(status) if status != WaitStatus::StillAlive) {
            return;
        }
        for server in &mut self.servers {
            if let Life::Running(running) = &mut server.life {
                running.reap();
            }
        }
    }

    fn wait(&mut self) {
        let now = Instant::now();
        let mut until = self.next_reap;
        if self.servers.iter().any(Server::may_listen) {
            until = until.min(self.next_look);
        }
        for server in &self.servers {
            until = match &server.life {
                Life::Stopped => until,
                Life::Waiting { until: at } => until.min(*at),
                Life::Running(running) => running.kill_at.map_or(until, |at| until.min(at)),
                Life::Ending(ending) => until.min(ending.kill_at),
            };
        }
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        for server in &self.servers {
            let (pidfd, cgroup, outputs) = match &server.life {
                Life::Running(running) => {
                    (running.pidfd.as_ref(), &running.cgroup, &running.outputs)
                }
                Life::Ending(ending) => (None, &ending.cgroup, &ending.outputs),
                Life::Stopped | Life::Waiting { .. } => continue,
            };
            fds.extend(pidfd.map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
            // While the command runs, it is its end that counts.
            let events = pidfd.is_none().then(|| cgroup.events());
            fds.extend(events.map(|fd| PollFd::new(fd, PollFlags::POLLPRI)));
            let outputs = outputs.iter().map(AsFd::as_fd);
            fds.extend(outputs.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        }
        // Rounded up: waking just before the moment would spin.
        let timeout = until.saturating_duration_since(now) + Duration::from_micros(999);
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            // EFAULT and EINVAL would be our bug; ENOMEM passes.
            Err(errno) => tracing::error!("the supervisor cannot poll: {errno}"),
        }
    }
}

impl Server {
    fn is_over(&self) -> bool {
        matches!(self.life, Life::Stopped | Life::Waiting { .. })
    }

    /// A server that the operator runs may listen at any time.
    fn may_listen(&self) -> bool {
        self.service.command.is_none() || matches!(self.life, Life::Running(_))
    }

    /// Whether all of its addresses have a listener, and whether one of those is Multipath TCP.
    fn is_reached_by(&self, found: &[Listener]) -> (bool, bool) {
        let mut multipath = false;
        let mut reached = |address| {
            let mut listeners =
                found.iter().filter(|listener| listener.accepts(address)).peekable();
            let any = listeners.peek().is_some();
            multipath |= listeners.any(|listener| listener.multipath);
            any
        };
        let reached: Vec<bool> =
            socket_addresses(&self.service).into_iter().map(&mut reached).collect();
        (reached.into_iter().all(|reached| reached), multipath)
    }

    fn stop(&mut self, now: Instant, grace: Duration) {
        self.wanted = false;
        match &mut self.life {
            Life::Stopped => {}
            Life::Waiting { .. } => self.life = Life::Stopped,
            Life::Running(running) => {
                let at = now + grace;
                running.cgroup.signal(libc::SIGTERM);
                running.kill_at = Some(running.kill_at.map_or(at, |earlier| earlier.min(at)));
            }
            Life::Ending(ending) => ending.kill_at = ending.kill_at.min(now + grace),
        }
    }
}

impl Keep {
    /// The record comes first, then the cgroup, then the process: whenever this daemon dies, its
    /// successor finds what there is.
    fn start(&self, service: &Service) -> Result<(Cgroup, Spawned), String> {
        let path = self.tree.below_own(&name(&service.name));
        let noted = self.records.create(&service.name, &path);
        noted.map_err(|error| format!("cannot note the start of a server: {error}"))?;
        let started = self.tree.create(&path);
        let started = started.map_err(|error| format!("cannot make the cgroup {path}: {error}"));
        let started = started.and_then(|cgroup| match spawn(service, &cgroup) {
            Ok(spawned) => Ok((cgroup, spawned)),
            Err(why) => {
                if let Err(error) = cgroup.remove() {
                    tracing::warn!("{}: its cgroup stays: {error}", service.name);
                }
                Err(why)
            }
        });
        started.inspect_err(|_| self.records.remove(&service.name))
    }
}

/// What of a running server has ended.
enum Ended {
    All(Status),
    Background,
}

impl Running {
    fn ended(&mut self) -> Option<Ended> {
        let Some(pidfd) = &self.pidfd else {
            if is_populated("", &self.cgroup) {
                return None;
            }
            self.reap();
            return Some(Ended::All(self.last));
        };
        let status = exited(pidfd)?;
        let stays = status == Status::Code(0) && self.kill_at.is_none();
        match stays && !self.cgroup.processes().is_empty() {
            true => Some(Ended::Background),
            false => Some(Ended::All(status)),
        }
    }

    fn reap(&mut self) {
        let awaited = self.pidfd.is_some().then_some(self.pid);
        self.last = self.cgroup.reap(awaited).unwrap_or(self.last);
    }
}

/// A hierarchy that cannot be read any more is taken for an empty one: nothing can be done there.
fn is_populated(name: &str, cgroup: &Cgroup) -> bool {
    cgroup.is_populated().unwrap_or_else(|error| {
        tracing::error!("{name}: the cgroup of its server cannot be read: {error}");
        false
    })
}

fn kill(name: &str, cgroup: &Cgroup) {
    if let Err(error) = cgroup.kill() {
        tracing::error!("{name}: its processes cannot be killed: {error}");
    }
}

/// How the process ended; reaps it. `None` while it runs.
fn exited(pidfd: &OwnedFd) -> Option<Status> {
    match waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG) {
        Ok(waited) => cgroup::status(waited),
        Err(Errno::EINTR) => None,
        // Reaped behind our back: ended, nobody knows how.
        Err(_) => Some(Status::Signal(0)),
    }
}

/// The name of a cgroup that no other start has had.
pub(super) fn name(service: &str) -> String {
    let mut bytes = [0; 16];
    control::Rng::system().fill(&mut bytes);
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}{service}-{token}", record::PREFIX)
}

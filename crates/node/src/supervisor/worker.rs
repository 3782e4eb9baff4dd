//! The supervisor's thread: one loop over what can happen next.
//!
//! A server's life: waiting for its start, running, ending (its leader is dead and kept as a
//! zombie while the rest of its session is ended), then waiting again or stopped. Exits, output
//! and commands wake the loop through file descriptors. Listeners cannot: the kernel tells nobody
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
use nix::unistd::Pid;

use super::output::Output;
use super::process::{self, Stat};
use super::record::Records;
use super::spawn::{Spawned, spawn};
use super::{Event, Status, socket_addresses};
use crate::config::Service;
use crate::sock_diag::{Listener, listeners};

const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A server that ran this long starts its backoff afresh.
const SETTLED: Duration = Duration::from_secs(10);
/// How long the rest of a session gets after its leader ended of its own will.
const LEAVE: Duration = Duration::from_secs(1);
const LOOK_OFTEN: Duration = Duration::from_millis(10);
const LOOK_SELDOM: Duration = Duration::from_millis(100);
/// How long after a start listeners are looked for often.
const COMING_UP: Duration = Duration::from_secs(10);
/// How often the rest of a session is looked at while it ends.
const ENDING: Duration = Duration::from_millis(10);
/// How often orphans that fell to us are reaped.
const REAP: Duration = Duration::from_secs(1);

pub(super) enum Command {
    Start(String),
    Stop(String, Duration),
    Finish(Duration),
}

pub(super) struct Worker {
    servers: Vec<Server>,
    records: Records,
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
    since: Instant,
}

enum Life {
    Stopped,
    Waiting { until: Instant },
    Running(Running),
    Ending(Ending),
}

struct Running {
    pid: u32,
    pidfd: OwnedFd,
    outputs: Vec<Output>,
    /// Asked to stop; killed at this moment.
    kill_at: Option<Instant>,
}

/// The leader is a zombie: its number, group and session can mean nobody else.
struct Ending {
    pid: u32,
    pidfd: OwnedFd,
    outputs: Vec<Output>,
    kill_at: Instant,
    killed: bool,
    next_look: Instant,
}

impl Worker {
    pub fn new(
        services: &[Service],
        records: Records,
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
                since: now,
            }
        };
        Worker {
            servers: services.iter().map(server).collect(),
            records,
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
                if let Some(status) = exited(&running.pidfd) {
                    self.exited(index, status, now);
                } else if running.kill_at.is_some_and(|at| at <= now) {
                    running.kill_at = Some(now + LEAVE);
                    // The leader is alive or an unreaped zombie: its group is still its own.
                    signal_group(running.pid, libc::SIGKILL);
                    signal_session(running.pid, libc::SIGKILL);
                }
            }
            Life::Ending(ending) => {
                ending.outputs.retain_mut(|output| output.pump(&name));
                if ending.next_look <= now && ending.is_done(now) {
                    self.records.remove(&name);
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
    }

    fn start(&mut self, index: usize, now: Instant) {
        let server = &mut self.servers[index];
        let name = server.service.name.clone();
        let token = token();
        let record = self.records.create(&name, &token);
        let record = record.map_err(|error| format!("cannot note the start of a server: {error}"));
        match record.and_then(|record| spawn(&server.service, record, &token)) {
            Ok(Spawned { pid, pidfd, outputs }) => {
                server.life = Life::Running(Running { pid, pidfd, outputs, kill_at: None });
                server.since = now;
                self.next_look = now;
                (self.on_event)(Event::Started { service: name, pid });
            }
            Err(why) => {
                self.records.remove(&name);
                server.life = Life::Waiting { until: now + server.backoff };
                server.backoff = (server.backoff * 2).min(BACKOFF_MAX);
                (self.on_event)(Event::Unstartable { service: name, why });
            }
        }
    }

    /// A leader has ended: report it, then end what is left of its session.
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
        self.set_listening(index, false);
        if !crashed && running.kill_at.is_none() {
            signal_group(pid, libc::SIGTERM);
        }
        let leave = if crashed { now } else { now + LEAVE };
        self.servers[index].life = Life::Ending(Ending {
            pid,
            pidfd: running.pidfd,
            outputs: running.outputs,
            kill_at: running.kill_at.unwrap_or(leave),
            killed: false,
            next_look: now,
        });
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
                        let listening = self.servers[index].is_reached_by(&found);
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
    /// children too, which they wait for themselves: only members of our servers' sessions are
    /// reaped here, and never a leader.
    fn reap_orphans(&mut self, now: Instant) {
        if now < self.next_reap {
            return;
        }
        self.next_reap = now + REAP;
        let any = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        if !matches!(waitid(Id::All, any), Ok(status) if status != WaitStatus::StillAlive) {
            return;
        }
        for server in &self.servers {
            if let Life::Running(running) = &server.life {
                reap_members(&process::members(running.pid), running.pid);
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
                Life::Ending(ending) => until.min(ending.next_look),
            };
        }
        let mut fds = vec![PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        for server in &self.servers {
            let outputs = match &server.life {
                Life::Running(running) => {
                    fds.push(PollFd::new(running.pidfd.as_fd(), PollFlags::POLLIN));
                    &running.outputs
                }
                Life::Ending(ending) => &ending.outputs,
                Life::Stopped | Life::Waiting { .. } => continue,
            };
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

    fn is_reached_by(&self, found: &[Listener]) -> bool {
        let reached = |address| found.iter().any(|listener| listener.accepts(address));
        socket_addresses(&self.service).into_iter().all(reached)
    }

    fn stop(&mut self, now: Instant, grace: Duration) {
        self.wanted = false;
        match &mut self.life {
            Life::Stopped => {}
            Life::Waiting { .. } => self.life = Life::Stopped,
            Life::Running(running) => {
                let at = now + grace;
                // The leader is unreaped, so the group is its own.
                signal_group(running.pid, libc::SIGTERM);
                running.kill_at = Some(running.kill_at.map_or(at, |earlier| earlier.min(at)));
            }
            Life::Ending(ending) => ending.kill_at = ending.kill_at.min(now + grace),
        }
    }
}

impl Ending {
    /// Whether the leader was the last of its session; then reaps it.
    fn is_done(&mut self, now: Instant) -> bool {
        self.next_look = now + ENDING;
        let members = process::members(self.pid);
        reap_members(&members, self.pid);
        let alive = |member: &&Stat| member.pid != self.pid && !member.is_zombie();
        if members.iter().any(|member| alive(&member)) {
            if self.kill_at <= now {
                if !mem::replace(&mut self.killed, true) {
                    signal_group(self.pid, libc::SIGKILL);
                }
                // Those with a group of their own, and those born meanwhile.
                members.iter().filter(alive).for_each(|m| process::signal(m, libc::SIGKILL));
            }
            return false;
        }
        // ECHILD: somebody reaped it first. It is gone either way.
        let _ = waitid(Id::PIDFd(self.pidfd.as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
        true
    }
}

/// How the process ended, without reaping it; `None` while it runs.
fn exited(pidfd: &OwnedFd) -> Option<Status> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::PIDFd(pidfd.as_fd()), flags) {
        Ok(WaitStatus::Exited(_, code)) => Some(Status::Code(code)),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(Status::Signal(signal as i32)),
        Ok(_) | Err(Errno::EINTR) => None,
        // Reaped behind our back: ended, nobody knows how.
        Err(_) => Some(Status::Signal(0)),
    }
}

/// Signals a group whose leader we have not reaped.
fn signal_group(leader: u32, signal: i32) {
    // SAFETY: kill takes two integers and touches no memory of ours.
    unsafe { libc::kill(-(leader as i32), signal) };
}

fn signal_session(leader: u32, signal: i32) {
    let members = process::members(leader);
    members.iter().filter(|m| m.pid != leader).for_each(|m| process::signal(m, signal));
}

fn reap_members(members: &[Stat], leader: u32) {
    let own = std::process::id();
    for member in members {
        if member.pid != leader && member.is_zombie() && member.parent == own {
            let pid = Pid::from_raw(member.pid as i32);
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
        }
    }
}

/// A value that no other start has had.
fn token() -> String {
    let mut bytes = [0; 16];
    control::Rng::system().fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

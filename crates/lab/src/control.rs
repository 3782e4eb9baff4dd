//! Reaching a lab from another process.
//!
//! The keeper listens on the socket `<dir>/control`: one request and one answer per
//! connection, each a line of JSON. Requests are served one after the other, which also
//! keeps faults in the order in which they were asked for. The directory is root's alone,
//! so the socket needs no further protection; a client that is slow or sends nonsense gets
//! an error or is dropped, and disturbs nobody for longer than [`PATIENCE`].
//!
//! Running a program in a host needs no help from the keeper: the client learns the pid of
//! the host's first process and joins its namespaces itself, so terminals, pipes and exit
//! statuses are the client's own.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Doing, Error, Result},
    fault::{Cut, Kill, LinkStatus},
    faults::Faults,
    flip::{Flip, Flipped},
    host::{Host, Running},
    init::Init,
    lab::Lab,
    rundir::{self, base_dir},
    sys::{self, Pidfd},
    throttle::{self, Slow},
    topology::HostSpec,
    wires::Way,
};

/// How long the kernel may take to end a keeper and release its lock.
const DYING: Duration = Duration::from_secs(2);

/// How long the keeper waits for a client that has connected.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest request, bytes.
const LONGEST: u64 = 64 << 10;

/// What can be asked of a keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request", content = "with")]
pub enum Request {
    /// Answer: [`Answer::Status`].
    Status,
    /// The way into a host. Answer: [`Answer::Host`].
    Enter(String),
    /// Host, and how. Answer: [`Answer::Killed`].
    Kill(String, Kill),
    /// Boots a host and starts the node daemon that ran there. Answer: [`Answer::Done`].
    Boot(String),
    /// Ends a hang. Answer: [`Answer::Done`].
    Resume(String),
    /// Link, and how. Answer: [`Answer::Done`].
    Cut(String, Cut),
    /// Answer: [`Answer::Done`].
    Heal(String),
    /// Link, ways, and what befalls frames there from now on. Answer: [`Answer::Done`].
    Fault(String, Vec<Way>, Faults),
    /// Host, and which bit. Answer: [`Answer::Flipped`].
    Flip(String, Flip),
    /// Host, and how slow it is from now on. Answer: [`Answer::Done`].
    Slow(String, Slow),
    /// Takes the lab down. Answer: [`Answer::Done`], once nothing is left.
    Down,
}

/// What a keeper answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer", content = "with")]
pub enum Answer {
    /// It is done.
    Done,
    /// The state of everything.
    Status(Status),
    /// A host that is up.
    Host {
        /// Who it is.
        spec: HostSpec,
        /// Its first process, as seen from outside.
        init_pid: u32,
    },
    /// When a kill took effect, nanoseconds since 1970, and the processes it hit.
    Killed {
        /// Wall clock, as captures use it.
        unix_ns: u64,
        /// Their ids as seen from outside.
        pids: Vec<u32>,
    },
    /// The bit that was flipped.
    Flipped(Flipped),
    /// It could not be done; a sentence for people.
    Error(String),
}

/// A lab's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The lab's name.
    pub name: String,
    /// Its directory.
    pub dir: String,
    /// The process that holds it.
    pub keeper_pid: u32,
    /// All hosts.
    pub hosts: Vec<HostStatus>,
    /// All cables.
    pub links: Vec<LinkStatus>,
}

/// A host's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its name.
    pub name: String,
    /// Whether it is up.
    pub up: bool,
    /// Whether all its processes are stopped.
    pub hung: bool,
    /// Addresses: service link v4 and v6, then cluster link.
    pub addresses: Vec<String>,
    /// How many processes it runs.
    pub processes: usize,
    /// The node daemon's process, if one was started and runs.
    pub daemon_pid: Option<u32>,
    /// How slow it has been made.
    pub slow: Slow,
}

impl Lab {
    /// The state of everything.
    pub fn status(&self) -> Status {
        let host = |h: &Host| {
            let spec = h.spec();
            let addresses = spec.links().iter().flat_map(|&l| spec.addresses(l));
            let daemon = self.node(h.name()).filter(|n| matches!(n.ended(), Ok(None)));
            HostStatus {
                name: h.name().to_owned(),
                up: h.is_up(),
                hung: h.is_hung(),
                addresses: addresses.map(|(ip, _)| ip.to_string()).collect(),
                processes: h.processes().map_or(0, |p| p.len()),
                daemon_pid: daemon.map(|n| n.pid()),
                slow: h.slowness().unwrap_or_default(), // one that is down is not slow
            }
        };
        Status {
            name: self.name().to_owned(),
            dir: self.dir().display().to_string(),
            keeper_pid: std::process::id(),
            hosts: self.hosts().iter().map(host).collect(),
            links: self.links(),
        }
    }

    fn answer(&self, request: Request) -> Result<Answer> {
        match request {
            Request::Status => return Ok(Answer::Status(self.status())),
            Request::Enter(name) => {
                let host = self.host(&name)?;
                if host.is_hung() {
                    return Err(Error::HostHung(name));
                }
                let spec = host.spec().clone();
                return Ok(Answer::Host { spec, init_pid: host.init_pid()? });
            }
            Request::Kill(host, how) => {
                let killed = self.kill(&host, &how)?;
                let since = killed.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
                let pids = killed.processes.iter().map(|p| p.pid).collect();
                let unix_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
                return Ok(Answer::Killed { unix_ns, pids });
            }
            Request::Boot(host) => {
                self.boot(&host)?;
                if self.node(&host).is_some() {
                    self.start_again(&host)?;
                }
            }
            Request::Resume(host) => self.resume(&host)?,
            Request::Cut(link, how) => self.cut(&link, how)?,
            Request::Heal(link) => self.heal(&link)?,
            Request::Fault(link, ways, faults) => self.set_faults(&link, &ways, &faults)?,
            Request::Flip(host, flip) => return Ok(Answer::Flipped(self.flip(&host, &flip)?)),
            Request::Slow(host, slow) => self.slow(&host, &slow)?,
            Request::Down => {} // done by whoever owns the lab
        }
        Ok(Answer::Done)
    }
}

/// A lab's control socket.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
}

/// Why a server stopped serving.
#[derive(Debug)]
pub enum Stopped {
    /// The descriptor it was told to watch became readable.
    Told,
    /// A client wants the lab down, and waits to hear that it is.
    Down(Farewell),
}

/// A client that waits for the end of the lab.
#[derive(Debug)]
pub struct Farewell(UnixStream);

impl Farewell {
    /// Tells it, after the lab was dropped.
    pub fn done(mut self) {
        let _ = send(&mut self.0, &Answer::Done); // it may have lost interest
    }
}

impl Server {
    /// Opens the socket. Clients can connect from now on and wait for
    /// [`serve`](Self::serve).
    ///
    /// # Errors
    /// The socket cannot be made in the lab's directory.
    pub fn new(lab: &Lab) -> Result<Server> {
        let path = lab.dir().join("control");
        let open = || {
            let listener = UnixListener::bind(&path)?;
            listener.set_nonblocking(true)?;
            Ok::<_, io::Error>(listener)
        };
        Ok(Server { listener: open().doing(|| format!("listen on {}", path.display()))? })
    }

    /// Serves requests until a client asks for the end or `stop` becomes readable.
    ///
    /// # Errors
    /// The socket itself fails.
    pub fn serve(&self, lab: &Lab, stop: &OwnedFd) -> Result<Stopped> {
        loop {
            let mut fds = [
                PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
                PollFd::new(stop.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Err(nix::Error::EINTR) => continue,
                other => other.doing(|| "wait for requests".to_owned())?,
            };
            if fds[1].any() == Some(true) {
                return Ok(Stopped::Told);
            }
            // A client that gave up meanwhile is no fault of ours.
            let Ok((mut stream, _)) = self.listener.accept() else { continue };
            let request = match receive(&stream) {
                Ok(request) => request,
                Err(e) => {
                    let _ = send(&mut stream, &Answer::Error(format!("bad request: {e}")));
                    continue;
                }
            };
            if request == Request::Down {
                return Ok(Stopped::Down(Farewell(stream)));
            }
            let answer = lab.answer(request).unwrap_or_else(|e| Answer::Error(e.to_string()));
            let _ = send(&mut stream, &answer); // a client that has left hears nothing
        }
    }
}

fn receive(stream: &UnixStream) -> io::Result<Request> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

fn send(stream: &mut UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// A lab that another process keeps.
#[derive(Clone, Debug)]
pub struct Remote {
    name: String,
}

impl Remote {
    /// Finds a running lab: the one of this name, or the only one there is. Sweeps up
    /// after dead labs on the way.
    ///
    /// # Errors
    /// [`Error::NoLab`], naming those that run.
    pub fn find(name: Option<&str>) -> Result<Remote> {
        let mut running = rundir::sweep()?;
        match name {
            Some(name) if running.iter().any(|r| r == name) => {
                return Ok(Remote { name: name.to_owned() });
            }
            None if running.len() == 1 => return Ok(Remote { name: running.remove(0) }),
            _ => {}
        }
        let which = match (name, running.is_empty()) {
            (Some(name), _) => format!("no lab \"{name}\" is running"),
            (None, true) => "no lab is running".to_owned(),
            (None, false) => "several labs are running; say which with --name".to_owned(),
        };
        let running = if running.is_empty() { "none".into() } else { running.join(", ") };
        Err(Error::NoLab { which, running })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Asks its keeper.
    ///
    /// # Errors
    /// [`Error::Refused`] with the keeper's words, or it does not answer.
    pub fn ask(&self, request: &Request) -> Result<Answer> {
        let path = base_dir().join(&self.name).join("control");
        let ask = || {
            let mut stream = UnixStream::connect(&path)?;
            send(&mut stream, request)?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line)?;
            Ok::<Answer, io::Error>(serde_json::from_str(&line)?)
        };
        let answer = ask().or_else(|error| {
            // A keeper that is being killed no longer answers, yet holds its lock for a moment.
            let gone = Instant::now() + DYING;
            while Instant::now() < gone {
                let running = rundir::sweep()?;
                if !running.contains(&self.name) {
                    let which = format!("no lab is running as {}: its keeper has ended", self.name);
                    return Err(Error::NoLab { which, running: running.join(", ") });
                }
                thread::yield_now();
            }
            Err(error).doing(|| format!("ask the keeper of lab {}", self.name))
        })?;
        match answer {
            Answer::Error(said) => Err(Error::Refused(said)),
            answer => Ok(answer),
        }
    }

    /// The state of everything.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn status(&self) -> Result<Status> {
        match self.ask(&Request::Status)? {
            Answer::Status(status) => Ok(status),
            other => Err(Error::Refused(format!("the keeper gave an odd answer: {other:?}"))),
        }
    }

    /// A host as this process can use it: run programs, open sockets inside. Faults are
    /// the keeper's business.
    ///
    /// # Errors
    /// There is no such host, it is down or hangs.
    pub fn host(&self, name: &str) -> Result<Host> {
        let (spec, pid) = match self.ask(&Request::Enter(name.to_owned()))? {
            Answer::Host { spec, init_pid } => (spec, init_pid),
            other => {
                return Err(Error::Refused(format!("the keeper gave an odd answer: {other:?}")));
            }
        };
        let enter = || {
            let pidfd = Pidfd::open(pid)?;
            let root = sys::cgroup_root()?;
            let prefix = rundir::cgroup_prefix(&base_dir().join(&self.name))?;
            let procs = format!("{prefix}{name}/cgroup.procs");
            let flags = nix::fcntl::OFlag::O_WRONLY | nix::fcntl::OFlag::O_CLOEXEC;
            let mode = nix::sys::stat::Mode::empty();
            let procs = nix::fcntl::openat(&root, Path::new(&procs), flags, mode)?;
            let running = Running::new(name, Init { pid, pidfd }, None, procs);
            let slow = throttle::procs_of(&base_dir().join(&self.name), &(prefix + name))?;
            slow.into_iter().for_each(|procs| running.add_procs(procs));
            Ok::<_, io::Error>(running)
        };
        let running = enter().doing(|| format!("enter host {name}"))?;
        let host = Host::new(spec);
        *host.slot() = Some(Arc::new(running));
        Ok(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dice::Chance, flip::Where};

    /// The wire format is read by people and scripts: it changes on purpose only.
    #[test]
    fn requests_look_like_this() {
        let check = |request: Request, json: &str| {
            assert_eq!(serde_json::to_string(&request).unwrap(), json);
            assert_eq!(serde_json::from_str::<Request>(json).unwrap(), request);
        };
        check(Request::Status, r#"{"request":"status"}"#);
        check(
            Request::Kill("a".into(), Kill::Hang(Duration::from_millis(1500))),
            r#"{"request":"kill","with":["a",{"hang":{"secs":1,"nanos":500000000}}]}"#,
        );
        check(
            Request::Cut("a.svc".into(), Cut { ways: vec![Way::ToHost], carrier: true }),
            r#"{"request":"cut","with":["a.svc",{"ways":["to_host"],"carrier":true}]}"#,
        );
        let faults =
            Faults { loss: Chance::percent(10), delay: Duration::from_millis(5), ..Faults::NONE };
        check(
            Request::Fault("a.svc".into(), vec![Way::FromHost], faults),
            concat!(
                r#"{"request":"fault","with":["a.svc",["from_host"],{"loss":0.1,"duplicate":0.0,"#,
                r#""reorder":0.0,"corrupt":0.0,"delay":{"secs":0,"nanos":5000000},"#,
                r#""jitter":{"secs":0,"nanos":0},"seed":0}]}"#
            ),
        );
        let flip = Flip { process: "nginx".into(), place: Where::Heap, seed: 7 };
        check(
            Request::Flip("a".into(), flip),
            r#"{"request":"flip","with":["a",{"process":"nginx","place":"heap","seed":7}]}"#,
        );
        check(
            Request::Slow("a".into(), Slow { cpu_percent: Some(20), memory_mib: None }),
            r#"{"request":"slow","with":["a",{"cpu_percent":20,"memory_mib":null}]}"#,
        );
    }
}

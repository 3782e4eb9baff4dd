//! Two hosts with the same server: by itself, and under the in-process runtime or another tool.
//!
//! The clients are threads and processes of this one that enter the server's network: they reach it by
//! its loopback, and no cable's work makes what is added look smaller. They are not in the host's
//! cgroup, which has the server and whatever it runs under.
//!
//! The servers die with the lab, whatever comes first: its end, an error, or the end of this process; and
//! redis-benchmark ends when its server does. Recordings are in the lab's folder, and go with it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use demo::find;
use lab::{Host, Lab};
use recording::{Head, Place};

use crate::cost::cpu_us;
use crate::load::{Idle, closed_loop};
use crate::ready;
use crate::twin::{Side, wait_for};

/// At once.
const CLIENTS: usize = 50;
/// Of redis-benchmark, of each command; fewer where each takes a multiple of the time.
const REQUESTS: u64 = 50_000;
const FEW_REQUESTS: u64 = 5_000;
/// How long nginx is asked.
const SPAN: Duration = Duration::from_millis(700);
/// What nginx is asked for.
const FILE: &str = "/1k.bin";
const FILE_BYTES: usize = 1 << 10;

/// A server that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// Short commands in memory: nearly all of a request is system calls.
    Redis,
    /// One worker, a small file.
    Nginx,
}

impl Server {
    /// All of them.
    pub const ALL: [Server; 2] = [Server::Redis, Server::Nginx];

    /// In the names of rows.
    pub fn id(self) -> &'static str {
        match self {
            Server::Redis => "redis",
            Server::Nginx => "nginx",
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Server::Redis => "redis-server",
            Server::Nginx => "nginx",
        }
    }

    /// How long a run takes, s.
    pub fn run_s(self) -> f64 {
        match self {
            Server::Redis => 0.8,
            Server::Nginx => SPAN.as_secs_f64(),
        }
    }

    fn at(self) -> SocketAddr {
        let port = match self {
            Server::Redis => 6379,
            Server::Nginx => 80,
        };
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// Its command line; its files go to `dir`.
    fn command(self, dir: &Path) -> anyhow::Result<Vec<String>> {
        match self {
            Server::Redis => redis(self.at(), dir),
            Server::Nginx => nginx(self.at(), dir),
        }
    }

    /// Fifty clients ask, again as soon as they are answered; so many requests. Calls `ready` right
    /// before they begin.
    fn ask(self, few: bool, mut ready: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<u64> {
        match self {
            Server::Redis => {
                ready()?;
                redis_benchmark(self.at(), if few { FEW_REQUESTS } else { REQUESTS })
            }
            Server::Nginx => {
                let served = closed_loop(self.at(), FILE, CLIENTS, Idle::Looks, SPAN, ready)?;
                Ok(served.requests)
            }
        }
    }
}

fn redis(at: SocketAddr, dir: &Path) -> anyhow::Result<Vec<String>> {
    let program = find::program("redis-server", "redis-server")?;
    let (port, ip, dir) = (at.port().to_string(), at.ip().to_string(), shown(dir));
    let options = ["--port", &port, "--bind", &ip, "--dir", &dir, "--save", ""];
    Ok([shown(&program)].into_iter().chain(options.map(str::to_owned)).collect())
}

fn nginx(at: SocketAddr, dir: &Path) -> anyhow::Result<Vec<String>> {
    let program = find::program("nginx", "nginx")?;
    let root = dir.join("root");
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    write(&root.join(&FILE[1..]), &[b'x'; FILE_BYTES])?;
    let text = "daemon off;
worker_processes 1;
user root;
pid nginx.pid;
error_log stderr;
events { worker_connections 256; }
http {
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;
"
    .to_owned()
        + &format!("  server {{ listen {at}; root {}; }}\n}}\n", root.display());
    let config = dir.join("nginx.conf");
    write(&config, text.as_bytes())?;
    let options = ["-e", "stderr", "-p", &shown(dir), "-c", &shown(&config)];
    Ok([shown(&program)].into_iter().chain(options.map(str::to_owned)).collect())
}

/// Sets and gets `requests` times; how many requests that were.
fn redis_benchmark(at: SocketAddr, requests: u64) -> anyhow::Result<u64> {
    let program = find::program("redis-benchmark", "redis-tools")?;
    let mut command = Command::new(program);
    command.args(["-h", &at.ip().to_string(), "-p", &at.port().to_string()]);
    command.args(["-c", &CLIENTS.to_string(), "-n", &requests.to_string()]);
    command.args(["-t", "set,get", "--csv"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut clients = Clients(command.spawn().context("cannot run redis-benchmark")?);
    wait_for("redis-benchmark has all answers", || Ok(clients.0.try_wait()?.is_some()))?;
    // It prints less than a pipe holds.
    let mut said = String::new();
    if let (Some(mut out), Some(mut err)) = (clients.0.stdout.take(), clients.0.stderr.take()) {
        out.read_to_string(&mut said)?;
        err.read_to_string(&mut said)?;
    }
    let both = said.contains("\"SET\"") && said.contains("\"GET\"");
    ensure!(
        clients.0.wait()?.success() && both,
        "redis-benchmark has not done all of it: {}",
        last_lines(&said)
    );
    Ok(2 * requests)
}

/// A process of clients, which is not left behind.
struct Clients(Child);

impl Drop for Clients {
    fn drop(&mut self) {
        // It has ended, as a rule.
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// What a server runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// The runtime, which lets every call be as it is.
    Passthrough,
    /// The runtime, which records.
    Record,
    /// A process that stops it at every call, and looks.
    Strace,
    /// The same, for a replay.
    Rr,
}

impl Under {
    /// All of them.
    pub const ALL: [Under; 4] = [Under::Passthrough, Under::Record, Under::Strace, Under::Rr];

    /// In the names of rows.
    pub fn id(self) -> &'static str {
        match self {
            Under::Passthrough => "passthrough",
            Under::Record => "record",
            Under::Strace => "strace",
            Under::Rr => "rr",
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Under::Passthrough => "in pass-through",
            Under::Record => "recorded",
            Under::Strace => "under strace -f",
            Under::Rr => "under rr record",
        }
    }

    /// The program of another project that it is, and the package of the same name.
    fn tool(self) -> Option<&'static str> {
        match self {
            Under::Passthrough | Under::Record => None,
            Under::Strace => Some("strace"),
            Under::Rr => Some("rr"),
        }
    }

    /// The command line that runs `command` under it; what it writes goes to `folder`, which is not there
    /// yet.
    fn words(self, folder: &Path, command: Vec<String>) -> anyhow::Result<Vec<String>> {
        let program = match self.tool() {
            None => ready::product()?,
            Some(tool) => find::program(tool, tool)?,
        };
        let folder = shown(folder);
        let options: &[&str] = match self {
            Under::Passthrough => &["passthrough", "--"],
            Under::Record => &["record", "-o", &folder, "--"],
            Under::Strace => &["-f", "-o", "/dev/null"],
            Under::Rr => &["record", "-o", &folder],
        };
        let options = options.iter().map(|&word| word.to_owned());
        Ok([shown(&program)].into_iter().chain(options).chain(command).collect())
    }
}

/// Both hosts. What runs in them ends when this is dropped.
pub struct Hosts {
    lab: Lab,
    server: Server,
    under: Under,
    /// Of [`Side::Protected`] first, once they run.
    servers: Vec<lab::Child>,
    recording: Option<Recording>,
}

/// What one run showed, of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Processor time of the server, and of what it runs under, µs.
    pub cpu_us: f64,
    /// What a recording has grown by; 0 without one.
    pub recorded_bytes: f64,
    /// So many in a second.
    pub rate: f64,
}

impl Hosts {
    /// Brings both up; nothing runs in them.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn up(server: Server, under: Under) -> anyhow::Result<Hosts> {
        let names = [Side::Protected, Side::Bare].map(name_of);
        let lab = Lab::builder().hosts(&names, &[]).up().context("the hosts of two servers")?;
        let records = lab.dir().join(name_of(Side::Protected)).join("written/records");
        let recording = (under == Under::Record).then(|| Recording::at(records));
        Ok(Hosts { lab, server, under, servers: Vec::new(), recording })
    }

    /// Why the tool cannot be measured on this machine; `None` if it can.
    ///
    /// # Errors
    /// It cannot be tried out.
    pub fn unable(&self) -> anyhow::Result<Option<String>> {
        let Some(tool) = self.under.tool() else { return Ok(None) };
        if find::program(tool, tool).is_err() {
            return Ok(Some(format!("there is no {tool}: install the package {tool}")));
        }
        let words =
            self.under.words(&self.lab.dir().join("trial"), vec!["/bin/true".to_owned()])?;
        let ended = self.host(Side::Protected)?.command(&words[0]).args(&words[1..]).output()?;
        let said = String::from_utf8_lossy(&ended.stderr);
        Ok((!ended.status.success()).then(|| format!("{tool} does not run: {}", last_lines(&said))))
    }

    /// Starts both servers; returns when they answer.
    ///
    /// # Errors
    /// One does not come to that; what it said.
    pub fn serve(&mut self) -> anyhow::Result<()> {
        for side in [Side::Protected, Side::Bare] {
            let dir = self.lab.dir().join(name_of(side));
            fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
            let command = self.server.command(&dir)?;
            let words = match side {
                Side::Protected => self.under.words(&dir.join("written"), command)?,
                Side::Bare => command,
            };
            self.start(side, &words).with_context(|| {
                let said = last_lines(&self.said(side));
                format!("{} {}: {said}", self.server.name(), name_of(side))
            })?;
        }
        Ok(())
    }

    fn start(&mut self, side: Side, words: &[String]) -> anyhow::Result<()> {
        let host = self.host(side)?;
        let log = File::create(self.log(side)).context("cannot write its log")?;
        let mut command = host.command(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let server = command.spawn()?;
        wait_for("it answers", || {
            lives(&server)?;
            Ok(host.in_netns(|| TcpStream::connect(self.server.at()).is_ok())?)
        })?;
        self.servers.push(server);
        Ok(())
    }

    /// Has the server of one side asked by fifty clients.
    ///
    /// # Errors
    /// An answer is not right, or what is to be recorded is not; what the server said.
    pub fn run(&mut self, side: Side) -> anyhow::Result<Seen> {
        let run = self.run_unexplained(side);
        run.with_context(|| {
            let said = last_lines(&self.said(side));
            format!("{} {}, which said: {said}", self.server.name(), name_of(side))
        })
    }

    fn run_unexplained(&mut self, side: Side) -> anyhow::Result<Seen> {
        let host = self.host(side)?.clone();
        lives(&self.servers[usize::from(side == Side::Bare)])?;
        let few = side == Side::Protected && self.under.tool().is_some();
        let mut recording = self.recording.as_mut().filter(|_| side == Side::Protected);
        let (mut before_us, mut begin) = (0.0, Instant::now());
        let requests = host.in_netns(|| {
            self.server.ask(few, || {
                if let Some(recording) = &mut recording {
                    recording.read_on()?;
                }
                (before_us, begin) = (cpu_us(&host)?, Instant::now());
                Ok(())
            })
        })??;
        let (took_s, spent_us) = (begin.elapsed().as_secs_f64(), cpu_us(&host)? - before_us);
        let recorded = recording.map(Recording::read_on).transpose()?;
        ensure!(recorded != Some(0), "nothing of it was recorded");
        let requests = requests as f64;
        Ok(Seen {
            cpu_us: spent_us / requests,
            recorded_bytes: recorded.unwrap_or(0) as f64 / requests,
            rate: requests / took_s,
        })
    }

    fn host(&self, side: Side) -> anyhow::Result<&Host> {
        Ok(self.lab.host(name_of(side))?)
    }

    fn log(&self, side: Side) -> PathBuf {
        self.lab.dir().join(format!("{}.log", name_of(side)))
    }

    fn said(&self, side: Side) -> String {
        fs::read_to_string(self.log(side)).unwrap_or_default()
    }
}

/// A client would ask a dead one for ever.
fn lives(server: &lab::Child) -> anyhow::Result<()> {
    match server.try_wait()? {
        None => Ok(()),
        Some(status) => bail!("it has ended: {status}"),
    }
}

/// Of its host, its folder, its log.
fn name_of(side: Side) -> &'static str {
    match side {
        Side::Protected => "under-it",
        Side::Bare => "by-itself",
    }
}

/// A recording that grows. Its file does so in steps, so what is in it is counted.
struct Recording {
    path: PathBuf,
    place: Place,
}

impl Recording {
    fn at(path: PathBuf) -> Recording {
        Recording { path, place: Place::FIRST }
    }

    /// Goes on to its end; the bytes of the records in between.
    fn read_on(&mut self) -> anyhow::Result<u64> {
        let from = self.place.at;
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(from))?;
            file.read_to_end(&mut bytes)
        });
        read.with_context(|| format!("cannot read {}", self.path.display()))?;
        self.place = end_of(self.place, &bytes)
            .with_context(|| format!("the recording {}", self.path.display()))?;
        Ok(self.place.at - from)
    }
}

/// The end of the records that `bytes` begins with.
///
/// # Errors
/// One is damaged, or the last one says that the recording is over while the server is not.
fn end_of(mut place: Place, bytes: &[u8]) -> anyhow::Result<Place> {
    let from = place.at;
    while let Some((record, behind)) = place.read(&bytes[usize::try_from(place.at - from)?..])? {
        ensure!(!matches!(record.head, Head::End(_)), "it has ended: {:?}", record.head);
        place = behind;
    }
    Ok(place)
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// What a program said last, in one line.
fn last_lines(said: &str) -> String {
    const LINES: usize = 3;
    let lines: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match &lines[lines.len().saturating_sub(LINES)..] {
        [] => "nothing".to_owned(),
        last => last.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use recording::{End, MOST};

    use super::*;

    #[test]
    fn records_are_counted_and_the_room_behind_them_is_not() {
        let mut bytes = vec![0; 3 * MOST];
        let payload = |out: &mut [u8]| {
            out[..3].fill(1);
            Some(3)
        };
        let behind = Place::FIRST.write(&mut bytes, &Head::Tsc(7, 0), 3, payload).unwrap();
        assert_eq!(end_of(Place::FIRST, &bytes).unwrap(), behind);
        let length = usize::try_from(behind.at - Place::FIRST.at).unwrap();
        let end = Head::End(End::Exited { status: 0 });
        behind.write(&mut bytes[length..], &end, 0, |_| Some(0)).unwrap();
        let error = end_of(Place::FIRST, &bytes).unwrap_err().to_string();
        assert!(error.contains("it has ended"), "{error}");
        bytes[length / 2] ^= 1;
        let error = end_of(Place::FIRST, &bytes).unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }

    #[test]
    fn what_a_program_said_last_is_one_line() {
        assert_eq!(last_lines("a\nb\n\n c\nd\n"), "b; c; d");
        assert_eq!(last_lines("\n"), "nothing");
    }
}

//! Two nodes with the real daemon, a client and whoever else is needed, in a lab.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use demo::clock::{boottime_ns, now_ns};
use demo::config::state_dir;
use e2e::machine::DETECTION_MS;
use e2e::witness::{Witness, weigh};
use lab::{Host, Lab, Link, Node, ProcessInfo};
use serde_json::Value;

/// How long any condition may take to come true; far more than it needs.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Which addresses the nodes, the service and the clients use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// The service's address and port.
    pub fn service(self) -> SocketAddr {
        (self.stranger(200), PORT).into()
    }

    /// An address on the service link; up to 255 of them are somebody's.
    pub fn stranger(self, number: u16) -> IpAddr {
        let [high, low] = number.to_be_bytes();
        match self {
            Family::V4 => Ipv4Addr::new(10, 77, high, low).into(),
            Family::V6 => Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 1, number).into(),
        }
    }

    /// Of a host of the lab.
    pub fn of(self, host: &Host, link: Link) -> IpAddr {
        match self {
            Family::V4 => host.ipv4(link).into(),
            Family::V6 => host.ipv6(link).into(),
        }
    }
}

pub const PORT: u16 = 7000;
pub const CONTROL_PORT: u16 = 7077;
pub const KEY: [u8; 32] = [7; 32];

/// A deterministic server: what comes in goes out; slowly, if there is a third argument: seconds for
/// each 2 KiB.
const ECHO: &str = r#"
import socketserver, sys, time
pause = float(sys.argv[3]) if sys.argv[3:] else 0
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(2048 if pause else 65536):
            time.sleep(pause)
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128
    address_family = 10 if ":" in sys.argv[1] else 2
Server((sys.argv[1], int(sys.argv[2])), Echo).serve_forever()
"#;

/// Nodes share two processors with everything else; one lab at a time keeps clocks honest.
static ONE_LAB: Mutex<()> = Mutex::new(());

/// Dropped, it asks the oracle about everything that the ports of the clients and of the pair have
/// seen, and panics if something must not be.
pub struct Stage {
    pub lab: Lab,
    pub family: Family,
    pub witness: Witness,
    /// Somebody was served, so there is something to judge.
    served: Cell<bool>,
    _alone: MutexGuard<'static, ()>,
}

impl Stage {
    /// Hosts `client`, `other` (on the service link) and the nodes `a`, `b`, `x`.
    pub fn new(family: Family) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests make hosts out of namespaces: `make test` runs them as root"
        );
        e2e::machine::watch();
        let alone = ONE_LAB.lock().unwrap_or_else(PoisonError::into_inner);
        let lab = Lab::builder()
            .hosts(&["client", "other"], &["a", "b", "x"])
            .steadfast(binary())
            .up()
            .expect("the lab comes up");
        std::fs::write(lab.dir().join("echo.py"), ECHO).unwrap();
        let witness = Witness::start(&lab, family.service(), None).expect("captures begin");
        Self { lab, family, witness, served: Cell::new(false), _alone: alone }
    }

    /// With `a` as primary and `b` as its backup.
    pub fn pair(family: Family) -> Self {
        Self::pair_with(family, |config| config)
    }

    /// The same, with both configurations changed.
    pub fn pair_with(family: Family, change: impl Fn(String) -> String) -> Self {
        let stage = Self::new(family);
        for (host, peer, more) in [("a", "b", "prefer_primary = true\n"), ("b", "a", "")] {
            stage.start_with(host, change(stage.config(host, peer, more)), KEY);
        }
        stage.until("a is primary, b its backup", || {
            let (a, b) = (stage.status("a"), stage.status("b"));
            a["ready"] == true && a["duplex"] == true && b["ready"] == true
        });
        stage
    }

    /// Starts the daemon of `host`, whose peer is `peer`.
    pub fn start(&self, host: &str, peer: &str, more: &str, key: [u8; 32]) -> Arc<Node> {
        let config = self.config(host, peer, more);
        self.start_with(host, config, key)
    }

    pub fn start_with(&self, host: &str, config_toml: String, key: [u8; 32]) -> Arc<Node> {
        let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let files = vec![(format!("{host}.key"), format!("{text}\n").into_bytes())];
        self.lab.start(&lab::NodeSpec { host: host.into(), config_toml, files }).unwrap()
    }

    pub fn config(&self, host: &str, peer: &str, more: &str) -> String {
        let dir = self.lab.dir().display();
        let state = state_dir(self.lab.dir(), host);
        let address = |name: &str, link| self.family.of(self.lab.host(name).unwrap(), link);
        let service = self.family.service().ip();
        let pair = |name: &str| {
            let (service, cluster) = (address(name, Link::Service), address(name, Link::Cluster));
            format!("{{ service = \"{service}\", cluster = \"{cluster}\" }}")
        };
        format!(
            r#"[node]
name = "{host}"
peer = "{peer}"
cluster = "lab"
service_interface = "svc0"
cluster_interface = "clu0"
address = {own}
peer_address = {its}
key_file = "{dir}/{host}.key"
state_dir = "{state}"
startup_wait_ms = 1500
detection_ms = {DETECTION_MS}
{more}
[[service]]
name = "echo"
address = "{service}"
port = {PORT}
command = ["/usr/bin/env", "python3", "{dir}/echo.py", "{service}", "{PORT}"]
scheme = "track"
"#,
            state = state.display(),
            own = pair(host),
            its = pair(peer),
        )
    }

    /// What the daemon of `host` answers; `null` while it does not.
    pub fn status(&self, host: &str) -> Value {
        self.ask(host, "status").pop().unwrap_or_default()
    }

    pub fn events(&self, host: &str) -> Vec<Value> {
        self.ask(host, "events")
    }

    fn ask(&self, host: &str, what: &str) -> Vec<Value> {
        let path = state_dir(self.lab.dir(), host).join("steadfast.sock");
        let Ok(mut stream) = UnixStream::connect(path) else { return Vec::new() };
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        if writeln!(stream, "{{\"ask\":\"{what}\"}}").is_err() {
            return Vec::new();
        }
        let mut answers = BufReader::new(stream).lines();
        let parsed = |line: String| serde_json::from_str(&line).expect("an answer is JSON");
        match what {
            "status" => answers.next().and_then(Result::ok).map(parsed).into_iter().collect(),
            _ => answers.map_while(Result::ok).map(parsed).collect(),
        }
    }

    /// Pulls a host's plug.
    pub fn kill_host(&self, host: &str) {
        self.witness.listen(&self.lab);
        let killed = self.lab.kill_host(host).unwrap();
        self.witness.died(host, boottime_ns(killed.at));
    }

    pub fn kill_daemon(&self, host: &str) {
        self.witness.listen(&self.lab);
        self.lab.kill_daemon(host).unwrap();
    }

    /// Has the server of a duplex primary die of a signal.
    pub fn crash_server(&self, host: &str, signal: i32) {
        self.witness.listen(&self.lab);
        let server = |process: &ProcessInfo| process.command.iter().any(|a| a.contains("echo.py"));
        self.lab.kill_processes(host, signal, "the server", server).unwrap();
        self.witness.crashed(host, now_ns());
    }

    #[track_caller]
    pub fn until(&self, what: impl Display, mut holds: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds() {
            if Instant::now() >= deadline {
                let hosts = ["x", "b", "a"];
                for host in hosts {
                    let log = std::fs::read_to_string(self.lab.dir().join(format!("{host}.log")));
                    eprintln!("--- log of {host}:\n{}", log.unwrap_or_default());
                }
                for host in hosts {
                    let mut status = self.status(host);
                    if let Some(Value::Object(counters)) = status.get_mut("counters") {
                        counters.retain(|_, count| *count != 0);
                    }
                    eprintln!("--- status of {host}: {status}");
                }
                panic!("not within {PATIENCE:?}: {what}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn connect(&self) -> Client {
        let client = self.lab.host("client").unwrap();
        let address = self.family.service();
        let stream = client.in_netns(|| TcpStream::connect_timeout(&address, PATIENCE)).unwrap();
        let stream = stream.expect("the service accepts");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        self.served.set(true);
        Client { stream, said: 0 }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let judge = || {
            let verdict =
                self.witness.judge(&self.lab).map_err(|e| format!("no verdict: {e:#}"))?;
            eprintln!("oracle: {}; {} exempt", verdict.statistics, verdict.exemptions.len());
            let nothing = verdict.statistics.segments == 0 && !self.served.get();
            if nothing { Ok(()) } else { weigh(&verdict, self.lab.dir()) }
        };
        // The lab is dropped next, and keeps its files during a panic.
        match judge() {
            Err(why) if std::thread::panicking() => eprintln!("{why}"),
            Err(why) => panic!("{why}"),
            Ok(()) => {}
        }
    }
}

/// The program under test.
pub fn binary() -> PathBuf {
    let given = std::env::var_os("STEADFAST_BIN").map(PathBuf::from);
    given.unwrap_or(env!("CARGO_BIN_EXE_steadfast").into())
}

/// A client that knows what it must hear.
pub struct Client {
    pub stream: TcpStream,
    said: u64,
}

impl Client {
    /// Sends `length` bytes that depend on their position and expects them back.
    #[track_caller]
    pub fn expect_echo(&mut self, length: u64, when: &str) {
        self.echo(length).unwrap_or_else(|error| panic!("{when}: {error}"));
    }

    /// The same, of a connection that may be reset. What comes back is never anything else.
    #[track_caller]
    pub fn echo(&mut self, length: u64) -> std::io::Result<()> {
        for at in (self.said..self.said + length).step_by(8192) {
            let until = (self.said + length).min(at + 8192);
            let bytes: Vec<u8> =
                (at..until).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
            let mut heard = vec![0; bytes.len()];
            self.stream.write_all(&bytes)?;
            self.stream.read_exact(&mut heard)?;
            assert!(heard == bytes, "other bytes came back, from {at} on");
        }
        self.said += length;
        Ok(())
    }
}

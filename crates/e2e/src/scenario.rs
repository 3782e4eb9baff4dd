//! What a test is about, before anything runs.

use std::fmt;
use std::time::Duration;

use demo::config::Roles;
use demo::download::Client;
use demo::pair::Service;
use demo::server::Server;
use lab::Kill;

use crate::MB;
use crate::batch::{Finished, Moment};
use crate::machine::undisturbed;
use crate::stage::Stage;

/// How a node fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The whole host, at one instant.
    Host,
    /// The server's processes, by SIGKILL.
    Process,
    /// The server's processes, by SIGSEGV.
    Crash,
    /// The daemon, by SIGKILL.
    Daemon,
    /// Every process of the host stops for five seconds.
    Hang,
}

impl How {
    /// All of them.
    pub const ALL: [How; 5] = [How::Host, How::Process, How::Crash, How::Daemon, How::Hang];

    /// What the lab is told.
    pub fn kill(self) -> Kill {
        match self {
            How::Host => Kill::Host,
            How::Process => Kill::Process { signal: 9, matching: None },
            How::Crash => Kill::Process { signal: 11, matching: None },
            How::Daemon => Kill::Daemon,
            How::Hang => Kill::Hang(Duration::from_secs(5)),
        }
    }
}

/// A story: who serves, who downloads, what fails and when.
#[derive(Clone)]
pub struct Scenario {
    pub(crate) server: Server,
    pub(crate) service: Option<Service>,
    pub(crate) client: Client,
    pub(crate) clients: usize,
    pub(crate) idle: usize,
    pub(crate) history: usize,
    pub(crate) size: u64,
    pub(crate) rate_mbit: Option<u64>,
    pub(crate) ipv6: bool,
    pub(crate) roles: Roles,
    pub(crate) sysctls: Vec<(String, String)>,
    pub(crate) kill: Option<(How, Moment)>,
    pub(crate) victim: Option<&'static str>,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario::new()
    }
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, n) = (self.size / 1000, self.clients);
        write!(f, "{}, {n} × {:?} of {size} kB, {} idle", self.server, self.client, self.idle)?;
        if let Some((how, moment)) = self.kill {
            write!(f, ", kill {how:?} at {moment:?}")?;
        }
        if self.ipv6 {
            f.write_str(", IPv6")?;
        }
        if self.roles == Roles::Dual {
            f.write_str(", dual role")?;
        }
        self.sysctls.iter().try_for_each(|(key, value)| write!(f, ", {key}={value}"))
    }
}

impl Scenario {
    /// nginx, four curls of 10 MB over 200 Mbit/s, twenty idle connections, IPv4, no failure.
    #[must_use]
    pub fn new() -> Scenario {
        Scenario {
            server: Server::Nginx,
            service: None,
            client: Client::Curl,
            clients: 4,
            idle: 20,
            history: 1,
            size: 10 * MB,
            rate_mbit: Some(200),
            ipv6: false,
            roles: Roles::Single,
            sysctls: Vec::new(),
            kill: None,
            victim: None,
        }
    }

    /// Another server.
    #[must_use]
    pub fn server(mut self, server: Server) -> Self {
        self.server = server;
        self
    }

    /// A service of the test's own instead of a web server.
    #[must_use]
    pub fn service(mut self, service: Service) -> Self {
        self.service = Some(service);
        self
    }

    /// Another client program.
    #[must_use]
    pub fn client(mut self, client: Client) -> Self {
        self.client = client;
        self
    }

    /// So many downloads.
    #[must_use]
    pub fn clients(mut self, clients: usize) -> Self {
        self.clients = clients;
        self
    }

    /// So many idle connections.
    #[must_use]
    pub fn idle(mut self, connections: usize) -> Self {
        self.idle = connections;
        self
    }

    /// Each idle connection has had so many requests answered.
    #[must_use]
    pub fn history(mut self, requests: usize) -> Self {
        self.history = requests;
        self
    }

    /// So many bytes each.
    #[must_use]
    pub fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// Rate of the service link, Mbit/s.
    #[must_use]
    pub fn rate(mut self, mbit: u64) -> Self {
        self.rate_mbit = Some(mbit);
        self
    }

    /// The links are as fast as the machine.
    #[must_use]
    pub fn unshaped(mut self) -> Self {
        self.rate_mbit = None;
        self
    }

    /// Clients use IPv6.
    #[must_use]
    pub fn ipv6(mut self) -> Self {
        self.ipv6 = true;
        self
    }

    /// Each node serves one half of the connections.
    #[must_use]
    pub fn dual(mut self) -> Self {
        self.roles = Roles::Dual;
        self
    }

    /// A setting of the clients' host, such as `net.ipv4.tcp_sack`.
    #[must_use]
    pub fn client_sysctl(mut self, key: &str, value: &str) -> Self {
        self.sysctls.push((key.to_owned(), value.to_owned()));
        self
    }

    /// The primary fails.
    #[must_use]
    pub fn kill(mut self, how: How, moment: Moment) -> Self {
        self.kill = Some((how, moment));
        if moment == Moment::LastKilobyte {
            // Slow enough, and with so little under way, that the last kilobyte can be hit.
            self.rate_mbit = Some(8);
            self.size = self.size.min(MB / 2);
            self.sysctls.push(("net.ipv4.tcp_rmem".into(), "4096 8192 16384".into()));
        }
        self
    }

    /// Where both nodes serve: the one that fails.
    #[must_use]
    pub fn victim(mut self, node: &'static str) -> Self {
        self.victim = Some(node);
        self
    }

    /// Brings everything up.
    ///
    /// # Panics
    /// If it cannot be brought up.
    pub fn up(self) -> Stage {
        Stage::up(self)
    }

    /// Plays the story: downloads and idle connections start, the primary fails at the
    /// moment, and every client must get identical bytes without an error. What is left can be
    /// asked more.
    ///
    /// # Panics
    /// If a client noticed.
    pub fn run(self) -> (Stage, Finished) {
        undisturbed(|| self.clone().play())
    }

    fn play(self) -> (Stage, Finished) {
        let (how, moment) = self.kill.expect("a story needs a failure: say kill(…)");
        let stage = self.up();
        let victim = stage.victim().unwrap_or_else(|| stage.primary());
        let idle = stage.open_idle();
        let batch = stage.start_downloads();
        batch.wait_for(moment);
        let killed_ns = stage.kill(victim, how);
        stage.finish_idle(idle);
        let finished = batch.finish();
        finished.expect_identical();
        if how == How::Hang {
            // It must be silent on waking, too.
            stage.wait_for_status(victim, "goes on and follows the other node", |status| {
                ["backup", "joining"].contains(&status.role.as_str())
            });
        }
        stage.expect_took_over(victim, how, killed_ns);
        (stage, finished)
    }
}

//! A pair of nodes on which a scenario plays.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use demo::clock::{Bell, boottime_ns, now_ns};
use demo::config::Roles;
use demo::download::Download;
use demo::idle::Idle;
use demo::operator::{Event, Status};
use demo::pair::{NODES, Pair, Service, Spec, other};
use demo::site::Site;
use lab::{Armed, Cut, Host, Kill, Trip};

use crate::batch::Batch;
use crate::machine::{self, DETECTION_MS};
use crate::scenario::{How, Scenario};
use crate::trace;
use crate::witness::{Witness, weigh, wire_queue};

/// How long anything may take that should happen soon.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How long a failed node's frames may still come after the other one's promotion. A lease that
/// runs out leaves a quarter of the detection time for them (`queue_ms`); a node that hands over
/// because its server has crashed does not wait.
fn wire_queue_after(rate_mbit: Option<u64>, how: How) -> Duration {
    let queue = wire_queue(rate_mbit);
    match how {
        How::Process | How::Crash => queue,
        _ if rate_mbit.is_none() => queue,
        _ => queue.saturating_sub(Duration::from_millis(u64::from(DETECTION_MS) / 4)),
    }
}

/// One stage at a time in this process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The pair, up and ready. Dropped, it asks the oracle about everything that the network has
/// seen, and panics if something must not be. Dropped while the test fails, it leaves everything
/// behind that can tell why.
#[derive(Debug)]
pub struct Stage {
    /// The nodes and their hosts.
    pub pair: Pair,
    scenario: Scenario,
    /// Since when it is up, on [`now_ns`]'s clock.
    up_ns: u64,
    /// The test has made something fail: from now on nodes may change their roles.
    meddled: Cell<bool>,
    witness: Witness,
    _turn: MutexGuard<'static, ()>,
}

impl Stage {
    pub(crate) fn up(mut scenario: Scenario) -> Stage {
        machine::watch();
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        let service = scenario.service.take();
        let spec = Spec {
            binary: Some(product()),
            rate_mbit: scenario.rate_mbit,
            cluster_rate_mbit: None,
            ipv6: scenario.ipv6,
            size: scenario.size,
            services: vec![service.unwrap_or_else(|| Service::web(scenario.server))],
            detection_ms: DETECTION_MS,
            roles: scenario.roles,
            capture: true,
            artifacts: workspace().join("target/e2e-failures").join(test_name()),
        };
        let pair = Pair::up(&spec).unwrap_or_else(|e| panic!("{scenario:?}: {e:#}"));
        // Before anything that a client does; the nodes are settled and have no flows.
        let witness = Witness::start_for(scenario.roles, &pair.lab, pair.at(), scenario.rate_mbit)
            .unwrap_or_else(|e| panic!("{e:#}"));
        let meddled = Cell::new(false);
        let stage = Stage { pair, scenario, up_ns: now_ns(), meddled, witness, _turn: turn };
        for (key, value) in &stage.scenario.sysctls {
            stage.set_sysctl(key, value);
        }
        eprintln!("{:?}: up after {:?}", stage.scenario, started.elapsed());
        stage
    }

    fn set_sysctl(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        let write = || fs::write(&path, value);
        let written = self.client().in_netns(write).unwrap_or_else(|e| panic!("{e}"));
        written.unwrap_or_else(|e| panic!("cannot write {path}: {e}"));
    }

    /// The clients' host.
    pub fn client(&self) -> &Host {
        self.pair.client().unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// The primary's name.
    ///
    /// # Panics
    /// If there is not exactly one.
    pub fn primary(&self) -> &'static str {
        self.pair.primary().unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// The node that is to fail, if the scenario says.
    pub(crate) fn victim(&self) -> Option<&'static str> {
        self.scenario.victim
    }

    /// A node's status.
    ///
    /// # Panics
    /// If its daemon does not answer.
    pub fn status(&self, node: &str) -> Status {
        self.pair.status(node).unwrap_or_else(|e| panic!("node {node}: {e:#}"))
    }

    /// Starts the scenario's downloads.
    pub fn start_downloads(&self) -> Batch {
        let bell = Bell::default();
        let (client, at) = (self.scenario.client, self.pair.at());
        let start = |_| {
            Download::start(self.client(), client, at, Site::LARGE, &bell)
                .unwrap_or_else(|e| panic!("{e:#}"))
        };
        let downloads = (0..self.scenario.clients).map(start).collect();
        Batch::new(downloads, bell, self.pair.site.size, self.pair.site.sha256)
    }

    /// Opens the scenario's idle connections.
    pub fn open_idle(&self) -> Idle {
        let (at, site) = (self.pair.at(), &self.pair.site);
        let history = self.scenario.server.keeps_alive().then_some(self.scenario.history);
        Idle::open(self.client(), at, site, self.scenario.idle, history, PATIENCE)
            .unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Idle connections get another request, and must all get the right answer.
    ///
    /// # Panics
    /// If one does not.
    pub fn finish_idle(&self, idle: Idle) {
        let report = idle.finish(&self.pair.site, PATIENCE);
        let (count, failures) = (report.failures.len(), report.failures.join("\n"));
        assert!(count == 0, "{count} of {} noticed:\n{failures}", report.connections);
    }

    /// Before the first failure that a test causes there is no other.
    fn expect_no_failover_yet(&self) {
        if self.meddled.replace(true) {
            return;
        }
        // A backup that was missed for a moment has lost the flows as well.
        self.expect_no("suspected", self.up_ns);
    }

    /// No node has reported such an event since `since_ns`.
    ///
    /// # Panics
    /// If one has; the test is played again if the machine itself stood still.
    pub fn expect_no(&self, event: &str, since_ns: u64) {
        if let Some((node, event)) = self.events(event, since_ns).first() {
            machine::blame(&format!("{node} reports {event:?}"), event.boottime_ns, DETECTION_MS);
        }
    }

    /// Everything that the nodes have reported and that was heard in time, in order.
    pub fn heard(&self) -> Vec<(&'static str, Event)> {
        self.witness.listen(&self.pair.lab);
        self.witness.heard()
    }

    /// Makes a node fail; when, on [`now_ns`]'s clock.
    ///
    /// # Panics
    /// If the lab cannot do it.
    pub fn kill(&self, node: &str, how: How) -> u64 {
        self.expect_no_failover_yet();
        self.witness.listen(&self.pair.lab);
        let carried = self.pair.status(node).is_ok_and(|s| s.is_backed());
        let at_ns = self.pair.kill(node, &how.kill()).unwrap_or_else(|e| panic!("{e:#}"));
        match how {
            How::Host => self.witness.died(node, at_ns),
            // Only now has every process got its signal.
            How::Process | How::Crash if carried => self.witness.crashed(node, now_ns()),
            How::Process | How::Crash | How::Daemon | How::Hang => {}
        }
        at_ns
    }

    /// The workers of a primary's nginx crash, and their parent replaces them; when, on [`now_ns`]'s
    /// clock.
    ///
    /// # Panics
    /// If it has none.
    pub fn crash_workers(&self, node: &str) -> u64 {
        self.expect_no_failover_yet();
        self.witness.listen(&self.pair.lab);
        let matching = Some("worker process".to_owned());
        let kill = Kill::Process { signal: libc::SIGSEGV, matching };
        let at_ns = self.pair.kill(node, &kill).unwrap_or_else(|e| panic!("{e:#}"));
        self.witness.crashed(node, now_ns());
        at_ns
    }

    /// Arms a trip: what it does will have been done to the nodes.
    pub fn arm(&self, trip: &Trip) -> Armed {
        self.expect_no_failover_yet();
        self.witness.listen(&self.pair.lab);
        self.pair.lab.arm(trip).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Whether it has tripped within this time. Who died of it is dead.
    pub fn has_tripped(&self, armed: &Armed, within: Duration) -> bool {
        let Some(tripped) = armed.wait(within).unwrap_or_else(|e| panic!("{e}")) else {
            return false;
        };
        for node in &tripped.killed {
            self.witness.died(node, boottime_ns(tripped.at));
        }
        true
    }

    /// Cuts a link silently.
    pub fn cut(&self, link: &str) -> u64 {
        self.expect_no_failover_yet();
        self.pair.lab.cut(link, Cut::default()).unwrap_or_else(|e| panic!("{e}"));
        now_ns()
    }

    /// Heals it.
    pub fn heal(&self, link: &str) {
        self.pair.lab.heal(link).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Boots a dead node and waits until the pair is whole.
    ///
    /// # Panics
    /// If it does not get there.
    pub fn bring_back(&self, node: &str) {
        self.boot(node);
        self.pair.wait_ready().unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// Boots a dead node.
    ///
    /// # Panics
    /// If it cannot be booted.
    pub fn boot(&self, node: &str) {
        let boot = || -> anyhow::Result<()> {
            self.witness.boots(node);
            self.pair.lab.boot(node)?;
            self.witness.plugged_in(&self.pair.lab, node)?;
            self.pair.lab.start_again(node)?;
            Ok(())
        };
        boot().unwrap_or_else(|e| panic!("{e:#}"));
    }

    /// Waits until a node's status is as wanted.
    ///
    /// # Panics
    /// If it does not get there.
    pub fn wait_for_status(&self, node: &str, what: &str, wanted: impl Fn(&Status) -> bool) {
        self.eventually(&format!("node {node}: {what}"), || {
            self.pair.status(node).is_ok_and(|status| wanted(&status))
        });
    }

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// If it does not.
    pub fn eventually(&self, what: &str, mut condition: impl FnMut() -> bool) {
        // Nobody rings: the condition is asked every 20 ms.
        assert!(Bell::default().wait_until(PATIENCE, &mut condition), "not in time: {what}");
    }

    /// Events of both nodes with this name, since `since_ns`.
    pub fn events(&self, name: &str, since_ns: u64) -> Vec<(&'static str, Event)> {
        let mut events = self.pair.events_since(since_ns);
        events.retain(|(_, event)| event.event == name);
        events
    }

    /// The other node took over, the dead one is silent, and no two nodes served at once
    /// (invariant 3).
    ///
    /// # Panics
    /// If not so.
    pub fn expect_took_over(&self, victim: &str, how: How, killed_ns: u64) {
        let survivor = other(victim);
        let status = self.status(survivor);
        let shares = status.shares.iter().flatten();
        let serves_all = status.role == "primary" && shares.clone().all(|s| s.role == "primary");
        assert!(serves_all, "{survivor} did not take over");
        assert!(status.takeover.adopted > 0, "no flow was adopted, yet the clients are happy?");
        assert_eq!(status.takeover.reset, 0, "flows were reset: {:?}", status.takeover);
        self.expect_one_primary(killed_ns);
        if self.scenario.roles == Roles::Dual && how != How::Host {
            // It passes on what the other one says in its own half: the oracle knows which is which.
            return;
        }
        let promoted = self.events("promoted", killed_ns);
        let (_, promoted) = promoted.first().expect("a new primary reports its promotion");
        // A host that is gone is silent from that instant, whatever its kernel had in hand.
        let fenced_ns =
            promoted.boottime_ns + wire_queue_after(self.scenario.rate_mbit, how).as_nanos() as u64;
        let from = if how == How::Host { killed_ns } else { fenced_ns };
        self.expect_silence(victim, from);
    }

    /// No node found out that two served at once.
    ///
    /// # Panics
    /// If one did.
    pub fn expect_one_primary(&self, since_ns: u64) {
        let two = self.events("two_primaries", since_ns);
        assert!(two.is_empty(), "split brain: {two:?}");
    }

    /// From `since_ns` on, no segment from the service address has left `node` on the service
    /// link. Once the other node has it for a backup it passes segments on, of which the oracle
    /// judges.
    ///
    /// # Panics
    /// If one has.
    pub fn expect_silence(&self, node: &str, since_ns: u64) {
        let host = self.pair.lab.host(node).unwrap_or_else(|e| panic!("{e}"));
        let mac = host.mac(lab::Link::Service);
        // A role's time is that from which the kernel may obey. What the other node is at
        // `since_ns` it may have become long before.
        let roles: Vec<_> =
            self.events("role", 0).into_iter().filter(|(who, _)| *who != node).collect();
        let then = roles.iter().rposition(|(_, role)| role.boottime_ns <= since_ns).unwrap_or(0);
        let duplex = |role: &Event| role.fields.get("duplex") == Some(&true.into());
        let backup = roles[then..].iter().find(|(_, role)| duplex(role));
        let backup_ns = backup.map(|(_, role)| role.boottime_ns);
        let (dir, at) = (self.pair.lab.dir(), self.pair.at());
        let said = trace::segments_from(dir, mac, at, since_ns, backup_ns)
            .unwrap_or_else(|e| panic!("cannot read the capture: {e:#}"));
        assert!(
            said.is_empty(),
            "{} segments left {node} after it had to be silent; the first ones: {:#?}",
            said.len(),
            &said[..said.len().min(5)]
        );
    }

    /// Ends the captures and asks the oracle, whose word is then the test's to judge: nobody asks
    /// again when the stage is dropped.
    ///
    /// # Panics
    /// If the captures cannot be read.
    pub fn verdict(&self) -> oracle::Verdict {
        self.witness.judge(&self.pair.lab).unwrap_or_else(|e| panic!("no verdict: {e:#}"))
    }

    /// Asks the oracle, unless somebody has.
    fn judge(&self) -> Result<(), String> {
        if self.witness.has_judged() {
            return Ok(());
        }
        let dir = self.pair.lab.dir();
        let started = Instant::now();
        let verdict =
            self.witness.judge(&self.pair.lab).map_err(|e| format!("no verdict: {e:#}"))?;
        let (classes, exempt) = (verdict.by_class(), verdict.exemptions.len());
        let (took, numbers) = (started.elapsed(), &verdict.statistics);
        eprintln!("oracle, in {took:?}: {numbers}; {classes:?}, {exempt} exempt");
        weigh(&verdict, dir)
    }

    /// Leaves beside the logs what the daemons say about themselves.
    fn write_last_words(&self) {
        let dir = self.pair.lab.dir();
        for node in NODES {
            if let Ok(status) = self.pair.status(node) {
                let _ = fs::write(dir.join(format!("{node}.status")), format!("{status:#?}\n"));
            }
        }
        let events = self.pair.events_since(0);
        let line = |(node, e): &(&str, Event)| {
            format!("{:>16.3} {node} {}: {}\n", e.boottime_ns as f64 / 1e6, e.event, e.text)
        };
        let text: String = events.iter().map(line).collect();
        let _ = fs::write(dir.join("events"), &text);
        eprintln!("events of both nodes (ms):\n{text}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let judged = self.judge();
        if failed || judged.is_err() {
            self.write_last_words();
            let exe = std::env::current_exe().unwrap_or_default();
            let stem = exe.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let binary = stem.rsplit_once('-').map_or(stem.as_str(), |(name, _)| name);
            eprintln!(
                "scenario: {:?}\nagain, as root: STEADFAST_BIN={} cargo test -p e2e --test {binary} \
                 -- --exact {} --nocapture",
                self.scenario,
                product().display(),
                test_name()
            );
        }
        // The lab is dropped next, and keeps its files during a panic.
        match judged {
            Err(why) if failed => eprintln!("{why}"),
            Err(why) => panic!("{why}"),
            Ok(()) => {}
        }
    }
}

/// The name of the running test.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("main").to_owned()
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/e2e is two deep")
}

/// The binary under test: `$STEADFAST_BIN`, else the newer of those that cargo has built.
fn product() -> PathBuf {
    if let Some(binary) = std::env::var_os("STEADFAST_BIN") {
        return binary.into();
    }
    let built = |profile| workspace().join("target").join(profile).join("steadfast");
    let age = |path: &PathBuf| fs::metadata(path).and_then(|m| m.modified()).ok();
    let newest = ["release", "debug"].map(built).into_iter().filter(|p| p.exists()).max_by_key(age);
    newest.expect("there is no target/{release,debug}/steadfast: run make build")
}

//! A shop, no reply of which can be made twice, on a pair of nodes.
//!
//! Its clients tell what they noticed, its logs what it did, and the oracle what went over the
//! wires: none of them may have anything to say.

use std::time::Duration;

use demo::clock::{Bell, now_ns};
use demo::config::Scheme;
use demo::pair::other;
use demo::shop::{self, Audit, Crowd, CrowdSpec, Notes, Reign, Trouble, dial_from, read_logs};
use e2e::{How, PATIENCE, Scenario, Service, Stage, undisturbed};

const CLIENTS: usize = 32;

/// Clients at work in a shop.
struct Shopping<'a> {
    stage: &'a Stage,
    crowd: Crowd,
    bell: Bell,
    each: usize,
}

impl<'a> Shopping<'a> {
    /// Starts them; each makes so many requests, and waits so long for a byte.
    fn start(stage: &'a Stage, seed: u64, each: usize, patience: Duration) -> Shopping<'a> {
        let bell = Bell::default();
        let dial = dial_from(stage.client(), stage.pair.at(), PATIENCE);
        let spec = CrowdSpec { clients: CLIENTS, each, patience, seed, dial };
        let crowd = Crowd::start(&spec, &bell).unwrap_or_else(|e| panic!("{e:#}"));
        Shopping { stage, crowd, bell, each }
    }

    /// Waits until half of the replies have come.
    fn wait_for_half(&self) {
        let replies = || self.crowd.replies().iter().sum::<u64>();
        let half = (CLIENTS * self.each / 2) as u64;
        let came = self.bell.wait_until(PATIENCE, || replies() >= half);
        assert!(came, "of {half} replies only {} have come", replies());
        assert_eq!(self.crowd.first_failure(), None);
        assert!(self.crowd.at_work() > 0, "all were served: they need more requests");
    }

    /// Waits for the end of all: nobody noticed, and the logs agree. `first` was the first node to
    /// serve on this stage, and `earlier` are those who were here before. How many requests were
    /// executed twice is said beside what all of them have noted.
    fn expect_nobody_noticed(self, first: &str, earlier: Vec<Notes>) -> (Vec<Notes>, usize) {
        let mut notes = self.crowd.finish();
        let failures: Vec<_> = notes.iter().flat_map(|n| &n.failures).collect();
        assert!(failures.is_empty(), "clients noticed: {failures:#?}");
        notes.extend(earlier);
        let audit = audit(self.stage, first, &notes);
        assert!(audit.faults.is_empty(), "the logs disagree: {:#?}", audit.faults);
        let sent: usize = notes.iter().map(|n| n.sent.len()).sum();
        assert_eq!(audit.confirmed(), sent);
        let (executed, twice) = (audit.executions, audit.twice.len());
        eprintln!("{sent} requests, {executed} executions, {twice} twice");
        (notes, twice)
    }
}

fn audit(stage: &Stage, first: &str, notes: &[Notes]) -> Audit {
    let heard = stage.heard();
    let reigns = Reign::of(first, heard.iter().map(|(node, event)| (*node, event)));
    let logs = read_logs(stage.pair.lab.dir()).unwrap_or_else(|e| panic!("{e:#}"));
    Audit::new(notes, &logs, &[reigns])
}

fn stage(service: Service) -> Stage {
    Scenario::new().service(service).size(50_000).idle(0).rate(1000).up()
}

/// Clients come, something is done when half of the replies have come, and nobody notices. `act`,
/// which is told who serves, returns when it took effect; so does this.
fn unnoticed(stage: &Stage, act: impl FnOnce(&'static str) -> u64) -> u64 {
    let first = stage.primary();
    let shopping = Shopping::start(stage, 7, 30, PATIENCE);
    shopping.wait_for_half();
    let since_ns = act(first);
    shopping.expect_nobody_noticed(first, Vec::new());
    stage.expect_one_primary(since_ns);
    since_ns
}

fn primary_fails(how: How) {
    undisturbed(|| {
        let stage = stage(shop::service());
        let victim = stage.primary();
        let killed_ns = unnoticed(&stage, |primary| stage.kill(primary, how));
        if how == How::Hang {
            stage.wait_for_status(victim, "goes on and follows the other node", |status| {
                ["backup", "joining"].contains(&status.role.as_str())
            });
        }
        stage.expect_took_over(victim, how, killed_ns);
    });
}

fn backup_fails(how: How) {
    undisturbed(|| {
        let stage = stage(shop::service());
        let primary = stage.primary();
        let killed_ns = unnoticed(&stage, |primary| stage.kill(other(primary), how));
        stage.wait_for_status(primary, "serves without a backup", |s| {
            s.role == "primary" && !s.duplex
        });
        stage.expect_no("promoted", killed_ns);
    });
}

/// Of two that serve, each one half of the clients.
fn one_of_two_fails(victim: &'static str, how: How) {
    undisturbed(|| {
        let scenario = Scenario::new().service(shop::service()).dual();
        let stage = scenario.size(50_000).idle(0).rate(1000).up();
        let shopping = Shopping::start(&stage, 7, 30, PATIENCE);
        shopping.wait_for_half();
        let killed_ns = stage.kill(victim, how);
        // The other one serves its own half all along: of two executions the victim's is the first.
        shopping.expect_nobody_noticed(victim, Vec::new());
        stage.expect_took_over(victim, how, killed_ns);
    });
}

#[test]
fn of_two_that_serve_a_host_dies() {
    one_of_two_fails("a", How::Host);
}

#[test]
fn of_two_that_serve_a_server_is_killed() {
    one_of_two_fails("b", How::Process);
}

#[test]
fn the_primarys_host_dies() {
    primary_fails(How::Host);
}

#[test]
fn the_primarys_server_is_killed() {
    primary_fails(How::Process);
}

#[test]
fn the_primarys_server_crashes() {
    primary_fails(How::Crash);
}

#[test]
fn the_primarys_daemon_dies() {
    primary_fails(How::Daemon);
}

#[test]
fn the_primary_hangs() {
    primary_fails(How::Hang);
}

/// What is held and not yet ordered to leave must leave all the same.
#[test]
fn the_backups_host_dies() {
    backup_fails(How::Host);
}

#[test]
fn the_backups_daemon_dies() {
    backup_fails(How::Daemon);
}

#[test]
fn the_roles_are_exchanged() {
    undisturbed(|| {
        let stage = stage(shop::service());
        let first = stage.primary();
        let shopping = Shopping::start(&stage, 7, 30, PATIENCE);
        shopping.wait_for_half();
        let asked_ns = now_ns();
        stage.pair.operator(first).switchover().unwrap_or_else(|e| panic!("{e}"));
        let (_, twice) = shopping.expect_nobody_noticed(first, Vec::new());
        assert_eq!(twice, 0, "the primary answers what it was asked before it goes");
        stage.expect_one_primary(asked_ns);
        stage.wait_for_status(other(first), "is primary", |s| s.role == "primary");
    });
}

/// The order to release goes another way, and so does what the servers write.
#[test]
fn the_cluster_link_is_cut() {
    undisturbed(|| {
        let stage = stage(shop::service());
        let primary = stage.primary();
        let cut_ns = unnoticed(&stage, |_| stage.cut("cluster"));
        assert_eq!(stage.primary(), primary, "one silent link is no reason to move");
        stage.expect_no("promoted", cut_ns);
    });
}

/// What was ordered to leave is heard by nobody.
#[test]
fn the_primarys_service_link_is_cut() {
    undisturbed(|| {
        let stage = stage(shop::service());
        let first = stage.primary();
        unnoticed(&stage, |primary| stage.cut(&format!("{primary}.svc")));
        assert_eq!(stage.primary(), other(first));
    });
}

/// Long enough for the other node to take over. What the primary had still to send, and what its
/// server goes on to say, must reach nobody: the other one's replies say something else.
#[test]
fn the_primary_is_cut_off_and_returns() {
    undisturbed(|| {
        let stage = stage(shop::service());
        let first = stage.primary();
        let cut_ns = unnoticed(&stage, |primary| {
            let cut_ns = stage.cut(primary);
            stage.wait_for_status(other(primary), "takes over", |s| s.role == "primary");
            stage.heal(primary);
            cut_ns
        });
        stage.wait_for_status(other(first), "has a backup again", |s| s.duplex);
        stage.expect_silence(first, cut_ns);
    });
}

/// Shorter than the detection time.
#[test]
fn both_links_blink() {
    undisturbed(|| {
        let stage = stage(shop::service());
        unnoticed(&stage, |primary| {
            let cut_ns = stage.cut(primary);
            stage.heal(primary);
            cut_ns
        });
    });
}

/// The second death is carried by the node that had died first.
#[test]
fn a_node_dies_returns_and_takes_over() {
    undisturbed(|| {
        let stage = stage(shop::service());
        let first = stage.primary();
        let shopping = Shopping::start(&stage, 7, 16, PATIENCE);
        shopping.wait_for_half();
        stage.kill(first, How::Host);
        let (notes, _) = shopping.expect_nobody_noticed(first, Vec::new());
        stage.bring_back(first);
        let second = stage.primary();
        assert_eq!(second, other(first), "a return alone moves nothing");
        let shopping = Shopping::start(&stage, 1007, 16, PATIENCE);
        shopping.wait_for_half();
        let killed_ns = stage.kill(second, How::Host);
        shopping.expect_nobody_noticed(first, notes);
        stage.expect_took_over(second, How::Host, killed_ns);
    });
}

/// The control: protected as if its replies were the same each time, the shop must look broken to
/// its clients. If it does not, they would not notice what the scheme `message` does wrong either.
#[test]
fn clients_notice_that_track_is_not_for_a_shop() {
    let stage = stage(Service { scheme: Scheme::Track, ..shop::service() });
    let shopping = Shopping::start(&stage, 11, 60, Duration::from_secs(3));
    shopping.wait_for_half();
    let victim = stage.primary();
    stage.kill(victim, How::Host);
    let notes = shopping.crowd.finish();

    // Replies that go on with the bytes of another one, or are swallowed as if they had been seen.
    let troubles: Vec<Trouble> =
        notes.iter().flat_map(|n| &n.failures).map(|failure| failure.trouble).collect();
    let wrong = [Trouble::Malformed, Trouble::Mixed, Trouble::Second, Trouble::Hash];
    assert!(troubles.iter().any(|trouble| wrong.contains(trouble)), "{troubles:?}");
    // Everything is executed again, and the clients have the first one's replies.
    let audit = audit(&stage, victim, &notes);
    let again = audit.faults.iter().filter(|fault| fault.contains("executed 2 times")).count();
    assert!(again > 0, "{audit:#?}");
    // The oracle would say the same of the bytes: they are not judged here.
    stage.verdict();
}

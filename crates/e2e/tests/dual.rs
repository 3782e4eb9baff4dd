//! Both nodes serve, each one half of the connections, and back each other up (C6).

use demo::clock::now_ns;
use demo::config::Scheme;
use demo::operator::Status;
use demo::pair::NODES;
use e2e::{How, MB, Moment, Scenario, Server, Service, Stage, full, undisturbed};

/// Enough connections for either half to have some.
fn scenario() -> Scenario {
    Scenario::new().dual().clients(8).idle(40).size(4 * MB)
}

fn message() -> Service {
    Service { scheme: Scheme::Regenerate, ..Service::web(Server::Nginx) }
}

/// Of the idle connections, each node has some to serve and some to back up.
fn expect_halves(stage: &Stage) {
    for node in NODES {
        let status = stage.status(node);
        assert!(status.is_at_home(), "{node} does not serve its half: {:?}", status.shares);
        assert!(status.flows.tracked > 0, "{node} backs up nothing: {status:?}");
    }
}

macro_rules! deaths {
    ($($name:ident: $victim:literal, $how:ident, $moment:ident, $held:literal;)*) => {$(
        #[test]
        fn $name() {
            for held in [false, true].into_iter().filter(|held| *held == $held || full()) {
                let scenario = if held { scenario().service(message()) } else { scenario() };
                scenario.victim($victim).kill(How::$how, Moment::$moment).run();
            }
        }
    )*};
}

// The last column: with replies that are held. `STEADFAST_E2E=full` plays both.
deaths! {
    a_host: "a", Host, Middle, false;
    b_host: "b", Host, Middle, true;
    b_host_at_the_start: "b", Host, Start, false;
    a_process: "a", Process, Middle, true;
    b_crash: "b", Crash, Middle, false;
    b_daemon: "b", Daemon, Middle, true;
    b_hang: "b", Hang, Middle, false;
}

#[test]
fn ipv6_clients_are_halved_as_well() {
    scenario().ipv6().victim("b").kill(How::Host, Moment::Middle).run();
}

/// Who comes back gets its half again, while its clients go on; but not while there are connections
/// that it does not protect.
#[test]
fn a_node_that_returns_is_given_its_half() {
    undisturbed(|| {
        let stage = scenario().rate(20).up();
        for victim in NODES.into_iter().filter(|victim| *victim == "b" || full()) {
            let idle = stage.open_idle();
            expect_halves(&stage);
            let batch = stage.start_downloads();
            batch.wait_for(Moment::Middle);
            let killed_ns = stage.kill(victim, How::Host);
            batch.finish().expect_identical();
            stage.expect_took_over(victim, How::Host, killed_ns);

            let back_ns = now_ns();
            stage.boot(victim);
            let backs_up =
                |s: &Status| s.ready && s.shares.iter().flatten().all(|s| s.role == "backup");
            stage.wait_for_status(victim, "backs everything up", backs_up);
            // For longer than it would take if nobody were left whom it does not protect.
            stage.start_downloads().finish().expect_identical();
            assert!(backs_up(&stage.status(victim)), "connections without a backup were moved");
            let (protected, batch) = (stage.open_idle(), stage.start_downloads());
            stage.finish_idle(idle);
            stage.wait_for_status(victim, "has its half again", Status::is_at_home);
            batch.finish().expect_identical();
            stage.finish_idle(protected);
            stage.expect_one_primary(back_ns);
            assert_eq!(stage.status(victim).takeover.reset, 0, "nothing is lost in a hand-over");
        }
    });
}

/// A node that an operator has emptied is not filled again.
#[test]
fn a_node_that_was_emptied_stays_empty() {
    undisturbed(|| {
        // Longer than it takes until a node is given its half again.
        let stage = scenario().rate(20).up();
        let idle = stage.open_idle();
        let batch = stage.start_downloads();
        batch.wait_for(Moment::Start);
        stage.pair.operator("b").switchover().expect("the peer is ready");
        let empty = |s: &Status| s.shares.iter().flatten().all(|s| s.role == "backup");
        stage.wait_for_status("b", "serves nobody", empty);
        batch.finish().expect_identical();
        stage.finish_idle(idle);
        let a = stage.status("a");
        assert!(a.shares.iter().flatten().all(|share| share.role == "primary"), "{a:?}");
    });
}

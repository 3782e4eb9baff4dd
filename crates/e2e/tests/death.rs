//! A node dies while clients download: nobody notices.
//!
//! `STEADFAST_E2E=full` plays every combination; `make test` those below.

use std::net::{Ipv4Addr, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use demo::pair::other;
use e2e::{Client, How, MB, Moment, PATIENCE, Scenario, Server, Stage, undisturbed};
use lab::{Faults, FrameFilter, Link, Transport, Trip, Way};

macro_rules! deaths {
    ($($name:ident: $server:ident, $how:ident, $moment:ident;)*) => {$(
        #[test]
        fn $name() {
            Scenario::new().server(Server::$server).kill(How::$how, Moment::$moment).run();
        }
    )*};
}

deaths! {
    nginx_host: Nginx, Host, Middle;
    nginx_host_at_the_start: Nginx, Host, Start;
    nginx_host_in_the_last_kilobyte: Nginx, Host, LastKilobyte;
    nginx_process: Nginx, Process, Middle;
    nginx_process_in_the_last_kilobyte: Nginx, Process, LastKilobyte;
    nginx_crash: Nginx, Crash, Middle;
    nginx_daemon: Nginx, Daemon, Middle;
    nginx_hang: Nginx, Hang, Middle;
    nginx_hang_at_the_start: Nginx, Hang, Start;

    apache_host: Apache, Host, Middle;
    apache_host_at_the_start: Apache, Host, Start;
    apache_host_in_the_last_kilobyte: Apache, Host, LastKilobyte;
    apache_process: Apache, Process, Middle;
    apache_daemon: Apache, Daemon, Middle;
    apache_hang: Apache, Hang, Middle;

    python_host: Python, Host, Middle;
    python_host_at_the_start: Python, Host, Start;
    python_host_in_the_last_kilobyte: Python, Host, LastKilobyte;
    python_process: Python, Process, Middle;
    python_crash: Python, Crash, Middle;
    python_daemon: Python, Daemon, Middle;
    python_hang: Python, Hang, Middle;

    busybox_host: Busybox, Host, Middle;
    busybox_host_at_the_start: Busybox, Host, Start;
    busybox_host_in_the_last_kilobyte: Busybox, Host, LastKilobyte;
    busybox_process: Busybox, Process, Middle;
    busybox_crash: Busybox, Crash, Middle;
    busybox_daemon: Busybox, Daemon, Middle;
    busybox_hang: Busybox, Hang, Middle;
}

#[test]
fn many_fast_downloads() {
    let scenario = Scenario::new().clients(20).idle(100).size(20 * MB).rate(1000);
    scenario.kill(How::Host, Moment::Middle).run();
}

/// The server must read more than its buffers hold before it comes to the request that the client
/// waits for.
#[test]
fn a_long_history_is_read_again() {
    for server in [Server::Nginx, Server::Apache] {
        let scenario = Scenario::new().server(server).history(90);
        scenario.kill(How::Host, Moment::Middle).run();
    }
}

#[test]
fn wget() {
    let scenario = Scenario::new().server(Server::Apache).client(Client::Wget);
    scenario.kill(How::Host, Moment::Middle).run();
}

/// What the dead primary said last may come late, and the client's SYN, sent again, be answered by the
/// other node meanwhile. A node that answered with an initial sequence number of its own would have the
/// client believe one, and its TCP the other.
#[test]
fn a_syn_ack_that_outlives_its_host() {
    undisturbed(|| late_syn_ack(Scenario::new()));
    undisturbed(|| late_syn_ack(Scenario::new().ipv6()));
}

fn late_syn_ack(scenario: Scenario) {
    let stage = scenario.clients(1).idle(0).size(50_000).up();
    // The client knows where the service is.
    stage.start_downloads().finish().expect_identical();
    let primary = stage.primary();
    let to_client = format!("{}.{}", stage.client().name(), Link::Service.name());
    let late = Faults { delay: PATIENCE, ..Faults::NONE };
    stage.pair.lab.set_faults(&to_client, &[Way::ToHost], &late).unwrap();
    let syn_ack = |victims: Vec<String>| Trip {
        link: format!("{}.{}", other(primary), Link::Service.name()),
        way: Way::FromHost,
        frame: FrameFilter {
            version: None,
            transport: Some(Transport::Tcp),
            source: Some(80),
            destination: None,
            flags: FrameFilter::SYN,
            without: 0,
            payload: None,
        },
        nth: 1,
        swallow: false,
        kill: !victims.is_empty(),
        victims,
    };
    let first = stage.arm(&syn_ack(vec![primary.to_owned()]));
    let batch = stage.start_downloads();
    assert!(stage.has_tripped(&first, PATIENCE), "nobody answers");
    let second = stage.arm(&syn_ack(Vec::new()));
    // Or else the other node would take itself for cut off: nobody answers what it asks.
    let (chatter, deadline) = (Chatter::new(&stage), Instant::now() + PATIENCE);
    while !stage.has_tripped(&second, Duration::from_millis(10)) {
        assert!(Instant::now() < deadline, "nobody answers again");
        chatter.say_something();
    }
    stage.pair.lab.clear_faults(&to_client).unwrap();
    batch.finish().expect_identical();
}

/// Frames of the client's to everybody.
struct Chatter(UdpSocket, Ipv4Addr);

impl Chatter {
    fn new(stage: &Stage) -> Chatter {
        let [a, b, c, _] = stage.client().ipv4(Link::Service).octets();
        let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        let socket = stage.client().in_netns(bind).unwrap().expect("a socket");
        socket.set_broadcast(true).expect("broadcast is allowed");
        Chatter(socket, Ipv4Addr::new(a, b, c, 255))
    }

    fn say_something(&self) {
        self.0.send_to(b"?", (self.1, 9)).expect("the link is up");
    }
}

#[test]
fn the_whole_matrix() {
    if !e2e::full() {
        eprintln!("skipped: STEADFAST_E2E=full plays it");
        return;
    }
    let mut noticed = Vec::new();
    for server in Server::ALL {
        for how in How::ALL {
            for moment in [Moment::Start, Moment::Middle, Moment::LastKilobyte] {
                for (client, ipv6) in [(Client::Curl, false), (Client::Wget, true)] {
                    let mut scenario = Scenario::new().server(server).client(client);
                    if ipv6 {
                        scenario = scenario.ipv6();
                    }
                    let scenario = scenario.kill(how, moment);
                    let name = format!("{scenario:?}");
                    // The captures of the last failure are kept; the others are for repetition.
                    if catch_unwind(AssertUnwindSafe(|| scenario.run())).is_err() {
                        noticed.push(name);
                    }
                }
            }
        }
    }
    assert!(noticed.is_empty(), "clients noticed in {} scenarios:\n{noticed:#?}", noticed.len());
}

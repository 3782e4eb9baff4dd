//! A node dies while clients download: nobody notices.
//!
//! `STEADFAST_E2E=full` plays every combination; `make test` those below.

use std::panic::{AssertUnwindSafe, catch_unwind};

use e2e::{Client, How, MB, Moment, Scenario, Server};

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

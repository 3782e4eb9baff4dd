//! TCP and IP as clients really speak them: options that are on for one client and off for the
//! next (invariant 4).

use e2e::{How, MB, Moment, Scenario, Server};

fn without(options: &[&str]) -> Scenario {
    options.iter().fold(Scenario::new(), |scenario, option| {
        scenario.client_sysctl(&format!("net.ipv4.tcp_{option}"), "0")
    })
}

#[test]
fn without_timestamps() {
    without(&["timestamps"]).kill(How::Host, Moment::Middle).run();
}

#[test]
fn without_selective_acknowledgements() {
    without(&["sack"]).kill(How::Host, Moment::Middle).run();
}

#[test]
fn without_window_scaling() {
    without(&["window_scaling"]).kill(How::Host, Moment::Middle).run();
}

#[test]
fn without_any_option() {
    let bare = without(&["timestamps", "sack", "window_scaling"]);
    bare.kill(How::Host, Moment::Middle).run();
}

#[test]
fn without_any_option_the_server_crashes() {
    let bare = without(&["timestamps", "sack", "window_scaling"]);
    bare.server(Server::Python).kill(How::Crash, Moment::Middle).run();
}

#[test]
fn over_ipv6_a_host_dies() {
    Scenario::new().ipv6().kill(How::Host, Moment::Middle).run();
}

#[test]
fn over_ipv6_a_server_dies() {
    Scenario::new().ipv6().server(Server::Busybox).kill(How::Process, Moment::Middle).run();
}

#[test]
fn over_ipv6_a_host_hangs() {
    Scenario::new().ipv6().server(Server::Apache).kill(How::Hang, Moment::Middle).run();
}

#[test]
fn over_ipv6_without_any_option() {
    let bare = without(&["timestamps", "sack", "window_scaling"]);
    bare.ipv6().kill(How::Host, Moment::Start).run();
}

#[test]
fn a_reader_slower_than_the_network() {
    // The window closes and opens all the time, across the failure too.
    let slow = Scenario::new().client_sysctl("net.ipv4.tcp_rmem", "4096 8192 16384");
    slow.size(4 * MB).rate(50).kill(How::Host, Moment::Middle).run();
}

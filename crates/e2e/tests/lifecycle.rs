//! The life of a pair: the backup dies, a node returns, roles are exchanged, servers end in
//! good order.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use demo::clock::now_ns;
use demo::config::Scheme;
use demo::find;
use demo::pair::{Service, other};
use e2e::{How, MB, Moment, PATIENCE, Scenario, Server, Stage, undisturbed};

/// Long enough that a node can die and come back under it.
fn long() -> Scenario {
    Scenario::new().size(25 * MB)
}

fn expect_simplex(stage: &Stage, node: &str) {
    stage.wait_for_status(node, "serves without a backup", |s| s.role == "primary" && !s.duplex);
}

/// C5: the survivor goes on, and the address moves to it.
#[test]
fn the_backup_dies() {
    undisturbed(|| {
        for how in [How::Host, How::Daemon] {
            let stage = long().up();
            let primary = stage.primary();
            let (idle, batch) = (stage.open_idle(), stage.start_downloads());
            batch.wait_for(Moment::Middle);
            let killed_ns = stage.kill(other(primary), how);
            batch.finish().expect_identical().expect_no_stall_above(PATIENCE, killed_ns);
            stage.finish_idle(idle);
            expect_simplex(&stage, primary);
            stage.expect_no("promoted", killed_ns);
            // Those that come now find the address at the survivor.
            stage.start_downloads().finish().expect_identical();
        }
    });
}

#[test]
fn the_backup_returns_and_carries_the_next_death() {
    undisturbed(|| {
        let stage = long().up();
        let first = stage.primary();
        stage.kill(other(first), How::Host);
        expect_simplex(&stage, first);
        stage.bring_back(other(first));
        let batch = stage.start_downloads();
        batch.wait_for(Moment::Middle);
        let killed_ns = stage.kill(first, How::Host);
        batch.finish().expect_identical();
        stage.expect_took_over(first, How::Host, killed_ns);
    });
}

#[test]
fn the_primary_returns_as_backup_and_carries_the_next_death() {
    undisturbed(|| {
        let (stage, _) = long().kill(How::Host, Moment::Middle).run();
        let second = stage.primary();
        stage.bring_back(other(second));
        assert_eq!(stage.primary(), second, "a return alone moves nothing");
        let (idle, batch) = (stage.open_idle(), stage.start_downloads());
        batch.wait_for(Moment::Middle);
        let killed_ns = stage.kill(second, How::Host);
        stage.finish_idle(idle);
        batch.finish().expect_identical();
        stage.expect_took_over(second, How::Host, killed_ns);
    });
}

/// A server of several processes replaces those that have crashed: its node is of use again.
#[test]
fn the_workers_of_the_primarys_server_crash() {
    undisturbed(|| {
        let stage = long().server(Server::Nginx).up();
        let primary = stage.primary();
        let (idle, batch) = (stage.open_idle(), stage.start_downloads());
        batch.wait_for(Moment::Middle);
        let killed_ns = stage.crash_workers(primary);
        stage.finish_idle(idle);
        batch.finish().expect_identical();
        stage.expect_took_over(primary, How::Crash, killed_ns);
        let ended = stage.events("server_exited", killed_ns);
        assert!(ended.is_empty(), "its parent lives: {ended:?}");
        stage.wait_for_status(other(primary), "has a backup again", |s| s.duplex);
    });
}

/// Old connections have no backup, and must live on without it when it returns.
#[test]
fn connections_without_a_backup_outlive_its_return() {
    undisturbed(|| {
        let stage = long().rate(100).up();
        let primary = stage.primary();
        let batch = stage.start_downloads();
        batch.wait_for(Moment::Start);
        let killed_ns = stage.kill(other(primary), How::Host);
        expect_simplex(&stage, primary);
        stage.bring_back(other(primary));
        batch.wait_for_more(MB);
        batch.finish().expect_identical();
        stage.expect_one_primary(killed_ns);
    });
}

#[test]
fn a_switchover_is_not_noticed() {
    undisturbed(|| {
        let stage = long().up();
        let (first, since_ns) = (stage.primary(), now_ns());
        let (idle, batch) = (stage.open_idle(), stage.start_downloads());
        batch.wait_for(Moment::Middle);
        stage.pair.operator(first).switchover().unwrap_or_else(|e| panic!("{e}"));
        batch.finish().expect_identical();
        stage.finish_idle(idle);
        stage.wait_for_status(other(first), "is primary", |s| s.role == "primary");
        stage.expect_one_primary(since_ns);
        // And back again, once the first one backs the second one up.
        stage.pair.wait_ready().unwrap_or_else(|e| panic!("{e:#}"));
        let batch = stage.start_downloads();
        batch.wait_for(Moment::Middle);
        stage.pair.operator(other(first)).switchover().unwrap_or_else(|e| panic!("{e}"));
        batch.finish().expect_identical();
        stage.wait_for_status(first, "is primary again", |s| s.role == "primary");
    });
}

#[test]
fn a_daemon_that_is_stopped_hands_over_first() {
    undisturbed(|| {
        let stage = long().up();
        let (first, since_ns) = (stage.primary(), now_ns());
        let batch = stage.start_downloads();
        batch.wait_for(Moment::Middle);
        let daemon = stage.pair.lab.node(first).expect("it runs");
        daemon.signal(15).unwrap_or_else(|e| panic!("{e}"));
        batch.finish().expect_identical();
        stage.eventually("the stopped daemon ends well", || {
            daemon.ended().is_ok_and(|status| status.is_some_and(|s| s.success()))
        });
        stage.wait_for_status(other(first), "is primary", |s| s.role == "primary");
        stage.expect_one_primary(since_ns);
    });
}

fn scripted(name: &str, script: &'static str) -> Service {
    Service {
        name: name.into(),
        port: 80,
        program: Arc::new(move |place| {
            let python = find::program("python3", "python3")?.display().to_string();
            let (ip, port) = (place.at.ip().to_string(), place.at.port().to_string());
            Ok(vec![python, "-c".into(), script.into(), ip, port])
        }),
        scheme: Scheme::Track,
        flow_budget_mib: 1,
    }
}

/// One request over a connection of its own, whose end must come.
fn ask(stage: &Stage, path: &str) -> std::io::Result<String> {
    let at = stage.pair.at();
    let mut stream = stage
        .client()
        .in_netns(|| TcpStream::connect_timeout(&at, PATIENCE))
        .unwrap_or_else(|e| panic!("{e}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

/// Serves `bye` and ends in good order, with the connection open.
const ENDS: &str = r#"
import os, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    connection, _ = listener.accept()
    request = b""
    while b"\r\n\r\n" not in request:
        got = connection.recv(4096)
        if not got:
            break
        request += got
    else:
        if request.startswith(b"GET /end"):
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nbye")
            os._exit(0)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello")
    connection.close()
"#;

/// The same, but leaves without accepting who has come meanwhile.
const LEAVES: &str = r#"
import os, select, socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    connection, _ = listener.accept()
    request = connection.recv(4096)
    if request.startswith(b"GET /leave"):
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nbye")
        connection.close()
        select.select([listener], [], [])
        os._exit(0)
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello")
    connection.close()
"#;

/// A connection that the server never accepted is not one that the server has ended.
#[test]
fn a_server_that_leaves_resets_nobody() {
    undisturbed(|| {
        let stage = Scenario::new().service(scripted("leaves", LEAVES)).idle(0).up();
        let since_ns = now_ns();
        assert!(ask(&stage, "/").unwrap().ends_with("hello"));
        assert!(ask(&stage, "/leave").unwrap().ends_with("bye"));
        // The other node's server answers who was waiting.
        assert!(ask(&stage, "/").unwrap().ends_with("hello"));
        assert_eq!(stage.events("listener_closed", since_ns).len(), 1);
        stage.expect_no("suspected", since_ns);
    });
}

/// C4, the other half: only a crash is muted.
#[test]
fn a_server_that_ends_in_good_order_closes_its_connections() {
    undisturbed(|| {
        let stage = Scenario::new().service(scripted("ends", ENDS)).idle(0).up();
        let since_ns = now_ns();
        assert!(ask(&stage, "/").unwrap().ends_with("hello"));
        assert!(ask(&stage, "/end").unwrap().ends_with("bye"));
        // It was started again, and nobody was taken for dead.
        stage.eventually("the service answers again", || {
            ask(&stage, "/").is_ok_and(|r| r.ends_with("hello"))
        });
        stage.expect_no("server_crashed", since_ns);
        stage.expect_no("suspected", since_ns);
    });
}

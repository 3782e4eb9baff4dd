//! redis: what clients give it is in its memory, and in a log that threads of it write.

use std::net::SocketAddr;
use std::process::Command;

use nix::sys::signal::Signal::SIGTERM;

use super::{End, Place, Server, words};
use crate::guests::serving::{at_once, listens, printed};

pub fn redis(place: &Place) -> Server {
    let (at, dir) = (place.at, place.work().display().to_string());
    let port = at.port().to_string();
    let options = ["--bind", "127.0.0.1", "--port", &port, "--dir", &dir, "--logfile", "log"];
    let keeps = ["--save", "", "--appendonly", "yes"];
    let args = [&options[..], &keeps].concat();
    Server {
        command: words("redis-server", "redis-server", &args),
        answers: Box::new(move || listens(at)),
        serves: Box::new(move || serves(at)),
        end: End::with(SIGTERM, 0),
    }
}

/// What clients add up is the sum of all, also of those who came before: nothing is forgotten.
fn serves(at: SocketAddr) {
    const TIMES: u64 = 20;
    let before = sum(at);
    at_once(|client| {
        let key = format!("key {client}");
        let value = format!("{client} ").repeat(1000 * (client + 1));
        tell(at, &["SET", &key, &value]);
        for _ in 0..TIMES {
            tell(at, &["INCRBY", "sum", &client.to_string()]);
        }
        assert_eq!(tell(at, &["GET", &key]), value);
    });
    let added: u64 = at_once(|client| client as u64 * TIMES).into_iter().sum();
    assert_eq!(sum(at), before + added);
}

fn sum(at: SocketAddr) -> u64 {
    tell(at, &["INCRBY", "sum", "0"]).parse().expect("a number")
}

fn tell(at: SocketAddr, command: &[&str]) -> String {
    let mut redis = Command::new("redis-cli");
    redis.args(["-h", &at.ip().to_string(), "-p", &at.port().to_string(), "-e"]).args(command);
    let reply = String::from_utf8(printed(&mut redis)).expect("text");
    reply.strip_suffix('\n').expect("a line").to_owned()
}

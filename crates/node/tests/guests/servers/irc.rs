//! ngircd: what one client says, the others hear.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::signal::Signal::SIGTERM;

use super::{End, Place, Server, words};
use crate::guests::serving::{CLIENTS, at_once, listens};

pub fn ngircd(place: &Place) -> Server {
    let at = place.at;
    // A client that says much at once is not made to wait.
    let config = format!(
        "[Global]\nName = irc.test\nInfo = test\nListen = {}\nPorts = {}\nMotdPhrase = words\n\
         [Limits]\nMaxConnectionsIP = 0\nMaxPenaltyTime = 0\n\
         [Options]\nDNS = no\nIdent = no\nPAM = no\n",
        at.ip(),
        at.port(),
    );
    let config = place.file("ngircd.conf", config);
    Server {
        command: words("ngircd", "ngircd", &["-n", "-f", &config]),
        answers: Box::new(move || listens(at)),
        serves: Box::new(move || drop(at_once(|number| Client::new(at, number).chats()))),
        end: End::with(SIGTERM, 0),
    }
}

const TIMES: usize = 5;

struct Client {
    name: String,
    stream: BufReader<TcpStream>,
}

impl Client {
    fn new(at: SocketAddr, number: usize) -> Client {
        let stream = TcpStream::connect(at).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
        Client { name: format!("client{number}"), stream: BufReader::new(stream) }
    }

    /// Waits in a room for all others, talks with them, and goes.
    fn chats(mut self) {
        let name = self.name.clone();
        self.says(&format!("NICK {name}\r\nUSER {name} 0 * :{name}"));
        // The end of what it tells everybody who comes.
        while !self.hears().contains(" 376 ") {}
        self.says("JOIN #room");
        let mut there = BTreeSet::new();
        while there.len() < CLIENTS {
            there.extend(who_is_there(&self.hears()));
        }
        for time in 0..TIMES {
            self.says(&format!("PRIVMSG #room :{name} says {time}"));
        }
        let mut said = Vec::new();
        while said.len() < (CLIENTS - 1) * TIMES {
            let line = self.hears();
            said.extend(line.split_once(" PRIVMSG #room :").map(|(_, words)| words.to_owned()));
        }
        self.check(said);
        self.says("QUIT :done");
        while self.reads().is_some() {}
    }

    /// Each of the others has said all, one after the other.
    fn check(&self, mut said: Vec<String>) {
        let others = (0..CLIENTS).map(|n| format!("client{n}")).filter(|name| *name != self.name);
        let expected: Vec<_> =
            others.flat_map(|name| (0..TIMES).map(move |n| format!("{name} says {n}"))).collect();
        // Stable: what one of them has said stays in its order.
        said.sort_by(|a, b| a.split(' ').next().cmp(&b.split(' ').next()));
        assert_eq!(said, expected);
    }

    fn says(&mut self, line: &str) {
        write!(self.stream.get_mut(), "{line}\r\n").expect("it listens");
    }

    fn hears(&mut self) -> String {
        self.reads().expect("the server goes on")
    }

    fn reads(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).expect("a line, in time");
        (read > 0).then(|| line.trim_end().to_owned())
    }
}

/// Those who are in the room already, or the one who comes.
fn who_is_there(line: &str) -> Vec<String> {
    let names = match line.split_once(" 353 ") {
        Some((_, list)) => list.split_once(" :").map_or("", |(_, names)| names),
        None if line.contains(" JOIN ") => {
            line.trim_start_matches(':').split('!').next().unwrap_or("")
        }
        None => "",
    };
    names.split(' ').filter(|name| !name.is_empty()).map(|name| name.replace('@', "")).collect()
}

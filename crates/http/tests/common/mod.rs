//! A connection played from a script: pieces in the order in which they pass, events as they come.

#![allow(dead_code, reason = "each test file uses a part of it")]

use http::{BodyLength, Connection, Doubt, Event, Limits, Verdict};

/// A step of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    Client(&'a [u8]),
    Server(&'a [u8]),
    ClientEnd,
    ServerEnd,
}

pub use Step::{Client, ClientEnd, Server, ServerEnd};

/// An event that owns its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Request {
        number: u64,
        begin: u64,
        head_end: u64,
        words: String,
        body: BodyLength,
        expects_continue: bool,
        persists: bool,
    },
    Other(Event<'static>),
}

impl From<Event<'_>> for Seen {
    fn from(event: Event<'_>) -> Self {
        match event {
            Event::Request(r) => Self::Request {
                number: r.number,
                begin: r.begin,
                head_end: r.head_end,
                words: format!("{} {} {}", r.method, r.target, r.version),
                body: r.body,
                expects_continue: r.expects_continue,
                persists: r.persists,
            },
            Event::RequestEnd { number, end } => Self::Other(Event::RequestEnd { number, end }),
            Event::Interim { request, status, begin, end } => {
                Self::Other(Event::Interim { request, status, begin, end })
            }
            Event::Reply(reply) => Self::Other(Event::Reply(reply)),
            Event::ReplyEnd { request, end, closes } => {
                Self::Other(Event::ReplyEnd { request, end, closes })
            }
            Event::PassThrough(doubt) => Self::Other(Event::PassThrough(doubt)),
        }
    }
}

/// A connection and how far its streams were fed.
pub struct Player {
    pub connection: Connection,
    pub seen: Vec<Seen>,
    at: [u64; 2],
}

impl Player {
    pub fn new(limits: Limits) -> Self {
        Self { connection: Connection::new(limits), seen: Vec::new(), at: [0; 2] }
    }

    pub fn play(&mut self, step: Step<'_>) {
        let [instream, outstream] = &mut self.at;
        let connection = &mut self.connection;
        let events = match step {
            Client(bytes) => connection.instream(forward(instream, bytes), bytes),
            Server(bytes) => connection.outstream(forward(outstream, bytes), bytes),
            ClientEnd => connection.instream_end(*instream),
            ServerEnd => connection.outstream_end(*outstream),
        };
        events.for_each(|event| self.seen.push(event.into()));
    }
}

fn forward(at: &mut u64, bytes: &[u8]) -> u64 {
    std::mem::replace(at, *at + bytes.len() as u64)
}

/// Plays a whole script.
pub fn play(limits: Limits, script: &[Step<'_>]) -> Player {
    let mut player = Player::new(limits);
    script.iter().for_each(|&step| player.play(step));
    player
}

/// The doubt that a script ends in.
pub fn doubt(limits: Limits, script: &[Step<'_>]) -> Option<Doubt> {
    match play(limits, script).connection.verdict() {
        Verdict::Framed => None,
        Verdict::PassThrough { why } => Some(why),
    }
}

/// The script with every piece cut into single bytes.
pub fn bytewise<'a>(script: &[Step<'a>]) -> Vec<Step<'a>> {
    script
        .iter()
        .flat_map(|step| match *step {
            Client(bytes) => bytes.chunks(1).map(Client).collect::<Vec<_>>(),
            Server(bytes) => bytes.chunks(1).map(Server).collect(),
            end => vec![end],
        })
        .collect()
}

/// What was seen, one line per message:
/// `0: GET / HTTP/1.1 [0..18..18]`, `100 for 0 [0..25]`, `200 for 0 [25..63..68]`. Behind it stands
/// `close` if the connection does not persist, `continue?` if 100 is expected. What is not whole ends
/// with `...`.
pub fn lines(seen: &[Seen]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let close = |persists: bool| if persists { "" } else { " close" };
    let (mut request_line, mut reply_line) = (0, 0);
    for event in seen {
        match event {
            Seen::Request {
                number, begin, head_end, words, expects_continue, persists, ..
            } => {
                let expects = if *expects_continue { " continue?" } else { "" };
                let close = close(*persists);
                request_line = lines.len();
                lines.push(format!("{number}: {words} [{begin}..{head_end}...]{expects}{close}"));
            }
            Seen::Other(Event::RequestEnd { end, .. }) => complete(&mut lines[request_line], *end),
            Seen::Other(Event::Interim { request, status, begin, end }) => {
                lines.push(format!("{status} for {request} [{begin}..{end}]"));
            }
            Seen::Other(Event::Reply(r)) => {
                let close = close(r.persists);
                reply_line = lines.len();
                let (begin, head_end) = (r.begin, r.head_end);
                lines.push(format!(
                    "{} for {} [{begin}..{head_end}...]{close}",
                    r.status, r.request
                ));
            }
            Seen::Other(Event::ReplyEnd { end, .. }) => complete(&mut lines[reply_line], *end),
            Seen::Other(Event::PassThrough(doubt)) => lines.push(format!("? {}", doubt.name())),
            Seen::Other(Event::Request(_)) => unreachable!("owned above"),
        }
    }
    lines
}

fn complete(line: &mut String, end: u64) {
    assert!(line.contains("...]"), "ended twice: {line}");
    *line = line.replacen("...]", &format!("..{end}]"), 1);
}

//! A node daemon's operator socket, as a program uses it: ask one thing, read the answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

/// A daemon that hangs must not hang whoever asks it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest answer that is read, bytes.
const LONGEST: u64 = 64 << 20;

/// Why a daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens, or it does not answer.
    #[error("no daemon answers at {}: {source}", socket.display())]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// It answers with something else.
    #[error("the daemon at {} gave an answer that is not understood ({why}): {answer}", socket.display())]
    Odd {
        /// The socket.
        socket: PathBuf,
        /// What is odd.
        why: String,
        /// The beginning of the answer.
        answer: String,
    },
    /// It says no.
    #[error("the daemon refuses: {0}")]
    Refused(String),
}

/// The parts of a daemon's status that the demo and the tests look at; `all` has the rest.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// The node's name.
    pub node: String,
    /// Its role is settled and its servers listen.
    pub ready: bool,
    /// `primary`, `backup`, ….
    pub role: String,
    /// The peer backs this node's flows up.
    #[serde(default)]
    pub duplex: bool,
    /// Counts promotions.
    #[serde(default)]
    pub epoch: u64,
    /// What it thinks of its peer.
    #[serde(default)]
    pub peer: Peer,
    /// Flows now.
    #[serde(default)]
    pub flows: Flows,
    /// The last takeover.
    #[serde(default)]
    pub takeover: Takeover,
    /// Its services.
    #[serde(default)]
    pub services: Vec<ServiceStatus>,
    /// What it is for each share of the flows, if both nodes serve.
    #[serde(default)]
    pub shares: Option<Vec<ShareStatus>>,
    /// Everything, as it was said.
    #[serde(flatten)]
    pub all: Map<String, Value>,
}

/// What a node is for one share of the flows.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ShareStatus {
    /// It serves this share whenever it can.
    pub home: bool,
    /// `primary`, `backup`, ….
    pub role: String,
    /// The peer backs these flows up.
    pub duplex: bool,
}

impl ShareStatus {
    /// It serves this share, and its peer backs it up.
    pub fn is_backed(&self) -> bool {
        self.role == "primary" && self.duplex
    }
}

impl Status {
    /// Whether it serves, all flows or a share of them, and its peer backs these up.
    pub fn is_backed(&self) -> bool {
        let all = self.role == "primary" && self.duplex;
        all || self.shares.iter().flatten().any(ShareStatus::is_backed)
    }

    /// Whether it serves the share that it is to serve, with its peer behind it, and no other one.
    pub fn is_at_home(&self) -> bool {
        let as_wanted = |s: &ShareStatus| match s.home {
            true => s.is_backed(),
            false => s.role == "backup",
        };
        self.shares.as_ref().is_some_and(|shares| shares.iter().all(as_wanted))
    }
}

/// The peer as a node sees it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Peer {
    /// Heard from lately.
    pub alive: bool,
    /// Could serve.
    pub service_ready: bool,
}

/// Flows by state.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Flows {
    /// Logged for the peer.
    pub tracked: u64,
    /// Being taken over.
    pub adopting: u64,
    /// Served here.
    pub open: u64,
    /// Without a backup.
    pub simplex: u64,
}

/// The last takeover.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Takeover {
    /// Flows that were to be taken over.
    pub flows: u64,
    /// Done.
    pub adopted: u64,
    /// Given up.
    pub reset: u64,
    /// Not yet either.
    pub pending: u64,
    /// When the first flow opened, µs after the promotion.
    pub first_open_us: Option<f64>,
    /// When the last one did.
    pub last_open_us: Option<f64>,
}

/// A service as a node sees it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// All its addresses have a listener.
    pub listening: bool,
    /// Its process.
    pub pid: Option<u32>,
    /// How often it was started again.
    pub restarts: u64,
}

/// Something that happened on a node.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Counts the node's events.
    pub seq: u64,
    /// When, on [`crate::clock::now_ns`]'s clock.
    pub boottime_ns: u64,
    /// What, in one word.
    pub event: String,
    /// What, in a sentence.
    #[serde(default)]
    pub text: String,
    /// Everything else that was said about it.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Event {
    /// Whether it is about the flows of this share. Those that name none are about all.
    pub fn is_about(&self, share: u64) -> bool {
        self.fields.get("share").and_then(Value::as_u64).is_none_or(|its| its == share)
    }
}

/// The operator socket of one node.
#[derive(Clone, Debug)]
pub struct Operator {
    socket: PathBuf,
}

impl Operator {
    /// The socket in a state directory.
    pub fn new(state_dir: &Path) -> Operator {
        Operator { socket: state_dir.join("steadfast.sock") }
    }

    /// How the node is.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn status(&self) -> Result<Status, AskError> {
        let line = self.ask(r#"{"ask":"status"}"#, true)?;
        self.parse(&line)
    }

    /// What happened, oldest first.
    ///
    /// # Errors
    /// [`AskError`].
    pub fn events(&self) -> Result<Vec<Event>, AskError> {
        let lines = self.ask(r#"{"ask":"events","follow":false}"#, false)?;
        lines.lines().map(|line| self.parse(line)).collect()
    }

    /// Makes the other node primary.
    ///
    /// # Errors
    /// [`AskError::Refused`] if it may not happen now.
    pub fn switchover(&self) -> Result<(), AskError> {
        #[derive(Deserialize)]
        struct Answer {
            ok: bool,
            why: Option<String>,
        }
        let answer: Answer = self.parse(&self.ask(r#"{"ask":"switchover"}"#, true)?)?;
        let why = || answer.why.unwrap_or_else(|| "it does not say why".to_owned());
        if answer.ok { Ok(()) } else { Err(AskError::Refused(why())) }
    }

    fn ask(&self, question: &str, one_line: bool) -> Result<String, AskError> {
        let ask = || {
            let mut stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.write_all(format!("{question}\n").as_bytes())?;
            // Nothing more will be asked: the daemon closes after its answer.
            stream.shutdown(Shutdown::Write)?;
            let (mut text, mut from) = (String::new(), BufReader::new(stream.take(LONGEST)));
            if one_line { from.read_line(&mut text) } else { from.read_to_string(&mut text) }?;
            Ok(text)
        };
        ask().map_err(|source| AskError::Silent { socket: self.socket.clone(), source })
    }

    fn parse<T: serde::de::DeserializeOwned>(&self, line: &str) -> Result<T, AskError> {
        serde_json::from_str(line).map_err(|e| AskError::Odd {
            socket: self.socket.clone(),
            why: e.to_string(),
            answer: line.chars().take(300).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Answers one question with `answer`.
    fn daemon(answer: &'static str) -> (tempfile::TempDir, Operator) {
        let dir = tempfile::tempdir().unwrap();
        let operator = Operator::new(dir.path());
        let listener = UnixListener::bind(&operator.socket).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        (dir, operator)
    }

    #[test]
    fn a_status_is_understood_with_what_it_says_beyond() {
        let (_dir, operator) = daemon(concat!(
            r#"{"node":"a","ready":true,"role":"primary","duplex":true,"epoch":3,"#,
            r#""peer":{"name":"b","alive":true,"role":"backup","service_ready":true},"#,
            r#""takeover":{"flows":20,"adopted":19,"reset":1,"first_open_us":812.5},"#,
            r#""services":[{"name":"www","listening":true,"pid":77,"restarts":0}],"later":1}"#,
            "\n"
        ));
        let status = operator.status().unwrap();
        assert!(status.ready && status.duplex && status.peer.service_ready);
        assert_eq!((status.takeover.adopted, status.takeover.reset), (19, 1));
        assert_eq!(status.takeover.first_open_us, Some(812.5));
        assert_eq!(status.services[0].pid, Some(77));
        assert_eq!(status.all["later"], 1);
    }

    #[test]
    fn events_are_read_to_the_end() {
        let (_dir, operator) = daemon(
            "{\"seq\":1,\"boottime_ns\":5,\"event\":\"started\"}\n\
             {\"seq\":2,\"boottime_ns\":9,\"event\":\"role\",\"text\":\"x\",\"role\":\"backup\"}\n",
        );
        let events = operator.events().unwrap();
        assert_eq!(events.len(), 2);
        assert_eq!((events[1].boottime_ns, &events[1].fields["role"]), (9, &"backup".into()));
    }

    #[test]
    fn refusals_and_odd_answers_and_silence_differ() {
        let (_dir, operator) = daemon("{\"ok\":false,\"why\":\"no backup\"}\n");
        assert!(matches!(operator.switchover(), Err(AskError::Refused(why)) if why == "no backup"));
        let (_dir, operator) = daemon("hello\n");
        assert!(matches!(operator.status(), Err(AskError::Odd { .. })));
        let nobody = Operator::new(Path::new("/nonexistent"));
        assert!(matches!(nobody.status(), Err(AskError::Silent { .. })));
    }
}

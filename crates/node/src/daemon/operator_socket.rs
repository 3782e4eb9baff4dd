//! The socket in the state directory through which operators ask: one JSON object per line, one
//! answer per line (`events` with `follow` goes on answering).

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::events::Events;
use super::inbox::Post;
use super::membership::Message;
use super::status::Source;

/// Name of the socket in the state directory.
pub const SOCKET: &str = "steadfast.sock";

/// Longest question, in bytes.
const QUESTION_MAX: u64 = 4096;

/// How long membership may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What an operator may ask.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    Status,
    Events {
        #[serde(default)]
        follow: bool,
    },
    Switchover,
}

/// Removes the socket when the daemon ends.
pub struct OperatorSocket {
    path: PathBuf,
}

impl Drop for OperatorSocket {
    fn drop(&mut self) {
        // A file that is gone already is what is wanted.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Listens; every operator gets a thread of his own.
pub fn start(
    state_dir: &Path,
    source: Source,
    events: Events,
    membership: Post<Message>,
) -> anyhow::Result<OperatorSocket> {
    let path = state_dir.join(SOCKET);
    if UnixStream::connect(&path).is_ok() {
        anyhow::bail!(
            "another daemon answers on {}; stop it, or give this node another state_dir",
            path.display()
        );
    }
    // Left behind by a daemon that was killed.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)
        .with_context(|| format!("cannot listen on {}", path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    let source = Arc::new(source);
    std::thread::Builder::new().name("operator".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let (source, events, post) = (source.clone(), events.clone(), membership.clone());
            let answer = move || {
                // An operator who hangs up needs no answer.
                let _ = serve(stream, &source, &events, &post);
            };
            if let Err(error) = std::thread::Builder::new().spawn(answer) {
                tracing::warn!(%error, "cannot answer an operator");
            }
        }
    })?;
    Ok(OperatorSocket { path })
}

fn serve(
    mut stream: UnixStream,
    source: &Source,
    events: &Events,
    membership: &Post<Message>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if lines.by_ref().take(QUESTION_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        match serde_json::from_str(&line) {
            Ok(Question::Status) => writeln!(stream, "{}", source.status())?,
            Ok(Question::Switchover) => writeln!(stream, "{}", switchover(membership))?,
            Ok(Question::Events { follow: false }) => {
                for event in events.kept() {
                    writeln!(stream, "{event}")?;
                }
                return Ok(());
            }
            Ok(Question::Events { follow: true }) => {
                let (kept, coming) = events.follow();
                for event in kept {
                    writeln!(stream, "{event}")?;
                }
                for event in coming {
                    writeln!(stream, "{event}")?;
                }
                return Ok(());
            }
            Err(error) => {
                let error = json!({"ok": false, "why": format!("not a question: {error}")});
                return writeln!(stream, "{error}");
            }
        }
    }
}

fn switchover(membership: &Post<Message>) -> Value {
    let (answer, answered) = mpsc::channel();
    membership.send(Message::Switchover(answer));
    match answered.recv_timeout(ANSWER_WITHIN) {
        Ok(Ok(())) => json!({"ok": true}),
        Ok(Err(why)) => json!({"ok": false, "why": why}),
        Err(_) => json!({"ok": false, "why": "the membership thread does not answer"}),
    }
}

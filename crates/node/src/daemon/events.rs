//! What happened: a bounded list that operators read and follow.
//!
//! Whoever adds an event may be in a hurry: a heartbeat that waits for a log file on a busy disk, or
//! for a lock that an operator's thread holds while others have the processor, looks like a dead
//! host. So an event is only posted where it happens, with its time; a thread of its own writes it.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use serde_json::{Map, Value};

use super::locked;

/// Events kept for readers that come late.
const KEPT: usize = 4096;

/// The event log. Cheap to clone; every clone writes to the same list.
#[derive(Clone)]
pub struct Events {
    post: Sender<Posted>,
    inner: Arc<Mutex<Inner>>,
}

enum Posted {
    Event {
        event: &'static str,
        text: String,
        fields: Value,
        moment: Moment,
    },
    /// Answered when everything posted earlier has been written.
    Flush(Sender<()>),
}

/// When something happened, on both clocks.
#[derive(Clone, Copy)]
pub struct Moment {
    boottime_ns: u64,
    wall: SystemTime,
}

impl Moment {
    pub fn now() -> Self {
        Self { boottime_ns: hostnet::now_boottime_ns(), wall: SystemTime::now() }
    }
}

#[derive(Default)]
struct Inner {
    next: u64,
    kept: VecDeque<Arc<str>>,
    followers: Vec<Sender<Arc<str>>>,
}

impl Events {
    /// Starts the thread that writes; it ends with the last clone.
    pub fn start() -> std::io::Result<Self> {
        let (post, posted) = mpsc::channel();
        let inner = Arc::new(Mutex::new(Inner::default()));
        let list = inner.clone();
        std::thread::Builder::new().name("events".into()).spawn(move || {
            for posted in posted {
                write(&list, posted);
            }
        })?;
        Ok(Self { post, inner })
    }

    /// Adds an event: its name, a sentence for people, and fields for programs. The sentence goes
    /// to the log as well. Never waits.
    pub fn add(&self, event: &'static str, text: &str, fields: Value) {
        self.add_as_of(Moment::now(), event, text, fields);
    }

    /// Adds an event that began then.
    pub fn add_as_of(&self, moment: Moment, event: &'static str, text: &str, fields: Value) {
        let posted = Posted::Event { event, text: text.to_owned(), fields, moment };
        // The thread lives as long as there is anybody to post.
        let _ = self.post.send(posted);
    }

    /// Waits until everything added so far has been written.
    pub fn flush(&self) {
        let (done, written) = mpsc::channel();
        if self.post.send(Posted::Flush(done)).is_ok() {
            let _ = written.recv();
        }
    }

    /// Everything kept, oldest first, and what comes from now on.
    pub fn follow(&self) -> (Vec<Arc<str>>, Receiver<Arc<str>>) {
        let (sender, receiver) = mpsc::channel();
        let mut inner = locked(&self.inner);
        inner.followers.push(sender);
        (inner.kept.iter().cloned().collect(), receiver)
    }

    /// Everything kept, oldest first.
    pub fn kept(&self) -> Vec<Arc<str>> {
        locked(&self.inner).kept.iter().cloned().collect()
    }
}

fn write(list: &Mutex<Inner>, posted: Posted) {
    let (event, text, fields, moment) = match posted {
        Posted::Event { event, text, fields, moment } => (event, text, fields, moment),
        Posted::Flush(done) => {
            // Whoever waited may have given up.
            let _ = done.send(());
            return;
        }
    };
    tracing::info!("{text}");
    let mut inner = locked(list);
    let mut line = Map::new();
    line.insert("seq".into(), inner.next.into());
    line.insert("boottime_ns".into(), moment.boottime_ns.into());
    line.insert("time".into(), humantime::format_rfc3339_millis(moment.wall).to_string().into());
    line.insert("event".into(), event.into());
    line.insert("text".into(), text.into());
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    let line: Arc<str> = Value::Object(line).to_string().into();
    inner.next += 1;
    if inner.kept.len() == KEPT {
        inner.kept.pop_front();
    }
    inner.kept.push_back(line.clone());
    inner.followers.retain(|follower| follower.send(line.clone()).is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_sees_what_was_and_what_comes() {
        let events = Events::start().unwrap();
        events.add("one", "first", serde_json::json!({"n": 1}));
        events.flush();
        let (kept, coming) = events.follow();
        events.add("two", "second", Value::Null);
        assert!(kept[0].contains("\"event\":\"one\"") && kept[0].contains("\"n\":1"));
        assert!(coming.recv().unwrap().contains("\"event\":\"two\""));
    }
}

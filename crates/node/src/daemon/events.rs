//! What happened: a bounded list that operators read and follow.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use serde_json::{Map, Value};

/// Events kept for readers that come late.
const KEPT: usize = 4096;

/// The event log. Cheap to clone; every clone writes to the same list.
#[derive(Clone, Default)]
pub struct Events {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    kept: VecDeque<Arc<str>>,
    followers: Vec<Sender<Arc<str>>>,
}

impl Events {
    /// Adds an event: its name, a sentence for people, and fields for programs. The sentence goes
    /// to the log as well.
    pub fn add(&self, event: &str, text: &str, fields: Value) {
        tracing::info!("{text}");
        let mut line = Map::new();
        let mut inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        line.insert("seq".into(), inner.next.into());
        line.insert("boottime_ns".into(), hostnet::now_boottime_ns().into());
        line.insert(
            "time".into(),
            humantime::format_rfc3339_millis(SystemTime::now()).to_string().into(),
        );
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

    /// Everything kept, oldest first, and what comes from now on.
    pub fn follow(&self) -> (Vec<Arc<str>>, Receiver<Arc<str>>) {
        let (sender, receiver) = mpsc::channel();
        let mut inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        inner.followers.push(sender);
        (inner.kept.iter().cloned().collect(), receiver)
    }

    /// Everything kept, oldest first.
    pub fn kept(&self) -> Vec<Arc<str>> {
        let inner = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        inner.kept.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_sees_what_was_and_what_comes() {
        let events = Events::default();
        events.add("one", "first", serde_json::json!({"n": 1}));
        let (kept, coming) = events.follow();
        events.add("two", "second", Value::Null);
        assert!(kept[0].contains("\"event\":\"one\"") && kept[0].contains("\"n\":1"));
        assert!(coming.try_recv().unwrap().contains("\"event\":\"two\""));
    }
}

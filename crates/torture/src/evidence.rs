//! What was seen in a run, unjudged.

use std::collections::BTreeMap;

use demo::shop::Twice;
use lab::Starved;
use serde::Serialize;

/// What a client program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// It fetched the large file.
    Download,
    /// It sent it and got its hash.
    Upload,
    /// It bought in the shop, on one connection after the other.
    Shopping,
}

/// How one client program fared.
#[derive(Clone, Debug, Serialize)]
pub struct ClientReport {
    /// What it did.
    pub job: Job,
    /// 0: begun before the first fault; 1: after the pair had been mended.
    pub batch: usize,
    /// Bytes that it got; nobody counts those of a shop's clients.
    pub bytes: u64,
    /// What it complained about.
    pub error: Option<String>,
    /// What it got although nobody should have sent it, such as other bytes than the file's.
    pub wrong: Option<String>,
    /// The longest time without progress from the last fault on, ms. No uploads.
    pub gap_ms: Option<f64>,
}

impl ClientReport {
    /// It noticed something.
    pub fn noticed(&self) -> bool {
        self.error.is_some() || self.wrong.is_some()
    }
}

/// What a shop's clients were told, and what it has done.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shop {
    /// Requests that were sent, or begun to be.
    pub requests: u64,
    /// Right replies.
    pub replies: u64,
    /// Lines of its logs.
    pub executions: u64,
    /// Requests that were executed twice, and may have been.
    pub twice: Vec<Twice>,
    /// Requests that were executed twice and not answered.
    pub unanswered: Vec<String>,
    /// Where clients and logs disagree.
    pub faults: Vec<String>,
}

/// Something that was done to the pair.
#[derive(Clone, Debug, Serialize)]
pub struct Done {
    /// When, on [`demo::clock::now_ns`]'s clock.
    pub at_ns: u64,
    /// What, in words, with the bits that were flipped.
    pub what: String,
    /// The node it was done to, if it was one.
    pub node: Option<String>,
}

/// A daemon's report.
#[derive(Clone, Debug, Serialize)]
pub struct Said {
    /// When, on [`demo::clock::now_ns`]'s clock.
    pub at_ns: u64,
    /// Which node.
    pub node: String,
    /// The event.
    pub event: String,
    /// The sentence.
    pub text: String,
}

/// What the oracle holds against a run.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The class, or `gap`.
    pub class: String,
    /// When, on [`demo::clock::now_ns`]'s clock; a gap has no time.
    pub at_ns: Option<u64>,
    /// When the flow began.
    pub flow_began_ns: Option<u64>,
    /// The finding.
    pub text: String,
}

/// The oracle's word.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Oracle {
    /// What must not be.
    pub findings: Vec<Found>,
    /// The captures lacked frames, so there is no judgement.
    pub blind: bool,
    /// Findings by class, the tolerated ones included.
    pub classes: BTreeMap<String, u64>,
    /// Segments judged.
    pub segments: u64,
}

/// What was seen in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Evidence {
    /// When the pair was up and whole, on [`demo::clock::now_ns`]'s clock.
    pub up_ns: u64,
    /// What was done, in order.
    pub done: Vec<Done>,
    /// When the pair had been mended for the second step, if it was.
    pub mended_between_ns: Option<u64>,
    /// When everything had been mended.
    pub mended_ns: Option<u64>,
    /// How the host that was to be short of memory felt it.
    pub starved: Option<Starved>,
    /// Nobody had felt it until a program was started there for that alone.
    pub prompted: bool,
    /// A moment that did not come, or a want that nobody felt, so that not all was done.
    pub missed: Option<String>,
    /// Client programs.
    pub clients: Vec<ClientReport>,
    /// The shop's books, if there was one.
    pub shop: Option<Shop>,
    /// Idle connections.
    pub idle: usize,
    /// What went wrong with them.
    pub idle_failures: Vec<String>,
    /// Flows that the product says it has reset.
    pub resets: usize,
    /// What the daemons reported, in order.
    pub said: Vec<Said>,
    /// Daemons that ended by themselves.
    pub ended: Vec<String>,
    /// The daemon that bits were flipped in has died.
    pub flip_killed_daemon: bool,
    /// It died so soon that it can have done nothing with them.
    pub flip_killed_at_once: bool,
    /// Why the pair was not whole again, or did not serve, once everything was mended.
    pub not_mended: Option<String>,
    /// What the nodes said of themselves when a client had not got what it wanted, or at the end
    /// of a run that must be looked at.
    pub last_words: Vec<String>,
    /// What the run left behind on the machine.
    pub leaked: Vec<String>,
    /// The oracle's word.
    pub oracle: Oracle,
    /// The machine itself stood still, and a daemon took that for a failure.
    pub disturbed: Option<String>,
    /// How long everything took, s.
    pub took_s: f64,
}

impl Evidence {
    /// The daemons' reports of this name.
    pub fn events<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Said> {
        self.said.iter().filter(move |said| said.event == name)
    }

    /// When the last thing was done.
    pub fn last_fault_ns(&self) -> Option<u64> {
        self.done.last().map(|done| done.at_ns)
    }

    /// The node on which something was done first took flows over afterwards.
    pub fn hit_node_took_over(&self) -> bool {
        let Some(first) = self.done.first() else { return false };
        self.events("promoted").any(|said| {
            said.at_ns >= first.at_ns && first.node.as_deref() == Some(said.node.as_str())
        })
    }

    /// A server or a daemon died of what was done to it.
    pub fn crashed(&self) -> bool {
        self.flip_killed_daemon || self.events("server_crashed").next().is_some()
    }
}

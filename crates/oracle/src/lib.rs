//! Judges packet captures: what the network saw of a pair of nodes, against the invariants of
//! `docs/invariants.md`.
//!
//! The problem: a test that asks clients and daemons whether all went well believes what they
//! noticed. A byte that two nodes emitted, an acknowledgement that only one node could honour, a
//! window that stepped back, are noticed by nobody until the day they matter. The network cannot
//! lie about them. So this crate reads every frame at the ports of the client and of both nodes
//! on both links, and knows nothing of the product: it shares no code with it, and reads no
//! counter of it. What a capture cannot show, a [`Story`] says: when the test killed whom, when
//! the pair was officially simplex, who was promoted when.
//!
//! What a port shows: frames from its host *before* the cable's cut, so also what a cut cable
//! then swallows; frames to its host *after* it, so only what arrives. All ports share a clock.
//! What a host emits on one port is in order there. At the client two paths meet, one straight
//! from the primary and one through the backup, and may overtake each other: so order is judged
//! where segments leave their maker, and only bytes and ends where they arrive.
//!
//! | class | judged where | what |
//! |---|---|---|
//! | [`Class::I1`] | nodes | nothing is acknowledged that was not delivered to both nodes before |
//! | [`Class::I3`] | nodes | only the node that serves emits |
//! | [`Class::I4`] | nodes | acknowledgement, clock, window, options: one TCP, and within the client's window |
//! | [`Class::EdgeShrunk`] | nodes | the window's right edge stepped back; the caller may tolerate it |
//! | [`Class::I5`] | everywhere | one FIN at one place, none from a crashed server; RST has a cause |
//! | [`Class::I6`] | everywhere | byte *n* is the same in every transmission, in both directions |
//! | [`Class::Replaced`] | everywhere | it changed before any client had it |
//! | [`Class::Volatile`] | everywhere | a line changed that may, says the story |
//!
//! A frame with a wrong checksum is counted and passed over, since every receiver does the same.
//! Not judged: whether a server was right to end its stream (nobody on the network can know), and
//! the size of segments, which a frame that is still to be cut by offload does not tell.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use oracle::{Capture, Class, Story};
//! let story: Story = serde_json::from_str(&std::fs::read_to_string("lab/story.json")?)?;
//! let captures = [Capture::named("lab/a.svc.pcap".as_ref()).ok_or("not named after a port")?];
//! let verdict = oracle::judge(&captures, &story)?;
//! assert!(verdict.without(&[Class::EdgeShrunk]).is_empty(), "{verdict}");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod capture;
mod cover;
mod emitters;
mod error;
mod judge;
mod one_tcp;
mod report;
mod silence;
mod split;
mod story;
mod stream;
mod verdict;
mod wire;

pub use capture::Capture;
pub use error::JudgeError;
pub use story::{
    Addresses, Beginning, Crash, Dead, Excluded, Handover, Host, Interval, Left, Link, Story,
};
pub use verdict::{Class, Exemption, Finding, Gap, Silence, Statistics, Verdict};

use capture::Index;
use split::Split;

/// Judges the captures of one test.
///
/// # Errors
/// A capture cannot be read, or the story does not know its host.
pub fn judge(captures: &[Capture], story: &Story) -> Result<Verdict, JudgeError> {
    judge_shares(captures, std::slice::from_ref(story))
}

/// The same with a story for each share of the flows, which differ in what became of the nodes only.
///
/// # Errors
/// As [`judge`].
///
/// # Panics
/// Without a story.
pub fn judge_shares(captures: &[Capture], stories: &[Story]) -> Result<Verdict, JudgeError> {
    let stories: Vec<Story> = stories.iter().map(Story::settled).collect();
    let story = stories.first().expect("there is a story");
    let index = Index::read(captures, story)?;
    let Index { by_addresses, files, frames, damaged, begin_ns, gaps } = index;
    let mut verdict = Verdict { gaps, ..Verdict::default() };
    (verdict.statistics.frames, verdict.statistics.damaged) = (frames, damaged);
    let missing: Vec<_> = judge::ports(story)
        .into_iter()
        .filter(|(host, link)| !captures.iter().any(|c| c.host == *host && c.link == *link))
        .map(|(host, link)| Gap::NoCapture { port: format!("{host}.{}", link.name()) })
        .collect();
    let all_ports = missing.is_empty() && verdict.gaps.is_empty();
    verdict.gaps.extend(missing);
    for (addresses, segments) in by_addresses {
        let told = |story: &&Story| story.share.is_none_or(|share| share == addresses.share());
        let Some(story) = stories.iter().find(told) else { continue };
        if let Some(excluded) = story.excluded.iter().find(|e| e.flow == addresses) {
            verdict.exemptions.push(Exemption {
                flow: format!("{} > {}", addresses.client, addresses.service),
                rule: "everything".to_owned(),
                why: excluded.why.clone(),
            });
            continue;
        }
        let split = Split::new(addresses, segments, story);
        verdict.statistics.wild += split.wild;
        if !split.strays.is_empty() {
            verdict.gaps.push(Gap::NoHandshake {
                flow: format!("{} > {}", addresses.client, addresses.service),
                segments: split.strays.len() as u64,
            });
        }
        for connection in &split.connections {
            let outcome = judge::judge(connection, story, &files, begin_ns, all_ports)?;
            let flow = judge::name(addresses, connection.irs);
            verdict.add(outcome, flow, begin_ns);
        }
    }
    verdict.findings.sort_by(|a, b| (a.at_ns, &a.flow).cmp(&(b.at_ns, &b.flow)));
    verdict.exemptions.sort_by(|a, b| a.flow.cmp(&b.flow));
    Ok(verdict)
}

impl Verdict {
    fn add(&mut self, outcome: judge::Outcome, flow: String, begin_ns: u64) {
        self.findings.extend(outcome.findings);
        self.gaps.extend(outcome.gaps);
        self.exemptions.extend(outcome.exemption);
        let (all, one) = (&mut self.statistics, outcome.statistics);
        all.damaged += one.damaged;
        all.flows += one.flows;
        all.segments += one.segments;
        all.bytes_compared += one.bytes_compared;
        all.bytes_not_compared += one.bytes_not_compared;
        all.spans += one.spans;
        all.passed_on += one.passed_on;
        all.late += one.late;
        all.swallowed += one.swallowed;
        all.wild += one.wild;
        if let Some((ns, from_ns)) = outcome.silence
            && all.longest_silence.as_ref().is_none_or(|longest| ns > longest.ns)
        {
            let after_ns = from_ns.saturating_sub(begin_ns);
            all.longest_silence = Some(Silence { flow, ns, after_ns });
        }
    }
}

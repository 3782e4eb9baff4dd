//! The verdict: findings that read in one line each, what could not be judged, and numbers.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Which rule is broken. The numbers are those of `docs/invariants.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Class {
    /// Invariant 1: acknowledged to the client, but not held by two nodes.
    I1,
    /// Invariant 3: more than one emitter.
    I3,
    /// Invariant 4: not one TCP.
    I4,
    /// The right edge of the window stepped back, above everything that the client has sent. TCP
    /// must bear that (RFC 9293 §3.8.6), so the caller may tolerate it.
    EdgeShrunk,
    /// Invariant 5: FIN or RST without a cause.
    I5,
    /// Invariant 6: a byte changed that had reached the client, or that the client has sent.
    I6,
    /// A byte of the service changed before any client had it: what was emitted first was lost on
    /// the way. With a scheme that computes replies again their equality is the operator's
    /// promise.
    Replaced,
    /// A line changed that may, as the story says: a clock in a reply.
    Volatile,
}

/// One thing that must not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The invariant.
    pub class: Class,
    /// The flow: addresses and the client's initial sequence number.
    pub flow: String,
    /// When, ns since the Unix epoch.
    pub at_ns: u64,
    /// The same, ns since the first captured frame.
    pub after_ns: u64,
    /// At whose port.
    pub host: String,
    /// What had to be.
    pub expected: String,
    /// What was.
    pub seen: String,
    /// The frame's number in its file, from 1.
    pub frame: u64,
    /// The file.
    pub file: String,
    /// How many bytes it is about, where that means something; of all that are alike, the most.
    pub by: Option<u64>,
    /// How many more were alike: same flow, host and rule.
    pub more: u64,
    /// When the last of them was, ns since the Unix epoch.
    pub last_ns: u64,
    /// When the flow began, ns since the Unix epoch.
    pub flow_began_ns: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { class, flow, host, expected, seen, frame, file, .. } = self;
        write!(
            f,
            "{class:?} {flow} at {:.6} s, {host}: expected {expected}; seen {seen} (frame {frame} \
             of {file}",
            self.after_ns as f64 / 1e9
        )?;
        if let Some(by) = self.by {
            write!(f, "; {by} bytes")?;
        }
        if self.more > 0 {
            write!(f, "; {} more", self.more)?;
        }
        f.write_str(")")
    }
}

/// Why the captures do not tell enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Gap {
    /// The kernel could not keep so many frames of this capture.
    Missed {
        /// The file.
        file: String,
        /// Frames.
        frames: u64,
    },
    /// A port that the judgement needs has no capture.
    NoCapture {
        /// Such as `a.svc`.
        port: String,
    },
    /// A frame of a service cannot be read.
    Unreadable {
        /// The file.
        file: String,
        /// The frame's number.
        frame: u64,
        /// What is odd.
        why: String,
    },
    /// A flow whose handshake was not captured, and that the story does not exclude.
    NoHandshake {
        /// The flow.
        flow: String,
        /// Segments.
        segments: u64,
    },
    /// A client received bytes that no port of a node has seen.
    FromNowhere {
        /// The flow.
        flow: String,
        /// The file.
        file: String,
        /// The frame's number.
        frame: u64,
    },
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gap::Missed { file, frames } => write!(f, "{file} lacks {frames} frames"),
            Gap::NoCapture { port } => write!(f, "port {port} was not captured"),
            Gap::Unreadable { file, frame, why } => write!(f, "frame {frame} of {file}: {why}"),
            Gap::NoHandshake { flow, segments } => {
                write!(f, "{flow}: {segments} segments, but no handshake")
            }
            Gap::FromNowhere { flow, file, frame } => {
                write!(f, "{flow}: nobody sent what the client got in frame {frame} of {file}")
            }
        }
    }
}

/// A flow that was judged by fewer rules, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exemption {
    /// The flow.
    pub flow: String,
    /// What was not asked of it.
    pub rule: String,
    /// Why not.
    pub why: String,
}

/// The longest that a client had to wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Silence {
    /// The flow.
    pub flow: String,
    /// How long.
    pub ns: u64,
    /// From when on, ns since the first captured frame.
    pub after_ns: u64,
}

/// Numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Frames read.
    pub frames: u64,
    /// Of these, those with a wrong checksum, which no receiver takes.
    pub damaged: u64,
    /// Flows judged.
    pub flows: u64,
    /// Segments judged.
    pub segments: u64,
    /// Payload bytes compared with an earlier transmission.
    pub bytes_compared: u64,
    /// Payload bytes that were not captured, or lie too far ahead to be kept.
    pub bytes_not_compared: u64,
    /// Periods in which one host emitted a flow, all flows together.
    pub spans: u64,
    /// Control segments that a backup passed on.
    pub passed_on: u64,
    /// Segments of a fenced host that came out of its queue after the hand-over, in time.
    pub late: u64,
    /// Segments of hosts whose plug was pulled, or whose cables were cut.
    pub swallowed: u64,
    /// Segments with sequence numbers far from any flow.
    pub wild: u64,
    /// The longest that a client waited for progress.
    pub longest_silence: Option<Silence>,
}

/// What the captures say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// What must not be, in the order of time.
    pub findings: Vec<Finding>,
    /// Why less could be said than was asked.
    pub gaps: Vec<Gap>,
    /// What was not asked of whom.
    pub exemptions: Vec<Exemption>,
    /// Numbers.
    pub statistics: Statistics,
}

impl Verdict {
    /// Whether every frame was there to be judged. If not, findings may be the captures' fault.
    pub fn is_conclusive(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Findings but for those that the caller tolerates.
    pub fn without(&self, tolerated: &[Class]) -> Vec<&Finding> {
        self.findings.iter().filter(|f| !tolerated.contains(&f.class)).collect()
    }

    /// Counts by class.
    pub fn by_class(&self) -> BTreeMap<Class, u64> {
        let mut counts = BTreeMap::new();
        for finding in &self.findings {
            *counts.entry(finding.class).or_default() += 1 + finding.more;
        }
        counts
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self;
        write!(
            f,
            "{} frames ({} damaged), {} flows, {} segments, {} bytes compared ({} not), {} spans, {} passed \
             on, {} late, {} swallowed, {} wild",
            s.frames,
            s.damaged,
            s.flows,
            s.segments,
            s.bytes_compared,
            s.bytes_not_compared,
            s.spans,
            s.passed_on,
            s.late,
            s.swallowed,
            s.wild
        )?;
        if let Some(silence) = &s.longest_silence {
            let (ms, at) = (silence.ns as f64 / 1e6, silence.after_ns as f64 / 1e9);
            write!(f, ", longest silence {ms:.1} ms at {at:.6} s ({})", silence.flow)?;
        }
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        for gap in &self.gaps {
            writeln!(f, "not conclusive: {gap}")?;
        }
        for Exemption { flow, rule, why } in &self.exemptions {
            writeln!(f, "exempt from {rule}: {flow}: {why}")?;
        }
        write!(f, "{}", self.statistics)
    }
}

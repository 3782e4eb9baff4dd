//! What the clients noticed, and when what happened.

use serde::Serialize;

use crate::clock::ms_between;
use crate::download::{Outcome, Stall, longest_after};
use crate::idle::IdleReport;
use crate::operator::{Event, Flows, Takeover};

/// The whole result, as `--json` writes it. Times are milliseconds; those of the timeline
/// count from the failure.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Nobody noticed.
    pub ok: bool,
    /// The server.
    pub server: String,
    /// The failure.
    pub kill: String,
    /// Whether clients used IPv6.
    pub ipv6: bool,
    /// Bytes of the file.
    pub size: u64,
    /// The failed node.
    pub killed_node: String,
    /// Every download.
    pub clients: Vec<ClientReport>,
    /// The idle connections.
    pub idle: IdleSummary,
    /// From the failure until the other node suspected it, or the node itself reported it.
    pub detection_ms: Option<f64>,
    /// From then until the other node was primary.
    pub promotion_ms: Option<f64>,
    /// Longest stall around the failure, over all downloads.
    pub gap_ms: Gap,
    /// What became of the connections.
    pub flows: FlowSummary,
    /// Everything that was seen, in order.
    pub timeline: Vec<Moment>,
    /// What else went wrong.
    pub problems: Vec<String>,
}

/// One download.
#[derive(Clone, Debug, Serialize)]
pub struct ClientReport {
    /// Bytes that arrived.
    pub bytes: u64,
    /// They are those of the file.
    pub sha256_ok: bool,
    /// What the client complained about.
    pub error: Option<String>,
    /// The longest stall that was not over when the failure happened.
    pub longest_stall_ms: f64,
}

/// The idle connections.
#[derive(Clone, Debug, Default, Serialize)]
pub struct IdleSummary {
    /// How many.
    pub connections: usize,
    /// How many got a right answer afterwards.
    pub ok: usize,
    /// What happened to the others.
    pub failures: Vec<String>,
}

/// Stalls over all downloads that were running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Gap {
    /// Half of them were no longer.
    pub p50: f64,
    /// All but one in a hundred were no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// What became of the connections.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FlowSummary {
    /// Carried over.
    pub adopted: u64,
    /// Given up.
    pub reset: u64,
    /// Without a backup when the demo ended: all, if one host is gone for good.
    pub simplex: u64,
}

/// A line of the timeline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Milliseconds since the failure.
    pub ms: f64,
    /// What happened.
    pub what: String,
    /// Where, or in other words.
    pub detail: String,
}

/// The timeline as operators read it.
pub(crate) fn print_timeline(timeline: &[Moment]) {
    println!("\n      ms");
    for moment in timeline {
        println!("{:>8.1}  {:<16} {}", moment.ms, moment.what, moment.detail);
    }
}

/// Everything that the report on downloads is made from.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The failure; the clients' stalls are those of `outcomes`.
    pub course: Course,
    /// Downloads, as they ended.
    pub outcomes: Vec<Outcome>,
    /// The file's hash.
    pub sha256: [u8; 32],
}

/// A failure and what followed, as nodes and clients saw it.
#[derive(Clone, Debug)]
pub struct Course {
    /// When the failure took effect.
    pub killed_ns: u64,
    /// Events of both nodes since then, in order.
    pub events: Vec<(&'static str, Event)>,
    /// The survivor's account, if it gives one.
    pub survivor: Option<(Takeover, Flows)>,
    /// What the clients are.
    pub clients: &'static str,
    /// The times in which each client waited, in order.
    pub stalls: Vec<Vec<Stall>>,
}

impl Findings {
    /// Every download's fate.
    pub fn clients(&self) -> Vec<ClientReport> {
        let killed_ns = self.course.killed_ns;
        let client = |outcome: &Outcome| ClientReport {
            bytes: outcome.bytes,
            sha256_ok: outcome.sha256 == self.sha256,
            error: outcome.error.clone(),
            longest_stall_ms: outcome.longest_stall_after(killed_ns).map_or(0.0, length_ms),
        };
        self.outcomes.iter().map(client).collect()
    }
}

impl Course {
    fn stall(&self, stalls: &[Stall]) -> Option<Stall> {
        longest_after(stalls, self.killed_ns)
    }

    /// Stalls of the clients that were waiting, or had to wait later.
    pub fn gap(&self) -> Gap {
        let mut stalls: Vec<f64> =
            self.stalls.iter().filter_map(|s| self.stall(s)).map(length_ms).collect();
        stalls.sort_by(f64::total_cmp);
        let Some(&max) = stalls.last() else { return Gap::default() };
        // Nearest rank: the smallest stall that so many percent do not exceed.
        let rank = |percent: usize| stalls[(stalls.len() * percent).div_ceil(100).max(1) - 1];
        Gap { p50: rank(50), p99: rank(99), max }
    }

    /// The first event with one of these names.
    fn first(&self, names: &[&str]) -> Option<&(&'static str, Event)> {
        self.events.iter().find(|(_, e)| names.contains(&e.event.as_str()))
    }

    fn detected(&self) -> Option<&(&'static str, Event)> {
        self.first(&["suspected", "server_crashed", "switchover"])
    }

    /// See [`Report::detection_ms`].
    pub fn detection_ms(&self) -> Option<f64> {
        self.detected().map(|(_, e)| ms_between(self.killed_ns, e.boottime_ns))
    }

    /// See [`Report::promotion_ms`].
    pub fn promotion_ms(&self) -> Option<f64> {
        let promoted = self.first(&["promoted"])?.1.boottime_ns;
        Some(ms_between(self.detected().map_or(self.killed_ns, |(_, e)| e.boottime_ns), promoted))
    }

    /// See [`Report::flows`].
    pub fn flows(&self) -> FlowSummary {
        self.survivor.as_ref().map_or_else(FlowSummary::default, |(takeover, flows)| FlowSummary {
            adopted: takeover.adopted,
            reset: takeover.reset,
            simplex: flows.simplex,
        })
    }

    /// Killed, suspected, promoted, first flow open, first byte, all caught up.
    pub fn timeline(&self, failure: &str) -> Vec<Moment> {
        let since = |ns| ms_between(self.killed_ns, ns);
        let moment = |ns, what: &str, detail: String| Moment {
            ms: since(ns),
            what: what.to_owned(),
            detail,
        };
        let mut out = vec![moment(self.killed_ns, "killed", failure.to_owned())];
        if let Some((node, e)) = self.detected() {
            out.push(moment(e.boottime_ns, "suspected", format!("by {node}: {}", e.text)));
        }
        if let Some((node, e)) = self.first(&["promoted"]) {
            out.push(moment(e.boottime_ns, "promoted", format!("{node}: {}", e.text)));
            if let Some((takeover, _)) = &self.survivor
                && let Some(us) = takeover.first_open_us
            {
                let ns = e.boottime_ns + (us * 1e3) as u64;
                out.push(moment(ns, "first flow open", String::new()));
            }
        }
        if let Some((_, e)) = self.first(&["all_open"]) {
            out.push(moment(e.boottime_ns, "all flows open", e.text.clone()));
        }
        // What was under way still arrives after the failure; the stall over the promotion ends
        // with the first byte that the other node sent.
        let promoted_ns = self.first(&["promoted"]).map(|(_, e)| e.boottime_ns);
        let over = |stalls: &Vec<Stall>| {
            let over = promoted_ns.and_then(|ns| stalls.iter().copied().find(|s| s.covers(ns)));
            over.or_else(|| self.stall(stalls))
        };
        let ends: Vec<u64> = self.stalls.iter().filter_map(over).map(|s| s.to_ns).collect();
        if let (Some(&first), Some(&last)) = (ends.iter().min(), ends.iter().max()) {
            out.push(moment(first, "first byte", "a client hears from the other node".into()));
            out.push(moment(
                last,
                "all caught up",
                format!("{} {} go on", ends.len(), self.clients),
            ));
        }
        out.sort_by(|x, y| x.ms.total_cmp(&y.ms));
        out
    }
}

impl ClientReport {
    /// Whether this client got the file and did not complain.
    pub fn ok(&self) -> bool {
        self.sha256_ok && self.error.is_none()
    }
}

impl From<IdleReport> for IdleSummary {
    fn from(report: IdleReport) -> IdleSummary {
        let ok = report.connections - report.failures.len();
        IdleSummary { connections: report.connections, ok, failures: report.failures }
    }
}

fn length_ms(stall: Stall) -> f64 {
    ms_between(stall.from_ns, stall.to_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn event(ms: u64, name: &str) -> (&'static str, Event) {
        let event = Event {
            seq: 0,
            boottime_ns: ms * MS,
            event: name.to_owned(),
            text: String::new(),
            fields: serde_json::Map::new(),
        };
        ("b", event)
    }

    fn stall(from: u64, to: u64) -> Stall {
        Stall { from_ns: from * MS, to_ns: to * MS }
    }

    fn course() -> Course {
        Course {
            killed_ns: 1000 * MS,
            clients: "downloads",
            stalls: [stall(1001, 1121), stall(1000, 1125), stall(500, 900)].map(|s| vec![s]).into(),
            events: vec![
                event(1100, "suspected"),
                event(1105, "promoted"),
                event(1110, "all_open"),
            ],
            survivor: Some((
                Takeover { adopted: 2, first_open_us: Some(1500.0), ..Takeover::default() },
                Flows::default(),
            )),
        }
    }

    fn findings() -> Findings {
        let outcome = |stalls: &Vec<Stall>| Outcome {
            bytes: 10,
            sha256: [7; 32],
            error: None,
            stalls: stalls.clone(),
        };
        let course = course();
        let outcomes = course.stalls.iter().map(outcome).collect();
        Findings { course, outcomes, sha256: [7; 32] }
    }

    #[test]
    fn times_count_from_the_failure() {
        let c = course();
        assert_eq!((c.detection_ms(), c.promotion_ms()), (Some(100.0), Some(5.0)));
        let line: Vec<_> = c.timeline("host a").into_iter().map(|m| (m.ms, m.what)).collect();
        let expected = [
            (0.0, "killed"),
            (100.0, "suspected"),
            (105.0, "promoted"),
            (106.5, "first flow open"),
            (110.0, "all flows open"),
            (121.0, "first byte"),
            (125.0, "all caught up"),
        ];
        assert_eq!(line, expected.map(|(ms, what)| (ms, what.to_owned())));
    }

    #[test]
    fn a_longer_stall_later_is_a_gap_but_not_the_catching_up() {
        let mut c = course();
        c.stalls[0].push(stall(1200, 1400));
        assert_eq!(c.gap().max, 200.0);
        let line = c.timeline("host a");
        let caught_up = line.iter().find(|m| m.what == "all caught up").unwrap();
        assert_eq!(caught_up.ms, 125.0);
    }

    #[test]
    fn a_download_that_was_over_counts_for_no_gap() {
        let c = course();
        assert_eq!(c.gap(), Gap { p50: 120.0, p99: 125.0, max: 125.0 });
        assert_eq!(Course { stalls: Vec::new(), ..c }.gap(), Gap::default());
        assert_eq!(findings().clients()[2].longest_stall_ms, 0.0);
    }

    #[test]
    fn other_bytes_or_a_complaint_are_a_failure() {
        let mut f = findings();
        f.outcomes[0].sha256[0] = 0;
        f.outcomes[1].error = Some("curl: (18)".into());
        let ok: Vec<_> = f.clients().iter().map(ClientReport::ok).collect();
        assert_eq!(ok, [false, false, true]);
    }
}

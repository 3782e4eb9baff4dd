//! One connection, segment by segment in the order of time.

use crate::capture::{Files, Segment};
use crate::cover::Cover;
use crate::emitters::{Emitters, Way};
use crate::error::JudgeError;
use crate::one_tcp::{Client, OneTcp, Place, SAME_INSTANT_NS};
use crate::report::Report;
use crate::silence::Waiting;
use crate::split::{Connection, WIDEST};
use crate::story::{Addresses, Link, Story};
use crate::stream::Stream;
use crate::verdict::{Class, Exemption, Finding, Gap, Statistics};

/// What a port shows of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// The client sends.
    ClientSent,
    /// The client gets.
    ClientGot,
    /// A node gets a client's segment, directly or through its peer.
    NodeGot,
    /// A node gets its peer's control segment.
    Bounced,
    /// A node emits a segment of its own, straight to the client or through its peer.
    Emitted,
    /// A node passes its peer's control segment on.
    PassedOn,
    /// A node relays a client's segment to its peer.
    Relayed,
    /// A frame at a port that it is not for.
    Flooded,
}

/// What came out of one connection.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) findings: Vec<Finding>,
    pub(crate) gaps: Vec<Gap>,
    pub(crate) exemption: Option<Exemption>,
    pub(crate) statistics: Statistics,
    /// Longest wait and its beginning, ns.
    pub(crate) silence: Option<(u64, u64)>,
}

/// The name of a flow in a verdict.
pub(crate) fn name(Addresses { client, service }: Addresses, irs: u32) -> String {
    format!("{client} > {service} isn {irs}")
}

struct Judge<'a> {
    report: Report<'a>,
    addresses: Addresses,
    irs: u32,
    iss: Option<u32>,
    begin_ns: u64,
    inward: Stream,
    outward: Stream,
    /// What primaries have confided to their peers.
    confided: Stream,
    /// Behind the highest payload byte of the service.
    outward_data: u64,
    emitters: Emitters,
    one_tcp: OneTcp,
    waiting: Waiting,
    /// Client positions that have been delivered to each node.
    held: Vec<(u8, Cover)>,
    acknowledged: u64,
    /// Service positions that have left a node.
    emitted: Cover,
    established: bool,
    /// A FIN of the service has left a node.
    ended: bool,
    client_reset: bool,
    /// The client's TS.Recent, and its last acknowledgement.
    client_recent: Option<u32>,
    client_acked: u64,
    /// Whether every port of the nodes was captured.
    all_ports: bool,
    outcome: Outcome,
}

/// Judges one connection.
pub(crate) fn judge(
    connection: &Connection,
    story: &Story,
    files: &Files,
    begin_ns: u64,
    all_ports: bool,
) -> Result<Outcome, JudgeError> {
    let name = name(connection.addresses, connection.irs);
    let flow_began_ns = connection.segments.first().map_or(begin_ns, |s| s.at_ns);
    let mut judge = Judge {
        report: Report::new(story, files, begin_ns, (name, flow_began_ns)),
        addresses: connection.addresses,
        irs: connection.irs,
        iss: connection.iss,
        begin_ns: flow_began_ns,
        inward: Stream::default(),
        outward: Stream::default(),
        confided: Stream::default(),
        outward_data: 0,
        emitters: Emitters::default(),
        one_tcp: OneTcp::default(),
        waiting: Waiting::default(),
        held: story.nodes().map(|node| (node as u8, Cover::default())).collect(),
        acknowledged: 0,
        emitted: Cover::default(),
        established: false,
        ended: false,
        client_reset: false,
        client_recent: None,
        client_acked: 0,
        all_ports,
        outcome: Outcome::default(),
    };
    let mut buffer = Vec::new();
    for segment in &connection.segments {
        let payload = files.payload(segment, &mut buffer)?;
        judge.see(segment, payload);
    }
    judge.outcome.statistics.flows = 1;
    judge.outcome.findings = judge.report.findings;
    judge.outcome.silence = judge.waiting.longest;
    Ok(judge.outcome)
}

impl Judge<'_> {
    fn see(&mut self, s: &Segment, payload: &[u8]) {
        let Some(place) = self.place(s) else {
            self.outcome.statistics.wild += 1;
            if !s.inward && !s.flags.rst && !self.report.story.is_unheard(s.host.into(), s.at_ns) {
                let expected =
                    format!("a segment near position {} of the stream", self.outward.end);
                self.report.find((Class::I4, "wild"), s, None, expected, format!("seq {}", s.seq));
            }
            return;
        };
        if self.is_damaged(s, place, payload) {
            self.outcome.statistics.damaged += 1;
            return;
        }
        let sight = self.sight(s, place);
        let leaves =
            matches!(sight, Sight::ClientSent | Sight::Emitted | Sight::PassedOn | Sight::Relayed);
        if leaves && self.report.story.is_unheard(s.host.into(), s.at_ns) {
            self.outcome.statistics.swallowed += 1;
            return;
        }
        self.outcome.statistics.segments += 1;
        let accepted = sight == Sight::ClientGot && !s.flags.rst && self.accepts(s, place);
        // What a primary confides to its peer is said when that passes it on.
        let confided = is_confided(s) && matches!(sight, Sight::Emitted | Sight::Bounced);
        if confided {
            let data = place.data(s);
            self.confided.tell(data, payload, &[], true);
        } else {
            self.compare(s, place, payload, sight, accepted);
        }
        let said = match sight {
            Sight::ClientSent => true,
            Sight::Emitted => !confided,
            Sight::PassedOn => is_data(s),
            _ => false,
        };
        if said {
            let stream = if s.inward { &mut self.inward } else { &mut self.outward };
            stream.reach(place.end);
        }
        if !s.inward && s.flags.syn {
            self.one_tcp.syn_ack(s, sight == Sight::Emitted, &mut self.report);
        }
        match sight {
            Sight::ClientSent => self.client_sent(s, place),
            Sight::ClientGot => self.client_got(s, place, accepted),
            Sight::NodeGot => self.hold(s, place),
            Sight::Emitted => self.emits(s, place),
            Sight::PassedOn => {
                self.outcome.statistics.passed_on += 1;
                self.emitted.insert(place.start, place.end);
                self.is_as_confided(s, place, payload);
            }
            Sight::Bounced | Sight::Relayed | Sight::Flooded => {}
        }
    }

    /// Invariant 6: what a peer passes on is what was confided to it.
    fn is_as_confided(&mut self, s: &Segment, place: Place, payload: &[u8]) {
        let data = place.data(s);
        let changed = is_data(s).then(|| self.confided.difference(data, payload)).flatten();
        if let Some((at, was, is)) = changed {
            let expected = format!("service byte {at} to be {was:02x}, as the primary said");
            self.report.find((Class::I6, "passed on"), s, None, expected, format!("{is:02x}"));
        }
    }

    /// Whether a frame is damaged, although its checksum looks like a promise: with one bit of the
    /// payload put right the checksum is complete, and right.
    fn is_damaged(&self, s: &Segment, place: Place, payload: &[u8]) -> bool {
        let Some(sum) = s.promised.filter(|_| !s.from_host) else { return false };
        let stream = if s.inward { &self.inward } else { &self.outward };
        let data = place.data(s);
        let Some((at, was, is)) = stream.difference(data, payload) else { return false };
        // Headers have even lengths, so bytes at even places are the upper ones of their words.
        let shift = if (at - data).is_multiple_of(2) { 8 } else { 0 };
        let mended = u32::from(sum) + 0xffff + (u32::from(was) << shift) - (u32::from(is) << shift);
        (was ^ is).count_ones() == 1 && mended.is_multiple_of(0xffff)
    }

    /// Where a segment lies in its stream; nowhere if it is not near it.
    fn place(&self, s: &Segment) -> Option<Place> {
        let (own, isn) = if s.inward {
            (&self.inward, self.irs)
        } else {
            // A refusal has no stream of its own: it lies at its beginning.
            (&self.outward, self.iss.unwrap_or(s.seq))
        };
        let refusal = !s.inward && s.flags.rst && !self.established;
        let start = if refusal { 0 } else { own.position(isn, s.seq) };
        let data = start + i64::from(s.flags.syn);
        let data_end = data + i64::from(s.payload_len);
        let end = data_end + i64::from(s.flags.fin);
        if start < 0 || end > own.end as i64 + WIDEST {
            return None;
        }
        let ack = s.flags.ack.then(|| {
            if s.inward {
                self.iss.map(|iss| self.outward.position(iss, s.ack))
            } else {
                Some(self.inward.position(self.irs, s.ack))
            }
        });
        let ack = ack.flatten().and_then(|ack| u64::try_from(ack).ok());
        Some(Place { start: start as u64, data_end: data_end as u64, end: end as u64, ack })
    }

    fn sight(&mut self, s: &Segment, place: Place) -> Sight {
        let story = self.report.story;
        let at_node = story.hosts[usize::from(s.host)].node;
        let is_for_host = s.target == Some(s.host);
        match (s.inward, s.from_host, at_node) {
            (true, true, false) => Sight::ClientSent,
            (true, false, true) if is_for_host => Sight::NodeGot,
            (true, true, true) => Sight::Relayed,
            (false, false, false) if is_for_host => Sight::ClientGot,
            (false, _, true) => match self.emitters.way(s, place.start, place.end, story) {
                Way::Emitted => Sight::Emitted,
                Way::PassedOn => Sight::PassedOn,
                Way::Bounced => Sight::Bounced,
                Way::Flooded => Sight::Flooded,
            },
            _ => Sight::Flooded,
        }
    }

    /// Byte n never changes, and a stream has one end (invariants 5 and 6).
    fn compare(&mut self, s: &Segment, place: Place, payload: &[u8], sight: Sight, accepted: bool) {
        // What RST carries is no part of the stream (RFC 9293 §3.5.2).
        if s.flags.rst {
            return;
        }
        let stream = if s.inward { &mut self.inward } else { &mut self.outward };
        let side = if s.inward { "client" } else { "service" };
        let data = place.data(s);
        if !payload.is_empty() {
            let volatile: &[String] =
                if s.inward { &[] } else { &self.report.story.volatile_lines };
            let anew = sight == Sight::Emitted;
            let told = stream.tell(data, payload, volatile, anew);
            self.outcome.statistics.bytes_compared += told.compared;
            self.outcome.statistics.bytes_not_compared += told.beyond;
            if let Some(conflict) = told.conflict {
                // Whatever was said first and lost, what goes on to a client is what was said last.
                let has = conflict.arrived || accepted || sight == Sight::PassedOn;
                let rule = match (s.inward, conflict.volatile, has) {
                    (true, ..) => (Class::I6, "client byte"),
                    (false, true, _) => (Class::Volatile, "volatile"),
                    (false, false, true) => (Class::I6, "service byte"),
                    (false, false, false) => (Class::Replaced, "replaced"),
                };
                let (at, was) = (conflict.at, hex(&conflict.was));
                let expected = format!("{side} byte {at} and on to be {was}");
                self.report.find(rule, s, None, expected, hex(&conflict.is));
            }
        }
        self.outcome.statistics.bytes_not_compared += u64::from(s.payload_len - s.payload_kept);
        let class = if s.inward { Class::I6 } else { Class::I5 };
        if s.flags.fin
            && let Err(was) = stream.tell_fin(place.data_end)
        {
            let (expected, seen) = (format!("the FIN at {was}"), format!("at {}", place.data_end));
            self.report.find((class, "fin"), s, None, expected, seen);
        }
        if s.payload_len > 0 && !s.inward {
            self.outward_data = self.outward_data.max(place.data_end);
        }
        let far = if s.inward { place.data_end } else { self.outward_data };
        if let Some(fin) = stream.fin()
            && (s.flags.fin || s.payload_len > 0)
            && far > fin
        {
            let (expected, seen) =
                (format!("the stream to end at {fin}"), format!("data up to {far}"));
            self.report.find((class, "behind fin"), s, Some(far - fin), expected, seen);
        }
    }

    fn client_sent(&mut self, s: &Segment, place: Place) {
        self.one_tcp.client_sent(s, place);
        self.waiting.sent(s, place.data_end);
        self.client_acked = self.client_acked.max(place.ack.unwrap_or(0));
        self.established |= s.flags.ack && !s.flags.rst && self.iss.is_some();
        self.client_reset |= s.flags.rst;
    }

    fn client_got(&mut self, s: &Segment, place: Place, accepted: bool) {
        if !s.flags.rst {
            if accepted {
                let data = place.data(s);
                self.outward.arrived(data, data + u64::from(s.payload_kept));
            }
            self.waiting.got(s, place.data_end, place.ack);
        }
        if self.all_ports && !self.emitted.covers(place.start, place.end) {
            let file = self.report.files.name(s.file).to_owned();
            let (flow, frame) = (self.report.flow.clone(), s.frame.into());
            if self.outcome.gaps.is_empty() {
                self.outcome.gaps.push(Gap::FromNowhere { flow, file, frame });
            }
        }
    }

    /// Whether the client's TCP believes a segment: one with an older clock than it has seen is
    /// thrown away (PAWS, RFC 7323 §5.3). So what a dead primary's queue holds dies at the client
    /// once the new one has spoken.
    fn accepts(&mut self, s: &Segment, place: Place) -> bool {
        let Some((tsval, _)) = s.options.stamps else { return true };
        let older = |known: u32| (tsval.wrapping_sub(known) as i32) < 0;
        if self.client_recent.is_some_and(older) {
            return false;
        }
        if place.start <= self.client_acked {
            self.client_recent = Some(tsval);
        }
        true
    }

    fn hold(&mut self, s: &Segment, place: Place) {
        if s.flags.rst {
            return;
        }
        // A port may stamp what its host sends late, but what arrives has been sent.
        self.one_tcp.client_sent(s, place);
        self.inward.reach(place.end);
        if let Some((_, held)) = self.held.iter_mut().find(|(node, _)| *node == s.host) {
            held.insert(place.start, place.end);
            self.one_tcp.arrived(s, held.prefix());
        }
    }

    fn emits(&mut self, s: &Segment, place: Place) {
        let late = self.emitters.emitted(s, &mut self.report, &mut self.outcome.statistics);
        if !s.flags.rst && !is_confided(s) {
            self.emitted.insert(place.start, place.end);
        }
        let over = self.inward.fin().is_some();
        let refusal = s.flags.rst && !self.established;
        if !refusal {
            let client = Client { sent: self.inward.end, over };
            self.one_tcp.emitted(s, place, client, late, &mut self.report);
        }
        if let Some(ack) = place.ack.filter(|_| !s.flags.rst) {
            self.is_stable(s, ack);
        }
        if s.flags.rst {
            self.may_reset(s);
        } else if s.flags.fin {
            self.may_end(s);
        }
    }

    /// Invariant 1: what is acknowledged has been delivered to both nodes.
    fn is_stable(&mut self, s: &Segment, ack: u64) {
        if ack <= self.acknowledged {
            return;
        }
        self.acknowledged = ack;
        let story = self.report.story;
        let lacking = self.held.iter().find(|(_, held)| held.prefix() < ack.min(self.inward.end));
        let Some((node, held)) = lacking else { return };
        if let Some(simplex) = story.simplex.iter().find(|i| i.touches(self.begin_ns, s.at_ns)) {
            let why = format!("simplex from {} on", self.report.time(simplex.from_ns));
            let (flow, rule) = (self.report.flow.clone(), "invariant 1".to_owned());
            self.outcome.exemption.get_or_insert(Exemption { flow, rule, why });
            return;
        }
        let (has, node) = (held.prefix(), self.report.name(*node));
        self.report.find(
            (Class::I1, "stable"),
            s,
            Some(ack.saturating_sub(has)),
            format!("an acknowledgement of what both nodes hold: {node} has up to {has}"),
            format!("{ack} acknowledged"),
        );
    }

    /// Invariant 5: a RST has a cause.
    fn may_reset(&mut self, s: &Segment) {
        let ended = self.inward.fin().is_some() || self.outward.fin().is_some();
        let listed = self.report.story.resets.contains(&self.addresses);
        // Whom it has answered it had accepted.
        let has_left = self.outward_data == 0 && self.report.story.has_left(s.host.into(), s.at_ns);
        if self.client_reset || ended || listed || has_left || !self.established {
            return;
        }
        let crashed = self.report.story.crash(s.host.into(), s.at_ns);
        let seen = match crashed {
            Some(crash) => {
                format!("RST after its server crashed at {}", self.report.time(crash.time.from_ns))
            }
            None => "RST".to_owned(),
        };
        let expected = "no RST: neither side has closed, and the flow is not listed as reset";
        self.report.find((Class::I5, "rst"), s, None, expected, seen);
    }

    /// Invariant 5: a crash is silence. An end that was sent before it may be repeated.
    fn may_end(&mut self, s: &Segment) {
        // One that had left just before may still be on its way to the port.
        let left_ns = s.at_ns.saturating_sub(SAME_INSTANT_NS);
        let Some(crash) = self.report.story.crash(s.host.into(), left_ns) else {
            self.ended = true;
            return;
        };
        let simplex = self.report.story.is_simplex(crash.time.from_ns);
        if self.ended || simplex || self.begin_ns >= crash.time.from_ns {
            return;
        }
        let crashed = self.report.time(crash.time.from_ns);
        let expected = format!("no FIN from a server that crashed at {crashed}");
        self.report.find((Class::I5, "crash fin"), s, None, expected, "its first FIN");
    }
}

fn is_data(s: &Segment) -> bool {
    s.payload_len > 0 && !s.flags.syn && !s.flags.fin && !s.flags.rst
}

/// What is held may go to the client by way of the peer alone, which may die or refuse it: until it has
/// passed it on nobody has said it. What ends or begins a connection is said where it leaves.
fn is_confided(s: &Segment) -> bool {
    !s.inward && s.link == Link::Cluster && is_data(s)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

/// The ports that must be captured.
pub(crate) fn ports(story: &Story) -> Vec<(&str, Link)> {
    let of = |h: &'_ crate::story::Host| h.macs.iter().map(|&(link, _)| link).collect::<Vec<_>>();
    story.hosts.iter().flat_map(|h| of(h).into_iter().map(|l| (h.name.as_str(), l))).collect()
}

//! To the client the connection is one TCP (invariant 4): what the service's segments say about
//! acknowledgement, window, clock and options, where they leave the host that built them.
//!
//! One host may emit on two links, whose queues are not equally long, so within a host order is
//! judged port by port; and a host with several processors may hand two segments of the same
//! instant to its port in either order: a segment with an older clock that says nothing new may be late by as long
//! as a virtual machine's processor stands still. Across hosts the order is that of the ports' common clock:
//! the old emitter is silent before the new one begins (invariant 3), but for what its queue held.

use std::collections::HashMap;

use crate::capture::Segment;
use crate::report::Report;
use crate::story::Link;
use crate::verdict::Class;

/// Timestamp clocks tick in milliseconds; this much may be rounding and the way to the port.
const CLOCK_SLACK_MS: u64 = 1000;
/// Segments of one host this close together may have changed places on the way to its port.
pub(crate) const SAME_INSTANT_NS: u64 = 1_000_000;
/// A processor may stand still for so long with a segment in its hands, which others overtake.
const OVERTAKEN_NS: u64 = 50_000_000;
/// The largest shift that counts (RFC 7323 §2.3).
const MAX_SCALE: u8 = 14;

/// What both SYNs said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offer {
    mss: Option<u16>,
    scale: Option<u8>,
    sack: bool,
    stamps: bool,
    ecn: bool,
}

impl Offer {
    fn of(s: &Segment) -> Offer {
        let o = &s.options;
        Offer {
            mss: o.mss,
            scale: o.scale.map(|scale| scale.min(MAX_SCALE)),
            sack: o.sack_permitted,
            stamps: o.stamps.is_some(),
            // A SYN asks with both bits, a SYN-ACK agrees with one (RFC 3168 §6.1.1).
            ecn: s.flags.ece && (s.flags.ack != s.flags.cwr),
        }
    }
}

/// The furthest that a port has said, and when it said so first.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    ack: Option<(u64, u64)>,
    /// Position behind the window.
    edge: Option<(u64, u64)>,
    tsval: Option<(u32, u64)>,
    /// Behind the last position that it has sent.
    end: u64,
}

impl Said {
    /// Whether this segment is older, by its own clock, than others that said all that it says.
    fn overtook(&self, s: &Segment, place: Place) -> bool {
        let older = |(tsval, _)| self.tsval.is_some_and(|(known, _)| later(known, tsval));
        s.options.stamps.is_some_and(older)
            && place.end <= self.end
            && place.ack.is_none_or(|ack| self.ack.is_some_and(|(known, _)| ack <= known))
    }
}

/// What the client has done so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    /// Behind the last position that it has sent.
    pub(crate) sent: u64,
    /// Whether it has sent its FIN.
    pub(crate) over: bool,
}

/// What was said before, at ports whose word must stand behind this segment's.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    ack: Option<u64>,
    edge: Option<u64>,
    tsval: Option<u32>,
}

/// The conversation as the client may rely on it.
#[derive(Debug, Default)]
pub(crate) struct OneTcp {
    client: Option<Offer>,
    service: Option<Offer>,
    /// The newest SYN-ACK's.
    repeated: Option<Offer>,
    said: HashMap<(u8, Link), Said>,
    /// Since when a node had the client's stream, and up to which position it was whole. Ascending.
    arrived: Vec<(u64, u64)>,
    /// Behind the last position that the client's windows allow.
    client_edge: u64,
    client_tsval: Option<u32>,
    /// The first clock reading behind the SYN-ACK, or the newest of that, its time, and who has emitted.
    clock: Option<(u32, u64)>,
    /// That is the SYN-ACK's.
    waited: bool,
    emitters: Vec<u8>,
}

/// Where a segment lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) start: u64,
    /// Behind the last byte of payload.
    pub(crate) data_end: u64,
    pub(crate) end: u64,
    /// What it acknowledges, in the other stream.
    pub(crate) ack: Option<u64>,
}

impl Place {
    /// Where the segment's payload begins.
    pub(crate) fn data(&self, s: &Segment) -> u64 {
        self.data_end - u64::from(s.payload_len)
    }
}

fn later(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl OneTcp {
    /// The client sends.
    pub(crate) fn client_sent(&mut self, s: &Segment, place: Place) {
        if s.flags.syn {
            self.client.get_or_insert(Offer::of(s));
            // The window of a SYN is not scaled (RFC 7323 §2.2).
            self.client_edge = self.client_edge.max(1 + u64::from(s.window));
        } else if let Some(ack) = place.ack {
            let edge = ack + (u64::from(s.window) << self.scale_of(self.client));
            self.client_edge = self.client_edge.max(edge);
        }
        if let Some((tsval, _)) = s.options.stamps
            && self.client_tsval.is_none_or(|known| later(tsval, known))
        {
            self.client_tsval = Some(tsval);
        }
    }

    /// With this segment a node has the client's stream up to here.
    pub(crate) fn arrived(&mut self, s: &Segment, whole: u64) {
        if self.arrived.last().is_none_or(|&(_, known)| whole > known) {
            self.arrived.push((s.at_ns, whole));
        }
    }

    /// What a node had of the client's stream at that time.
    fn had(&self, at_ns: u64) -> u64 {
        let until = self.arrived.partition_point(|&(since_ns, _)| since_ns <= at_ns);
        until.checked_sub(1).map_or(0, |last| self.arrived[last].1)
    }

    /// A SYN-ACK: every repeat says the same, and nobody changes it on its way.
    pub(crate) fn syn_ack(&mut self, s: &Segment, emitted: bool, report: &mut Report<'_>) {
        let offer = Offer::of(s);
        let first = *self.service.get_or_insert(offer);
        let known = if emitted { first } else { self.repeated.unwrap_or(first) };
        if known != offer {
            let expected = format!("the SYN-ACK's options as before: {known:?}");
            report.find((Class::I4, "syn_ack"), s, None, expected, format!("{offer:?}"));
        }
        if !emitted {
            return;
        }
        self.repeated = Some(offer);
        let client = self.client.unwrap_or_default();
        let unasked = [
            (offer.scale.is_some() && client.scale.is_none(), "window scale"),
            (offer.sack && !client.sack, "SACK"),
            (offer.stamps && !client.stamps, "timestamps"),
            (offer.ecn && !client.ecn, "ECN"),
        ];
        for (_, name) in unasked.into_iter().filter(|(is, _)| *is) {
            let expected = "options in the SYN-ACK that the client has offered";
            report.find((Class::I4, "offer"), s, None, expected, name);
        }
    }

    /// Both sides use an option if both SYNs have it (RFC 7323 §2.2, §3.2; RFC 2018 §2).
    fn agreed(&self, option: impl Fn(&Offer) -> bool) -> bool {
        self.client.as_ref().is_some_and(&option) && self.service.as_ref().is_some_and(option)
    }

    fn scale_of(&self, side: Option<Offer>) -> u8 {
        let agreed = self.agreed(|o| o.scale.is_some());
        if agreed { side.and_then(|o| o.scale).unwrap_or(0) } else { 0 }
    }

    /// A node's own segment leaves it, perhaps late: then nobody else's word stands before it.
    pub(crate) fn emitted(
        &mut self,
        s: &Segment,
        place: Place,
        client: Client,
        late: bool,
        report: &mut Report<'_>,
    ) {
        let sent = client.sent;
        let before = self.before(s, place, late);
        let mut said = self.said.get(&(s.host, s.link)).copied().unwrap_or_default();
        if let Some(ack) = place.ack {
            self.acknowledges(s, ack, before.ack, sent, report);
            if said.ack.is_none_or(|(known, _)| ack > known) {
                said.ack = Some((ack, s.at_ns));
            }
            // RST closes no window, and nobody sends behind a FIN.
            if !s.flags.rst && !client.over {
                // The window of a SYN-ACK is not scaled (RFC 7323 §2.2).
                let scale = if s.flags.syn { 0 } else { self.scale_of(self.service) };
                let edge = ack + (u64::from(s.window) << scale);
                // It may have waited in its port's queue since it was built.
                let built_ns = s.at_ns.saturating_sub(report.story.queue_ns);
                // A new primary has a window of its own, and the client sends on into the old one.
                let own = self.said.iter().filter(|((host, _), _)| *host == s.host);
                let own = own.filter_map(|(_, said)| Some(said.edge?.0)).max();
                let had = self.had(built_ns).min(own.unwrap_or(u64::MAX));
                allows(s, edge, before.edge, had, report);
                if said.edge.is_none_or(|(known, _)| edge > known) {
                    said.edge = Some((edge, s.at_ns));
                }
            }
        }
        if place.data_end > self.client_edge && s.payload_len > 0 {
            let by = place.data_end - self.client_edge;
            let expected = format!("data up to {}, as the client allows", self.client_edge);
            report.find(
                (Class::I4, "window"),
                s,
                Some(by),
                expected,
                format!("up to {}", place.data_end),
            );
        }
        self.uses_what_is_agreed(s, place, sent, report);
        if let Some(tsval) = self.clock(s, before.tsval, report)
            && said.tsval.is_none_or(|(known, _)| later(tsval, known))
        {
            said.tsval = Some((tsval, s.at_ns));
        }
        said.end = said.end.max(place.end);
        self.said.insert((s.host, s.link), said);
    }

    fn before(&self, s: &Segment, place: Place, late: bool) -> Before {
        let mut before = Before::default();
        for (&(host, link), said) in &self.said {
            let own = host == s.host;
            // Another port of the same host has a queue of its own.
            if (own && link != s.link) || (!own && late) {
                continue;
            }
            let grace = if said.overtook(s, place) { OVERTAKEN_NS } else { SAME_INSTANT_NS };
            let stands = |at_ns: u64| !own || at_ns + grace < s.at_ns;
            before.ack = before.ack.max(said.ack.filter(|w| stands(w.1)).map(|w| w.0));
            before.edge = before.edge.max(said.edge.filter(|w| stands(w.1)).map(|w| w.0));
            if let Some((tsval, at_ns)) = said.tsval
                && stands(at_ns)
                && before.tsval.is_none_or(|known| later(tsval, known))
            {
                before.tsval = Some(tsval);
            }
        }
        before
    }

    fn acknowledges(
        &self,
        s: &Segment,
        ack: u64,
        before: Option<u64>,
        sent: u64,
        report: &mut Report<'_>,
    ) {
        if let Some(before) = before.filter(|&before| ack < before) {
            let (by, expected) = (Some(before - ack), format!("acknowledgements from {before} on"));
            report.find((Class::I4, "ack"), s, by, expected, format!("{ack}"));
        }
        if ack > sent {
            let expected = format!("acknowledgements up to {sent}, which the client has sent");
            report.find((Class::I4, "ack_unsent"), s, Some(ack - sent), expected, format!("{ack}"));
        }
    }

    fn uses_what_is_agreed(&self, s: &Segment, place: Place, sent: u64, report: &mut Report<'_>) {
        if s.flags.syn {
            return;
        }
        let stamped = s.options.stamps.is_some();
        let stamps = self.agreed(|o| o.stamps);
        // Once agreed, in every segment but RST (RFC 7323 §3.2).
        if stamps && !stamped && !s.flags.rst {
            report.find((Class::I4, "unstamped"), s, None, "a timestamp: it is agreed", "none");
        }
        if !stamps && stamped {
            report.find((Class::I4, "stamped"), s, None, "no timestamp: not agreed", "one");
        }
        let blocks = s.options.sacks.iter().flatten();
        let sacks = self.agreed(|o| o.sack);
        for &(left, right) in blocks {
            if !sacks {
                report.find((Class::I4, "sack"), s, None, "no SACK: not agreed", "a block");
                continue;
            }
            // Their place is taken from the acknowledgement, which is of the same stream.
            let at = |edge: u32| {
                place.ack.map(|ack| ack as i64 + i64::from(edge.wrapping_sub(s.ack) as i32))
            };
            let (Some(left), Some(right)) = (at(left), at(right)) else { continue };
            if left >= right || right > sent as i64 {
                let expected = format!("SACK blocks in what the client has sent, up to {sent}");
                report.find(
                    (Class::I4, "sack_unsent"),
                    s,
                    None,
                    expected,
                    format!("{left}..{right}"),
                );
            }
        }
        let ecn = s.flags.ece || s.flags.cwr || s.ecn != 0;
        if ecn && !self.agreed(|o| o.ecn) {
            report.find((Class::I4, "ecn"), s, None, "no ECN: not agreed", "its bits");
        }
    }

    /// Judges both clocks of a segment; its own, if it has one.
    fn clock(&mut self, s: &Segment, before: Option<u32>, report: &mut Report<'_>) -> Option<u32> {
        let (tsval, tsecr) = s.options.stamps?;
        if !self.emitters.contains(&s.host) {
            self.emitters.push(s.host);
        }
        if let Some(before) = before.filter(|&before| later(before, tsval)) {
            let by = u64::from(before.wrapping_sub(tsval));
            let seen = format!("TSval {tsval}, {by} back");
            report.find((Class::I4, "tsval"), s, None, format!("TSval from {before} on"), seen);
        }
        // A SYN-ACK may have waited a second for its neighbour's address, alone or with its repetition:
        // it does not tell when its clock was read.
        if s.flags.syn || self.waited {
            self.clock = Some((tsval, s.at_ns));
            self.waited = s.flags.syn;
        }
        let (first, first_ns) = *self.clock.get_or_insert((tsval, s.at_ns));
        let ahead = u64::from(tsval.wrapping_sub(first));
        let jumps = report.story.clock_jump_ms * self.emitters.len().saturating_sub(1) as u64;
        let passed = s.at_ns.saturating_sub(first_ns) / 1_000_000;
        if !later(first, tsval) && ahead > passed + jumps + CLOCK_SLACK_MS {
            let expected = format!("a clock {passed} ms after its first reading");
            report.find((Class::I4, "clock"), s, None, expected, format!("TSval {ahead} ms on"));
        }
        if let Some(newest) = self.client_tsval
            && s.flags.ack
            && later(tsecr, newest)
        {
            let expected = format!("TSecr up to {newest}, which the client has sent");
            report.find((Class::I4, "tsecr"), s, None, expected, format!("{tsecr}"));
        }
        Some(tsval)
    }
}

/// The window's right edge: what has arrived, and was allowed by this host, must not be refused.
fn allows(s: &Segment, edge: u64, before: Option<u64>, had: u64, report: &mut Report<'_>) {
    let Some(before) = before.filter(|&before| edge < before) else { return };
    let by = Some(before - edge);
    let seen = format!("{edge}");
    // What the client sends was allowed by `before` at the latest.
    if edge < had.min(before) {
        let expected = format!("a window's edge at {had} or above, which had arrived");
        report.find((Class::I4, "edge"), s, Some(had - edge), expected, seen);
    } else {
        let expected = format!("a window's edge at {before} or above");
        report.find((Class::EdgeShrunk, "edge_shrunk"), s, by, expected, seen);
    }
}

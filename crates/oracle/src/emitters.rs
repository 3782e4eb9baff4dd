//! Who emits a flow (invariant 3), and which control segments are somebody else's.
//!
//! A primary with a backup sends SYN-ACK, FIN and RST to its peer, which passes them on. Passing
//! on is no emission: the segment is the primary's, emitted where it left the primary. A port sees
//! frames behind the host's own queue, and a queue may cut an offloaded frame into pieces, so what
//! is passed on is recognised by its header and its place in the stream, each byte as often as it
//! has come: a cable may double it.

use std::collections::HashMap;

use crate::capture::Segment;
use crate::report::Report;
use crate::story::{Link, Story};
use crate::verdict::{Class, Statistics};

/// Rounding of a timestamp clock that ticks in milliseconds, and of an event's time.
const CLOCK_SLACK_MS: i32 = 3;
/// What takes longer from one node to the other was lost.
const ON_ITS_WAY_NS: u64 = 1_000_000_000;
/// Control segments that are remembered; they are few.
const REMEMBERED: usize = 256;

/// A control segment, or a piece of one, on its way through the peer.
#[derive(Debug)]
struct Bounce {
    /// Who passes it on.
    through: u8,
    segment: Segment,
    start: u64,
    end: u64,
    /// How much of it, payload and control bits, has come to the peer.
    came: u64,
    /// How much of it the peer has passed on.
    passed: u64,
}

/// What a port shows of a service's segment at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The node's own leaves it.
    Emitted,
    /// Its peer's comes in.
    Bounced,
    /// Its peer's leaves it.
    PassedOn,
    /// A frame that was flooded to this port.
    Flooded,
}

/// The emitters of a flow.
#[derive(Debug, Default)]
pub(crate) struct Emitters {
    bounces: Vec<Bounce>,
    last: Option<u8>,
    first: Option<u8>,
    /// By host: what a timestamp needs to become the port's time, ms, for a segment that no queue
    /// has delayed: the least there was on the cluster link. On the clients' a full queue may delay
    /// all of a flow's segments.
    clocks: HashMap<u8, u32>,
}

/// Milliseconds modulo 2^32, as timestamps count.
fn ms(ns: u64) -> u32 {
    (ns / 1_000_000) as u32
}

fn weight(s: &Segment) -> u64 {
    let bits = u64::from(s.flags.syn) + u64::from(s.flags.fin) + u64::from(s.flags.rst);
    u64::from(s.payload_len) + bits
}

impl Bounce {
    /// Whether the segment is this one or a piece of it.
    fn has(&self, s: &Segment, start: u64, end: u64) -> bool {
        let o = &self.segment;
        self.start <= start
            && end <= self.end
            && (s.ack, s.window, s.options) == (o.ack, o.window, o.options)
            && (!s.flags.syn || o.flags.syn)
            && (!s.flags.fin || o.flags.fin)
            && s.flags.rst == o.flags.rst
    }
}

impl Emitters {
    /// Tells which way a service's segment goes at a node's port.
    ///
    /// Ethernet addresses would tell, but for one trap. All hosts of a lab share memory, and a
    /// capture shares it with the frame until it is written down. A peer that passes a frame on
    /// gives it new addresses in place: then the frame has been captured, at any port on its way,
    /// as if it went from the peer to the client, or with one old and one new address. So what
    /// has just left one node for the other is expected there, whatever it looks like.
    pub(crate) fn way(&mut self, s: &Segment, start: u64, end: u64, story: &Story) -> Way {
        let is_node = |host: u8| story.hosts[usize::from(host)].node;
        // What a host sends that is dead or cut off goes nowhere.
        let lives = !story.is_unheard(s.host.into(), s.at_ns);
        let others = story.nodes().map(|node| node as u8).filter(|node| *node != s.host);
        let peer = others.take(usize::from(lives)).next();
        let to_node = s.target.filter(|&host| is_node(host));
        let control = s.flags.syn || s.flags.fin || s.flags.rst;
        if self.arrives(s, start, end) || (s.link == Link::Service && to_node == Some(s.host)) {
            return Way::Bounced;
        }
        if s.link == Link::Cluster {
            // No client is here.
            self.leaves(s, start, end, peer);
            return Way::Emitted;
        }
        if s.from_host || to_node.is_some() {
            // Who serves passes on no data: what looks like the dead primary's is its own.
            let serves = story
                .handover_before(s.at_ns)
                .is_some_and(|h| story.host_named(&h.to) == Some(s.host.into()));
            if to_node.is_none() && (control || !serves) && self.passes(s, start, end) {
                return Way::PassedOn;
            }
            if control || to_node.is_some() {
                self.leaves(s, start, end, peer);
            }
            return Way::Emitted;
        }
        // From the peer to the client, at this port. What has left the peer already was flooded;
        // else it is on its way there.
        let from_peer = s.sender.is_some_and(is_node) && peer.is_some();
        let known =
            |b: &Bounce| b.segment.host == s.sender.unwrap_or(s.host) && b.has(s, start, end);
        if !from_peer || !control || self.bounces.iter().any(known) {
            return Way::Flooded;
        }
        self.leaves(s, start, end, peer);
        Way::Emitted
    }

    fn leaves(&mut self, s: &Segment, start: u64, end: u64, through: Option<u8>) {
        let Some(through) = through else { return };
        if self.bounces.len() == REMEMBERED {
            self.bounces.remove(0);
        }
        self.bounces.push(Bounce { through, segment: *s, start, end, came: 0, passed: 0 });
    }

    /// It comes to the peer over the link on which it left, perhaps not for the first time.
    fn arrives(&mut self, s: &Segment, start: u64, end: u64) -> bool {
        let weight = weight(s);
        let this = |b: &Bounce| {
            b.through == s.host
                && b.segment.link == s.link
                && s.at_ns < b.segment.at_ns + ON_ITS_WAY_NS
                && weight > 0
                && b.has(s, start, end)
        };
        let first = |b: &Bounce| this(b) && b.came + weight <= self::weight(&b.segment);
        // On the link of the clients, what is passed on may look the same.
        let may_be_again = s.link == Link::Cluster || (!s.from_host && s.target == Some(s.host));
        let found = self
            .bounces
            .iter()
            .position(first)
            .or_else(|| may_be_again.then(|| self.bounces.iter().rposition(this)).flatten());
        found.map(|n| self.bounces[n].came += weight).is_some()
    }

    /// It has come, and leaves the peer.
    fn passes(&mut self, s: &Segment, start: u64, end: u64) -> bool {
        let weight = weight(s);
        let this = |b: &&mut Bounce| {
            b.through == s.host && weight > 0 && b.passed + weight <= b.came && b.has(s, start, end)
        };
        self.bounces.iter_mut().find(this).map(|b| b.passed += weight).is_some()
    }

    /// A node's own segment leaves it. Whether it comes late: out of a queue, after its node was
    /// fenced.
    pub(crate) fn emitted(
        &mut self,
        s: &Segment,
        report: &mut Report<'_>,
        stats: &mut Statistics,
    ) -> bool {
        let story = report.story;
        let first = *self.first.get_or_insert(s.host);
        self.reads(s);
        let handover = story.handover_before(s.at_ns);
        let serving = match handover {
            Some(handover) => story.host_named(&handover.to),
            None => Some(story.first_primary().unwrap_or(first.into())),
        };
        if serving == Some(s.host.into()) {
            self.span(s, stats);
            return false;
        }
        let host = report.name(s.host);
        if let Some(handover) = handover
            && handover.from == host
            && s.at_ns <= handover.at_ns + story.queue_ns
        {
            // A queue explains that it comes now, not that it was made now.
            let made_after_ms =
                self.made(s).map(|made| made.wrapping_sub(ms(handover.at_ns)) as i32);
            let Some(after) = made_after_ms.filter(|&after| after > CLOCK_SLACK_MS) else {
                stats.late += 1;
                return true;
            };
            let expected = format!("no segment made after {} took over", handover.to);
            let seen = format!("one whose timestamp is {after} ms younger than that");
            report.find((Class::I3, "late"), s, None, expected, seen);
            return true;
        }
        self.span(s, stats);
        let since = handover.map_or_else(
            || "no hand-over is declared".to_owned(),
            |h| format!("{} took over at {}", h.to, report.time(h.at_ns)),
        );
        let who = serving.map_or("nobody", |h| &story.hosts[h].name);
        report.find(
            (Class::I3, "emitter"),
            s,
            None,
            format!("segments of {who} only: {since}"),
            format!("one of {host}'s own, seq {}", s.seq),
        );
        false
    }

    /// Notes a host's clock.
    fn reads(&mut self, s: &Segment) {
        let Some((tsval, _)) = s.options.stamps.filter(|_| s.link == Link::Cluster) else { return };
        let needs = ms(s.at_ns).wrapping_sub(tsval);
        let least = self.clocks.entry(s.host).or_insert(needs);
        if (needs.wrapping_sub(*least) as i32) < 0 {
            *least = needs;
        }
    }

    /// When a segment was made, as its timestamp tells; ms, on the ports' clock, modulo 2^32.
    fn made(&self, s: &Segment) -> Option<u32> {
        let (tsval, _) = s.options.stamps?;
        self.clocks.get(&s.host).map(|needs| tsval.wrapping_add(*needs))
    }

    fn span(&mut self, s: &Segment, stats: &mut Statistics) {
        if self.last != Some(s.host) {
            self.last = Some(s.host);
            stats.spans += 1;
        }
    }
}

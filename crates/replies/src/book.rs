//! What is due for one flow's replies: which bytes are kept, and up to where they may leave.
//!
//! Offsets are those of the outstream, unless they are said to be the instream's:
//!
//! ```text
//!     una         kept from        whole            at
//!  ----|-------------|---------------|---------------|---- outstream
//!      |  hole, or   | whole         | the reply     |
//!      |  nothing    | messages      | under way     |
//! ```
//!
//! The hole lies in a regenerated reply, so it may also reach behind `whole`, while that reply is
//! under way.

use std::collections::VecDeque;

use http::{BodyLength, Event, Request, Treatment};
use journal::{Growable, InOrder, Purse, allocated_list};

use crate::{Excess, Policy, Stats, Why};

/// How much of a regenerated reply's end is kept, in bytes: more than a segment has, so that no
/// segment holds bytes of a hole and of the reply behind it. (A super-segment has 64 KiB unless
/// "BIG TCP" has been configured.)
pub const TAIL: u64 = 128 * 1024;

/// How far a release may lie ahead of what has arrived, in bytes, and how many may be skipped at a
/// time, half as many being skipped and not acknowledged: together far less than half the sequence
/// space.
pub const AHEAD_MAX: u64 = 256 * 1024 * 1024;

/// It is not worth an order to skip less, in bytes.
const SKIP_MIN: u64 = 256 * 1024;

/// So much of a regenerated reply of unknown length is kept, in bytes, before its front is given up.
const KEPT_MAX: u64 = 4 * TAIL;

#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Requests with a whole head and without a whole reply, oldest first.
    waiting: VecDeque<Waiting>,
    /// The bytes that are kept, up to the last one that has arrived.
    kept: InOrder,
    /// What the client has acknowledged: the offset of the first byte that it has not; behind the
    /// FIN if that is acknowledged. Invariant: not behind `released`.
    una: u64,
    /// Behind the last whole message. Invariant: not behind what has arrived.
    whole: u64,
    /// What is done with the reply under way, which begins at `whole`.
    under_way: UnderWay,
    /// Bytes between `una` and the first one that is kept are missing. Invariant: there are such
    /// bytes if and only if this is set.
    hole: Option<Hole>,
    /// Behind a hole: the first message that must not leave before the hole is closed. Invariant:
    /// absent without a hole, and never in front of what has been released.
    barrier: Option<u64>,
    /// Where the bytes end that may leave as far as their own reply is concerned. Never steps back.
    may_leave: u64,
    /// Where the bytes end that may leave, FIN included. Never steps back.
    released: u64,
    /// The server's FIN has arrived; it stands behind the last byte.
    ended: bool,
}

#[derive(Debug)]
struct Waiting {
    treatment: Treatment,
    /// A GET, which may be executed twice by its definition (RFC 9110 §9.2.2), and to which there
    /// was no interim reply.
    get: bool,
    /// Its first byte in the instream.
    begin: u64,
}

/// Where a takeover begins because of bytes that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    /// The first byte of the request in the instream.
    pub(crate) request: u64,
    /// The first byte of its reply. Invariant: not behind `una`.
    pub(crate) reply: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum UnderWay {
    /// Its head is not whole, or nothing of it is there.
    #[default]
    Head,
    /// It leaves when it is whole.
    Held,
    /// It leaves as it comes: another server would write the same.
    Regenerated,
    /// It leaves as it comes: it is too long.
    Streamed,
}

impl Book {
    /// The heap charged for it, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        allocated_list::<Waiting>(self.waiting.capacity()) + self.kept.heap_bytes()
    }

    /// The offset of the next byte expected.
    pub(crate) fn at(&self) -> u64 {
        self.kept.len()
    }

    pub(crate) fn una(&self) -> u64 {
        self.una
    }

    pub(crate) fn whole(&self) -> u64 {
        self.whole
    }

    pub(crate) fn released(&self) -> u64 {
        self.released
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn hole(&self) -> Option<Hole> {
        self.hole
    }

    /// A part of a reply that no server can continue may have reached the client.
    pub(crate) fn is_partly_sent(&self) -> bool {
        self.under_way == UnderWay::Streamed && self.released > self.whole
    }

    /// The whole messages that are not acknowledged. There must not be a hole.
    pub(crate) fn logged(&self) -> Vec<&[u8]> {
        assert!(self.hole.is_none(), "the log is not whole");
        let mut left = self.whole.saturating_sub(self.una);
        let mut logged = Vec::new();
        for bytes in self.kept.from(self.una) {
            let here = left.min(bytes.len() as u64);
            if here == 0 {
                break;
            }
            logged.push(&bytes[..here as usize]);
            left -= here;
        }
        assert_eq!(left, 0, "the log holds what it says it holds");
        logged
    }

    /// Whether bytes that came again at `offset` are the same, as far as they are still kept. The
    /// SYN's place and whatever is before it cannot be.
    pub(crate) fn is_same(&self, offset: Option<u64>, again: &[u8]) -> bool {
        offset.is_some_and(|offset| self.kept.conflicts(offset, again) == 0)
    }

    pub(crate) fn append(&mut self, bytes: &[u8], purse: &mut Purse<'_>) -> Result<(), Why> {
        Ok(self.kept.append(bytes, purse)?)
    }

    /// The server's FIN stands behind what has arrived: nothing will be answered any more.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.waiting.clear();
    }

    /// How many requests wait for a reply.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A request's head is whole.
    pub(crate) fn request(
        &mut self,
        request: &Request<'_>,
        policy: &Policy,
        purse: &mut Purse<'_>,
    ) -> Result<(), Why> {
        if self.waiting.len() == self.waiting.capacity() {
            let capacity = (self.waiting.len() * 2).max(1);
            self.waiting.grow_to(capacity, purse)?;
        }
        self.waiting.push_back(Waiting {
            treatment: policy.routes.treatment(request.method, request.target),
            get: request.method == "GET",
            begin: request.begin,
        });
        Ok(())
    }

    /// Something was found in the outstream.
    pub(crate) fn on_output(&mut self, event: &Event<'_>, policy: &Policy, counts: &mut Stats) {
        match *event {
            Event::Interim { end, .. } => {
                // Another server need not send the same ones, so offsets in its output and in this
                // one's would not agree.
                let request = self.first_waiting();
                (request.treatment, request.get) = (Treatment::Log, false);
                self.stand_behind_hole();
                self.message_ends(end);
            }
            Event::Reply(reply) => {
                let size = match reply.body {
                    BodyLength::Bytes(length) => {
                        (reply.head_end - reply.begin).saturating_add(length)
                    }
                    BodyLength::Chunked | BodyLength::UntilClose => 0,
                };
                self.under_way = match self.first_waiting().treatment {
                    Treatment::Regenerate => UnderWay::Regenerated,
                    Treatment::Log if size > policy.reply_bytes => self.in_excess(policy),
                    Treatment::Log => UnderWay::Held,
                };
            }
            Event::ReplyEnd { end, closes, .. } => {
                match self.under_way {
                    UnderWay::Held => {
                        counts.logged += 1;
                        self.stand_behind_hole();
                    }
                    UnderWay::Regenerated => counts.regenerated += 1,
                    UnderWay::Streamed => counts.streamed += 1,
                    UnderWay::Head => unreachable!("a reply has a head"),
                }
                self.message_ends(end);
                self.waiting.pop_front().expect("a reply answers a request");
                if closes {
                    self.waiting.clear();
                }
            }
            Event::Request(_) | Event::RequestEnd { .. } | Event::PassThrough(_) => {
                unreachable!("not of the outstream")
            }
        }
    }

    /// The client has acknowledged what is in front of `una`, all of it released.
    pub(crate) fn acknowledge(&mut self, una: u64) {
        assert!(self.una <= una && una <= self.released, "an acknowledgement of what was released");
        self.una = una;
        if una >= self.kept.begin() {
            self.hole = None;
            self.barrier = None;
        }
    }

    /// What follows from all that has come. `unread` is what is to come of the body under way, if its
    /// length is known. Returns how many bytes from here on are skipped.
    pub(crate) fn settle(
        &mut self,
        unread: Option<u64>,
        policy: &Policy,
        purse: &mut Purse<'_>,
    ) -> u64 {
        if self.under_way == UnderWay::Held && self.at() - self.whole > policy.reply_bytes {
            self.under_way = self.in_excess(policy);
        }
        let mut skipped = 0;
        match self.under_way {
            UnderWay::Head | UnderWay::Held => {}
            UnderWay::Streamed => self.may_leave = self.may_leave.max(self.at()),
            UnderWay::Regenerated => {
                skipped = self.give_up_front(unread, purse);
                let to_come = unread.map_or(0, |unread| (unread - skipped).min(AHEAD_MAX));
                self.may_leave = self.may_leave.max(self.at() + to_come);
            }
        }
        self.kept.collect(self.una, purse);
        if self.waiting.is_empty() {
            let list = allocated_list::<Waiting>(self.waiting.capacity());
            self.waiting = VecDeque::new();
            purse.credit(list);
        }
        skipped
    }

    /// The edge to be released, if it has moved.
    pub(crate) fn release(&mut self) -> Option<u64> {
        let edge = self.may_leave + u64::from(self.ended);
        let edge = self.barrier.map_or(edge, |barrier| edge.min(barrier));
        let moved = edge > self.released;
        self.released = self.released.max(edge);
        self.check();
        moved.then_some(edge)
    }

    /// What is done with the reply under way, which is too long to be held.
    fn in_excess(&mut self, policy: &Policy) -> UnderWay {
        if policy.excess == Excess::Regenerate && self.first_waiting().get {
            return UnderWay::Regenerated;
        }
        self.stand_behind_hole();
        UnderWay::Streamed
    }

    /// The message that begins at `whole` must not leave while a takeover would begin in front of it.
    fn stand_behind_hole(&mut self) {
        if self.hole.is_some() {
            self.barrier.get_or_insert(self.whole);
        }
    }

    fn message_ends(&mut self, end: u64) {
        assert!(self.whole <= end && end <= self.at(), "a message lies within what has arrived");
        self.whole = end;
        self.may_leave = self.may_leave.max(end);
        self.under_way = UnderWay::Head;
    }

    /// Stops keeping the reply under way, which is regenerated, but for its end. That is possible
    /// only if nothing in front of it is still to be sent from the log. Returns how many bytes are
    /// skipped.
    fn give_up_front(&mut self, unread: Option<u64>, purse: &mut Purse<'_>) -> u64 {
        let alone = self.una >= self.whole || self.hole.is_some();
        if !alone || self.barrier.is_some() {
            return 0;
        }
        let near = self.at().saturating_sub(self.una) <= AHEAD_MAX / 2;
        let skip = match unread {
            Some(unread) if near && unread >= SKIP_MIN + TAIL => (unread - TAIL).min(AHEAD_MAX),
            _ => 0,
        };
        if skip > 0 {
            self.kept.skip_to(self.at() + skip, purse);
        } else if self.at() - self.kept.begin() > KEPT_MAX {
            self.kept.collect(self.at() - TAIL, purse);
        }
        if self.una < self.kept.begin() && self.hole.is_none() {
            let (request, reply) = (self.first_waiting().begin, self.whole);
            self.hole = Some(Hole { request, reply });
        }
        skip
    }

    fn first_waiting(&mut self) -> &mut Waiting {
        self.waiting.front_mut().expect("a reply answers a request")
    }

    fn check(&self) {
        assert!(self.una <= self.released, "acknowledged, yet never released");
        assert_eq!(self.hole.is_some(), self.una < self.kept.begin(), "missing bytes are known");
        assert!(self.hole.is_none_or(|hole| hole.reply <= self.una), "logged bytes are missing");
        assert!(self.barrier.is_none_or(|_| self.hole.is_some()), "a barrier without a hole");
        assert!(self.barrier.is_none_or(|barrier| self.released <= barrier), "beyond the barrier");
        assert!(self.whole <= self.at(), "a message lies within what has arrived");
        assert!(!self.ended || self.whole == self.at(), "a FIN within a message");
        let waits = matches!(self.under_way, UnderWay::Head | UnderWay::Held);
        let edge = self.whole + u64::from(self.ended);
        assert!(!waits || self.released <= edge, "a part of a reply that is held has left");
    }
}

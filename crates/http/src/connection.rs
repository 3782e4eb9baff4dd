//! Both streams of one connection, and what they say together.

use std::borrow::Cow;
use std::collections::VecDeque;

use crate::event::{Event, Request, Version};
use crate::instream::Instream;
use crate::message::Method;
use crate::outstream::Outstream;
use crate::takeover::{Resume, Takeover};
use crate::{Doubt, Limits};

/// Follows one connection. See the crate's page for how it is fed.
#[derive(Debug)]
pub struct Connection {
    limits: Limits,
    instream: Instream,
    outstream: Outstream,
    /// Requests with a whole head and without a whole reply, oldest first.
    waiting: VecDeque<Waiting>,
    doubt: Option<Doubt>,
    /// [`Event::PassThrough`] has been returned.
    reported: bool,
}

/// Whether what is said of a connection can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything so far has one meaning.
    Framed,
    /// Something had not, and never again is anything said of this connection.
    PassThrough {
        /// The first doubt.
        why: Doubt,
    },
}

/// A request that waits for its reply.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) number: u64,
    pub(crate) begin: u64,
    pub(crate) method: Method,
    pub(crate) version: Version,
    pub(crate) persists: bool,
    /// It expects 100 (Continue), and has not got it.
    pub(crate) waits_for_continue: bool,
}

/// An event whose words may lie in a head that must be kept for them.
pub(crate) enum Found<'a> {
    Request(FoundRequest<'a>),
    Event(Event<'static>),
}

pub(crate) struct FoundRequest<'a> {
    pub(crate) head: Cow<'a, [u8]>,
    /// The words' lengths in bytes.
    pub(crate) method: usize,
    pub(crate) target: usize,
    /// Without its words.
    pub(crate) request: Request<'static>,
}

#[derive(Clone, Copy, Debug)]
enum Side {
    In,
    Out,
}

impl Connection {
    /// A connection of which nothing has been seen yet: both streams begin at offset 0.
    pub fn new(limits: Limits) -> Self {
        Self::starting_at(0, 0, limits)
    }

    /// A connection that is carried on between two messages, see [`Takeover`]: nothing is
    /// unanswered, and the next request and the next reply begin at these offsets. Requests are
    /// counted from 0 again.
    pub fn starting_at(instream: u64, outstream: u64, limits: Limits) -> Self {
        Self {
            limits: limits.within_bounds(),
            instream: Instream::new(instream),
            outstream: Outstream::new(outstream),
            waiting: VecDeque::new(),
            doubt: None,
            reported: false,
        }
    }

    /// The next bytes from client to server, of which the first is at `offset`.
    pub fn instream<'a>(&'a mut self, offset: u64, bytes: &'a [u8]) -> Events<'a> {
        self.feed(Side::In, offset, bytes, false)
    }

    /// The next bytes from server to client, of which the first is at `offset`.
    pub fn outstream<'a>(&'a mut self, offset: u64, bytes: &'a [u8]) -> Events<'a> {
        self.feed(Side::Out, offset, bytes, false)
    }

    /// The next `length` bytes from server to client were not seen. That does no harm within a body
    /// of which the length is known, see [`Self::unread_of_body`]: such bytes are only counted.
    ///
    /// # Panics
    /// If the reply does not go on behind them.
    pub fn outstream_unseen(&mut self, length: u64) {
        assert!(self.unread_of_body().is_some_and(|unread| unread > length), "bytes that matter");
        self.outstream.count(length);
    }

    /// How much is to come of a reply's body of which the length is known, if one is under way.
    pub fn unread_of_body(&self) -> Option<u64> {
        self.outstream.unread_of_body().filter(|_| self.doubt.is_none())
    }

    /// The client's FIN, behind the byte before `offset`.
    pub fn instream_end(&mut self, offset: u64) -> Events<'_> {
        self.feed(Side::In, offset, &[], true)
    }

    /// The server's FIN, behind the byte before `offset`.
    pub fn outstream_end(&mut self, offset: u64) -> Events<'_> {
        self.feed(Side::Out, offset, &[], true)
    }

    /// Whether this is still a connection of which everything is known.
    pub fn verdict(&self) -> Verdict {
        self.doubt.map_or(Verdict::Framed, |why| Verdict::PassThrough { why })
    }

    /// Where another server would have to go on. `None` once the connection is passed through.
    pub fn takeover(&self) -> Option<Takeover> {
        if self.doubt.is_some() {
            return None;
        }
        let resume = if self.outstream.is_closed() {
            Resume::Closed
        } else if let Some(first) = self.waiting.front() {
            Resume::At(first.begin)
        } else if let Some((request, _)) = self.instream.in_body_of() {
            Resume::BehindBody { request }
        } else {
            Resume::At(self.instream.begin())
        };
        Some(Takeover {
            resume,
            outstream_at: self.outstream.begin(),
            last_reply_complete: self.outstream.begin() == self.outstream.at(),
            unanswered: self.waiting.len(),
        })
    }

    /// The heap that the connection holds, in bytes: at most twice [`Limits::head_bytes`], and what
    /// [`Limits::unanswered`] says. Nothing while no message is under way.
    pub fn heap_bytes(&self) -> usize {
        self.instream.heap_bytes()
            + self.outstream.heap_bytes()
            + self.waiting.capacity() * size_of::<Waiting>()
    }

    fn feed<'a>(&'a mut self, side: Side, offset: u64, bytes: &'a [u8], end: bool) -> Events<'a> {
        let (at, ended) = match side {
            Side::In => (self.instream.at(), self.instream.has_ended()),
            Side::Out => (self.outstream.at(), self.outstream.has_ended()),
        };
        let fits = offset == at && offset.checked_add(bytes.len() as u64).is_some();
        if !fits || ended && !bytes.is_empty() {
            self.pass_through(Doubt::Gap);
        }
        Events { connection: self, side, bytes, end: end && !ended, head: Cow::Borrowed(&[]) }
    }

    fn pass_through(&mut self, why: Doubt) {
        if self.doubt.is_none() {
            *self = Self { doubt: Some(why), ..Self::starting_at(0, 0, self.limits) };
        }
    }

    fn step<'a>(
        &mut self,
        side: Side,
        bytes: &mut &'a [u8],
        end: &mut bool,
    ) -> Result<Option<Found<'a>>, Doubt> {
        let Self { instream, outstream, waiting, limits, .. } = self;
        let found = match side {
            Side::In => instream.step(bytes, waiting, limits)?,
            Side::Out => outstream.step(bytes, waiting, instream, limits)?.map(Found::Event),
        };
        if found.is_some() || !std::mem::take(end) {
            return Ok(found);
        }
        match side {
            Side::In => instream.end().map(|()| None),
            Side::Out => Ok(outstream.end(waiting, instream)?.map(Found::Event)),
        }
    }
}

/// The events in a piece, found as they are asked for.
///
/// Ask until there is no more: with what was not asked for the piece's bytes are gone, and the next
/// piece is behind a [`Doubt::Gap`].
#[derive(Debug)]
#[must_use = "the bytes are read as events are asked for"]
pub struct Events<'a> {
    connection: &'a mut Connection,
    side: Side,
    bytes: &'a [u8],
    /// A FIN stands behind the bytes.
    end: bool,
    /// Holds the words of the event that was returned last.
    head: Cow<'a, [u8]>,
}

impl Events<'_> {
    /// The next event; `None` when the piece is used up. No iterator, since a request's words may
    /// lie in what the next call gives free.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        if self.connection.doubt.is_none() {
            match self.connection.step(self.side, &mut self.bytes, &mut self.end) {
                Ok(Some(Found::Event(event))) => return Some(event),
                Ok(Some(Found::Request(found))) => {
                    self.head = found.head;
                    return Some(Event::Request(with_words(
                        &self.head,
                        found.method,
                        found.target,
                        found.request,
                    )));
                }
                Ok(None) => {
                    assert!(self.bytes.is_empty(), "a piece is read to its end");
                    return None;
                }
                Err(why) => self.connection.pass_through(why),
            }
        }
        let first = !std::mem::replace(&mut self.connection.reported, true);
        self.connection.doubt.filter(|_| first).map(Event::PassThrough)
    }

    /// Reads the piece to its end, with each event to `act`.
    pub fn for_each(mut self, mut act: impl FnMut(Event<'_>)) {
        while let Some(event) = self.next_event() {
            act(event);
        }
    }
}

/// Puts a request's words to it, from its head.
fn with_words<'h>(
    head: &'h [u8],
    method: usize,
    target: usize,
    request: Request<'static>,
) -> Request<'h> {
    let line = head.strip_prefix(b"\r\n").unwrap_or(head);
    let (method, line) = line.split_at(method);
    let target = &line[1..=target];
    let word = |word| std::str::from_utf8(word).expect("a request line that was parsed is UTF-8");
    Request { method: word(method), target: word(target), ..request }
}

//! The server's side: replies, in the order of the requests (RFC 9112 §9.3.2).

use std::collections::VecDeque;

use crate::body::Body;
use crate::connection::Waiting;
use crate::event::{Event, Reply};
use crate::head::{HeadReader, Kind};
use crate::instream::Instream;
use crate::message::{self, Method};
use crate::{Doubt, Limits};

/// As many waiting requests have room without an allocation once there were as many.
const KEPT: usize = 8;

#[derive(Debug)]
pub(crate) struct Outstream {
    /// The offset of the next byte expected.
    at: u64,
    /// Where the reply begins that is under way, or where the next one will.
    begin: u64,
    phase: Phase,
    ended: bool,
}

#[derive(Debug)]
enum Phase {
    Head(HeadReader),
    Body {
        body: Body,
        then: Then,
    },
    /// Behind the last reply that HTTP sees.
    Leave(Doubt),
    /// Behind a reply that ends the connection, or behind the server's FIN.
    Closed,
}

/// What follows a reply.
#[derive(Clone, Copy, Debug)]
enum Then {
    Next,
    Close,
    Leave(Doubt),
}

impl Outstream {
    pub(crate) fn new(at: u64) -> Self {
        Self { at, begin: at, phase: Phase::Head(HeadReader::default()), ended: false }
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn begin(&self) -> u64 {
        self.begin
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Behind a reply that ends the connection, or behind the server's FIN.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Heap held, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.phase {
            Phase::Head(reader) => reader.heap_bytes(),
            Phase::Body { body, .. } => body.heap_bytes(),
            _ => 0,
        }
    }

    /// What is to come of a body with a known length.
    pub(crate) fn unread_of_body(&self) -> Option<u64> {
        match self.phase {
            Phase::Body { body: Body::Bytes(left), .. } => Some(left),
            _ => None,
        }
    }

    /// Counts bytes of such a body, fewer than are to come.
    pub(crate) fn count(&mut self, length: u64) {
        if let Phase::Body { body: Body::Bytes(left), .. } = &mut self.phase {
            *left -= length;
            self.at += length;
        }
    }

    /// Reads `bytes` up to the next event. `None` when they are used up.
    pub(crate) fn step(
        &mut self,
        bytes: &mut &[u8],
        waiting: &mut VecDeque<Waiting>,
        instream: &mut Instream,
        limits: &Limits,
    ) -> Result<Option<Event<'static>>, Doubt> {
        let there = bytes.len();
        match &mut self.phase {
            Phase::Head(_) if bytes.is_empty() => Ok(None),
            Phase::Head(reader) => {
                let request = waiting.front_mut().ok_or(Doubt::ReplyWithoutRequest)?;
                let head = reader.read(Kind::Reply, bytes, limits)?;
                self.at += (there - bytes.len()) as u64;
                let Some(head) = head else { return Ok(None) };
                let parsed = message::reply(&head, request.method, request.version)?;
                if parsed.status < 200 && parsed.status != 101 {
                    let (begin, end) = (self.begin, self.at);
                    self.begin = self.at;
                    // RFC 9110 §15.2: any other one leaves the client waiting.
                    request.waits_for_continue &= parsed.status != 100;
                    let (request, status) = (request.number, parsed.status);
                    return Ok(Some(Event::Interim { request, status, begin, end }));
                }
                let persists = parsed.persists && request.persists;
                let untouched = instream.in_body_of() == Some((request.number, false));
                if request.waits_for_continue && untouched && persists {
                    return Err(Doubt::ContinueRefused);
                }
                let then = match (request.method, parsed.status) {
                    (_, 101) => Then::Leave(Doubt::Upgraded),
                    (Method::Connect, 200..300) => Then::Leave(Doubt::Tunnel),
                    _ if persists => Then::Next,
                    _ => Then::Close,
                };
                let reply = Reply {
                    request: request.number,
                    begin: self.begin,
                    head_end: self.at,
                    status: parsed.status,
                    body: parsed.body,
                    persists,
                };
                self.phase = Phase::Body { body: Body::new(parsed.body), then };
                Ok(Some(Event::Reply(reply)))
            }
            Phase::Body { body, then } => {
                let whole = body.read(bytes, limits)?;
                let then = *then;
                self.at += (there - bytes.len()) as u64;
                Ok(whole.then(|| self.reply_end(then, waiting, instream)))
            }
            Phase::Leave(doubt) => Err(*doubt),
            Phase::Closed if !bytes.is_empty() => Err(Doubt::BytesAfterClosingReply),
            Phase::Closed => Ok(None),
        }
    }

    /// The server's FIN stands behind what was read.
    pub(crate) fn end(
        &mut self,
        waiting: &mut VecDeque<Waiting>,
        instream: &mut Instream,
    ) -> Result<Option<Event<'static>>, Doubt> {
        self.ended = true;
        match &self.phase {
            Phase::Body { body: Body::UntilClose, then } => {
                let then = *then;
                Ok(Some(self.reply_end(then, waiting, instream)))
            }
            Phase::Head(reader) if reader.is_empty() => {
                self.close(waiting, instream);
                Ok(None)
            }
            Phase::Head(_) | Phase::Body { .. } => Err(Doubt::TruncatedReply),
            Phase::Leave(_) | Phase::Closed => Ok(None),
        }
    }

    fn reply_end(
        &mut self,
        then: Then,
        waiting: &mut VecDeque<Waiting>,
        instream: &mut Instream,
    ) -> Event<'static> {
        let request = waiting.pop_front().expect("a reply has a request until it ends");
        if waiting.is_empty() && waiting.capacity() > KEPT {
            // After a burst; few connections ever have another.
            *waiting = VecDeque::new();
        }
        self.begin = self.at;
        match then {
            Then::Next => {
                self.phase = Phase::Head(HeadReader::default());
                instream.no_tunnel();
            }
            Then::Close => self.close(waiting, instream),
            Then::Leave(doubt) => self.phase = Phase::Leave(doubt),
        }
        let closes = matches!(then, Then::Close);
        Event::ReplyEnd { request: request.number, end: self.at, closes }
    }

    /// RFC 9112 §9.6: what the client sent behind the request that was answered last will never be
    /// processed.
    fn close(&mut self, waiting: &mut VecDeque<Waiting>, instream: &mut Instream) {
        self.phase = Phase::Closed;
        *waiting = VecDeque::new();
        instream.close();
    }
}

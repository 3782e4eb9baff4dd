//! The client's side: requests, one behind the other.

use std::collections::VecDeque;

use crate::body::Body;
use crate::connection::{Found, FoundRequest, Waiting};
use crate::event::{BodyLength, Event, Request};
use crate::head::{HeadReader, Kind};
use crate::message::{self, Method};
use crate::{Doubt, Limits};

#[derive(Debug)]
pub(crate) struct Instream {
    /// The offset of the next byte expected.
    at: u64,
    /// Where the request begins that is under way, or where the next one will.
    begin: u64,
    /// The next request's number.
    number: u64,
    phase: Phase,
    ended: bool,
}

#[derive(Debug)]
enum Phase {
    Head(HeadReader),
    Body {
        body: Body,
        request: u64,
        /// The offset of its first byte.
        begin: u64,
        then: Then,
    },
    /// Behind the client's last request.
    Last,
    /// Behind a CONNECT without a reply.
    Connect {
        persists: bool,
    },
    /// The server reads no more.
    Over,
}

/// What follows a request.
#[derive(Clone, Copy, Debug)]
enum Then {
    Next,
    Nothing,
    Tunnel { persists: bool },
}

impl Instream {
    pub(crate) fn new(at: u64) -> Self {
        let phase = Phase::Head(HeadReader::default());
        Self { at, begin: at, number: 0, phase, ended: false }
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

    /// Heap held, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.phase {
            Phase::Head(reader) => reader.heap_bytes(),
            Phase::Body { body, .. } => body.heap_bytes(),
            _ => 0,
        }
    }

    /// The request whose body is under way, and whether any byte of the body has come.
    pub(crate) fn in_body_of(&self) -> Option<(u64, bool)> {
        match self.phase {
            Phase::Body { request, begin, .. } => Some((request, self.at > begin)),
            _ => None,
        }
    }

    /// The server reads no more: what comes now is no request.
    pub(crate) fn close(&mut self) {
        self.phase = Phase::Over;
    }

    /// The server has refused a CONNECT: HTTP goes on.
    pub(crate) fn no_tunnel(&mut self) {
        if let Phase::Connect { persists } = self.phase {
            self.phase = if persists { Phase::Head(HeadReader::default()) } else { Phase::Last };
        }
    }

    /// Reads `bytes` up to the next event. `None` when they are used up.
    pub(crate) fn step<'a>(
        &mut self,
        bytes: &mut &'a [u8],
        waiting: &mut VecDeque<Waiting>,
        limits: &Limits,
    ) -> Result<Option<Found<'a>>, Doubt> {
        let there = bytes.len();
        match &mut self.phase {
            Phase::Head(_) if bytes.is_empty() => Ok(None),
            Phase::Head(reader) => {
                let head = reader.read(Kind::Request, bytes, limits)?;
                self.at += (there - bytes.len()) as u64;
                let Some(head) = head else { return Ok(None) };
                let parsed = message::request(&head)?;
                if waiting.len() == limits.unanswered {
                    return Err(Doubt::TooManyUnanswered);
                }
                let request = Request {
                    number: self.number,
                    begin: self.begin,
                    head_end: self.at,
                    method: "",
                    target: "",
                    version: parsed.version,
                    body: parsed.body,
                    expects_continue: parsed.expects_continue,
                    persists: parsed.persists,
                };
                waiting.push_back(Waiting {
                    number: request.number,
                    begin: request.begin,
                    method: parsed.method(),
                    version: request.version,
                    persists: request.persists,
                    waits_for_continue: request.expects_continue,
                });
                self.number += 1;
                self.phase = Phase::Body {
                    body: Body::new(request.body),
                    request: request.number,
                    begin: self.at,
                    then: match (parsed.method(), request.persists) {
                        (Method::Connect, persists) => Then::Tunnel { persists },
                        (_, true) => Then::Next,
                        (_, false) => Then::Nothing,
                    },
                };
                assert!(request.body != BodyLength::UntilClose, "a request's body has an end");
                let (method, target) = (parsed.method_name.len(), parsed.target.len());
                Ok(Some(Found::Request(FoundRequest { head, method, target, request })))
            }
            Phase::Body { body, request, then, .. } => {
                let whole = body.read(bytes, limits)?;
                self.at += (there - bytes.len()) as u64;
                if !whole {
                    return Ok(None);
                }
                let event = Event::RequestEnd { number: *request, end: self.at };
                self.begin = self.at;
                self.phase = match *then {
                    Then::Next => Phase::Head(HeadReader::default()),
                    Then::Nothing => Phase::Last,
                    Then::Tunnel { persists } => Phase::Connect { persists },
                };
                Ok(Some(Found::Event(event)))
            }
            Phase::Last if !bytes.is_empty() => Err(Doubt::BytesAfterLastRequest),
            Phase::Connect { .. } if !bytes.is_empty() => Err(Doubt::BytesBehindConnect),
            Phase::Last | Phase::Connect { .. } => Ok(None),
            Phase::Over => {
                self.at += there as u64;
                *bytes = &[];
                Ok(None)
            }
        }
    }

    /// The client's FIN stands behind what was read.
    pub(crate) fn end(&mut self) -> Result<(), Doubt> {
        self.ended = true;
        match &self.phase {
            Phase::Head(reader) if !reader.is_blank() => Err(Doubt::TruncatedRequest),
            Phase::Body { .. } => Err(Doubt::TruncatedRequest),
            _ => Ok(()),
        }
    }
}

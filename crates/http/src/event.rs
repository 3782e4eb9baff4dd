//! What a connection says of the bytes it is fed.

use std::fmt;

use crate::Doubt;

/// What was found in a piece. Offsets are those of bytes in their stream, as they were fed.
///
/// Requests follow each other without a gap in the instream, and so do replies, interim ones
/// included, in the outstream: each begins where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A request's head is whole.
    Request(Request<'a>),
    /// A request is whole, body and trailer section included. Comes for every request, also for one
    /// without a body.
    RequestEnd {
        /// Which one, see [`Request::number`].
        number: u64,
        /// The offset behind it.
        end: u64,
    },
    /// An interim reply (1xx, RFC 9110 §15.2): the reply proper is still to come.
    Interim {
        /// The request that it belongs to.
        request: u64,
        /// From 100 to 199, without 101: that one is a reply, the last one that HTTP sees.
        status: u16,
        /// Its first byte.
        begin: u64,
        /// The offset behind it.
        end: u64,
    },
    /// A reply's head is whole.
    Reply(Reply),
    /// A reply is whole, and its request answered. Comes for every reply.
    ReplyEnd {
        /// The request that it answers.
        request: u64,
        /// The offset behind it.
        end: u64,
        /// The connection ends with it (RFC 9112 §9.3 and §9.6): the server closes, or has closed.
        /// What the client sends now is read by nobody, and is no request.
        closes: bool,
    },
    /// From here on nothing is said of this connection. Comes once, as the last event.
    PassThrough(Doubt),
}

/// A request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Counts the requests of this [`Connection`](crate::Connection), from 0.
    pub number: u64,
    /// Its first byte. An empty line that stands before the request line (RFC 9112 §2.2) is part of
    /// the request.
    pub begin: u64,
    /// The offset behind the head, where the body begins if there is one.
    pub head_end: u64,
    /// As sent; methods are case-sensitive.
    pub method: &'a str,
    /// As sent: path and query in most cases, see RFC 9112 §3.2 for the others.
    pub target: &'a str,
    /// Of the request.
    pub version: Version,
    /// What is behind the head. Never [`BodyLength::UntilClose`].
    pub body: BodyLength,
    /// The client waits for 100 (Continue) before it sends the body (RFC 9110 §10.1.1).
    pub expects_continue: bool,
    /// Whether the connection persists after it, as far as the client says (RFC 9112 §9.3).
    pub persists: bool,
}

/// A reply's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request that it answers, see [`Request::number`].
    pub request: u64,
    /// Its first byte.
    pub begin: u64,
    /// The offset behind the head, where the body begins if there is one.
    pub head_end: u64,
    /// From 200 to 599, or 101.
    pub status: u16,
    /// What is behind the head. Nothing for a reply to HEAD, 204, 304 and a CONNECT that is
    /// accepted, whatever the head announces (RFC 9112 §6.3).
    pub body: BodyLength,
    /// Whether the connection persists after it: both sides must say so.
    pub persists: bool,
}

/// How the end of a body is found (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// After so many bytes.
    Bytes(u64),
    /// Where the chunks and the trailer section end.
    Chunked,
    /// Where the server ends its stream.
    UntilClose,
}

impl BodyLength {
    /// No body, or an empty one.
    pub const NONE: Self = Self::Bytes(0);
}

/// The versions that are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0, RFC 1945 as amended by RFC 9112 appendix C.
    Http10,
    /// HTTP/1.1.
    Http11,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        })
    }
}

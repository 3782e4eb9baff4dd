//! Where the messages of an HTTP/1 connection begin and end, in both of its streams.
//!
//! The scheme `message` makes whole replies stable before the client sees their first byte, and a
//! takeover begins at the first request without a reply. Both need to know, from nothing but the
//! bytes, which request is where, and which reply answers it. A [`Connection`] is fed the instream
//! and the outstream, and says so as [`Event`]s, with offsets.
//!
//! A mistake here would be a reply given to the wrong request. So nothing is ever guessed: whatever
//! two readers could understand in two ways, and whatever is not HTTP/1.0 or 1.1, is a [`Doubt`],
//! and from the first one the connection is passed through for good ([`Verdict::PassThrough`]). The
//! caller then lets everything through, unprotected, and counts it under [`Doubt::name`].
//!
//! ```
//! use http::{Connection, Event, Limits, Resume};
//!
//! let mut connection = Connection::new(Limits::default());
//! let requests = b"POST /cart HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiGET / HTTP/1.1\r\n";
//! let mut events = connection.instream(0, requests);
//! let Some(Event::Request(post)) = events.next_event() else { panic!() };
//! assert_eq!((post.method, post.target, post.persists), ("POST", "/cart", true));
//! assert_eq!(events.next_event(), Some(Event::RequestEnd { number: 0, end: 53 }));
//! assert_eq!(events.next_event(), None);
//!
//! let reply = b"HTTP/1.1 204 No Content\r\n\r\n";
//! let mut last = None;
//! connection.outstream(0, reply).for_each(|event| {
//!     if let Event::ReplyEnd { request, end, .. } = event {
//!         last = Some((request, end));
//!     }
//! });
//! assert_eq!(last, Some((0, 27)));
//!
//! let takeover = connection.takeover().unwrap();
//! assert_eq!(takeover.resume, Resume::At(53), "half a request is there already");
//! assert_eq!((takeover.outstream_at, takeover.last_reply_complete), (27, true));
//! ```
//!
//! # How it is fed
//!
//! Each stream in order, without gaps and repetitions, in pieces of any size; what the pieces are
//! does not show in the events. Between the streams, cause comes before effect: a reply must not be
//! fed before the request that it answers. The end of a stream (FIN) is fed too, when its sender
//! ended it: some replies end there. Offsets are 64-bit and count bytes of a stream from wherever
//! the caller begins.
//!
//! Nothing is buffered but a head that a piece cut in two, and nothing is allocated where none is
//! cut. Bodies are counted. What a connection can take is bounded by [`Limits`].
//!
//! # What it does not know
//!
//! What the caller does with it; sockets, clocks, sequence numbers. It reads messages as RFC 9112
//! and RFC 9110 say a recipient must, and refuses where they say that a recipient may. It does not
//! judge what does not change the framing, such as a missing `Host`.
//!
//! # The parser
//!
//! Heads are read by `httparse`, which is what hyper uses. Not by hyper itself, nor by another HTTP
//! implementation: each of them *is* a server or a client. It owns its side of the connection,
//! decides what to send, and hands out messages without the places they had in the stream, and it
//! tolerates some of what must be a doubt here. A third party that watches both sides needs the
//! rules between the heads for itself; they are short (`message`, `body`), and RFC 9112 numbers
//! them. Before a head is parsed its lines are checked (`head`): there the tolerance ends.
//!
//! [`Routes`] say which replies need no logging.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod body;
mod connection;
mod doubt;
mod event;
mod head;
mod instream;
mod limits;
mod message;
mod outstream;
mod routes;
mod takeover;

pub use crate::connection::{Connection, Events, Verdict};
pub use crate::doubt::Doubt;
pub use crate::event::{BodyLength, Event, Reply, Request, Version};
pub use crate::limits::{FIELDS_MAX, Limits};
pub use crate::routes::{RouteError, Routes, Treatment};
pub use crate::takeover::{Resume, Takeover};

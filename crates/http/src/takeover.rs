//! What a takeover needs to know of a connection.

/// Where a connection stands between its messages, for the node that carries it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takeover {
    /// Where the new server begins to read.
    pub resume: Resume,
    /// The offset behind the last reply that is whole, interim ones included: where the new server's
    /// first byte belongs in the outstream.
    pub outstream_at: u64,
    /// Whether that is all the outstream: no part of a further reply was seen. If one was, its
    /// request is unanswered, and what the client has of it cannot be continued by another server.
    pub last_reply_complete: bool,
    /// Requests with a whole head that wait for a reply.
    pub unanswered: usize,
}

/// Where a new server begins to read the instream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// At this offset: the first byte of the first unanswered request, or, if there is none, the
    /// offset behind the last answered one, where the part of a request may stand already.
    At(u64),
    /// Nowhere yet: the request that was answered last is not whole, the client is still sending
    /// its body (RFC 9112 §9.3: the server reads it, or closes). The body must not be given to a
    /// server that has not seen the head; it can begin behind the body, once its end is known.
    BehindBody {
        /// That request's number.
        request: u64,
    },
    /// Nowhere: the last reply ends the connection, or the server has ended its stream. What is
    /// left to do is to deliver the outstream and to close.
    Closed,
}

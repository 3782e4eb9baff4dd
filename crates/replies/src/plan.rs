//! What becomes of a flow whose primary is dead.

use crate::Why;

/// How a flow is carried on. Follows from the flow's state alone, and may be asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Another server goes on.
    Adopt {
        /// The offset in the instream at which it begins to read: a request's first byte.
        instream: u64,
        /// The sequence number at which its first byte belongs in the outstream.
        position: u32,
        /// So many bytes in front of `position` are in the log and not acknowledged: the client is
        /// sent them first ([`ReplyLog::unacknowledged`](crate::ReplyLog::unacknowledged)).
        logged: u64,
        /// So many of its first bytes the client has already: they must not be sent again. Not 0
        /// only if `logged` is.
        swallow: u64,
    },
    /// Nothing is to be read any more: the client is sent the log, and then a FIN.
    Finish {
        /// The FIN's sequence number.
        position: u32,
        /// As with [`Plan::Adopt`].
        logged: u64,
        /// The client has acknowledged the FIN as well.
        acknowledged: bool,
    },
    /// The request that was answered last is not whole: its client is still sending the body, and no
    /// server can begin in the midst of it. To be asked again when more of the instream is there.
    WaitForBody {
        /// As with [`Plan::Adopt`].
        logged: u64,
    },
    /// The flow cannot be carried on exactly: the client is sent the log, and then a RST.
    Reset {
        /// What is missing.
        why: Why,
        /// As with [`Plan::Adopt`]: replies that are whole.
        logged: u64,
    },
}

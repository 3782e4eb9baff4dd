//! What a service wants to be done with its replies.

use http::{Limits, Routes};
use serde::Serialize;

/// How the replies of a service are treated.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Which replies are regenerated.
    pub routes: Routes,
    /// What a connection may take before it is opened.
    pub limits: Limits,
    /// The most heap that a flow may take, in bytes. It must be enough for a reply that is held and
    /// for what the server's TCP keeps until it is acknowledged (its send buffer): a flow that
    /// needs more is opened.
    pub flow_bytes: usize,
    /// The longest reply that is held until it is whole, in bytes with its head. The gate must be
    /// able to hold as much, and one head ([`Limits::head_bytes`]): a server that is blocked by the
    /// gate before its reply is whole, or too long, would be blocked for ever.
    pub reply_bytes: u64,
    /// What is done with a longer one.
    pub excess: Excess,
}

impl Default for Policy {
    /// 8 MiB for a flow, 1 MiB for a reply, longer ones are streamed; nothing is regenerated.
    fn default() -> Self {
        Self {
            routes: Routes::default(),
            limits: Limits::default(),
            flow_bytes: 8 << 20,
            reply_bytes: 1 << 20,
            excess: Excess::Stream,
        }
    }
}

/// What is done with a reply that is too long to be held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Excess {
    /// Each piece is released once it is logged. A takeover in the midst of the reply resets the
    /// flow; before and behind it the flow is protected.
    #[default]
    Stream,
    /// It is released at once, and generated again by another server if need be. Only replies to
    /// GET: other requests may have effects, and are streamed.
    Regenerate,
}

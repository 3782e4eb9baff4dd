//! Why a flow is not protected any more.

use http::Doubt;
use thiserror::Error;

/// Why a flow was opened: its output leaves at once, and a takeover resets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Why {
    /// Its messages can be read in two ways, or are not HTTP/1.
    #[error("{0}")]
    Doubt(Doubt),
    /// The server wrote again, with other bytes, what it had written before.
    #[error("The server took back what it had written, and wrote something else.")]
    Rewritten,
    /// A part of what the server wrote did not arrive here.
    #[error("A part of the server's output did not reach the backup.")]
    Gap,
    /// A part of what the server wrote was not captured.
    #[error("A part of the server's output could not be captured.")]
    NotCaptured,
    /// The journal does not hold what the client sent.
    #[error("The client's bytes are not in the journal.")]
    NotJournaled,
    /// The flow needs more memory than it may take.
    #[error("The flow needs more memory for its replies than its budget allows.")]
    FlowBudget,
    /// All flows together need more memory than they may take.
    #[error("The budget for the replies of all flows is used up.")]
    TotalBudget,
    /// Nobody saw it begin.
    #[error("The flow began before the backup could log it.")]
    Unknown,
    /// A part of a reply has left, and the rest of it cannot be generated again.
    #[error("A part of a reply was taken for a whole one, and left.")]
    TakenForWhole,
    /// Said of a takeover only: a part of a reply that was streamed has left, and the rest of it
    /// cannot be generated again.
    #[error("The primary died while it streamed a reply that was too large to be held.")]
    PartlySent,
}

impl Why {
    /// The name under which it is counted: lower case, with underscores. Doubts have names of their
    /// own.
    pub fn name(self) -> &'static str {
        match self {
            Self::Doubt(doubt) => doubt.name(),
            Self::Rewritten => "rewritten",
            Self::Gap => "output_gap",
            Self::NotCaptured => "not_captured",
            Self::NotJournaled => "not_journaled",
            Self::FlowBudget => "flow_budget",
            Self::TotalBudget => "total_budget",
            Self::Unknown => "unknown_flow",
            Self::TakenForWhole => "taken_for_whole",
            Self::PartlySent => "partly_sent",
        }
    }
}

impl From<journal::Budget> for Why {
    fn from(budget: journal::Budget) -> Self {
        match budget {
            journal::Budget::Flow => Self::FlowBudget,
            journal::Budget::Total => Self::TotalBudget,
        }
    }
}

//! What a row is about. The rows of one subject stand together on every page.

use serde::{Deserialize, Serialize};

use crate::scheme::Scheme;

/// A scheme, or what is measured without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A server under the in-process runtime, beside the same server by itself.
    Runtime,
    /// A pair that protects so, beside an unprotected server.
    #[serde(untagged)]
    Scheme(Scheme),
}

impl Subject {
    /// All of them, in the order of the report.
    pub const ALL: [Subject; 3] =
        [Subject::Scheme(Scheme::Track), Subject::Scheme(Scheme::Message), Subject::Runtime];

    /// In a list of rows.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Scheme(scheme) => scheme.name(),
            Subject::Runtime => "runtime",
        }
    }

    /// What the names of its rows begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Subject::Scheme(scheme) => scheme.prefix(),
            Subject::Runtime => "runtime-",
        }
    }
}

impl From<Scheme> for Subject {
    fn from(scheme: Scheme) -> Subject {
        Subject::Scheme(scheme)
    }
}

//! How much one connection may take.

/// The most fields that [`Limits::fields`] can allow in one head.
pub const FIELDS_MAX: usize = 256;

/// What one connection may take before it is passed through. Bodies are counted, never held, so
/// they need no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest head, trailer section or first line of a chunk, in bytes with all line ends.
    /// Twice as much (one head in each direction) is all that a connection ever buffers of its
    /// streams. Values below 64 mean 64.
    pub head_bytes: usize,
    /// The most fields in one head or trailer section; values above [`FIELDS_MAX`] mean that.
    pub fields: usize,
    /// The most requests that wait for their replies at a time; each takes some 40 bytes. Values
    /// below 1 mean 1.
    pub unanswered: usize,
}

impl Default for Limits {
    /// 64 KiB, 128 fields, 1000 requests: more than any common server or client accepts or sends.
    fn default() -> Self {
        Self { head_bytes: 64 * 1024, fields: 128, unanswered: 1000 }
    }
}

impl Limits {
    pub(crate) fn within_bounds(self) -> Self {
        Self {
            head_bytes: self.head_bytes.max(64),
            fields: self.fields.min(FIELDS_MAX),
            unanswered: self.unanswered.max(1),
        }
    }
}

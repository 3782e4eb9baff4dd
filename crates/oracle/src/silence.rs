//! How long a client waits.

use crate::capture::Segment;

/// A client's waiting in one flow.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Since when nothing has come that the client could be waiting for; also moved by what the
    /// client does itself: a request, a window that opens.
    since_ns: u64,
    got: u64,
    acked: u64,
    sent: u64,
    window_shut: bool,
    /// Longest wait, and its beginning, ns.
    pub(crate) longest: Option<(u64, u64)>,
}

impl Waiting {
    /// The client sends.
    pub(crate) fn sent(&mut self, s: &Segment, end: u64) {
        let opened = self.window_shut && s.window > 0;
        self.window_shut = s.flags.ack && s.window == 0;
        // A FIN waits for nothing.
        if (end > self.sent && s.payload_len > 0) || s.flags.syn || opened {
            self.since_ns = self.since_ns.max(s.at_ns);
        }
        self.sent = self.sent.max(end);
    }

    /// The client gets data up to `end` (without FIN) and an acknowledgement.
    pub(crate) fn got(&mut self, s: &Segment, end: u64, ack: Option<u64>) {
        let acked = ack.unwrap_or(0);
        if end <= self.got && acked <= self.acked {
            return;
        }
        let waited = s.at_ns.saturating_sub(self.since_ns);
        if self.since_ns > 0 && self.longest.is_none_or(|(longest, _)| waited > longest) {
            self.longest = Some((waited, self.since_ns));
        }
        self.got = self.got.max(end);
        self.acked = self.acked.max(acked);
        self.since_ns = s.at_ns;
    }
}

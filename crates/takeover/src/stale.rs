//! Flows whose end nobody tells. Ordinarily the backup sees every end pass by (R4). But a client may
//! vanish: its host loses power, its network changes. Then the server's FIN is never acknowledged,
//! or its TCP gives up without a segment, and the flow would stay in the table for ever; enough of
//! them, and no new flow could be protected.

use std::time::Duration;

/// How often the table is looked through.
pub const SWEEP: Duration = Duration::from_secs(60);

/// Silence after the server's FIN. Linux sends an orphan's FIN again for less than two minutes
/// (`tcp_orphan_retries`), and each time it passes this node.
const AFTER_FIN: Duration = Duration::from_secs(300);

/// Silence of a connection that nobody has ended. A server that sends gives up after a quarter of
/// an hour (`tcp_retries2`), keep-alive probes show every two hours; whatever is silent for a day
/// is gone, or passes unprotected when it speaks again.
const OPEN: Duration = Duration::from_secs(24 * 3600);

/// Is this flow's client gone?
pub fn is_stale(server_ended: bool, idle: Duration) -> bool {
    idle >= if server_ended { AFTER_FIN } else { OPEN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_connection_is_kept_and_an_ended_one_is_not() {
        assert!(!is_stale(false, Duration::from_secs(8 * 3600)));
        assert!(is_stale(false, Duration::from_secs(25 * 3600)));
        assert!(!is_stale(true, Duration::from_secs(120)));
        assert!(is_stale(true, Duration::from_secs(301)));
    }
}

//! Telling the link that an address has moved here.
//!
//! One gratuitous ARP or unsolicited advertisement is not enough: nothing acknowledges it, it may
//! be lost in the very switch that is relearning the port, and a neighbour that missed it goes on
//! sending to the dead host until its own cache gives up (30 s and more). Repeating for ever
//! wakes every host on the link for nothing. So: a short burst at once, whatever happens, then
//! slower and slower repetitions for as long as there is no proof that the address arrives here.
//! What counts as proof is the caller's business; the schedule is a pure function of time.

use std::net::IpAddr;
use std::time::Duration;

use crate::packet::{PacketSocket, Wanted};
use crate::{Interface, LinkError, frames};

/// Sends announcements on one interface.
#[derive(Debug)]
pub struct Announcer {
    socket: PacketSocket,
}

impl Announcer {
    /// Prepares to announce on `interface` under its own Ethernet address.
    pub fn new(interface: &Interface) -> Result<Announcer, LinkError> {
        Ok(Announcer { socket: PacketSocket::open(interface, Wanted::Nothing)? })
    }

    /// Says once to everybody on the link that `addr` is here: gratuitous ARP in both forms
    /// (RFC 5227, 3), or an unsolicited advertisement with the override flag (RFC 4861, 7.2.6).
    pub fn announce(&self, addr: IpAddr) -> Result<(), LinkError> {
        for frame in frames::announcement(self.socket.mac(), addr) {
            self.socket.send(&frame)?;
        }
        Ok(())
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnnounceStep {
    /// Announce, then ask again at once.
    Announce,
    /// Nothing until this long after the start, or until the address has been seen.
    WaitUntil(Duration),
    /// The address has been seen here and the burst is over, or nobody ever used it.
    Done,
}

/// When to repeat an announcement: at 0, 10, 50 and 200 ms in any case; then, until frames for
/// the address are seen to arrive here, at 1, 2, 4, 8, 16, 32 and 60 s.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    /// Announcements made so far: an index into `TIMES_MS`.
    made: usize,
}

const TIMES_MS: [u64; 11] = [0, 10, 50, 200, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000];
/// The announcements that are made even when the address has been seen: another neighbour may
/// have missed them.
const BURST: usize = 4;

impl Schedule {
    /// A schedule that starts with an announcement at once.
    pub fn new() -> Schedule {
        Schedule::default()
    }

    /// What to do `since_start` after the takeover, `seen` telling whether frames for the
    /// address have arrived here by now. A caller that is late announces once, not for each
    /// time it missed.
    pub fn poll(&mut self, since_start: Duration, seen: bool) -> AnnounceStep {
        if self.made >= TIMES_MS.len() || (seen && self.made >= BURST) {
            return AnnounceStep::Done;
        }
        let time = |at: usize| Duration::from_millis(TIMES_MS[at]);
        if since_start < time(self.made) {
            return AnnounceStep::WaitUntil(time(self.made));
        }
        while self.made < TIMES_MS.len() && time(self.made) <= since_start {
            self.made += 1;
        }
        AnnounceStep::Announce
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seen_from_ms: u64) -> Vec<u64> {
        let mut schedule = Schedule::new();
        let (mut now, mut announced) = (Duration::ZERO, vec![]);
        loop {
            match schedule.poll(now, now.as_millis() as u64 >= seen_from_ms) {
                AnnounceStep::Announce => announced.push(now.as_millis() as u64),
                AnnounceStep::WaitUntil(next) => {
                    assert!(next > now);
                    now = next;
                }
                AnnounceStep::Done => return announced,
            }
        }
    }

    #[test]
    fn the_burst_is_made_in_any_case() {
        assert_eq!(run(0), [0, 10, 50, 200]);
    }

    #[test]
    fn it_goes_on_until_seen() {
        assert_eq!(run(1500), [0, 10, 50, 200, 1000]);
        assert_eq!(run(u64::MAX), TIMES_MS);
    }

    #[test]
    fn a_late_caller_does_not_make_up_for_what_it_missed() {
        let mut schedule = Schedule::new();
        let late = Duration::from_millis(600);
        assert_eq!(schedule.poll(late, false), AnnounceStep::Announce);
        let next = Duration::from_millis(1000);
        assert_eq!(schedule.poll(late, false), AnnounceStep::WaitUntil(next));
        assert_eq!(schedule.poll(late, true), AnnounceStep::Done);
    }
}

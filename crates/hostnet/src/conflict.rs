//! Is somebody on the link using the service address?
//!
//! Before a node answers for the address it asks, as RFC 5227 (2.1.1) and RFC 4862 (5.4) do, from
//! the unspecified address so that no cache changes. Unlike those, an answer is no conflict if
//! it comes from the peer node, which holds the same address by design: so everybody who answers is
//! told, and the caller judges. A host that probes for the address at the same moment wants it too,
//! and counts.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::frames::Heard;
use crate::packet::{PacketSocket, Wanted};
use crate::{Interface, LinkError, Mac, frames};

/// RFC 5227, 1.1: PROBE_NUM.
const PROBES: u32 = 3;

/// Somebody, not this host, who uses an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub mac: Mac,
    /// It answers for the address; otherwise it only probes for it, as somebody does who wants it.
    pub holds: bool,
}

/// Asks for `addr` on `interface`, three times spread over `timeout`, and returns every host that
/// uses it. Blocks for `timeout`.
pub fn users(
    interface: &Interface,
    addr: IpAddr,
    timeout: Duration,
) -> Result<Vec<User>, LinkError> {
    let mut socket = PacketSocket::open(interface, Wanted::Everything)?;
    let own = socket.mac();
    let probe = frames::question(own, None, addr);
    if let IpAddr::V6(v6) = addr {
        // Another host's probe goes to this group.
        socket.join(frames::solicited_node(v6))?;
    }
    let mut users: Vec<User> = Vec::new();
    let start = Instant::now();
    for number in 1..=PROBES {
        socket.send(&probe)?;
        let until = start + timeout * number / PROBES;
        loop {
            while let Some(heard) = socket.hear()? {
                let Some(user) = user_of(addr, &heard).filter(|user| user.mac != own) else {
                    continue;
                };
                match users.iter_mut().find(|known| known.mac == user.mac) {
                    Some(known) => known.holds |= user.holds,
                    None => users.push(user),
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wait(&socket, left);
        }
    }
    Ok(users)
}

/// Who, going by this frame, uses `addr` or is about to.
fn user_of(addr: IpAddr, heard: &Heard) -> Option<User> {
    match *heard {
        Heard::Claim { from, owner, .. } => {
            (owner == addr).then_some(User { mac: from, holds: true })
        }
        Heard::Question { from, sender, target } => {
            let probes = sender.is_unspecified() && target == addr;
            let uses = sender == addr;
            (uses || probes).then_some(User { mac: from, holds: uses })
        }
    }
}

/// Until the socket is readable, or `left` is over, or a signal came: the caller looks anyway.
fn wait(socket: &PacketSocket, left: Duration) {
    // Round up: a poll that ends early only turns the loop, one of 0 ms would spin.
    let milliseconds = left.as_millis().saturating_add(1).min(60_000) as u16;
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    let _ = poll(&mut fds, PollTimeout::from(milliseconds));
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);

    /// RFC 5227, 2.1.1: an answer, an announcement, any question asked *from* the address, and a
    /// probe for it are conflicts; an ordinary question about it is not.
    #[test]
    fn what_makes_a_conflict() {
        for (vip, host) in [("192.0.2.80", "192.0.2.2"), ("2001:db8::80", "2001:db8::2")] {
            let (vip, host): (IpAddr, IpAddr) = (vip.parse().unwrap(), host.parse().unwrap());
            let check = |frame: Vec<u8>, expected: Option<bool>| {
                let heard = frames::read(&frame).unwrap();
                let expected = expected.map(|holds| User { mac: OTHER, holds });
                assert_eq!(user_of(vip, &heard), expected, "{heard:?}");
            };
            for frame in frames::announcement(OTHER, vip) {
                check(frame, Some(true));
            }
            check(frames::question(OTHER, None, vip), Some(false));
            check(frames::question(OTHER, Some(vip), host), Some(true));
            check(frames::question(OTHER, Some(host), vip), None);
            check(frames::question(OTHER, None, host), None);
            for frame in frames::announcement(OTHER, host) {
                check(frame, None);
            }
        }
    }
}

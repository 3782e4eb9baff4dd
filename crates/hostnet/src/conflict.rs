//! Is somebody else on the link using the service address?
//!
//! Before a node answers for the address it asks, as RFC 5227 (2.1.1) and RFC 4862 (5.4) do, from
//! the unspecified address so that no cache changes. Unlike those, an answer is no conflict if
//! it comes from the peer node, which holds the same address by design. A host that probes for
//! the address at the same moment wants it too, and counts.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::frames::Heard;
use crate::packet::{PacketSocket, Wanted};
use crate::{Interface, LinkError, Mac, frames};

/// RFC 5227, 1.1: PROBE_NUM.
const PROBES: u32 = 3;

/// Asks for `addr` on `interface`, three times spread over `timeout`, and returns the Ethernet
/// address of the first host that answers and is neither this one nor among `peers`; `None` if
/// there is none. Blocks for `timeout` unless there is a conflict.
pub fn conflict(
    interface: &Interface,
    addr: IpAddr,
    peers: &[Mac],
    timeout: Duration,
) -> Result<Option<Mac>, LinkError> {
    let mut socket = PacketSocket::open(interface, Wanted::Everything)?;
    let own = socket.mac();
    let probe = frames::question(own, None, addr);
    if let IpAddr::V6(v6) = addr {
        // Another host's probe goes to this group.
        socket.join(frames::solicited_node(v6))?;
    }
    let start = Instant::now();
    for number in 1..=PROBES {
        socket.send(&probe)?;
        let until = start + timeout * number / PROBES;
        loop {
            while let Some(heard) = socket.hear()? {
                if let Some(mac) = user_of(addr, &heard)
                    && mac != own
                    && !peers.contains(&mac)
                {
                    return Ok(Some(mac));
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wait(&socket, left);
        }
    }
    Ok(None)
}

/// Who, going by this frame, uses `addr` or is about to.
fn user_of(addr: IpAddr, heard: &Heard) -> Option<Mac> {
    match *heard {
        Heard::Claim { from, owner, .. } => (owner == addr).then_some(from),
        Heard::Question { from, sender, target } => {
            let probes = sender.is_unspecified() && target == addr;
            (sender == addr || probes).then_some(from)
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
            let check = |frame: Vec<u8>, expected: bool| {
                let heard = frames::read(&frame).unwrap();
                assert_eq!(user_of(vip, &heard), expected.then_some(OTHER), "{heard:?}");
            };
            for frame in frames::announcement(OTHER, vip) {
                check(frame, true);
            }
            check(frames::question(OTHER, None, vip), true);
            check(frames::question(OTHER, Some(vip), host), true);
            check(frames::question(OTHER, Some(host), vip), false);
            check(frames::question(OTHER, None, host), false);
            for frame in frames::announcement(OTHER, host) {
                check(frame, false);
            }
        }
    }
}

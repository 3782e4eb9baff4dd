//! Answering "who has the service address?" for an address that sits on `lo`.
//!
//! For IPv4 the kernel answers for addresses of any interface (unless `arp_ignore` forbids it,
//! and then for none); for IPv6 it answers only for those of the interface asked. Neither is
//! what a node needs: the address is on `lo` of *every* node, and exactly the one that holds it
//! must answer, from the instant it does. Adding and removing addresses on the service interface
//! would kill sockets bound there and take a trip through netlink at the worst moment. So the
//! kernel is told not to answer (`arp_ignore` ≥ 1; IPv6 does not anyway), and this answers as
//! long as an atomic flag says that the node holds the address.
//!
//! Solicitations go to a multicast group that nobody on this host has joined on the interface.
//! Joining takes two steps: the packet socket opens the interface's hardware filter, and an
//! ordinary IPv6 membership makes the kernel report the group (MLD), without which a snooping
//! switch would not forward the solicitations.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::frames::Heard;
use crate::packet::{PacketSocket, Wanted, set_option};
use crate::{Interface, LinkError, frames};

/// Whether this node holds an address, shared with whoever decides it.
#[derive(Debug, Clone, Default)]
pub struct Holding(Arc<AtomicBool>);

impl Holding {
    /// Not held, at first.
    pub fn new() -> Holding {
        Holding::default()
    }

    /// Questions that are read from now on are answered, or not.
    pub fn set(&self, held: bool) {
        self.0.store(held, Ordering::Release);
    }

    /// As last set.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Whether ARP is answered here or left to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArpMode {
    /// Answered here; the interface's `arp_ignore` must be at least 1.
    Answer,
    /// Left to the kernel.
    Leave,
}

/// Answers neighbour solicitations, and ARP requests if wanted, for service addresses.
#[derive(Debug)]
pub struct NeighbourResponder {
    socket: PacketSocket,
    interface: Interface,
    addresses: Vec<(IpAddr, Holding)>,
    /// IPv6 memberships live as long as the sockets that made them; one each, as a socket may
    /// have only `optmem_max` bytes of them.
    memberships: Vec<OwnedFd>,
    arp: ArpMode,
}

impl NeighbourResponder {
    /// Listens on `interface`; answers for nothing yet.
    pub fn new(interface: &Interface, arp: ArpMode) -> Result<NeighbourResponder, LinkError> {
        let wanted = Wanted::Questions { arp: arp == ArpMode::Answer };
        Ok(NeighbourResponder {
            socket: PacketSocket::open(interface, wanted)?,
            interface: interface.clone(),
            addresses: Vec::new(),
            memberships: Vec::new(),
            arp,
        })
    }

    /// Answers for `addr` whenever `holding` says so. Must be called on a thread in the
    /// interface's namespace, like `new`.
    pub fn serve(&mut self, addr: IpAddr, holding: Holding) -> Result<(), LinkError> {
        if let IpAddr::V6(v6) = addr {
            let group = frames::solicited_node(v6);
            self.socket.join(group)?;
            let membership = join_ipv6(group, self.interface.index).map_err(|source| {
                LinkError::Join { interface: self.interface.name.clone(), group, source }
            })?;
            self.memberships.push(membership);
        }
        self.addresses.push((addr, holding));
        Ok(())
    }

    /// Answers whatever has been asked since; call it when the descriptor is readable. Returns
    /// how many questions it answered. One bad send does not keep later questions waiting.
    pub fn handle(&mut self) -> Result<u32, LinkError> {
        let (mut answered, mut failure) = (0, None);
        while let Some(heard) = self.socket.hear()? {
            if !self.holds(&heard) {
                continue;
            }
            let Some(frame) = frames::answer(self.socket.mac(), &heard) else { continue };
            match self.socket.send(&frame) {
                Ok(()) => answered += 1,
                Err(e) => failure = Some(e),
            }
        }
        failure.map_or(Ok(answered), Err)
    }

    fn holds(&self, heard: &Heard) -> bool {
        let Heard::Question { target, .. } = *heard else { return false };
        if target.is_ipv4() && self.arp == ArpMode::Leave {
            return false;
        }
        self.addresses.iter().any(|(addr, holding)| *addr == target && holding.get())
    }
}

impl AsFd for NeighbourResponder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn join_ipv6(group: Ipv6Addr, ifindex: u32) -> io::Result<OwnedFd> {
    let fd = socket(AddressFamily::Inet6, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let request = libc::ipv6_mreq {
        ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
        ipv6mr_interface: ifindex,
    };
    set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)?;
    Ok(fd)
}

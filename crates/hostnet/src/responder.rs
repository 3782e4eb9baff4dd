//! Answering "who has the service address?" for an address that sits on `lo`.
//!
//! For IPv4 the kernel answers for addresses of any interface, unless `arp_ignore` restricts it
//! to those of the interface asked; for IPv6 it is always so restricted. Neither is what a node
//! needs: the address is on `lo` of *every* node, and exactly the one that holds it must answer,
//! from the instant it does. Moving the address to the service interface and back would put
//! netlink and the kernel's work queue in the way at the worst moment. So the kernel is told not
//! to answer (`arp_ignore` ≥ 1), and this answers as long as an atomic flag says that the node
//! holds the address.
//!
//! Solicitations go to a multicast group that nobody on this host has joined on the interface.
//! An ordinary IPv6 membership makes them arrive, through snooping switches too.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::frames::Heard;
use crate::packet::{PacketSocket, Wanted};
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
    addresses: Vec<(IpAddr, Holding)>,
    arp: ArpMode,
}

impl NeighbourResponder {
    /// Listens on `interface`; answers for nothing yet.
    pub fn new(interface: &Interface, arp: ArpMode) -> Result<NeighbourResponder, LinkError> {
        let wanted = Wanted::Questions { arp: arp == ArpMode::Answer };
        Ok(NeighbourResponder {
            socket: PacketSocket::open(interface, wanted)?,
            addresses: Vec::new(),
            arp,
        })
    }

    /// Answers for `addr` whenever `holding` says so. Must be called on a thread in the
    /// interface's namespace, like `new`.
    pub fn serve(&mut self, addr: IpAddr, holding: Holding) -> Result<(), LinkError> {
        if let IpAddr::V6(v6) = addr {
            self.socket.join(frames::solicited_node(v6))?;
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

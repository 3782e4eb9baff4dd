//! Is it my link that is dead, or the peer?
//!
//! When the peer falls silent on the service link, a node whose own cable is out sees exactly the
//! same. Carrier does not tell (a switch in between keeps it up), so the node asks hosts that it
//! knows to be there: the entries of its neighbour table, the nodes themselves left out. One
//! answer proves that frames go out and come in. Silence proves nothing by itself: perhaps all
//! of those hosts are gone, or there were none to ask, and that is told apart.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteType;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::frames::Heard;
use crate::netlink::{Channel, NetlinkError};
use crate::packet::{PacketSocket, Wanted};
use crate::{Interface, LinkError, Mac, frames};

/// Questions are asked this often, spread over the time limit.
const ROUNDS: u32 = 5;

/// What the neighbours had to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEvidence {
    /// A neighbour answered: the link carries frames both ways.
    Alive(Mac),
    /// None of those asked answered in time.
    Silent {
        /// How many were asked, at least 1.
        asked: usize,
    },
    /// The neighbour table held nobody to ask: nothing is known.
    NobodyToAsk,
}

/// Asks the neighbours of one interface. Its socket is opened once: to close one takes the kernel an
/// RCU grace period.
#[derive(Debug)]
pub struct Prober {
    socket: PacketSocket,
}

/// A question to the neighbours, under way.
#[derive(Debug)]
pub struct LinkProbe<'a> {
    socket: &'a PacketSocket,
    questions: Vec<(IpAddr, Vec<u8>)>,
    exclude: Vec<Mac>,
    started: Instant,
    timeout: Duration,
    rounds: u32,
}

impl Prober {
    /// A prober for that interface.
    pub fn open(interface: &Interface) -> Result<Prober, LinkError> {
        let socket = PacketSocket::open(interface, Wanted::Everything)?;
        // Behind a full queue no question would be answered in time.
        socket.bypass_queue()?;
        Ok(Prober { socket })
    }

    /// Asks up to `max` neighbours of `interface`, those heard from most recently first and never
    /// those at an address in `exclude`, then those at the addresses `besides` that are on the link;
    /// then [`LinkProbe::poll`] until there is evidence.
    pub fn probe(
        &self,
        interface: &Interface,
        besides: &[IpAddr],
        exclude: &[Mac],
        max: usize,
        timeout: Duration,
    ) -> Result<LinkProbe<'_>, LinkError> {
        let socket = &self.socket;
        // What has come since the last time answers nothing.
        while socket.hear()?.is_some() {}
        let own = socket.mac();
        let neighbours = known_neighbours(interface.index).map_err(|source| {
            LinkError::Neighbours { interface: interface.name.clone(), source }
        })?;
        let mut asked: Vec<IpAddr> = neighbours
            .into_iter()
            .filter(|neighbour| neighbour.mac != own && !exclude.contains(&neighbour.mac))
            .map(|neighbour| neighbour.addr)
            .collect();
        for &addr in besides {
            if source_for(interface, addr).is_some() && !asked.contains(&addr) {
                asked.push(addr);
            }
        }
        asked.truncate(max);
        let questions = asked
            .into_iter()
            .map(|addr| (addr, frames::question(own, source_for(interface, addr), addr)))
            .collect();
        let mut exclude = exclude.to_vec();
        exclude.push(own);
        let (started, rounds) = (Instant::now(), 0);
        let mut probe = LinkProbe { socket, questions, exclude, started, timeout, rounds };
        probe.ask(started)?;
        Ok(probe)
    }
}

impl LinkProbe<'_> {
    /// Looks for answers; `None` while there may still be some. Call it when the descriptor is
    /// readable and at [`LinkProbe::next_wakeup`].
    pub fn poll(&mut self, now: Instant) -> Result<Option<LinkEvidence>, LinkError> {
        if self.questions.is_empty() {
            return Ok(Some(LinkEvidence::NobodyToAsk));
        }
        while let Some(heard) = self.socket.hear()? {
            // A question or an announcement shows only that frames come in. (An answer to an
            // IPv6 probe looks unsolicited, hence no look at that flag.)
            if let Heard::Claim { from, owner, .. } = heard
                && !self.exclude.contains(&from)
                && self.questions.iter().any(|(addr, _)| *addr == owner)
            {
                return Ok(Some(LinkEvidence::Alive(from)));
            }
        }
        if now >= self.started + self.timeout {
            return Ok(Some(LinkEvidence::Silent { asked: self.questions.len() }));
        }
        self.ask(now)?;
        Ok(None)
    }

    /// When `poll` has something to do even if nothing arrives.
    pub fn next_wakeup(&self) -> Instant {
        self.started + self.timeout * self.rounds.min(ROUNDS) / ROUNDS
    }

    fn ask(&mut self, now: Instant) -> Result<(), LinkError> {
        if self.rounds < ROUNDS && now >= self.next_wakeup() {
            self.rounds += 1;
            for (_, question) in &self.questions {
                self.socket.send(question)?;
            }
        }
        Ok(())
    }
}

impl AsFd for LinkProbe<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

struct Neighbour {
    addr: IpAddr,
    mac: Mac,
    /// Smaller is fresher.
    age: u8,
}

/// The unicast neighbours whose Ethernet address is known, freshest first.
fn known_neighbours(ifindex: u32) -> Result<Vec<Neighbour>, NetlinkError> {
    let mut channel = Channel::open(NETLINK_ROUTE, "neighbours")?;
    let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
    let table: Vec<RouteNetlinkMessage> = channel.dump(&request)?;
    let mut known: Vec<Neighbour> = table
        .iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewNeighbour(entry) if entry.header.ifindex == ifindex => {
                neighbour(entry)
            }
            _ => None,
        })
        .collect();
    known.sort_by_key(|neighbour| neighbour.age);
    Ok(known)
}

fn neighbour(entry: &NeighbourMessage) -> Option<Neighbour> {
    let age = match entry.header.state {
        NeighbourState::Reachable => 0,
        NeighbourState::Delay | NeighbourState::Probe => 1,
        NeighbourState::Stale => 2,
        NeighbourState::Permanent => 3,
        // Incomplete, failed: nobody known there. Noarp: multicast and the like.
        _ => return None,
    };
    if entry.header.kind != RouteType::Unicast {
        return None;
    }
    let (mut addr, mut mac) = (None, None);
    for attribute in &entry.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                addr = Some((*v4).into())
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                addr = Some((*v6).into());
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = Mac::from_slice(bytes),
            _ => {}
        }
    }
    Some(Neighbour { addr: addr?, mac: mac?, age })
}

/// An address of ours to ask from: one in the neighbour's own prefix. Without one the question
/// is a probe, which hosts answer as well.
fn source_for(interface: &Interface, neighbour: IpAddr) -> Option<IpAddr> {
    let bits = |addr: IpAddr| match addr {
        IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
        IpAddr::V6(v6) => u128::from(v6),
    };
    interface.addresses.iter().map(|own| (own.addr, own.prefix_len)).find_map(|(own, length)| {
        let different = (bits(own) ^ bits(neighbour)).leading_zeros() < u32::from(length);
        (own.is_ipv4() == neighbour.is_ipv4() && !different).then_some(own)
    })
}

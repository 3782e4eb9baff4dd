//! News of the host's links and addresses, as they change.
//!
//! Polling `Interface::by_name` would find a lost carrier late or at a cost; the kernel sends it
//! in microseconds. What it cannot promise is to send everything: a reader that is too slow
//! loses messages, and must then look for itself. That case is an event of its own.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::Mac;
use crate::interface::{LinkFacts, assigned};
use crate::netlink::{NetlinkError, parse_datagram, receive_datagram};

const PURPOSE: &str = "changes of links and addresses";

/// The state of a link after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkEvent {
    /// The interface's index.
    pub ifindex: u32,
    /// The interface's name.
    pub name: String,
    /// Set up by the administrator.
    pub up: bool,
    /// Up, and the other end is there.
    pub carrier: bool,
    /// Its Ethernet address; `None` if it is not Ethernet.
    pub mac: Option<Mac>,
    /// Largest IP packet it sends, in bytes.
    pub mtu: u32,
}

/// Something changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A link appeared, or something about it changed (perhaps nothing of what is told here).
    Link(LinkEvent),
    /// A link is gone.
    LinkGone {
        /// Its index.
        ifindex: u32,
    },
    /// An address was added to an interface.
    AddressAdded {
        /// The interface's index.
        ifindex: u32,
        /// The address.
        addr: IpAddr,
    },
    /// An address was removed from an interface.
    AddressRemoved {
        /// The interface's index.
        ifindex: u32,
        /// The address.
        addr: IpAddr,
    },
    /// Messages were lost: look at everything again.
    Lost,
}

/// A subscription to changes in the namespace of the thread that made it.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    pending: VecDeque<Event>,
}

impl Monitor {
    /// Subscribes; look at the present state *after* this, so that no change falls in between.
    pub fn new() -> Result<Monitor, NetlinkError> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.set_non_blocking(true)?;
            for group in [libc::RTNLGRP_LINK, libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR]
            {
                socket.add_membership(group)?;
            }
            Ok(socket)
        };
        let socket = open().map_err(|source| NetlinkError::Open { purpose: PURPOSE, source })?;
        Ok(Monitor { socket, pending: VecDeque::new() })
    }

    /// The next event, `None` if there is none at present. Never blocks; call it until `None`
    /// when the descriptor is readable.
    pub fn next_event(&mut self) -> Result<Option<Event>, NetlinkError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(Some(event));
            }
            let datagram = match receive_datagram(&self.socket) {
                Ok(datagram) => datagram,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Some(Event::Lost)),
                Err(source) => return Err(NetlinkError::Io { purpose: PURPOSE, source }),
            };
            let messages = parse_datagram::<RouteNetlinkMessage>(&datagram, PURPOSE)?;
            self.pending.extend(messages.into_iter().filter_map(|message| match message.payload {
                NetlinkPayload::InnerMessage(inner) => event(inner),
                NetlinkPayload::Overrun(_) => Some(Event::Lost),
                _ => None,
            }));
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn event(message: RouteNetlinkMessage) -> Option<Event> {
    match message {
        RouteNetlinkMessage::NewLink(link) => {
            let LinkFacts { index, name, mac, mtu, up, carrier } = LinkFacts::of(&link);
            // Bridge ports report twice; the second message has no MTU and says nothing here.
            (mtu > 0).then_some(Event::Link(LinkEvent {
                ifindex: index,
                name,
                up,
                carrier,
                mac,
                mtu,
            }))
        }
        RouteNetlinkMessage::DelLink(link) => {
            // A port that leaves its bridge sends DELLINK of the bridge family and stays alive.
            let whole = u8::from(link.header.interface_family) == 0;
            whole.then_some(Event::LinkGone { ifindex: link.header.index })
        }
        RouteNetlinkMessage::NewAddress(address) => assigned(&address)
            .map(|(ifindex, found, _)| Event::AddressAdded { ifindex, addr: found.addr }),
        RouteNetlinkMessage::DelAddress(address) => assigned(&address)
            .map(|(ifindex, found, _)| Event::AddressRemoved { ifindex, addr: found.addr }),
        _ => None,
    }
}

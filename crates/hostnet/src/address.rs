//! The service address on the host's loopback interface.
//!
//! Every node of a service carries the address, so that its kernel accepts segments for it and
//! its server can bind to it; who answers for it on the link is another matter (see the
//! responder). Hence `lo`: an address there needs no prefix route, survives the service link's
//! loss of carrier, and IPv6 does no duplicate address detection on it.
//!
//! An address that the kernel has acknowledged is not yet one that it receives on: IPv6 inserts
//! the local route from a work queue, after the netlink call has returned, and until then a
//! segment for the address is dropped. Installing therefore ends when a route lookup says
//! "local".
//!
//! The other difficulty is to clean up what is ours and only that. An address that the administrator
//! put on `lo` stays; one that a daemon left behind when it was killed must go with the next
//! daemon, or it would stay for ever. So addresses are marked with our number in `IFA_PROTO`
//! (kernel ≥ 5.18): found again, a marked address is ours.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressProtocol, AddressScope,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::interface::{Interface, InterfaceError, Origin, dump_addresses, name_of};
use crate::netlink::{Channel, NetlinkError};

/// Our mark in `IFA_PROTO`; the kernel uses 1 to 3, other values are anybody's.
const ORIGIN: Origin = 0x5f;

/// How long the kernel may take to insert the local route, in milliseconds; it needs less than
/// one unless its work queue is starved.
const PATIENCE_MS: u64 = 2000;

/// The service address could not be installed or removed.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// It is on an interface where neighbours would be answered for it.
    #[error(
        "the service address {addr} is already on interface {interface}; the node keeps it on lo \
         and answers for it itself: remove it with `ip address del {addr}/{prefix_len} dev \
         {interface}`"
    )]
    Elsewhere {
        /// The service address.
        addr: IpAddr,
        /// Where it is.
        interface: String,
        /// The prefix length it has there.
        prefix_len: u8,
    },
    /// `lo` is down, so nothing on it is reachable.
    #[error("interface lo is down, so {addr} would not be reachable: `ip link set lo up`")]
    LoopbackDown {
        /// The service address.
        addr: IpAddr,
    },
    /// Not an address a host can have.
    #[error("{addr} cannot be a service address: it is unspecified or multicast")]
    Unusable {
        /// The address.
        addr: IpAddr,
    },
    /// The kernel has no IPv6, or not on `lo`.
    #[error("cannot put {addr} on lo: IPv6 is disabled (net.ipv6.conf.lo.disable_ipv6)")]
    NoIpv6 {
        /// The address.
        addr: IpAddr,
    },
    /// The kernel took it but does not receive on it.
    #[error(
        "{addr} is on lo, but the kernel does not treat it as local after {PATIENCE_MS} ms: look \
         at `ip route get {addr}` and `ip rule`"
    )]
    NotLocal {
        /// The address.
        addr: IpAddr,
    },
    /// Only root may change addresses.
    #[error("cannot {action} {addr} on lo: CAP_NET_ADMIN is missing; run the node as root")]
    Privilege {
        /// "add" or "remove".
        action: &'static str,
        /// The address.
        addr: IpAddr,
    },
    /// `lo` could not be looked at.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The kernel said no for another reason.
    #[error("cannot {action} {addr} on lo: {source}")]
    Netlink {
        /// "look for", "find the route to", "add" or "remove".
        action: &'static str,
        /// The address.
        addr: IpAddr,
        /// What went wrong.
        source: NetlinkError,
    },
}

/// A service address on `lo`; dropping it removes the address if a node had put it there.
#[derive(Debug)]
#[must_use = "the address is removed again when this is dropped"]
pub struct ServiceAddress {
    addr: IpAddr,
    /// Set while there is something to undo.
    ours: bool,
    channel: Channel,
    loopback: u32,
}

impl ServiceAddress {
    /// Puts `addr`/32 or /128 on `lo` of the calling thread's network namespace, unless it is
    /// there already.
    pub fn install(addr: IpAddr) -> Result<ServiceAddress, AddressError> {
        if addr.is_unspecified() || addr.is_multicast() {
            return Err(AddressError::Unusable { addr });
        }
        let lo = Interface::by_name("lo")?;
        if !lo.up {
            return Err(AddressError::LoopbackDown { addr });
        }
        let looking = |source| AddressError::Netlink { action: "look for", addr, source };
        let mut channel = Channel::open(NETLINK_ROUTE, "addresses").map_err(looking)?;
        let present = dump_addresses(&mut channel).map_err(looking)?;
        let mut found = None;
        for (index, assigned, origin) in present.iter().filter(|(_, a, _)| a.addr == addr) {
            if *index != lo.index {
                let interface = name_of(&mut channel, *index);
                let prefix_len = assigned.prefix_len;
                return Err(AddressError::Elsewhere { addr, interface, prefix_len });
            }
            found = Some(*origin);
        }
        let ours = match found {
            Some(origin) => origin == ORIGIN,
            None => add(&mut channel, lo.index, addr)?,
        };
        let mut guard = ServiceAddress { addr, ours, channel, loopback: lo.index };
        guard.wait_until_local()?;
        Ok(guard)
    }

    /// The address.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// Whether a node put it there, so that it will be removed.
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    /// Removes the address if it is ours; like dropping, but reports what went wrong.
    pub fn remove(mut self) -> Result<(), AddressError> {
        self.undo()
    }

    fn wait_until_local(&mut self) -> Result<(), AddressError> {
        let deadline = Instant::now() + Duration::from_millis(PATIENCE_MS);
        while !is_local(&mut self.channel, self.addr)? {
            if Instant::now() >= deadline {
                return Err(AddressError::NotLocal { addr: self.addr });
            }
            // Nothing announces the moment: the address's own notification precedes the route.
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    fn undo(&mut self) -> Result<(), AddressError> {
        if !std::mem::take(&mut self.ours) {
            return Ok(());
        }
        let request = RouteNetlinkMessage::DelAddress(host_address(self.loopback, self.addr));
        match self.channel.change(request, 0) {
            Ok(()) => Ok(()),
            // Somebody else was quicker; the outcome is the one wanted.
            Err(e) if e.refusal() == Some(libc::EADDRNOTAVAIL) => Ok(()),
            Err(source) => Err(refused("remove", self.addr, source)),
        }
    }
}

impl Drop for ServiceAddress {
    fn drop(&mut self) {
        // Nobody is left to tell; `remove` is for those who want to know.
        let _ = self.undo();
    }
}

/// True if it was added, false if somebody else had added it in the meantime.
fn add(channel: &mut Channel, loopback: u32, addr: IpAddr) -> Result<bool, AddressError> {
    let request = RouteNetlinkMessage::NewAddress(host_address(loopback, addr));
    match channel.change(request, NLM_F_CREATE | NLM_F_EXCL) {
        Ok(()) => Ok(true),
        Err(e) if e.refusal() == Some(libc::EEXIST) => Ok(false),
        Err(source) => Err(refused("add", addr, source)),
    }
}

/// Whether a packet for `addr` would be delivered on this host.
fn is_local(channel: &mut Channel, addr: IpAddr) -> Result<bool, AddressError> {
    let mut request = RouteMessage::default();
    (request.header.address_family, request.header.destination_prefix_length) = match addr {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    request.attributes.push(RouteAttribute::Destination(addr.into()));
    match channel.get(RouteNetlinkMessage::GetRoute(request)) {
        Ok(RouteNetlinkMessage::NewRoute(route)) => Ok(route.header.kind == RouteType::Local),
        Ok(_) => Ok(false),
        Err(NetlinkError::Refused { .. }) => Ok(false), // no route at all
        Err(source) => Err(AddressError::Netlink { action: "find the route to", addr, source }),
    }
}

fn refused(action: &'static str, addr: IpAddr, source: NetlinkError) -> AddressError {
    match source.refusal() {
        Some(libc::EPERM) => AddressError::Privilege { action, addr },
        Some(libc::EACCES | libc::EOPNOTSUPP | libc::EAFNOSUPPORT) if addr.is_ipv6() => {
            AddressError::NoIpv6 { addr }
        }
        _ => AddressError::Netlink { action, addr, source },
    }
}

fn host_address(loopback: u32, addr: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = loopback;
    message.header.scope = AddressScope::Universe;
    // Duplicate address detection would keep the address tentative; `lo` does none today, the
    // flag keeps it so.
    match addr {
        IpAddr::V4(_) => {
            message.header.family = AddressFamily::Inet;
            message.header.prefix_len = 32;
        }
        IpAddr::V6(_) => {
            message.header.family = AddressFamily::Inet6;
            message.header.prefix_len = 128;
            message.header.flags = AddressHeaderFlags::Nodad;
        }
    }
    message.attributes.push(AddressAttribute::Local(addr));
    message.attributes.push(AddressAttribute::Address(addr));
    message.attributes.push(AddressAttribute::Protocol(AddressProtocol::from(ORIGIN)));
    message
}

//! What the kernel knows about one network interface.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::Mac;
use crate::netlink::{Channel, NetlinkError};

/// The longest interface name the kernel allows (IFNAMSIZ without the terminator).
pub(crate) const NAME_MAX: usize = 15;

/// An interface could not be looked up, or is of no use.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// No interface of that name in this network namespace.
    #[error("there is no network interface {name:?} here; `ip link` lists those there are")]
    Missing {
        /// The name asked for.
        name: String,
    },
    /// The kernel gives no Ethernet address for it.
    #[error("interface {name} is not an Ethernet device; name one that has a MAC address")]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// The kernel could not be asked.
    #[error("cannot look up interface {name}: {source}")]
    Netlink {
        /// The interface.
        name: String,
        /// What went wrong.
        source: NetlinkError,
    },
}

/// An address on an interface, with the prefix it was added with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    /// The host's own address (not a point-to-point peer's).
    pub addr: IpAddr,
    /// Length of the prefix, in bits.
    pub prefix_len: u8,
}

/// A network interface as it was when it was looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The kernel's number for it, never 0.
    pub index: u32,
    /// Its Ethernet address; `None` for devices that are not Ethernet (loopback, TUN).
    pub mac: Option<Mac>,
    /// Largest IP packet it sends, in bytes.
    pub mtu: u32,
    /// Set up by the administrator (IFF_UP).
    pub up: bool,
    /// Up, and the cable (or the peer of a veth pair) is there (IFF_LOWER_UP).
    pub carrier: bool,
    /// IPv4 and IPv6 addresses.
    pub addresses: Vec<Assigned>,
}

impl Interface {
    /// Looks `name` up in the calling thread's network namespace.
    pub fn by_name(name: &str) -> Result<Interface, InterfaceError> {
        // The kernel answers ERANGE or truncates; both would blame the wrong thing.
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(InterfaceError::Missing { name: name.to_owned() });
        }
        let failed = |source: NetlinkError| match source.refusal() {
            Some(libc::ENODEV) => InterfaceError::Missing { name: name.to_owned() },
            _ => InterfaceError::Netlink { name: name.to_owned(), source },
        };
        let mut channel = Channel::open(NETLINK_ROUTE, "interfaces").map_err(failed)?;
        let link = get_link(&mut channel, name).map_err(failed)?;
        let facts = LinkFacts::of(&link);
        let addresses = dump_addresses(&mut channel)
            .map_err(failed)?
            .into_iter()
            .filter(|(index, ..)| *index == facts.index)
            .map(|(_, assigned, _)| assigned)
            .collect();
        Ok(Interface {
            name: name.to_owned(),
            index: facts.index,
            mac: facts.mac,
            mtu: facts.mtu,
            up: facts.up,
            carrier: facts.carrier,
            addresses,
        })
    }

    /// Its Ethernet address, or an error that names it.
    pub fn ethernet(&self) -> Result<Mac, InterfaceError> {
        self.mac.ok_or_else(|| InterfaceError::NotEthernet { name: self.name.clone() })
    }
}

/// The parts of a link message that matter here.
#[derive(Debug)]
pub(crate) struct LinkFacts {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Option<Mac>,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
}

impl LinkFacts {
    pub(crate) fn of(link: &LinkMessage) -> LinkFacts {
        let flags = link.header.flags;
        let ethernet = link.header.link_layer_type == LinkLayerType::Ether;
        let mut facts = LinkFacts {
            index: link.header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up: flags.contains(LinkFlags::Up),
            carrier: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        };
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => facts.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => facts.mtu = *mtu,
                LinkAttribute::Address(bytes) if ethernet => facts.mac = Mac::from_slice(bytes),
                _ => {}
            }
        }
        facts
    }
}

/// Who put an address there (`IFA_PROTO`), 0 where the kernel does not say.
pub(crate) type Origin = u8;

/// Every address of the namespace, with its interface's index and its origin.
pub(crate) fn dump_addresses(
    channel: &mut Channel,
) -> Result<Vec<(u32, Assigned, Origin)>, NetlinkError> {
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let table: Vec<RouteNetlinkMessage> = channel.dump(&request)?;
    Ok(table
        .iter()
        .filter_map(|message| match message {
            RouteNetlinkMessage::NewAddress(address) => assigned(address),
            _ => None,
        })
        .collect())
}

/// The host's own address in an address message.
pub(crate) fn assigned(message: &AddressMessage) -> Option<(u32, Assigned, Origin)> {
    // IFA_ADDRESS is the peer's on a point-to-point link; IFA_LOCAL, where present, is ours.
    let (mut local, mut address, mut origin) = (None, None, 0);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(addr) => local = Some(*addr),
            AddressAttribute::Address(addr) => address = Some(*addr),
            AddressAttribute::Protocol(protocol) => origin = u8::from(*protocol),
            _ => {}
        }
    }
    let addr = local.or(address)?;
    Some((message.header.index, Assigned { addr, prefix_len: message.header.prefix_len }, origin))
}

/// The name of interface `index`, or its number in words if it is gone.
pub(crate) fn name_of(channel: &mut Channel, index: u32) -> String {
    let mut request = LinkMessage::default();
    request.header.index = index;
    match channel.get(RouteNetlinkMessage::GetLink(request)) {
        Ok(RouteNetlinkMessage::NewLink(link)) => LinkFacts::of(&link).name,
        _ => format!("number {index}"),
    }
}

fn get_link(channel: &mut Channel, name: &str) -> Result<LinkMessage, NetlinkError> {
    let mut request = LinkMessage::default();
    request.attributes.push(LinkAttribute::IfName(name.to_owned()));
    match channel.get(RouteNetlinkMessage::GetLink(request))? {
        RouteNetlinkMessage::NewLink(link) => Ok(link),
        other => Err(NetlinkError::Malformed {
            purpose: "interfaces",
            what: format!("unexpected answer {other:?}"),
        }),
    }
}

/// Sets an interface up and gives it an MTU, in bytes.
pub(crate) fn set_up(channel: &mut Channel, index: u32, mtu: u32) -> Result<(), NetlinkError> {
    let mut request = LinkMessage::default();
    request.header.index = index;
    request.header.flags = LinkFlags::Up;
    request.header.change_mask = LinkFlags::Up;
    request.attributes.push(LinkAttribute::Mtu(mtu));
    channel.change(RouteNetlinkMessage::SetLink(request), 0)
}

//! Which flow.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::skel::types;

/// Into how many shares the flows are divided; that of the C side, or this crate would not compile.
const SHARES: usize = 2;
const _: fn(types::ctl) -> [types::share; SHARES] = |ctl| ctl.shares;

/// The flows whose roles are decided together: each node may serve one share and back up the other
/// (C6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share(usize);

impl Share {
    /// Every flow is in one of them.
    pub fn all() -> impl Iterator<Item = Share> {
        (0..SHARES).map(Share)
    }

    /// Its place in [`Share::all`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// A flow as seen from the service. Addresses are kept as the kernel side keeps them: 16 bytes,
/// IPv4 mapped, ports in network order.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey {
    client: [u8; 16],
    server: [u8; 16],
    client_port: [u8; 2],
    server_port: [u8; 2],
}

impl FlowKey {
    pub fn new(client: SocketAddr, server: SocketAddr) -> Self {
        Self {
            client: mapped(client.ip()),
            server: mapped(server.ip()),
            client_port: client.port().to_be_bytes(),
            server_port: server.port().to_be_bytes(),
        }
    }

    pub fn client(&self) -> SocketAddr {
        SocketAddr::new(unmapped(self.client), u16::from_be_bytes(self.client_port))
    }

    pub fn server(&self) -> SocketAddr {
        SocketAddr::new(unmapped(self.server), u16::from_be_bytes(self.server_port))
    }

    /// The client's and the server's address, IPv4 mapped.
    pub fn octets(&self) -> [[u8; 16]; 2] {
        [self.client, self.server]
    }

    /// In which share of the flows it is.
    pub fn share(&self) -> Share {
        let words = self.client.chunks_exact(4);
        let words = words.map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes")));
        let port = u32::from(u16::from_ne_bytes(self.client_port));
        let hash = words.fold(port, |hash, word| hash ^ word).wrapping_mul(0x9e37_79b1);
        Share((hash >> 16) as usize % SHARES)
    }

    pub(crate) fn from_raw(raw: &types::flow_key) -> Self {
        Self {
            client: raw.client,
            server: raw.server,
            client_port: raw.client_port.to_ne_bytes(),
            server_port: raw.server_port.to_ne_bytes(),
        }
    }

    pub(crate) fn to_raw(self) -> types::flow_key {
        types::flow_key {
            client: self.client,
            server: self.server,
            client_port: u16::from_ne_bytes(self.client_port),
            server_port: u16::from_ne_bytes(self.server_port),
        }
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.client(), self.server())
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(crate) fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn unmapped(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

//! The control channel's sockets: one per link, so that a datagram says by which link it came.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Context;
use cluster::Link;
use control::MAX_DATAGRAM;
use nix::sys::socket::{setsockopt, sockopt};

use crate::config::Node;

/// Control datagrams overtake bulk traffic in every queue on the way (`TC_PRIO_CONTROL`).
const PRIORITY: i32 = 7;

pub struct LinkSocket {
    pub link: Link,
    socket: UdpSocket,
    peer: SocketAddr,
    /// The last send failed, and was reported.
    failing: bool,
}

impl LinkSocket {
    pub fn open(node: &Node, link: Link) -> anyhow::Result<Self> {
        let (own, peer, interface) = match link {
            Link::Service => {
                (node.address.service, node.peer_address.service, &node.service_interface)
            }
            Link::Cluster => {
                (node.address.cluster, node.peer_address.cluster, &node.cluster_interface)
            }
        };
        let own = SocketAddr::new(own, node.control_port);
        let socket = UdpSocket::bind(own).with_context(|| {
            format!("cannot bind the control channel to {own}; is the address on {interface}?")
        })?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::BindToDevice, &interface.into())
            .with_context(|| format!("cannot bind the control channel to {interface}"))?;
        setsockopt(&socket, sockopt::Priority, &PRIORITY)?;
        let peer = SocketAddr::new(peer, node.control_port);
        Ok(Self { link, socket, peer, failing: false })
    }

    /// Where the peer should be.
    pub fn peer(&self) -> IpAddr {
        self.peer.ip()
    }

    /// Sends if it can be sent now. A lost datagram is repaired by the next one.
    pub fn send(&mut self, datagram: &[u8]) {
        match self.socket.send_to(datagram, self.peer) {
            Ok(_) => self.failing = false,
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!(peer = %self.peer, %error, "cannot send to the peer");
            }
            Err(_) => {}
        }
    }

    /// The length of the next datagram, if one is there, and whether it came from the peer's
    /// address.
    pub fn receive(&self, buffer: &mut [u8; MAX_DATAGRAM + 1]) -> Option<(usize, bool)> {
        loop {
            match self.socket.recv_from(buffer) {
                Ok((length, from)) => return Some((length, from == self.peer)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                // An ICMP error for a datagram sent earlier (nobody listens there yet): the
                // silence says as much. Each such error is reported once, so this ends.
                Err(_) => {}
            }
        }
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

//! Which TCP addresses have a listener in this network namespace (sock_diag(7)).
//!
//! /proc/net/tcp would do, but it prints every connection to find a few listeners, which at
//! 10,000 connections costs milliseconds; netlink filters by state inside the kernel.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

// linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
pub(crate) const SOCK_DIAG_BY_FAMILY: u16 = 20;
pub(crate) const SOCK_DESTROY: u16 = 21;
const INET_DIAG_INFO: u8 = 2;
const INET_DIAG_SKV6ONLY: u16 = 11;
const INET_DIAG_ULP_INFO: u16 = 19;
const INET_ULP_INFO_NAME: u16 = 1;
const NLA_TYPE_MASK: u16 = 0x3fff;
const TCP_LISTEN: u32 = 10;
const HEADER: usize = 16;
/// sizeof(struct inet_diag_msg)
const DIAG_MSG: usize = 72;

/// A listening TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listener {
    /// The address may be the unspecified one: every address of its family.
    pub address: SocketAddr,
    /// An IPv6 socket that takes no IPv4 connections.
    pub v6_only: bool,
    /// It belongs to a Multipath TCP socket (`IPPROTO_MPTCP`). The kernel tells CAP_NET_ADMIN only.
    pub multipath: bool,
}

impl Listener {
    /// Whether a connection to `address` reaches this socket.
    pub fn accepts(&self, address: SocketAddr) -> bool {
        let own = self.address;
        own.port() == address.port()
            && match own.ip() {
                IpAddr::V4(any) if any.is_unspecified() => address.is_ipv4(),
                IpAddr::V6(any) if any.is_unspecified() => address.is_ipv6() || !self.v6_only,
                IpAddr::V6(v6) => v6.to_canonical() == address.ip(),
                IpAddr::V4(v4) => IpAddr::V4(v4) == address.ip(),
            }
    }
}

/// Every TCP listener of the calling thread's network namespace.
pub fn listeners() -> io::Result<Vec<Listener>> {
    let mut all = Vec::new();
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        let mut request = inet_request(family, 1 << TCP_LISTEN, &[0; 48]);
        // What is layered upon a socket comes with its tcp_info only.
        request[2] = 1 << (INET_DIAG_INFO - 1);
        let flags = NLM_F_REQUEST | NLM_F_DUMP;
        exchange(SOCK_DIAG_BY_FAMILY, flags, &request, |body| all.extend(listener(body)))?;
    }
    Ok(all)
}

/// Asks the kernel to destroy a connection that cannot exist, and returns its refusal's error
/// number: ENOENT where SOCK_DESTROY is built in, EOPNOTSUPP where it is not.
pub(crate) fn destroy_nothing() -> io::Result<i32> {
    // 0.0.0.0:0 to 0.0.0.0:0, with the cookie that matches any socket.
    let mut id = [0; 48];
    id[40..].fill(0xff);
    let request = inet_request(libc::AF_INET as u8, u32::MAX, &id);
    match exchange(SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, &request, |_| ()) {
        Ok(()) => Ok(0),
        Err(error) => error.raw_os_error().ok_or(error),
    }
}

/// struct inet_diag_req_v2
fn inet_request(family: u8, states: u32, id: &[u8; 48]) -> Vec<u8> {
    let mut request = vec![family, libc::IPPROTO_TCP as u8, 0, 0];
    request.extend_from_slice(&states.to_ne_bytes());
    request.extend_from_slice(id);
    request
}

/// struct inet_diag_msg and its attributes.
fn listener(body: &[u8]) -> Option<Listener> {
    let (message, attributes) = body.split_at_checked(DIAG_MSG)?;
    let port = u16::from_be_bytes([message[4], message[5]]);
    let source: [u8; 16] = message[8..24].try_into().ok()?;
    let ip = match i32::from(message[0]) {
        libc::AF_INET => IpAddr::from(Ipv4Addr::from(*source.first_chunk::<4>()?)),
        libc::AF_INET6 => IpAddr::from(Ipv6Addr::from(source)),
        _ => return None,
    };
    let v6_only = attribute(attributes, INET_DIAG_SKV6ONLY).and_then(<[u8]>::first) == Some(&1);
    let layer = attribute(attributes, INET_DIAG_ULP_INFO);
    let layer = layer.and_then(|layer| attribute(layer, INET_ULP_INFO_NAME));
    let multipath = layer.is_some_and(|name| name.starts_with(b"mptcp"));
    Some(Listener { address: SocketAddr::new(ip, port), v6_only, multipath })
}

/// The value of the first attribute of a kind.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some((header, rest)) = attributes.split_first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & NLA_TYPE_MASK;
        let value = rest.get(..length.checked_sub(4)?)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    None
}

/// Sends one request and hands out the bodies of its answers.
fn exchange(
    kind: u16,
    flags: u16,
    request: &[u8],
    mut answer: impl FnMut(&[u8]),
) -> io::Result<()> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )?;
    let mut message = Vec::with_capacity(HEADER + request.len());
    message.extend_from_slice(&((HEADER + request.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(request);
    let kernel = NetlinkAddr::new(0, 0);
    sendto(socket.as_raw_fd(), &message, &kernel, MsgFlags::empty())?;
    receive(&socket, &mut answer)
}

fn receive(socket: &OwnedFd, answer: &mut impl FnMut(&[u8])) -> io::Result<()> {
    let malformed = || io::Error::new(ErrorKind::InvalidData, "a malformed netlink answer");
    let mut buffer = vec![0; 32 * 1024];
    loop {
        let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        let mut rest = &buffer[..length];
        while rest.len() >= HEADER {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            let message = rest.get(..length).filter(|message| message.len() >= HEADER);
            let message = message.ok_or_else(malformed)?;
            let body = &message[HEADER..];
            match u16::from_ne_bytes([message[4], message[5]]) {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = body.first_chunk().ok_or_else(malformed)?;
                    return match i32::from_ne_bytes(*code) {
                        0 => Ok(()),
                        code => Err(io::Error::from_raw_os_error(-code)),
                    };
                }
                _ => answer(body),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn check(bind: &str, reach: &str, expected: bool) {
        let socket = TcpListener::bind(bind).unwrap();
        let port = socket.local_addr().unwrap().port();
        let address = SocketAddr::new(reach.parse().unwrap(), port);
        let found = listeners().unwrap().iter().any(|listener| listener.accepts(address));
        assert_eq!(found, expected, "bound to {bind}, asked for {reach}");
        drop(socket);
        assert!(!listeners().unwrap().iter().any(|listener| listener.accepts(address)));
    }

    #[test]
    fn listeners_are_found_by_the_addresses_they_accept() {
        check("127.0.0.1:0", "127.0.0.1", true);
        check("127.0.0.1:0", "127.0.0.2", false);
        check("0.0.0.0:0", "127.0.0.2", true);
        check("0.0.0.0:0", "::1", false);
        check("[::1]:0", "::1", true);
        check("[::1]:0", "127.0.0.1", false);
        // Dual-stack unless told otherwise.
        check("[::]:0", "127.0.0.1", true);
    }

    #[test]
    fn multipath_listeners_are_known() {
        use std::os::fd::FromRawFd;
        for (protocol, multipath) in [(libc::IPPROTO_TCP, false), (libc::IPPROTO_MPTCP, true)] {
            for family in [libc::AF_INET, libc::AF_INET6] {
                // SAFETY: socket(2) takes integers, and what it returns is nobody else's. An
                // unbound socket listens on a port that the kernel chooses.
                let socket = unsafe {
                    let socket = libc::socket(family, libc::SOCK_STREAM, protocol);
                    assert!(socket >= 0, "{}", io::Error::last_os_error());
                    assert_eq!(libc::listen(socket, 1), 0);
                    TcpListener::from_raw_fd(socket)
                };
                let port = socket.local_addr().unwrap().port();
                let all = listeners().unwrap();
                let found = all.iter().find(|listener| listener.address.port() == port).unwrap();
                assert_eq!(found.multipath, multipath, "{found:?}");
            }
        }
    }
}

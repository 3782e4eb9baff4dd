//! Telling a client that its connection is lost. A client that only waits for data would wait for
//! ever, so silence is no answer; a connection that cannot be carried on exactly ends with a RST
//! at the very sequence number the client expects (RFC 9293 §3.5.3, RFC 5961 §3.2).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use datapath::FlowKey;
use nix::sys::socket::{MsgFlags, SockaddrIn, SockaddrIn6, sendto};

use crate::forge;

/// Why a client or the kernel could not be told.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    #[error("cannot open a raw socket (CAP_NET_RAW is needed): {0}")]
    Open(#[source] io::Error),
    #[error("cannot send a reset to {client}: {source}")]
    Send { client: SocketAddr, source: io::Error },
    #[error(transparent)]
    Destroy(#[from] hostnet::SocketsError),
}

/// Raw sockets for both families. They bypass nothing: the fence applies to them as well.
pub(crate) struct Resetter {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
}

impl Resetter {
    pub(crate) fn open() -> Result<Self, ResetError> {
        let open = |family| {
            // SAFETY: plain system call; the result is checked and owned at once.
            let fd = unsafe {
                libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_RAW)
            };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
            Ok(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) })
        };
        let v4 = open(libc::AF_INET).map_err(ResetError::Open)?;
        // A kernel without IPv6 has no IPv6 flows.
        let v6 = open(libc::AF_INET6).ok();
        Ok(Self { v4, v6 })
    }

    pub(crate) fn reset(&self, key: &FlowKey, una: u32) -> Result<(), ResetError> {
        // A local child, if there is one, goes first: its TCP speaks up as well, with numbers of
        // its own.
        hostnet::destroy_flow(key.server(), key.client())?;
        let mut packet = Vec::with_capacity(64);
        forge::reset(&mut packet, key, una);
        let client = key.client();
        let sent = match client.ip() {
            IpAddr::V4(ip) => {
                let to = SockaddrIn::from(std::net::SocketAddrV4::new(ip, 0));
                sendto(self.v4.as_raw_fd(), &packet, &to, MsgFlags::empty())
            }
            IpAddr::V6(ip) => {
                let Some(v6) = &self.v6 else { return Ok(()) };
                let to = SockaddrIn6::from(std::net::SocketAddrV6::new(ip, 0, 0, 0));
                sendto(v6.as_raw_fd(), &packet, &to, MsgFlags::empty())
            }
        };
        sent.map(drop).map_err(|errno| ResetError::Send { client, source: errno.into() })
    }
}

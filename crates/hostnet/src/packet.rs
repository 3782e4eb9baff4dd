//! A packet socket on one interface that wakes for ARP and neighbour discovery only.
//!
//! It listens to all protocols, so that it sees frames before any tc program can redirect or
//! drop them; the price, a look at every frame on a busy service link, is paid by a classic BPF
//! filter in the kernel (a dozen instructions, compiled) and not by waking us. Frames that this
//! host sends are left out with PACKET_IGNORE_OUTGOING.

use std::io;
use std::mem::size_of;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::frames::{
    self, ARP_REPLY, ARP_REQUEST, ETHERTYPE_ARP, ETHERTYPE_IPV6, Heard, ICMPV6,
    NEIGHBOUR_ADVERTISEMENT, NEIGHBOUR_SOLICITATION,
};
use crate::netlink::NetlinkError;
use crate::{Interface, InterfaceError, Mac};

/// Longest frame of interest: a solicitation with a few options; the rest is cut off and then
/// invalid.
const FRAME_MAX: usize = 512;

/// What decides who serves overtakes bulk traffic in every queue on the way (`TC_PRIO_CONTROL`).
const PRIORITY: i32 = 7;

/// Something to do with ARP or neighbour discovery on a link failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The interface cannot carry Ethernet frames.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// No packet socket on it.
    #[error("cannot open a packet socket on {interface}: {source}; CAP_NET_RAW is needed")]
    Open {
        /// The interface.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// It cannot listen to a multicast group.
    #[error(
        "cannot join {group} on {interface}: {source}; is net.ipv6.conf.{interface}.disable_ipv6 \
         set?"
    )]
    Join {
        /// The interface.
        interface: String,
        /// The solicited-node group.
        group: Ipv6Addr,
        /// What the system said.
        source: io::Error,
    },
    /// A frame could not be sent.
    #[error("cannot send on {interface}: {source}; is the interface up?")]
    Send {
        /// The interface.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// Frames could not be read.
    #[error("cannot receive on {interface}: {source}")]
    Receive {
        /// The interface.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// The neighbour table could not be read.
    #[error("cannot read the neighbours of {interface}: {source}")]
    Neighbours {
        /// The interface.
        interface: String,
        /// What went wrong.
        source: NetlinkError,
    },
}

/// Which frames are worth waking for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// None: the socket only sends.
    Nothing,
    /// ARP requests (if the first is set) and neighbour solicitations.
    Questions { arp: bool },
    /// ARP of either kind, solicitations and advertisements.
    Everything,
}

/// A non-blocking packet socket bound to one interface.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    fd: OwnedFd,
    interface: String,
    ifindex: u32,
    mac: Mac,
    /// Memberships end with the sockets that made them; one each, as all of a socket's together
    /// may take only `optmem_max` bytes.
    memberships: Vec<OwnedFd>,
}

impl PacketSocket {
    pub(crate) fn open(interface: &Interface, wanted: Wanted) -> Result<PacketSocket, LinkError> {
        let mac = interface.ethernet()?;
        let open = || -> io::Result<OwnedFd> {
            // Protocol 0 receives nothing: no frame slips in before the filter and the bind.
            let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            // SAFETY: socket() takes no pointers.
            let raw = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
            // SAFETY: `raw` was just made and is owned by nobody else.
            let fd = unsafe { OwnedFd::from_raw_fd(raw) };
            set_option(&fd, libc::SOL_SOCKET, libc::SO_PRIORITY, &PRIORITY)?;
            if wanted != Wanted::Nothing {
                attach_filter(&fd, &filter(wanted))?;
                set_option(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32)?;
                bind(&fd, interface.index)?;
            }
            Ok(fd)
        };
        let fd = open()
            .map_err(|source| LinkError::Open { interface: interface.name.clone(), source })?;
        let interface_name = interface.name.clone();
        Ok(PacketSocket {
            fd,
            interface: interface_name,
            ifindex: interface.index,
            mac,
            memberships: Vec::new(),
        })
    }

    /// The interface's own Ethernet address.
    pub(crate) fn mac(&self) -> Mac {
        self.mac
    }

    /// Receives what is sent to an IPv6 multicast group, for as long as this socket lives. An
    /// ordinary IPv6 membership opens the interface's hardware filter like
    /// PACKET_ADD_MEMBERSHIP does, and besides reports the group (MLD, RFC 3810), without which
    /// a snooping switch forwards nothing.
    pub(crate) fn join(&mut self, group: Ipv6Addr) -> Result<(), LinkError> {
        let join = || -> io::Result<OwnedFd> {
            let flags = SockFlag::SOCK_CLOEXEC;
            let fd = socket(AddressFamily::Inet6, SockType::Datagram, flags, None)?;
            let request = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                ipv6mr_interface: self.ifindex,
            };
            set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &request)?;
            Ok(fd)
        };
        let member = join().map_err(|source| LinkError::Join {
            interface: self.interface.clone(),
            group,
            source,
        })?;
        self.memberships.push(member);
        Ok(())
    }

    /// From here on what is sent overtakes all that waits in the interface's queue, and is seen by no
    /// hook there.
    pub(crate) fn bypass_queue(&self) -> Result<(), LinkError> {
        set_option(&self.fd, libc::SOL_PACKET, PACKET_QDISC_BYPASS, &1i32)
            .map_err(|source| LinkError::Open { interface: self.interface.clone(), source })
    }

    /// Sends one whole frame.
    pub(crate) fn send(&self, frame: &[u8]) -> Result<(), LinkError> {
        let to = link_address(self.ifindex);
        // SAFETY: the frame and the address are valid for the lengths given, during the call.
        let sent = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 {
            let source = io::Error::last_os_error();
            return Err(LinkError::Send { interface: self.interface.clone(), source });
        }
        Ok(())
    }

    /// The next frame of interest that means something; `None` when there is none.
    pub(crate) fn hear(&self) -> Result<Option<Heard>, LinkError> {
        let mut buffer = [0u8; FRAME_MAX];
        loop {
            // SAFETY: the buffer is valid for writing its length, during the call.
            let length = unsafe {
                let (start, room) = (buffer.as_mut_ptr().cast(), buffer.len());
                libc::recv(self.fd.as_raw_fd(), start, room, 0)
            };
            if length < 0 {
                let source = io::Error::last_os_error();
                match source.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted => continue,
                    // Reported once when the interface goes down; the socket works again when
                    // it is back.
                    io::ErrorKind::NetworkDown => continue,
                    _ => {}
                }
                return Err(LinkError::Receive { interface: self.interface.clone(), source });
            }
            let heard = frames::read(&buffer[..length as usize]);
            if heard.is_some() {
                return Ok(heard);
            }
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `linux/if_packet.h`; kernel ≥ 4.20.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const PACKET_QDISC_BYPASS: libc::c_int = 20;

/// The filter as classic BPF. Offsets are those of an untagged Ethernet frame.
fn filter(wanted: Wanted) -> Vec<libc::sock_filter> {
    let (mut operations, mut kinds) = (vec![], vec![]);
    match wanted {
        Wanted::Nothing => {}
        Wanted::Questions { arp } => {
            if arp {
                operations.push(ARP_REQUEST);
            }
            kinds.push(NEIGHBOUR_SOLICITATION);
        }
        Wanted::Everything => {
            operations.extend([ARP_REQUEST, ARP_REPLY]);
            kinds.extend([NEIGHBOUR_SOLICITATION, NEIGHBOUR_ADVERTISEMENT]);
        }
    }
    const HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
    const BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let op = |code: u32, k: u32, jt: usize, jf: usize| libc::sock_filter {
        code: code as u16,
        jt: jt as u8,
        jf: jf as u8,
        k,
    };
    // Jumps count the instructions passed over. Accepting is the last instruction, refusing the
    // one before it.
    let arp_part = 1 + operations.len() + 1;
    let mut program = vec![op(HALF, 12, 0, 0), op(EQUAL, ETHERTYPE_ARP.into(), 0, arp_part)];
    let length = 2 + arp_part + 4 + kinds.len() + 2;
    let accept_from = |at: usize| length - 1 - (at + 1);
    program.push(op(HALF, 20, 0, 0));
    for operation in operations {
        let accept = accept_from(program.len());
        program.push(op(EQUAL, operation.into(), accept, 0));
    }
    program.push(op(RETURN, 0, 0, 0));
    let refuse = accept_from(program.len()) - 1;
    program.push(op(EQUAL, ETHERTYPE_IPV6.into(), 0, refuse));
    program.push(op(BYTE, 20, 0, 0));
    let refuse = accept_from(program.len()) - 1;
    program.push(op(EQUAL, ICMPV6.into(), 0, refuse));
    program.push(op(BYTE, 54, 0, 0));
    for kind in kinds {
        let accept = accept_from(program.len());
        program.push(op(EQUAL, kind.into(), accept, 0));
    }
    program.push(op(RETURN, 0, 0, 0));
    program.push(op(RETURN, FRAME_MAX as u32, 0, 0));
    assert_eq!(program.len(), length);
    program
}

fn attach_filter(fd: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    // The kernel copies the program and does not write to it, for all that the field is `*mut`.
    let description = libc::sock_fprog {
        len: u16::try_from(program.len()).expect("a dozen instructions"),
        filter: program.as_ptr().cast_mut(),
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &description)
}

/// `T` must be the C structure that the option takes.
fn set_option<T>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for reading `length` bytes during the call; what it may point to
    // (a filter's instructions) is kept alive by the caller over the call.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length)
    })?;
    Ok(())
}

fn bind(fd: &OwnedFd, ifindex: u32) -> io::Result<()> {
    let address = link_address(ifindex);
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a valid sockaddr_ll of the length given, during the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(())
}

fn link_address(ifindex: u32) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: ifindex as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

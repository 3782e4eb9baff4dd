//! A TUN device: how forged segments enter the kernel's receive path.
//!
//! Adoption gives the kernel an ACK as if a client had sent it, and then the logged client bytes.
//! A packet written into a TUN device arrives like one from a link, passes the device's tc
//! programs and finds its listener; nothing leaves the host, and the device vanishes with its
//! descriptor, so a killed daemon leaves nothing behind.
//!
//! What must be arranged around it: `rp_filter` off on the device, since the client's address is
//! routed elsewhere (the larger of `conf.all` and the device's value counts, which
//! [`Tun::rp_filter`] reports); IPv6 enabled, but with no link-local address of its own
//! (`addr_gen_mode` 1), so that it neither solicits routers nor offers a source address; and the
//! MTU, which the kernel checks only on the way out.
//!
//! Replaying a log packet by packet costs a system call and a pass through the stack for each
//! 1,448 bytes. With [`Offload::Segments`] a write carries a virtio-net header (virtio 1.2,
//! 5.1.6) and up to 64 KiB at once, exactly what GRO would have built from a real link: the
//! kernel takes the TCP checksum as still to be filled in and never computes it.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::interface::{Interface, InterfaceError, NAME_MAX, set_up};
use crate::netlink::{Channel, NetlinkError};
use crate::sysctl::{self, RpFilter, SysctlError};

/// `struct virtio_net_hdr`: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset.
const VNET_HEADER_LEN: usize = 10;
const VNET_NEEDS_CSUM: u8 = 1;
const VNET_GSO_NONE: u8 = 0;
const VNET_GSO_TCPV4: u8 = 1;
const VNET_GSO_TCPV6: u8 = 4;

/// IPv4 with options and TCP with options.
const HEADERS_MAX: usize = 60 + 60;
/// Where the checksum is in a TCP header (RFC 9293, 3.1).
const TCP_CHECKSUM: usize = 16;

/// A TUN device could not be made or written to.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// `/dev/net/tun` cannot be opened.
    #[error(
        "cannot open /dev/net/tun: {0}; load the module with `modprobe tun`, and run the node as \
         root"
    )]
    Unavailable(io::Error),
    /// The device cannot be made.
    #[error("cannot make the TUN device {name}: {source}; CAP_NET_ADMIN is needed")]
    Create {
        /// Its name, or the pattern for it.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The prefix for its name is unusable.
    #[error("{hint:?} cannot begin a device name: use 1 to 11 letters, digits, '-' or '_'")]
    Name {
        /// The prefix given.
        hint: String,
    },
    /// It cannot be configured.
    #[error("cannot set up the TUN device {name}: {source}")]
    SetUp {
        /// Its name.
        name: String,
        /// What went wrong.
        source: NetlinkError,
    },
    /// It is gone as soon as it was made.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// One of its sysctls cannot be set.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// The kernel did not take a packet.
    #[error("cannot write a packet of {length} bytes to {name}: {source}")]
    Write {
        /// The device.
        name: String,
        /// The packet's length, in bytes.
        length: usize,
        /// What the system said; `WouldBlock` when its queue is full.
        source: io::Error,
    },
    /// Reading from it failed.
    #[error("cannot read from {name}: {source}")]
    Read {
        /// The device.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// `write_gso` was given something else than a whole TCP packet.
    #[error("cannot write {length} bytes to {name} as TCP segments: {what}")]
    NotTcp {
        /// The device.
        name: String,
        /// Length of what was given, in bytes.
        length: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Whether packets larger than the MTU may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Only packets as they would be on a link.
    None,
    /// Also TCP packets of up to 64 KiB (IFF_VNET_HDR).
    Segments,
}

/// A TUN device that lives as long as this does. Writing never blocks.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
    ifindex: u32,
    offload: Offload,
}

impl Tun {
    /// Makes a device named `hint` and a number, in the calling thread's network namespace, sets
    /// it up with this MTU (bytes) and without addresses.
    pub fn open(hint: &str, mtu: u32, offload: Offload) -> Result<Tun, TunError> {
        let usable = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        // Four characters are left for the number.
        if hint.is_empty() || hint.len() > NAME_MAX - 4 || !hint.chars().all(usable) {
            return Err(TunError::Name { hint: hint.to_owned() });
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")
            .map_err(TunError::Unavailable)?;
        let pattern = format!("{hint}%d");
        let name = set_interface(&file, &pattern, offload)
            .map_err(|source| TunError::Create { name: pattern, source })?;
        let ifindex = Interface::by_name(&name)?.index;
        configure(&name)?;
        let up = || set_up(&mut Channel::open(NETLINK_ROUTE, "TUN devices")?, ifindex, mtu);
        up().map_err(|source| TunError::SetUp { name: name.clone(), source })?;
        Ok(Tun { file, name, ifindex, offload })
    }

    /// Another handle on the same device, for another thread. The device lives as long as one of
    /// them does.
    pub fn try_clone(&self) -> io::Result<Tun> {
        let file = self.file.try_clone()?;
        Ok(Tun { file, name: self.name.clone(), ..*self })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's index, for attaching programs and comparing with `skb->ifindex`.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The reverse-path filter in force on the device. [`RpFilter::Strict`] here means that
    /// `net.ipv4.conf.all.rp_filter` is 1 and forged IPv4 segments will be dropped.
    pub fn rp_filter(&self) -> Result<RpFilter, SysctlError> {
        sysctl::effective_rp_filter(&self.name)
    }

    /// Hands one IP packet to the kernel as received. All its checksums must be right.
    pub fn write_packet(&self, packet: &[u8]) -> Result<(), TunError> {
        let header = [0; VNET_HEADER_LEN];
        self.write_parts(&header, packet, &[])
    }

    /// Hands one TCP/IP packet of up to 65,535 bytes to the kernel, as the segments of at most
    /// `mss` payload bytes that it stands for. The IPv4 header checksum must be right; the TCP
    /// checksum need not be, whatever the field holds.
    pub fn write_gso(&self, packet: &[u8], mss: u16) -> Result<(), TunError> {
        let name = || self.name.clone();
        let length = packet.len();
        let refuse = |what| TunError::NotTcp { name: name(), length, what };
        if self.offload == Offload::None {
            return Err(refuse("the device was opened without offload"));
        }
        if mss == 0 {
            return Err(refuse("the segment size is 0"));
        }
        let layout = TcpLayout::of(packet).map_err(refuse)?;
        let (headers, payload) = packet.split_at(layout.headers_len);
        // Checksum still to be done: the field holds the pseudo-header's sum alone.
        let mut patched = [0; HEADERS_MAX];
        let patched = &mut patched[..layout.headers_len];
        patched.copy_from_slice(headers);
        let field = layout.tcp_start + TCP_CHECKSUM;
        patched[field..field + 2].copy_from_slice(&layout.pseudo_sum.to_be_bytes());
        let many = payload.len() > usize::from(mss);
        let (gso_type, gso_size) = match (many, layout.v6) {
            (false, _) => (VNET_GSO_NONE, 0),
            (true, false) => (VNET_GSO_TCPV4, mss),
            (true, true) => (VNET_GSO_TCPV6, mss),
        };
        // Native byte order: the descriptor is not in a virtual machine's little-endian mode.
        let mut header = [0; VNET_HEADER_LEN];
        header[0] = VNET_NEEDS_CSUM;
        header[1] = gso_type;
        header[2..4].copy_from_slice(&(layout.headers_len as u16).to_ne_bytes());
        header[4..6].copy_from_slice(&gso_size.to_ne_bytes());
        header[6..8].copy_from_slice(&(layout.tcp_start as u16).to_ne_bytes());
        header[8..10].copy_from_slice(&(TCP_CHECKSUM as u16).to_ne_bytes());
        self.write_parts(&header, patched, payload)
    }

    /// Takes one packet that the kernel routed into the device; `None` if there is none. The
    /// answers to forged segments leave by the route to the client, so normally there are only
    /// strays.
    pub fn read_packet(&self) -> Result<Option<Vec<u8>>, TunError> {
        let mut buffer = vec![0; VNET_HEADER_LEN + 65_535];
        match (&self.file).read(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                buffer.drain(..self.header_len().min(length));
                Ok(Some(buffer))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(source) => Err(TunError::Read { name: self.name.clone(), source }),
        }
    }

    fn header_len(&self) -> usize {
        match self.offload {
            Offload::None => 0,
            Offload::Segments => VNET_HEADER_LEN,
        }
    }

    fn write_parts(&self, header: &[u8], front: &[u8], back: &[u8]) -> Result<(), TunError> {
        let length = front.len() + back.len();
        let failed = |source| TunError::Write { name: self.name.clone(), length, source };
        let header = &header[..self.header_len()];
        let parts = [IoSlice::new(header), IoSlice::new(front), IoSlice::new(back)];
        let written = (&self.file).write_vectored(&parts).map_err(failed)?;
        assert_eq!(written, header.len() + length, "a TUN device takes packets whole");
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Where things are in a TCP/IP packet.
struct TcpLayout {
    v6: bool,
    tcp_start: usize,
    headers_len: usize,
    /// One's complement sum of the pseudo-header (RFC 9293, 3.1), not inverted.
    pseudo_sum: u16,
}

impl TcpLayout {
    fn of(packet: &[u8]) -> Result<TcpLayout, &'static str> {
        const TCP: u8 = libc::IPPROTO_TCP as u8;
        let v6 = match packet.first().map(|byte| byte >> 4) {
            Some(4) => false,
            Some(6) => true,
            _ => return Err("it is neither IPv4 nor IPv6"),
        };
        let short = "it is shorter than its headers";
        if packet.len() < if v6 { 40 } else { 20 } {
            return Err(short);
        }
        let be16 = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        let (tcp_start, total, protocol, addresses) = if v6 {
            (40, 40 + be16(4), packet[6], &packet[8..40])
        } else {
            (usize::from(packet[0] & 15) * 4, be16(2), packet[9], &packet[12..20])
        };
        if protocol != TCP {
            return Err("it does not carry TCP right after the IP header");
        }
        if total != packet.len() {
            return Err("its length field does not match");
        }
        if tcp_start < 20 || packet.len() < tcp_start + 20 {
            return Err(short);
        }
        let tcp_header = usize::from(packet[tcp_start + 12] >> 4) * 4;
        let headers_len = tcp_start + tcp_header;
        if tcp_header < 20 || packet.len() < headers_len {
            return Err(short);
        }
        let words = addresses.chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let mut sum = words.sum::<u32>() + u32::from(TCP) + (total - tcp_start) as u32;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        Ok(TcpLayout { v6, tcp_start, headers_len, pseudo_sum: sum as u16 })
    }
}

/// TUNSETIFF: makes the device and returns the name it got.
fn set_interface(file: &File, pattern: &str, offload: Offload) -> io::Result<String> {
    let mut flags = libc::IFF_TUN | libc::IFF_NO_PI;
    if offload == Offload::Segments {
        flags |= libc::IFF_VNET_HDR;
    }
    let mut name = [0u8; libc::IFNAMSIZ];
    name[..pattern.len()].copy_from_slice(pattern.as_bytes());
    let mut request = libc::ifreq {
        ifr_name: name.map(|byte| byte as libc::c_char),
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags as libc::c_short },
    };
    // The kernel reads and writes a whole `struct ifreq`.
    const _: () = assert!(size_of::<libc::ifreq>() == 40);
    // SAFETY: the descriptor is open, and `request` is a valid, exclusively borrowed ifreq whose
    // name ends with a zero byte (`open` limits the pattern to 13 bytes of 16).
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let given = request.ifr_name.iter().map(|&c| c as u8).take_while(|&byte| byte != 0);
    String::from_utf8(given.collect()).map_err(io::Error::other)
}

/// The device's sysctls; before it is up, so that no address is ever made.
fn configure(name: &str) -> Result<(), SysctlError> {
    sysctl::write_conf("ipv4", name, "rp_filter", 0)?;
    // Without IPv6 in the kernel there is nothing to set.
    if Path::new("/proc/sys/net/ipv6").exists() {
        sysctl::write_conf("ipv6", name, "disable_ipv6", 0)?;
        const IN6_ADDR_GEN_MODE_NONE: i64 = 1;
        sysctl::write_conf("ipv6", name, "addr_gen_mode", IN6_ADDR_GEN_MODE_NONE)?;
        sysctl::write_conf("ipv6", name, "accept_ra", 0)?;
    }
    Ok(())
}

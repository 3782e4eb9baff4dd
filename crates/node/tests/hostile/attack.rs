//! Frames as nobody should send them.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};
use lab::{Host, Link};
use nix::libc;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, SockaddrLike, socket};

/// Sends whole frames out of a host's interface.
pub struct Wire {
    socket: OwnedFd,
    pub mac: [u8; 6],
}

impl Wire {
    pub fn new(host: &Host, link: Link) -> Self {
        let socket = host
            .in_netns(|| {
                let kind = SockType::Raw;
                let fd = socket(AddressFamily::Packet, kind, SockFlag::SOCK_CLOEXEC, None);
                let fd = fd.expect("root");
                let index = nix::net::if_::if_nametoindex(link.interface()).unwrap();
                let raw = libc::sockaddr_ll {
                    sll_family: libc::AF_PACKET as u16,
                    sll_protocol: 0,
                    sll_ifindex: index as i32,
                    sll_hatype: 0,
                    sll_pkttype: 0,
                    sll_halen: 0,
                    sll_addr: [0; 8],
                };
                let length = Some(size_of_val(&raw) as libc::socklen_t);
                // SAFETY: the pointer is to a sockaddr_ll and the length is its own.
                let address = unsafe {
                    nix::sys::socket::LinkAddr::from_raw((&raw const raw).cast(), length)
                };
                nix::sys::socket::bind(fd.as_raw_fd(), &address.expect("an address")).unwrap();
                fd
            })
            .unwrap();
        Self { socket, mac: host.mac(link) }
    }

    /// A queue that is full for an instant takes the frame later.
    pub fn send(&self, frame: &[u8]) {
        loop {
            match nix::sys::socket::send(self.socket.as_raw_fd(), frame, MsgFlags::empty()) {
                Ok(_) => return,
                Err(nix::errno::Errno::ENOBUFS) => std::thread::yield_now(),
                Err(error) => panic!("a frame of {} bytes: {error}", frame.len()),
            }
        }
    }

    /// A UDP datagram, likewise.
    pub fn datagram(&self, mac: [u8; 6], ends: Ends, payload: &[u8]) -> Vec<u8> {
        let udp = self.packet(mac, ends).udp(ends.0.port(), ends.1.port());
        let mut frame = Vec::new();
        udp.write(&mut frame, payload).unwrap();
        frame
    }

    /// A segment from one end to the other, to the host with MAC `mac`.
    pub fn segment(
        &self,
        mac: [u8; 6],
        ends: Ends,
        (flags, seq, ack): (&str, u32, u32),
        payload: &[u8],
    ) -> Vec<u8> {
        let mut tcp = self.packet(mac, ends).tcp(ends.0.port(), ends.1.port(), seq, 512);
        for flag in flags.chars() {
            tcp = match flag {
                'S' => tcp.syn(),
                'A' => tcp.ack(ack),
                'F' => tcp.fin(),
                'R' => tcp.rst(),
                other => panic!("no such flag: {other}"),
            };
        }
        let mut frame = Vec::new();
        tcp.write(&mut frame, payload).unwrap();
        frame
    }

    fn packet(&self, mac: [u8; 6], ends: Ends) -> PacketBuilderStep<IpHeaders> {
        let frame = PacketBuilder::ethernet2(self.mac, mac);
        match (ends.0.ip(), ends.1.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => frame.ipv4(from.octets(), to.octets(), 64),
            (IpAddr::V6(from), IpAddr::V6(to)) => frame.ipv6(from.octets(), to.octets(), 64),
            _ => panic!("{ends:?} are of two families"),
        }
    }
}

/// Where from and where to.
pub type Ends = (SocketAddr, SocketAddr);

/// Where the checksum of TCP stands in a frame between these ends.
pub fn checksum_at(ends: Ends) -> usize {
    14 + if ends.0.is_ipv4() { 20 } else { 40 } + 16
}

/// The next sequence number that this socket sends, and the next it expects.
pub fn position(stream: &TcpStream) -> (u32, u32) {
    const TCP_REPAIR_ON: i32 = 1;
    const TCP_REPAIR_OFF_NO_WP: i32 = -1;
    const RECEIVE: i32 = 1;
    const SEND: i32 = 2;
    let fd = stream.as_raw_fd();
    let set = |option: i32, value: i32| {
        let length = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the descriptor is open and the value is an int, as the length says.
        let result = unsafe {
            libc::setsockopt(fd, libc::IPPROTO_TCP, option, (&raw const value).cast(), length)
        };
        assert_eq!(result, 0, "setsockopt {option}: {}", std::io::Error::last_os_error());
    };
    let queue = |which: i32| {
        set(libc::TCP_REPAIR_QUEUE, which);
        let (mut seq, mut length) = (0u32, size_of::<u32>() as libc::socklen_t);
        // SAFETY: the descriptor is open and the kernel writes four bytes at most.
        let result = unsafe {
            libc::getsockopt(
                fd,
                libc::IPPROTO_TCP,
                libc::TCP_QUEUE_SEQ,
                (&raw mut seq).cast(),
                &mut length,
            )
        };
        assert_eq!(result, 0, "TCP_QUEUE_SEQ: {}", std::io::Error::last_os_error());
        seq
    };
    set(libc::TCP_REPAIR, TCP_REPAIR_ON);
    let position = (queue(SEND), queue(RECEIVE));
    set(libc::TCP_REPAIR, TCP_REPAIR_OFF_NO_WP);
    position
}

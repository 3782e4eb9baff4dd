//! Packets written into the TUN device reach sockets of the namespace like received ones.

mod common;

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};

use common::{Namespace, PATIENCE, readable, until};
use hostnet::sysctl::RpFilter;
use hostnet::{Interface, Offload, ServiceAddress, Tun, TunError};

const CLIENT_PORT: u16 = 40_000;
const PORT: u16 = 8080;

struct Pair {
    client: IpAddr,
    server: IpAddr,
}

impl Pair {
    fn both() -> [Pair; 2] {
        let pair = |client: &str, server: &str| Pair {
            client: client.parse().unwrap(),
            server: server.parse().unwrap(),
        };
        [pair("198.51.100.7", "192.0.2.80"), pair("2001:db8:1::7", "2001:db8::80")]
    }

    /// An IP packet from client to server, all checksums right.
    fn packet(&self, protocol: u8, transport: &[u8], checksum_at: usize) -> Vec<u8> {
        let length = transport.len() as u16;
        let (mut packet, addresses) = match (self.client, self.server) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                let mut ip = vec![0x45, 0];
                ip.extend((20 + length).to_be_bytes());
                ip.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
                ip.extend(client.octets());
                ip.extend(server.octets());
                let sum = checksum(&ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                (ip, [client.octets(), server.octets()].concat())
            }
            (IpAddr::V6(client), IpAddr::V6(server)) => {
                let mut ip = vec![0x60, 0, 0, 0];
                ip.extend(length.to_be_bytes());
                ip.extend([protocol, 64]);
                ip.extend(client.octets());
                ip.extend(server.octets());
                (ip, [client.octets(), server.octets()].concat())
            }
            _ => unreachable!(),
        };
        let mut summed = addresses;
        summed.extend([0, protocol]);
        summed.extend(length.to_be_bytes());
        summed.extend(transport);
        let sum = checksum(&summed);
        let start = packet.len();
        packet.extend(transport);
        packet[start + checksum_at..][..2].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    fn udp(&self, payload: &[u8]) -> Vec<u8> {
        let mut datagram = Vec::new();
        datagram.extend(CLIENT_PORT.to_be_bytes());
        datagram.extend(PORT.to_be_bytes());
        datagram.extend((8 + payload.len() as u16).to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(payload);
        self.packet(17, &datagram, 6)
    }

    fn tcp(&self, seq: u32, ack: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut segment = Vec::new();
        segment.extend(CLIENT_PORT.to_be_bytes());
        segment.extend(PORT.to_be_bytes());
        segment.extend(seq.to_be_bytes());
        segment.extend(ack.to_be_bytes());
        segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(payload);
        self.packet(6, &segment, 16)
    }
}

fn checksum(bytes: &[u8]) -> u16 {
    let word = |w: &[u8]| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0));
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn a_packet_reaches_a_socket() {
    let ns = Namespace::new();
    ns.run(|| {
        for offload in [Offload::None, Offload::Segments] {
            for pair in Pair::both() {
                let _vip = ServiceAddress::install(pair.server).unwrap();
                let tun = Tun::open("inject", 1500, offload).unwrap();
                let socket = UdpSocket::bind((pair.server, PORT)).unwrap();
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                tun.write_packet(&pair.udp(b"hello")).unwrap();
                let mut buffer = [0; 16];
                let (length, from) = socket
                    .recv_from(&mut buffer)
                    .unwrap_or_else(|e| panic!("{} {offload:?}: {e}", pair.server));
                assert_eq!(&buffer[..length], b"hello");
                assert_eq!(from, SocketAddr::new(pair.client, CLIENT_PORT));
            }
        }
    });
}

/// A whole connection forged through the device; 60,000 bytes arrive from one write, with a
/// checksum field that is nonsense.
#[test]
fn a_large_segment_reaches_a_tcp_socket() {
    let ns = Namespace::new();
    for pair in Pair::both() {
        let _vip = ns.run(|| ServiceAddress::install(pair.server).unwrap());
        let tun = ns.run(|| Tun::open("inject", 1500, Offload::Segments).unwrap());
        // Answers to the client come back into the device, where the test can read them.
        ns.ip(&format!("route add {} dev {}", pair.client, tun.name()));
        let listener = ns.run(|| TcpListener::bind((pair.server, PORT)).unwrap());
        const SYN: u8 = 2;
        const ACK: u8 = 16;
        tun.write_packet(&pair.tcp(999, 0, SYN, b"")).unwrap();
        let syn_ack = next_tcp(&tun);
        let iss = u32::from_be_bytes(syn_ack[4..8].try_into().unwrap());
        tun.write_packet(&pair.tcp(1000, iss.wrapping_add(1), ACK, b"")).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.set_read_timeout(Some(PATIENCE)).unwrap();

        let sent: Vec<u8> = (0..60_000u32).map(|i| (i * 7 % 251) as u8).collect();
        for (start, end) in [(0, 60_000), (60_000, 60_001)] {
            let sent: Vec<u8> = sent.iter().copied().cycle().take(end).skip(start).collect();
            let seq = 1000 + start as u32;
            let mut packet = pair.tcp(seq, iss.wrapping_add(1), ACK, &sent);
            let checksum_at = packet.len() - sent.len() - 4;
            packet[checksum_at..][..2].copy_from_slice(&[0xde, 0xad]);
            tun.write_gso(&packet, 1400).unwrap();
            let mut received = vec![0; sent.len()];
            accepted.read_exact(&mut received).unwrap();
            assert!(received == sent, "bytes differ");
        }
    }
}

/// A host that receives does not look at the checksum of such a packet, one that forwards it must
/// finish it: what leaves by a second device are the segments it stood for, sums right.
#[test]
fn a_large_segment_is_cut_up_with_right_checksums() {
    let ns = Namespace::new();
    ns.write("/proc/sys/net/ipv4/ip_forward", "1");
    ns.write("/proc/sys/net/ipv6/conf/all/forwarding", "1");
    for pair in Pair::both() {
        let open = |offload| ns.run(|| Tun::open("inject", 1500, offload).unwrap());
        let (inner, outer) = (open(Offload::Segments), open(Offload::None));
        ns.ip(&format!("route add {} dev {}", pair.server, outer.name()));
        for (size, sizes) in [(3000, vec![1400, 1400, 200]), (1400, vec![1400])] {
            let sent: Vec<u8> = (0..size).map(|i| (i * 7 % 251) as u8).collect();
            let mut packet = pair.tcp(1000, 1, 16, &sent);
            let checksum_at = packet.len() - size - 4;
            packet[checksum_at..][..2].copy_from_slice(&[0xde, 0xad]);
            inner.write_gso(&packet, 1400).unwrap();
            let mut received: Vec<u8> = Vec::new();
            for expected in sizes {
                let segment = next_tcp(&outer);
                assert_eq!(segment.len() - 20, expected);
                let seq = u32::from_be_bytes(segment[4..8].try_into().unwrap());
                assert_eq!(seq as usize, 1000 + received.len());
                // Built again from scratch, it is the same.
                let mut unsummed = segment.clone();
                unsummed[16..18].fill(0);
                let whole = pair.packet(6, &unsummed, 16);
                assert!(whole.ends_with(&segment), "wrong checksum");
                received.extend(&segment[20..]);
            }
            assert!(received == sent, "bytes differ");
        }
    }
}

/// The next TCP segment that the kernel routed into the device; strays are passed over.
fn next_tcp(tun: &Tun) -> Vec<u8> {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        assert!(std::time::Instant::now() < deadline, "no TCP segment came");
        assert!(readable(tun, PATIENCE), "no packet came");
        while let Some(packet) = tun.read_packet().unwrap() {
            match packet[0] >> 4 {
                4 if packet[9] == 6 => return packet[20..].to_vec(),
                6 if packet[6] == 6 => return packet[40..].to_vec(),
                _ => {}
            }
        }
    }
}

#[test]
fn the_device_is_bare_and_goes_with_its_descriptor() {
    let ns = Namespace::new();
    let tun = ns.run(|| Tun::open("inject", 9000, Offload::None).unwrap());
    let seen = ns.run(|| Interface::by_name(tun.name()).unwrap());
    assert_eq!((seen.index, seen.mtu, seen.up), (tun.ifindex(), 9000, true));
    assert_eq!(seen.addresses, []);
    assert_eq!(seen.mac, None);
    assert_eq!(ns.run(|| tun.rp_filter().unwrap()), RpFilter::Off);
    ns.write("/proc/sys/net/ipv4/conf/all/rp_filter", "1");
    assert_eq!(ns.run(|| tun.rp_filter().unwrap()), RpFilter::Strict);
    let name = tun.name().to_owned();
    drop(tun);
    until("the device is gone", || ns.run(|| Interface::by_name(&name)).is_err());
}

#[test]
fn two_devices_get_two_names() {
    let ns = Namespace::new();
    ns.run(|| {
        let one = Tun::open("inject", 1500, Offload::None).unwrap();
        let two = Tun::open("inject", 1500, Offload::None).unwrap();
        assert_ne!(one.name(), two.name());
        for hint in ["", "a%d", "a/b", "twelve-chars"] {
            let error = Tun::open(hint, 1500, Offload::None).unwrap_err();
            assert!(matches!(error, TunError::Name { .. }), "{error}");
        }
    });
}

/// Whatever is given to `write_gso`, it refuses or hands over; it never panics.
#[test]
fn what_is_not_a_tcp_packet_is_refused() {
    let ns = Namespace::new();
    ns.run(|| {
        let tun = Tun::open("inject", 1500, Offload::Segments).unwrap();
        let [v4, v6] = Pair::both();
        for pair in [&v4, &v6] {
            let good = pair.tcp(1, 1, 16, b"payload");
            let refused = |packet: &[u8]| {
                matches!(tun.write_gso(packet, 1400).unwrap_err(), TunError::NotTcp { .. })
            };
            for length in 0..good.len() {
                assert!(refused(&good[..length]), "{length} bytes");
            }
            assert!(refused(&pair.udp(b"payload")));
            assert!(matches!(tun.write_gso(&good, 0), Err(TunError::NotTcp { .. })));
            for (at, value) in [(0, 0x00), (0, 0x4f), (good.len() - 7 - 8, 0xf0)] {
                let mut bad = good.clone();
                bad[at] = value;
                assert!(refused(&bad), "byte {at} = {value:#x}");
            }
        }
        let plain = Tun::open("inject", 1500, Offload::None).unwrap();
        let error = plain.write_gso(&v4.tcp(1, 1, 16, b"payload"), 1400).unwrap_err();
        assert!(error.to_string().contains("without offload"), "{error}");
    });
}

//! One frame: what of it the judgement needs.
//!
//! The headers are read by smoltcp, so that nothing the product uses to read or build segments is
//! trusted here. Lengths come from the headers, since a capture may keep only the beginning.
//!
//! A frame with a wrong checksum is no segment: no receiver takes it. A checksum may also be a
//! promise: on its way from a host's TCP to what completes it, such as a network card, its place
//! holds the sum of the pseudo header alone (Linux: CHECKSUM_PARTIAL), and the frame has no end to
//! be compared with. Between hosts that share a machine nothing ever completes it. What damages
//! frames must complete it first, or the receiver would complete it over the damage; so a promise
//! is taken for intact. One damaged frame in 2^16 looks like a promise by chance: what its complete
//! checksum would say is kept for the judge, who knows what the payload should be.

use std::net::{IpAddr, SocketAddr};

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, TcpOption, TcpPacket,
};

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;

/// TCP flags of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) syn: bool,
    pub(crate) ack: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) ece: bool,
    pub(crate) cwr: bool,
}

/// TCP options of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) sacks: [Option<(u32, u32)>; 3],
    /// TSval and TSecr.
    pub(crate) stamps: Option<(u32, u32)>,
    /// Bytes that all of them take in the header.
    pub(crate) len: usize,
}

/// A TCP segment as a frame carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) source_mac: [u8; 6],
    pub(crate) target_mac: [u8; 6],
    pub(crate) source: SocketAddr,
    pub(crate) target: SocketAddr,
    /// The two ECN bits of the IP header.
    pub(crate) ecn: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) flags: Flags,
    pub(crate) options: Options,
    /// Where the payload begins in the frame.
    pub(crate) payload_at: u32,
    /// Its length, bytes.
    pub(crate) payload_len: u32,
    /// How much of it was captured.
    pub(crate) payload_kept: u32,
    /// If its checksum is a promise: the sum of the whole segment, which would be 0xffff (or 0, which
    /// is the same) if it were complete.
    pub(crate) promised: Option<u16>,
}

/// What a frame turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Segment(Box<Parsed>),
    /// Not TCP, or none that the caller asked for.
    Other,
    /// TCP that cannot be read.
    Odd(&'static str),
    /// IP or TCP with a wrong checksum.
    Damaged,
}

/// Reads a frame of `frame_len` bytes on the wire, of which `kept` were captured. Only segments
/// with a service on one side are of interest.
pub(crate) fn read(kept: &[u8], frame_len: u32, is_service: impl Fn(IpAddr, u16) -> bool) -> Read {
    let Ok(frame) = EthernetFrame::new_checked(kept) else { return Read::Other };
    let ethernet_header = kept.len() - frame.payload().len();
    let packet = frame.payload();
    if frame.ethertype() == EthernetProtocol::Ipv4 && !is_ipv4_header_intact(packet) {
        return Read::Damaged;
    }
    let ip = match frame.ethertype() {
        EthernetProtocol::Ipv4 => ipv4(packet),
        EthernetProtocol::Ipv6 => ipv6(packet),
        _ => return Read::Other,
    };
    let ip = match ip {
        Ok(Some(ip)) => ip,
        Ok(None) => return Read::Other,
        Err(why) => return Read::Odd(why),
    };
    // BIG TCP (packets above 64 KiB) leaves the length field 0.
    let packet_len =
        if ip.len == 0 { frame_len.saturating_sub(ethernet_header as u32) } else { ip.len };
    let Some(segment) = packet.get(ip.header..) else { return Read::Odd("cut inside IP") };
    let segment = &segment[..segment.len().min((packet_len as usize).saturating_sub(ip.header))];
    if segment.len() < TCP_HEADER {
        return Read::Odd("cut inside the TCP header");
    }
    let is_whole = ip.header + segment.len() == packet_len as usize;
    let mut promised = None;
    if is_whole && !ip.fragment {
        match checksum(&ip, segment) {
            Checksum::Right => {}
            Checksum::Promise(sum) => promised = Some(sum),
            Checksum::Wrong => return Read::Damaged,
        }
    }
    let tcp = TcpPacket::new_unchecked(segment);
    let source = SocketAddr::new(ip.source, tcp.src_port());
    let target = SocketAddr::new(ip.target, tcp.dst_port());
    let (from, to) = (is_service(ip.source, source.port()), is_service(ip.target, target.port()));
    if from == to {
        return Read::Other;
    }
    if ip.fragment {
        return Read::Odd("a fragment");
    }
    let header = usize::from(tcp.header_len());
    if header < TCP_HEADER || header > segment.len() {
        return Read::Odd("cut inside the TCP options");
    }
    let payload_at = ethernet_header + ip.header + header;
    let Some(payload_len) = (packet_len as usize).checked_sub(ip.header + header) else {
        return Read::Odd("lengths contradict each other");
    };
    Read::Segment(Box::new(Parsed {
        source_mac: frame.src_addr().0,
        target_mac: frame.dst_addr().0,
        source,
        target,
        ecn: ip.ecn,
        seq: tcp.seq_number().0 as u32,
        ack: tcp.ack_number().0 as u32,
        window: tcp.window_len(),
        flags: Flags {
            syn: tcp.syn(),
            ack: tcp.ack(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            ece: tcp.ece(),
            cwr: tcp.cwr(),
        },
        options: options(tcp.options()),
        payload_at: payload_at as u32,
        payload_len: payload_len as u32,
        payload_kept: (segment.len() - header).min(payload_len) as u32,
        promised,
    }))
}

struct Ip {
    source: IpAddr,
    target: IpAddr,
    header: usize,
    /// Bytes of the packet; 0 if the header does not say.
    len: u32,
    ecn: u8,
    fragment: bool,
}

/// `None`: not TCP.
fn ipv4(packet: &[u8]) -> Result<Option<Ip>, &'static str> {
    if packet.len() < IPV4_HEADER {
        return Err("cut inside the IPv4 header");
    }
    let ip = Ipv4Packet::new_unchecked(packet);
    if ip.next_header() != IpProtocol::Tcp {
        return Ok(None);
    }
    Ok(Some(Ip {
        source: ip.src_addr().into(),
        target: ip.dst_addr().into(),
        header: ip.header_len().into(),
        len: ip.total_len().into(),
        ecn: ip.ecn(),
        fragment: ip.more_frags() || ip.frag_offset() != 0,
    }))
}

/// `None`: not TCP, or behind extension headers, which neither TCP end here uses.
fn ipv6(packet: &[u8]) -> Result<Option<Ip>, &'static str> {
    if packet.len() < IPV6_HEADER {
        return Err("cut inside the IPv6 header");
    }
    let ip = Ipv6Packet::new_unchecked(packet);
    if ip.next_header() != IpProtocol::Tcp {
        return Ok(None);
    }
    let len = u32::from(ip.payload_len());
    Ok(Some(Ip {
        source: ip.src_addr().into(),
        target: ip.dst_addr().into(),
        header: IPV6_HEADER,
        len: if len == 0 { 0 } else { len + IPV6_HEADER as u32 },
        ecn: ip.traffic_class() & 3,
        fragment: false,
    }))
}

/// Whether a receiver takes the header, as far as it was captured (RFC 1122 §3.2.1.2).
fn is_ipv4_header_intact(packet: &[u8]) -> bool {
    let Some(first) = packet.first() else { return true };
    let header = usize::from(first & 15) * 4;
    header >= IPV4_HEADER && packet.get(..header).is_none_or(|header| fold(sum(header)) == 0xffff)
}

/// What the checksum of a whole segment is (RFC 9293 §3.1).
enum Checksum {
    Right,
    /// With the sum of the whole segment.
    Promise(u16),
    Wrong,
}

fn checksum(ip: &Ip, segment: &[u8]) -> Checksum {
    let addresses = match (ip.source, ip.target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => sum(&source.octets()) + sum(&target.octets()),
        (IpAddr::V6(source), IpAddr::V6(target)) => sum(&source.octets()) + sum(&target.octets()),
        _ => unreachable!("both are of one packet"),
    };
    let pseudo = addresses + u64::from(u8::from(IpProtocol::Tcp)) + segment.len() as u64;
    let stored = u16::from_be_bytes([segment[16], segment[17]]);
    match fold(pseudo + sum(segment)) {
        0xffff => Checksum::Right,
        // Zero has two representations.
        sum if fold(pseudo) % 0xffff == stored % 0xffff => Checksum::Promise(sum),
        _ => Checksum::Wrong,
    }
}

/// The sum of 16-bit words, the last one filled up with zero (RFC 1071).
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |&byte| u64::from(byte) << 8);
    words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>() + last
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn options(mut bytes: &[u8]) -> Options {
    let mut found = Options { len: bytes.len(), ..Options::default() };
    while !bytes.is_empty() {
        // What follows an option that cannot be read is padding to us, as it is to any TCP.
        let Ok((rest, option)) = TcpOption::parse(bytes) else { break };
        match option {
            TcpOption::EndOfList => break,
            TcpOption::MaxSegmentSize(mss) => found.mss = Some(mss),
            TcpOption::WindowScale(scale) => found.scale = Some(scale),
            TcpOption::SackPermitted => found.sack_permitted = true,
            TcpOption::SackRange(blocks) => found.sacks = blocks,
            TcpOption::TimeStamp { tsval, tsecr } => found.stamps = Some((tsval, tsecr)),
            TcpOption::NoOperation | TcpOption::Unknown { .. } => {}
        }
        bytes = rest;
    }
    found
}

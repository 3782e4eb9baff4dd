//! The few Ethernet frames this crate sends and understands: ARP and neighbour discovery.
//!
//! Building and reading are separate: what is built is always well formed, what is read comes
//! from anybody on the link and is checked as RFC 826 and RFC 4861 demand before it means
//! anything. Reading never panics and yields `None` for whatever is not for us.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Mac;

pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(crate) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
pub(crate) const ARP_REQUEST: u16 = 1;
pub(crate) const ARP_REPLY: u16 = 2;

const ETHERNET_LEN: usize = 14;
const IPV6_LEN: usize = 40;
/// Ethernet/IPv4 ARP: hardware type 1, protocol 0x0800, lengths 6 and 4 (RFC 826).
const ARP_PREFIX: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_LEN: usize = 28;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const OPTION_SOURCE_MAC: u8 = 1;
const OPTION_TARGET_MAC: u8 = 2;
const FLAG_SOLICITED: u8 = 0x40;
const FLAG_OVERRIDE: u8 = 0x20;

/// What a frame from the link says about the owner of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Somebody asks who has `target`. An unspecified `sender` is a probe: whoever sends it
    /// wants the address (RFC 5227, 2.1.1; RFC 4862, 5.4.3).
    Question { from: Mac, sender: IpAddr, target: IpAddr },
    /// `owner` says that `addr` is at `from`; also a gratuitous ARP request says so.
    Claim { from: Mac, owner: IpAddr, gratuitous: bool },
}

/// The solicited-node multicast address (RFC 4291, 2.7.1).
pub(crate) fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = addr.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// The Ethernet address of an IPv6 multicast group (RFC 2464, 7).
pub(crate) fn multicast_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// Asks everybody who has `target`. Without a `sender` address it is a probe, which changes
/// nobody's cache (ARP: RFC 5227, 2.1.1; IPv6: RFC 4862, 5.4.2).
pub(crate) fn question(own: Mac, sender: Option<IpAddr>, target: IpAddr) -> Vec<u8> {
    match target {
        IpAddr::V4(target) => {
            let sender = match sender {
                Some(IpAddr::V4(sender)) => sender,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            arp(Mac::BROADCAST, ARP_REQUEST, (own, sender), (Mac::ZERO, target))
        }
        IpAddr::V6(target) => {
            let group = solicited_node(target);
            let mut body = vec![0, 0, 0, 0];
            body.extend(target.octets());
            let source = match sender {
                Some(IpAddr::V6(sender)) => {
                    body.extend([OPTION_SOURCE_MAC, 1]);
                    body.extend(own.0);
                    sender
                }
                // RFC 4861, 4.3: no option when the source is unspecified.
                _ => Ipv6Addr::UNSPECIFIED,
            };
            let ends = (own, source, multicast_mac(group), group);
            icmpv6(ends, NEIGHBOUR_SOLICITATION, &body)
        }
    }
}

/// Tells whoever sent `question` that `target` is at `own`; `None` unless it is a question.
pub(crate) fn answer(own: Mac, question: &Heard) -> Option<Vec<u8>> {
    let Heard::Question { from, sender, target } = *question else { return None };
    match (target, sender) {
        (IpAddr::V4(target), IpAddr::V4(sender)) => {
            Some(arp(from, ARP_REPLY, (own, target), (from, sender)))
        }
        (IpAddr::V6(target), IpAddr::V6(sender)) => {
            // RFC 4861, 7.2.4: to a probe, answer all nodes, and not as solicited.
            let probe = sender.is_unspecified();
            let (mac, to) =
                if probe { (multicast_mac(ALL_NODES), ALL_NODES) } else { (from, sender) };
            let flags = if probe { FLAG_OVERRIDE } else { FLAG_SOLICITED | FLAG_OVERRIDE };
            Some(advertisement((own, target, mac, to), target, flags))
        }
        _ => None,
    }
}

/// Tells everybody that `addr` is at `own`: for IPv4 a gratuitous ARP as request and as reply,
/// since some hosts heed only one of them (RFC 5227, 3); for IPv6 an unsolicited neighbour
/// advertisement with the override flag (RFC 4861, 7.2.6).
pub(crate) fn announcement(own: Mac, addr: IpAddr) -> Vec<Vec<u8>> {
    match addr {
        IpAddr::V4(addr) => vec![
            arp(Mac::BROADCAST, ARP_REQUEST, (own, addr), (Mac::ZERO, addr)),
            arp(Mac::BROADCAST, ARP_REPLY, (own, addr), (own, addr)),
        ],
        IpAddr::V6(addr) => {
            let ends = (own, addr, multicast_mac(ALL_NODES), ALL_NODES);
            vec![advertisement(ends, addr, FLAG_OVERRIDE)]
        }
    }
}

/// Reads a frame; `None` if it is none of the above, or malformed.
pub(crate) fn read(frame: &[u8]) -> Option<Heard> {
    let ethertype = u16::from_be_bytes(frame.get(12..14)?.try_into().ok()?);
    let body = frame.get(ETHERNET_LEN..)?;
    match ethertype {
        ETHERTYPE_ARP => read_arp(body),
        ETHERTYPE_IPV6 => read_icmpv6(frame, body),
        _ => None,
    }
}

fn read_arp(body: &[u8]) -> Option<Heard> {
    if body.len() < ARP_LEN || body[..6] != ARP_PREFIX {
        return None;
    }
    let operation = u16::from_be_bytes([body[6], body[7]]);
    let from = Mac::from_slice(&body[8..14])?;
    let sender = ipv4(&body[14..18])?;
    let target = ipv4(&body[24..28])?;
    match operation {
        ARP_REQUEST if sender == target => {
            Some(Heard::Claim { from, owner: sender, gratuitous: true })
        }
        ARP_REQUEST => Some(Heard::Question { from, sender, target }),
        ARP_REPLY => Some(Heard::Claim { from, owner: sender, gratuitous: sender == target }),
        _ => None,
    }
}

/// RFC 4861, 7.1.1 and 7.1.2: what makes a solicitation or an advertisement valid.
fn read_icmpv6(frame: &[u8], packet: &[u8]) -> Option<Heard> {
    if packet.len() < IPV6_LEN || packet[0] >> 4 != 6 || packet[6] != ICMPV6 {
        return None;
    }
    // A hop limit below 255 has crossed a router: not from this link.
    if packet[7] != 255 {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
    let message = packet.get(IPV6_LEN..IPV6_LEN + length)?;
    if message.len() < 24 || message[1] != 0 {
        return None;
    }
    let source = ipv6(&packet[8..24])?;
    let destination = ipv6(&packet[24..40])?;
    if icmpv6_checksum(source, destination, message) != 0 {
        return None;
    }
    let target = ipv6(&message[8..24])?;
    if target.is_multicast() || source.is_multicast() {
        return None;
    }
    let option = read_options(&message[24..])?;
    let ethernet_source = Mac::from_slice(&frame[6..12])?;
    match message[0] {
        NEIGHBOUR_SOLICITATION => {
            let probe = source.is_unspecified();
            if probe && (destination != solicited_node(target) || option.source.is_some()) {
                return None;
            }
            // The answer goes to the address the asker gives, not to that of a proxy's frame.
            let from = option.source.unwrap_or(ethernet_source);
            Some(Heard::Question { from, sender: source.into(), target: target.into() })
        }
        NEIGHBOUR_ADVERTISEMENT => {
            let solicited = message[4] & FLAG_SOLICITED != 0;
            if solicited && destination.is_multicast() {
                return None;
            }
            let from = option.target.unwrap_or(ethernet_source);
            // An answer to a probe goes to all nodes too, so this says little about it.
            Some(Heard::Claim { from, owner: target.into(), gratuitous: !solicited })
        }
        _ => None,
    }
}

#[derive(Default)]
struct Options {
    source: Option<Mac>,
    target: Option<Mac>,
}

/// RFC 4861, 4.6: a length of zero makes the whole message invalid; unknown options do not.
fn read_options(mut bytes: &[u8]) -> Option<Options> {
    let mut options = Options::default();
    while !bytes.is_empty() {
        let length = usize::from(*bytes.get(1)?) * 8;
        if length == 0 || length > bytes.len() {
            return None;
        }
        match bytes[0] {
            OPTION_SOURCE_MAC => options.source = Mac::from_slice(&bytes[2..8]),
            OPTION_TARGET_MAC => options.target = Mac::from_slice(&bytes[2..8]),
            _ => {}
        }
        bytes = &bytes[length..];
    }
    Some(options)
}

fn arp(to: Mac, operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut frame = ethernet(to, sender.0, ETHERTYPE_ARP);
    frame.extend(ARP_PREFIX);
    frame.extend(operation.to_be_bytes());
    frame.extend(sender.0.0);
    frame.extend(sender.1.octets());
    frame.extend(target.0.0);
    frame.extend(target.1.octets());
    frame
}

/// Source and destination: MAC, address, MAC, address.
type Ends = (Mac, Ipv6Addr, Mac, Ipv6Addr);

fn advertisement(ends: Ends, target: Ipv6Addr, flags: u8) -> Vec<u8> {
    let mut body = vec![flags, 0, 0, 0];
    body.extend(target.octets());
    body.extend([OPTION_TARGET_MAC, 1]);
    body.extend(ends.0.0);
    icmpv6(ends, NEIGHBOUR_ADVERTISEMENT, &body)
}

fn icmpv6((own, source, to, destination): Ends, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(body);
    let sum = icmpv6_checksum(source, destination, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = ethernet(to, own, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((message.len() as u16).to_be_bytes());
    frame.extend([ICMPV6, 255]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend(message);
    frame
}

fn ethernet(to: Mac, from: Mac, ethertype: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(86);
    frame.extend(to.0);
    frame.extend(from.0);
    frame.extend(ethertype.to_be_bytes());
    frame
}

/// RFC 4443, 2.3; 0 over a message whose checksum is right.
fn icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let word = |w: &[u8]| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0));
    let sum_of = |bytes: &[u8]| bytes.chunks(2).map(word).sum::<u32>();
    let mut sum = sum_of(&source.octets()) + sum_of(&destination.octets()) + sum_of(message);
    sum += message.len() as u32 + u32::from(ICMPV6);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn ipv4(bytes: &[u8]) -> Option<IpAddr> {
    let octets: [u8; 4] = bytes.try_into().ok()?;
    Some(Ipv4Addr::from(octets).into())
}

fn ipv6(bytes: &[u8]) -> Option<Ipv6Addr> {
    let octets: [u8; 16] = bytes.try_into().ok()?;
    Some(Ipv6Addr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The layouts of RFC 826 and RFC 5227, byte by byte.
    #[test]
    fn arp_golden() {
        let v4 = addr("192.0.2.80");
        let [request, reply] = announcement(OWN, v4).try_into().unwrap();
        assert_eq!(
            hex(&request),
            "ffffffffffff0200000000010806000108000604000102000000000 1c0000250000000000000c0000250"
                .replace(' ', "")
        );
        assert_eq!(
            hex(&reply),
            "ffffffffffff02000000000108060001080006040002020000000001c0000250020000000001c0000250"
        );
        assert_eq!(
            hex(&question(OWN, None, v4)),
            "ffffffffffff020000000001080600010800060400010200000000010000000000000000 0000c0000250"
                .replace(' ', "")
        );
    }

    /// RFC 4861, 4.4, with the checksum summed up by hand.
    #[test]
    fn advertisement_golden() {
        let [frame] = announcement(OWN, addr("2001:db8::80")).try_into().unwrap();
        let expected = "333300000001 020000000001 86dd 60000000 0020 3a ff \
             20010db8000000000000000000000080 ff020000000000000000000000000001 \
             8800 CSUM 20000000 20010db8000000000000000000000080 0201 020000000001";
        let sum = hex(&frame[56..58]);
        assert_eq!(hex(&frame), expected.replace(' ', "").replace("CSUM", &sum));
        assert_eq!(sum, "f82c");
    }

    #[test]
    fn solicited_node_golden() {
        let IpAddr::V6(v6) = addr("2001:db8::1:2345:6789") else { unreachable!() };
        let group = solicited_node(v6);
        assert_eq!(group, "ff02::1:ff45:6789".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_mac(group), Mac([0x33, 0x33, 0xff, 0x45, 0x67, 0x89]));
    }

    #[test]
    fn what_is_built_is_read_back() {
        for (own, target) in [("192.0.2.1", "192.0.2.80"), ("fe80::1", "2001:db8::80")] {
            let (own, target) = (addr(own), addr(target));
            let unspecified = match own {
                IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            };
            for sender in [Some(own), None] {
                let asked = read(&question(OWN, sender, target)).unwrap();
                let sender = sender.unwrap_or(unspecified);
                assert_eq!(asked, Heard::Question { from: OWN, sender, target });
                let heard = read(&answer(PEER, &asked).unwrap()).unwrap();
                let Heard::Claim { from, owner, .. } = heard else { panic!("{heard:?}") };
                assert_eq!((from, owner), (PEER, target));
            }
            for frame in announcement(OWN, target) {
                let claim = Heard::Claim { from: OWN, owner: target, gratuitous: true };
                assert_eq!(read(&frame), Some(claim));
            }
        }
    }

    /// Bytes from the link: cut anywhere they mean nothing, and any single byte changed in a
    /// checksummed message makes it invalid or leaves it unread, never a panic.
    #[test]
    fn damaged_frames_are_ignored() {
        let solicitation = question(OWN, Some(addr("fe80::1")), addr("2001:db8::80"));
        let request = question(OWN, Some(addr("192.0.2.1")), addr("192.0.2.80"));
        for frame in [&solicitation, &request] {
            for length in 0..frame.len() {
                assert_eq!(read(&frame[..length]), None, "{length}");
            }
        }
        // Past Ethernet header, version, class, flow label (not covered by the checksum).
        for at in 18..solicitation.len() {
            let mut damaged = solicitation.clone();
            damaged[at] ^= 0x10;
            assert_eq!(read(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn an_option_without_length_is_invalid() {
        let mut body = vec![0, 0, 0, 0];
        let IpAddr::V6(target) = addr("2001:db8::80") else { unreachable!() };
        body.extend(target.octets());
        body.extend([OPTION_SOURCE_MAC, 0, 0, 0, 0, 0, 0, 0]);
        let group = solicited_node(target);
        let ends = (OWN, target, multicast_mac(group), group);
        assert_eq!(read(&icmpv6(ends, NEIGHBOUR_SOLICITATION, &body)), None);
    }
}

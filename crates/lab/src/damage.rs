//! One flipped bit in a frame, where a checksum will catch it.
//!
//! A bit that flips on a real cable is caught by the Ethernet check and the frame is simply
//! lost. What is worth trying is the bit that flips behind that check, in a switch or a
//! network card: then the IP or transport checksum must catch it. So the bit is chosen among
//! those that one of these covers; a frame without such bits is for the caller to lose.

use std::ops::Range;

use crate::dice::Dice;

const ETHERNET: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// This bit was flipped, counted from the frame's start.
    Flipped(usize),
    /// A checksum was wrong already, from another cable: a second flip could undo the first
    /// one's trace, so it is left as it is.
    WasBad,
    /// No checksum covers any bit of it.
    Uncovered,
}

/// Flips one bit of an Ethernet frame whose checksums are complete, not just promised.
pub(crate) fn flip(frame: &mut [u8], dice: Dice, n: u64) -> Damage {
    let covered = covered(frame);
    let bytes: usize = covered.iter().map(Range::len).sum();
    if bytes == 0 {
        return Damage::Uncovered;
    }
    if !is_good(frame) {
        return Damage::WasBad;
    }
    let bit = dice.below(n, 0, bytes as u64 * 8) as usize;
    let byte = covered.into_iter().flatten().nth(bit / 8).expect("so many bytes are covered");
    frame[byte] ^= 1 << (bit % 8);
    Damage::Flipped(byte * 8 + bit % 8)
}

/// Whether the checksums of a frame are right, those that [`covered`] relies on.
fn is_good(frame: &[u8]) -> bool {
    let (v4, ip) = (frame[12..14] == [0x08, 0x00], &frame[ETHERNET..]);
    if ip[0] >> 4 != if v4 { 4 } else { 6 } {
        return false;
    }
    let (protocol, header, end) = if v4 {
        (ip[9], usize::from(ip[0] & 15) * 4, usize::from(u16::from_be_bytes([ip[2], ip[3]])))
    } else {
        (ip[6], 40, 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])))
    };
    if header < 20 || end < header || end > ip.len() || v4 && sum(&[&ip[..header]]) != 0 {
        return false;
    }
    let transport = &ip[header..end];
    let fragment = v4 && u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    let unchecked = protocol == UDP && transport.get(6..8) == Some(&[0, 0]);
    if fragment || unchecked || ![TCP, UDP, ICMP, ICMPV6].contains(&protocol) {
        return true;
    }
    if protocol == ICMP {
        return sum(&[transport]) == 0;
    }
    let addresses = if v4 { &ip[12..20] } else { &ip[8..40] };
    let len = u32::try_from(transport.len()).expect("an IP length").to_be_bytes();
    sum(&[addresses, &len, &[0, 0, 0, protocol], transport]) == 0
}

/// The internet checksum (RFC 1071) of parts of even length, the last of any.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |w: &[u8]| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| u32::from(*b));
    let mut sum: u32 = words.map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The bytes of a frame that a checksum covers.
fn covered(frame: &[u8]) -> Vec<Range<usize>> {
    let ip = frame.get(ETHERNET..).unwrap_or_default();
    match frame.get(12..14) {
        Some([0x08, 0x00]) if ip.len() >= 20 => {
            let header = usize::from(ip[0] & 15) * 4;
            let end = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            if header < 20 || end < header || end > ip.len() {
                return Vec::new();
            }
            // A fragment's payload is covered once it is put together.
            let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
            let payload = match ip[9] {
                _ if fragment => None,
                TCP | ICMP => Some(header..end),
                UDP => udp(ip, header, end),
                _ => None,
            };
            moved(std::iter::once(0..header).chain(payload))
        }
        Some([0x86, 0xdd]) if ip.len() >= 40 => {
            let end = 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
            if end > ip.len() {
                return Vec::new();
            }
            let payload = match ip[6] {
                TCP | ICMPV6 => Some(40..end),
                UDP => udp(ip, 40, end),
                _ => None,
            };
            // The pseudo header has the addresses, and nothing else of the IPv6 header that
            // a flipped bit could change unnoticed.
            moved(payload.into_iter().flat_map(|payload| [8..40, payload]))
        }
        _ => Vec::new(),
    }
}

/// A datagram's payload, or its ports if it is empty. Not its checksum: one flip there could
/// make it zero, which means "not checked", and so no payload is covered if it is zero.
fn udp(ip: &[u8], start: usize, end: usize) -> Option<Range<usize>> {
    let payload = start + 8;
    if end < payload || ip[start + 6..payload] == [0, 0] {
        return None;
    }
    Some(if end > payload { payload..end } else { start..start + 4 })
}

fn moved(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    ranges.map(|r| r.start + ETHERNET..r.end + ETHERNET).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a receiver with these addresses would take it for good and its own.
    fn is_taken(frame: &[u8], v6: bool, addresses: &[u8]) -> bool {
        is_good(frame) && (!v6 || &frame[ETHERNET + 8..ETHERNET + 40] == addresses)
    }

    fn frame(v6: bool, protocol: u8, checksum_at: usize, payload: &[u8]) -> Vec<u8> {
        let header = if protocol == TCP { 20 } else { 8 };
        let mut transport = vec![0; header];
        transport[..4].copy_from_slice(&[0x30, 0x39, 0, 80]);
        transport.extend_from_slice(payload);
        transport[checksum_at..checksum_at + 2].fill(0);
        if protocol == UDP {
            let len = transport.len() as u16;
            transport[4..6].copy_from_slice(&len.to_be_bytes());
        }
        let len = transport.len() as u16;
        let mut ip = if v6 {
            let mut ip = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            ip[4..6].copy_from_slice(&len.to_be_bytes());
            ip.extend((0..32).map(|i| i * 7));
            ip
        } else {
            let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0];
            ip[2..4].copy_from_slice(&(len + 20).to_be_bytes());
            ip.extend([10, 77, 0, 1, 10, 77, 0, 101]);
            let check = sum(&[&ip]);
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            ip
        };
        let addresses = if v6 { ip[8..40].to_vec() } else { ip[12..20].to_vec() };
        let long = u32::from(len).to_be_bytes();
        let check = match protocol {
            ICMP => sum(&[&transport]),
            _ => sum(&[&addresses, &long, &[0, 0, 0, protocol], &transport]),
        };
        transport[checksum_at..checksum_at + 2].copy_from_slice(&check.to_be_bytes());
        let mut frame = vec![2; 12];
        frame.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
        frame.append(&mut ip);
        frame.append(&mut transport);
        frame
    }

    #[test]
    fn every_flip_is_caught() {
        for (v6, protocol, at) in
            [(false, TCP, 16), (true, TCP, 16), (false, UDP, 6), (true, UDP, 6), (false, ICMP, 2)]
        {
            let good = frame(v6, protocol, at, b"some payload, odd length.");
            let from_to = good[ETHERNET + 8..ETHERNET + 40].to_vec();
            assert!(is_taken(&good, v6, &from_to), "v6 {v6} protocol {protocol}");
            let mut hit = std::collections::BTreeSet::new();
            for n in 0..20_000 {
                let mut bad = good.clone();
                let Damage::Flipped(bit) = flip(&mut bad, Dice(1), n) else { panic!("{n}") };
                hit.insert(bit);
                let flipped = bad.iter().zip(&good).map(|(b, g)| (b ^ g).count_ones()).sum::<u32>();
                assert_eq!(flipped, 1);
                assert!(!is_taken(&bad, v6, &from_to), "v6 {v6} protocol {protocol} throw {n}");
                // Another cable must not make it good again.
                assert!(!matches!(flip(&mut bad, Dice(2), n), Damage::Flipped(_)));
                assert!(!is_taken(&bad, v6, &from_to), "v6 {v6} protocol {protocol} throw {n}");
            }
            let covered: usize = covered(&good).iter().map(Range::len).sum();
            assert_eq!(hit.len(), covered * 8, "some bits are never flipped");
        }
    }

    #[test]
    fn what_no_checksum_covers_is_left_alone() {
        let mut arp = vec![0xff; 12];
        arp.extend([8, 6]);
        arp.extend([0; 28]);
        assert_eq!(flip(&mut arp, Dice(1), 0), Damage::Uncovered);
        let mut unchecked = frame(false, UDP, 6, b"payload");
        unchecked[ETHERNET + 26..ETHERNET + 28].fill(0);
        let mut covered = covered(&unchecked).into_iter();
        assert_eq!((covered.next(), covered.next()), (Some(ETHERNET..ETHERNET + 20), None));
        // Frames that are cut short or lie about their length do not panic.
        let whole = frame(true, TCP, 16, b"payload");
        for len in 0..whole.len() {
            let damage = flip(&mut whole[..len].to_vec(), Dice(1), 0);
            assert_eq!(damage, Damage::Uncovered, "{len} bytes");
        }
    }
}

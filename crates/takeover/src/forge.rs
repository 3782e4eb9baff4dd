//! Segments in a client's name, for the local TCP alone: they are written into a TUN device and
//! never reach a link. Only the reset goes out, in the service's name.
//!
//! A forged segment repeats what the client has said: sequence numbers and bytes from the log, its
//! latest acknowledgement, window and timestamps. Nothing is invented.

use std::net::IpAddr;

use datapath::{Embryo, Flow, FlowKey};
use etherparse::ip_number::TCP;
use etherparse::{
    IpHeaders, Ipv4Header, Ipv6FlowLabel, Ipv6Header, PacketBuilder, TcpHeader, TcpOptionElement,
};

const TTL: u8 = 64;

/// A client's segment that acknowledges `ack` and carries `payload` from `seq` on.
pub(crate) fn segment(
    out: &mut Vec<u8>,
    key: &FlowKey,
    flow: &Flow,
    ack: u32,
    seq: u32,
    payload: &[u8],
    fin: bool,
) {
    let (client, server) = (key.client(), key.server());
    let mut tcp = TcpHeader::new(client.port(), server.port(), seq, flow.window());
    tcp.ack = true;
    tcp.acknowledgment_number = ack;
    tcp.psh = !payload.is_empty();
    tcp.fin = fin;
    if let Some((tsval, tsecr)) = flow.timestamps(now_ms()) {
        let options = [
            TcpOptionElement::Noop,
            TcpOptionElement::Noop,
            TcpOptionElement::Timestamp(tsval, tsecr),
        ];
        tcp.set_options(&options).expect("twelve bytes of options fit");
    }
    emit(out, client.ip(), server.ip(), tcp, payload);
}

/// The client's SYN once more.
pub(crate) fn syn(out: &mut Vec<u8>, embryo: &Embryo) {
    let (client, server) = (embryo.key.client(), embryo.key.server());
    let mut tcp = TcpHeader::new(client.port(), server.port(), embryo.irs(), embryo.window());
    tcp.syn = true;
    let offered = embryo.options();
    (tcp.ece, tcp.cwr) = (offered.ecn, offered.ecn);
    let mut options = vec![TcpOptionElement::MaximumSegmentSize(embryo.mss())];
    if offered.sack {
        options.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
    }
    if let Some(tsval) = embryo.tsval() {
        options.push(TcpOptionElement::Timestamp(tsval, 0));
    }
    if let Some(scale) = embryo.wscale() {
        options.push(TcpOptionElement::WindowScale(scale));
    }
    tcp.set_options(&options).expect("nineteen bytes of options fit");
    emit(out, client.ip(), server.ip(), tcp, &[]);
}

/// The service's reset of a flow, with the sequence number the client expects.
pub(crate) fn reset(out: &mut Vec<u8>, key: &FlowKey, una: u32) {
    let (client, server) = (key.client(), key.server());
    let mut tcp = TcpHeader::new(server.port(), client.port(), una, 0);
    tcp.rst = true;
    emit(out, server.ip(), client.ip(), tcp, &[]);
}

fn emit(out: &mut Vec<u8>, from: IpAddr, to: IpAddr, tcp: TcpHeader, payload: &[u8]) {
    out.clear();
    let ip = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = Ipv4Header::new(0, TTL, TCP, from.octets(), to.octets())
                .expect("an empty payload fits");
            IpHeaders::Ipv4(header, Default::default())
        }
        (from, to) => {
            let octets = |address| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            let header = Ipv6Header {
                traffic_class: 0,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: 0,
                next_header: TCP,
                hop_limit: TTL,
                source: octets(from),
                destination: octets(to),
            };
            IpHeaders::Ipv6(header, Default::default())
        }
    };
    PacketBuilder::ip(ip)
        .tcp_header(tcp)
        .write(out, payload)
        .expect("a segment of at most 32 KiB fits");
}

/// The data path's clock, in its unit.
pub(crate) fn now_ms() -> u32 {
    (hostnet::now_boottime_ns() / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    use super::*;

    fn emitted(from: &str, to: &str) -> Vec<u8> {
        let mut tcp = TcpHeader::new(40_000, 80, 0x0102_0304, 512);
        tcp.ack = true;
        tcp.acknowledgment_number = 0x0506_0708;
        let mut out = Vec::new();
        emit(&mut out, from.parse().unwrap(), to.parse().unwrap(), tcp, b"GET /");
        out
    }

    /// The local TCP believes a forged segment only if lengths and checksums are right.
    #[test]
    fn both_families_are_emitted_whole_and_with_good_checksums() {
        for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let packet = emitted(from, to);
            let sliced = SlicedPacket::from_ip(&packet).unwrap();
            let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else { panic!("a TCP segment") };
            assert_eq!(tcp.payload(), b"GET /");
            assert_eq!(tcp.sequence_number(), 0x0102_0304);
            let sum = match sliced.net.as_ref().unwrap() {
                NetSlice::Ipv4(ip) => {
                    let ip = ip.header();
                    tcp.calc_checksum_ipv4(ip.source(), ip.destination())
                }
                NetSlice::Ipv6(ip) => {
                    let ip = ip.header();
                    tcp.calc_checksum_ipv6(ip.source(), ip.destination())
                }
                NetSlice::Arp(_) => panic!("an IP packet"),
            };
            assert_eq!(sum.unwrap(), tcp.checksum());
        }
    }
}

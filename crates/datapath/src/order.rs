//! Orders to a flow's gate, as the data path reads them: see `bpf/order.h`.

use std::net::IpAddr;

use etherparse::{IpNumber, Ipv4Header, Ipv6Header, TcpHeader};

use crate::FlowKey;
use crate::key::mapped;
use crate::skel::types;

/// What may be asked of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Output in front of `edge` may leave: a sequence number of the outstream, modulo 2^32. A FIN
    /// occupies the number behind the last byte, so the edge that lets it out is one further.
    Release { edge: u32 },
    /// Everything may leave from now on, and nothing more is captured.
    Open,
    /// Output in front of `edge` may leave even if it is not written yet, whatever it will be.
    Ahead { edge: u32 },
}

impl Order {
    /// The packet to be written to the adoption device, where the data path carries it out, or
    /// sends it on to the peer, by this node's role for the flow.
    pub fn packet(self, flow: &FlowKey) -> Vec<u8> {
        let (edge, code) = match self {
            Order::Release { edge } => (edge, types::order::ORDER_RELEASE),
            Order::Open => (0, types::order::ORDER_OPEN),
            Order::Ahead { edge } => (edge, types::order::ORDER_AHEAD),
        };
        let (client, server) = (flow.client(), flow.server());
        let mut segment = TcpHeader::new(client.port(), server.port(), edge, 0);
        segment.acknowledgment_number = code.0;
        segment.set_options_raw(&[0; OPTIONS]).expect("whole words of options");
        let segment = segment.to_bytes();
        let mut packet = match (client.ip(), server.ip()) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                let (client, server) = (client.octets(), server.octets());
                let mut ip = Ipv4Header::new(segment.len() as u16, HOPS, PROTOCOL, client, server)
                    .expect("it is short");
                ip.header_checksum = ip.calc_header_checksum();
                ip.to_bytes().to_vec()
            }
            (client, server) => Ipv6Header {
                payload_length: segment.len() as u16,
                next_header: PROTOCOL,
                hop_limit: HOPS,
                source: mapped(client),
                destination: mapped(server),
                ..Default::default()
            }
            .to_bytes()
            .to_vec(),
        };
        packet.extend_from_slice(&segment);
        packet
    }
}

/// `IPPROTO_ORDER` and `TCP_ORDER_OPTIONS` (bytes) of the C side.
const PROTOCOL: IpNumber = IpNumber(253);
const OPTIONS: usize = 12;
const HOPS: u8 = 64;

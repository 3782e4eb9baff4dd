//! Orders to the kernel: packets written to a device of our own, see `bpf/orders.h`.

use std::net::IpAddr;

use datapath::FlowKey;
use hostnet::{Tun, TunError};
use libbpf_rs::{MapCore, MapHandle};

use crate::skel::types;
use crate::{bytes_of, raw_key};

/// TCP header and room for the timestamp option, in bytes.
const TCP_LENGTH: usize = 20 + 12;
const IP4_HEADER: usize = 20;
const IP6_HEADER: usize = 40;
const NO_OPERATION: u8 = 1;

/// The daemon's side of the gate. One order is one system call of a few microseconds; it runs the
/// socket's transmission before it returns.
#[derive(Debug)]
pub struct Orders {
    device: Tun,
    captured: MapHandle,
}

impl Orders {
    pub(crate) fn new(device: Tun, captured: MapHandle) -> Self {
        Self { device, captured }
    }

    /// Lets the flow's output in front of `edge` leave, a sequence number of the outstream. An
    /// edge that lies behind the released one changes nothing, and a flow that is gone is counted
    /// ([`crate::Counter::OrdersStray`]): connections end at any time.
    pub fn release(&self, flow: &FlowKey, edge: u32) -> Result<(), TunError> {
        self.write(flow, edge, types::order::ORDER_RELEASE)
    }

    /// Opens the flow's gate for good: everything leaves, nothing more is captured.
    pub fn open(&self, flow: &FlowKey) -> Result<(), TunError> {
        self.write(flow, 0, types::order::ORDER_OPEN)?;
        // From here on its writes take the ordinary way. A socket that has closed is not there.
        let _ = self.captured.delete(bytes_of(&raw_key(flow)));
        Ok(())
    }

    fn write(&self, flow: &FlowKey, edge: u32, order: types::order) -> Result<(), TunError> {
        let mut packet = [0; IP6_HEADER + TCP_LENGTH];
        let length = forge(flow, edge, order.0, &mut packet);
        self.device.write_gso(&packet[..length], u16::MAX)
    }
}

/// An acknowledgement in the client's name; the kernel side fills in what it must say. Returns its
/// length in bytes.
fn forge(
    flow: &FlowKey,
    edge: u32,
    code: u32,
    packet: &mut [u8; IP6_HEADER + TCP_LENGTH],
) -> usize {
    let (client, server) = (flow.client(), flow.server());
    let at = match (client.ip(), server.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let total = (IP4_HEADER + TCP_LENGTH) as u16;
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            packet[8] = 64;
            packet[9] = libc::IPPROTO_TCP as u8;
            packet[12..16].copy_from_slice(&from.octets());
            packet[16..20].copy_from_slice(&to.octets());
            let sum = header_checksum(&packet[..IP4_HEADER]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            IP4_HEADER
        }
        (from, to) => {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&(TCP_LENGTH as u16).to_be_bytes());
            packet[6] = libc::IPPROTO_TCP as u8;
            packet[7] = 64;
            packet[8..24].copy_from_slice(&crate::mapped(from));
            packet[24..40].copy_from_slice(&crate::mapped(to));
            IP6_HEADER
        }
    };
    let tcp = &mut packet[at..at + TCP_LENGTH];
    tcp[..2].copy_from_slice(&client.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&server.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&edge.to_be_bytes());
    tcp[8..12].copy_from_slice(&code.to_be_bytes());
    tcp[12] = ((TCP_LENGTH / 4) << 4) as u8;
    tcp[20..].fill(NO_OPERATION);
    at + TCP_LENGTH
}

/// RFC 791 §3.1.
fn header_checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let mut sum = words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

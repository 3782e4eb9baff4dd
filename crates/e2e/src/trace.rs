//! What the capture of the service link says about a node.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use lab::{Link, read_pcap};

use crate::witness::Wall;

/// A TCP segment of a service.
#[derive(Clone, Debug)]
#[allow(dead_code)] // read by people, in a failed test's message
pub(crate) struct Segment {
    /// Milliseconds after the instant that was asked about.
    after_ms: f64,
    to_port: u16,
    seq: u32,
    flags: String,
    len: u32,
}

/// The segments from `service` that came from the interface `mac` from `since_ns` on, and before
/// `until_ns`.
pub(crate) fn segments_from(
    lab_dir: &Path,
    mac: [u8; 6],
    service: SocketAddr,
    since_ns: u64,
    until_ns: Option<u64>,
) -> anyhow::Result<Vec<Segment>> {
    let clocks = Wall::read();
    let wall = |ns| UNIX_EPOCH + Duration::from_nanos(clocks.ns(ns));
    let (since, until) = (wall(since_ns), until_ns.map(wall));
    let mut found = Vec::new();
    for frame in read_pcap(&lab_dir.join(format!("{}.pcap", Link::Service.name())))? {
        // The two clocks are read one after the other: a frame of this instant may look later.
        let Ok(after) = frame.at.duration_since(since + Duration::from_millis(1)) else { continue };
        if frame.bytes.get(6..12) != Some(&mac) || until.is_some_and(|until| frame.at >= until) {
            continue;
        }
        // Only the beginning was kept, so lengths do not fit: parse laxly, skip other protocols.
        let Ok(packet) = LaxSlicedPacket::from_ethernet(&frame.bytes) else { continue };
        let from: IpAddr = match &packet.net {
            Some(LaxNetSlice::Ipv4(ip)) => ip.header().source_addr().into(),
            Some(LaxNetSlice::Ipv6(ip)) => ip.header().source_addr().into(),
            _ => continue,
        };
        let Some(TransportSlice::Tcp(tcp)) = &packet.transport else { continue };
        if from != service.ip() || tcp.source_port() != service.port() {
            continue;
        }
        let flags = [
            (tcp.syn(), "SYN"),
            (tcp.fin(), "FIN"),
            (tcp.rst(), "RST"),
            (tcp.ack(), "ACK"),
            (tcp.psh(), "PSH"),
        ];
        found.push(Segment {
            after_ms: after.as_secs_f64() * 1e3,
            to_port: tcp.destination_port(),
            seq: tcp.sequence_number(),
            flags: flags
                .iter()
                .filter(|(set, _)| *set)
                .map(|(_, n)| *n)
                .collect::<Vec<_>>()
                .join("+"),
            len: frame.len,
        });
    }
    Ok(found)
}

//! One flow as its client's cable saw it.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use demo::clock::now_ns;
use etherparse::{LaxSlicedPacket, TransportSlice};
use lab::{Frame, read_pcap};

/// A segment from the service to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// When it was at the client's cable, on [`now_ns`]'s clock.
    pub at_ns: u64,
    /// Its first byte, counted from the flow's first outstream byte.
    pub offset: u32,
    /// Bytes of payload; several segments that offloading has put together count as one.
    pub len: u32,
}

impl Segment {
    /// The byte behind its last one.
    pub fn end(&self) -> u32 {
        self.offset + self.len
    }
}

/// The segments to `client_port` in a capture, in order of time. For flows of less than 4 GiB.
///
/// # Errors
/// The capture cannot be read, or has not seen the flow begin.
pub fn outstream(capture: &Path, client_port: u16) -> anyhow::Result<Vec<Segment>> {
    // Captures are stamped with the wall clock, everything else with the other one.
    let ahead_ns = since_1970(SystemTime::now()).saturating_sub(now_ns());
    segments(&read_pcap(capture)?, client_port, ahead_ns)
}

fn segments(frames: &[Frame], client_port: u16, ahead_ns: u64) -> anyhow::Result<Vec<Segment>> {
    let (mut segments, mut first) = (Vec::new(), None);
    for frame in frames {
        // The capture has the beginning of each frame only, so lengths do not fit.
        let Ok(packet) = LaxSlicedPacket::from_ethernet(&frame.bytes) else { continue };
        let Some(TransportSlice::Tcp(tcp)) = &packet.transport else { continue };
        if tcp.destination_port() != client_port {
            continue;
        }
        if tcp.syn() {
            first = Some(tcp.sequence_number().wrapping_add(1));
            continue;
        }
        let first = first.context("the capture has not seen the flow begin")?;
        let header = tcp.slice().as_ptr().addr() - frame.bytes.as_ptr().addr();
        let header = header + usize::from(tcp.data_offset()) * 4;
        segments.push(Segment {
            at_ns: since_1970(frame.at).saturating_sub(ahead_ns),
            offset: tcp.sequence_number().wrapping_sub(first),
            len: frame.len.saturating_sub(u32::try_from(header)?),
        });
    }
    Ok(segments)
}

fn since_1970(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use etherparse::PacketBuilder;

    use super::*;

    fn frame(at_ns: u64, to_port: u16, seq: u32, syn: bool, len: usize) -> Frame {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 77, 0, 100], [10, 77, 0, 101], 64)
            .tcp(80, to_port, seq, 1000);
        let builder = if syn { builder.syn().ack(1) } else { builder.ack(1) };
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &vec![0; len]).unwrap();
        let len = u32::try_from(bytes.len()).unwrap();
        bytes.truncate(128);
        Frame { at: UNIX_EPOCH + Duration::from_nanos(at_ns), len, bytes }
    }

    #[test]
    fn segments_are_told_from_the_beginnings_of_frames() {
        let frames = [
            frame(1_010, 5000, u32::MAX - 9, true, 0),
            frame(1_020, 5000, u32::MAX - 8, false, 1400),
            frame(1_030, 6000, 77, false, 1),
            frame(1_040, 5000, 1391, false, 0),
        ];
        let segment = |at_ns, offset, len| Segment { at_ns, offset, len };
        let found = segments(&frames, 5000, 1_000).unwrap();
        assert_eq!(found, [segment(20, 0, 1400), segment(40, 1400, 0)]);
        assert!(segments(&frames, 6000, 0).is_err(), "its beginning is missing");
    }
}

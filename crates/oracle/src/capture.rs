//! Capture files, and the segments in them.
//!
//! Files are read twice: once for the headers of all segments, and then, flow by flow and in the
//! order of time, for their payloads. So memory holds the headers of everything, but the bytes of
//! one flow at a time.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pcap_file::TsResolution;
use pcap_file::pcap::PcapReader;
use serde::{Deserialize, Serialize};

use crate::error::JudgeError;
use crate::story::{Addresses, Link, Story};
use crate::verdict::Gap;
use crate::wire::{self, Flags, Options, Read};

/// Bytes of a pcap file in front of the first frame, and in front of each.
const FILE_HEADER: u64 = 24;
const FRAME_HEADER: u64 = 16;

/// A capture of one port of the switch: what its host sends, before any cut of the cable, and
/// what it is sent, after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// The pcap file.
    pub path: PathBuf,
    /// The host at the cable's end.
    pub host: String,
    /// The cable's link.
    pub link: Link,
    /// Frames that could not be captured.
    pub missed: u64,
}

impl Capture {
    /// A complete capture whose file is named after the port: `a.svc.pcap`, `a.svc.2.pcap`.
    /// `None` if it is not.
    pub fn named(path: &Path) -> Option<Capture> {
        let name = path.file_name()?.to_str()?;
        let mut words = name.split('.');
        let (host, link) = (words.next()?, words.next()?);
        let link = Link::ALL.into_iter().find(|l| l.name() == link)?;
        Some(Capture { path: path.to_owned(), host: host.to_owned(), link, missed: 0 })
    }
}

/// A captured segment. `host` and `link` name the port, `sender` the host that put the frame on
/// the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) at_ns: u64,
    pub(crate) file: u16,
    /// From 1.
    pub(crate) frame: u32,
    payload_offset: u64,
    pub(crate) payload_len: u32,
    pub(crate) payload_kept: u32,
    pub(crate) host: u8,
    pub(crate) link: Link,
    /// Whether the port's host sent it.
    pub(crate) from_host: bool,
    pub(crate) sender: Option<u8>,
    /// Whose Ethernet address it goes to.
    pub(crate) target: Option<u8>,
    /// From client to service.
    pub(crate) inward: bool,
    pub(crate) ecn: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) flags: Flags,
    pub(crate) options: Options,
    /// As in [`wire::Parsed`].
    pub(crate) promised: Option<u16>,
}

/// All segments, by the addresses of their connection, in the order of time.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) by_addresses: HashMap<Addresses, Vec<Segment>>,
    pub(crate) files: Files,
    pub(crate) frames: u64,
    /// Of these, those that no receiver takes.
    pub(crate) damaged: u64,
    /// The first frame's time.
    pub(crate) begin_ns: u64,
    pub(crate) gaps: Vec<Gap>,
}

/// The open files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    open: Vec<(String, File)>,
}

impl Files {
    pub(crate) fn name(&self, file: u16) -> &str {
        &self.open[usize::from(file)].0
    }

    /// The captured part of a segment's payload.
    pub(crate) fn payload<'b>(
        &self,
        segment: &Segment,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8], JudgeError> {
        let (name, file) = &self.open[usize::from(segment.file)];
        buffer.resize(segment.payload_kept as usize, 0);
        file.read_exact_at(buffer, segment.payload_offset)
            .map_err(|source| JudgeError::Read { file: name.clone(), source })?;
        Ok(buffer)
    }
}

impl Index {
    /// Reads the headers of all captures.
    pub(crate) fn read(captures: &[Capture], story: &Story) -> Result<Index, JudgeError> {
        let mut index = Index { begin_ns: u64::MAX, ..Index::default() };
        for capture in captures {
            index.add(capture, story)?;
        }
        for segments in index.by_addresses.values_mut() {
            segments.sort_by_key(|s| (s.at_ns, s.file, s.frame));
        }
        index.begin_ns = index.begin_ns.min(u64::MAX - 1);
        Ok(index)
    }

    fn add(&mut self, capture: &Capture, story: &Story) -> Result<(), JudgeError> {
        let name = capture
            .path
            .file_name()
            .map_or_else(|| capture.path.display().to_string(), |n| n.to_string_lossy().into());
        let read = |source| JudgeError::Read { file: name.clone(), source };
        let host = story
            .host_named(&capture.host)
            .ok_or_else(|| JudgeError::NoHost { file: name.clone(), host: capture.host.clone() })?;
        let file = u16::try_from(self.files.open.len()).map_err(|_| JudgeError::TooMany)?;
        let frames = File::open(&capture.path).map_err(read)?;
        self.files.open.push((name.clone(), File::open(&capture.path).map_err(read)?));
        if capture.missed > 0 {
            self.gaps.push(Gap::Missed { file: name.clone(), frames: capture.missed });
        }
        let odd = |why: String| JudgeError::NotPcap { file: name.clone(), why };
        let mut reader = PcapReader::new(frames).map_err(|e| odd(e.to_string()))?;
        let fraction_ns = match reader.header().ts_resolution {
            TsResolution::NanoSecond => 1,
            TsResolution::MicroSecond => 1000,
        };
        let (mut offset, mut number, mut sent_ns) = (FILE_HEADER, 0u32, 0u64);
        while let Some(packet) = reader.next_raw_packet() {
            number += 1;
            let packet = match packet {
                Ok(packet) => packet,
                // The last frame may still be on its way to the file when the writer dies.
                Err(e) => {
                    self.gap(&name, number, e.to_string());
                    break;
                }
            };
            let at_ns =
                u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * fraction_ns;
            let record_len = FRAME_HEADER + packet.data.len() as u64;
            let payload_base = offset + FRAME_HEADER;
            offset += record_len;
            if story.end_ns.is_some_and(|end| at_ns > end) {
                continue;
            }
            self.begin_ns = self.begin_ns.min(at_ns);
            self.frames += 1;
            match wire::read(&packet.data, packet.orig_len, |ip, port| story.is_service(ip, port)) {
                Read::Other => {}
                Read::Damaged => self.damaged += 1,
                Read::Odd(why) => self.gap(&name, number, why.to_owned()),
                Read::Segment(parsed) => {
                    let inward = story.is_service(parsed.target.ip(), parsed.target.port());
                    let (client, service) = if inward {
                        (parsed.source, parsed.target)
                    } else {
                        (parsed.target, parsed.source)
                    };
                    let sender = story.host_of(parsed.source_mac);
                    let from_host = sender == Some(host);
                    // A port takes its host's frames in one by one, but stamps some of them when
                    // they get in line and others when it is their turn: the later of both is
                    // what the rest of the network can have known of them.
                    // (Where addresses do not tell who sent it, see `Emitters::way`.)
                    let sent = from_host && (inward || capture.link == Link::Service);
                    let at_ns = if sent { at_ns.max(sent_ns) } else { at_ns };
                    sent_ns = if sent { at_ns } else { sent_ns };
                    let segment = Segment {
                        at_ns,
                        file,
                        frame: number,
                        payload_offset: payload_base + u64::from(parsed.payload_at),
                        payload_len: parsed.payload_len,
                        payload_kept: parsed.payload_kept,
                        host: host as u8,
                        link: capture.link,
                        from_host,
                        sender: sender.map(|h| h as u8),
                        target: story.host_of(parsed.target_mac).map(|h| h as u8),
                        inward,
                        ecn: parsed.ecn,
                        seq: parsed.seq,
                        ack: parsed.ack,
                        window: parsed.window,
                        flags: parsed.flags,
                        options: parsed.options,
                        promised: parsed.promised,
                    };
                    let addresses = Addresses { client, service };
                    self.by_addresses.entry(addresses).or_default().push(segment);
                }
            }
        }
        Ok(())
    }

    fn gap(&mut self, file: &str, frame: u32, why: String) {
        self.gaps.push(Gap::Unreadable { file: file.to_owned(), frame: frame.into(), why });
    }
}

//! Captures made by hand: a client, a pair of nodes, and what their ports would have seen.
//!
//! Frames stay in parts until they are written, so that a test can take a good story and change
//! one thing.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use oracle::{Beginning, Capture, Class, Dead, Handover, Host, Interval, Link, Story, Verdict};
use pcap_file::pcap::{PcapHeader, PcapWriter, RawPcapPacket};
use pcap_file::{DataLink, Endianness, TsResolution};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const ECE: u8 = 64;

const EPOCH_NS: u64 = 1_700_000_000_000_000_000;
pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;

pub const HOSTS: [&str; 3] = ["client", "a", "b"];

pub fn mac(host: &str, link: Link) -> [u8; 6] {
    let number = HOSTS.iter().position(|h| *h == host).unwrap() as u8;
    [2, if link == Link::Service { 77 } else { 78 }, 0, 0, 0, number]
}

/// The checksums of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sum {
    /// That of TCP is still to be completed.
    #[default]
    Promised,
    Complete,
    /// One bit of the frame flipped after they were completed, counted from the IP header on.
    Flipped(usize),
}

/// A TCP segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seg {
    pub inward: bool,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    pub sacks: Vec<(u32, u32)>,
    pub stamps: Option<(u32, u32)>,
    pub ecn: u8,
    pub sum: Sum,
    pub payload: Vec<u8>,
}

/// A segment at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub at_ns: u64,
    pub port: (&'static str, Link),
    pub source: [u8; 6],
    pub target: [u8; 6],
    pub seg: Seg,
}

impl Frame {
    pub fn is_from_host(&self) -> bool {
        self.source == mac(self.port.0, self.port.1)
    }

    pub fn is(&self, host: &str, link: Link) -> bool {
        self.port == (host, link)
    }
}

/// What becomes of a segment on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// Arrives so many ns later, perhaps after its successors.
    Delayed(u64),
    Twice,
    /// At the first cable.
    Lost,
    /// Between the nodes, after the first of them has it.
    LostBetween,
}

/// One flow through a pair, with a clock.
pub struct Scene {
    pub frames: Vec<Frame>,
    pub story: Story,
    pub now_ns: u64,
    pub client: SocketAddr,
    pub service: SocketAddr,
    pub irs: u32,
    pub iss: u32,
    /// Options that both sides have.
    pub stamps: bool,
    pub scale: Option<u8>,
    pub sack: bool,
    pub primary: &'static str,
    pub backup: Option<&'static str>,
    /// Stream positions: what was sent, and what the other side has without a hole.
    pub in_sent: u32,
    pub in_got: u32,
    pub out_sent: u32,
    pub out_got: u32,
    pub client_window: u16,
    pub server_window: u16,
    pub clock_ahead_ms: u32,
    /// The newest TSval that the primary has got.
    pub echo: u32,
}

impl Scene {
    pub fn new() -> Scene {
        let host = |name: &str| Host {
            name: name.to_owned(),
            node: name != "client",
            macs: [Link::Service, Link::Cluster]
                .into_iter()
                .filter(|&l| name != "client" || l == Link::Service)
                .map(|l| (l, mac(name, l)))
                .collect(),
        };
        let service: SocketAddr = "10.77.0.100:80".parse().unwrap();
        let story =
            Story { hosts: HOSTS.map(host).to_vec(), services: vec![service], ..Story::default() };
        Scene {
            frames: Vec::new(),
            story,
            now_ns: EPOCH_NS,
            client: "10.77.0.101:40000".parse().unwrap(),
            service,
            irs: 1000,
            iss: 500_000,
            stamps: true,
            scale: Some(7),
            sack: true,
            primary: "a",
            backup: Some("b"),
            in_sent: 0,
            in_got: 0,
            out_sent: 0,
            out_got: 0,
            client_window: 500,
            server_window: 500,
            clock_ahead_ms: 0,
            echo: 0,
        }
    }

    pub fn v6(mut self) -> Scene {
        self.client = "[fd77::101]:40000".parse().unwrap();
        self.service = "[fd77::100]:80".parse().unwrap();
        self.story.services = vec![self.service];
        self
    }

    pub fn isns(mut self, irs: u32, iss: u32) -> Scene {
        (self.irs, self.iss) = (irs, iss);
        self
    }

    fn passes(&mut self, ns: u64) -> u64 {
        self.now_ns += ns;
        self.now_ns
    }

    pub fn client_clock(&self) -> u32 {
        7_000_000 + ((self.now_ns - EPOCH_NS) / MS) as u32
    }

    pub fn server_clock(&self) -> u32 {
        4_294_967_000u32
            .wrapping_add(((self.now_ns - EPOCH_NS) / MS) as u32)
            .wrapping_add(self.clock_ahead_ms)
    }

    fn push(&mut self, at_ns: u64, port: (&'static str, Link), from: &str, to: &str, seg: &Seg) {
        let link = port.1;
        let (source, target) = (mac(from, link), mac(to, link));
        self.frames.push(Frame { at_ns, port, source, target, seg: seg.clone() });
    }

    /// A client's segment on its way to the primary.
    pub fn up(&mut self, seg: Seg, fate: Fate) {
        use Link::{Cluster, Service};
        let t = self.passes(20 * US);
        let first = self.backup.unwrap_or(self.primary);
        self.push(t, ("client", Service), "client", first, &seg);
        if fate == Fate::Lost {
            return;
        }
        let late = if let Fate::Delayed(ns) = fate { ns } else { 0 };
        for copy in 0..if fate == Fate::Twice { 2 } else { 1 } {
            let t = t + late + copy * US;
            self.push(t + 2 * US, (first, Service), "client", first, &seg);
            if let Some(backup) = self.backup {
                self.push(t + 4 * US, (backup, Cluster), backup, self.primary, &seg);
                if fate != Fate::LostBetween {
                    self.push(t + 6 * US, (self.primary, Cluster), backup, self.primary, &seg);
                }
            }
        }
        self.passes(late + 10 * US);
        if fate != Fate::LostBetween {
            let start = seg.seq.wrapping_sub(self.irs);
            let end = start
                + seg.payload.len() as u32
                + u32::from(seg.flags & FIN != 0)
                + u32::from(seg.flags & SYN != 0);
            if start <= self.in_got {
                self.in_got = self.in_got.max(end);
                self.echo = seg.stamps.map_or(0, |s| s.0);
            }
        }
    }

    /// A segment of the primary's, straight to the client.
    pub fn down(&mut self, seg: Seg, fate: Fate) {
        let t = self.passes(20 * US);
        self.push(t, (self.primary, Link::Service), self.primary, "client", &seg);
        self.arrives(t, self.primary, &seg, fate);
    }

    /// A control segment of the primary's, through the backup if there is one.
    pub fn bounce(&mut self, seg: Seg, fate: Fate) {
        if self.backup.is_none() {
            return self.down(seg, fate);
        }
        self.confide(&seg, fate);
        if fate != Fate::LostBetween {
            self.pass_on(&seg, fate);
        }
    }

    /// A segment goes from the primary to its backup.
    pub fn confide(&mut self, seg: &Seg, fate: Fate) {
        let backup = self.backup.unwrap();
        let t = self.passes(20 * US);
        self.push(t, (self.primary, Link::Cluster), self.primary, backup, seg);
        if fate != Fate::LostBetween {
            self.push(t + 2 * US, (backup, Link::Cluster), self.primary, backup, seg);
        }
    }

    /// And on to the client.
    pub fn pass_on(&mut self, seg: &Seg, fate: Fate) {
        let backup = self.backup.unwrap();
        let t = self.passes(4 * US);
        self.push(t, (backup, Link::Service), backup, "client", seg);
        self.passes(2 * US);
        self.arrives(t, backup, seg, fate);
    }

    fn arrives(&mut self, t: u64, from: &str, seg: &Seg, fate: Fate) {
        if matches!(fate, Fate::Lost | Fate::LostBetween) {
            return;
        }
        let late = if let Fate::Delayed(ns) = fate { ns } else { 0 };
        for copy in 0..if fate == Fate::Twice { 2 } else { 1 } {
            self.push(
                t + 3 * US + late + copy * US,
                ("client", Link::Service),
                from,
                "client",
                seg,
            );
        }
        if late == 0 {
            self.passes(10 * US);
        }
        let start = seg.seq.wrapping_sub(self.iss);
        let end = start
            + seg.payload.len() as u32
            + u32::from(seg.flags & FIN != 0)
            + u32::from(seg.flags & SYN != 0);
        if start <= self.out_got {
            self.out_got = self.out_got.max(end);
        }
    }

    /// The client's next segment with this payload.
    pub fn client_says(&mut self, flags: u8, payload: &[u8]) -> Seg {
        let seg = Seg {
            inward: true,
            seq: self.irs.wrapping_add(self.in_sent),
            ack: self.iss.wrapping_add(self.out_got),
            flags: flags | ACK,
            window: self.client_window,
            stamps: self.stamps.then(|| (self.client_clock(), self.server_clock())),
            payload: payload.to_vec(),
            ..Seg::default()
        };
        self.in_sent += payload.len() as u32 + u32::from(flags & FIN != 0);
        seg
    }

    /// The primary's next segment with this payload.
    pub fn server_says(&mut self, flags: u8, payload: &[u8]) -> Seg {
        let seg = Seg {
            seq: self.iss.wrapping_add(self.out_sent),
            ack: self.irs.wrapping_add(self.in_got),
            flags: flags | ACK,
            window: self.server_window,
            stamps: self.stamps.then(|| (self.server_clock(), self.echo)),
            payload: payload.to_vec(),
            ..Seg::default()
        };
        self.out_sent += payload.len() as u32 + u32::from(flags & FIN != 0);
        seg
    }

    pub fn handshake(&mut self) -> &mut Self {
        let mut syn = self.client_says(SYN, b"");
        (syn.flags, syn.ack, syn.window) = (SYN, 0, 64240);
        (syn.mss, syn.scale, syn.sack_permitted) = (Some(1460), self.scale, self.sack);
        syn.stamps = self.stamps.then(|| (self.client_clock(), 0));
        self.in_sent = 1;
        self.up(syn, Fate::Arrives);
        let mut answer = self.server_says(SYN, b"");
        answer.window = 64000;
        (answer.mss, answer.scale, answer.sack_permitted) = (Some(1460), self.scale, self.sack);
        self.out_sent = 1;
        self.bounce(answer, Fate::Arrives);
        self.client_acks();
        self
    }

    /// A request, and the reply that the primary's server has for it, which nobody has sent yet.
    pub fn with_reply() -> (Scene, Seg) {
        let mut scene = Scene::new();
        scene.handshake().request(b"GET /");
        let reply = scene.server_says(PSH, b"order 1");
        (scene, reply)
    }

    pub fn client_acks(&mut self) -> &mut Self {
        let ack = self.client_says(0, b"");
        self.up(ack, Fate::Arrives);
        self
    }

    pub fn server_acks(&mut self) -> &mut Self {
        let ack = self.server_says(0, b"");
        self.down(ack, Fate::Arrives);
        self
    }

    pub fn request(&mut self, text: &[u8]) -> &mut Self {
        let seg = self.client_says(PSH, text);
        self.up(seg, Fate::Arrives);
        self.server_acks()
    }

    pub fn reply(&mut self, text: &[u8]) -> &mut Self {
        let seg = self.server_says(PSH, text);
        self.down(seg, Fate::Arrives);
        self.client_acks()
    }

    pub fn server_ends(&mut self) -> &mut Self {
        let fin = self.server_says(FIN, b"");
        self.bounce(fin, Fate::Arrives);
        self.client_acks()
    }

    pub fn client_ends(&mut self) -> &mut Self {
        let fin = self.client_says(FIN, b"");
        self.up(fin, Fate::Arrives);
        self.server_acks()
    }

    pub fn waits(&mut self, ns: u64) -> &mut Self {
        self.passes(ns);
        self
    }

    /// The primary's host dies, and the backup takes over: it sends on where the client is.
    pub fn takeover(&mut self) -> &mut Self {
        self.dies().promoted()
    }

    pub fn dies(&mut self) -> &mut Self {
        self.passes(US);
        let time = Interval { from_ns: self.now_ns, to_ns: None };
        self.story.dead.push(Dead { host: self.primary.to_owned(), time });
        self.passes(100 * MS);
        self
    }

    /// A node that was dead is back and serves, without anybody else.
    pub fn begins(&mut self, host: &'static str) -> &mut Self {
        let now = Some(self.passes(100 * MS));
        self.story.dead.iter_mut().filter(|d| d.host == host).for_each(|d| d.time.to_ns = now);
        let at_ns = self.passes(500 * MS);
        self.story.beginnings.push(Beginning { host: host.to_owned(), at_ns });
        self.primary = host;
        self.passes(MS);
        self
    }

    /// Forgets the connection: the next one, between the same ports, has other numbers.
    pub fn next_connection(&mut self) -> &mut Self {
        (self.irs, self.iss) = (self.irs + 100_000, self.iss + 5_000_000);
        (self.in_sent, self.in_got, self.out_sent, self.out_got) = (0, 0, 0, 0);
        self
    }

    pub fn promoted(&mut self) -> &mut Self {
        let backup = self.backup.take().unwrap();
        let (from, to) = (self.primary.to_owned(), backup.to_owned());
        self.story.handovers.push(Handover { from, to, at_ns: self.now_ns });
        self.story.simplex.push(Interval { from_ns: self.now_ns, to_ns: None });
        self.primary = backup;
        self.out_sent = self.out_got;
        self.clock_ahead_ms += 1000;
        self.passes(MS);
        self
    }

    /// The first frame that fits.
    pub fn frame(&mut self, fits: impl Fn(&Frame) -> bool) -> &mut Frame {
        self.frames.iter_mut().find(|f| fits(f)).expect("the story has such a frame")
    }

    /// Changes a segment wherever it was seen.
    pub fn change(&mut self, fits: impl Fn(&Frame) -> bool, change: impl Fn(&mut Seg)) {
        let seg = self.frame(fits).seg.clone();
        let everywhere = self.frames.iter_mut().filter(|f| f.seg == seg);
        everywhere.for_each(|f| change(&mut f.seg));
    }

    pub fn files(&self, dir: &std::path::Path) -> Vec<Capture> {
        let mut ports: BTreeMap<_, Vec<&Frame>> = BTreeMap::new();
        for host in &self.story.hosts {
            for (link, _) in &host.macs {
                let host = HOSTS.iter().find(|h| **h == host.name).unwrap();
                ports.insert((*host, *link), Vec::new());
            }
        }
        for frame in &self.frames {
            ports.get_mut(&frame.port).unwrap().push(frame);
        }
        let write = |((host, link), mut frames): ((&str, Link), Vec<&Frame>)| {
            frames.sort_by_key(|f| f.at_ns);
            let path = dir.join(format!("{host}.{}.pcap", link.name()));
            let header = PcapHeader {
                ts_resolution: TsResolution::NanoSecond,
                endianness: Endianness::native(),
                datalink: DataLink::ETHERNET,
                snaplen: 256 << 10,
                ..PcapHeader::default()
            };
            let file = std::fs::File::create(&path).unwrap();
            let mut writer = PcapWriter::with_header(file, header).unwrap();
            for frame in frames {
                let bytes = self.encode(frame);
                let packet = RawPcapPacket {
                    ts_sec: (frame.at_ns / 1_000_000_000) as u32,
                    ts_frac: (frame.at_ns % 1_000_000_000) as u32,
                    incl_len: bytes.len() as u32,
                    orig_len: bytes.len() as u32,
                    data: bytes.into(),
                };
                writer.write_raw_packet(&packet).unwrap();
            }
            Capture::named(&path).unwrap()
        };
        ports.into_iter().map(write).collect()
    }

    pub fn judge(&self) -> Verdict {
        let dir = tempfile::tempdir().unwrap();
        oracle::judge(&self.files(dir.path()), &self.story).unwrap()
    }

    /// Nothing to say against it.
    pub fn expect_good(&self) -> Verdict {
        let verdict = self.judge();
        assert!(verdict.findings.is_empty() && verdict.gaps.is_empty(), "{verdict}");
        assert_eq!(verdict.statistics.flows, 1);
        verdict
    }

    /// Exactly one line of findings, of this class, which says this.
    pub fn expect(&self, class: Class, said: &str) -> Verdict {
        let verdict = self.judge();
        assert!(verdict.gaps.is_empty(), "{verdict}");
        match &verdict.findings[..] {
            [one] if one.class == class && one.to_string().contains(said) => {}
            _ => panic!("not one {class:?} with {said:?}:\n{verdict}"),
        }
        verdict
    }

    pub fn encode(&self, frame: &Frame) -> Vec<u8> {
        let s = &frame.seg;
        let (from, to) =
            if s.inward { (self.client, self.service) } else { (self.service, self.client) };
        let mut options = Vec::new();
        if let Some(mss) = s.mss {
            options.extend([2, 4]);
            options.extend(mss.to_be_bytes());
        }
        if s.sack_permitted {
            options.extend([4, 2]);
        }
        if let Some((tsval, tsecr)) = s.stamps {
            options.extend([8, 10]);
            options.extend(tsval.to_be_bytes());
            options.extend(tsecr.to_be_bytes());
        }
        if let Some(scale) = s.scale {
            options.extend([3, 3, scale]);
        }
        if !s.sacks.is_empty() {
            options.extend([5, 2 + 8 * s.sacks.len() as u8]);
            for (left, right) in &s.sacks {
                options.extend(left.to_be_bytes());
                options.extend(right.to_be_bytes());
            }
        }
        options.resize(options.len().next_multiple_of(4), 1);
        let mut tcp = Vec::new();
        tcp.extend(from.port().to_be_bytes());
        tcp.extend(to.port().to_be_bytes());
        tcp.extend(s.seq.to_be_bytes());
        tcp.extend(s.ack.to_be_bytes());
        tcp.extend([((20 + options.len()) / 4 * 16) as u8, s.flags]);
        tcp.extend(s.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(&s.payload);
        let mut pseudo = vec![0, 6];
        match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                pseudo.extend([from.octets(), to.octets()].concat())
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                pseudo.extend([from.octets(), to.octets()].concat())
            }
            _ => unreachable!("one family"),
        }
        pseudo.extend((tcp.len() as u32).to_be_bytes());
        let sum = match s.sum {
            Sum::Promised => checksum(&pseudo),
            _ => !checksum(&[pseudo, tcp.clone()].concat()),
        };
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut bytes = Vec::new();
        bytes.extend(frame.target);
        bytes.extend(frame.source);
        match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                bytes.extend([8, 0, 0x45, s.ecn]);
                bytes.extend((20 + tcp.len() as u16).to_be_bytes());
                bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
                bytes.extend(from.octets());
                bytes.extend(to.octets());
                let sum = !checksum(&bytes[14..34]);
                bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                bytes.extend([0x86, 0xdd, 0x60, s.ecn << 4, 0, 0]);
                bytes.extend((tcp.len() as u16).to_be_bytes());
                bytes.extend([6, 64]);
                bytes.extend(from.octets());
                bytes.extend(to.octets());
            }
            _ => unreachable!("one family"),
        }
        bytes.extend(tcp);
        if let Sum::Flipped(bit) = s.sum {
            bytes[14 + bit / 8] ^= 1 << (bit % 8);
        }
        bytes
    }
}

/// The sum of RFC 1071, not inverted. All parts but the last have even lengths.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | word.get(1).map_or(0, |byte| u32::from(*byte));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

//! A network of two nodes, in memory and in simulated time: delays, losses and duplicates come
//! from a seed, so a failing run can be run again.

use std::collections::HashSet;
use std::time::Duration;

use control::{Channel, Identity, Input, Peer, Psk, Rng};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

impl Side {
    pub fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Side::A => "a",
            Side::B => "b",
        }
    }
}

pub fn key() -> Psk {
    Psk::from_bytes([1; 32])
}

pub fn identity(name: &str, incarnation: u64) -> Identity {
    let peer = if name == "a" { "b" } else { "a" };
    let text = str::to_owned;
    Identity { cluster: text("files"), name: text(name), peer: text(peer), incarnation }
}

pub fn channel(name: &str, incarnation: u64) -> Channel {
    let seed = incarnation * 31 + u64::from(name.as_bytes()[0]);
    Channel::new(key(), identity(name, incarnation), rng(seed))
}

pub fn rng(seed: u64) -> Rng {
    let mut state = Random(seed);
    Rng::from_fn(move |bytes| bytes.fill_with(|| state.next() as u8))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

struct End {
    channel: Channel,
    sent: u64,
    received: HashSet<Vec<u8>>,
    joined: Vec<Peer>,
}

pub struct Net {
    ends: [End; 2],
    /// Both ends' clock.
    pub now: Duration,
    /// Nothing arrives.
    pub cut: bool,
    /// Each side seals a message every 4 ms.
    pub heartbeats: bool,
    /// Keep what is delivered in `recorded`.
    pub record: bool,
    pub recorded: Vec<(Side, Vec<u8>)>,
    under_way: Vec<(Duration, Side, Vec<u8>)>,
    random: Random,
    delay_ms: (u64, u64),
    loss_percent: u64,
    duplicate_percent: u64,
}

impl Net {
    pub fn new(a: Channel, b: Channel, seed: u64) -> Net {
        let end = |channel| End { channel, sent: 0, received: HashSet::new(), joined: Vec::new() };
        Net {
            ends: [end(a), end(b)],
            now: Duration::from_secs(1000),
            cut: false,
            heartbeats: false,
            record: false,
            recorded: Vec::new(),
            under_way: Vec::new(),
            random: Random(seed),
            delay_ms: (0, 0),
            loss_percent: 0,
            duplicate_percent: 0,
        }
    }

    pub fn perfect(a: Channel, b: Channel) -> Net {
        Net::new(a, b, 0)
    }

    pub fn delay_ms(mut self, least: u64, most: u64) -> Net {
        self.delay_ms = (least, most);
        self
    }

    pub fn loss_percent(mut self, percent: u64) -> Net {
        self.loss_percent = percent;
        self
    }

    pub fn duplicate_percent(mut self, percent: u64) -> Net {
        self.duplicate_percent = percent;
        self
    }

    pub fn channel(&mut self, side: Side) -> &mut Channel {
        &mut self.end(side).channel
    }

    pub fn into_channels(self) -> (Channel, Channel) {
        let [a, b] = self.ends;
        (a.channel, b.channel)
    }

    pub fn replace(&mut self, side: Side, channel: Channel) {
        self.end(side).channel = channel;
    }

    pub fn sent(&mut self, side: Side) -> u64 {
        self.end(side).sent
    }

    pub fn received(&mut self, side: Side) -> u64 {
        self.end(side).received.len() as u64
    }

    pub fn joined(&mut self, side: Side) -> &[Peer] {
        &self.end(side).joined
    }

    pub fn both_established(&self) -> bool {
        self.ends.iter().all(|end| end.channel.established())
    }

    pub fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.step();
        }
    }

    #[track_caller]
    pub fn run_until(&mut self, limit: Duration, condition: impl Fn(&mut Net) -> bool) {
        let end = self.now + limit;
        while !condition(self) {
            assert!(self.now < end, "not so within {limit:?}");
            self.step();
        }
    }

    /// Hands a datagram to a side and carries its replies.
    pub fn deliver(&mut self, to: Side, bytes: &[u8]) -> Input {
        let now = self.now;
        let mut input = self.end(to).channel.on_datagram(bytes, now);
        for reply in input.replies.clone() {
            self.post(to.other(), reply);
        }
        let end = self.end(to);
        end.joined.extend(input.joined.clone());
        if let Some(message) = &input.plaintext
            && message[0] != 7
        {
            let from_peer = message.starts_with(to.other().name().as_bytes());
            assert!(from_peer, "{to:?} got {message:?}");
            assert!(end.received.insert(message.clone()), "{message:?} came twice");
            input.plaintext = None;
        }
        input
    }

    /// Whatever either side seals now, the other opens.
    #[track_caller]
    pub fn assert_agreed(&mut self) {
        for side in [Side::A, Side::B] {
            let sealed = self.channel(side).seal(&[7; 3]).expect("a session");
            let input = self.deliver(side.other(), &sealed);
            assert_eq!(input.plaintext, Some(vec![7; 3]), "{:?}", input.rejected);
        }
    }

    fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    fn step(&mut self) {
        let now = self.now;
        for side in [Side::A, Side::B] {
            let mut datagrams = self.end(side).channel.poll(now);
            if self.heartbeats && now.as_millis().is_multiple_of(4) {
                let end = self.end(side);
                // The time makes a message unique across restarts.
                let message = format!("{}{}", side.name(), now.as_millis());
                if let Some(sealed) = end.channel.seal(message.as_bytes()) {
                    end.sent += 1;
                    datagrams.push(sealed);
                }
            }
            for datagram in datagrams {
                self.post(side.other(), datagram);
            }
        }
        // Replies made on the way are due at once on a network without delay.
        while let Some(index) = self.under_way.iter().position(|(due, ..)| *due <= now) {
            let (_, to, bytes) = self.under_way.swap_remove(index);
            if self.record {
                self.recorded.push((to, bytes.clone()));
            }
            self.deliver(to, &bytes);
        }
        self.now += Duration::from_millis(1);
    }

    fn post(&mut self, to: Side, bytes: Vec<u8>) {
        let copies = 1 + u64::from(self.random.below(100) < self.duplicate_percent);
        for _ in 0..copies {
            if self.cut || self.random.below(100) < self.loss_percent {
                continue;
            }
            let (least, most) = self.delay_ms;
            let delay = least + self.random.below(most - least + 1);
            self.under_way.push((self.now + Duration::from_millis(delay), to, bytes.clone()));
        }
    }
}

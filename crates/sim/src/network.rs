//! Two links that lose, delay, double and overtake, and can be cut in one direction or both.
//!
//! Without an arbiter the pair assumes fail-stop: between two running nodes both links are never
//! silent together for the detection time. Plain random loss would break that now and then, and
//! every such run would be a false alarm. So under this assumption the network counts: once a
//! sender has gone unheard for long enough, what it sends next arrives soon on every link that
//! is open, and one link per direction always is. A sender's short pause draws on the same
//! allowance (`allowed_pause`); a long one does not, since the core notices it.

use cluster::{Link, Nanos};

use crate::dice::Dice;

const MS: Nanos = 1_000_000;

/// How one link treats what is sent on it.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Lost, in a thousand.
    pub loss: u64,
    /// Delivered twice, in a thousand.
    pub double: u64,
    /// Delivered very late, in a thousand.
    pub stray: u64,
    /// Longest ordinary delay.
    pub delay: Nanos,
}

/// Both links in both directions. Indices: node 0 or 1, link by [`index`].
#[derive(Debug)]
pub struct Network {
    detection: Nanos,
    fail_stop: bool,
    /// `cut[from][link]`: nothing sent by `from` arrives; neither end notices.
    cut: [[bool; 2]; 2],
    /// `port[node][link]`: the interface has carrier.
    port: [[bool; 2]; 2],
    manner: [Manner; 2],
    /// This node is cut off from everybody.
    isolated: Option<usize>,
    /// When one last was.
    last_isolated: Option<Nanos>,
    /// Real time when each node last sent something that arrives soon.
    heard_of: [Nanos; 2],
}

/// Position of a link in this crate's arrays.
pub fn index(link: Link) -> usize {
    match link {
        Link::Cluster => 0,
        Link::Service => 1,
    }
}

impl Network {
    /// A clean network.
    pub fn new(detection: Nanos, fail_stop: bool) -> Network {
        Network {
            detection,
            fail_stop,
            cut: [[false; 2]; 2],
            port: [[true; 2]; 2],
            manner: [Manner { loss: 0, double: 0, stray: 0, delay: MS / 2 }; 2],
            isolated: None,
            last_isolated: None,
            heard_of: [0; 2],
        }
    }

    /// Ends every fault. Returns the interfaces whose carrier came back.
    pub fn heal(&mut self) -> Vec<(usize, Link)> {
        let dead = |&(n, link): &(usize, Link)| !self.port[n][index(link)];
        let all = [0, 1].into_iter().flat_map(|n| Link::ALL.map(|link| (n, link)));
        let back = all.filter(dead).collect();
        let (heard_of, last_isolated) = (self.heard_of, self.last_isolated);
        *self = Network { heard_of, last_isolated, ..Network::new(self.detection, self.fail_stop) };
        back
    }

    /// Whether what `from` sends on `link` can arrive.
    pub fn is_open(&self, from: usize, link: Link) -> bool {
        let i = index(link);
        self.isolated.is_none() && !self.cut[from][i] && self.port[0][i] && self.port[1][i]
    }

    /// Whether the interface has carrier.
    pub fn has_carrier(&self, node: usize, link: Link) -> bool {
        self.port[node][index(link)]
    }

    /// Cuts or mends one direction. False if the assumption forbids it.
    pub fn set_cut(&mut self, from: usize, link: Link, cut: bool) -> bool {
        let before = std::mem::replace(&mut self.cut[from][index(link)], cut);
        let allowed = self.is_allowed();
        if !allowed {
            self.cut[from][index(link)] = before;
        }
        allowed
    }

    /// Gives or takes carrier. False if the assumption forbids it.
    pub fn set_carrier(&mut self, node: usize, link: Link, up: bool) -> bool {
        let before = std::mem::replace(&mut self.port[node][index(link)], up);
        let allowed = self.is_allowed();
        if !allowed {
            self.port[node][index(link)] = before;
        }
        allowed
    }

    /// Cuts a node off from everybody until all links heal. The assumption allows it while all else
    /// works: a node that has not heard the other one for another reason takes answers of before
    /// the cut for a sign that it is not cut off.
    pub fn isolate(&mut self, node: usize, now: Nanos) -> bool {
        let whole = self.port == [[true; 2]; 2] && self.cut == [[false; 2]; 2];
        let quiet = self.heard_of.iter().any(|at| now - at > self.detection / 2);
        let allowed = !self.fail_stop || whole && !quiet && self.isolated.is_none();
        if allowed {
            self.isolated = Some(node);
            self.last_isolated = Some(now);
        }
        allowed
    }

    /// Whether nobody hears that node.
    pub fn is_isolated(&self, node: usize) -> bool {
        self.isolated == Some(node)
    }

    /// Whether the other node of an isolated one goes on alone about now. If it fails so soon, and
    /// the isolated one is back, nobody is left who could tell: the assumption forbids it.
    pub fn is_delicate(&self, now: Nanos) -> bool {
        let since = self.last_isolated.filter(|_| self.fail_stop);
        since.is_some_and(|at| now - at < self.detection * 3)
    }

    fn is_allowed(&self) -> bool {
        if self.isolated.is_some() {
            return !self.fail_stop;
        }
        let heard = |from| Link::ALL.into_iter().any(|link| self.is_open(from, link));
        !self.fail_stop || (heard(0) && heard(1))
    }

    /// Draws a new temper for one link.
    pub fn change_manner(&mut self, link: Link, dice: &mut Dice) {
        let soon = self.soon();
        let slow = if self.fail_stop { soon } else { self.detection * 2 };
        self.manner[index(link)] = Manner {
            loss: dice.pick(&[0, 0, 10, 200, 500, 900]),
            double: dice.pick(&[0, 0, 20, 300]),
            stray: dice.pick(&[0, 0, 20, 100]),
            delay: dice.pick(&[MS / 10, MS / 2, soon, soon, slow]),
        };
    }

    /// Longest delay that counts as prompt.
    fn soon(&self) -> Nanos {
        self.detection / 10
    }

    /// Fates of one heartbeat: the delay of each copy that arrives.
    pub fn send(&mut self, from: usize, link: Link, now: Nanos, dice: &mut Dice) -> Vec<Nanos> {
        if !self.is_open(from, link) {
            return Vec::new();
        }
        let manner = self.manner[index(link)];
        let due = self.fail_stop && now - self.heard_of[from] > self.detection * 3 / 10;
        if !due && dice.chance(manner.loss) {
            return Vec::new();
        }
        let first = if !due && dice.chance(manner.stray) {
            dice.below(self.detection * 20)
        } else {
            dice.below(if due { manner.delay.min(self.soon()) } else { manner.delay })
        };
        if first <= self.soon() {
            self.heard_of[from] = now;
        }
        let mut delays = vec![MS / 50 + first];
        if dice.chance(manner.double) {
            delays.push(MS / 50 + first + dice.below(self.detection * 3));
        }
        delays
    }

    /// A new life of a node starts: what it does not say yet is not held against it.
    pub fn starts(&mut self, node: usize, now: Nanos) {
        self.heard_of[node] = now;
    }

    /// `wanted`, or the next longer pause that the assumption allows.
    pub fn allowed_pause(&self, node: usize, now: Nanos, wanted: Nanos) -> Nanos {
        let noticed = self.detection / 4 * 3;
        let used = now - self.heard_of[node] + 2 * self.soon();
        if !self.fail_stop || used + wanted <= self.detection / 20 * 19 {
            wanted
        } else {
            wanted.max(noticed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fail_stop_keeps_one_link_open_each_way_and_bounds_the_silence() {
        let detection = 100 * MS;
        let mut dice = Dice::new(3);
        let mut net = Network::new(detection, true);
        assert!(net.set_cut(0, Link::Cluster, true));
        assert!(!net.set_cut(0, Link::Service, true), "node 0 would be mute");
        assert!(!net.set_carrier(1, Link::Service, false), "the same by carrier");
        assert!(net.set_cut(1, Link::Service, true), "the other direction is free to differ");
        for link in Link::ALL {
            net.manner[index(link)] = Manner { loss: 990, double: 0, stray: 900, delay: 10 * MS };
        }
        let mut heard = 0;
        for now in (0..10_000).map(|beat| beat * detection / 5) {
            for link in Link::ALL {
                for delay in net.send(0, link, now, &mut dice) {
                    assert!(delay > 0);
                    heard = heard.max(if delay <= 11 * MS { now } else { heard });
                }
            }
            assert!(now - heard < detection * 6 / 10, "silent from {heard} to {now}");
        }
    }
}

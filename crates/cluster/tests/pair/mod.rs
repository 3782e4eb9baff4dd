//! Two real cores, a network, two clocks and a model of the kernel's fence, in virtual time.
//!
//! After every single step the fence model of both nodes is asked whether both may emit. Cables
//! take 0.1 ms. Node 0 is `a` (the lower name), node 1 is `b`.

#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::{BTreeMap, VecDeque};

use cluster::{
    Action, Claim, Config, Core, Epoch, Event, Evidence, Heartbeat, Link, Nanos, Notice, Role,
    Verdict,
};

pub const MS: Nanos = 1_000_000;
pub const A: usize = 0;
pub const B: usize = 1;
const CABLE: Nanos = MS / 10;

pub struct Node {
    pub core: Core,
    config: Config,
    incarnation: u64,
    /// Own clock at real time 0, and its rate error in parts per million.
    offset: Nanos,
    drift_ppm: i64,
    pub alive: bool,
    pub paused: bool,
    queue: VecDeque<Event>,
    wake_at: Nanos,
    // The kernel.
    pub role: Role,
    pub epoch: Epoch,
    pub fence_until: Nanos,
    pub holds_address: bool,
    pub relay_via: Link,
    // The world around it.
    pub clients_answer: bool,
    pub log: Vec<(Nanos, Action)>,
}

impl Node {
    fn clock(&self, real: Nanos) -> Nanos {
        let error = i128::from(real) * i128::from(self.drift_ppm) / 1_000_000;
        self.offset + u64::try_from(i128::from(real) + error).expect("clocks do not run backwards")
    }

    fn may_emit(&self, real: Nanos) -> bool {
        matches!(self.role, Role::Primary { .. }) && self.clock(real) < self.fence_until
    }
}

pub struct Pair {
    pub now: Nanos,
    pub nodes: [Node; 2],
    /// `open[from][link]`: heartbeats pass.
    open: [[bool; 2]; 2],
    flying: BTreeMap<(Nanos, u64), (usize, Link, Heartbeat)>,
    count: u64,
    /// What the external arbiter says; `None`: nothing (yet).
    pub arbiter: Option<fn(usize, Epoch, Claim) -> Verdict>,
    pub asked: Vec<(usize, Epoch, Claim)>,
}

fn index(link: Link) -> usize {
    match link {
        Link::Cluster => 0,
        Link::Service => 1,
    }
}

impl Pair {
    pub fn new() -> Pair {
        Pair::with(|_| {})
    }

    pub fn with(change: impl Fn(&mut Config)) -> Pair {
        let node = |name: &str, peer: &str, offset, drift_ppm| {
            let mut config = Config::new(name, peer);
            change(&mut config);
            Node {
                core: Core::new(config.clone(), offset, 1).expect("a valid config"),
                config,
                incarnation: 1,
                offset,
                drift_ppm,
                alive: true,
                paused: false,
                queue: VecDeque::new(),
                wake_at: offset,
                role: Role::Starting,
                epoch: Epoch(0),
                fence_until: 0,
                holds_address: false,
                relay_via: Link::Cluster,
                clients_answer: true,
                log: Vec::new(),
            }
        };
        Pair {
            now: 0,
            // The clock of `a` is slow, that of `b` fast: the bad case for a lease of `a`.
            nodes: [node("a", "b", 7_000_000 * MS, -200), node("b", "a", 13 * MS, 200)],
            open: [[true; 2]; 2],
            flying: BTreeMap::new(),
            count: 0,
            arbiter: None,
            asked: Vec::new(),
        }
    }

    /// A pair that has settled: `a` primary, `b` its armed backup, both servers listen.
    pub fn duplex() -> Pair {
        Pair::duplex_with(|_| {})
    }

    pub fn duplex_with(change: impl Fn(&mut Config)) -> Pair {
        let mut pair = Pair::with(change);
        pair.event(A, Event::ServiceReady(true));
        pair.event(B, Event::ServiceReady(true));
        pair.expect_within(500, "duplex under a", |p| p.is_duplex(A));
        pair.run_ms(500);
        pair.clear_logs();
        pair
    }

    // ---- the world ----

    pub fn event(&mut self, n: usize, event: Event) {
        if !self.nodes[n].alive {
            return;
        }
        if self.nodes[n].paused {
            self.nodes[n].queue.push_back(event);
            return;
        }
        let clock = self.nodes[n].clock(self.now);
        let actions = self.nodes[n].core.step(event, clock);
        for action in actions {
            self.carry_out(n, action);
        }
    }

    fn carry_out(&mut self, n: usize, action: Action) {
        self.nodes[n].log.push((self.now, action.clone()));
        let node = &mut self.nodes[n];
        match action {
            Action::SetRole { role, epoch } => (node.role, node.epoch) = (role, epoch),
            Action::Lease { until } => node.fence_until = until,
            Action::Fence => node.fence_until = 0,
            Action::HoldAddress(hold) => node.holds_address = hold,
            Action::RelayVia { link } => node.relay_via = link,
            Action::WakeAt(at) => node.wake_at = at,
            Action::Send { link, msg } => {
                if self.open[n][index(link)] {
                    self.count += 1;
                    self.flying.insert((self.now + CABLE, self.count), (1 - n, link, msg));
                }
            }
            Action::ProbeServiceLink => {
                let evidence = match node.clients_answer {
                    true => Evidence::Alive,
                    false => Evidence::Silent,
                };
                self.event(n, Event::ServiceLinkEvidence(evidence));
            }
            Action::AskArbiter { epoch, claim } => {
                self.asked.push((n, epoch, claim));
                if let Some(answer) = self.arbiter {
                    let verdict = answer(n, epoch, claim);
                    self.event(n, Event::Arbiter { asked: epoch, verdict });
                }
            }
            Action::Promote { .. } | Action::DiscardFlows | Action::Report(_) | Action::Stop => {}
        }
        let both = self.nodes.iter().all(|node| node.alive && node.may_emit(self.now));
        assert!(!both, "both nodes may emit at {} ms", self.now / MS);
    }

    pub fn run_ms(&mut self, ms: u64) {
        let end = self.now + ms * MS;
        while self.step_until(end) {}
    }

    /// Delivers what is due next, up to `end`. False if `end` was reached.
    fn step_until(&mut self, end: Nanos) -> bool {
        // A tick is due when the node's own clock says so; 10 µs of scheduling noise.
        let tick = |node: &Node, now: Nanos| {
            let left = node.wake_at.saturating_sub(node.clock(now));
            now + left + left / 1000 + MS / 100
        };
        let mut next = (end, None);
        for n in [A, B] {
            let node = &self.nodes[n];
            if node.alive && !node.paused && tick(node, self.now) < next.0 {
                next = (tick(node, self.now), Some(n));
            }
        }
        if let Some((&(at, id), _)) = self.flying.first_key_value()
            && at <= next.0
        {
            let (to, link, msg) = self.flying.remove(&(at, id)).expect("just seen");
            self.now = self.now.max(at);
            self.event(to, Event::Heartbeat { link, msg });
            return true;
        }
        self.now = next.0;
        if let Some(n) = next.1 {
            self.event(n, Event::Tick);
        }
        next.1.is_some()
    }

    /// Runs until `done`; returns how many milliseconds that took.
    pub fn expect_within(&mut self, ms: u64, what: &str, done: impl Fn(&Pair) -> bool) -> f64 {
        let (begin, end) = (self.now, self.now + ms * MS);
        while !done(self) {
            assert!(self.step_until(end), "not within {ms} ms: {what}\n{self:#?}");
        }
        (self.now - begin) as f64 / MS as f64
    }

    // ---- faults ----

    pub fn cut(&mut self, link: Link) {
        self.cut_from(A, link);
        self.cut_from(B, link);
    }

    pub fn cut_from(&mut self, from: usize, link: Link) {
        self.open[from][index(link)] = false;
    }

    pub fn heal(&mut self, link: Link) {
        self.open[A][index(link)] = true;
        self.open[B][index(link)] = true;
    }

    pub fn partition(&mut self) {
        Link::ALL.iter().for_each(|&link| self.cut(link));
    }

    pub fn heal_all(&mut self) {
        Link::ALL.iter().for_each(|&link| self.heal(link));
    }

    /// Loses every heartbeat under way.
    pub fn flush_network(&mut self) {
        self.flying.clear();
    }

    pub fn kill(&mut self, n: usize) {
        self.nodes[n].alive = false;
    }

    /// The daemon freezes; its kernel goes on.
    pub fn pause(&mut self, n: usize) {
        self.nodes[n].paused = true;
    }

    /// The daemon wakes: its timer fires first, then it drains its sockets.
    pub fn resume(&mut self, n: usize) {
        self.nodes[n].paused = false;
        self.event(n, Event::Tick);
        while let Some(event) = self.nodes[n].queue.pop_front() {
            self.event(n, event);
        }
    }

    pub fn restart(&mut self, n: usize) {
        let clock = self.nodes[n].clock(self.now);
        let node = &mut self.nodes[n];
        node.incarnation += 1;
        node.core = Core::new(node.config.clone(), clock, node.incarnation).expect("valid");
        (node.alive, node.paused, node.wake_at) = (true, false, clock);
        (node.role, node.epoch, node.fence_until) = (Role::Starting, Epoch(0), 0);
        node.queue.clear();
        self.event(n, Event::ServiceReady(true));
    }

    // ---- questions ----

    pub fn may_emit(&self, n: usize) -> bool {
        self.nodes[n].alive && self.nodes[n].may_emit(self.now)
    }

    pub fn is_primary(&self, n: usize) -> bool {
        self.may_emit(n) && matches!(self.nodes[n].role, Role::Primary { .. })
    }

    pub fn is_simplex(&self, n: usize) -> bool {
        self.may_emit(n) && self.nodes[n].role == Role::Primary { duplex: false }
    }

    /// `n` serves under leases, the other protects it and holds the address.
    pub fn is_duplex(&self, n: usize) -> bool {
        let [primary, backup] = [&self.nodes[n], &self.nodes[1 - n]];
        self.may_emit(n)
            && primary.role == Role::Primary { duplex: true }
            && backup.role == Role::Backup { armed: true }
            && primary.epoch == backup.epoch
            && backup.holds_address
            && !primary.holds_address
    }

    pub fn clear_logs(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.log.clear());
    }

    pub fn did(&self, n: usize, what: impl Fn(&Action) -> bool) -> bool {
        self.nodes[n].log.iter().any(|(_, action)| what(action))
    }

    /// Real time of the first such action.
    pub fn when(&self, n: usize, what: impl Fn(&Action) -> bool) -> Option<Nanos> {
        self.nodes[n].log.iter().find(|(_, action)| what(action)).map(|&(at, _)| at)
    }

    pub fn reported(&self, n: usize, what: impl Fn(&Notice) -> bool) -> bool {
        self.did(n, |action| matches!(action, Action::Report(notice) if what(notice)))
    }

    pub fn changed_role(&self, n: usize) -> bool {
        self.did(n, |action| matches!(action, Action::SetRole { .. }))
    }
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for node in &self.nodes {
            writeln!(f, "{:#?}", node.core.view())?;
            for (at, action) in &node.log {
                if !matches!(action, Action::Send { .. } | Action::WakeAt(_) | Action::Lease { .. })
                {
                    writeln!(f, "  {:9.3} ms {action:?}", *at as f64 / MS as f64)?;
                }
            }
        }
        Ok(())
    }
}

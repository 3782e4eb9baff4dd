//! Virtual time: what is due next happens next, and every action passes the watch.

use std::collections::{BTreeMap, VecDeque};

use cluster::{Action, ArbiterKind, Claim, Epoch, Event, Evidence, Heartbeat, Link, Nanos, Role};

use crate::arbiter::Arbiter;
use crate::dice::Dice;
use crate::host::{Host, Neighbours, Power};
use crate::network::{Network, index};
use crate::setup::{Sabotage, Setup, hosts};
use crate::watch::{Violation, watch, watch_role};

const MS: Nanos = 1_000_000;
/// Heartbeats that wait in the sockets of a frozen daemon.
const SOCKET_BUFFER: usize = 200;
/// Lines of the trace that are kept.
const TRACE_LINES: usize = 400;

/// Something that will happen at a known time. `life` is the incarnation it is meant for.
#[derive(Debug)]
pub enum Due {
    Deliver {
        to: usize,
        link: Link,
        msg: Heartbeat,
    },
    Tell {
        to: usize,
        life: u64,
        event: Event,
    },
    Question {
        from: usize,
        life: u64,
        epoch: Epoch,
        claim: Claim,
        answer_takes: Nanos,
    },
    Resume {
        node: usize,
        life: u64,
    },
    Start {
        node: usize,
    },
    GivesUpWaiting {
        node: usize,
        life: u64,
    },
    Mischief,
    /// An isolated node is plugged in again.
    Rejoin,
}

/// Two hosts, the network between them, and all that is under way.
pub struct World {
    pub now: Nanos,
    pub setup: Setup,
    pub dice: Dice,
    pub hosts: [Host; 2],
    pub net: Network,
    pub detection: Nanos,
    pub alone_wait: Nanos,
    /// Nodes remember their epoch over a restart. With an arbiter they must.
    pub remembers: bool,
    /// Faults happen.
    pub mischief: bool,
    pub role_changes: u64,
    arbiter: Arbiter,
    agenda: BTreeMap<(Nanos, u64), Due>,
    planned: u64,
    pub steps: u64,
    trace: Option<VecDeque<String>>,
}

impl World {
    pub fn new(seed: u64, setup: Setup, traced: bool) -> World {
        let mut dice = Dice::new(seed);
        let hosts = hosts(setup, &mut dice);
        let detection = hosts[0].config.detection;
        World {
            now: 0,
            setup,
            net: Network::new(detection, setup.arbiter == ArbiterKind::None),
            detection,
            alone_wait: hosts[0].config.alone_wait(),
            remembers: setup.arbiter == ArbiterKind::External || dice.coin(),
            mischief: false,
            role_changes: 0,
            hosts,
            dice,
            arbiter: Arbiter::default(),
            agenda: BTreeMap::new(),
            planned: 0,
            steps: 0,
            trace: traced.then(VecDeque::new),
        }
    }

    /// The last lines of the story, if it is being written.
    pub fn take_trace(&mut self) -> Vec<String> {
        self.trace.take().map_or_else(Vec::new, Vec::from)
    }

    pub fn note(&mut self, line: impl FnOnce(&World) -> String) {
        if self.trace.is_none() {
            return;
        }
        let line = format!("{:11.3} ms  {}", self.now as f64 / MS as f64, line(self));
        let lines = self.trace.as_mut().expect("just seen");
        if lines.len() == TRACE_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub fn plan(&mut self, after: Nanos, due: Due) {
        self.planned += 1;
        self.agenda.insert((self.now + after, self.planned), due);
    }

    /// Lives on until `end`, or until `done` says true; returns whether it did.
    pub fn run_until(
        &mut self,
        end: Nanos,
        done: impl Fn(&World) -> bool,
    ) -> Result<bool, Violation> {
        while !done(self) {
            let ticking = |n: &usize| self.hosts[*n].power == Power::Up;
            let tick = [0, 1].into_iter().filter(ticking).min_by_key(|&n| self.hosts[n].tick_at);
            let tick_at = tick.map_or(Nanos::MAX, |n| self.hosts[n].tick_at);
            let next = self.agenda.first_key_value().map_or(Nanos::MAX, |(&(at, _), _)| at);
            if tick_at.min(next) > end {
                self.now = end;
                return Ok(false);
            }
            self.now = self.now.max(tick_at.min(next));
            if next <= tick_at {
                let (_, due) = self.agenda.pop_first().expect("just seen");
                self.happen(due)?;
            } else {
                self.tell(tick.expect("it has a time"), Event::Tick)?;
            }
        }
        Ok(true)
    }

    fn happen(&mut self, due: Due) -> Result<(), Violation> {
        let is_life = |world: &World, n: usize, life| world.hosts[n].incarnation == life;
        match due {
            Due::Deliver { to, link, msg } => self.tell(to, Event::Heartbeat { link, msg })?,
            Due::Tell { to, life, event } if is_life(self, to, life) => {
                if let Event::ServiceReady(ready) = event {
                    self.hosts[to].server = ready;
                }
                self.tell(to, event)?;
            }
            Due::Question { from, life, epoch, claim, answer_takes } => {
                let peer = &self.hosts[1 - from];
                let hasty = self.setup.sabotage == Sabotage::HastyArbiter;
                let down = peer.is_surely_down(self.now) || hasty && !peer.is_running();
                let verdict = self.arbiter.answer(from, epoch, claim, down);
                self.note(|_| {
                    format!("arbiter to {}: {claim:?} {epoch:?} {verdict:?}", name(from))
                });
                let event = Event::Arbiter { asked: epoch, verdict };
                self.plan(answer_takes, Due::Tell { to: from, life, event });
            }
            Due::Resume { node, life } if is_life(self, node, life) => self.resume(node)?,
            Due::Start { node } if !self.hosts[node].is_running() => self.start(node)?,
            Due::GivesUpWaiting { node, life }
                if is_life(self, node, life) && self.hosts[node].is_running() =>
            {
                self.kill(node, false);
            }
            Due::Mischief => self.do_mischief()?,
            Due::Rejoin => self.heal()?,
            _ => {}
        }
        Ok(())
    }

    /// An event reaches the daemon of node `n`, if there is one.
    pub fn tell(&mut self, n: usize, event: Event) -> Result<(), Violation> {
        let host = &mut self.hosts[n];
        match host.power {
            Power::Up => {}
            Power::Paused => {
                if host.inbox.len() < SOCKET_BUFFER || !matches!(event, Event::Heartbeat { .. }) {
                    host.inbox.push(event);
                }
                return Ok(());
            }
            Power::DaemonDown | Power::HostDown => return Ok(()),
        }
        self.steps += 1;
        if self.trace.is_some() && event != Event::Tick {
            self.note(|_| format!("{} <- {}", name(n), told(&event)));
        }
        let host = &mut self.hosts[n];
        let own = host.clock.at(self.now);
        host.unfinished.extend(host.core.step(event, own));
        if self.mischief && self.dice.below(3_000) == 0 && !self.net.is_delicate(self.now) {
            let before = self.dice.below(5);
            for _ in 0..before {
                self.carry_out_next(n)?;
            }
            let left = self.hosts[n].unfinished.len();
            self.note(|_| format!("{} stops with {left} actions to do", name(n)));
            if self.dice.chance(200) {
                self.kill(n, false);
                let after = self.dice.below(self.detection * 3);
                self.plan(after, Due::Start { node: n });
            } else {
                self.pause(n);
            }
            return Ok(());
        }
        self.finish(n)
    }

    fn finish(&mut self, n: usize) -> Result<(), Violation> {
        while self.carry_out_next(n)? {}
        Ok(())
    }

    fn carry_out_next(&mut self, n: usize) -> Result<bool, Violation> {
        let Some(action) = self.hosts[n].unfinished.pop_front() else { return Ok(false) };
        if self.trace.is_some() && !matches!(action, Action::Send { .. } | Action::WakeAt(_)) {
            self.note(|_| format!("{}      {action:?}", name(n)));
        }
        let sabotage = self.setup.sabotage;
        match action {
            Action::Send { link, msg } => {
                for delay in self.net.send(n, link, self.now, &mut self.dice) {
                    self.plan(delay, Due::Deliver { to: 1 - n, link, msg: msg.clone() });
                }
            }
            Action::WakeAt(at) => {
                let late = self.dice.below(self.detection / 200);
                self.hosts[n].tick_at = self.hosts[n].clock.real_of(at, self.now) + late;
            }
            Action::SetRole { role, epoch } => {
                watch_role(&mut self.hosts, n, role, epoch)?;
                let kernel = &mut self.hosts[n].kernel;
                (kernel.role, kernel.epoch) = (role, epoch);
                self.hosts[n].highest = self.hosts[n].highest.max(epoch);
                self.role_changes += 1;
                watch(&mut self.hosts, self.now)?;
            }
            Action::Lease { until } => {
                let endless = sabotage == Sabotage::EndlessLease;
                self.hosts[n].kernel.fence_until = if endless { Nanos::MAX } else { until };
                watch(&mut self.hosts, self.now)?;
            }
            Action::Fence => self.hosts[n].kernel.fence_until = 0,
            Action::HoldAddress(hold) => {
                self.hosts[n].kernel.holds_address = hold && sabotage != Sabotage::NoAddress;
            }
            Action::DiscardFlows if sabotage != Sabotage::KeepsFlows => {
                (self.hosts[n].flows.held, self.hosts[n].flows.stale) = (false, false);
            }
            Action::ProbeServiceLink => {
                let evidence = self.evidence(n);
                // A daemon gives those that do not answer a detection time.
                let late = if evidence == Evidence::Silent { self.detection } else { MS };
                self.tell_later(n, late, Event::ServiceLinkEvidence(evidence));
            }
            Action::AskArbiter { epoch, claim } => self.ask(n, epoch, claim),
            Action::Stop => self.kill(n, false),
            Action::DiscardFlows
            | Action::Promote { .. }
            | Action::RelayVia { .. }
            | Action::Report(_) => {}
        }
        Ok(true)
    }

    /// What node `n` finds if it asks around now.
    fn evidence(&self, n: usize) -> Evidence {
        let deaf = self.net.is_isolated(n) || !self.net.has_carrier(n, Link::Service);
        match self.hosts[n].neighbours {
            _ if deaf => Evidence::Silent,
            Neighbours::Answer => Evidence::Alive,
            Neighbours::Silent => Evidence::Silent,
            Neighbours::Unknown => Evidence::NobodyToAsk,
        }
    }

    fn ask(&mut self, n: usize, epoch: Epoch, claim: Claim) {
        let host = &self.hosts[n];
        let life = host.incarnation;
        if !host.arbiter {
            return;
        }
        let startup_wait = host.config.startup_wait;
        let longest = self.dice.pick(&[MS, MS, self.detection, startup_wait]).min(startup_wait);
        let (there, back) = if self.mischief {
            (self.dice.below(longest / 2), self.dice.below(longest / 2))
        } else {
            (MS / 2, MS / 2)
        };
        self.plan(there, Due::Question { from: n, life, epoch, claim, answer_takes: back });
    }

    /// Drops what faults have planned, and questions that they have delayed.
    pub fn forget_plans(&mut self) {
        self.agenda.retain(|_, due| match due {
            Due::Mischief
            | Due::Rejoin
            | Due::Start { .. }
            | Due::GivesUpWaiting { .. }
            | Due::Question { .. } => false,
            Due::Tell { event, .. } => *event != Event::ServiceReady(false),
            _ => true,
        });
    }

    /// Whether the arbiter has given the epoch after the present one to node `n`.
    pub fn next_epoch_belongs_to(&self, n: usize) -> bool {
        self.arbiter.owner(self.hosts[n].kernel.epoch.plus(1)) == Some(n)
    }

    pub fn tell_later(&mut self, n: usize, after: Nanos, event: Event) {
        let life = self.hosts[n].incarnation;
        self.plan(after, Due::Tell { to: n, life, event });
    }

    pub fn kill(&mut self, n: usize, host: bool) {
        let what = if host { "host" } else { "daemon" };
        self.note(|_| format!("{what} of {} ends", name(n)));
        self.hosts[n].kill(self.now, host);
    }

    pub fn start(&mut self, n: usize) -> Result<(), Violation> {
        self.hosts[n].start(self.now, self.remembers);
        self.net.starts(n, self.now);
        let life = self.hosts[n].incarnation;
        self.note(|_| format!("{} starts as incarnation {life}", name(n)));
        for link in Link::ALL {
            if !self.net.has_carrier(n, link) {
                self.tell(n, Event::Carrier { link, up: false })?;
            }
        }
        let after = self.dice.pick(&[0, MS, self.detection]);
        self.tell_later(n, after, Event::ServiceReady(true));
        self.tell(n, Event::Tick)
    }

    /// The daemon freezes for a while.
    pub fn pause(&mut self, n: usize) {
        if self.hosts[n].power != Power::Up {
            return;
        }
        let tenth = self.detection / 10;
        let longest = self.dice.pick(&[3, 7, 9, 11, 15, 40, 40, 300]) * tenth;
        let wanted = self.dice.below(longest.min(2 * self.alone_wait));
        let span = self.net.allowed_pause(n, self.now, wanted);
        self.note(|_| format!("{} freezes for {:.3} ms", name(n), span as f64 / MS as f64));
        self.hosts[n].power = Power::Paused;
        self.hosts[n].since = self.now;
        let life = self.hosts[n].incarnation;
        self.plan(span, Due::Resume { node: n, life });
    }

    /// The daemon wakes: it ends what it was doing, then finds its timer and its sockets ready,
    /// in any order.
    fn resume(&mut self, n: usize) -> Result<(), Violation> {
        if self.hosts[n].power != Power::Paused {
            return Ok(());
        }
        self.note(|_| format!("{} wakes", name(n)));
        let frozen = self.now - self.hosts[n].since;
        self.hosts[n].power = Power::Up;
        if self.setup.sabotage == Sabotage::RelativeLease {
            for action in &mut self.hosts[n].unfinished {
                if let Action::Lease { until } = action {
                    *until += frozen;
                }
            }
        }
        self.finish(n)?;
        let mut events = std::mem::take(&mut self.hosts[n].inbox);
        let last = u64::try_from(events.len()).expect("a short queue");
        let place = if self.dice.coin() { 0 } else { self.dice.below(last + 1) };
        events.insert(usize::try_from(place).expect("below a length"), Event::Tick);
        for event in events {
            self.tell(n, event)?;
        }
        Ok(())
    }

    /// The protected server dies; a kernel that serves closes its fence in the same instant.
    pub fn crash_server(&mut self, n: usize) -> Result<(), Violation> {
        if !self.hosts[n].server || self.hosts[n].power == Power::HostDown {
            return Ok(());
        }
        self.hosts[n].server = false;
        self.hosts[n].kernel.fence_until = 0;
        self.tell(n, Event::ServerCrashed)
    }

    pub fn set_carrier(&mut self, n: usize, link: Link, up: bool) -> Result<(), Violation> {
        if self.net.has_carrier(n, link) == up || !self.net.set_carrier(n, link, up) {
            return Ok(());
        }
        self.note(|_| format!("carrier of {} on {link:?}: {up}", name(n)));
        self.tell(n, Event::Carrier { link, up })
    }

    /// One line about both nodes.
    pub fn state(&self) -> String {
        let of = |n: usize| {
            let host = &self.hosts[n];
            let Host { power, kernel, server, .. } = host;
            let emits = if host.may_emit(self.now) { "emits" } else { "silent" };
            let address = if kernel.holds_address { ", holds the address" } else { "" };
            let server = if *server { "" } else { ", no server" };
            let (role, epoch) = (kernel.role, kernel.epoch.0);
            format!("{} {power:?} {role:?} epoch {epoch} {emits}{address}{server}", name(n))
        };
        format!("{}; {}", of(0), of(1))
    }

    /// `n` serves under leases, the other one protects it and holds the address.
    pub fn is_duplex(&self, n: usize) -> bool {
        let (primary, backup) = (&self.hosts[n].kernel, &self.hosts[1 - n].kernel);
        self.hosts[n].may_emit(self.now)
            && primary.role == Role::Primary { duplex: true }
            && backup.role == Role::Backup { armed: true }
            && primary.epoch == backup.epoch
            && backup.holds_address
            && !primary.holds_address
    }

    /// `n` serves alone and holds the address.
    pub fn is_simplex(&self, n: usize) -> bool {
        self.hosts[n].may_emit(self.now)
            && self.hosts[n].kernel.role == Role::Primary { duplex: false }
            && self.hosts[n].kernel.holds_address
    }
}

pub fn name(n: usize) -> &'static str {
    ["a", "b"][n]
}

fn told(event: &Event) -> String {
    let Event::Heartbeat { link, msg } = event else { return format!("{event:?}") };
    let echo = msg.echo.map_or(String::from("-"), |e| format!("{}.{}", e.incarnation.0, e.seq));
    let link = ["C", "S"][index(*link)];
    format!("{link} {}.{} {:?} {} echo {echo}", msg.incarnation.0, msg.seq, msg.role, msg.epoch.0)
}

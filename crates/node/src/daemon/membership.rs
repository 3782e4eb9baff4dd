//! The thread that speaks with the peer and steers the data path: the pure cores of `cluster`, one for
//! each scope, with their sockets, clock and kernel page.
//!
//! Nothing here may block: a heartbeat that is late looks like a dead host. So the thread runs
//! under a real-time policy and leaves everything that takes time to others; the one exception is
//! to wait until a rejoining node has forgotten its flows, which must come before it says so.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use cluster::{Action, Event, Evidence, Heartbeat, Link, View};
use control::{Channel, MAX_DATAGRAM};
use datapath::Switchboard;
use hostnet::{Interface, Mac, Monitor};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};
use serde_json::{Value, json};

use super::events::{Events, Moment};
use super::holder::Holder;
use super::inbox::{Inbox, Post};
use super::journal::{Duty, Order};
use super::links::LinkSocket;
use super::notices;
use super::output;
use super::seat::{Seat, Statement};
use super::servers::Servers;
use super::stranger::{Stranger, Verdict};
use super::timeline::Decision;
use crate::config::Config;
use crate::supervisor;

/// What other threads tell this one.
pub enum Message {
    Supervisor(supervisor::Event),
    /// The data path has fenced this node, because a server died by this signal, or (`None`) left
    /// connections that it had not accepted (C4).
    Crash {
        service: u32,
        signal: Option<u32>,
    },
    /// An operator wants the peer to serve; answered with a refusal or when it is under way.
    Switchover(Sender<Result<(), String>>),
    /// Of the flows in the scope with this index, those that began before the backup came have ended.
    Protected(usize),
    /// All that the servers of flows in the scope with this index were asked is answered, or they had the
    /// time to.
    Quiet(usize),
    /// What asking around has found.
    Neighbours(Evidence),
    Shutdown,
}

/// What is done once servers have answered what they were asked.
enum Then {
    /// An operator wants the peer to serve; he is told whether that is under way.
    SwitchOver(Sender<Result<(), String>>),
    /// The flows in this scope are given back.
    GiveBack(usize),
    ShutDown,
}

/// What `status` shows of membership.
#[derive(Clone)]
pub struct Report {
    /// Of each scope.
    pub views: Vec<View>,
    /// Own clock when they were taken.
    pub at: u64,
    pub servers: Servers,
    /// Control datagrams refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

/// Longest that the loop sleeps: `status` is never older than this.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);

/// When a node whose server has crashed asks itself whether one listens all the same: it may have been
/// one process of several, which the others replace. That the last has ended is known much sooner.
const RECOVERY: Duration = Duration::from_secs(1);

const UNREADABLE: &str =
    "a heartbeat of the peer cannot be read; install the same release on both nodes";

/// How long a shutdown waits for the peer to take over.
const FAREWELL: Duration = Duration::from_secs(3);

pub struct Membership {
    /// One for each scope. Who holds the addresses, and over which link the nodes reach each other,
    /// the first decides.
    seats: Vec<Seat>,
    channel: Channel,
    /// Service link, cluster link.
    sockets: [LinkSocket; 2],
    interfaces: [Interface; 2],
    macs: [Mac; 2],
    peer_macs: Option<[Mac; 2]>,
    switchboard: Switchboard,
    journal: Post<Order>,
    /// `None`: no service's output is held.
    output: Option<Post<output::Order>>,
    events: Events,
    report: Arc<Mutex<Option<Report>>>,
    detection: Duration,
    addresses: Vec<IpAddr>,
    holder: Holder,
    monitor: Monitor,
    asker: Sender<Vec<Mac>>,
    relay_via: Link,
    servers: Servers,
    refused: BTreeMap<&'static str, u64>,
    started: Instant,
    /// A server has crashed: when to look whether it is served again.
    recovery: Option<Instant>,
    stranger: Stranger,
    /// On the service link.
    own_address: IpAddr,
    /// Why this node gives up.
    failed: Option<String>,
    /// Systemd has been told that this node has its roles.
    settled: bool,
    /// What waits for servers to have answered, and in which scopes.
    then: Vec<(Vec<usize>, Then)>,
}

/// What the thread is made of.
pub struct Parts {
    pub seats: Vec<Seat>,
    pub channel: Channel,
    pub interfaces: [Interface; 2],
    pub switchboard: Switchboard,
    pub asker: Sender<Vec<Mac>>,
    pub journal: Post<Order>,
    pub output: Option<Post<output::Order>>,
    pub events: Events,
    pub report: Arc<Mutex<Option<Report>>>,
}

impl Membership {
    pub fn new(config: &Config, parts: Parts) -> anyhow::Result<Self> {
        let Parts { mut seats, channel, interfaces, switchboard, asker, .. } = parts;
        let Parts { journal, output, events, report, .. } = parts;
        let node = &config.node;
        let sockets =
            [LinkSocket::open(node, Link::Service)?, LinkSocket::open(node, Link::Cluster)?];
        let macs = [interfaces[0].ethernet()?, interfaces[1].ethernet()?];
        for seat in &mut seats {
            seat.set_extra(macs.iter().flat_map(|mac| mac.0).collect());
        }
        let addresses: Vec<IpAddr> =
            config.services.iter().flat_map(|service| service.addresses.clone()).collect();
        let holder = Holder::new(&interfaces[0], addresses.clone(), switchboard)?;
        Ok(Self {
            monitor: Monitor::new()?,
            servers: Servers::new(&config.services),
            detection: node.detection(),
            seats,
            channel,
            sockets,
            interfaces,
            macs,
            peer_macs: None,
            switchboard,
            journal,
            output,
            events,
            report,
            addresses,
            holder,
            asker,
            relay_via: Link::Cluster,
            refused: BTreeMap::new(),
            started: Instant::now(),
            recovery: None,
            stranger: Stranger::default(),
            own_address: node.address.service,
            failed: None,
            settled: false,
            then: Vec::new(),
        })
    }

    /// Runs until the core says that nothing depends on this node any more.
    pub fn run(mut self, inbox: &Inbox<Message>) -> anyhow::Result<()> {
        let mut farewell: Option<Instant> = None;
        // A link that is down from the start is told like one that goes down.
        for (link, index) in [(Link::Service, 0), (Link::Cluster, 1)] {
            if !self.interfaces[index].carrier {
                self.step_all(&Event::Carrier { link, up: false });
            }
        }
        self.step_all(&Event::Tick);
        while !self.is_over() && farewell.is_none_or(|deadline| Instant::now() < deadline) {
            self.sleep(inbox)?;
            self.hear();
            self.watch_links();
            self.holder.answer();
            inbox.hush();
            while let Some(message) = inbox.take() {
                if matches!(message, Message::Shutdown) {
                    farewell.get_or_insert(Instant::now() + FAREWELL);
                }
                self.on_message(message);
            }
            self.recover();
            for index in 0..self.seats.len() {
                if hostnet::now_boottime_ns() >= self.seats[index].wake_at {
                    self.step(index, Event::Tick);
                }
                self.give_back(index);
            }
            self.keep_channel();
            self.holder.announce();
            self.tell();
        }
        self.switchboard.set_lease(0);
        self.holder.let_go();
        match self.failed {
            None => Ok(()),
            Some(why) => Err(anyhow::Error::msg(why)),
        }
    }

    fn is_over(&self) -> bool {
        self.failed.is_some() || self.seats.iter().all(|seat| seat.stopped)
    }

    fn sleep(&mut self, inbox: &Inbox<Message>) -> anyhow::Result<()> {
        let wake_at = self.seats.iter().map(|seat| seat.wake_at).min().unwrap_or_default();
        let mut wait = Duration::from_nanos(wake_at.saturating_sub(hostnet::now_boottime_ns()))
            .min(LONGEST_SLEEP)
            .min(self.detection / 2);
        if let Some(at) = self.channel.next_poll() {
            wait = wait.min(at.saturating_sub(self.started.elapsed()));
        }
        if let Some(at) = self.holder.due() {
            wait = wait.min(at);
        }
        let mut fds = [
            PollFd::new(self.sockets[0].as_fd(), PollFlags::POLLIN),
            PollFd::new(self.sockets[1].as_fd(), PollFlags::POLLIN),
            PollFd::new(inbox.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.monitor.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.holder.as_fd(), PollFlags::POLLIN),
        ];
        match ppoll(&mut fds, Some(TimeSpec::nanoseconds(wait.as_nanos() as i64)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno).context("cannot wait for the control channel"),
        }
    }

    fn hear(&mut self) {
        let mut buffer = [0; MAX_DATAGRAM + 1];
        for index in 0..self.sockets.len() {
            // A flood on one link must not keep the loop from its other duties.
            for _ in 0..64 {
                let Some((length, from_peer)) = self.sockets[index].receive(&mut buffer) else {
                    break;
                };
                let link = self.sockets[index].link;
                let input = self.channel.on_datagram(&buffer[..length], self.started.elapsed());
                for reply in &input.replies {
                    self.sockets[index].send(reply);
                }
                if let Some(rejected) = input.rejected {
                    self.stranger.heard(&rejected, link, from_peer, Instant::now());
                    self.on_rejected(&rejected);
                }
                let Some(plaintext) = input.plaintext else { continue };
                match postcard::from_bytes::<Statement>(&plaintext) {
                    Ok(said) if usize::from(said.scopes) != self.seats.len() => {
                        let what = "the peer has other `roles`; write the same on both nodes";
                        self.stranger.heard_otherwise(what, link, Instant::now());
                        self.count_refusal("roles", what);
                    }
                    Ok(Statement { scope, .. }) if usize::from(scope) >= self.seats.len() => {
                        self.count_refusal("unreadable", UNREADABLE);
                    }
                    Ok(Statement { scope, heartbeat: msg, .. }) => {
                        self.learn_macs(&msg.extra);
                        self.step(scope.into(), Event::Heartbeat { link, msg });
                    }
                    Err(_) => self.count_refusal("unreadable", UNREADABLE),
                }
            }
        }
    }

    fn on_rejected(&mut self, rejected: &control::Rejected) {
        use control::Rejected;
        let kind = match rejected {
            Rejected::Version { .. } => "version",
            Rejected::Cluster => "cluster",
            Rejected::Key => "key",
            Rejected::Name { .. } => "name",
            Rejected::Garbage => "garbage",
            Rejected::Replay => "replay",
            Rejected::TooLong => "too_long",
            // Ordinary while one side has just restarted.
            Rejected::UnknownSession => "unknown_session",
            Rejected::Overload => "overload",
        };
        self.count_refusal(kind, &rejected.to_string());
    }

    /// The first of a kind is an event; a flood of them is a number.
    fn count_refusal(&mut self, kind: &'static str, text: &str) {
        let count = self.refused.entry(kind).or_default();
        *count += 1;
        if *count == 1 && kind != "unknown_session" {
            self.events.add("datagram_refused", text, json!({"kind": kind}));
        }
    }

    fn learn_macs(&mut self, extra: &[u8]) {
        let Ok(bytes): Result<[u8; 12], _> = extra.try_into() else { return };
        let mac = |at: usize| Mac(bytes[at..at + 6].try_into().expect("six bytes"));
        let macs = [mac(0), mac(6)];
        if self.peer_macs == Some(macs) {
            return;
        }
        self.peer_macs = Some(macs);
        self.switchboard.set_peer_macs(macs[0].0, macs[1].0);
        self.set_relay(self.relay_via);
    }

    fn set_relay(&mut self, link: Link) {
        self.relay_via = link;
        let Some(peer) = self.peer_macs else { return };
        let index = match link {
            Link::Service => 0,
            Link::Cluster => 1,
        };
        self.switchboard.set_relay(self.interfaces[index].index, self.macs[index].0, peer[index].0);
    }

    fn watch_links(&mut self) {
        loop {
            match self.monitor.next_event() {
                Ok(Some(hostnet::Event::Link(event))) => {
                    for (link, index) in [(Link::Service, 0), (Link::Cluster, 1)] {
                        if event.ifindex == self.interfaces[index].index
                            && event.carrier != self.interfaces[index].carrier
                        {
                            self.interfaces[index].carrier = event.carrier;
                            self.step_all(&Event::Carrier { link, up: event.carrier });
                        }
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot watch the links");
                    return;
                }
            }
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Supervisor(event) => self.on_server(event),
            // Unless something has changed while the question was under way.
            Message::Protected(index) if self.seats[index].may_be_given_back() => {
                let waits =
                    |(_, then): &(_, Then)| matches!(then, Then::GiveBack(i) if *i == index);
                if !self.then.iter().any(waits) {
                    self.quiesce(vec![index], Then::GiveBack(index));
                }
            }
            Message::Protected(_) => {}
            Message::Quiet(index) => self.on_quiet(index),
            Message::Neighbours(evidence) => {
                self.step_all(&Event::ServiceLinkEvidence(evidence));
            }
            Message::Crash { service, signal } => {
                match signal {
                    Some(signal) => self.events.add(
                        "server_crashed",
                        &format!("a server of service {service} died by signal {signal}: fenced"),
                        json!({"service": service, "signal": signal}),
                    ),
                    None => self.events.add(
                        "listener_closed",
                        &format!(
                            "service {service}: the server's listener was closed over connections \
                             that it had not accepted: fenced"
                        ),
                        json!({"service": service}),
                    ),
                }
                for index in 0..self.seats.len() {
                    let actions = self.seats[index].step(Event::ServerCrashed);
                    // A lease in answer means that nobody else can carry the flows.
                    if actions.iter().any(|action| matches!(action, Action::Lease { .. })) {
                        self.seats[index].switchboard.clear_crash_fence();
                        self.tell_output(index, output::Duty::CrashKept);
                    }
                    self.carry_out(index, actions);
                }
                self.recovery = Some(Instant::now() + RECOVERY);
            }
            Message::Switchover(answer) => self.quiesce(self.served(), Then::SwitchOver(answer)),
            Message::Shutdown => self.quiesce(self.served(), Then::ShutDown),
        }
    }

    /// The scopes whose flows this node serves.
    fn served(&self) -> Vec<usize> {
        let serves = |seat: &Seat| matches!(seat.view().role, cluster::Role::Primary { .. });
        (0..self.seats.len()).filter(|&index| serves(&self.seats[index])).collect()
    }

    /// Has the servers answer what they were asked about the flows in some scopes that the peer is to be
    /// handed: what they execute and do not answer would be executed again.
    fn quiesce(&mut self, mut scopes: Vec<usize>, then: Then) {
        // What will be refused has nobody waiting for it.
        scopes.retain(|&index| self.seats[index].may_switch_over());
        if self.output.is_none() || scopes.is_empty() {
            return self.go_on(then);
        }
        scopes.iter().for_each(|&index| self.tell_output(index, output::Duty::Quiesce));
        self.then.push((scopes, then));
    }

    fn on_quiet(&mut self, index: usize) {
        for (scopes, _) in &mut self.then {
            scopes.retain(|&scope| scope != index);
        }
        let all: Vec<_> = self.then.extract_if(.., |(scopes, _)| scopes.is_empty()).collect();
        all.into_iter().for_each(|(_, then)| self.go_on(then));
    }

    fn go_on(&mut self, then: Then) {
        match then {
            Then::SwitchOver(answer) => {
                // The operator may have left.
                let _ = answer.send(self.switch_over());
            }
            // Unless something has changed while the question was under way.
            Then::GiveBack(index) if self.seats[index].may_be_given_back() => {
                self.step(index, Event::SwitchoverRequested { by_user: false });
            }
            Then::GiveBack(_) => {}
            Then::ShutDown => self.step_all(&Event::Shutdown),
        }
    }

    /// The peer is to serve all that this node serves. Refused if it may have nothing of it.
    fn switch_over(&mut self) -> Result<(), String> {
        let mut ours = self.served();
        if ours.is_empty() {
            // Asked all the same: the core knows why not.
            ours.push(0);
        }
        let mut outcome = Ok(());
        for index in ours {
            let actions = self.seats[index].step(Event::SwitchoverRequested { by_user: true });
            let refusal = actions.iter().find_map(|action| match action {
                Action::Report(cluster::Notice::SwitchoverRefused { reason }) => Some(*reason),
                _ => None,
            });
            match refusal {
                Some(reason) => outcome = Err(notices::refusal(reason).to_owned()),
                None => self.seats[index].retire(),
            }
            self.carry_out(index, actions);
        }
        outcome
    }

    /// Flows that this node took over from the peer go back to it, once it is well again and would lose
    /// none of them (C6).
    fn give_back(&mut self, index: usize) {
        if let Some(duty) = self.seats[index].prepares_to_give_back() {
            self.tell_journal(index, duty);
        }
    }

    /// To the core a crash is the end of the server.
    fn recover(&mut self) {
        if self.recovery.take_if(|at| Instant::now() >= *at).is_some() && self.servers.all_listen()
        {
            self.step_all(&Event::ServiceReady(true));
        }
    }

    fn on_server(&mut self, event: supervisor::Event) {
        let was = self.servers.all_listen();
        self.servers.on_event(event, &self.events);
        let is = self.servers.all_listen();
        if is != was {
            self.step_all(&Event::ServiceReady(is));
        }
    }

    fn step_all(&mut self, event: &Event) {
        for index in 0..self.seats.len() {
            self.step(index, event.clone());
        }
    }

    fn step(&mut self, index: usize, event: Event) {
        let actions = self.seats[index].step(event);
        self.carry_out(index, actions);
    }

    fn carry_out(&mut self, index: usize, actions: Vec<Action>) {
        for action in actions {
            let seat = &mut self.seats[index];
            match action {
                Action::Send { link, msg } => self.send(index, link, msg),
                Action::SetRole { role, epoch } => {
                    match self.judge_start(index, role) {
                        Verdict::Free => {}
                        Verdict::FirstOfTwo(who) => self.events.add(
                            "start_beside_stranger",
                            &format!(
                                "{who}; nobody serves, and this node has the lower address: it \
                                 serves alone"
                            ),
                            json!({}),
                        ),
                        Verdict::Forbidden(why) => {
                            self.events.add("start_refused", &why, json!({}));
                            self.failed = Some(why);
                            return;
                        }
                    }
                    self.set_role(index, role, epoch);
                }
                Action::Lease { until } => seat.switchboard.set_lease(until),
                Action::Fence => seat.switchboard.set_lease(0),
                Action::Promote { reason, .. } => {
                    let by_silence = reason == cluster::PromoteReason::PrimarySilent;
                    let decision = Decision {
                        silence: seat.silence.filter(|_| by_silence),
                        promoted: hostnet::now_boottime_ns(),
                    };
                    self.tell_journal(index, Duty::Promote(decision));
                }
                Action::DiscardFlows => self.discard(index),
                // The first seat's word counts for all.
                Action::RelayVia { .. } | Action::HoldAddress(_) if index > 0 => {}
                Action::RelayVia { link } => {
                    self.set_relay(link);
                    self.journal.send(Order::Via(link));
                }
                Action::HoldAddress(true) => self.holder.hold(),
                Action::HoldAddress(false) => self.holder.let_go(),
                Action::ProbeServiceLink => self.ask_around(),
                // Only a configured arbiter is asked, and the configuration knows none yet.
                Action::AskArbiter { .. } => {}
                Action::Report(notice) => {
                    if let cluster::Notice::Suspected { last_heard, .. } = notice {
                        seat.silence = Some((last_heard, hostnet::now_boottime_ns()));
                    }
                    if let cluster::Notice::TwoPrimaries { yielded: true, .. } = notice {
                        self.give_way(index);
                    }
                    let (event, text, fields) = notices::describe(&notice);
                    // Of the peer and the links all seats say the same.
                    match notices::is_of_the_node(&notice) {
                        true if index == 0 => self.events.add(event, &text, fields),
                        true => {}
                        false => self.add_event(index, Moment::now(), event, &text, fields),
                    }
                }
                Action::Stop => seat.stopped = true,
                Action::WakeAt(at) => seat.wake_at = at,
            }
        }
    }

    fn send(&mut self, index: usize, link: Link, heartbeat: Heartbeat) {
        let count = |n: usize| u8::try_from(n).expect("there are two scopes at most");
        let statement =
            Statement { scopes: count(self.seats.len()), scope: count(index), heartbeat };
        let plaintext = postcard::to_allocvec(&statement).expect("a heartbeat can be written");
        let Some(datagram) = self.channel.seal(&plaintext) else { return };
        for socket in &mut self.sockets {
            if socket.link == link {
                socket.send(&datagram);
            }
        }
    }

    /// The first role of all: is somebody there who is not silent, only not understood? Nothing
    /// depends on this node yet, so it may take the time to ask the link.
    fn judge_start(&self, index: usize, role: cluster::Role) -> Verdict {
        let alone = role == cluster::Role::Primary { duplex: false };
        let understood = self.channel.established() && !self.refused.contains_key("roles");
        if self.seats[index].settled || !alone || understood {
            return Verdict::Free;
        }
        let held = || {
            let users = |&address: &IpAddr| {
                hostnet::users(&self.interfaces[0], address, super::CONFLICT_WAIT)
            };
            // All at once: this thread should be back soon.
            let answers: Vec<_> = std::thread::scope(|scope| {
                let asked: Vec<_> =
                    self.addresses.iter().map(|a| scope.spawn(move || users(a))).collect();
                asked.into_iter().map(|t| t.join().expect("the thread does not panic")).collect()
            });
            let users = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
            Ok(users.iter().flatten().any(|user| user.holds))
        };
        let peer = self.sockets[0].peer();
        self.stranger.judge([self.own_address, peer], Instant::now(), held)
    }

    fn set_role(&mut self, index: usize, role: cluster::Role, epoch: cluster::Epoch) {
        use cluster::Role;
        let (path, journal) = match role {
            Role::Starting | Role::Fenced => (datapath::Role::None, false),
            // A backup that is not armed passes on what reaches it by mistake, unlogged.
            Role::Backup { armed } => (datapath::Role::Backup, armed),
            Role::Primary { duplex } => (datapath::Role::Primary { duplex }, false),
        };
        // Before the role: an epoch that was acted in must not be forgotten.
        self.seats[index].epoch_file.write(epoch);
        self.keep_journal(index, journal);
        let seat = &mut self.seats[index];
        // The kernel acts in the role from here on, however late this thread comes to tell.
        let since = Moment::now();
        seat.switchboard.set_role(epoch.0 as u32, path);
        seat.note_role(role);
        self.tell_of_role(index, role, epoch);
        self.add_event(
            index,
            since,
            "role",
            &format!("epoch {}: {}", epoch.0, notices::role(role)),
            json!({"role": notices::role_name(role), "epoch": epoch.0,
                "duplex": role == Role::Primary { duplex: true }}),
        );
        if !self.settled && self.seats.iter().all(|seat| seat.settled) {
            self.settled = true;
            // Without systemd there is nobody to tell.
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        }
    }

    /// Tells of one seat; of which, if there are several.
    fn add_event(
        &self,
        index: usize,
        at: Moment,
        event: &'static str,
        text: &str,
        mut fields: Value,
    ) {
        match self.seats[index].scope.number() {
            None => self.events.add_as_of(at, event, text, fields),
            Some(number) => {
                fields["share"] = number.into();
                self.events.add_as_of(at, event, &format!("share {number}: {text}"), fields);
            }
        }
    }

    fn tell_journal(&self, index: usize, duty: Duty) {
        self.journal.send(Order::Of(index, duty));
    }

    fn tell_output(&self, index: usize, duty: output::Duty) {
        if let Some(output) = &self.output {
            output.send(output::Order::Of(index, duty));
        }
    }

    /// Those that speak with the peer about what servers write.
    fn tell_of_role(&self, index: usize, role: cluster::Role, epoch: cluster::Epoch) {
        use cluster::Role;
        if self.output.is_none() {
            return;
        }
        let duty = match role {
            Role::Primary { duplex: true } => output::Duty::Duplex { epoch: epoch.0 },
            Role::Primary { duplex: false } => output::Duty::Simplex,
            Role::Starting | Role::Fenced | Role::Backup { .. } => output::Duty::Silent,
        };
        self.tell_output(index, duty);
        match role {
            Role::Backup { armed: true } => self.tell_journal(index, Duty::Pair(epoch.0)),
            // A promotion hears the dead primary out first.
            Role::Primary { .. } => {}
            Role::Starting | Role::Fenced | Role::Backup { armed: false } => {
                self.tell_journal(index, Duty::Unpair);
            }
        }
    }

    /// A backup whose daemon no longer runs must not go on logging for nobody.
    fn keep_journal(&self, index: usize, alive: bool) {
        let until = match alive {
            true => hostnet::now_boottime_ns() + 2 * self.detection.as_nanos() as u64,
            false => 0,
        };
        self.seats[index].switchboard.set_journal_alive(until);
    }

    fn discard(&mut self, index: usize) {
        let (done, wait) = mpsc::channel();
        self.tell_journal(index, Duty::Discard(done));
        if wait.recv_timeout(Duration::from_secs(5)).is_err() {
            // Going on would let old flows look protected.
            tracing::error!("the journal does not answer; this node ends");
            std::process::abort();
        }
    }

    /// The last that this node says before its fence closes. It does not hold up the fence for long.
    fn give_way(&self, index: usize) {
        if self.output.is_some() {
            let (done, wait) = mpsc::channel();
            self.tell_journal(index, Duty::GiveWay(done));
            if wait.recv_timeout(self.detection / 2).is_err() {
                tracing::warn!("not all clients could be told that the peer serves as well");
            }
        }
    }

    fn ask_around(&self) {
        let peers = self.peer_macs.iter().flatten().copied().collect();
        // The thread lives as long as this one sends.
        let _ = self.asker.send(peers);
    }

    fn keep_channel(&mut self) {
        for datagram in self.channel.poll(self.started.elapsed()) {
            for socket in &mut self.sockets {
                socket.send(&datagram);
            }
        }
    }

    fn tell(&mut self) {
        let views: Vec<View> = self.seats.iter().map(Seat::view).collect();
        for (index, view) in views.iter().enumerate() {
            if matches!(view.role, cluster::Role::Backup { armed: true }) {
                self.keep_journal(index, true);
            }
        }
        let report = Report {
            views,
            at: hostnet::now_boottime_ns(),
            servers: self.servers.clone(),
            refused: self.refused.clone(),
        };
        // An operator's thread may hold the lock and be without the processor: never wait for it.
        if let Ok(mut told) = self.report.try_lock() {
            *told = Some(report);
        }
    }
}

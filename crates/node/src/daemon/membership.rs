//! The thread that speaks with the peer and steers the data path: the pure core of `cluster` with
//! its sockets, clock and kernel page.
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
use cluster::{Action, Core, Event, Evidence, Heartbeat, Link, View};
use control::{Channel, MAX_DATAGRAM};
use datapath::Switchboard;
use hostnet::{Interface, Mac, Monitor};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};
use serde_json::json;

use super::epoch_file::EpochFile;
use super::events::{Events, Moment};
use super::holder::Holder;
use super::inbox::{Inbox, Post};
use super::journal::Order;
use super::links::LinkSocket;
use super::notices;
use super::output;
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
    /// What asking around has found.
    Neighbours(Evidence),
    Shutdown,
}

/// What `status` shows of membership.
#[derive(Clone)]
pub struct Report {
    pub view: View,
    /// Own clock when `view` was taken.
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

/// How long a shutdown waits for the peer to take over.
const FAREWELL: Duration = Duration::from_secs(3);

pub struct Membership {
    core: Core,
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
    wake_at: u64,
    epoch_file: EpochFile,
    stopped: bool,
    /// A server has crashed: when to look whether it is served again.
    recovery: Option<Instant>,
    /// The peer's last heartbeat before it was last suspected, and when that was.
    silence: Option<(u64, u64)>,
    stranger: Stranger,
    /// On the service link.
    own_address: IpAddr,
    /// Why this node gives up.
    failed: Option<String>,
    /// The first role has been settled, and systemd told.
    settled: bool,
}

/// What the thread is made of.
pub struct Parts {
    pub core: Core,
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
        let Parts { mut core, channel, interfaces, switchboard, asker, .. } = parts;
        let Parts { journal, output, events, report, .. } = parts;
        let node = &config.node;
        let sockets =
            [LinkSocket::open(node, Link::Service)?, LinkSocket::open(node, Link::Cluster)?];
        let macs = [interfaces[0].ethernet()?, interfaces[1].ethernet()?];
        core.set_extra(macs.iter().flat_map(|mac| mac.0).collect());
        let addresses: Vec<IpAddr> =
            config.services.iter().flat_map(|service| service.addresses.clone()).collect();
        let holder = Holder::new(&interfaces[0], addresses.clone(), switchboard)?;
        Ok(Self {
            monitor: Monitor::new()?,
            servers: Servers::new(&config.services),
            detection: node.detection(),
            core,
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
            wake_at: 0,
            epoch_file: EpochFile::new(&node.state_dir),
            stopped: false,
            recovery: None,
            silence: None,
            stranger: Stranger::default(),
            own_address: node.address.service,
            failed: None,
            settled: false,
        })
    }

    /// Runs until the core says that nothing depends on this node any more.
    pub fn run(mut self, inbox: &Inbox<Message>) -> anyhow::Result<()> {
        let mut farewell: Option<Instant> = None;
        // A link that is down from the start is told like one that goes down.
        for (link, index) in [(Link::Service, 0), (Link::Cluster, 1)] {
            if !self.interfaces[index].carrier {
                self.step(Event::Carrier { link, up: false });
            }
        }
        self.step(Event::Tick);
        while !self.stopped && farewell.is_none_or(|deadline| Instant::now() < deadline) {
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
            if hostnet::now_boottime_ns() >= self.wake_at {
                self.step(Event::Tick);
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

    fn sleep(&mut self, inbox: &Inbox<Message>) -> anyhow::Result<()> {
        let mut wait =
            Duration::from_nanos(self.wake_at.saturating_sub(hostnet::now_boottime_ns()))
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
                match postcard::from_bytes::<Heartbeat>(&plaintext) {
                    Ok(msg) => {
                        self.learn_macs(&msg.extra);
                        self.step(Event::Heartbeat { link, msg });
                    }
                    Err(_) => self.count_refusal("unreadable", "a heartbeat of the peer cannot be read; install the same release on both nodes"),
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
                            self.step(Event::Carrier { link, up: event.carrier });
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
            Message::Neighbours(evidence) => self.step(Event::ServiceLinkEvidence(evidence)),
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
                let actions = self.core.step(Event::ServerCrashed, hostnet::now_boottime_ns());
                // A lease in answer means that nobody else can carry the flows.
                if actions.iter().any(|action| matches!(action, Action::Lease { .. })) {
                    self.switchboard.clear_crash_fence();
                    if let Some(output) = &self.output {
                        output.send(output::Order::CrashKept);
                    }
                }
                self.carry_out(actions);
                self.recovery = Some(Instant::now() + RECOVERY);
            }
            Message::Switchover(answer) => {
                let event = Event::SwitchoverRequested { by_user: true };
                let actions = self.core.step(event, hostnet::now_boottime_ns());
                let refusal = actions.iter().find_map(|action| match action {
                    Action::Report(cluster::Notice::SwitchoverRefused { reason }) => {
                        Some(notices::refusal(*reason).to_owned())
                    }
                    _ => None,
                });
                self.carry_out(actions);
                // The operator may have left.
                let _ = answer.send(refusal.map_or(Ok(()), Err));
            }
            Message::Shutdown => self.step(Event::Shutdown),
        }
    }

    /// To the core a crash is the end of the server.
    fn recover(&mut self) {
        if self.recovery.take_if(|at| Instant::now() >= *at).is_some() && self.servers.all_listen()
        {
            self.step(Event::ServiceReady(true));
        }
    }

    fn on_server(&mut self, event: supervisor::Event) {
        let was = self.servers.all_listen();
        self.servers.on_event(event, &self.events);
        let is = self.servers.all_listen();
        if is != was {
            self.step(Event::ServiceReady(is));
        }
    }

    fn step(&mut self, event: Event) {
        let actions = self.core.step(event, hostnet::now_boottime_ns());
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { link, msg } => self.send(link, &msg),
                Action::SetRole { role, epoch } => {
                    match self.judge_start(role) {
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
                            self.stopped = true;
                            return;
                        }
                    }
                    self.set_role(role, epoch);
                }
                Action::Lease { until } => self.switchboard.set_lease(until),
                Action::Fence => self.switchboard.set_lease(0),
                Action::Promote { reason, .. } => {
                    let by_silence = reason == cluster::PromoteReason::PrimarySilent;
                    self.journal.send(Order::Promote(Decision {
                        silence: self.silence.filter(|_| by_silence),
                        promoted: hostnet::now_boottime_ns(),
                    }));
                }
                Action::DiscardFlows => self.discard(),
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
                        self.silence = Some((last_heard, hostnet::now_boottime_ns()));
                    }
                    if let cluster::Notice::TwoPrimaries { yielded: true, .. } = notice {
                        self.give_way();
                    }
                    let (event, text, fields) = notices::describe(&notice);
                    self.events.add(event, &text, fields);
                }
                Action::Stop => self.stopped = true,
                Action::WakeAt(at) => self.wake_at = at,
            }
        }
    }

    fn send(&mut self, link: Link, msg: &Heartbeat) {
        let plaintext = postcard::to_allocvec(msg).expect("a heartbeat can be written");
        let Some(datagram) = self.channel.seal(&plaintext) else { return };
        for socket in &mut self.sockets {
            if socket.link == link {
                socket.send(&datagram);
            }
        }
    }

    /// The first role of all: is somebody there who is not silent, only not understood? Nothing
    /// depends on this node yet, so it may take the time to ask the link.
    fn judge_start(&self, role: cluster::Role) -> Verdict {
        let alone = role == cluster::Role::Primary { duplex: false };
        if self.settled || !alone || self.channel.established() {
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

    fn set_role(&mut self, role: cluster::Role, epoch: cluster::Epoch) {
        use cluster::Role;
        let (path, journal) = match role {
            Role::Starting | Role::Fenced => (datapath::Role::None, false),
            // A backup that is not armed passes on what reaches it by mistake, unlogged.
            Role::Backup { armed } => (datapath::Role::Backup, armed),
            Role::Primary { duplex } => (datapath::Role::Primary { duplex }, false),
        };
        // Before the role: an epoch that was acted in must not be forgotten.
        self.epoch_file.write(epoch);
        self.keep_journal(journal);
        // The kernel acts in the role from here on, however late this thread comes to tell.
        let since = Moment::now();
        self.switchboard.set_role(epoch.0 as u32, path);
        self.tell_of_role(role, epoch);
        self.events.add_as_of(
            since,
            "role",
            &format!("epoch {}: {}", epoch.0, notices::role(role)),
            json!({"role": notices::role_name(role), "epoch": epoch.0,
                "duplex": role == Role::Primary { duplex: true }}),
        );
        if !self.settled && !matches!(role, Role::Starting) {
            self.settled = true;
            // Without systemd there is nobody to tell.
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        }
    }

    /// Those that speak with the peer about what servers write.
    fn tell_of_role(&self, role: cluster::Role, epoch: cluster::Epoch) {
        use cluster::Role;
        let Some(output) = &self.output else { return };
        output.send(match role {
            Role::Primary { duplex: true } => output::Order::Duplex { epoch: epoch.0 },
            Role::Primary { duplex: false } => output::Order::Simplex,
            Role::Starting | Role::Fenced | Role::Backup { .. } => output::Order::Silent,
        });
        match role {
            Role::Backup { armed: true } => self.journal.send(Order::Pair(epoch.0)),
            // A promotion hears the dead primary out first.
            Role::Primary { .. } => true,
            Role::Starting | Role::Fenced | Role::Backup { armed: false } => {
                self.journal.send(Order::Unpair)
            }
        };
    }

    /// A backup whose daemon no longer runs must not go on logging for nobody.
    fn keep_journal(&self, alive: bool) {
        let until = match alive {
            true => hostnet::now_boottime_ns() + 2 * self.detection.as_nanos() as u64,
            false => 0,
        };
        self.switchboard.set_journal_alive(until);
    }

    fn discard(&mut self) {
        let (done, wait) = mpsc::channel();
        self.journal.send(Order::Discard(done));
        if wait.recv_timeout(Duration::from_secs(5)).is_err() {
            // Going on would let old flows look protected.
            tracing::error!("the journal does not answer; this node ends");
            std::process::abort();
        }
    }

    /// The last that this node says before its fence closes. It does not hold up the fence for long.
    fn give_way(&self) {
        if self.output.is_some() {
            let (done, wait) = mpsc::channel();
            self.journal.send(Order::GiveWay(done));
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
        let view = self.core.view();
        if matches!(view.role, cluster::Role::Backup { armed: true }) {
            self.keep_journal(true);
        }
        let report = Report {
            view,
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

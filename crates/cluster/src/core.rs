//! The state of one node and the order in which a step is done.
//!
//! The problem: two nodes, clocks that disagree, links that lose, processes that stop for
//! seconds and go on as if nothing had happened, and never may both emit. The obvious design, a
//! handler per message, fails on histories nobody wrote a handler for. So a step has two halves.
//! First the event changes *facts* (what was heard, when, over what). Then rules look at the
//! facts as a whole and change the state until none applies. It does not matter which event
//! brought the facts about.
//!
//! What the rules rest on:
//!
//! - **Lease.** An armed backup promotes no sooner than the detection time after the newest
//!   heartbeat it heard. The primary's lease for that heartbeat has ended by then on any clock
//!   within the drift, because it runs from *sending*.
//! - **Fresh.** A statement is fresh if it echoes a heartbeat that this node sent less than a
//!   lease ago: its sender heard this node then, so it cannot since have concluded that this
//!   node is gone. Nothing but a fresh statement takes a right from its sender. This is what
//!   makes queues that drain after a pause harmless.
//! - **Attentive.** Silence counts only while this node was running.
//! - **Present.** The alone wait bears pauses too short to miss a peer in: a lease is written only
//!   by a node that has run, and sent, for a detection time. So a node that stops for a moment
//!   each second still serves one day.
//! - **Attached.** Without an arbiter a node takes the peer's silence for its death only if
//!   somebody else is heard on the service link. A node that is cut off wholly hears the same
//!   silence; as long as nobody hears it, to serve would gain nothing, and once it is plugged in
//!   again two would serve.
//! - **Doubt.** A node that did not send for most of a detection time may have been given up by
//!   a peer that has since frozen. Until the peer has answered a newer heartbeat, silence proves
//!   nothing; only the alone wait, longer than any unattended kernel goes on, does.

use crate::config::{ArbiterKind, Config, ConfigError};
use crate::event::{Action, Claim, Event};
use crate::links::Links;
use crate::message::{
    EXTRA_MAX, Echo, Epoch, Heartbeat, Incarnation, Link, Nanos, Role, ServiceLink,
};
use crate::notice::{Notice, PeerView, View};

/// What this node is. The epoch stands beside it in `Core`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    /// Backup without part in the epoch; holds no flows.
    Following,
    /// Backup that grants leases to this incarnation of the peer.
    Armed {
        primary: Incarnation,
    },
    /// Primary alone.
    Simplex,
    /// Primary under leases of this incarnation of the peer.
    Duplex {
        backup: Incarnation,
        /// It has said so: the address is its business now.
        seen_armed: bool,
    },
    /// Primary that gave up its epoch.
    Fenced,
}

/// The peer, as last heard.
#[derive(Debug)]
pub(crate) struct Peer {
    pub msg: Heartbeat,
    pub heard_at: Nanos,
}

/// The part of a statement by which two idle nodes rank each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    role: Role,
    epoch: Epoch,
    leaving: bool,
    service_link: ServiceLink,
}

/// A question to the external arbiter.
#[derive(Debug)]
pub(crate) struct Pending {
    pub epoch: Epoch,
    pub claim: Claim,
    pub ask_again: Nanos,
    pub granted: Option<Epoch>,
}

/// Membership, lease and epoch of one node of a pair.
#[derive(Debug)]
pub struct Core {
    pub(crate) config: Config,
    pub(crate) incarnation: Incarnation,
    pub(crate) started: bool,
    pub(crate) now: Nanos,
    pub(crate) state: State,
    /// Never decreases.
    pub(crate) epoch: Epoch,
    /// Fence deadline as last written; 0 unless primary.
    pub(crate) lease: Nanos,
    holding: bool,
    pub(crate) relay_via: Link,

    pub(crate) ready: bool,
    /// Servers did listen once: not ready then means failed, not starting.
    pub(crate) was_ready: bool,
    pub(crate) leaving: bool,
    stopped: bool,
    extra: Vec<u8>,

    pub(crate) peer: Option<Peer>,
    pub(crate) suspected: bool,
    /// A claim waits for a sign that it is not this node that is cut off.
    pub(crate) cut_off: bool,
    /// By then a living peer is heard, if this node was plugged in again just before that sign.
    pub(crate) listen_until: Nanos,
    pub(crate) links: Links,
    /// Life of the peer that said it is in this node's epoch while this node served in it. Epochs
    /// of one life only grow: as long as it says so it has served in none since.
    pub(crate) follower: Option<Incarnation>,
    pub(crate) rival_reported: Option<(Incarnation, Epoch)>,

    born: Nanos,
    pub(crate) attentive_since: Nanos,
    /// End of the last pause long enough to miss a living peer in; see the file's head.
    pub(crate) present_since: Nanos,
    /// See the file's head. Meaningful while armed or duplex.
    pub(crate) doubt: bool,
    /// First heartbeat sent after the last gap.
    pub(crate) wake_seq: u64,

    pub(crate) seq: u64,
    pub(crate) last_sent: Option<Heartbeat>,
    /// First heartbeat that told the present standing.
    standing_seq: u64,

    pub(crate) pending: Option<Pending>,
    pub(crate) out: Vec<Action>,
}

impl Core {
    /// A node that knows nothing. Its kernel must let nothing out yet. `incarnation` must be
    /// larger than that of any earlier life of this node.
    pub fn new(config: Config, now: Nanos, incarnation: u64) -> Result<Core, ConfigError> {
        config.validate()?;
        Ok(Core {
            epoch: config.last_epoch,
            config,
            incarnation: Incarnation(incarnation),
            started: false,
            now,
            state: State::Starting,
            lease: 0,
            holding: false,
            relay_via: Link::Cluster,
            ready: false,
            was_ready: false,
            leaving: false,
            stopped: false,
            extra: Vec::new(),
            peer: None,
            suspected: false,
            cut_off: false,
            listen_until: 0,
            links: Links::new(),
            follower: None,
            rival_reported: None,
            born: now,
            attentive_since: now,
            present_since: now,
            doubt: false,
            wake_seq: 0,
            seq: 0,
            last_sent: None,
            standing_seq: 0,
            pending: None,
            out: Vec::new(),
        })
    }

    /// Sets the payload that heartbeats carry from the next step on; cut at `EXTRA_MAX` bytes.
    pub fn set_extra(&mut self, mut extra: Vec<u8>) {
        extra.truncate(EXTRA_MAX);
        self.extra = extra;
    }

    /// Changes what the configuration said of this node's preference, from the next heartbeat on.
    pub fn set_prefers_primary(&mut self, prefers: bool) {
        self.config.prefers_primary = prefers;
    }

    /// Takes one event and returns what to do, in order. `now` is this node's monotonic clock; a
    /// value below the last one counts as the last one.
    pub fn step(&mut self, event: Event, now: Nanos) -> Vec<Action> {
        let gap = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        self.notice_own_pause(gap);
        if !self.started {
            self.started = true;
            self.out.push(Action::Fence);
            self.out.push(Action::SetRole { role: self.role(), epoch: self.epoch });
            self.out.push(Action::HoldAddress(false));
            self.out.push(Action::RelayVia { link: self.relay_via });
        }
        self.take(event);
        self.notice_silence();
        self.judge_links();
        let mut rounds = 0;
        while self.decide() {
            rounds += 1;
            assert!(rounds < 16, "rules contradict each other in {:?}", self.state);
        }
        self.keep_house();
        self.check();
        std::mem::take(&mut self.out)
    }

    /// The state, for `status`.
    pub fn view(&self) -> View {
        let peer_msg = self.peer.as_ref().map(|peer| &peer.msg);
        View {
            role: self.role(),
            epoch: self.epoch,
            incarnation: self.incarnation,
            lease_until: self.lease,
            holds_address: self.holding,
            service_ready: self.ready,
            leaving: self.leaving,
            prefers_primary: self.config.prefers_primary,
            service_link: self.links.verdict(),
            cluster_path: self.links.path(Link::Cluster, peer_msg),
            service_path: self.links.path(Link::Service, peer_msg),
            relay_via: self.relay_via,
            peer: self.peer.as_ref().map(|peer| PeerView {
                role: peer.msg.role,
                epoch: peer.msg.epoch,
                incarnation: peer.msg.incarnation,
                last_heard: peer.heard_at,
                silent: self.suspected,
                service_ready: peer.msg.service_ready,
                service_link: peer.msg.service_link,
                prefers_primary: peer.msg.prefers_primary,
                extra: peer.msg.extra.clone(),
            }),
        }
    }

    // ---- questions the rules ask ----

    pub(crate) fn report(&mut self, notice: Notice) {
        self.out.push(Action::Report(notice));
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// For how long the peer has not been heard while this node was listening.
    pub(crate) fn silence(&self) -> Nanos {
        self.now - self.heard_at().max(self.attentive_since)
    }

    /// Whether the alone wait is over: the peer, if there is one, holds no lease.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_silent() && self.now >= self.alone_at()
    }

    fn alone_at(&self) -> Nanos {
        self.heard_at().max(self.present_since) + self.config.alone_wait()
    }

    fn heard_at(&self) -> Nanos {
        self.peer.as_ref().map_or(self.born, |peer| peer.heard_at)
    }

    /// The peer's statement, unless it is silent.
    pub(crate) fn heard(&self) -> Option<&Heartbeat> {
        self.peer.as_ref().map(|peer| &peer.msg).filter(|_| !self.suspected)
    }

    /// Nobody listens, and not because the servers are still starting: they did listen once, or
    /// have had the start-up wait for it.
    pub(crate) fn servers_have_failed(&self) -> bool {
        let starting = !self.was_ready && self.now < self.born + self.config.startup_wait;
        !self.ready && !starting
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.silence() >= self.config.detection
    }

    /// See the file's head.
    pub(crate) fn is_fresh(&self, msg: &Heartbeat) -> bool {
        msg.echo.is_some_and(|echo| self.now < echo.sent_at + self.config.lease())
    }

    /// Fresh, and made in the knowledge of what this node is now.
    pub(crate) fn is_mutual(&self, msg: &Heartbeat) -> bool {
        let told = self.last_sent.as_ref().map(Standing::of) == Some(self.standing());
        let known = msg.echo.is_some_and(|echo| echo.seq >= self.standing_seq);
        told && known && self.is_fresh(msg)
    }

    /// Whether this node's service link is dead and the peer's works. The peer must know of the
    /// first when it claims the second: else both may have lost the link in the same instant.
    pub(crate) fn is_cut_off_alone(&self, msg: &Heartbeat) -> bool {
        self.links.verdict() == ServiceLink::Dead
            && msg.service_link == ServiceLink::Alive
            && self.is_mutual(msg)
    }

    /// Whether silence alone suffices for this node's claim to the next epoch.
    pub(crate) fn may_claim_by_lease(&self) -> bool {
        !self.doubt || self.config.arbiter == ArbiterKind::External
    }

    /// See the file's head. Whoever answers when the peer has been silent for longer than a living
    /// one ever is answers for the whole silence. An arbiter that can be asked knows better.
    pub(crate) fn is_attached(&self) -> bool {
        let since = self.now - self.silence() + self.config.telling_silence();
        self.config.arbiter == ArbiterKind::External
            || self.links.answered_at().is_some_and(|at| at >= since)
    }

    /// Whether this node may soon claim something, and does not know if it is cut off.
    pub(crate) fn must_ask(&self) -> bool {
        self.state != State::Simplex
            && self.silence() >= self.config.telling_silence()
            && !self.is_attached()
    }

    /// Whether the silence that a claim is to rest on is the peer's, and not this node's own.
    pub(crate) fn silence_is_the_peers(&mut self) -> bool {
        if self.is_attached() {
            return self.now >= self.listen_until;
        }
        if !self.cut_off {
            self.cut_off = true;
            self.report(Notice::CutOff);
        }
        // The peer may have gone on without this node, and be gone since.
        if self.silence() >= self.config.answer_by() {
            self.doubt = true;
            self.wake_seq = self.seq + 1;
        }
        false
    }

    /// Asks for the right to serve alone. `None` until it is granted. Without an arbiter the
    /// answer is yes, at once.
    pub(crate) fn obtain(&mut self, claim: Claim, epoch: Epoch) -> Option<Epoch> {
        if self.config.arbiter == ArbiterKind::None {
            return Some(epoch);
        }
        let pending = self
            .pending
            .take_if(|pending| (pending.epoch, pending.claim) == (epoch, claim))
            .unwrap_or(Pending { epoch, claim, ask_again: 0, granted: None });
        let granted = pending.granted;
        let ask = granted.is_none() && self.now >= pending.ask_again;
        self.pending = Some(pending);
        if ask {
            let ask_again = self.now + self.config.detection;
            self.pending.as_mut().expect("just set").ask_again = ask_again;
            self.out.push(Action::AskArbiter { epoch, claim });
        }
        granted
    }

    // ---- after the rules ----

    fn keep_house(&mut self) {
        if self.state == State::Simplex {
            let until = self.now + self.config.solo_lease();
            let attentive = self.now - self.attentive_since >= self.config.detection;
            // Renewed only after running long enough that a running peer must have heard this
            // node: so the peer's alone wait covers every lease written.
            if attentive && until - self.lease >= self.config.heartbeat() {
                self.lease = until;
                self.out.push(Action::Lease { until });
            }
        }
        let hold = match self.state {
            State::Simplex | State::Armed { .. } => true,
            State::Duplex { seen_armed, .. } => !seen_armed,
            State::Starting | State::Following | State::Fenced => false,
        };
        if hold != self.holding {
            self.holding = hold;
            self.out.push(Action::HoldAddress(hold));
        }
        self.send_if_due();
        if self.leaving && !self.stopped && self.may_stop() {
            self.stopped = true;
            self.out.push(Action::Stop);
        }
        let wake = self.next_wake();
        self.out.push(Action::WakeAt(wake));
    }

    fn send_if_due(&mut self) {
        let mut msg = self.statement();
        let due = self.last_sent.as_ref().is_none_or(|last| {
            let news =
                Heartbeat { seq: last.seq, sent_at: last.sent_at, echo: last.echo, ..msg.clone() }
                    != *last;
            news || self.now >= self.next_beat()
        });
        if !due {
            return;
        }
        self.seq += 1;
        msg.seq = self.seq;
        if self.last_sent.as_ref().map(Standing::of) != Some(Standing::of(&msg)) {
            self.standing_seq = msg.seq;
        }
        for link in Link::ALL {
            self.out.push(Action::Send { link, msg: msg.clone() });
        }
        self.last_sent = Some(msg);
    }

    fn statement(&self) -> Heartbeat {
        Heartbeat {
            incarnation: self.incarnation,
            seq: 0,
            sent_at: self.now,
            echo: self.peer.as_ref().map(|peer| Echo {
                incarnation: peer.msg.incarnation,
                seq: peer.msg.seq,
                sent_at: peer.msg.sent_at,
            }),
            role: self.role(),
            epoch: self.epoch,
            enrolled: match self.state {
                State::Duplex { backup, .. } => Some(backup),
                _ => None,
            },
            service_ready: self.ready,
            leaving: self.leaving,
            prefers_primary: self.config.prefers_primary,
            hears_cluster: self.links.hears(Link::Cluster),
            hears_service: self.links.hears(Link::Service),
            service_link: self.links.verdict(),
            extra: self.extra.clone(),
        }
    }

    fn standing(&self) -> Standing {
        Standing {
            role: self.role(),
            epoch: self.epoch,
            leaving: self.leaving,
            service_link: self.links.verdict(),
        }
    }

    pub(crate) fn role(&self) -> Role {
        match self.state {
            State::Starting => Role::Starting,
            State::Following => Role::Backup { armed: false },
            State::Armed { .. } => Role::Backup { armed: true },
            State::Simplex => Role::Primary { duplex: false },
            State::Duplex { .. } => Role::Primary { duplex: true },
            State::Fenced => Role::Fenced,
        }
    }

    /// Whether nothing depends on this node any more.
    fn may_stop(&self) -> bool {
        let served = self.heard().is_some_and(|m| m.role == Role::Primary { duplex: false });
        match self.state {
            State::Starting => true,
            State::Following | State::Fenced => {
                served || self.peer.is_none() || self.suspected || self.is_silent()
            }
            State::Armed { .. } | State::Simplex | State::Duplex { .. } => false,
        }
    }

    /// When the next heartbeat is due if nothing changes.
    fn next_beat(&self) -> Nanos {
        let Some(last) = &self.last_sent else { return self.now };
        // A backup keeps step with its primary: the lease is renewed a journey after the
        // heartbeat left, instead of up to one interval later.
        let newest = self.peer.as_ref().map(|peer| peer.msg.seq);
        let unanswered =
            matches!(self.state, State::Armed { .. }) && last.echo.map(|echo| echo.seq) != newest;
        let interval = self.config.heartbeat();
        last.sent_at + if unanswered { interval / 2 } else { interval }
    }

    fn next_wake(&self) -> Nanos {
        let silent_since = self.now - self.silence();
        let ask_at = match self.must_ask() {
            true => self.links.next_question(),
            false => silent_since + self.config.telling_silence(),
        };
        [silent_since + self.config.detection, self.alone_at(), ask_at, self.listen_until]
            .into_iter()
            .filter(|&at| at > self.now)
            .fold(self.next_beat(), Nanos::min)
    }

    /// What every state must satisfy between steps.
    fn check(&self) {
        let primary = matches!(self.state, State::Simplex | State::Duplex { .. });
        assert!(primary || self.lease == 0, "lease without being primary");
        assert!(
            !matches!(self.state, State::Duplex { .. })
                || self.lease <= self.now + self.config.lease(),
            "lease beyond what a backup can have granted"
        );
        assert!(
            !primary || self.lease <= self.now + self.config.solo_lease(),
            "lease beyond the solo lease"
        );
        assert!(!primary || self.epoch > Epoch(0), "primary without an epoch");
    }
}

impl Standing {
    fn of(msg: &Heartbeat) -> Standing {
        Standing {
            role: msg.role,
            epoch: msg.epoch,
            leaving: msg.leaving,
            service_link: msg.service_link,
        }
    }
}

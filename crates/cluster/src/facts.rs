//! From events to facts: what was heard, when, over which link, and whether this node was there
//! to hear it. Nothing here decides about roles, except that a request from outside (crash,
//! switchover, arbiter) is answered in the step that brings it.

use crate::core::{Core, Peer, State};
use crate::event::{Action, Claim, Event, Evidence, Verdict};
use crate::links::Moment;
use crate::message::{Epoch, Heartbeat, Link, Nanos, Role};
use crate::notice::{HandoverReason, Notice};

impl Core {
    pub(crate) fn notice_own_pause(&mut self, gap: Nanos) {
        if !self.started {
            (self.attentive_since, self.present_since) = (self.now, self.now);
            return;
        }
        if gap > self.config.inattentive_gap() {
            self.attentive_since = self.now;
            self.wake_seq = self.seq + 1;
            self.out.push(Action::Report(Notice::Paused { gap }));
        }
        if gap >= self.config.doubt_gap() {
            self.present_since = self.now;
        }
        let unsent = self.last_sent.as_ref().map_or(0, |msg| self.now - msg.sent_at.min(self.now));
        if unsent >= self.config.doubt_gap() {
            self.doubt = true;
            self.wake_seq = self.seq + 1;
        }
    }

    pub(crate) fn take(&mut self, event: Event) {
        match event {
            Event::Tick => {}
            Event::Heartbeat { link, msg } => self.take_heartbeat(link, msg),
            Event::Carrier { link, up } => self.links.carrier(link, up),
            Event::ServiceLinkEvidence(evidence) => self.take_evidence(evidence),
            Event::ServiceReady(ready) => {
                self.ready = ready;
                self.was_ready |= ready;
            }
            Event::ServerCrashed => self.server_crashed(),
            Event::SwitchoverRequested { by_user } => self.switchover_requested(if by_user {
                HandoverReason::UserRequest
            } else {
                HandoverReason::PolicyRequest
            }),
            Event::Arbiter { asked, verdict } => self.take_verdict(asked, verdict),
            Event::Shutdown => self.leaving = true,
        }
    }

    fn take_evidence(&mut self, evidence: Evidence) {
        let knew = self.is_attached();
        self.links.evidence(evidence, self.now);
        if !knew && self.is_attached() {
            self.cut_off = false;
            self.listen_until = self.now + self.config.listen();
            if self.silence() >= self.config.answer_by() {
                // That was this node's own. The peer's begins now.
                (self.attentive_since, self.present_since) = (self.now, self.now);
            }
        }
    }

    fn take_heartbeat(&mut self, link: Link, mut msg: Heartbeat) {
        if !msg.is_sane() {
            self.report(Notice::BadHeartbeat);
            return;
        }
        // An echo of something this life never sent tells nothing.
        msg.echo = msg.echo.filter(|echo| {
            let sent = self.last_sent.as_ref().map_or(0, |last| last.sent_at);
            echo.incarnation == self.incarnation && echo.seq <= self.seq && echo.sent_at <= sent
        });
        let Some(peer) = &self.peer else {
            self.report(Notice::PeerHeard { incarnation: msg.incarnation });
            self.links.peer_returned(self.now);
            self.links.heard(link, msg.seq, self.now);
            self.accept(msg);
            return;
        };
        let known = peer.msg.incarnation;
        if msg.incarnation != known {
            // A number that went back (a clock set wrong) is believed only once the known life
            // is surely over and the new one has proved that it speaks now.
            let gone = self.is_alone();
            if msg.incarnation < known && !(gone && self.is_fresh(&msg)) {
                return;
            }
            // What happened while the old life was silent is not known.
            if self.now - peer.heard_at >= self.config.detection {
                self.doubt = true;
            }
            self.report(Notice::PeerRestarted { old: known, new: msg.incarnation });
            self.links.peer_restarted();
        } else if msg.seq <= peer.msg.seq {
            self.links.heard(link, msg.seq, self.now);
            return;
        }
        if self.suspected {
            self.report(Notice::PeerHeard { incarnation: msg.incarnation });
            self.links.peer_returned(self.now);
        }
        self.links.heard(link, msg.seq, self.now);
        self.accept(msg);
    }

    /// `msg` is the newest statement of the peer.
    fn accept(&mut self, msg: Heartbeat) {
        self.suspected = false;
        self.cut_off = false;
        // Claims rest on silence.
        self.pending = None;
        if self.now < self.lease && msg.epoch == self.epoch && !msg.is_primary() {
            self.follower = Some(msg.incarnation);
        }
        let answers_wake = msg.echo.is_some_and(|echo| echo.seq >= self.wake_seq);
        match self.state {
            State::Duplex { backup, .. } => {
                let grants = msg.role == (Role::Backup { armed: true })
                    && msg.epoch == self.epoch
                    && msg.incarnation == backup;
                if let (true, Some(echo)) = (grants, msg.echo) {
                    let until = echo.sent_at + self.config.lease();
                    if until > self.lease {
                        self.lease = until;
                        self.out.push(Action::Lease { until });
                    }
                    self.doubt &= !(answers_wake && self.is_fresh(&msg));
                }
            }
            State::Armed { primary } => {
                let mine = msg.incarnation == primary
                    && msg.epoch == self.epoch
                    && msg.enrolled == Some(self.incarnation);
                if mine && answers_wake && self.is_fresh(&msg) {
                    self.doubt = false;
                }
            }
            _ => {}
        }
        self.peer = Some(Peer { msg, heard_at: self.now });
    }

    fn take_verdict(&mut self, asked: Epoch, verdict: Verdict) {
        let Some(pending) = &mut self.pending else { return };
        if pending.epoch != asked {
            return;
        }
        match verdict {
            // A late answer to a claim of the other kind for the same epoch: the arbiter has
            // not kept this epoch for us.
            Verdict::Granted { epoch } if pending.claim == Claim::Lease && epoch != asked => {}
            Verdict::Granted { epoch } => {
                let sane = Some(epoch).filter(|&epoch| epoch <= Epoch::MAX_HEARD);
                pending.granted = Some(sane.unwrap_or(asked).max(asked));
            }
            Verdict::Refused => {
                pending.ask_again = self.now + 5 * self.config.detection;
                let claim = pending.claim;
                self.report(Notice::ArbiterRefused { epoch: asked });
                if claim == Claim::Lease {
                    self.lost_the_epoch();
                }
            }
        }
    }

    pub(crate) fn notice_silence(&mut self) {
        let silent_for = self.silence();
        let Some(peer) = &self.peer else { return };
        if !self.suspected && silent_for >= self.config.detection {
            let last_heard = peer.heard_at;
            self.suspected = true;
            self.links.peer_silent();
            self.report(Notice::Suspected { last_heard, silent_for });
            if matches!(self.state, State::Armed { .. }) && !self.may_claim_by_lease() {
                self.report(Notice::InDoubt { wait: self.config.alone_wait() });
            }
        }
    }

    pub(crate) fn judge_links(&mut self) {
        let moment = Moment {
            now: self.now,
            attentive_since: self.attentive_since,
            detection: self.config.detection,
            heal_wait: self.config.heal_wait(),
        };
        let peer = self.peer.as_ref().map(|peer| &peer.msg);
        let (notices, probe) = self.links.judge(moment, peer);
        let (cluster, service) =
            (self.links.usable(Link::Cluster, peer), self.links.usable(Link::Service, peer));
        self.out.extend(notices.into_iter().map(Action::Report));
        let again_after =
            (self.silence() / 4).clamp(self.config.heartbeat(), self.config.heal_wait());
        if probe || self.must_ask() && self.links.ask(self.now, again_after) {
            self.out.push(Action::ProbeServiceLink);
        }
        let via = match (cluster, service) {
            (true, _) => Link::Cluster,
            (false, true) => Link::Service,
            (false, false) => self.relay_via,
        };
        // Before the peer is known to hear, nothing is known to be broken.
        if via != self.relay_via && !self.suspected {
            self.relay_via = via;
            self.out.push(Action::RelayVia { link: via });
        }
    }
}

//! Asks around on the service link whether anybody is there, on a thread of its own.
//!
//! The question comes while the peer is silent, so the membership thread must decide within
//! milliseconds. Listing the kernel's neighbours and closing a packet socket can take hundreds (a
//! lock that others hold, an RCU grace period; `docs/kernel-facts.md`).

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::Context;
use cluster::Evidence;
use datapath::{FlowTable, Switchboard};
use hostnet::{Interface, LinkError, LinkEvidence, Mac, Prober};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};

/// Neighbours asked, and flows whose clients are.
const ASKED: usize = 16;
/// How often it looks whether frames have come that nobody asked for.
const LOOK: Duration = Duration::from_millis(2);

/// What the thread is made of.
pub struct Parts {
    /// On the service link.
    pub interface: Interface,
    pub switchboard: Switchboard,
    pub flows: FlowTable,
    /// How long neighbours have for an answer.
    pub patience: Duration,
}

/// Starts it. It is sent the peer's addresses, which are not asked; each question is answered, but
/// those that come while it asks, together.
pub fn start(
    parts: Parts,
    answer: impl Fn(Evidence) -> bool + Send + 'static,
) -> anyhow::Result<Sender<Vec<Mac>>> {
    let prober = Prober::open(&parts.interface)?;
    let (sender, questions) = mpsc::channel();
    std::thread::Builder::new()
        .name("asker".into())
        .spawn(move || {
            super::run_in_real_time();
            run(&parts, &prober, &questions, answer);
        })
        .context("cannot start a thread")?;
    Ok(sender)
}

fn run(
    parts: &Parts,
    prober: &Prober,
    questions: &Receiver<Vec<Mac>>,
    answer: impl Fn(Evidence) -> bool,
) {
    while let Ok(peers) = questions.recv() {
        let peers = questions.try_iter().last().unwrap_or(peers);
        let evidence = ask(parts, prober, &peers).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot probe the service link");
            // Who cannot ask acts like one who knows nobody to ask.
            Evidence::NobodyToAsk
        });
        if !answer(evidence) {
            return;
        }
    }
}

fn ask(parts: &Parts, prober: &Prober, peers: &[Mac]) -> Result<Evidence, LinkError> {
    let before = parts.switchboard.service_frames();
    // The kernel of a backup has spoken to nobody.
    let clients: Vec<IpAddr> = parts.flows.some_clients(ASKED);
    let mut probe = prober.probe(&parts.interface, &clients, peers, ASKED, parts.patience)?;
    loop {
        let found = probe.poll(Instant::now())?;
        // Any frame will do, of whomever.
        if parts.switchboard.service_frames() > before {
            return Ok(Evidence::Alive);
        }
        match found {
            Some(LinkEvidence::Alive(_)) => return Ok(Evidence::Alive),
            Some(LinkEvidence::Silent { .. }) => return Ok(Evidence::Silent),
            Some(LinkEvidence::NobodyToAsk) => return Ok(Evidence::NobodyToAsk),
            None => {}
        }
        let wait = probe.next_wakeup().saturating_duration_since(Instant::now()).min(LOOK);
        let mut fds = [PollFd::new(probe.as_fd(), PollFlags::POLLIN)];
        // Whatever wakes it, it looks again.
        let _ = ppoll(&mut fds, Some(TimeSpec::nanoseconds(wait.as_nanos() as i64)), None);
    }
}

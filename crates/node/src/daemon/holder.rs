//! Who answers for the service addresses on the service link: this node, or not.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use datapath::Switchboard;
use hostnet::{AnnounceStep, Announcer, Holding, Interface, NeighbourResponder, Schedule};

/// Answers for the addresses while this node holds them, and announces them when it begins to.
pub struct Holder {
    addresses: Vec<IpAddr>,
    switchboard: Switchboard,
    announcer: Announcer,
    announcing: Option<Announcing>,
    holding: Holding,
    responder: NeighbourResponder,
}

struct Announcing {
    schedule: Schedule,
    since: Instant,
    /// Clients' frames that had arrived by then.
    frames: u64,
}

impl Holder {
    /// Does not hold them yet.
    pub fn new(
        service_link: &Interface,
        addresses: Vec<IpAddr>,
        switchboard: Switchboard,
    ) -> anyhow::Result<Self> {
        let holding = Holding::new();
        // The kernel answers ARP for addresses on `lo`, and the data path silences it while the
        // address is held elsewhere; for IPv6 it does not answer at all.
        let mut responder = NeighbourResponder::new(service_link, hostnet::ArpMode::Leave)?;
        for &address in &addresses {
            responder.serve(address, holding.clone())?;
        }
        let announcer = Announcer::new(service_link)?;
        Ok(Self { addresses, switchboard, announcer, announcing: None, holding, responder })
    }

    pub fn hold(&mut self) {
        self.set(true);
        self.announcing = Some(Announcing {
            schedule: Schedule::new(),
            since: Instant::now(),
            frames: self.switchboard.client_frames(),
        });
        self.announce();
    }

    pub fn let_go(&mut self) {
        self.set(false);
        self.announcing = None;
    }

    fn set(&mut self, holding: bool) {
        self.switchboard.set_holding(holding);
        self.holding.set(holding);
    }

    /// Somebody has asked.
    pub fn answer(&mut self) {
        if let Err(error) = self.responder.handle() {
            tracing::warn!(%error, "cannot answer neighbour solicitations");
        }
    }

    /// Says so again, if it is time to.
    pub fn announce(&mut self) {
        let Some(announcing) = &mut self.announcing else { return };
        let seen = self.switchboard.client_frames() > announcing.frames;
        match announcing.schedule.poll(announcing.since.elapsed(), seen) {
            AnnounceStep::Announce => {
                for &address in &self.addresses {
                    if let Err(error) = self.announcer.announce(address) {
                        tracing::warn!(%address, %error, "cannot announce a service address");
                    }
                }
            }
            AnnounceStep::WaitUntil(_) => {}
            AnnounceStep::Done => self.announcing = None,
        }
    }

    /// How long until there is something to announce.
    pub fn due(&self) -> Option<Duration> {
        let announcing = self.announcing.as_ref()?;
        let mut next = announcing.schedule.clone();
        Some(match next.poll(announcing.since.elapsed(), false) {
            AnnounceStep::WaitUntil(at) => at.saturating_sub(announcing.since.elapsed()),
            AnnounceStep::Announce | AnnounceStep::Done => Duration::ZERO,
        })
    }
}

impl AsFd for Holder {
    /// Readable when somebody asks.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.responder.as_fd()
    }
}

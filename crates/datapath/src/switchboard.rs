//! The page that steers the data path, mapped into the daemon: a store here is a decision in the
//! kernel, without a system call.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::Share;
use crate::skel::types;

/// What a node does for its flows (the C side's `enum role`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Nothing passes: starting, or fenced.
    None,
    /// Logs and relays.
    Backup,
    /// Serves, under a lease; `duplex`: control segments go through the backup.
    Primary { duplex: bool },
}

/// Handle to the page, for all flows or for those of one share. Cheap to copy; every copy steers the
/// same data path.
#[derive(Clone, Copy)]
pub struct Switchboard {
    page: NonNull<types::ctl>,
    /// All if `None`.
    share: Option<Share>,
}

// SAFETY: the page is a mapping that lives as long as the process (the object behind it is leaked
// by `Datapath::load`), and every access below is atomic.
unsafe impl Send for Switchboard {}
// SAFETY: as above; shared access is atomic as well.
unsafe impl Sync for Switchboard {}

impl Switchboard {
    /// `page` must be the mapping of a leaked object.
    pub(crate) fn new(page: &mut types::ctl) -> Self {
        Self { page: NonNull::from(page), share: None }
    }

    /// Roles, leases and fences are those of this share from here on.
    pub fn of(self, share: Share) -> Self {
        Self { share: Some(share), ..self }
    }

    /// A backup keeps what clients ask of held services to itself before this instant (CLOCK_BOOTTIME,
    /// ns), or until it has another role: the primary is about to hand over.
    pub fn park_until(&self, until_ns: u64) {
        for share in self.shares() {
            // SAFETY: the share is in the page, which is mapped for the life of the process.
            let until = unsafe { AtomicU64::from_ptr(&raw mut (*share).parked_until_ns) };
            until.store(until_ns, Ordering::Release);
        }
    }

    /// Gives the flows a role. The entry is one word, so a program sees either the old role with
    /// the old epoch or the new with the new.
    ///
    /// A crash fence of the previous role ends here.
    pub fn set_role(&self, epoch: u32, role: Role) {
        let (kind, duplex) = match role {
            Role::None => (types::role::ROLE_NONE, false),
            Role::Backup => (types::role::ROLE_BACKUP, false),
            Role::Primary { duplex } => (types::role::ROLE_PRIMARY, duplex),
        };
        let mut word = [0u8; 8];
        word[..4].copy_from_slice(&epoch.to_ne_bytes());
        word[4] = kind.0 as u8;
        word[5] = duplex.into();
        for share in self.shares() {
            // SAFETY: the share is in the page, which is mapped for the life of the process. The C
            // type is 8-byte aligned and 8 bytes long, and programs only load it whole.
            let entry = unsafe { AtomicU64::from_ptr((&raw mut (*share).role).cast::<u64>()) };
            entry.store(u64::from_ne_bytes(word), Ordering::Release);
        }
        self.park_until(0);
        self.clear_crash_fence();
    }

    /// A primary's output passes only before this instant (CLOCK_BOOTTIME, ns).
    pub fn set_lease(&self, until_ns: u64) {
        for share in self.shares() {
            // SAFETY: the share is in the page, which is mapped for the life of the process.
            let until = unsafe { AtomicU64::from_ptr(&raw mut (*share).lease_until_ns) };
            until.store(until_ns, Ordering::Release);
        }
    }

    /// A backup logs only before this instant (CLOCK_BOOTTIME, ns).
    pub fn set_journal_alive(&self, until_ns: u64) {
        for share in self.shares() {
            // SAFETY: as above.
            let until = unsafe { AtomicU64::from_ptr(&raw mut (*share).journal_until_ns) };
            until.store(until_ns, Ordering::Release);
        }
    }

    /// Did the data path fence this node because a server crashed (C4)?
    pub fn crash_fenced(&self) -> bool {
        self.crash_fences().any(|fence| fence.load(Ordering::Acquire) != 0)
    }

    /// Opens a fence that a crash closed: nobody else can carry the flows (C4).
    pub fn clear_crash_fence(&self) {
        self.crash_fences().for_each(|fence| fence.store(0, Ordering::Release));
    }

    fn crash_fences(&self) -> impl Iterator<Item = &AtomicU8> {
        self.shares().map(|share| {
            // SAFETY: the share is in the page, which is mapped for the life of the process; all
            // accesses from this side are atomic.
            unsafe { AtomicU8::from_ptr(&raw mut (*share).crash_fenced) }
        })
    }

    fn shares(&self) -> impl Iterator<Item = *mut types::share> {
        let (page, only) = (self.page.as_ptr(), self.share);
        Share::all().filter(move |share| only.is_none_or(|only| only == *share)).map(move |share| {
            // SAFETY: only takes an address, of an element that the array has.
            unsafe { &raw mut (*page).shares[share.index()] }
        })
    }

    /// Whether this node answers for the service addresses.
    pub fn set_holding(&self, holding: bool) {
        self.byte(|page| {
            // SAFETY: only takes the field's address.
            unsafe { &raw mut (*page).holding }
        })
        .store(holding.into(), Ordering::Release);
    }

    /// The tables of flows have been emptied. What the data path notes meanwhile it says again.
    pub fn set_flows_forgotten(&self) {
        self.byte(|page| {
            // SAFETY: only takes the field's address.
            unsafe { &raw mut (*page).knows_flows }
        })
        .store(0, Ordering::Release);
    }

    /// Where frames for the peer go: out of `ifindex`, from `own` to `peer`.
    pub fn set_relay(&self, ifindex: u32, own: [u8; 6], peer: [u8; 6]) {
        let page = self.page.as_ptr();
        // Programs that run meanwhile see no path and drop; TCP sends again. Two links never mix.
        // SAFETY: the page is mapped for the life of the process; the field is a u32.
        let index = unsafe { AtomicU32::from_ptr(&raw mut (*page).relay.ifindex) };
        index.store(0, Ordering::Release);
        // SAFETY: as above; the MACs are read by programs only after `ifindex` is set again, a
        // program that read `ifindex` earlier may see a mixture and sends one frame nobody takes.
        unsafe {
            (&raw mut (*page).relay.dst).write_volatile(peer);
            (&raw mut (*page).relay.src).write_volatile(own);
        }
        index.store(ifindex, Ordering::Release);
    }

    /// By which MACs the peer's frames are known on the service link and on the cluster link.
    pub fn set_peer_macs(&self, service: [u8; 6], cluster: [u8; 6]) {
        let page = self.page.as_ptr();
        // SAFETY: the page is mapped for the life of the process. A frame that arrives during the
        // two stores is at worst taken for a stranger's and sent again by its TCP.
        unsafe { (&raw mut (*page).peer_mac).write_volatile([service, cluster]) };
    }

    /// Frames seen on the service link that were not the peer's; grows while the link is alive.
    pub fn service_frames(&self) -> u64 {
        self.word(|page| {
            // SAFETY: only takes the field's address.
            unsafe { &raw mut (*page).service_frames }
        })
        .load(Ordering::Relaxed)
    }

    /// Clients' frames for a service that arrived on the service link.
    pub fn client_frames(&self) -> u64 {
        self.word(|page| {
            // SAFETY: only takes the field's address.
            unsafe { &raw mut (*page).client_frames }
        })
        .load(Ordering::Relaxed)
    }

    fn word(&self, field: impl Fn(*mut types::ctl) -> *mut u64) -> &AtomicU64 {
        // SAFETY: the page is mapped for the life of the process, the field is 8-byte aligned by
        // its C declaration, and all accesses from this side are atomic.
        unsafe { AtomicU64::from_ptr(field(self.page.as_ptr())) }
    }

    fn byte(&self, field: impl Fn(*mut types::ctl) -> *mut u8) -> &AtomicU8 {
        // SAFETY: as for `word`; a byte has no alignment.
        unsafe { AtomicU8::from_ptr(field(self.page.as_ptr())) }
    }
}

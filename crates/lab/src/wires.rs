//! The cables between hosts and switch, and the switch itself.
//!
//! The problem: a dying host must fall silent at one instant, on all links and in both
//! directions. Taking interfaces down one after the other leaves moments in which half a
//! host is alive, and closing its processes first lets FINs out. So each switch port
//! carries a BPF program (`bpf/wire.bpf.c`) that looks at one word per host; the table is
//! mapped into the keeper's memory, and a cut is a single atomic store to it.
//!
//! The switch is a network namespace without any process, with one bridge per link. The
//! keeper holds its descriptor; when that closes, the kernel removes it all.

use std::{
    collections::BTreeMap,
    mem::{MaybeUninit, size_of},
    num::NonZeroUsize,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
};

use libbpf_rs::{
    MapHandle, TC_EGRESS, TC_INGRESS, TcHookBuilder,
    skel::{OpenSkel, SkelBuilder},
};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};

use crate::{
    detour::{Detours, Holding, KINDS, Kind},
    error::{Doing, Error, Result},
    netlink,
    sys::NetNs,
    topology::{HostSpec, Link, MAX_HOSTS},
};

#[allow(clippy::all, missing_docs, dead_code, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/wire.skel.rs"));
}
use skel::WireSkelBuilder;
pub(crate) use skel::types;

/// Interface index of every namespace's own loopback.
const LOOPBACK: u32 = 1;
/// WIRE_PORT_BASE of the BPF program.
const PORT_BASE: u32 = 0x100;
/// DETOUR_BASE of the BPF program.
const DETOUR_BASE: u32 = 0x200;
/// What the BPF program writes on a frame that comes back to its cable.
pub(crate) const MARK_DAMAGED: u32 = 0x5746_5344;
pub(crate) const MARK_DELAYED: u32 = 0x5746_5345;
/// Interface index of each link's bridge in the switch.
const BRIDGE_BASE: u32 = 0x10;
/// Interface index of each link inside a host.
const HOST_BASE: u32 = 0x10;

/// Which of a cable's two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// What the host sends.
    FromHost,
    /// What the host is sent.
    ToHost,
}

impl Way {
    /// Both directions.
    pub const BOTH: [Way; 2] = [Way::FromHost, Way::ToHost];
}

/// Interface index, in the switch, of a host's port.
pub(crate) fn port_index(host: usize, link: Link) -> u32 {
    PORT_BASE + (host * Link::ALL.len() + link.number()) as u32
}

/// Interface index, in the switch, of a link's bridge.
pub(crate) fn bridge_index(link: Link) -> u32 {
    BRIDGE_BASE + link.number() as u32
}

/// Interface index of a link inside every host.
pub(crate) fn host_index(link: Link) -> u32 {
    HOST_BASE + link.number() as u32
}

/// Interface index, in the switch, of a detour of a host's port.
pub(crate) fn detour_index(host: usize, link: Link, way: Way, kind: Kind) -> u32 {
    let port = (host * Link::ALL.len() + link.number()) as u32;
    DETOUR_BASE + (port * Way::BOTH.len() as u32 + way as u32) * KINDS + kind as u32
}

pub(crate) fn slot(link: Link, way: Way) -> usize {
    link.number() * Way::BOTH.len() + way as usize
}

/// The bits of a host's cut word for these cables.
pub(crate) fn cut_bits(links: &[Link], ways: &[Way]) -> u32 {
    links.iter().flat_map(|&l| ways.iter().map(move |&w| 1 << slot(l, w))).sum()
}

/// The BPF programs and their table.
#[derive(Debug)]
pub(crate) struct Wires {
    table: NonNull<types::wire_host>,
    from_host: OwnedFd,
    to_host: OwnedFd,
    back: OwnedFd,
    /// Where trips are told: host * ways of a host + way.
    pub(crate) tripped: MapHandle,
}

/// One 64-bit word of a way's row.
macro_rules! word {
    ($wires:expr, $host:expr, $slot:expr, $atomic:ident, $($field:ident).+) => {{
        let way = $wires.way($host, $slot);
        // SAFETY: in bounds and aligned, see `way`; both sides access it atomically, or the
        // kernel side reads it only.
        unsafe { std::sync::atomic::$atomic::from_ptr(&raw mut (*way).$($field).+) }
    }};
}
pub(crate) use word;

// SAFETY: `table` is a mapping that lives as long as `self`, and every access to it is an
// atomic load, store or read-modify-write.
unsafe impl Send for Wires {}
// SAFETY: as above.
unsafe impl Sync for Wires {}

const TABLE_LEN: NonZeroUsize = NonZeroUsize::new(size_of::<types::bss>()).unwrap();
const _: () = assert!(size_of::<types::bss>() == MAX_HOSTS * size_of::<types::wire_host>());

impl Wires {
    /// Loads the programs. The table starts with everything healed.
    pub(crate) fn load() -> Result<Wires> {
        let mut storage = MaybeUninit::uninit();
        let skel = WireSkelBuilder::default().open(&mut storage)?.load()?;
        let own = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().doing(|| "keep the wire's BPF programs".to_owned())
        };
        let map = own(skel.maps.bss.as_fd())?;
        // SAFETY: a fresh shared mapping of a map that libbpf created mmapable; it is as
        // long as the table, and it outlives the descriptor.
        let table = unsafe {
            let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            mmap(None, TABLE_LEN, prot, MapFlags::MAP_SHARED, &map, 0)
        }
        .doing(|| "map the wire's table".to_owned())?;
        Ok(Wires {
            table: table.cast(),
            from_host: own(skel.progs.from_host.as_fd())?,
            to_host: own(skel.progs.to_host.as_fd())?,
            back: own(skel.progs.back.as_fd())?,
            tripped: MapHandle::try_from(&skel.maps.tripped)?,
        })
    }

    /// Puts the programs onto a switch port. Call inside the switch's namespace.
    pub(crate) fn attach(&self, port: u32) -> Result<()> {
        self.hook(port, &self.from_host, TC_INGRESS)?;
        self.hook(port, &self.to_host, TC_EGRESS)
    }

    /// Puts the way back onto a detour. Call inside the switch's namespace.
    pub(crate) fn attach_back(&self, detour: u32) -> Result<()> {
        self.hook(detour, &self.back, TC_INGRESS)
    }

    fn hook(&self, index: u32, program: &OwnedFd, point: libbpf_rs::TcAttachPoint) -> Result<()> {
        let mut builder = TcHookBuilder::new(program.as_fd());
        builder.ifindex(index as i32).replace(false).handle(1).priority(1);
        let mut hook = builder.hook(point);
        if point == TC_INGRESS {
            hook.create()?; // the clsact qdisc, which serves both ways
        }
        hook.attach()?;
        Ok(())
    }

    /// Cuts the cables in `bits` (see [`cut_bits`]), by one atomic store.
    pub(crate) fn cut(&self, host: usize, bits: u32) {
        self.cut_word(host).fetch_or(bits, SeqCst);
    }

    /// Heals the cables in `bits`, by one atomic store.
    pub(crate) fn heal(&self, host: usize, bits: u32) {
        self.cut_word(host).fetch_and(!bits, SeqCst);
    }

    /// The bits that are cut.
    pub(crate) fn cut_state(&self, host: usize) -> u32 {
        self.cut_word(host).load(SeqCst)
    }

    /// A way's row: see `struct wire_way_state` of the BPF program.
    pub(crate) fn way(&self, host: usize, slot: usize) -> *mut types::wire_way_state {
        assert!(slot < Link::ALL.len() * Way::BOTH.len());
        // SAFETY: in bounds, see `row`.
        unsafe { (&raw mut (*self.row(host)).ways).cast::<types::wire_way_state>().add(slot) }
    }

    /// Frames that a cut has swallowed on one way of one cable.
    pub(crate) fn dropped(&self, host: usize, link: Link, way: Way) -> u64 {
        word!(self, host, slot(link, way), AtomicU64, dropped).load(SeqCst)
    }

    fn cut_word(&self, host: usize) -> &AtomicU32 {
        // SAFETY: in bounds and aligned, see `row`; the kernel side only reads it.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.row(host)).cut) }
    }

    fn row(&self, host: usize) -> *mut types::wire_host {
        assert!(host < MAX_HOSTS);
        // SAFETY: the table has MAX_HOSTS rows and the mapping is page-aligned.
        unsafe { self.table.as_ptr().add(host) }
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        // SAFETY: mapped in `load` with this length; no reference into it survives `self`.
        unsafe { munmap(self.table.cast(), TABLE_LEN.get()) }.expect("the table is mapped");
    }
}

/// Rate limit of a link, for each cable and each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Bits on the wire per second, Ethernet headers included.
    pub bits_per_second: u64,
}

impl Rate {
    /// So many Mbit/s (10⁶ bits per second).
    pub fn mbit(mbit_per_second: u64) -> Rate {
        Rate { bits_per_second: mbit_per_second * 1_000_000 }
    }

    fn bytes(self) -> u64 {
        self.bits_per_second / 8
    }

    /// A 64 KiB offloaded segment with the headers of the packets it becomes must fit, or
    /// TBF cuts it up in software; a millisecond's worth keeps the bucket from running
    /// over between two timer interrupts.
    fn burst(self) -> u32 {
        u32::try_from(self.bytes() / 1000).unwrap_or(u32::MAX).max(70 << 10)
    }

    /// A switch port's buffer: the burst and 20 ms.
    fn limit(self) -> u32 {
        u32::try_from(self.bytes() / 50).unwrap_or(u32::MAX).saturating_add(self.burst())
    }

    /// Shapes an interface, or stops shaping it.
    pub(crate) fn apply(rate: Option<Rate>, socket: &netlink::Socket, index: u32) -> Result<()> {
        match rate {
            Some(r) => socket.set_tbf(index, r.bytes(), r.burst(), r.limit()),
            None => socket.clear_qdisc(index),
        }
        .doing(|| format!("shape interface {index} (qdisc tbf)"))
    }
}

/// The switch: bridges in a namespace of their own, and the cables' far ends.
#[derive(Debug)]
pub(crate) struct Switch {
    pub(crate) wires: Arc<Wires>,
    /// Before the namespace, which they live in.
    pub(crate) detours: Detours,
    pub(crate) ns: NetNs,
    mtu: u32,
}

impl Switch {
    pub(crate) fn new(mtu: u32) -> Result<Switch> {
        let (wires, detours) = (Arc::new(Wires::load()?), Detours::default());
        let switch = Switch { wires, detours, ns: NetNs::new()?, mtu };
        switch.ns.run(|| {
            // The switch has no addresses and says nothing of its own.
            sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
            sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
            let socket = open_socket()?;
            // For captures.
            socket.set_up(LOOPBACK, true).doing(|| "take the switch's lo up".into())?;
            for link in Link::ALL {
                let name = link.name();
                socket.add_bridge(name, bridge_index(link)).map_err(|source| {
                    match source.raw_os_error() {
                        Some(libc::EOPNOTSUPP) => Error::Preflight {
                            missing: "the kernel has no bridges".into(),
                            mend: "load the module \"bridge\" or enable CONFIG_BRIDGE",
                        },
                        _ => Error::Sys { doing: format!("create bridge {name}"), source },
                    }
                })?;
                socket
                    .set_up(bridge_index(link), true)
                    .doing(|| format!("take bridge {name} up"))?;
            }
            Ok(())
        })?;
        Ok(switch)
    }

    /// Plugs a freshly started host in: veths, wires, shaping, addresses. Whether its
    /// cables are cut is the table's business and stays as it is.
    pub(crate) fn plug(
        &self,
        host: &HostSpec,
        init: &crate::init::Init,
        rate: impl Fn(Link) -> Option<Rate> + Sync,
    ) -> Result<()> {
        let doing = |what: &str| format!("{what} of host {}", host.name);
        let peer_ns =
            crate::init::net_ns_of(init.pid).doing(|| doing("open the network namespace"))?;
        let join_host = || {
            nix::sched::setns(&peer_ns, nix::sched::CloneFlags::CLONE_NEWNET)
                .doing(|| doing("enter the network namespace"))
        };
        crate::sys::on_thread(|| {
            join_host()?;
            HOST_SYSCTLS.iter().try_for_each(|(name, value)| sysctl(name, value))?;
            let inside = open_socket()?;

            self.ns.enter()?;
            let outside = open_socket()?;
            for &link in host.links() {
                let port = port_index(host.index, link);
                // Left over from before a kill, if the kernel is still busy removing it.
                outside.delete(port).doing(|| doing("remove the old switch port"))?;
                let veth = netlink::Veth {
                    port: &host.port(link),
                    port_index: port,
                    bridge: bridge_index(link),
                    peer: link.interface(),
                    peer_index: host_index(link),
                    peer_mac: host.mac(link),
                    peer_ns: peer_ns.as_fd(),
                    mtu: self.mtu,
                };
                outside.add_veth(&veth).doing(|| doing("create the cable (veth)"))?;
                self.wires.attach(port)?;
                if let Some(rate) = rate(link) {
                    Rate::apply(Some(rate), &outside, port)?;
                    Rate::apply(Some(rate), &inside, host_index(link))?;
                }
                outside.set_up(port, true).doing(|| doing("take the switch port up"))?;
                inside.set_up(host_index(link), true).doing(|| doing("take an interface up"))?;
                for (ip, prefix) in host.addresses(link) {
                    inside
                        .add_address(host_index(link), ip, prefix)
                        .doing(|| doing(&format!("add address {ip}")))?;
                }
            }
            inside.set_up(LOOPBACK, true).doing(|| doing("take lo up"))
        })
    }

    /// Takes the switch's end of a cable up or down; the host sees its carrier change.
    pub(crate) fn set_carrier(&self, host: &HostSpec, link: Link, on: bool) -> Result<()> {
        self.ns.run(|| {
            open_socket()?
                .set_up(port_index(host.index, link), on)
                .doing(|| format!("switch the carrier of {}", host.port(link)))
        })
    }

    /// Makes or changes a detour.
    pub(crate) fn detour(&self, index: u32, kind: Kind, holding: Holding) -> Result<()> {
        self.ns.run(|| self.detours.set(&self.wires, index, kind, holding))
    }

    /// Frames that detours had no room for because their threads were late, by index.
    pub(crate) fn late_drops(&self) -> Result<BTreeMap<u32, u64>> {
        if self.detours.is_empty() {
            return Ok(BTreeMap::new());
        }
        self.ns.run(|| {
            let file = "/proc/thread-self/net/dev";
            let text = std::fs::read_to_string(file).doing(|| format!("read {file}"))?;
            Ok(crate::detour::late_drops(&text))
        })
    }

    /// Shapes the switch's end of a cable.
    pub(crate) fn shape(&self, host: &HostSpec, link: Link, rate: Option<Rate>) -> Result<()> {
        self.ns.run(|| Rate::apply(rate, &open_socket()?, port_index(host.index, link)))
    }
}

/// Nothing in a lab waits for duplicate address detection or a router, and no reverse path
/// filter stands in the way of hosts that share an address.
/// The kernel's unsolicited multicast reports come in the host's first milliseconds, not
/// at random later, so that they do not disturb the dice of bad cables.
const HOST_SYSCTLS: [(&str, &str); 12] = [
    ("net/ipv6/conf/all/mldv2_unsolicited_report_interval", "1"),
    ("net/ipv6/conf/default/mldv2_unsolicited_report_interval", "1"),
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/default/dad_transmits", "0"),
    ("net/ipv6/conf/all/accept_ra", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
    ("net/ipv6/conf/default/router_solicitations", "0"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv4/ping_group_range", "0 2147483647"),
    ("net/ipv4/ip_forward", "0"),
];

fn sysctl(name: &str, value: &str) -> Result<()> {
    // Inside /proc/sys/net the kernel shows the writing thread's own namespace.
    std::fs::write(format!("/proc/sys/{name}"), value).doing(|| format!("set {name} to {value}"))
}

pub(crate) fn open_socket() -> Result<netlink::Socket> {
    netlink::Socket::open().doing(|| "open a netlink socket".to_owned())
}

//! The eBPF data path and its typed edge.
//!
//! Everything that a segment meets between the wire and a server's socket happens in the programs
//! under `src/bpf/`; this crate loads them, attaches them so that they outlive the daemon, and
//! offers their tables as Rust values. Policy lives elsewhere: nothing here decides when a node is
//! primary or which flow is adopted.
//!
//! Attachment. Everything outlives the daemon: the fence, because it is needed exactly when the
//! daemon is dead (invariant 3), and what makes a crashed server silent, because a server may die
//! after its daemon (invariant 5). The tc programs are filters of a `clsact` qdisc; the socket
//! programs (birth of adopted children, crash of a server) are BPF links with a file in bpffs. A
//! restarted daemon replaces both in place. Only what needs a daemon goes with it: without one
//! nothing is released, and what `gate_out` kept is kept by the fence.

mod attach;
mod cgroup;
mod counters;
#[doc(hidden)]
pub mod fixture;
mod flows;
mod key;
mod log;
mod order;
mod output;
mod pins;
mod ring;
mod ringer;
mod switchboard;

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, unused_imports)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/datapath.skel.rs"));
}

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject};

pub use cgroup::cgroup2_root;
pub use counters::{Counter, Counters};
pub use flows::{Birth, Embryo, Flow, FlowOptions, FlowState, FlowTable, Stray};
pub use key::{FlowKey, Share};
pub use log::{LogSource, Record};
pub use order::Order;
pub use output::{Output, OutputSource, REPLY_MAX};
pub use ring::{RingReader, RingSource};
pub use ringer::Ringer;
pub use switchboard::{Role, Switchboard};

use attach::{Hook, Where};
use pins::Pins;
use skel::{DatapathSkel, DatapathSkelBuilder, types};

/// What the data path is loaded with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Interface index of the service link.
    pub service_ifindex: u32,
    /// Interface index of the cluster link; may equal `service_ifindex`.
    pub cluster_ifindex: u32,
    /// This node's own IPv4 address on the service link, if it has one.
    pub own_address4: Option<Ipv4Addr>,
    /// Size of the log ring in bytes: a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Flows that can be protected at once.
    pub max_flows: u32,
    /// The position is the service's number in records and flows.
    pub services: Vec<Service>,
    /// Bounds on the output of held services.
    pub gate: GateSettings,
}

/// A service, as far as the data path is concerned.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its addresses and ports.
    pub endpoints: Vec<(IpAddr, u16)>,
    /// Whether its output waits to be released. Connections get their gate when they begin, on a
    /// primary that is duplex, and when they are adopted.
    pub held: bool,
}

/// What bounds held output. Of no effect if no service is held.
#[derive(Debug, Clone)]
pub struct GateSettings {
    /// Output of one flow, in bytes, that may wait to be released; past it the server's writes
    /// block, or are refused with EAGAIN if it asked not to block. One write may go over it.
    pub hold_bytes: u32,
    /// Send buffer of each held socket in bytes, as for SO_SNDBUF: [`wmem_max_needed`] at least, and
    /// what is to be in flight besides. The kernel cuts it to `net.core.wmem_max` without a word.
    /// `None` leaves it to the kernel, which enlarges it by what the client acknowledges and not by
    /// what is held: the server may block sooner.
    ///
    /// [`wmem_max_needed`]: GateSettings::wmem_max_needed
    pub send_buffer: Option<u32>,
    /// Size of the output ring in bytes: a power of two and a multiple of the page size. An eighth
    /// of it is kept for events.
    pub ring_bytes: u32,
    /// Whether whole replies of one packet go to the client by way of the backup instead of waiting for
    /// an order ([`Record::Reply`]).
    pub replies: bool,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            hold_bytes: 1 << 20,
            send_buffer: Some(4 << 20),
            ring_bytes: 64 << 20,
            replies: true,
        }
    }
}

impl GateSettings {
    /// The least `net.core.wmem_max`, in bytes, with which a socket takes `hold_bytes`; below it a
    /// server blocks before a reply is whole, which then never leaves. With Debian's 212,992 that
    /// are 170,393 bytes.
    ///
    /// The kernel doubles the value of SO_SNDBUF and counts its own bookkeeping against it, some
    /// 1.6 KiB for each segment, whose length is half the client's widest window at most. From a
    /// common client (64 KiB) a socket takes 1.95 times the value; from one with the smallest
    /// receive buffer that Linux has (2,304 bytes), 0.82 times.
    pub fn wmem_max_needed(&self) -> u32 {
        self.hold_bytes.saturating_add(self.hold_bytes.div_ceil(4))
    }
}

/// The least that a ring may be: the output ring's size when nothing is held.
const PAGE: u32 = 4096;

/// Why the data path could not be loaded or attached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open the BPF object: {0}")]
    Open(#[source] libbpf_rs::Error),
    #[error(
        "the kernel refused the data path: {0}; `steadfast check` names the missing feature or \
         privilege"
    )]
    Load(#[source] libbpf_rs::Error),
    #[error("cannot attach {program} to {place}: {source}")]
    Attach { program: &'static str, place: String, source: libbpf_rs::Error },
    #[error("cannot open the cgroup v2 hierarchy, which {program} attaches to: {source}")]
    Cgroup { program: &'static str, source: std::io::Error },
    #[error(
        "cannot use {}, where the socket programs are kept for the time after the daemon: {source}; \
         mount bpffs there: mount -t bpf bpf /sys/fs/bpf", path.display()
    )]
    Pin { path: PathBuf, source: std::io::Error },
    #[error("cannot write to map {map}: {source}")]
    Map { map: &'static str, source: libbpf_rs::Error },
    #[error("cannot keep hold of the program {program}: {source}")]
    Program { program: &'static str, source: std::io::Error },
    #[error("cannot read this network namespace's cookie: {0}")]
    Cookie(#[source] std::io::Error),
}

/// The loaded data path. Dropping it leaves the programs where they have been attached, fenced by
/// the lease; [`Datapath::detach`] removes them.
pub struct Datapath {
    skel: DatapathSkel<'static>,
    switchboard: Switchboard,
    /// Service link and cluster link; may be equal.
    ifindexes: [u32; 2],
    netns_cookie: u64,
    /// Whether any service is held.
    holding: bool,
    hooks: Vec<Hook>,
    /// Held, never read: they keep the socket programs attached beside `pins`.
    links: Vec<Link>,
    pins: Option<Pins>,
}

impl Datapath {
    /// Loads the programs. They are attached nowhere yet.
    pub fn load(settings: &Settings) -> Result<Self, Error> {
        Self::load_with(settings, false)
    }

    /// `older_kernel`: use nothing that came after Linux 6.12, whatever this kernel has.
    fn load_with(settings: &Settings, older_kernel: bool) -> Result<Self, Error> {
        log_to_tracing();
        // The skeleton borrows its object for as long as both live, and a daemon has one data
        // path for all of its life: leaking these few bytes makes the skeleton 'static.
        let object: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = DatapathSkelBuilder::default().open(object).map_err(Error::Open)?;
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has constants");
        rodata.service_ifindex = settings.service_ifindex;
        rodata.cluster_ifindex = settings.cluster_ifindex;
        rodata.copy_by_chunks = older_kernel;
        let netns_cookie = netns_cookie().map_err(Error::Cookie)?;
        rodata.netns_cookie = netns_cookie;
        rodata.own_address4 =
            settings.own_address4.map_or(0, |own| u32::from_ne_bytes(own.octets()));
        let holding = settings.services.iter().any(|service| service.held);
        let output_bytes = if holding { settings.gate.ring_bytes } else { PAGE };
        rodata.holding = holding;
        rodata.hold_bytes = settings.gate.hold_bytes;
        rodata.replies = settings.gate.replies;
        rodata.send_buffer = settings.gate.send_buffer.unwrap_or(0);
        // A flood of output must not keep the daemon from learning that connections end.
        rodata.output_reserve = output_bytes / 8;
        let sized = |map: &'static str| move |source| Error::Map { map, source };
        open.maps.log_ring.set_max_entries(settings.ring_bytes).map_err(sized("log_ring"))?;
        open.maps.flows.set_max_entries(settings.max_flows).map_err(sized("flows"))?;
        open.maps.watched.set_max_entries(settings.max_flows).map_err(sized("watched"))?;
        open.maps.output_ring.set_max_entries(output_bytes).map_err(sized("output_ring"))?;
        let ringing = ringer::is_needed();
        open.progs.ring.set_autoload(ringing);
        open.progs.server_read.set_autoload(ringing && holding);
        open.progs.gate_out.set_autoload(holding);
        open.progs.list_gates.set_autoload(holding);
        let mut skel = open.load().map_err(Error::Load)?;

        let page = skel.maps.data_ctl_data.as_deref_mut().expect("the object has its page");
        let switchboard = Switchboard::new(&mut page.ctl);
        fill_services(&skel, &settings.services)?;
        Ok(Self {
            skel,
            switchboard,
            ifindexes: [settings.service_ifindex, settings.cluster_ifindex],
            netns_cookie,
            holding,
            hooks: Vec::new(),
            links: Vec::new(),
            pins: None,
        })
    }

    /// Attaches all programs but the adoption hook, in a predecessor's place if there is one.
    /// Nothing passes to or from a service from here on until a role is set.
    pub fn attach(&mut self) -> Result<(), Error> {
        let [service, cluster] = self.ifindexes;
        let progs = &self.skel.progs;
        let program = progs.service_in.as_fd();
        self.hooks.push(Hook::attach("service_in", program, service, Where::Ingress)?);
        if cluster != service {
            let program = progs.cluster_in.as_fd();
            self.hooks.push(Hook::attach("cluster_in", program, cluster, Where::Ingress)?);
        }
        for ifindex in HashSet::from(self.ifindexes) {
            let program = progs.node_out.as_fd();
            self.hooks.push(Hook::attach("node_out", program, ifindex, Where::Egress)?);
        }
        // After the filters: from here on a predecessor's children may output what they should
        // swallow, and the new fence is closed.
        let pins = self.pins.insert(Pins::open(self.netns_cookie)?);
        self.links = attach::to_sockets(&mut self.skel, pins, self.holding)?;
        Ok(())
    }

    /// What rings at servers that wait beside unread bytes; None on kernels that need none.
    pub fn ringer(&self) -> Result<Option<Ringer>, Error> {
        if !self.skel.progs.ring.autoload() {
            return Ok(None);
        }
        Ok(Some(Ringer::new(attach::to_socket_list("ring", &self.skel.progs.ring)?)))
    }

    /// Attaches the adoption program to the TUN device that forged segments are written to.
    pub fn attach_adoption(&mut self, tun_ifindex: u32) -> Result<(), Error> {
        let program = self.skel.progs.adopt_in.as_fd();
        self.hooks.push(Hook::attach("adopt_in", program, tun_ifindex, Where::Ingress)?);
        Ok(())
    }

    /// The page that steers the programs; may be moved to another thread.
    pub fn switchboard(&self) -> Switchboard {
        self.switchboard
    }

    /// The table of established flows; may be moved to another thread.
    pub fn flow_table(&self) -> Result<FlowTable, Error> {
        let maps = [
            handle(&self.skel.maps.flows, "flows")?,
            handle(&self.skel.maps.watched, "watched")?,
            handle(&self.skel.maps.strays, "strays")?,
            handle(&self.skel.maps.embryos, "embryos")?,
        ];
        let change = self.skel.progs.change_flow.as_fd().try_clone_to_owned();
        let change = change.map_err(|source| Error::Program { program: "change_flow", source })?;
        let gates = match self.holding {
            true => Some(attach::to_socket_list("list_gates", &self.skel.progs.list_gates)?),
            false => None,
        };
        Ok(FlowTable::new(maps, change, gates, self.switchboard))
    }

    /// The listener whose children deliver logged replies: flows in
    /// [`Delivering`](FlowState::Delivering) are born as children of it. It must listen already and
    /// stay open; where it is bound does not matter. A child of it has the flow's addresses and
    /// ports. One of `AF_INET6` that is not `IPV6_V6ONLY` takes clients of both families.
    ///
    /// Flows of `share` only, if one is given.
    pub fn set_deliverer(
        &self,
        share: Option<Share>,
        listener: BorrowedFd<'_>,
    ) -> Result<(), Error> {
        let socket = listener.as_raw_fd() as u64;
        let deliverer = &self.skel.maps.deliverer;
        for share in Share::all().filter(|one| share.is_none_or(|share| share == *one)) {
            let key = (share.index() as u32).to_ne_bytes();
            deliverer
                .update(&key, &socket.to_ne_bytes(), MapFlags::ANY)
                .map_err(|source| Error::Map { map: "deliverer", source })?;
        }
        Ok(())
    }

    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(Counters::new(handle(&self.skel.maps.counters, "counters")?))
    }

    /// The log; may be moved to the thread that is to read it.
    pub fn log(&self) -> Result<LogSource, Error> {
        Ok(LogSource::new(handle(&self.skel.maps.log_ring, "log_ring")?, log::parse))
    }

    /// What the servers of held services do; may be moved to the thread that is to read it. The
    /// reader is woken for every record.
    pub fn output(&self) -> Result<OutputSource, Error> {
        let ring = handle(&self.skel.maps.output_ring, "output_ring")?;
        Ok(OutputSource::new(ring, output::parse))
    }

    /// Removes every program from the sockets and the network devices.
    pub fn detach(self) -> Result<(), Error> {
        let unpinned = self.pins.map_or(Ok(()), Pins::remove);
        self.hooks.into_iter().try_for_each(Hook::detach)?;
        unpinned
    }
}

/// Makes libbpf log through `tracing`. Left to itself it writes to standard error, also of what is
/// no error (a qdisc that exists).
pub fn log_to_tracing() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, |level, text| {
        let text = text.trim_end();
        match level {
            libbpf_rs::PrintLevel::Debug => tracing::trace!("{text}"),
            _ => tracing::debug!("{text}"),
        }
    })));
}

fn handle(map: &libbpf_rs::MapMut<'_>, name: &'static str) -> Result<MapHandle, Error> {
    MapHandle::try_from(map).map_err(|source| Error::Map { map: name, source })
}

fn fill_services(skel: &DatapathSkel<'_>, services: &[Service]) -> Result<(), Error> {
    for (id, service) in services.iter().enumerate() {
        for &(address, port) in &service.endpoints {
            let address = key::mapped(address);
            let key = types::service_key { address, port: port.to_be(), pad: 0 };
            let value = types::service { id: id as u32, held: service.held.into() };
            skel.maps
                .services
                .update(flows::bytes_of(&key), flows::bytes_of(&value), MapFlags::ANY)
                .map_err(|source| Error::Map { map: "services", source })?;
            skel.maps
                .addresses
                .update(&address, &1u32.to_ne_bytes(), MapFlags::ANY)
                .map_err(|source| Error::Map { map: "addresses", source })?;
        }
    }
    Ok(())
}

/// Identity of the calling thread's network namespace, as `bpf_get_netns_cookie()` sees it.
fn netns_cookie() -> std::io::Result<u64> {
    const SO_NETNS_COOKIE: libc::c_int = 71;
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))
        .or_else(|_| std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` = 8 bytes to `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(std::io::Error::last_os_error()) }
}

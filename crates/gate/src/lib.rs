//! The gate `held`: what a server writes is captured and leaves when the daemon says so.
//!
//! The obvious way, to divert a server's writes and send them later in its place, fails at the end
//! of a stream: `shutdown` and `close` act on the socket at once, and what is still held can no
//! longer be written to it. It also has no back-pressure. So nothing is diverted here. TCP gets
//! every write at once and keeps it in its own send queue; the gate *copies* writes to the daemon,
//! and *refuses* the segments that TCP builds from bytes that may not leave yet. A refused segment
//! counts as never sent. Order, FIN behind the last byte, blocking writers, death of the process:
//! all is what TCP does anyway with a connection that cannot send.
//!
//! Each flow has a *released edge*: the outstream's first sequence number that may not leave. A FIN
//! occupies the number behind the last byte. [`Orders::release`] moves the edge and makes TCP try
//! again at once. Which edge, and when, is not decided here.
//!
//! A segment that lies across the edge is refused whole. Bytes in front of an edge that is not the
//! end of what has been written may therefore leave only with what is behind them.

mod attach;
mod counters;
mod orders;
mod output;

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, unused_imports)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/gate.skel.rs"));
}

use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use datapath::FlowKey;
use hostnet::{Offload, Tun, TunError};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject};

pub use counters::{Counter, Counters};
pub use orders::Orders;
pub use output::{OutputReader, OutputSource, Record};

use attach::{Filter, Where};
use skel::{GateSkel, GateSkelBuilder, types};

/// What the gate is loaded with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Interface index of the service link.
    pub service_ifindex: u32,
    /// Addresses and ports whose connections are held.
    pub services: Vec<SocketAddr>,
    /// Output of one flow, in bytes, that may wait to be released; past it the server's writes
    /// block, or are refused with EAGAIN if it asked not to block.
    pub hold_bytes: u32,
    /// Send buffer of each held socket in bytes, as for SO_SNDBUF; it must take `hold_bytes` and
    /// what is in flight besides. `None` leaves it to the kernel, which may block the server
    /// sooner.
    pub send_buffer: Option<u32>,
    /// Size of the ring that output goes through, in bytes: a power of two and a multiple of the
    /// page size.
    pub ring_bytes: u32,
    /// Connections that can be held at once.
    pub max_flows: u32,
}

/// Why the gate could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open the gate's BPF object: {0}")]
    Open(#[source] libbpf_rs::Error),
    #[error("the kernel refused the gate: {0}; Linux 6.16 or later and root are needed")]
    Load(#[source] libbpf_rs::Error),
    #[error("cannot attach {program} to {place}: {source}")]
    Attach { program: &'static str, place: String, source: libbpf_rs::Error },
    #[error("cannot open the cgroup v2 hierarchy: {0}")]
    Cgroup(#[source] std::io::Error),
    #[error("cannot write to map {map}: {source}")]
    Map { map: &'static str, source: libbpf_rs::Error },
    #[error("cannot read this network namespace's cookie: {0}")]
    Cookie(#[source] std::io::Error),
    #[error("the device for orders: {0}")]
    Device(#[from] TunError),
}

/// The loaded gate of the calling thread's network namespace. When it is dropped nothing more is
/// captured, and what is held stays held, by the fence on the link; [`Gate::detach`] ends that too.
pub struct Gate {
    skel: GateSkel<'static>,
    orders: Arc<Orders>,
    fence: Filter,
    /// Held, never read: the programs detach when these are dropped.
    _links: Vec<Link>,
}

impl Gate {
    /// Loads and attaches the programs. Connections get a gate once [`Gate::set_holding`] says so.
    pub fn load(settings: &Settings) -> Result<Self, Error> {
        // The skeleton borrows its object for as long as both live, and a daemon has one gate for
        // all of its life: leaking these few bytes makes the skeleton 'static.
        let object: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = GateSkelBuilder::default().open(object).map_err(Error::Open)?;
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has constants");
        rodata.netns_cookie = attach::netns_cookie().map_err(Error::Cookie)?;
        rodata.hold_bytes = settings.hold_bytes;
        rodata.send_buffer = settings.send_buffer.unwrap_or(0);
        // A flood of output must not keep the daemon from learning that connections end.
        rodata.ring_reserve = settings.ring_bytes / 8;
        let sized = |map: &'static str| move |source| Error::Map { map, source };
        open.maps.output_ring.set_max_entries(settings.ring_bytes).map_err(sized("output_ring"))?;
        open.maps.captured.set_max_entries(settings.max_flows).map_err(sized("captured"))?;
        let mut skel = open.load().map_err(Error::Load)?;
        for service in &settings.services {
            let key = types::service_key {
                address: mapped(service.ip()),
                port: service.port().to_be(),
                pad: 0,
            };
            skel.maps
                .services
                .update(bytes_of(&key), &1u32.to_ne_bytes(), MapFlags::ANY)
                .map_err(sized("services"))?;
        }

        let device = Tun::open("sfgate", 1500, Offload::Segments)?;
        Filter::attach("order_in", skel.progs.order_in.as_fd(), device.ifindex(), Where::Ingress)?;
        let fence = Filter::attach(
            "gate_fence",
            skel.progs.gate_fence.as_fd(),
            settings.service_ifindex,
            Where::Egress,
        )?;
        let links = attach::to_sockets(&mut skel)?;
        let captured = handle(&skel.maps.captured, "captured")?;
        let orders = Arc::new(Orders::new(device, captured));
        Ok(Self { skel, orders, fence, _links: links })
    }

    /// Whether connections that begin from now on get a gate. Those that run keep what they have.
    pub fn set_holding(&self, holding: bool) {
        let page = self.skel.maps.data_ctl_data.as_deref().expect("the object has its page");
        // SAFETY: the page is mapped for as long as the skeleton lives, the field is a u32, and
        // every access from this side is atomic.
        let hold = unsafe { AtomicU32::from_ptr((&raw const page.ctl.hold).cast_mut()) };
        hold.store(holding.into(), Ordering::Release);
    }

    /// What releases; may be moved to another thread.
    pub fn orders(&self) -> Arc<Orders> {
        Arc::clone(&self.orders)
    }

    /// What the servers write; may be moved to the thread that is to read it.
    pub fn output(&self) -> Result<OutputSource, Error> {
        Ok(OutputSource::new(handle(&self.skel.maps.output_ring, "output_ring")?))
    }

    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(Counters::new(handle(&self.skel.maps.counters, "counters")?))
    }

    /// Removes every program: what is held leaves.
    pub fn detach(self) -> Result<(), Error> {
        self.fence.detach()
    }
}

fn handle(map: &libbpf_rs::MapMut<'_>, name: &'static str) -> Result<MapHandle, Error> {
    MapHandle::try_from(map).map_err(|source| Error::Map { map: name, source })
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn raw_key(key: &FlowKey) -> types::flow_key {
    let (client, server) = (key.client(), key.server());
    types::flow_key {
        client: mapped(client.ip()),
        server: mapped(server.ip()),
        client_port: client.port().to_be(),
        server_port: server.port().to_be(),
    }
}

fn flow_key(raw: &types::flow_key) -> FlowKey {
    let address = |octets: [u8; 16], port| {
        SocketAddr::new(std::net::Ipv6Addr::from(octets).to_canonical(), u16::from_be(port))
    };
    FlowKey::new(address(raw.client, raw.client_port), address(raw.server, raw.server_port))
}

/// Types without hidden padding, whose bytes may be given to the kernel.
///
/// # Safety
/// Every byte of every value is initialised.
unsafe trait Plain: Copy {}
// SAFETY: sixteen bytes of address, two of port, two of padding that is a field.
unsafe impl Plain for types::service_key {}
// SAFETY: two addresses and two ports of two bytes; 36 bytes, alignment 2.
unsafe impl Plain for types::flow_key {}

fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` types have no uninitialised byte; the slice borrows the value.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

//! The eBPF data path and its typed edge.
//!
//! Everything that a segment meets between the wire and a server's socket happens in the programs
//! under `src/bpf/`; this crate loads them, attaches them so that they outlive the daemon, and
//! offers their tables as Rust values. Policy lives elsewhere: nothing here decides when a node is
//! primary or which flow is adopted.
//!
//! Attachment. The tc programs are filters of a `clsact` qdisc, not BPF links: a link would go with
//! the daemon, and the fence with it, exactly when the fence is needed (invariant 3). A restarted
//! daemon replaces the filters in place. The socket programs (birth of adopted children, crash of
//! a server) are links, since they serve a living daemon only.

mod attach;
mod counters;
#[doc(hidden)]
pub mod fixture;
mod flows;
mod log;
mod switchboard;

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, unused_imports)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/datapath.skel.rs"));
}

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, OpenObject};

pub use counters::{Counter, Counters};
pub use flows::{Birth, Flow, FlowKey, FlowOptions, FlowState, FlowTable, Stray};
pub use log::{LogReader, LogSource, Record};
pub use switchboard::{Role, Switchboard};

use attach::{Hook, Where};
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
    /// Service addresses; the position is the service's number in records and flows.
    pub services: Vec<Vec<(IpAddr, u16)>>,
}

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
    #[error("cannot write to map {map}: {source}")]
    Map { map: &'static str, source: libbpf_rs::Error },
    #[error("cannot read this network namespace's cookie: {0}")]
    Cookie(#[source] std::io::Error),
}

/// The loaded data path. Dropping it leaves the tc programs in place, fenced by the lease;
/// [`Datapath::detach`] removes them.
pub struct Datapath {
    skel: DatapathSkel<'static>,
    switchboard: Switchboard,
    hooks: Vec<Hook>,
    /// Held, never read: the programs detach when these are dropped.
    _links: Vec<Link>,
}

impl Datapath {
    /// Loads the programs and attaches all of them but the adoption hook. Nothing passes to or
    /// from a service until a role is set.
    pub fn load(settings: &Settings) -> Result<Self, Error> {
        // libbpf speaks on standard error, also of what is no error (a qdisc that exists).
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, |level, text| {
            let text = text.trim_end();
            match level {
                libbpf_rs::PrintLevel::Debug => tracing::trace!("{text}"),
                _ => tracing::debug!("{text}"),
            }
        })));
        // The skeleton borrows its object for as long as both live, and a daemon has one data
        // path for all of its life: leaking these few bytes makes the skeleton 'static.
        let object: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = DatapathSkelBuilder::default().open(object).map_err(Error::Open)?;
        let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has constants");
        rodata.service_ifindex = settings.service_ifindex;
        rodata.cluster_ifindex = settings.cluster_ifindex;
        rodata.netns_cookie = netns_cookie().map_err(Error::Cookie)?;
        rodata.own_address4 =
            settings.own_address4.map_or(0, |own| u32::from_ne_bytes(own.octets()));
        let sized = |map: &'static str| move |source| Error::Map { map, source };
        open.maps.log_ring.set_max_entries(settings.ring_bytes).map_err(sized("log_ring"))?;
        open.maps.flows.set_max_entries(settings.max_flows).map_err(sized("flows"))?;
        open.maps.swallowing.set_max_entries(settings.max_flows).map_err(sized("swallowing"))?;
        let mut skel = open.load().map_err(Error::Load)?;

        let page = skel.maps.data_ctl_data.as_deref_mut().expect("the object has its page");
        let switchboard = Switchboard::new(&mut page.ctl);
        fill_services(&skel, &settings.services)?;
        let links = attach::to_sockets(&mut skel)?;
        let mut hooks = Vec::new();
        let links_of: HashSet<_> = [settings.service_ifindex, settings.cluster_ifindex].into();
        hooks.push(Hook::attach(
            "service_in",
            skel.progs.service_in.as_fd(),
            settings.service_ifindex,
            Where::Ingress,
        )?);
        if settings.cluster_ifindex != settings.service_ifindex {
            hooks.push(Hook::attach(
                "cluster_in",
                skel.progs.cluster_in.as_fd(),
                settings.cluster_ifindex,
                Where::Ingress,
            )?);
        }
        for ifindex in links_of {
            let program = skel.progs.node_out.as_fd();
            hooks.push(Hook::attach("node_out", program, ifindex, Where::Egress)?);
        }
        Ok(Self { skel, switchboard, hooks, _links: links })
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
            handle(&self.skel.maps.swallowing, "swallowing")?,
            handle(&self.skel.maps.strays, "strays")?,
            handle(&self.skel.maps.embryos, "embryos")?,
        ];
        Ok(FlowTable::new(maps, self.switchboard))
    }

    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(Counters::new(handle(&self.skel.maps.counters, "counters")?))
    }

    /// The log; may be moved to the thread that is to read it.
    pub fn log(&self) -> Result<LogSource, Error> {
        Ok(LogSource::new(handle(&self.skel.maps.log_ring, "log_ring")?))
    }

    /// Removes every program from the network devices.
    pub fn detach(self) -> Result<(), Error> {
        self.hooks.into_iter().try_for_each(Hook::detach)
    }
}

fn handle(map: &libbpf_rs::MapMut<'_>, name: &'static str) -> Result<MapHandle, Error> {
    MapHandle::try_from(map).map_err(|source| Error::Map { map: name, source })
}

fn fill_services(skel: &DatapathSkel<'_>, services: &[Vec<(IpAddr, u16)>]) -> Result<(), Error> {
    for (id, endpoints) in services.iter().enumerate() {
        for &(address, port) in endpoints {
            let address = flows::mapped(address);
            let key = types::service_key { address, port: port.to_be(), pad: 0 };
            let value = types::service { id: id as u32 };
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
    use std::os::fd::AsRawFd;

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

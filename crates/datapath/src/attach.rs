//! Where the programs sit: tc filters on the links, and BPF links at the root cgroup. All of them
//! outlive the daemon.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{Link, ProgramMut, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder};

use crate::Error;
use crate::cgroup::cgroup2_root;
use crate::pins::Pins;
use crate::ringer;
use crate::skel::DatapathSkel;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Where {
    Ingress,
    Egress,
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Where::Ingress => "ingress",
            Where::Egress => "egress",
        })
    }
}

/// One tc filter. Handle and priority are fixed, so that a restarted daemon replaces its
/// predecessor's filter in one step, with no instant in which traffic passes unfiltered.
pub(crate) struct Hook {
    hook: TcHook,
    ifindex: u32,
    program: &'static str,
    place: String,
}

const HANDLE: u32 = 0x5f7d;
const PRIORITY: u32 = 0x5f7d;

impl Hook {
    pub(crate) fn attach(
        program: &'static str,
        fd: BorrowedFd<'_>,
        ifindex: u32,
        place: Where,
    ) -> Result<Self, Error> {
        let mut builder = TcHookBuilder::new(fd);
        builder.ifindex(ifindex as i32).replace(true).handle(HANDLE).priority(PRIORITY);
        let mut hook = builder.hook(match place {
            Where::Ingress => TC_INGRESS,
            Where::Egress => TC_EGRESS,
        });
        let place = format!("{place} of interface {ifindex}");
        // Creating the clsact qdisc answers EEXIST where somebody else already has: it is shared.
        hook.create()
            .and_then(|mut hook| hook.attach())
            .map(|hook| Self { hook, ifindex, program, place: place.clone() })
            .map_err(|source| Error::Attach { program, place, source })
    }

    /// An interface that is gone has taken its programs with it: the adoption device closes with
    /// the thread that writes to it.
    pub(crate) fn detach(mut self) -> Result<(), Error> {
        match self.hook.detach() {
            Err(source) if exists(self.ifindex) => {
                Err(Error::Attach { program: self.program, place: self.place, source })
            }
            _ => Ok(()),
        }
    }
}

fn exists(ifindex: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has room for the longest name there can be.
    !unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr()) }.is_null()
}

/// An iterator over the TCP sockets: the link's passes run the program for each of them.
pub(crate) fn to_socket_list(
    program: &'static str,
    iterator: &ProgramMut<'_>,
) -> Result<Link, Error> {
    let place = "the list of TCP sockets".to_owned();
    iterator.attach().map_err(|source| Error::Attach { program, place, source })
}

/// Attaches the programs that follow sockets. The root of the cgroup v2 tree is the place for
/// them: wherever the operator runs a server, its sockets are below it. The programs themselves
/// look only at their own network namespace and services.
///
/// They outlive the daemon like the filters, since a server that crashes after its daemon, while
/// the lease still runs, must be silent too (invariant 5), and a child that has not swallowed all
/// of its output must go on (invariant 6). A child keeps the program that swallows, and the linked
/// `sock_events` keeps the map that the child is in. What they log is read by nobody then: the ring
/// is full at some time, and nothing waits for it.
///
/// `holding`: there are held services. What `gate_out` lets TCP keep it would send once the daemon
/// is dead; the filter behind it does not let it leave (`node_out`).
pub(crate) fn to_sockets(
    skel: &mut DatapathSkel<'static>,
    pins: &mut Pins,
    holding: bool,
) -> Result<Vec<Link>, Error> {
    let program = "sock_events";
    let cgroup = cgroup2_root().map_err(|source| Error::Cgroup { program, source })?;
    let fd = cgroup.as_raw_fd();
    let map = skel.maps.watched.as_fd().as_raw_fd();
    let failed = |program, place: &str| {
        let place = place.to_owned();
        move |source| Error::Attach { program, place, source }
    };
    // This one is no link: it lasts as long as the map is known to a process, and for every socket
    // as long as that is in the map.
    let write = skel.progs.server_write.attach_sockmap(map);
    write.map_err(failed("server_write", "the socket map"))?;
    let mut links = Vec::new();
    if holding {
        // The gate before what makes gates: no segment of a held socket goes unjudged.
        let out = skel.progs.gate_out.attach_cgroup(fd);
        links.push(out.map_err(failed("gate_out", "the root cgroup"))?);
        if ringer::is_needed() {
            let read = skel.progs.server_read.attach();
            links.push(read.map_err(failed("server_read", "tcp_rcv_space_adjust"))?);
        }
    }
    links.extend([
        pins.keep("sock_events", &skel.progs.sock_events, |program| program.attach_cgroup(fd))?,
        pins.keep("server_close", &skel.progs.server_close, |program| program.attach_cgroup(fd))?,
    ]);
    pins.remove_others()?;
    Ok(links)
}

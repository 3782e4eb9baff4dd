//! The kernel's TCP sockets of a service: count them, end them, find the listener.
//!
//! A node that stops being a flow's primary must forget the flow's socket, whatever state it is
//! in: a leftover in ESTABLISHED would go on retransmitting, one in TIME_WAIT or FIN_WAIT would
//! swallow the segment that adoption forges. Closing the server's descriptors is not enough
//! (orphans live on in the kernel) and not possible for TIME_WAIT, so this uses `SOCK_DESTROY`
//! of the socket diagnosis interface.
//!
//! Two traps. A request that names a flow by its addresses alone is looked up like an incoming
//! segment, so once the flow is gone it finds the *listener* and destroys that: every request
//! therefore carries the cookie of the socket that was listed, and the kernel refuses if the
//! lookup gives another. And an IPv4 flow accepted by a dual-stack IPv6 listener is listed under
//! IPv6 with mapped addresses: both tables are read and addresses compared in canonical form.
//!
//! **A destroyed socket in a synchronised state sends RST.** Whoever calls this while the flow
//! lives on elsewhere mutes the address first (invariant: RST reaches a client only because an
//! application ended the connection).

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags,
};
use netlink_packet_sock_diag::{SockDiagDestroy, SockDiagMessage};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use crate::netlink::{Channel, NetlinkError};

/// Listing and destroying is repeated until nothing is left, but not for ever.
const ROUNDS: u32 = 8;

/// Sockets could not be listed or destroyed.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    /// The kernel lacks the interface.
    #[error(
        "this kernel cannot {action} TCP sockets: it is built without {option} (or its module is \
         not loaded)"
    )]
    Unsupported {
        /// "list" or "destroy".
        action: &'static str,
        /// The configuration option.
        option: &'static str,
    },
    /// Only root may destroy sockets.
    #[error("cannot destroy TCP sockets: CAP_NET_ADMIN is missing; run the node as root")]
    Privilege,
    /// New ones kept coming.
    #[error(
        "{left} TCP sockets are still there after {ROUNDS} rounds of destroying ({destroyed} \
         gone): new ones are being created; stop the address's traffic first"
    )]
    Remaining {
        /// How many the last listing showed.
        left: usize,
        /// How many were destroyed.
        destroyed: u32,
    },
    /// The kernel refused one of them.
    #[error("the kernel would not destroy the TCP socket {local} - {remote}: {source}")]
    Refused {
        /// The local end.
        local: SocketAddr,
        /// The remote end.
        remote: SocketAddr,
        /// Its reason.
        source: io::Error,
    },
    /// The conversation went wrong.
    #[error(transparent)]
    Netlink(NetlinkError),
}

/// Destroys every TCP socket bound to one of the `local` ends, in every state but LISTEN:
/// half-open requests, TIME_WAIT and orphans included, IPv4 flows on IPv6 sockets too. Returns
/// how many were destroyed. Sockets in synchronised states send RST: mute the address first.
pub fn destroy_sockets(local: &[(IpAddr, u16)]) -> Result<u32, SocketsError> {
    destroy_sockets_if(local, |_, _| true)
}

/// The same, of those of which `condition` holds, given the local end and the remote one (both
/// without IPv4-mapped addresses).
pub fn destroy_sockets_if(
    local: &[(IpAddr, u16)],
    condition: impl Fn(SocketAddr, SocketAddr) -> bool,
) -> Result<u32, SocketsError> {
    let wanted: HashSet<(IpAddr, u16)> = local.iter().map(canonical_pair).collect();
    destroy_matching(&ports(&wanted), 0, |socket| {
        wanted.contains(&(socket.local.ip(), socket.local.port()))
            && condition(socket.local, socket.remote)
    })
}

/// Destroys the one TCP socket of a flow; false if there is none. It sends RST if it was in a
/// synchronised state: mute the flow first.
pub fn destroy_flow(local: SocketAddr, remote: SocketAddr) -> Result<bool, SocketsError> {
    let (local, remote) = (canonical(local), canonical(remote));
    let destroyed = destroy_matching(&[local.port()], remote.port(), |socket| {
        socket.local == local && socket.remote == remote
    })?;
    Ok(destroyed > 0)
}

/// How many TCP sockets [`destroy_sockets`] would destroy.
pub fn count_sockets(local: &[(IpAddr, u16)]) -> Result<u32, SocketsError> {
    let found = ends(local, living_states())?;
    Ok(u32::try_from(found.len()).expect("fewer sockets than 2^32"))
}

/// The local and the remote end of each of them that still has something to say: not of those in
/// TIME_WAIT.
pub fn connections(local: &[(IpAddr, u16)]) -> Result<Vec<(SocketAddr, SocketAddr)>, SocketsError> {
    ends(local, living_states() - StateFlags::TIME_WAIT)
}

fn ends(
    local: &[(IpAddr, u16)],
    states: StateFlags,
) -> Result<Vec<(SocketAddr, SocketAddr)>, SocketsError> {
    let wanted: HashSet<(IpAddr, u16)> = local.iter().map(canonical_pair).collect();
    let mut table = Table::open()?;
    let mut found = Vec::new();
    for port in ports(&wanted) {
        let here = table.list(port, 0, states.clone())?.into_iter();
        let ours = here.filter(|s| wanted.contains(&(s.local.ip(), s.local.port())));
        found.extend(ours.map(|socket| (socket.local, socket.remote)));
    }
    Ok(found)
}

/// Whether a connection to `addr`:`port` would find a listener: bound to the address itself, to
/// the wildcard of its family, or, for IPv4, to the IPv6 wildcard of a dual-stack socket.
pub fn is_listening(addr: IpAddr, port: u16) -> Result<bool, SocketsError> {
    let addr = addr.to_canonical();
    let listeners = Table::open()?.list(port, 0, StateFlags::LISTEN)?;
    Ok(listeners.iter().any(|listener| match listener.local.ip() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => addr.is_ipv6() || !listener.v6_only,
        bound if bound.is_unspecified() => addr.is_ipv4(),
        bound => bound == addr,
    }))
}

/// One TCP socket as the kernel lists it.
struct Listed {
    /// The address family of the table it is in, which the request to destroy it must name.
    family: u8,
    /// Canonical: IPv4-mapped addresses are IPv4 here.
    local: SocketAddr,
    remote: SocketAddr,
    v6_only: bool,
    /// As the kernel wrote it, cookie and bound interface included.
    id: SocketId,
}

impl Listed {
    fn of(response: InetResponse) -> Listed {
        let header = response.header;
        let id = header.socket_id;
        let end = |ip: IpAddr, port| canonical(SocketAddr::new(ip, port));
        Listed {
            family: header.family,
            local: end(id.source_address, id.source_port),
            remote: end(id.destination_address, id.destination_port),
            v6_only: response.nlas.iter().any(|nla| matches!(nla, Nla::SkV6Only(true))),
            id,
        }
    }
}

struct Table {
    channel: Channel,
}

impl Table {
    fn open() -> Result<Table, SocketsError> {
        let channel =
            Channel::open(NETLINK_SOCK_DIAG, "TCP sockets").map_err(SocketsError::Netlink)?;
        Ok(Table { channel })
    }

    /// The sockets with these ports (the kernel filters; 0 is any) in these states.
    fn list(
        &mut self,
        local_port: u16,
        remote_port: u16,
        states: StateFlags,
    ) -> Result<Vec<Listed>, SocketsError> {
        let mut listed = Vec::new();
        for family in [AF_INET, AF_INET6] {
            let mut socket_id =
                if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() };
            socket_id.source_port = local_port;
            socket_id.destination_port = remote_port;
            let request = SockDiagMessage::InetRequest(InetRequest {
                family,
                protocol: IPPROTO_TCP,
                extensions: ExtensionFlags::empty(),
                states: states.clone(),
                socket_id,
            });
            let answers: Vec<SockDiagMessage> =
                self.channel.dump(&request).map_err(|source| match source.refusal() {
                    Some(libc::ENOENT) => {
                        SocketsError::Unsupported { action: "list", option: "CONFIG_INET_TCP_DIAG" }
                    }
                    _ => SocketsError::Netlink(source),
                })?;
            listed.extend(answers.into_iter().filter_map(|answer| match answer {
                SockDiagMessage::InetResponse(response) => Some(Listed::of(*response)),
                _ => None,
            }));
        }
        Ok(listed)
    }

    /// Destroys these sockets; the number of those that were still there.
    fn destroy(&mut self, victims: &[Listed]) -> Result<u32, SocketsError> {
        let requests = victims
            .iter()
            .map(|victim| {
                SockDiagDestroy::new(SockDiagMessage::InetRequest(InetRequest {
                    family: victim.family,
                    protocol: IPPROTO_TCP,
                    extensions: ExtensionFlags::empty(),
                    states: StateFlags::all(),
                    socket_id: victim.id.clone(),
                }))
            })
            .collect();
        let outcomes = self.channel.change_all(requests, 0).map_err(SocketsError::Netlink)?;
        let mut destroyed = 0;
        for (victim, outcome) in victims.iter().zip(outcomes) {
            let Some(error) = outcome else {
                destroyed += 1;
                continue;
            };
            match error.raw_os_error() {
                // Gone since it was listed; ESTALE: its place was taken by another socket, which
                // the next round judges anew.
                Some(libc::ENOENT | libc::ESTALE) => {}
                Some(libc::EPERM) => return Err(SocketsError::Privilege),
                Some(libc::EOPNOTSUPP) => {
                    let option = "CONFIG_INET_DIAG_DESTROY";
                    return Err(SocketsError::Unsupported { action: "destroy", option });
                }
                _ => {
                    let (local, remote) = (victim.local, victim.remote);
                    return Err(SocketsError::Refused { local, remote, source: error });
                }
            }
        }
        Ok(destroyed)
    }
}

fn destroy_matching(
    local_ports: &[u16],
    remote_port: u16,
    matches: impl Fn(&Listed) -> bool,
) -> Result<u32, SocketsError> {
    let mut table = Table::open()?;
    let mut destroyed = 0;
    let mut left = 0;
    // A socket can change its place in the table while it is being listed (ESTABLISHED becomes
    // TIME_WAIT), so only an empty listing proves that all are gone.
    for _ in 0..ROUNDS {
        left = 0;
        for &port in local_ports {
            let mut victims = table.list(port, remote_port, living_states())?;
            victims.retain(&matches);
            left += victims.len();
            destroyed += table.destroy(&victims)?;
        }
        if left == 0 {
            return Ok(destroyed);
        }
    }
    Err(SocketsError::Remaining { left, destroyed })
}

/// Every state in which a socket belongs to a flow. The kernel takes SYN_RECV to mean half-open
/// requests as well, and TIME_WAIT and FIN_WAIT2 to include the small sockets it keeps for them.
fn living_states() -> StateFlags {
    StateFlags::all() - StateFlags::LISTEN - StateFlags::CLOSE
}

fn ports(wanted: &HashSet<(IpAddr, u16)>) -> Vec<u16> {
    let mut ports: Vec<u16> = wanted.iter().map(|(_, port)| *port).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn canonical(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}

fn canonical_pair((addr, port): &(IpAddr, u16)) -> (IpAddr, u16) {
    (addr.to_canonical(), *port)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use netlink_sys::protocols::NETLINK_ROUTE;
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::interface::{Interface, set_up};

    /// A flow that ends between listing and destroying: its request must not be taken to mean
    /// the listener, which is what a lookup of its addresses gives by then.
    #[test]
    fn a_stale_listing_does_not_hit_the_listener() {
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("this test makes a namespace: run as root");
            let lo = Interface::by_name("lo").unwrap();
            let mut channel = Channel::open(NETLINK_ROUTE, "links").unwrap();
            set_up(&mut channel, lo.index, lo.mtu).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let here = listener.local_addr().unwrap();
            let _flow = (TcpStream::connect(here).unwrap(), listener.accept().unwrap());

            let mut table = Table::open().unwrap();
            let listed = table.list(here.port(), 0, living_states()).unwrap();
            assert_eq!(listed.len(), 1);
            assert_eq!(table.destroy(&listed).unwrap(), 1);
            assert_eq!(table.destroy(&listed).unwrap(), 0);
            assert!(is_listening(here.ip(), here.port()).unwrap());
            // The trap is real: without the cookie the listener goes.
            let mut blind = listed;
            blind[0].id.cookie = [0xff; 8];
            assert_eq!(table.destroy(&blind).unwrap(), 1);
            assert!(!is_listening(here.ip(), here.port()).unwrap());
        };
        std::thread::spawn(inside).join().unwrap();
    }
}

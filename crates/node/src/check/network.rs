//! The links and addresses that the configuration names.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, getsockopt,
    setsockopt, socket, sockopt,
};

use super::Context;
use crate::config::Config;

const PEER_LIMIT_MS: u16 = 500;

/// What one interface has.
#[derive(Debug, Default)]
struct Interface {
    up: bool,
    loopback: bool,
    mac: Option<[u8; 6]>,
    addresses: Vec<IpAddr>,
}

/// Reads an interface of this network namespace; `None` if it does not exist.
fn interface(name: &str) -> Option<Interface> {
    let mut found = None;
    for entry in getifaddrs().ok()?.filter(|entry| entry.interface_name == name) {
        let interface = found.get_or_insert_with(Interface::default);
        interface.up = entry.flags.contains(InterfaceFlags::IFF_UP);
        interface.loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let Some(address) = entry.address else { continue };
        interface.addresses.extend(ip_of(&address));
        if let Some(mac) = address.as_link_addr().and_then(|link| link.addr()) {
            interface.mac = Some(mac).filter(|mac| *mac != [0; 6]);
        }
    }
    found
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

pub(super) fn interfaces(context: &mut Context<'_>) {
    let Some(node) = context.config.map(|config| &config.node) else { return };
    let links = [
        ("service", &node.service_interface, node.address.service),
        ("cluster", &node.cluster_interface, node.address.cluster),
    ];
    for (link, name, own) in links {
        let why = "the node speaks with its peer and its clients through it";
        let Some(interface) = interface(name) else {
            let what = format!("there is no interface {name}, the {link} interface");
            let mend = format!("write one that `ip link` shows as node.{link}_interface");
            context.fail(what, why, mend);
            continue;
        };
        let before = context.findings.len();
        if !interface.up {
            let mend = format!("ip link set {name} up");
            context.fail(format!("{name}, the {link} interface, is down"), why, mend);
        }
        if interface.loopback || interface.mac.is_none() {
            let why = "segments are relayed between Ethernet addresses";
            let mend = format!("write an Ethernet interface as node.{link}_interface");
            let what = format!("{name}, the {link} interface, has no Ethernet address");
            context.fail(what, why, mend);
        }
        if !interface.addresses.contains(&own) {
            let mend = format!("ip address add {own}/LENGTH dev {name}, or mend node.address");
            let what = format!("{name} does not have {own}, node.address.{link}");
            context.fail(what, "the control channel is bound to it", mend);
        }
        if context.findings.len() == before {
            context.ok(format!("{name}, the {link} interface, is up and has {own}"));
        }
    }
}

pub(super) fn mtu(context: &mut Context<'_>) {
    let Some(node) = context.config.map(|config| &config.node) else { return };
    let (service, cluster) = (&node.service_interface, &node.cluster_interface);
    let mtus = mtu_of(service).and_then(|service| Ok((service, mtu_of(cluster)?)));
    // The probe before this one has reported an interface that does not exist.
    let Ok((service_mtu, cluster_mtu)) = mtus else { return };
    if cluster_mtu < service_mtu {
        context.fail(
            format!("{cluster} carries {cluster_mtu} bytes, {service} carries {service_mtu}"),
            "clients' segments are relayed whole over the cluster link",
            format!("ip link set {cluster} mtu {service_mtu}, or lower that of {service}"),
        );
    } else {
        context.ok(format!(
            "the cluster link carries every segment of the service link \
                            ({cluster_mtu} ≥ {service_mtu} bytes)"
        ));
    }
}

/// Asked by ioctl: /sys shows the namespace that mounted it, which may not be this thread's.
fn mtu_of(name: &str) -> io::Result<u32> {
    // SAFETY: an ifreq is valid as zeros.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(room)) {
        *to = from as libc::c_char;
    }
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")
        .or_else(|_| std::net::UdpSocket::bind("[::]:0"))?;
    let fd = socket.as_raw_fd();
    // SAFETY: SIOCGIFMTU reads the name, which ends with NUL, and writes the MTU into the request,
    // both on this stack.
    if unsafe { libc::ioctl(fd, libc::SIOCGIFMTU as _, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just written this member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
}

pub(super) fn rp_filter(context: &mut Context<'_>) {
    let Some(node) = context.config.map(|config| &config.node) else { return };
    let name = &node.cluster_interface;
    let read = |name: &str| -> Option<u8> {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let (Some(all), Some(own)) = (read("all"), read(name)) else { return };
    // ip-sysctl: the maximum of both counts; 1 is strict, 2 is loose.
    if all.max(own) == 1 {
        context.fail(
            format!(
                "{name} drops packets that come in by another way than they would go out \
                     (rp_filter is strict)"
            ),
            "relayed clients' segments come in over the cluster link",
            format!("sysctl -w net.ipv4.conf.{name}.rp_filter=2, and keep it in /etc/sysctl.d"),
        );
    } else {
        context.ok(format!("{name} takes relayed segments (rp_filter is {})", all.max(own)));
    }
}

pub(super) fn service_addresses(context: &mut Context<'_>) {
    let Some(config) = context.config else { return };
    let Ok(entries) = getifaddrs() else { return };
    let present: Vec<(String, IpAddr)> =
        entries.filter_map(|entry| Some((entry.interface_name, ip_of(&entry.address?)?))).collect();
    for (service, address) in addresses(config) {
        let holders: Vec<&str> = present
            .iter()
            .filter(|(name, ip)| {
                // Where the daemon itself puts it.
                *ip == address && name != "lo" && *name != config.node.service_interface
            })
            .map(|(name, _)| name.as_str())
            .collect();
        if holders.is_empty() {
            context.ok(format!("{address} of {service} is on no other interface"));
        } else {
            let names = holders.join(", ");
            context.fail(
                format!("{address} of {service} is already on {names}"),
                "a service address belongs to the service interface alone, and moves",
                format!("ip address del {address} from {names}; the daemon sets it itself"),
            );
        }
    }
}

fn addresses(config: &Config) -> Vec<(&str, IpAddr)> {
    let services = config.services.iter();
    services.flat_map(|s| s.addresses.iter().map(|ip| (s.name.as_str(), *ip))).collect()
}

pub(super) fn peer(context: &mut Context<'_>) {
    let Some(node) = context.config.map(|config| &config.node) else { return };
    let links = [
        ("service", &node.service_interface, node.peer_address.service),
        ("cluster", &node.cluster_interface, node.peer_address.cluster),
    ];
    let answers = std::thread::scope(|scope| {
        links
            .map(|(_, interface, address)| {
                let address = SocketAddr::new(address, node.control_port);
                scope.spawn(move || answers(interface, address))
            })
            .map(|thread| thread.join().expect("the thread does not panic"))
    });
    for ((link, _, address), answer) in links.into_iter().zip(answers) {
        match answer {
            Ok(()) => context.ok(format!("the peer answers on the {link} link ({address})")),
            Err(error) => context.warn(
                format!("the peer does not answer on the {link} link ({address}): {error}"),
                "without it connections are not protected",
                "start it, or mend node.peer_address, the cabling or a firewall",
            ),
        }
    }
}

/// Whether a host on this very link has the address: it takes or refuses a TCP connection. The
/// port, which the control channel uses for UDP, only has to be one that a firewall lets through;
/// with the scheme `message` nodes connect to it.
/// A routed connection would prove nothing: gateways answer for hosts that they do not know.
fn answers(interface: &str, address: SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Stream, flags, SockProtocol::Tcp)?;
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from(interface))?;
    setsockopt(&socket, sockopt::DontRoute, &true)?;
    let refused_is_answered = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused => Ok(()),
        _ => Err(error),
    };
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) => return Ok(()),
        Err(nix::Error::EINPROGRESS) => {}
        Err(errno) => return refused_is_answered(errno.into()),
    }
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut fds, PEER_LIMIT_MS)? == 0 {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"));
    }
    match getsockopt(&socket, sockopt::SocketError)? {
        0 => Ok(()),
        errno => refused_is_answered(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_known_for_what_it_is() {
        let lo = interface("lo").expect("every host has one");
        assert!(lo.loopback && lo.mac.is_none());
        assert!(mtu_of("lo").unwrap() >= 1500);
        assert!(interface("no-such-link").is_none());
        assert!(mtu_of("no-such-link").is_err());
    }

    #[test]
    fn a_host_that_refuses_is_there() {
        let address = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            answers("lo", listener.local_addr().unwrap()).unwrap();
            listener.local_addr().unwrap()
        };
        answers("lo", address).expect("refusal is an answer");
        assert!(answers("no-such-link", address).is_err());
    }
}

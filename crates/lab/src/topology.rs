//! Who is in a lab: hosts, links, names and addresses.
//!
//! Everything is a pure function of the order of the hosts, so that a host which is
//! killed and booted again has the addresses and MACs it had, and two labs look alike.
//!
//! | link | in the host | in the switch | IPv4 | IPv6 |
//! |---|---|---|---|---|
//! | service | `svc0` | `<host>.svc` | 10.77.0.*n*/24 | fd77::*n*/64 |
//! | cluster | `clu0` | `<host>.clu` | 10.78.0.*n*/24 | fd78::*n*/64 |
//!
//! *n* counts from 1 for nodes (hosts on both links) and from 101 for clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Most hosts a lab can have; the wire's table has this many rows.
pub const MAX_HOSTS: usize = 16;

/// One of the two networks of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// Between clients and nodes: `svc0`.
    Service,
    /// Between nodes only: `clu0`.
    Cluster,
}

impl Link {
    /// Both links, in the order of their numbers.
    pub const ALL: [Link; 2] = [Link::Service, Link::Cluster];

    /// The short name: `svc` or `clu`. A bridge of this name is the link's switch.
    pub fn name(self) -> &'static str {
        match self {
            Link::Service => "svc",
            Link::Cluster => "clu",
        }
    }

    /// The interface's name inside a host: `svc0` or `clu0`.
    pub fn interface(self) -> &'static str {
        match self {
            Link::Service => "svc0",
            Link::Cluster => "clu0",
        }
    }

    pub(crate) fn number(self) -> usize {
        self as usize
    }

    fn octet(self) -> u8 {
        77 + self as u8
    }
}

/// A host as the builder is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpec {
    /// Host name and label of its switch ports.
    pub name: String,
    /// Whether it is also on the cluster link.
    pub node: bool,
    pub(crate) index: usize,
    pub(crate) number: u8,
}

impl HostSpec {
    /// Its links.
    pub fn links(&self) -> &'static [Link] {
        if self.node { &Link::ALL } else { &Link::ALL[..1] }
    }

    /// Its IPv4 address on `link` (prefix length 24).
    pub fn ipv4(&self, link: Link) -> Ipv4Addr {
        Ipv4Addr::new(10, link.octet(), 0, self.number)
    }

    /// Its IPv6 address on `link` (prefix length 64).
    pub fn ipv6(&self, link: Link) -> Ipv6Addr {
        // The IPv6 group reads like the IPv4 number: fd77::101 goes with 10.77.0.101.
        let prefix = if link == Link::Service { 0xfd77 } else { 0xfd78 };
        let spelled = u16::from_str_radix(&self.number.to_string(), 16).expect("decimal digits");
        Ipv6Addr::new(prefix, 0, 0, 0, 0, 0, 0, spelled)
    }

    /// Both addresses with their prefix lengths.
    pub(crate) fn addresses(&self, link: Link) -> [(IpAddr, u8); 2] {
        [(self.ipv4(link).into(), 24), (self.ipv6(link).into(), 64)]
    }

    /// Its MAC address on `link`: locally administered, the same after every boot.
    pub fn mac(&self, link: Link) -> [u8; 6] {
        [0x02, link.octet(), 0, 0, 0, self.number]
    }

    /// The name of its switch port on `link`, which is also the link's name in
    /// commands: `a.svc`.
    pub fn port(&self, link: Link) -> String {
        format!("{}.{}", self.name, link.name())
    }
}

/// The hosts of a lab, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Topology {
    hosts: Vec<HostSpec>,
}

impl Topology {
    /// Numbers the hosts. `hosts`: name, and whether the host is a node.
    pub(crate) fn new(hosts: &[(String, bool)]) -> Result<Topology> {
        if hosts.is_empty() || hosts.len() > MAX_HOSTS {
            return Err(Error::Topology(format!(
                "{} hosts; a lab has 1 to {MAX_HOSTS}",
                hosts.len()
            )));
        }
        let mut out: Vec<HostSpec> = Vec::new();
        let (mut nodes, mut clients) = (0, 100);
        for (index, (name, node)) in hosts.iter().enumerate() {
            check_name("host", name, 10)?;
            if out.iter().any(|h| h.name == *name) {
                return Err(Error::Topology(format!("two hosts are named \"{name}\"")));
            }
            if ["svc", "clu", "service", "cluster", "all"].contains(&name.as_str()) {
                return Err(Error::Topology(format!("\"{name}\" is the name of a link")));
            }
            let counter = if *node { &mut nodes } else { &mut clients };
            *counter += 1;
            out.push(HostSpec { name: name.clone(), node: *node, index, number: *counter });
        }
        Ok(Topology { hosts: out })
    }

    pub(crate) fn hosts(&self) -> &[HostSpec] {
        &self.hosts
    }

    /// The cables that a link name stands for: `a.svc` one, `svc` or `service` and
    /// `clu` or `cluster` all of that link, a host's name all of that host.
    pub(crate) fn cables(&self, name: &str) -> Result<Vec<(usize, Link)>> {
        let all = || self.hosts.iter().flat_map(|h| h.links().iter().map(move |l| (h, *l)));
        let found: Vec<_> = all()
            .filter(|(h, l)| match name {
                "svc" | "service" => *l == Link::Service,
                "clu" | "cluster" => *l == Link::Cluster,
                _ => h.name == name || h.port(*l) == name,
            })
            .map(|(h, l)| (h.index, l))
            .collect();
        if found.is_empty() {
            let known: Vec<String> = all().map(|(h, l)| h.port(l)).collect();
            let known = known.join(", ") + ", service, cluster";
            return Err(Error::NoLink { name: name.to_owned(), known });
        }
        Ok(found)
    }

    /// The one cable of this name.
    pub(crate) fn cable(&self, name: &str) -> Result<(usize, Link)> {
        match self.cables(name)?.as_slice() {
            &[cable] if name.contains('.') => Ok(cable),
            cables => {
                let names = cables.iter().map(|&(h, l)| self.hosts[h].port(l));
                let known = names.collect::<Vec<_>>().join(", ");
                Err(Error::NoLink { name: name.to_owned(), known })
            }
        }
    }

    /// An `/etc/hosts` for every host of the lab.
    pub(crate) fn hosts_file(&self) -> String {
        let mut text = String::from("127.0.0.1 localhost\n::1 localhost\n");
        for h in &self.hosts {
            for &l in h.links() {
                let plain = if l == Link::Service { h.name.as_str() } else { "" };
                for (ip, _) in h.addresses(l) {
                    text += &format!("{ip} {} {plain}\n", h.port(l));
                }
            }
        }
        text
    }
}

/// Accepts 1 to `max` of a-z, 0-9 and -.
pub(crate) fn check_name(what: &'static str, name: &str, max: usize) -> Result<()> {
    let fits = (1..=max).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if fits { Ok(()) } else { Err(Error::BadName { what, name: name.to_owned(), max }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn abc() -> Topology {
        Topology::new(&[("client".into(), false), ("a".into(), true), ("b".into(), true)]).unwrap()
    }

    #[test]
    fn addresses_follow_the_order_of_hosts() {
        let t = abc();
        let h = t.hosts();
        assert_eq!(h[0].ipv4(Link::Service).to_string(), "10.77.0.101");
        assert_eq!(h[0].ipv6(Link::Service).to_string(), "fd77::101");
        assert_eq!(h[1].ipv4(Link::Cluster).to_string(), "10.78.0.1");
        assert_eq!(h[2].ipv6(Link::Cluster).to_string(), "fd78::2");
        assert_eq!(h[2].mac(Link::Cluster), [2, 78, 0, 0, 0, 2]);
        assert_eq!(h[0].links(), [Link::Service]);
    }

    #[test]
    fn link_names_stand_for_cables() {
        let t = abc();
        assert_eq!(t.cables("a.clu").unwrap(), [(1, Link::Cluster)]);
        assert_eq!(t.cables("cluster").unwrap(), [(1, Link::Cluster), (2, Link::Cluster)]);
        assert_eq!(t.cables("b").unwrap(), [(2, Link::Service), (2, Link::Cluster)]);
        assert_eq!(t.cables("service").unwrap().len(), 3);
        let error = t.cables("client.clu").unwrap_err().to_string();
        assert!(error.contains("a.svc") && error.contains("cluster"), "{error}");
    }

    #[test]
    fn impossible_labs_are_refused() {
        for bad in ["", "A", "much-too-long", "a.b", "svc", "../x"] {
            assert!(Topology::new(&[(bad.into(), true)]).is_err(), "{bad:?} was accepted");
        }
        assert!(Topology::new(&[("a".into(), true), ("a".into(), false)]).is_err());
        assert!(Topology::new(&[]).is_err());
    }
}

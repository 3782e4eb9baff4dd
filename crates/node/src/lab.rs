//! `steadfast lab` and `steadfast demo`: hosts in network namespaces that run this program.
//!
//! A configuration was written for hosts with other names, interfaces and addresses. What the
//! operator wants to try are its services, so these are taken as they are; everything that says
//! where a node is gets replaced by what the lab's hosts have. Service addresses that the lab's
//! clients could not reach are exchanged for ones they can.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use control::{Psk, Rng};
use demo::config::state_dir;
use demo::operator::Operator;
use lab::cli::{LabArgs, Product, Up};
use lab::{Host, Kill, Lab, Link, Node, NodeSpec};

use crate::cli::{self, DemoArgs};
use crate::config::{Config, Links, Roles};

/// How long `--kill hang` lasts.
const HANG: Duration = Duration::from_secs(5);

/// Builds, uses or removes a lab.
pub fn run(args: LabArgs) -> anyhow::Result<ExitCode> {
    lab::cli::run(args, &Steadfast)
}

/// Lets clients work with a pair of nodes, kills the primary, and checks what the clients got.
pub fn demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let (clients, work) = work(args)?;
    let nobody_noticed = demo::run(&demo::Options {
        clients,
        work,
        kill: match args.kill {
            cli::Kill::Host => Kill::Host,
            cli::Kill::Process => Kill::Process { signal: args.signal, matching: None },
            cli::Kill::Daemon => Kill::Daemon,
            cli::Kill::Hang => Kill::Hang(HANG),
        },
        roles: if args.dual { demo::config::Roles::Dual } else { demo::config::Roles::Single },
        ipv6: args.ipv6,
        rate_mbit: args.rate,
        detection_ms: args.detection,
        json: args.json.clone(),
        keep: args.keep,
    })?;
    Ok(if nobody_noticed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How many clients there are, and what they do. Options of the other scheme are refused.
fn work(args: &DemoArgs) -> anyhow::Result<(usize, demo::Work)> {
    let clients = |usual| args.clients.unwrap_or(usual) as usize;
    match args.scheme {
        cli::Scheme::Track => {
            ensure!(args.requests.is_none(), "--requests goes with --scheme message");
            let work = demo::Downloads {
                idle: args.idle.unwrap_or(100) as usize,
                size: args.size.unwrap_or(100_000_000),
                server: match args.server.unwrap_or(cli::Server::Nginx) {
                    cli::Server::Nginx => demo::server::Server::Nginx,
                    cli::Server::Apache => demo::server::Server::Apache,
                    cli::Server::Python => demo::server::Server::Python,
                    cli::Server::Busybox => demo::server::Server::Busybox,
                },
            };
            Ok((clients(20), demo::Work::Downloads(work)))
        }
        cli::Scheme::Message => {
            let of_track = args.idle.is_some() || args.size.is_some() || args.server.is_some();
            ensure!(!of_track, "--idle, --size and --server go with --scheme track");
            let requests = args.requests.unwrap_or(12_000) as usize;
            Ok((clients(64), demo::Work::Shop { requests }))
        }
    }
}

/// This product, to the lab.
struct Steadfast;

impl Product for Steadfast {
    fn plan(&self, up: &Up, lab: &Lab) -> anyhow::Result<Vec<NodeSpec>> {
        let Some(path) = &up.config else { return Ok(Vec::new()) };
        let mut config = Config::load(path)?;
        let nodes: Vec<&Host> = lab.hosts().iter().filter(|host| host.is_node()).collect();
        ensure!(nodes.len() == 2, "a lab with a configuration has two nodes");
        for note in move_services(&mut config, up.ipv6) {
            eprintln!("note: {note}");
        }
        config.node.key_file = lab.dir().join("key");
        Psk::generate(&config.node.key_file, &Rng::system())?;
        Ok([(nodes[0], nodes[1]), (nodes[1], nodes[0])]
            .map(|(own, peer)| NodeSpec {
                host: own.name().to_owned(),
                config_toml: adapt(&config, own, peer, lab.dir()).to_toml(),
                files: Vec::new(),
            })
            .into())
    }

    fn is_ready(&self, lab: &Lab, node: &Node) -> bool {
        let operator = Operator::new(&state_dir(lab.dir(), node.host()));
        operator.status().is_ok_and(|status| status.ready)
    }
}

/// The configuration as the lab's host `own` needs it.
fn adapt(config: &Config, own: &Host, peer: &Host, dir: &Path) -> Config {
    let mut config = config.clone();
    let addresses = |host: &Host| Links {
        service: host.ipv4(Link::Service).into(),
        cluster: host.ipv4(Link::Cluster).into(),
    };
    let node = &mut config.node;
    node.name = own.name().to_owned();
    node.peer = peer.name().to_owned();
    node.service_interface = Link::Service.interface().to_owned();
    node.cluster_interface = Link::Cluster.interface().to_owned();
    node.address = addresses(own);
    node.peer_address = addresses(peer);
    node.prefer_primary = node.roles == Roles::Single && own.name() < peer.name();
    node.state_dir = state_dir(dir, own.name());
    config
}

/// Gives every service addresses that the lab's clients reach, and says which were exchanged.
/// One address of the file always becomes the same address of the lab.
fn move_services(config: &mut Config, ipv6: bool) -> Vec<String> {
    let asked: Vec<IpAddr> =
        config.services.iter().flat_map(|service| service.addresses.clone()).collect();
    let mut moved: BTreeMap<IpAddr, IpAddr> =
        asked.iter().filter(|ip| is_usable(**ip)).map(|&ip| (ip, ip)).collect();
    let mut notes = Vec::new();
    for ip in asked {
        if moved.contains_key(&ip) {
            continue;
        }
        let new = free(ip.is_ipv6(), |ip| moved.values().any(|taken| *taken == ip));
        notes.push(format!("the service address {ip} is {new} in this lab"));
        moved.insert(ip, new);
    }
    for service in &mut config.services {
        for ip in &mut service.addresses {
            *ip = moved[ip];
        }
        if ipv6 && !service.addresses.iter().any(IpAddr::is_ipv6) {
            let new = free(true, |ip| moved.values().any(|taken| *taken == ip));
            notes.push(format!("the service {:?} also has the address {new}", service.name));
            moved.insert(new, new);
            service.addresses.push(new);
        }
    }
    notes
}

/// In the lab's service subnet and not a host's own.
fn is_usable(ip: IpAddr) -> bool {
    let host = |last: u16| (1..=16).contains(&last) || (101..=116).contains(&last);
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, last] = ip.octets();
            [a, b, c] == [10, 77, 0] && !host(last.into()) && last != 0 && last != 255
        }
        IpAddr::V6(ip) => {
            let [head @ .., last] = ip.segments();
            // The lab spells the IPv4 number in hexadecimal digits: fd77::101.
            let number = format!("{last:x}").parse().unwrap_or(u16::MAX);
            head == [0xfd77, 0, 0, 0, 0, 0, 0] && last != 0 && !host(number)
        }
    }
}

/// 10.77.0.100 or fd77::100, else the first after the hosts' own that is not taken.
fn free(ipv6: bool, taken: impl Fn(IpAddr) -> bool) -> IpAddr {
    let address = |number: u16| -> IpAddr {
        if ipv6 {
            let spelled = u16::from_str_radix(&number.to_string(), 16).expect("decimal digits");
            Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, spelled).into()
        } else {
            Ipv4Addr::new(10, 77, 0, number.to_le_bytes()[0]).into()
        }
    };
    let numbers = std::iter::once(100).chain(117..=254).chain(17..100);
    let mut free = numbers.map(address).filter(|ip| is_usable(*ip) && !taken(*ip));
    free.next().expect("a configuration has fewer than two hundred addresses")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(addresses: &str) -> Config {
        let text = include_str!("../../../docs/examples/steadfast.toml");
        let text = text.replace("[\"10.77.0.100\", \"fd77::100\"]", addresses);
        Config::parse(&text, Path::new("steadfast.toml")).unwrap_or_else(|e| panic!("{e}"))
    }

    fn check(addresses: &str, ipv6: bool, expected: &[&str], notes: usize) {
        let mut config = config(addresses);
        let said = move_services(&mut config, ipv6);
        let expected: Vec<IpAddr> = expected.iter().map(|ip| ip.parse().unwrap()).collect();
        assert_eq!(config.services[0].addresses, expected);
        assert_eq!(said.len(), notes, "{said:?}");
        // What the lab's daemons are given must be a configuration.
        Config::parse(&config.to_toml(), Path::new("adapted")).unwrap_or_else(|e| panic!("{e}"));
    }

    #[test]
    fn addresses_that_fit_stay() {
        check("[\"10.77.0.100\", \"fd77::100\"]", true, &["10.77.0.100", "fd77::100"], 0);
        check("\"10.77.0.200\"", false, &["10.77.0.200"], 0);
    }

    #[test]
    fn others_are_exchanged_and_told() {
        check("[\"192.0.2.80\", \"2001:db8::80\"]", false, &["10.77.0.100", "fd77::100"], 2);
        // The lab's client has 10.77.0.101.
        check("[\"10.77.0.101\", \"10.77.0.100\"]", false, &["10.77.0.117", "10.77.0.100"], 1);
    }

    #[test]
    fn ipv6_gives_every_service_an_ipv6_address() {
        check("\"192.0.2.80\"", true, &["10.77.0.100", "fd77::100"], 2);
    }
}

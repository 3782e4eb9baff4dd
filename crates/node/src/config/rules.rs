//! Contradictions: values that are each allowed and cannot be true together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::reader::Problems;
use super::{Config, Node, Roles, Service};

/// Notes every contradiction of a configuration whose values are each allowed.
pub(super) fn check(config: &Config, problems: &Problems<'_>) {
    names(&config.node, problems);
    node_addresses(&config.node, problems);
    times(&config.node, problems);
    preference(&config.node, problems);
    service_names(&config.services, problems);
    service_addresses(config, problems);
    for (i, service) in config.services.iter().enumerate() {
        command_settings(i, service, problems);
        budgets(i, service, config, problems);
        reply_budgets(i, service, config, problems);
    }
}

fn names(node: &Node, problems: &Problems<'_>) {
    if node.name == node.peer {
        let what = format!("node and peer are both called {:?}", node.name);
        problems.of("node.peer", what, "write the name that the other node has in its own file");
    }
}

fn node_addresses(node: &Node, problems: &Problems<'_>) {
    let (own, peer) = (node.address, node.peer_address);
    for (link, own, peer) in
        [("service", own.service, peer.service), ("cluster", own.cluster, peer.cluster)]
    {
        let key = format!("node.peer_address.{link}");
        if own.is_ipv4() != peer.is_ipv4() {
            let what = format!("{peer} and our own {own} are of different families");
            problems.of(&key, what, format!("write an {} address", family(own)));
        }
        if own == peer {
            let what = format!("{peer} is our own address on the {link} link");
            problems.of(&key, what, "write the peer's address");
        }
    }
    let one_link = node.service_interface == node.cluster_interface;
    for (whose, links) in [("address", own), ("peer_address", peer)] {
        if links.service == links.cluster && !one_link {
            let what = format!("{} cannot be on two interfaces", links.cluster);
            let key = format!("node.{whose}.cluster");
            problems.of(&key, what, "write the address on the cluster interface");
        }
    }
    if (own.service == own.cluster) != (peer.service == peer.cluster) {
        let what = "one node has one address for both links, the other has two";
        problems.of("node.peer_address", what, "give both nodes one, or both two");
    }
    for (key, peer) in [("service", peer.service), ("cluster", peer.cluster)] {
        let other = if key == "service" { own.cluster } else { own.service };
        if peer == other && own.service != own.cluster {
            let key = format!("node.peer_address.{key}");
            problems.of(&key, format!("{peer} is our own address"), "write the peer's address");
        }
    }
}

fn times(node: &Node, problems: &Problems<'_>) {
    let most = node.detection_ms / 2;
    if node.queue_ms > most {
        let what = format!(
            "a queue of {} ms leaves too little of the {} ms after which the peer takes over",
            node.queue_ms, node.detection_ms
        );
        problems.of("node.queue_ms", what, format!("write at most {most}, or detect later"));
    }
    let least = 2 * node.detection_ms;
    if node.startup_wait_ms < least {
        let what = format!(
            "with {} ms a starting node decides alone before it can have heard its peer, \
             which may be silent for {} ms",
            node.startup_wait_ms, node.detection_ms
        );
        problems.of("node.startup_wait_ms", what, format!("write at least {least}"));
    }
}

fn preference(node: &Node, problems: &Problems<'_>) {
    if node.roles == Roles::Dual && node.prefer_primary {
        let what = "with roles = \"dual\" each node is primary for its own half of the clients";
        problems.of("node.prefer_primary", what, "remove this line");
    }
}

fn service_names(services: &[Service], problems: &Problems<'_>) {
    let mut first: BTreeMap<&str, String> = BTreeMap::new();
    for (i, service) in services.iter().enumerate() {
        let key = format!("service[{i}].name");
        if let Some(other) = first.get(service.name.as_str()) {
            let line = problems.line_of(other);
            let what = format!("the service in line {line} is called {:?} too", service.name);
            problems.of(&key, what, "give each service a name of its own");
        } else {
            first.insert(&service.name, key);
        }
    }
}

fn service_addresses(config: &Config, problems: &Problems<'_>) {
    let node = &config.node;
    let hosts = [
        ("node.address.service", node.address.service),
        ("node.address.cluster", node.address.cluster),
        ("node.peer_address.service", node.peer_address.service),
        ("node.peer_address.cluster", node.peer_address.cluster),
    ];
    let mut taken: BTreeMap<(IpAddr, u16), &Service> = BTreeMap::new();
    for (i, service) in config.services.iter().enumerate() {
        let mut own = BTreeSet::new();
        for (j, &address) in service.addresses.iter().enumerate() {
            let key = address_key(problems, i, j);
            if let Some((host, _)) = hosts.iter().find(|(_, host)| *host == address) {
                let what = format!("{address} is also {host}: it could not move between the nodes");
                problems.of(&key, what, "write an address that belongs to neither node");
            }
            if !own.insert(address) {
                problems.of(&key, format!("{address} is listed twice"), "leave one out");
            } else if let Some(other) = taken.insert((address, service.port), service) {
                let port = service.port;
                let what = format!("{address} port {port} already belongs to {:?}", other.name);
                problems.of(&key, what, "give one of the two another address or port");
            }
        }
    }
}

/// The place of an address: an item of a list, or the single string.
fn address_key(problems: &Problems<'_>, service: usize, item: usize) -> String {
    let listed = format!("service[{service}].address[{item}]");
    if problems.knows(&listed) { listed } else { format!("service[{service}].address") }
}

fn command_settings(i: usize, service: &Service, problems: &Problems<'_>) {
    if service.command.is_some() {
        return;
    }
    let without = [
        ("user", service.user.is_some()),
        ("workdir", service.workdir.is_some()),
        ("environment", !service.environment.is_empty()),
    ];
    for (key, _) in without.into_iter().filter(|(_, there)| *there) {
        let key = format!("service[{i}].{key}");
        let what = "this needs a command: without one, the server is not started by the daemon";
        problems.of(&key, what, "add command = [\"program\", …], or leave this key out");
    }
}

fn budgets(i: usize, service: &Service, config: &Config, problems: &Problems<'_>) {
    let (flow, total) = (service.flow_budget_mib, config.budget.total_mib);
    if flow > total {
        let what = format!("one flow may hold {flow} MiB, all flows together {total} MiB");
        let mend = format!("write at most {total}, or raise budget.total_mib");
        problems.of(&format!("service[{i}].flow_budget_mib"), what, mend);
    }
}

fn reply_budgets(i: usize, service: &Service, config: &Config, problems: &Problems<'_>) {
    let Some(message) = &service.message else { return };
    let (flow, total) = (message.flow_bytes.div_ceil(1 << 20), config.budget.replies_mib);
    if flow > total as usize {
        let what = format!(
            "one flow may need {flow} MiB for its replies, all flows together have {total} MiB"
        );
        let mend = format!("raise budget.replies_mib to {flow} at least, or write less here");
        problems.of(&format!("service[{i}].reply_budget_kib"), what, mend);
    }
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

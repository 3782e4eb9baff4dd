//! The configuration files of a lab's two nodes, as an operator would write them.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use lab::{Host, Link};

/// How a service is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// Its replies can be made again: the other node's server does.
    #[default]
    Track,
    /// Whole replies are held by two nodes before they leave.
    Message,
    /// The same, but a long reply can be made again: its server does, instead of two nodes holding
    /// it.
    Regenerate,
}

impl Scheme {
    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Track => "track",
            Scheme::Message | Scheme::Regenerate => "message",
        }
    }

    /// What a configuration says besides, a line.
    fn more(self) -> &'static str {
        match self {
            Scheme::Track | Scheme::Message => "",
            Scheme::Regenerate => "long_replies = \"regenerate\"\n",
        }
    }
}

/// A service of both nodes; only the command may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceText {
    /// Its name.
    pub name: String,
    /// What clients connect to, all with the same port.
    pub addresses: Vec<IpAddr>,
    /// The port.
    pub port: u16,
    /// Program and arguments.
    pub command: Vec<String>,
    /// How it is protected.
    pub scheme: Scheme,
    /// Client bytes that one flow may have in the journal.
    pub flow_budget_mib: u32,
}

/// What the two files have in common.
#[derive(Clone, Debug)]
pub struct Common<'a> {
    /// The key file.
    pub key: &'a Path,
    /// Where both state directories go.
    pub dir: &'a Path,
    /// Silence after which the peer is suspected.
    pub detection_ms: u32,
    /// Who serves while both nodes live.
    pub roles: Roles,
}

/// Who serves while both nodes live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Roles {
    /// One of them: the lower name, if both start together.
    #[default]
    Single,
    /// Each serves one half of the connections.
    Dual,
}

impl ServiceText {
    /// The first address, with the port.
    pub fn at(&self) -> SocketAddr {
        SocketAddr::new(self.addresses[0], self.port)
    }
}

/// Where a node keeps its socket.
pub fn state_dir(lab_dir: &Path, node: &str) -> std::path::PathBuf {
    lab_dir.join(format!("{node}.state"))
}

/// The file of node `own`.
pub fn node_toml(own: &Host, peer: &Host, common: &Common, services: &[ServiceText]) -> String {
    let link = |host: &Host, link| quoted(&host.ipv4(link).to_string());
    let mut text = format!(
        "[node]
name = {name}
peer = {peer_name}
cluster = \"lab\"
service_interface = \"{svc}\"
cluster_interface = \"{clu}\"
address = {{ service = {}, cluster = {} }}
peer_address = {{ service = {}, cluster = {} }}
key_file = {key}
detection_ms = {detection}
queue_ms = {queue}
startup_wait_ms = {wait}
{roles}state_dir = {state}
",
        link(own, Link::Service),
        link(own, Link::Cluster),
        link(peer, Link::Service),
        link(peer, Link::Cluster),
        name = quoted(own.name()),
        peer_name = quoted(peer.name()),
        svc = Link::Service.interface(),
        clu = Link::Cluster.interface(),
        key = quoted(&common.key.display().to_string()),
        detection = common.detection_ms,
        // The lab's shaped cables hold back 20 ms.
        queue = common.detection_ms / 4,
        wait = 3000.max(2 * common.detection_ms),
        roles = match common.roles {
            Roles::Single => format!("prefer_primary = {}\n", own.name() < peer.name()),
            Roles::Dual => "roles = \"dual\"\n".to_owned(),
        },
        state = quoted(&state_dir(common.dir, own.name()).display().to_string()),
    );
    let list = |items: Vec<String>| format!("[{}]", items.join(", "));
    for service in services {
        let addresses = service.addresses.iter().map(|ip| quoted(&ip.to_string())).collect();
        let command = service.command.iter().map(|word| quoted(word)).collect();
        write!(
            text,
            "\n[[service]]\nname = {}\naddress = {}\nport = {}\ncommand = {}\n\
             scheme = {}\n{}flow_budget_mib = {}\n",
            quoted(&service.name),
            list(addresses),
            service.port,
            list(command),
            quoted(service.scheme.name()),
            service.scheme.more(),
            service.flow_budget_mib
        )
        .expect("writing to a string cannot fail");
    }
    text
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                write!(out, "\\u{:04X}", u32::from(c)).expect("writing to a string cannot fail");
            }
            c => out.push(c),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_toml_wants_them() {
        assert_eq!(quoted(r#"a "b" \c"#), r#""a \"b\" \\c""#);
        assert_eq!(quoted("daemon off;\n"), r#""daemon off;\u000A""#);
    }
}

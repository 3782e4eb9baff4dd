//! The keys of the file, their defaults and what each may hold on its own.

use std::path::PathBuf;

use toml::de::DeTable;

use super::reader::{Problems, Table, host_address};
use super::{Arbiter, Budget, Config, Links, Node, Roles, Scheme, Service, message};

/// The longest `sun_path` is 107 bytes; the socket's own name is taken off.
const STATE_DIR_MAX: usize = 90;

/// Reads the document; `None` only if it is not TOML. With problems noted, values may be
/// placeholders.
pub(super) fn read(text: &str, problems: &Problems<'_>) -> Option<Config> {
    // Recovery goes on after the first error; what follows from it would only confuse.
    let (document, errors) = DeTable::parse_recoverable(text);
    let place = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
    if let Some(error) = errors.iter().min_by_key(|error| place(error)) {
        let what = error.message().lines().collect::<Vec<_>>().join(", ");
        problems.at(place(error), "", format!("not TOML: {what}"), "mend this line");
        return None;
    }
    let mut top = Table::document(problems, &document);
    let mut node_table = top.table("node");
    let node = node(&mut node_table);
    node_table.finish();
    let mut budget_table = top.table("budget");
    let budget = budget(&mut budget_table);
    budget_table.finish();
    let mut services = Vec::new();
    for mut table in top.tables("service") {
        services.push(service(&mut table, problems));
        table.finish();
    }
    if services.is_empty() && problems.is_empty() {
        let mend = "add a [[service]] with name, address and port";
        problems.at(text.len(), "service", "there is no service to protect", mend);
    }
    top.finish();
    message::settle(&mut services);
    Some(Config { node, budget, services })
}

fn node(table: &mut Table<'_, '_>) -> Node {
    let name = name(table, "name", "\"a\"");
    let cluster = self::name(table, "cluster", "\"files\"");
    let peer = self::name(table, "peer", "\"b\"");
    let service_interface = interface(table, "service_interface");
    let cluster_interface = interface(table, "cluster_interface");
    let address = links(table, "address", ["192.0.2.11", "198.51.100.11"]);
    let peer_address = links(table, "peer_address", ["192.0.2.12", "198.51.100.12"]);
    let detection_ms = table.integer("detection_ms", 100, 20..=10_000);
    Node {
        name,
        cluster,
        peer,
        service_interface,
        cluster_interface,
        address,
        peer_address,
        control_port: port(table.integer("control_port", 7077, 1..=65535)),
        key_file: table.path("key_file", None, "\"/etc/steadfast/key\""),
        detection_ms,
        queue_ms: table.integer("queue_ms", detection_ms / 10, 0..=5_000),
        startup_wait_ms: table.integer("startup_wait_ms", 3000, 40..=600_000),
        arbiter: arbiter(table),
        roles: roles(table),
        prefer_primary: table.boolean("prefer_primary", false),
        state_dir: state_dir(table),
    }
}

fn budget(table: &mut Table<'_, '_>) -> Budget {
    let ring_mib = table.integer("ring_mib", 64, 1..=1024);
    if !ring_mib.is_power_of_two() {
        let up = ring_mib.next_power_of_two();
        let what = format!("{ring_mib} is not a power of two");
        table.wrong("ring_mib", what, format!("write {} or {up}", up / 2));
    }
    Budget {
        total_mib: table.integer("total_mib", 1024, 1..=1_048_576),
        ring_mib,
        max_flows: table.integer("max_flows", 65_536, 1..=16_777_216),
        replies_mib: table.integer("replies_mib", 512, 1..=1_048_576),
    }
}

fn service(table: &mut Table<'_, '_>, problems: &Problems<'_>) -> Service {
    let name = name(table, "name", "\"www\"");
    let mut addresses = Vec::new();
    let listed = table.strings("address", true);
    if listed.as_ref().is_none_or(Vec::is_empty) && problems.is_empty() {
        let mend = "write address = \"192.0.2.100\", or a list of addresses";
        table.wrong("address", "clients need an address to connect to", mend);
    }
    for (path, text) in listed.into_iter().flatten() {
        addresses.extend(host_address(problems, &path, &text));
    }
    let scheme = scheme(table);
    Service {
        name,
        addresses,
        port: port(table.required_integer("port", 1..=65535)),
        command: command(table),
        user: user(table),
        workdir: workdir(table),
        // Without one there is a mistake, and no configuration.
        scheme: scheme.unwrap_or(Scheme::Track),
        flow_budget_mib: table.integer("flow_budget_mib", 64, 1..=65_536),
        message: message::read(table, problems, scheme),
        environment: environment(table),
    }
}

fn port(number: u32) -> u16 {
    u16::try_from(number).expect("the reader keeps ports within 1..=65535")
}

fn links(table: &mut Table<'_, '_>, key: &'static str, example: [&str; 2]) -> Links {
    let mut inner = table.table(key);
    let service = inner.host_address("service", example[0]);
    let cluster = inner.host_address("cluster", example[1]);
    inner.finish();
    Links { service, cluster }
}

/// Names appear in logs, file names and the control channel's handshake.
fn name(table: &mut Table<'_, '_>, key: &'static str, example: &str) -> String {
    let name = table.string(key, example);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.is_empty() && (name.len() > 63 || !name.chars().all(plain) || name.starts_with('.')) {
        let mend = "write at most 63 letters, digits, '-', '_' and '.', not beginning with '.'";
        table.wrong(key, format!("{name:?} is not a plain name"), mend);
    }
    name
}

/// linux/if.h: IFNAMSIZ is 16 with the final NUL; dev_valid_name() forbids '/', ':' and spaces.
fn interface(table: &mut Table<'_, '_>, key: &'static str) -> String {
    let name = table.string(key, "\"eth0\"");
    if name.len() > 15 {
        let what = format!("{name:?} has {} characters; Linux allows 15", name.len());
        table.wrong(key, what, "write the name that `ip link` shows");
    } else if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0')
        || name == "."
        || name == ".."
    {
        let what = format!("{name:?} cannot be the name of an interface");
        table.wrong(key, what, "write the name that `ip link` shows");
    }
    name
}

fn arbiter(table: &mut Table<'_, '_>) -> Arbiter {
    let name = table.optional_string("arbiter", "\"none\"").unwrap_or("none".to_owned());
    match name.as_str() {
        "none" => {}
        "witness" | "etcd" => {
            let what = format!("the arbiter {name:?} is not built yet");
            let mend = "write \"none\": a peer that is silent on both links is taken for dead";
            table.wrong("arbiter", what, mend);
        }
        _ => {
            table.wrong("arbiter", format!("there is no arbiter {name:?}"), "write \"none\"");
        }
    }
    Arbiter::None
}

fn roles(table: &mut Table<'_, '_>) -> Roles {
    let name = table.optional_string("roles", "\"single\"").unwrap_or("single".to_owned());
    match name.as_str() {
        "single" => Roles::Single,
        "dual" => Roles::Dual,
        _ => {
            let mend = "write \"single\", or \"dual\" on both nodes";
            table.wrong("roles", format!("there are no roles {name:?}"), mend);
            Roles::Single
        }
    }
}

fn state_dir(table: &mut Table<'_, '_>) -> PathBuf {
    let path = table.path("state_dir", Some("/run/steadfast"), "\"/run/steadfast\"");
    let length = path.as_os_str().len();
    if length > STATE_DIR_MAX {
        let what = format!("this path has {length} bytes, too many for a socket inside it");
        table.wrong("state_dir", what, format!("write one of at most {STATE_DIR_MAX} bytes"));
    }
    path
}

fn command(table: &mut Table<'_, '_>) -> Option<Vec<String>> {
    let words: Vec<String> =
        table.strings("command", false)?.into_iter().map(|(_, word)| word).collect();
    let example = "write command = [\"program\", \"argument\", …]";
    if words.first().is_none_or(|program| program.is_empty()) {
        table.wrong("command", "the command names no program", example);
    } else if words.iter().any(|word| word.contains('\0')) {
        table.wrong("command", "an argument contains a NUL character", example);
    }
    Some(words)
}

fn user(table: &mut Table<'_, '_>) -> Option<String> {
    let user = table.optional_string("user", "\"www-data\"")?;
    if user.is_empty() || user.contains(['\0', ':', '/']) {
        let what = format!("{user:?} cannot be the name of a user");
        table.wrong("user", what, "write a name from /etc/passwd, or leave the key out");
    }
    Some(user)
}

fn workdir(table: &mut Table<'_, '_>) -> Option<PathBuf> {
    let there = table.has("workdir");
    let path = table.path("workdir", Some("/"), "\"/srv\"");
    there.then_some(path)
}

fn environment(table: &mut Table<'_, '_>) -> std::collections::BTreeMap<String, String> {
    let map = table.string_map("environment");
    for (name, value) in &map {
        let key = format!("environment.{name}");
        if name.is_empty() || name.contains(['=', '\0']) {
            let what = format!("{name:?} cannot be the name of a variable");
            table.wrong(&key, what, "write a name without '='");
        } else if value.contains('\0') {
            table.wrong(&key, "the value contains a NUL character", "leave it out");
        }
    }
    map
}

fn scheme(table: &mut Table<'_, '_>) -> Option<Scheme> {
    let name = table.optional_string("scheme", "\"track\"").unwrap_or("track".to_owned());
    match name.as_str() {
        "track" => return Some(Scheme::Track),
        "message" => return Some(Scheme::Message),
        "replay" | "checkpoint" => {
            let what = format!("the scheme {name:?} is not built yet");
            let mend = "write \"track\", for servers that give the same reply to the same request, \
                        or \"message\", for HTTP/1 servers whose replies differ";
            table.wrong("scheme", what, mend);
        }
        _ => table.unknown_word("scheme", &name, &["track", "message"]),
    }
    None
}

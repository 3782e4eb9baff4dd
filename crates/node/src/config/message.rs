//! The scheme `message`: what the file says of a service's replies, and how much room its sockets
//! and the reply log must have for that.

use std::ops::RangeInclusive;

use datapath::GateSettings;
use http::{Limits, RouteError, Routes, Treatment};
use replies::{Excess, Policy};
use serde::Serialize;

use super::reader::{Problems, Table};
use super::{Scheme, Service};

/// More than a quarter of a GiB cannot be held: see [`SEND_BUFFER_MAX`].
const REPLY_BUDGET_KIB: RangeInclusive<u32> = 16..=262_144;

/// What a super-segment has at most, in bytes ("BIG TCP" apart, which is for those who ask for it).
const SEGMENT: u32 = 64 << 10;

/// The kernel sets at most INT_MAX / 2 and doubles it (`__sock_set_sndbuf`).
const SEND_BUFFER_MAX: u32 = i32::MAX as u32 / 2;

/// Less is not worth an unprotected flow, in bytes.
const FLOW_BYTES_MIN: usize = 8 << 20;

/// How the replies of one service are treated. But for the last, the fields have the names of their
/// keys in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// The longest reply that is held until it is whole, in KiB with its head: 16..=262144.
    pub reply_budget_kib: u32,
    /// What is done with a longer one.
    pub long_replies: Excess,
    /// Routes (`METHOD GLOB`) whose replies every server writes alike; each is one that
    /// [`http::Routes`] takes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regenerate: Vec<String>,
    /// What one flow may take in the reply log, in bytes. No key: it follows from the reply budgets
    /// of all services, because their sockets have the same send buffer.
    #[serde(skip)]
    pub flow_bytes: usize,
}

impl Message {
    fn reply_bytes(&self) -> u32 {
        self.reply_budget_kib << 10
    }
}

impl Service {
    /// What the reply log is to do with the service's replies; `None` unless the scheme is
    /// `message`.
    pub fn policy(&self) -> Option<Policy> {
        let message = self.message.as_ref()?;
        let mut routes = Routes::default();
        for route in &message.regenerate {
            add_route(&mut routes, route).expect("the file was read with these routes");
        }
        Some(Policy {
            routes,
            limits: limits(),
            flow_bytes: message.flow_bytes,
            reply_bytes: message.reply_bytes().into(),
            excess: message.long_replies,
        })
    }
}

/// Bounds on the output of all held services alike; the longest reply that one of them holds decides.
///
/// A server that is blocked before its reply is whole, or longer than its budget, is blocked for
/// ever: nothing is released that it could wait for. So what it must always be able to write is
/// *R*: a reply of the budget, one head more, and one segment that is released but stays, because the
/// reply behind it begins in it.
///
/// - `hold_bytes` is 2 *R*. It becomes TCP_NOTSENT_LOWAT, up to which the kernel takes writes; but
///   `poll` and `epoll` call a socket writable only below half of it (`tcp_stream_memory_free`), and
///   many servers ask before they write.
/// - `send_buffer` is 3 *R*. The kernel doubles it; half of that may be bookkeeping, and `poll` wants
///   a third free (`sk_stream_min_wspace`). So 1.5 *R* would do for what is held; the other half is
///   for what is released and not acknowledged meanwhile.
pub fn gate_settings(services: &[Service]) -> GateSettings {
    let messages = services.iter().filter_map(|service| service.message.as_ref());
    let Some(reply_bytes) = messages.map(Message::reply_bytes).max() else {
        return GateSettings::default();
    };
    let head = u32::try_from(limits().head_bytes).expect("a head is short");
    let held = reply_bytes + head + SEGMENT;
    GateSettings {
        hold_bytes: 2 * held,
        send_buffer: Some((3 * held).min(SEND_BUFFER_MAX)),
        ..GateSettings::default()
    }
}

/// What one flow may take in the reply log, in bytes: the reply that is held, all that a send buffer
/// keeps until it is acknowledged (the kernel doubles what it is given, and long writes fill nearly
/// all of it), and 64 KiB for the bookkeeping.
fn flow_bytes(reply_bytes: u32, gate: &GateSettings) -> usize {
    let kept = 2 * gate.send_buffer.unwrap_or(0) as usize;
    (reply_bytes as usize + kept + (64 << 10)).max(FLOW_BYTES_MIN)
}

/// Those of every service: no key changes them.
fn limits() -> Limits {
    Limits::default()
}

/// Fills in what follows from all services together.
pub(super) fn settle(services: &mut [Service]) {
    let gate = gate_settings(services);
    for message in services.iter_mut().filter_map(|service| service.message.as_mut()) {
        message.flow_bytes = flow_bytes(message.reply_bytes(), &gate);
    }
}

/// Reads the keys of the scheme. `scheme` is `None` if there is a mistake in it.
pub(super) fn read(
    table: &mut Table<'_, '_>,
    problems: &Problems<'_>,
    scheme: Option<Scheme>,
) -> Option<Message> {
    let message = Message {
        reply_budget_kib: table.integer("reply_budget_kib", 1024, REPLY_BUDGET_KIB),
        long_replies: long_replies(table),
        regenerate: regenerate(table, problems),
        flow_bytes: 0,
    };
    match scheme? {
        Scheme::Message => Some(message),
        Scheme::Track => {
            let keys = ["reply_budget_kib", "long_replies", "regenerate"];
            for key in keys.into_iter().filter(|key| table.has(key)) {
                let what = "this needs scheme = \"message\": \"track\" does not hold replies";
                table.wrong(key, what, "add scheme = \"message\", or leave this key out");
            }
            None
        }
    }
}

fn long_replies(table: &mut Table<'_, '_>) -> Excess {
    match table.optional_string("long_replies", "\"stream\"").as_deref() {
        None | Some("stream") => Excess::Stream,
        Some("regenerate") => Excess::Regenerate,
        Some(word) => {
            table.unknown_word("long_replies", word, &["stream", "regenerate"]);
            Excess::Stream
        }
    }
}

fn regenerate(table: &mut Table<'_, '_>, problems: &Problems<'_>) -> Vec<String> {
    let listed = table.strings("regenerate", false).unwrap_or_default();
    let mut routes = Routes::default();
    for (path, route) in &listed {
        if let Err(error) = add_route(&mut routes, route) {
            // Some of its errors say, after a semicolon, how to mend them.
            let text = error.to_string();
            let mend = "write method and path, such as \"GET /static/**\"";
            let (what, mend) = text.split_once("; ").unwrap_or((&text, mend));
            problems.of(path, what, mend);
        }
    }
    listed.into_iter().map(|(_, route)| route).collect()
}

/// Adds `METHOD GLOB`.
fn add_route(routes: &mut Routes, route: &str) -> Result<(), RouteError> {
    let (method, glob) = route.split_once(' ').unwrap_or((route, ""));
    routes.add(method, glob.trim(), Treatment::Regenerate)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn services(budgets_kib: &[u32]) -> Vec<Service> {
        let message = |&reply_budget_kib: &u32| Message {
            reply_budget_kib,
            long_replies: Excess::Stream,
            regenerate: Vec::new(),
            flow_bytes: 0,
        };
        let service = |message| Service {
            name: "www".to_owned(),
            addresses: vec![IpAddr::from([10, 0, 0, 100])],
            port: 80,
            command: None,
            user: None,
            workdir: None,
            scheme: Scheme::Message,
            flow_budget_mib: 1,
            message: Some(message),
            environment: Default::default(),
        };
        let mut services: Vec<_> = budgets_kib.iter().map(message).map(service).collect();
        settle(&mut services);
        services
    }

    /// The kernel's rules, in bytes of payload: writes are taken while less than TCP_NOTSENT_LOWAT
    /// is unsent, `poll` wants less than half of it, and a third of the buffer free.
    #[test]
    fn a_reply_of_the_budget_never_blocks_its_server() {
        for kib in [16, 1024, 65_536, *REPLY_BUDGET_KIB.end()] {
            let services = services(&[16, kib, 16]);
            let gate = gate_settings(&services);
            let policy = services[1].policy().unwrap();
            let held = policy.reply_bytes + policy.limits.head_bytes as u64 + 65_536;
            assert!(u64::from(gate.hold_bytes) >= 2 * held, "{kib} KiB: {gate:?}");
            let buffer = gate.send_buffer.unwrap();
            assert!(u64::from(buffer) * 2 >= 3 * held, "{kib} KiB: {gate:?}");
            assert!(i32::try_from(gate.hold_bytes).is_ok(), "an int for setsockopt: {gate:?}");
            assert!(buffer <= i32::MAX as u32 / 2, "the kernel would set less: {gate:?}");
        }
    }

    #[test]
    fn the_default_fits_into_what_linux_6_18_allows_without_a_sysctl() {
        assert!(gate_settings(&services(&[1024])).send_buffer.unwrap() <= 4 << 20);
    }

    /// Every socket has the largest service's send buffer, so every flow may need as much.
    #[test]
    fn a_flow_has_room_for_all_that_its_socket_keeps() {
        for budgets in [&[1024][..], &[64, 16_384]] {
            let services = services(budgets);
            let kept = 2 * gate_settings(&services).send_buffer.unwrap() as usize;
            for policy in services.iter().map(|service| service.policy().unwrap()) {
                assert!(policy.flow_bytes >= policy.reply_bytes as usize + kept + 65_536);
                assert!(policy.flow_bytes >= 8 << 20);
            }
        }
    }
}

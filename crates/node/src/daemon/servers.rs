//! What the servers of this node do, as their supervisor tells it.

use std::collections::BTreeMap;

use serde_json::json;

use super::events::Events;
use crate::check;
use crate::config::Service;
use crate::supervisor;

/// A service's server on this node.
#[derive(Debug, Clone, Default)]
pub struct ServerState {
    pub listening: bool,
    /// A listener is a Multipath TCP socket: nothing can be adopted.
    pub multipath: bool,
    pub pid: Option<u32>,
    pub starts: u32,
}

/// Of every service, by name.
#[derive(Debug, Clone)]
pub struct Servers(BTreeMap<String, ServerState>);

impl Servers {
    pub fn new(services: &[Service]) -> Self {
        Self(services.iter().map(|s| (s.name.clone(), ServerState::default())).collect())
    }

    pub fn get(&self, service: &str) -> Option<&ServerState> {
        self.0.get(service)
    }

    pub fn all_listen(&self) -> bool {
        self.0.values().all(|server| server.listening)
    }

    /// Notes what has become of a server, and writes it down.
    pub fn on_event(&mut self, event: supervisor::Event, events: &Events) {
        use supervisor::Event as Server;
        match event {
            Server::Listening { service } => {
                events.add(
                    "server_listening",
                    &format!("service {service}: the server listens"),
                    json!({"service": service}),
                );
                self.of(&service).listening = true;
            }
            Server::NotListening { service } => {
                events.add(
                    "server_not_listening",
                    &format!("service {service}: nobody listens any more"),
                    json!({"service": service}),
                );
                self.of(&service).listening = false;
            }
            Server::Multipath { service, multipath } => {
                if multipath {
                    events.add(
                        "server_multipath",
                        &format!(
                            "service {service}: the server listens with Multipath TCP, which \
                             adopts no connections: {}",
                            check::MULTIPATH_MEND
                        ),
                        json!({"service": service}),
                    );
                }
                self.of(&service).multipath = multipath;
            }
            Server::Started { service, pid } => {
                events.add(
                    "server_started",
                    &format!("service {service}: server started as process {pid}"),
                    json!({"service": service, "pid": pid}),
                );
                let server = self.of(&service);
                server.pid = Some(pid);
                server.starts += 1;
            }
            Server::Unstartable { service, why } => events.add(
                "server_unstartable",
                &format!("service {service}: {why}"),
                json!({"service": service}),
            ),
            Server::Backgrounded { service, pid } => {
                events.add(
                    "server_backgrounded",
                    &format!(
                        "service {service}: process {pid} ended and left others in the \
                         background: the server runs until the last of them has ended"
                    ),
                    json!({"service": service, "pid": pid}),
                );
                self.of(&service).pid = None;
            }
            Server::Exited { service, pid, status, crashed } => {
                events.add(
                    "server_exited",
                    &format!("service {service}: process {pid} ended ({status})"),
                    json!({"service": service, "pid": pid, "crashed": crashed}),
                );
                self.of(&service).pid = None;
            }
        }
    }

    fn of(&mut self, service: &str) -> &mut ServerState {
        self.0.entry(service.to_owned()).or_default()
    }
}

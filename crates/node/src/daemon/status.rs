//! What `steadfast status` shows, as one JSON object.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use cluster::Role;
use datapath::{Counters, FlowState, FlowTable};
use serde_json::{Map, Value, json};

use super::{journal, locked, membership, notices};
use crate::config::Config;

/// Where the parts of the answer come from.
pub struct Source {
    pub config: Config,
    pub membership: Arc<Mutex<Option<membership::Report>>>,
    pub journal: Arc<Mutex<journal::Report>>,
    pub table: FlowTable,
    pub counters: Counters,
}

impl Source {
    pub fn status(&self) -> Value {
        let membership = locked(&self.membership).clone();
        let journal = locked(&self.journal).clone();
        let mut status = json!({
            "node": self.config.node.name,
            "cluster": self.config.node.cluster,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "flows": self.flows(),
            "takeover": takeover(&journal),
            "journal": stats(&journal.journal),
            "replies": journal.replies.as_ref().map(replies),
            "resets": journal.resets,
            "over_budget": journal.over_budget,
            "counters": self.counters.all().map(|(name, count)| (name.to_owned(), count.into())).collect::<Map<_, _>>(),
        });
        let more = match membership {
            Some(report) => self.membership(&report),
            None => json!({"ready": false, "role": "starting", "duplex": false, "epoch": 0}),
        };
        let (Value::Object(status_map), Value::Object(more)) = (&mut status, more) else {
            unreachable!("both are objects")
        };
        status_map.extend(more);
        status
    }

    fn membership(&self, report: &membership::Report) -> Value {
        let view = &report.view;
        let settled = matches!(view.role, Role::Primary { .. } | Role::Backup { armed: true });
        let listening = report.servers.all_listen();
        let services: Vec<Value> = self
            .config
            .services
            .iter()
            .map(|service| {
                let server = report.servers.get(&service.name).cloned().unwrap_or_default();
                let addresses: Vec<String> = service
                    .addresses
                    .iter()
                    .map(|&address| std::net::SocketAddr::new(address, service.port).to_string())
                    .collect();
                json!({
                    "name": service.name,
                    "scheme": service.scheme,
                    "addresses": addresses,
                    "listening": server.listening,
                    "multipath": server.multipath,
                    "pid": server.pid,
                    "restarts": server.starts.saturating_sub(1),
                })
            })
            .collect();
        let peer = view.peer.as_ref().map(|peer| {
            json!({
                "name": self.config.node.peer,
                "alive": !peer.silent,
                "role": notices::role_name(peer.role),
                "service_ready": peer.service_ready,
                "heard_ms_ago": report.at.saturating_sub(peer.last_heard) / 1_000_000,
            })
        });
        json!({
            "ready": settled && listening,
            "role": notices::role_name(view.role),
            "duplex": view.role == Role::Primary { duplex: true },
            "epoch": view.epoch.0,
            "holding": view.holds_address,
            "lease_ms_left": view.lease_until.saturating_sub(report.at) / 1_000_000,
            "peer": peer.unwrap_or_else(|| json!({"name": self.config.node.peer, "alive": false})),
            "links": {"service": view.service_path, "cluster": view.cluster_path},
            "relay_via": format!("{:?}", view.relay_via).to_lowercase(),
            "services": services,
            "refused_datagrams": report.refused,
        })
    }

    fn flows(&self) -> Value {
        let mut counts = [0u32; 4];
        for (_, flow) in self.table.snapshot() {
            counts[match flow.state() {
                FlowState::Tracked => 0,
                FlowState::Adopting | FlowState::Delivering => 1,
                FlowState::Open => 2,
                FlowState::Simplex => 3,
            }] += 1;
        }
        counts[3] += self.table.strays().len() as u32;
        let [tracked, adopting, open, simplex] = counts;
        json!({"tracked": tracked, "adopting": adopting, "open": open, "simplex": simplex})
    }
}

fn takeover(report: &journal::Report) -> Value {
    let progress = &report.progress;
    let (now, wall) = (hostnet::now_boottime_ns(), SystemTime::now());
    json!({
        "flows": progress.flows,
        "adopted": progress.adopted,
        "reset": progress.reset,
        "pending": progress.pending,
        "first_open_us": progress.first_open.map(|took| took.as_micros() as u64),
        "last_open_us": progress.last_open.map(|took| took.as_micros() as u64),
        "steps": report.timeline.map(|timeline| timeline.shown(progress, now, wall)),
    })
}

fn replies(replies: &takeover::Replies) -> Value {
    let stats = &replies.log;
    json!({
        "flows": stats.flows,
        "bytes": stats.heap_bytes,
        "logged": stats.logged,
        "regenerated": stats.regenerated,
        "streamed": stats.streamed,
        "skipped_bytes": stats.skipped_bytes,
        "opened": replies.opened,
        "unheard": replies.unheard,
    })
}

fn stats(stats: &::journal::Stats) -> Value {
    json!({
        "flows": stats.flows,
        "bytes": stats.heap_bytes,
        "stored_bytes": stats.stored_bytes,
        "conflicting_bytes": stats.conflicting_bytes,
        "duplicates": stats.duplicates,
        "beyond_window": stats.beyond_window,
        "after_fin": stats.after_fin,
        "unknown_flow": stats.unknown_flow,
        "over_flow_budget": stats.over_flow_budget,
        "over_total_budget": stats.over_total_budget,
    })
}

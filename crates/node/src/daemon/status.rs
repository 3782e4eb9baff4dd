//! What `steadfast status` shows, as one JSON object.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use cluster::{Role, View};
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
            "takeover": sum(journal.engines.iter().map(takeover)),
            "journal": sum(journal.engines.iter().map(|engine| stats(&engine.journal))),
            "replies": sum(journal.engines.iter().map(|e| e.replies.as_ref().map(replies).into())),
            "resets": journal.resets,
            "over_budget": journal.over_budget,
            "counters": self.counters.all().map(|(name, count)| (name.to_owned(), count.into())).collect::<Map<_, _>>(),
        });
        let more = match membership {
            Some(report) => self.membership(&report),
            None => json!({"ready": false, "role": "starting", "duplex": false, "epoch": 0,
                "shares": null}),
        };
        let (Value::Object(status_map), Value::Object(more)) = (&mut status, more) else {
            unreachable!("both are objects")
        };
        status_map.extend(more);
        status
    }

    fn membership(&self, report: &membership::Report) -> Value {
        // Of the first share, if there are two.
        let view = &report.views[0];
        let is_settled =
            |view: &View| matches!(view.role, Role::Primary { .. } | Role::Backup { armed: true });
        let settled = report.views.iter().all(is_settled);
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
            "shares": shares(report),
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

/// What this node is for each share, if there are two.
fn shares(report: &membership::Report) -> Option<Value> {
    let share = |(number, view): (usize, &View)| {
        json!({
            "share": number,
            "home": view.prefers_primary,
            "role": notices::role_name(view.role),
            "duplex": view.role == Role::Primary { duplex: true },
            "epoch": view.epoch.0,
            "lease_ms_left": view.lease_until.saturating_sub(report.at) / 1_000_000,
            "peer_role": view.peer.as_ref().map(|peer| notices::role_name(peer.role)),
        })
    };
    (report.views.len() > 1).then(|| report.views.iter().enumerate().map(share).collect())
}

/// Numbers of several engines are added up, but of times the longest counts. Of the rest, of objects
/// like `steps` whole, the last counts that is there.
fn sum(values: impl Iterator<Item = Value>) -> Value {
    values.fold(Value::Null, |sum, value| match (sum, value) {
        (sum, Value::Null) => sum,
        (Value::Object(mut sum), Value::Object(value)) => {
            for (key, value) in value {
                let so_far = sum.remove(&key).unwrap_or_default();
                let value = match (so_far.as_u64(), value.as_u64()) {
                    (Some(one), Some(other)) if key.ends_with("_us") => one.max(other).into(),
                    (Some(one), Some(other)) => (one + other).into(),
                    _ if key == "opened" => self::sum([so_far, value].into_iter()),
                    _ if value.is_null() => so_far,
                    _ => value,
                };
                sum.insert(key, value);
            }
            Value::Object(sum)
        }
        (_, value) => value,
    })
}

fn takeover(report: &journal::EngineReport) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_engines_count_is_added_up() {
        let one = json!({"flows": 2, "first_open_us": null, "last_open_us": 7, "steps": null,
            "opened": {"gap": 1}});
        let other = json!({"flows": 3, "first_open_us": 5, "last_open_us": 6, "steps": {"at": 1},
            "opened": {"gap": 2, "budget": 1}});
        let both = json!({"flows": 5, "first_open_us": 5, "last_open_us": 7, "steps": {"at": 1},
            "opened": {"gap": 3, "budget": 1}});
        assert_eq!(sum([one.clone(), other.clone()].into_iter()), both);
        assert_eq!(sum([other, one].into_iter()), both);
        assert_eq!(sum([Value::Null, Value::Null].into_iter()), Value::Null);
    }
}

//! Preflight: can this host run a node?
//!
//! A kernel's version says little about what was built into it or forbidden in this place, so
//! every feature is tried: a tiny program is loaded, a map made, an option set on a thread that
//! ends. Nothing that is tried outlives its probe. The daemon runs the same list before it starts.
//!
//! [`run`] goes through [`PROBES`] and returns their [`Finding`]s. What is missing and fatal is
//! [`Level::Fail`]; what works but may hurt later is [`Level::Warn`].

mod bpf;
mod host;
mod kernel;
mod network;
mod service;

pub(crate) use service::MULTIPATH_MEND;

use std::fmt;

use serde::Serialize;

use crate::config::{Config, Scheme};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    Warn,
    Fail,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The probe's id; several findings may come from one probe.
    pub id: &'static str,
    pub level: Level,
    /// What was looked at, and what is wrong with it.
    pub what: String,
    /// Why that matters; empty if all is well.
    pub why: String,
    /// How to mend it; empty if all is well.
    pub mend: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        write!(f, "{level}  {}", self.what)?;
        if self.level > Level::Ok {
            write!(f, " — {} — {}", self.why, self.mend)?;
        }
        Ok(())
    }
}

/// One thing to find out.
pub struct Probe {
    /// Stable and unique, for machines.
    pub id: &'static str,
    run: fn(&mut Context<'_>),
    /// It waits for another host: it runs beside the others.
    waits: bool,
}

impl Probe {
    const fn new(id: &'static str, run: fn(&mut Context<'_>)) -> Self {
        Self { id, run, waits: false }
    }

    fn find(&self, config: Option<&Config>) -> Vec<Finding> {
        let mut context = Context { id: self.id, config, findings: Vec::new() };
        (self.run)(&mut context);
        context.findings
    }
}

/// Every probe, in the order of the report: each may rely on what those before it say.
pub const PROBES: &[Probe] = &[
    Probe::new("capabilities", host::capabilities),
    Probe::new("limits", host::limits),
    Probe::new("realtime", host::realtime),
    Probe::new("cgroup2", host::cgroup2),
    Probe::new("bpffs", host::bpffs),
    Probe::new("tun", host::tun),
    Probe::new("sock-destroy", host::sock_destroy),
    Probe::new("syncookies", host::syncookies),
    Probe::new("send-buffer", host::send_buffer),
    Probe::new("btf", kernel::btf),
    Probe::new("kfuncs", kernel::kfuncs),
    Probe::new("bpf-programs", kernel::programs),
    Probe::new("bpf-maps", kernel::maps),
    Probe::new("interfaces", network::interfaces),
    Probe::new("mtu", network::mtu),
    Probe::new("rp-filter", network::rp_filter),
    Probe::new("service-address", network::service_addresses),
    Probe { waits: true, ..Probe::new("peer", network::peer) },
    Probe::new("key", service::key),
    Probe::new("state-dir", service::state_dir),
    Probe::new("service-user", service::users),
    Probe::new("service-command", service::commands),
    Probe::new("service-port", service::ports),
    Probe::new("service-multipath", service::multipath),
];

/// What a probe works with.
pub(crate) struct Context<'a> {
    id: &'static str,
    /// Without one, probes that need it find nothing.
    config: Option<&'a Config>,
    findings: Vec<Finding>,
}

impl Context<'_> {
    /// Whether a service is configured whose scheme holds output.
    fn holds_output(&self) -> bool {
        let mut services = self.config.into_iter().flat_map(|config| &config.services);
        services.any(|service| service.scheme == Scheme::Message)
    }

    fn note(&mut self, level: Level, what: String, why: &str, mend: String) {
        let why = why.to_owned();
        self.findings.push(Finding { id: self.id, level, what, why, mend });
    }

    fn ok(&mut self, what: impl Into<String>) {
        self.note(Level::Ok, what.into(), "", String::new());
    }

    fn warn(&mut self, what: impl Into<String>, why: &str, mend: impl Into<String>) {
        self.note(Level::Warn, what.into(), why, mend.into());
    }

    fn fail(&mut self, what: impl Into<String>, why: &str, mend: impl Into<String>) {
        self.note(Level::Fail, what.into(), why, mend.into());
    }
}

/// What all probes found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// No finding is [`Level::Fail`].
    pub ok: bool,
    pub findings: Vec<Finding>,
}

/// Runs every probe in the network namespace of the calling thread.
pub fn run(config: Option<&Config>) -> Report {
    let findings: Vec<Finding> = std::thread::scope(|scope| {
        let waiting: Vec<_> = PROBES
            .iter()
            .map(|probe| probe.waits.then(|| scope.spawn(|| probe.find(config))))
            .collect();
        let found = PROBES.iter().zip(waiting).flat_map(|(probe, waiting)| match waiting {
            Some(thread) => thread.join().expect("the thread does not panic"),
            None => probe.find(config),
        });
        found.collect()
    });
    Report { ok: findings.iter().all(|finding| finding.level < Level::Fail), findings }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let (warnings, failures) = (count(Level::Warn), count(Level::Fail));
        match (failures, warnings) {
            (0, 0) => write!(f, "This host can run a node."),
            (0, _) => write!(f, "This host can run a node; {warnings} to look at."),
            _ => write!(f, "This host cannot run a node: {failures} to mend first."),
        }
    }
}

#[cfg(test)]
mod tests;

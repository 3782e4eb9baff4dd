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

use std::fmt;

use serde::Serialize;

use crate::config::Config;

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
}

/// Every probe, in the order of the report: each may rely on what those before it say.
pub const PROBES: &[Probe] = &[
    Probe { id: "capabilities", run: host::capabilities },
    Probe { id: "limits", run: host::limits },
    Probe { id: "realtime", run: host::realtime },
    Probe { id: "cgroup2", run: host::cgroup2 },
    Probe { id: "tun", run: host::tun },
    Probe { id: "sock-destroy", run: host::sock_destroy },
    Probe { id: "syncookies", run: host::syncookies },
    Probe { id: "btf", run: kernel::btf },
    Probe { id: "kfuncs", run: kernel::kfuncs },
    Probe { id: "bpf-programs", run: kernel::programs },
    Probe { id: "bpf-maps", run: kernel::maps },
    Probe { id: "interfaces", run: network::interfaces },
    Probe { id: "mtu", run: network::mtu },
    Probe { id: "rp-filter", run: network::rp_filter },
    Probe { id: "service-address", run: network::service_addresses },
    Probe { id: "peer", run: network::peer },
    Probe { id: "key", run: service::key },
    Probe { id: "state-dir", run: service::state_dir },
    Probe { id: "service-user", run: service::users },
    Probe { id: "service-command", run: service::commands },
    Probe { id: "service-port", run: service::ports },
];

/// What a probe works with.
pub(crate) struct Context<'a> {
    id: &'static str,
    /// Without one, probes that need it find nothing.
    config: Option<&'a Config>,
    findings: Vec<Finding>,
}

impl Context<'_> {
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
    let mut context = Context { id: "", config, findings: Vec::new() };
    for probe in PROBES {
        context.id = probe.id;
        (probe.run)(&mut context);
    }
    let findings = context.findings;
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

//! Findings of one flow, with repeats counted.

use std::collections::HashMap;

use crate::capture::{Files, Segment};
use crate::story::Story;
use crate::verdict::{Class, Finding};

/// Where the rules write to.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) story: &'a Story,
    pub(crate) files: &'a Files,
    pub(crate) begin_ns: u64,
    pub(crate) flow: String,
    flow_began_ns: u64,
    pub(crate) findings: Vec<Finding>,
    /// A rule that is broken at one host is broken by every later segment too: one line says it.
    known: HashMap<(&'static str, u8), usize>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(
        story: &'a Story,
        files: &'a Files,
        begin_ns: u64,
        (flow, flow_began_ns): (String, u64),
    ) -> Self {
        let (findings, known) = (Vec::new(), HashMap::new());
        Report { story, files, begin_ns, flow, flow_began_ns, findings, known }
    }

    /// `rule` tells findings that are alike from those that are not.
    pub(crate) fn find(
        &mut self,
        (class, rule): (Class, &'static str),
        segment: &Segment,
        by: Option<u64>,
        expected: impl Into<String>,
        seen: impl Into<String>,
    ) {
        if let Some(&known) = self.known.get(&(rule, segment.host)) {
            let known = &mut self.findings[known];
            known.more += 1;
            known.by = known.by.max(by);
            known.last_ns = known.last_ns.max(segment.at_ns);
            return;
        }
        self.known.insert((rule, segment.host), self.findings.len());
        self.findings.push(Finding {
            class,
            flow: self.flow.clone(),
            at_ns: segment.at_ns,
            after_ns: segment.at_ns - self.begin_ns,
            host: self.name(segment.host).to_owned(),
            expected: expected.into(),
            seen: seen.into(),
            frame: segment.frame.into(),
            file: self.files.name(segment.file).to_owned(),
            by,
            more: 0,
            last_ns: segment.at_ns,
            flow_began_ns: self.flow_began_ns,
        });
    }

    pub(crate) fn name(&self, host: u8) -> &'a str {
        &self.story.hosts[usize::from(host)].name
    }

    /// Seconds since the first frame, for people.
    pub(crate) fn time(&self, at_ns: u64) -> String {
        format!("{:.6} s", (at_ns as f64 - self.begin_ns as f64) / 1e9)
    }
}

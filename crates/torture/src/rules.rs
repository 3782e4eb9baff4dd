//! The judgement of a run: every complaint is a failure, unless a row of [`RULES`] says why this
//! run had to have it.

use serde::{Deserialize, Serialize};

use crate::evidence::{ClientReport, Evidence, Found};
use crate::fault::{Act, Kind, Who};
use crate::plan::Plan;

/// How far the clocks of captures, daemons and campaign may seem apart.
const CLOCKS_NS: u64 = 1_000_000;

/// What kind of thing is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sort {
    /// A client's connection broke, or did not go on.
    ClientError,
    /// A client got bytes that nobody should have sent, such as others than the file's.
    WrongBytes,
    /// The shop's books disagree with what its clients were told.
    Books,
    /// The product says that it has reset a flow.
    Reset,
    /// Two nodes served at once, and say so.
    SplitBrain,
    /// A daemon ended by itself.
    DaemonEnded,
    /// The pair did not get whole again, or does not serve.
    NotMended,
    /// The lab left something behind.
    Leak,
    /// The oracle found something on the wires.
    Oracle,
    /// The run could not be played.
    NotPlayed,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complaint {
    /// What kind of thing.
    pub sort: Sort,
    /// It is about clients that came before the first fault.
    pub early: bool,
    /// What.
    pub text: String,
    /// The class of the oracle's finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// When it was, if that is known, on [`demo::clock::now_ns`]'s clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_ns: Option<u64>,
    /// When the flow began, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_began_ns: Option<u64>,
}

/// Why a run may have complaints. No rule is about what was before the first fault, or about
/// connections that began when everything had been mended.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// In words.
    pub why: &'static str,
    /// The runs that it is about.
    pub about: fn(&Plan, &Evidence) -> bool,
    /// What it excuses there.
    pub excuses: fn(&Complaint, &Evidence) -> bool,
    /// What it excuses is counted apart as corruption, and its files are kept.
    pub apart: bool,
}

/// All of them.
pub const RULES: [Rule; 5] = [
    Rule {
        name: "both-dead",
        why: "the new primary's host died before the other node had joined it again: no node is \
              left that holds the connections",
        about: |plan, evidence| evidence.done.len() == 2 && nobody_is_left(plan),
        excuses: |c, _| c.is_one_of(&[Sort::ClientError, Sort::Reset]) || c.is_stray_rst(),
        apart: false,
    },
    Rule {
        name: "older-than-backup",
        why: "the connection began before the backup came back, which therefore lacks its \
              beginning: it is simplex, and says so",
        about: |plan, evidence| plan.mended_between && evidence.done.len() == 2,
        excuses: |c, evidence| {
            c.early && c.is_one_of(&[Sort::ClientError, Sort::Reset])
                || c.is_stray_rst() && c.is_older_than(evidence.mended_between_ns)
        },
        apart: false,
    },
    Rule {
        name: "flipped-server",
        why: "bits flipped in the server, and it lived long enough to answer wrongly or to close \
              connections itself: no replication of its input can help; but its kernel is sane, \
              and so is what decides who serves",
        about: |plan, _| plan.kind == Kind::FlipServer,
        excuses: |c, _| {
            c.is_one_of(&[Sort::ClientError, Sort::WrongBytes, Sort::Books, Sort::Reset])
                || c.is_found(&["I5", "I6", "Replaced"])
        },
        apart: true,
    },
    Rule {
        name: "flipped-daemon",
        why: "bits flipped in the daemon, and it went on with them for a while: it decides about \
              roles, leases and resets, so connections may end and two nodes may serve; but no \
              byte goes through it, its peer lives, and a new daemon in its place mends the pair",
        about: |plan, evidence| plan.kind == Kind::FlipDaemon && !evidence.flip_killed_at_once,
        excuses: |c, _| {
            c.is_one_of(&[Sort::ClientError, Sort::Reset, Sort::SplitBrain])
                || c.is_found(&["I1", "I3", "I5"])
        },
        apart: true,
    },
    Rule {
        name: "flipped-journal",
        why: "bits flipped in the daemon, which then took flows over: it replays client bytes and \
              positions out of its own memory",
        about: |plan, evidence| {
            plan.kind == Kind::FlipDaemon
                && !evidence.flip_killed_at_once
                && evidence.hit_node_took_over()
        },
        excuses: |c, _| {
            c.is_one_of(&[Sort::WrongBytes, Sort::Books]) || c.is_found(&["I4", "I6", "Replaced"])
        },
        apart: true,
    },
];

/// Whether the new primary is to die during its takeover.
pub(crate) fn nobody_is_left(plan: &Plan) -> bool {
    plan.kind == Kind::KillDuringTakeover && plan.steps[1].act == Act::Host(Who::Backup)
}

impl Complaint {
    fn is_one_of(&self, sorts: &[Sort]) -> bool {
        sorts.contains(&self.sort)
    }

    /// The oracle found it, in one of these classes.
    fn is_found(&self, classes: &[&str]) -> bool {
        self.class.as_deref().is_some_and(|class| classes.contains(&class))
    }

    /// It is about a flow that was there at this time.
    fn is_older_than(&self, at_ns: Option<u64>) -> bool {
        at_ns.is_some_and(|at| self.flow_began_ns.is_some_and(|began| began <= at))
    }

    /// Nothing had been done yet, or everything had been mended.
    fn is_out_of_time(&self, evidence: &Evidence) -> bool {
        let Some(first) = evidence.done.first() else { return true };
        let mended_ns = evidence.mended_ns.unwrap_or(u64::MAX);
        let is_after = |at_ns: Option<u64>| at_ns.is_some_and(|at| at > mended_ns);
        self.at_ns.is_some_and(|at| at + CLOCKS_NS < first.at_ns)
            || is_after(self.flow_began_ns)
            || (self.sort == Sort::SplitBrain && is_after(self.at_ns))
    }

    /// A kernel that does not know a connection answers with RST (invariant 5, exceptions).
    fn is_stray_rst(&self) -> bool {
        self.class.as_deref() == Some("I5") && self.text.contains("seen RST")
    }
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome", content = "why")]
pub enum Outcome {
    /// Nobody noticed anything.
    Good,
    /// What was noticed had to be: the rules' names.
    Explained(Vec<&'static str>),
    /// What was noticed comes of flipped bits.
    Corrupted(Vec<Complaint>),
    /// What must not be.
    Failed(Vec<Complaint>),
}

/// Judges a run.
pub fn judge(plan: &Plan, evidence: &Evidence) -> Outcome {
    let complaints = complaints(evidence);
    let about: Vec<&Rule> = RULES.iter().filter(|rule| (rule.about)(plan, evidence)).collect();
    let (mut failed, mut corrupted, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for complaint in complaints {
        let excuses = |rule: &&&Rule| {
            !complaint.is_out_of_time(evidence) && (rule.excuses)(&complaint, evidence)
        };
        match about.iter().find(excuses) {
            None => failed.push(complaint),
            Some(rule) if rule.apart => corrupted.push(complaint),
            Some(rule) if names.contains(&rule.name) => {}
            Some(rule) => names.push(rule.name),
        }
    }
    match (failed.is_empty(), corrupted.is_empty(), names.is_empty()) {
        (false, ..) => Outcome::Failed(failed),
        (_, false, _) => Outcome::Corrupted(corrupted),
        (.., false) => Outcome::Explained(names),
        _ => Outcome::Good,
    }
}

/// Everything that is wrong.
fn complaints(evidence: &Evidence) -> Vec<Complaint> {
    let mut all = Vec::new();
    let mut add = |sort, early, text: String, at_ns| {
        let (class, flow_began_ns) = (None, None);
        all.push(Complaint { sort, early, text, class, at_ns, flow_began_ns });
    };
    for client in &evidence.clients {
        let early = client.batch == 0;
        if let Some(error) = &client.error {
            add(Sort::ClientError, early, format!("a {:?} {error}", client.job), None);
        }
        if let Some(wrong) = &client.wrong {
            add(Sort::WrongBytes, early, format!("a {:?}: {wrong}", client.job), None);
        }
    }
    if let Some(shop) = &evidence.shop {
        // That the clients of the unanswered ones have failed is a complaint of its own.
        let noticed = evidence.clients.iter().any(ClientReport::noticed);
        let unanswered = if noticed { &[] } else { &shop.unanswered[..] };
        for text in shop.faults.iter().chain(unanswered) {
            add(Sort::Books, false, text.clone(), None);
        }
    }
    for failure in &evidence.idle_failures {
        let sort =
            if failure.contains("other bytes") { Sort::WrongBytes } else { Sort::ClientError };
        add(sort, true, failure.clone(), None);
    }
    for said in &evidence.said {
        let sort = match said.event.as_str() {
            "flow_reset" => Sort::Reset,
            "two_primaries" => Sort::SplitBrain,
            _ => continue,
        };
        add(sort, true, format!("{}: {}", said.node, said.text), Some(said.at_ns));
    }
    for text in &evidence.ended {
        add(Sort::DaemonEnded, false, text.clone(), None);
    }
    if let Some(text) = &evidence.not_mended {
        add(Sort::NotMended, false, text.clone(), None);
    }
    for text in &evidence.leaked {
        add(Sort::Leak, false, text.clone(), None);
    }
    if !evidence.oracle.blind {
        let complaint = |found: &Found| Complaint {
            sort: Sort::Oracle,
            early: false,
            text: found.text.clone(),
            class: Some(found.class.clone()),
            at_ns: found.at_ns,
            flow_began_ns: found.flow_began_ns,
        };
        all.extend(evidence.oracle.findings.iter().map(complaint));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Done, Job, Said, Shop};
    use crate::plan::{Scheme, Wanted};

    fn plan(kind: Kind, wanted: impl Fn(&Plan) -> bool) -> Plan {
        Plan::from(1, Wanted::kind(kind)).find(wanted).expect("seeds do not end")
    }

    fn client(batch: usize, error: Option<&str>, wrong: bool) -> ClientReport {
        let error = error.map(str::to_owned);
        let wrong = wrong.then(|| "other bytes".to_owned());
        ClientReport { job: Job::Download, batch, bytes: 0, error, wrong, gap_ms: None }
    }

    fn said(event: &str, at_ns: u64) -> Said {
        Said { at_ns, node: "a".into(), event: event.into(), text: String::new() }
    }

    fn found(class: &str, at_ns: u64) -> Found {
        let (class, at_ns) = (class.into(), Some(at_ns));
        Found { class, at_ns, flow_began_ns: None, text: "other bytes".into() }
    }

    fn disagreeing() -> Shop {
        Shop { faults: vec!["executed 2 times".into()], ..Shop::default() }
    }

    /// Evidence of a run in which everything planned was done, at 1, 2, … s.
    fn of(plan: &Plan, clients: Vec<ClientReport>) -> Evidence {
        let done = |n: usize| Done {
            at_ns: (n as u64 + 1) * 1_000_000_000,
            what: String::new(),
            node: None,
        };
        let done = (0..plan.steps.len()).map(done).collect();
        Evidence { done, clients, ..Evidence::default() }
    }

    #[test]
    fn without_a_rule_everything_noticed_is_a_failure() {
        let plan = plan(Kind::KillHost, |_| true);
        assert_eq!(judge(&plan, &of(&plan, vec![client(0, None, false)])), Outcome::Good);
        let broken = [
            of(&plan, vec![client(0, Some("reset"), false)]),
            of(&plan, vec![client(0, None, true)]),
            Evidence { idle_failures: vec!["closed".into()], ..of(&plan, vec![]) },
            Evidence { shop: Some(disagreeing()), ..of(&plan, vec![]) },
            Evidence { said: vec![said("two_primaries", 5)], ..of(&plan, vec![]) },
            Evidence { said: vec![said("flow_reset", 5)], ..of(&plan, vec![]) },
            Evidence { ended: vec!["a".into()], ..of(&plan, vec![]) },
            Evidence { not_mended: Some("no".into()), ..of(&plan, vec![]) },
            Evidence { leaked: vec!["a file".into()], ..of(&plan, vec![]) },
        ];
        for evidence in broken {
            let outcome = judge(&plan, &evidence);
            assert!(matches!(&outcome, Outcome::Failed(c) if c.len() == 1), "{outcome:?}");
        }
        let mut evidence = of(&plan, vec![]);
        evidence.oracle.findings = vec![found("I6", 5)];
        assert!(matches!(judge(&plan, &evidence), Outcome::Failed(_)));
        evidence.oracle.blind = true;
        assert_eq!(judge(&plan, &evidence), Outcome::Good, "missed frames are no finding");
    }

    #[test]
    fn nobody_is_left_if_the_new_primary_dies_too() {
        let second = |who| move |p: &Plan| p.steps[1].act == Act::Host(who);
        let error = || vec![client(0, Some("reset"), false)];
        let both = plan(Kind::KillDuringTakeover, second(Who::Backup));
        assert_eq!(judge(&both, &of(&both, error())), Outcome::Explained(vec!["both-dead"]));
        let old = plan(Kind::KillDuringTakeover, second(Who::Primary));
        assert!(matches!(judge(&old, &of(&old, error())), Outcome::Failed(_)));
        // The second fault did not happen.
        let mut one = of(&both, error());
        one.done.pop();
        assert!(matches!(judge(&both, &one), Outcome::Failed(_)));
        let wrong = of(&both, vec![client(0, None, true)]);
        assert!(matches!(judge(&both, &wrong), Outcome::Failed(_)), "wrong bytes never");
        let books = Evidence { shop: Some(disagreeing()), ..of(&both, error()) };
        assert!(matches!(judge(&both, &books), Outcome::Failed(_)), "nor other books");
        let unanswered = Shop { unanswered: vec!["executed 2 times".into()], ..Shop::default() };
        let noticed = Evidence { shop: Some(unanswered.clone()), ..of(&both, error()) };
        assert_eq!(judge(&both, &noticed), Outcome::Explained(vec!["both-dead"]));
        let happy = Evidence { shop: Some(unanswered), ..of(&both, vec![]) };
        assert!(matches!(judge(&both, &happy), Outcome::Failed(_)));
    }

    #[test]
    fn only_connections_older_than_the_backup_may_break() {
        let plan = plan(Kind::BackupThenPrimary, |_| true);
        let early = of(&plan, vec![client(0, Some("reset"), false)]);
        assert_eq!(judge(&plan, &early), Outcome::Explained(vec!["older-than-backup"]));
        let late = of(&plan, vec![client(1, Some("reset"), false)]);
        assert!(matches!(judge(&plan, &late), Outcome::Failed(_)));
    }

    #[test]
    fn corruption_by_flipped_bits_is_told_apart_and_never_good() {
        let plan = plan(Kind::FlipServer, |_| true);
        let outcome = judge(&plan, &of(&plan, vec![client(0, None, true)]));
        assert!(matches!(outcome, Outcome::Corrupted(_)), "{outcome:?}");
        let two = Evidence { said: vec![said("two_primaries", 5)], ..of(&plan, vec![]) };
        assert!(matches!(judge(&plan, &two), Outcome::Failed(_)));
    }

    const MS: u64 = 1_000_000;

    /// Whoever is cut off from everybody claims nothing.
    #[test]
    fn a_partition_explains_nothing() {
        for scheme in [Scheme::Track, Scheme::Message] {
            let plan = plan(Kind::Partition, |plan| plan.scheme == scheme);
            let mut evidence = of(&plan, vec![client(0, None, false)]);
            assert_eq!(judge(&plan, &evidence), Outcome::Good);
            evidence.said = vec![said("two_primaries", 1_100 * MS)];
            assert!(matches!(judge(&plan, &evidence), Outcome::Failed(_)));
        }
    }

    #[test]
    fn no_rule_is_about_what_was_before_or_what_came_after() {
        let plan = plan(Kind::FlipServer, |_| true);
        let outcome = |change: &dyn Fn(&mut Evidence, &mut Found)| {
            let mut found = Found { flow_began_ns: Some(5), ..found("I5", 1_500 * MS) };
            let mut evidence = of(&plan, vec![]);
            evidence.mended_ns = Some(2_000 * MS);
            change(&mut evidence, &mut found);
            evidence.oracle.findings = vec![found];
            judge(&plan, &evidence)
        };
        let is_failed = |outcome: Outcome| matches!(outcome, Outcome::Failed(_));
        assert!(matches!(outcome(&|_, _| ()), Outcome::Corrupted(_)));
        assert!(is_failed(outcome(&|_, found| found.at_ns = Some(998 * MS))));
        assert!(is_failed(outcome(&|evidence, _| evidence.done.clear())), "nothing was done");
        assert!(is_failed(outcome(&|_, found| found.flow_began_ns = Some(2_001 * MS))));
        assert!(is_failed(outcome(&|_, found| found.class = "I3".into())), "its kernel is sane");
    }

    #[test]
    fn a_backup_that_came_back_answers_for_no_connection_that_came_later() {
        let plan = plan(Kind::BackupThenPrimary, |_| true);
        let outcome = |began_ns| {
            let text = "expected no RST; seen RST".into();
            let rst = Found { text, flow_began_ns: Some(began_ns), ..found("I5", 2_500 * MS) };
            let mut evidence = of(&plan, vec![]);
            evidence.mended_between_ns = Some(1_500 * MS);
            evidence.oracle.findings = vec![rst];
            judge(&plan, &evidence)
        };
        assert_eq!(outcome(1_500 * MS), Outcome::Explained(vec!["older-than-backup"]));
        assert!(matches!(outcome(1_500 * MS + 1), Outcome::Failed(_)));
    }

    #[test]
    fn a_flipped_daemon_excuses_only_what_it_decides() {
        let plan = plan(Kind::FlipDaemon, |_| true);
        let run = |change: &dyn Fn(&mut Evidence)| {
            let mut evidence = of(&plan, vec![client(0, None, false)]);
            evidence.done[0].node = Some("b".into());
            change(&mut evidence);
            judge(&plan, &evidence)
        };
        let error = |e: &mut Evidence| e.clients[0].error = Some("reset".into());
        assert!(matches!(run(&error), Outcome::Corrupted(_)));
        // Dead at once, it is a daemon that was killed.
        let dead = |e: &mut Evidence| (error(e), e.flip_killed_at_once = true).0;
        assert!(matches!(run(&dead), Outcome::Failed(_)));
        let wrong = |e: &mut Evidence| e.clients[0].wrong = Some("other bytes".into());
        assert!(matches!(run(&wrong), Outcome::Failed(_)), "no byte goes through it");
        let promoted = |e: &mut Evidence, node: &str| {
            wrong(e);
            e.said.push(Said { node: node.into(), ..said("promoted", u64::MAX) });
        };
        assert!(matches!(run(&|e| promoted(e, "b")), Outcome::Corrupted(_)));
        assert!(matches!(run(&|e| promoted(e, "a")), Outcome::Failed(_)), "a is sane");
        assert!(matches!(run(&|e| e.ended = vec!["a".into()]), Outcome::Failed(_)));
        assert!(matches!(run(&|e| e.not_mended = Some("no".into())), Outcome::Failed(_)));
    }
}

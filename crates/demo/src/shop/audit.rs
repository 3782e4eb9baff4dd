//! What the clients were told, joined with what the shop has done.
//!
//! A reply is right only if an instance has executed that request, as that order. A request may
//! have been executed twice for one reason: a node that no longer serves had executed it, and its
//! reply was not yet held by two nodes. Then nobody has seen that reply, and the client has that of
//! the node that took over. So each node executes a request at most once while it serves, and the
//! client has the reply of the last one that did.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use super::client::{Notes, Receipt};
use super::request::Kind;
use crate::operator::Event;

/// A daemon tells of its promotion once it is made; what came over may have been executed already.
const TOLD_AFTER_NS: u64 = 1_000_000;

/// A line of a log: a request was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The request's.
    pub id: String,
    /// By whom: the node's name, `-`, and what makes it unique.
    pub instance: String,
    /// As how manieth of this instance.
    pub number: u64,
    /// As which order.
    pub order: u64,
    /// When, on [`crate::clock::now_ns`]'s clock.
    pub at_ns: u64,
}

/// A request that was executed twice, as it may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Twice {
    /// The request's.
    pub id: String,
    /// What it asked for.
    pub request: &'static str,
    /// The instance that nobody has heard, and its order.
    pub first: (String, u64),
    /// The one whose reply the client has, and its order.
    pub second: (String, u64),
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// How many executions there were.
    pub executions: usize,
    /// How many replies each instance's log confirms.
    pub confirmed: BTreeMap<String, usize>,
    /// Requests that were executed twice, and may have been.
    pub twice: Vec<Twice>,
    /// Requests that were executed by two nodes, one after the other, and never answered: their
    /// clients have failed.
    pub unanswered: Vec<String>,
    /// What must not be.
    pub faults: Vec<String>,
}

/// A time in which a node serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reign {
    /// The node's name.
    pub node: String,
    /// Since when, on [`crate::clock::now_ns`]'s clock.
    pub from_ns: u64,
}

impl Reign {
    /// That of the `first` node that served, and those that reports tell of, in the order of time.
    pub fn of<'a>(first: &str, events: impl Iterator<Item = (&'a str, &'a Event)>) -> Vec<Reign> {
        let promoted = events.filter(|(_, event)| event.event == "promoted");
        let reign = |(node, event): (&str, &Event)| Reign {
            node: node.to_owned(),
            from_ns: event.boottime_ns.saturating_sub(TOLD_AFTER_NS),
        };
        let first = Reign { node: first.to_owned(), from_ns: 0 };
        [first].into_iter().chain(promoted.map(reign)).collect()
    }
}

/// Reads the logs of all instances.
///
/// # Errors
/// They cannot be read, or are not what an instance writes.
pub fn read_logs(dir: &Path) -> anyhow::Result<Vec<Execution>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !(name.starts_with("shop-") && name.ends_with(".log")) {
            continue;
        }
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for line in text.lines() {
            let odd = || format!("{} has the line {line:?}", path.display());
            all.push(parse(line).with_context(odd)?);
        }
    }
    Ok(all)
}

fn parse(line: &str) -> Option<Execution> {
    let words: Vec<&str> = line.split(' ').collect();
    let [id, _method, order, instance, number, at_ns] = words[..] else { return None };
    Some(Execution {
        id: id.to_owned(),
        instance: instance.to_owned(),
        number: number.parse().ok()?,
        order: order.parse().ok()?,
        at_ns: at_ns.parse().ok()?,
    })
}

impl Audit {
    /// Compares. `reigns`: of each share of the connections, in the order of time. Which share a
    /// request's was nobody has noted, so those of any may explain what became of it.
    pub fn new(notes: &[Notes], executions: &[Execution], reigns: &[Vec<Reign>]) -> Audit {
        let mut audit = Audit { executions: executions.len(), ..Audit::default() };
        let mut by_id: BTreeMap<&str, Vec<&Execution>> = BTreeMap::new();
        for execution in executions {
            by_id.entry(&execution.id).or_default().push(execution);
        }
        let receipts: BTreeMap<&str, &Receipt> =
            notes.iter().flat_map(|n| &n.receipts).map(|r| (r.id.as_str(), r)).collect();
        let sent: BTreeMap<&str, Kind> =
            notes.iter().flat_map(|n| &n.sent).map(|(id, kind)| (id.as_str(), *kind)).collect();
        for (id, receipt) in &receipts {
            let made = by_id.get(id).is_some_and(|all| all.iter().any(|e| e.made(receipt)));
            if made {
                *audit.confirmed.entry(receipt.instance.clone()).or_default() += 1;
            } else {
                audit.faults.push(format!(
                    "{id}: the client has order {} of {}, of which no log knows",
                    receipt.order, receipt.instance
                ));
            }
        }
        for (id, all) in &by_id {
            let Some(kind) = sent.get(id) else {
                audit.faults.push(format!("{id} was executed, and no client has asked for it"));
                continue;
            };
            if all.len() > 1 {
                let receipt = receipts.get(id).copied();
                let orders: Vec<_> = reigns.iter().filter_map(|of| in_turn(all, of)).collect();
                let last =
                    |order: &[&Execution]| receipt.is_some_and(|r| order[order.len() - 1].made(r));
                match (orders.iter().find(|order| last(order)).or(orders.first()), receipt) {
                    (Some(order), Some(_)) if last(order) => {
                        let (first, second) = (order[0].told(), order[order.len() - 1].told());
                        let (id, request) = ((*id).to_owned(), kind.name());
                        audit.twice.push(Twice { id, request, first, second });
                    }
                    (Some(_), None) => audit.unanswered.push(too_often(*kind, all, None)),
                    _ => audit.faults.push(too_often(*kind, all, receipt)),
                }
            }
        }
        audit
    }

    /// Replies that a log confirms.
    pub fn confirmed(&self) -> usize {
        self.confirmed.values().sum()
    }
}

impl Execution {
    /// The node on which it happened.
    fn node(&self) -> &str {
        self.instance.split('-').next().unwrap_or_default()
    }

    fn told(&self) -> (String, u64) {
        (self.instance.clone(), self.order)
    }

    /// Whether its reply is the one that the client has.
    fn made(&self, receipt: &Receipt) -> bool {
        (&self.instance, self.number, self.order)
            == (&receipt.instance, receipt.number, receipt.order)
    }
}

/// A request's executions in the order of the reigns in which they happened, if each was in
/// another one. A node that was only thought dead, and wakes, goes on with what its server has: what
/// it executes then belongs to its own time.
fn in_turn<'a>(all: &[&'a Execution], reigns: &[Reign]) -> Option<Vec<&'a Execution>> {
    let reign = |e: &Execution| {
        let own = |reign: &Reign| reign.node == e.node();
        let begun = |reign: &Reign| own(reign) && reign.from_ns <= e.at_ns;
        reigns.iter().rposition(begun).or_else(|| reigns.iter().position(own))
    };
    let mut order: Vec<(usize, &Execution)> =
        all.iter().map(|e| reign(e).map(|number| (number, *e))).collect::<Option<_>>()?;
    order.sort_by_key(|(number, _)| *number);
    let apart = order.windows(2).all(|pair| pair[0].0 < pair[1].0);
    apart.then(|| order.into_iter().map(|(_, e)| e).collect())
}

fn too_often(kind: Kind, all: &[&Execution], receipt: Option<&Receipt>) -> String {
    let list: Vec<_> = all.iter().map(|e| format!("order {} of {}", e.order, e.instance)).collect();
    let seen = receipt.map_or("no reply".to_owned(), |r| format!("order {}", r.order));
    format!(
        "{}, {}: executed {} times ({}); the client has {seen}",
        all[0].id,
        kind.name(),
        all.len(),
        list.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execution(id: &str, instance: &str, order: u64) -> Execution {
        let (id, instance) = (id.to_owned(), instance.to_owned());
        Execution { id, instance, number: order, order, at_ns: 0 }
    }

    fn receipt(id: &str, instance: &str, order: u64) -> Receipt {
        Receipt { id: id.to_owned(), instance: instance.to_owned(), number: order, order }
    }

    fn reign(node: &str, from_ns: u64) -> Reign {
        Reign { node: node.to_owned(), from_ns }
    }

    /// The audit of one POST with id `r`; node a has died, and b has taken over.
    fn audit(executions: &[Execution], receipts: Vec<Receipt>) -> Audit {
        audit_in(&[reign("a", 0), reign("b", 1)], executions, receipts)
    }

    fn audit_in(reigns: &[Reign], executions: &[Execution], receipts: Vec<Receipt>) -> Audit {
        let sent = vec![("r".to_owned(), Kind::Buy)];
        let notes = Notes { sent, receipts, ..Notes::default() };
        Audit::new(&[notes], executions, &[reigns.to_vec()])
    }

    #[test]
    fn of_two_shares_either_may_explain_it() {
        let notes = |order| Notes {
            sent: vec![("r".to_owned(), Kind::Buy)],
            receipts: vec![order],
            ..Notes::default()
        };
        // Node b has died, whose share a has carried on.
        let shares = [vec![reign("a", 0)], vec![reign("b", 0), reign("a", 10)]];
        let executions = [execution("r", "b-1", 1), execution("r", "a-1", 2)];
        let right = Audit::new(&[notes(receipt("r", "a-1", 2))], &executions, &shares);
        assert_eq!((right.twice.len(), right.faults.len()), (1, 0), "{right:?}");
        let old = Audit::new(&[notes(receipt("r", "b-1", 1))], &executions, &shares);
        assert_eq!((old.twice.len(), old.faults.len()), (0, 1), "{old:?}");
    }

    #[test]
    fn once_is_right_whether_answered_or_not() {
        let once = [execution("r", "a-1", 1)];
        let answered = audit(&once, vec![receipt("r", "a-1", 1)]);
        assert_eq!((answered.confirmed(), answered.faults.len()), (1, 0));
        let unanswered = audit(&once, vec![]);
        assert_eq!((unanswered.confirmed(), unanswered.faults.len()), (0, 0));
    }

    #[test]
    fn a_reply_that_no_log_knows_is_a_fault() {
        for (instance, order) in [("a-1", 2), ("b-1", 1)] {
            let audit = audit(&[execution("r", "a-1", 1)], vec![receipt("r", instance, order)]);
            assert!(audit.faults[0].contains("no log knows"), "{audit:?}");
        }
        assert_eq!(audit(&[], vec![receipt("r", "a-1", 1)]).faults.len(), 1);
    }

    #[test]
    fn twice_is_allowed_only_if_the_survivors_reply_was_seen() {
        let (dead, living) = (execution("r", "a-1", 1), execution("r", "b-1", 2));
        let both = [living.clone(), dead.clone()];
        let right = audit(&both, vec![receipt("r", "b-1", 2)]);
        let expected = Twice {
            id: "r".into(),
            request: "POST /buy",
            first: ("a-1".into(), 1),
            second: ("b-1".into(), 2),
        };
        assert_eq!((&right.twice[..], &right.faults[..]), (&[expected][..], &[][..]));
        let check = |executions: &[Execution], receipts| {
            let audit = audit(executions, receipts);
            assert!(audit.twice.is_empty() && audit.faults.len() == 1, "{audit:?}");
            assert!(audit.faults[0].contains("times"), "{audit:?}");
        };
        // The reply of the first was seen.
        check(&both, vec![receipt("r", "a-1", 1)]);
        // On one node, living or dead; and three times.
        let again = execution("r", "b-2", 3);
        check(&[living.clone(), again.clone()], vec![receipt("r", "b-2", 3)]);
        check(&[dead.clone(), execution("r", "a-1", 4)], vec![receipt("r", "a-1", 4)]);
        check(&[dead, living, again], vec![receipt("r", "b-1", 2)]);
        // None was seen: the client has noticed.
        let silent = audit(&both, vec![]);
        assert_eq!((silent.unanswered.len(), silent.faults.len()), (1, 0), "{silent:?}");
    }

    #[test]
    fn each_node_executes_once_while_it_serves() {
        let at = |instance, order, at_ns| Execution { at_ns, ..execution("r", instance, order) };
        let reigns = [reign("a", 0), reign("b", 10), reign("a", 20)];
        // b's request was in hand twice: a died, and then b did.
        let all = [at("a-1", 1, 5), at("b-1", 2, 15), at("a-2", 3, 25)];
        let right = audit_in(&reigns, &all, vec![receipt("r", "a-2", 3)]);
        assert_eq!((right.twice.len(), right.faults.len()), (1, 0), "{right:?}");
        let old = audit_in(&reigns, &all, vec![receipt("r", "b-1", 2)]);
        assert_eq!((old.twice.len(), old.faults.len()), (0, 1), "{old:?}");
        // a was thought dead, and went on with what it had when it woke.
        let woken = [at("b-1", 2, 12), at("a-1", 1, 14)];
        let right = audit_in(&reigns[..2], &woken, vec![receipt("r", "b-1", 2)]);
        assert_eq!((right.twice.len(), right.faults.len()), (1, 0), "{right:?}");
        let same = [at("b-1", 2, 12), at("b-1", 3, 14)];
        assert_eq!(audit_in(&reigns, &same, vec![receipt("r", "b-1", 3)]).faults.len(), 1);
        // A backup serves nobody.
        let both = [at("a-1", 1, 5), at("b-1", 2, 6)];
        let backup = audit_in(&reigns[..1], &both, vec![receipt("r", "b-1", 2)]);
        assert_eq!((backup.twice.len(), backup.faults.len()), (0, 1), "{backup:?}");
    }

    #[test]
    fn what_nobody_asked_for_is_a_fault() {
        let audit = audit(&[execution("x", "a-1", 1)], vec![]);
        assert!(audit.faults[0].contains("no client has asked"), "{audit:?}");
    }

    #[test]
    fn logs_are_read_and_other_files_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("shop-a-1.log", "r POST 77 a-1 3 1000\n");
        write("nginx-a.log", "something else\n");
        let expected =
            Execution { id: "r".into(), instance: "a-1".into(), number: 3, order: 77, at_ns: 1000 };
        assert_eq!(read_logs(dir.path()).unwrap(), [expected]);
        write("shop-b-1.log", "half a li");
        let error = format!("{:#}", read_logs(dir.path()).unwrap_err());
        assert!(error.contains("shop-b-1.log has the line \"half a li\""), "{error}");
    }
}

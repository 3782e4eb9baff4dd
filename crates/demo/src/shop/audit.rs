//! What the clients were told, joined with what the shop has done.
//!
//! A reply is right only if an instance has executed that request, as that order. A request may
//! have been executed twice for one reason: the node that died had executed it, and its reply was
//! not yet held by two nodes. Then nobody has seen that reply, and the client has the other one's.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use super::client::{Notes, Receipt};
use super::request::Kind;

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
    /// The instance that died, and its order.
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
    /// What must not be.
    pub faults: Vec<String>,
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
    /// Compares; `died` is the node that failed, if one did.
    pub fn new(notes: &[Notes], executions: &[Execution], died: Option<&str>) -> Audit {
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
                match twice(*kind, all, receipts.get(id).copied(), died) {
                    Ok(twice) => audit.twice.push(twice),
                    Err(fault) => audit.faults.push(fault),
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

    /// Whether its reply is the one that the client has.
    fn made(&self, receipt: &Receipt) -> bool {
        (&self.instance, self.number, self.order)
            == (&receipt.instance, receipt.number, receipt.order)
    }
}

/// Whether a request may have been executed so often.
fn twice(
    kind: Kind,
    all: &[&Execution],
    receipt: Option<&Receipt>,
    died: Option<&str>,
) -> Result<Twice, String> {
    let (on_dead, elsewhere): (Vec<&Execution>, Vec<&Execution>) =
        all.iter().copied().partition(|e| died.is_some_and(|node| node == e.node()));
    if let ([first], [second]) = (&on_dead[..], &elsewhere[..])
        && receipt.is_some_and(|receipt| second.made(receipt))
    {
        let told = |e: &Execution| (e.instance.clone(), e.order);
        let (first, second) = (told(first), told(second));
        return Ok(Twice { id: all[0].id.clone(), request: kind.name(), first, second });
    }
    let list: Vec<_> = all.iter().map(|e| format!("order {} of {}", e.order, e.instance)).collect();
    let seen = receipt.map_or("no reply".to_owned(), |r| format!("order {}", r.order));
    Err(format!(
        "{}, {}: executed {} times ({}); the client has {seen}",
        all[0].id,
        kind.name(),
        all.len(),
        list.join(", ")
    ))
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

    /// The audit of one POST with id `r`; node a has died.
    fn audit(executions: &[Execution], receipts: Vec<Receipt>) -> Audit {
        let sent = vec![("r".to_owned(), Kind::Buy)];
        let notes = Notes { sent, receipts, ..Notes::default() };
        Audit::new(&[notes], executions, Some("a"))
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
        // The reply of the first was seen, or none.
        check(&both, vec![receipt("r", "a-1", 1)]);
        check(&both, vec![]);
        // On one node, living or dead; and three times.
        let again = execution("r", "b-2", 3);
        check(&[living.clone(), again.clone()], vec![receipt("r", "b-2", 3)]);
        check(&[dead.clone(), execution("r", "a-1", 4)], vec![receipt("r", "a-1", 4)]);
        check(&[dead, living, again], vec![receipt("r", "b-1", 2)]);
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

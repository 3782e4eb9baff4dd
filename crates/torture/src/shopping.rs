//! The clients of a shop, whose replies cannot be made twice, and what its logs say of them.

use std::time::Duration;

use demo::clock::Bell;
use demo::download::longest_after;
use demo::pair::Pair;
use demo::shop::{Audit, Crowd, CrowdSpec, Notes, Reign, Trouble, dial_from, read_logs};

use crate::evidence::{ClientReport, Job, Shop};
use crate::plan::Workload;

/// How long a request may take while nothing fails, and nothing is lost.
const PATIENCE: Duration = Duration::from_secs(20);
/// Clients that come when all is over, and what each of them asks for.
const LATE_SHOPPERS: (usize, usize) = (3, 2);

/// Clients at work.
#[derive(Debug)]
pub(crate) struct Shopping {
    crowd: Crowd,
    bell: Bell,
    batch: usize,
    requests: u64,
}

impl Shopping {
    /// Starts a workload's clients; they wait so long for a byte.
    pub(crate) fn start(
        pair: &Pair,
        work: &Workload,
        batch: usize,
        patience: Duration,
    ) -> anyhow::Result<Shopping> {
        let bell = Bell::default();
        let seed = work.seed.wrapping_add(batch as u64 * (work.shoppers as u64 + 1));
        let crowd = crowd(pair, (work.shoppers, work.each), seed, patience, &bell)?;
        Ok(Shopping { crowd, bell, batch, requests: work.requests() as u64 })
    }

    /// Waits until so many thousandths of all replies have come; whether they have, with a client
    /// still at work.
    pub(crate) fn wait_for(&self, mille: u64) -> bool {
        let reached = || self.crowd.replies().iter().sum::<u64>() * 1000 >= self.requests * mille;
        self.bell.wait_until(PATIENCE, || reached() || self.ended());
        reached() && !self.ended()
    }

    /// Whether all have gone home.
    pub(crate) fn ended(&self) -> bool {
        self.crowd.at_work() == 0
    }

    /// Waits for the end of all. Gaps count from `since_ns` on.
    pub(crate) fn finish(self, since_ns: Option<u64>) -> (Vec<ClientReport>, Vec<Notes>) {
        let notes = self.crowd.finish();
        (notes.iter().map(|notes| report(notes, self.batch, since_ns)).collect(), notes)
    }
}

fn crowd(
    pair: &Pair,
    (clients, each): (usize, usize),
    seed: u64,
    patience: Duration,
    bell: &Bell,
) -> anyhow::Result<Crowd> {
    let dial = dial_from(pair.client()?, pair.at(), patience);
    Crowd::start(&CrowdSpec { clients, each, patience, seed, dial }, bell)
}

fn report(notes: &Notes, batch: usize, since_ns: Option<u64>) -> ClientReport {
    let gap = since_ns.and_then(|since| longest_after(&notes.stalls, since));
    let failed = |wrong: bool| {
        let of_it = notes.failures.iter().filter(|failure| is_wrong(failure.trouble) == wrong);
        let text =
            |f: &demo::shop::Failure| format!("{}: {}: {}", f.id, f.trouble.name(), f.detail);
        let texts: Vec<String> = of_it.map(text).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    };
    ClientReport {
        job: Job::Shopping,
        batch,
        bytes: 0,
        error: failed(false),
        wrong: failed(true),
        gap_ms: gap.map(|stall| (stall.to_ns - stall.from_ns) as f64 / 1e6),
    }
}

/// Whether bytes came that must not; else none came.
fn is_wrong(trouble: Trouble) -> bool {
    match trouble {
        Trouble::Refused | Trouble::Reset | Trouble::Cut | Trouble::Timeout => false,
        Trouble::Malformed
        | Trouble::Status
        | Trouble::Mixed
        | Trouble::Order
        | Trouble::Second
        | Trouble::Hash
        | Trouble::Upload => true,
    }
}

/// A few new clients; what was wrong. What they have to tell is added to `notes`.
pub(crate) fn try_out(
    pair: &Pair,
    work: &Workload,
    notes: &mut Vec<Notes>,
) -> anyhow::Result<Vec<String>> {
    let late = crowd(pair, LATE_SHOPPERS, !work.seed, PATIENCE, &Bell::default())?.finish();
    let reports = late.iter().map(|notes| report(notes, 0, None));
    let failures = reports.flat_map(|report| [report.error, report.wrong]).flatten().collect();
    notes.extend(late);
    Ok(failures)
}

/// Holds what all clients were told against the logs.
pub(crate) fn audit(pair: &Pair, notes: &[Notes], reigns: &[Vec<Reign>]) -> Shop {
    let mut shop = Shop {
        requests: notes.iter().map(|n| n.sent.len() as u64).sum(),
        replies: notes.iter().map(|n| n.receipts.len() as u64).sum(),
        ..Shop::default()
    };
    match read_logs(pair.lab.dir()) {
        Ok(executions) => {
            let audit = Audit::new(notes, &executions, reigns);
            shop.executions = audit.executions as u64;
            (shop.twice, shop.unanswered, shop.faults) =
                (audit.twice, audit.unanswered, audit.faults);
        }
        Err(e) => shop.faults.push(format!("no audit: {e:#}")),
    }
    shop
}

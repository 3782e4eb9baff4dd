//! The clients of a run: real programs, and connections that sit idle; or a shop's.

use std::time::Duration;

use demo::clock::Bell;
use demo::download::Download;
use demo::find;
use demo::idle::Idle;
use demo::pair::Pair;
use demo::shop::Notes;
use demo::site::Site;
use sha2::{Digest, Sha256};

use crate::evidence::{ClientReport, Job};
use crate::plan::{Serving, Workload};
use crate::shopping::{self, Shopping};

/// How long a request may take while nothing fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Clients at work.
#[derive(Debug)]
pub(crate) enum Load {
    /// Programs.
    Programs(Programs),
    /// A shop's.
    Shopping(Shopping),
}

impl Load {
    /// Starts a workload's clients. They are waited for so long from the last fault on.
    pub(crate) fn start(
        pair: &Pair,
        work: &Workload,
        batch: usize,
        patience: Duration,
    ) -> anyhow::Result<Load> {
        Ok(match work.serving {
            Serving::Shop => Load::Shopping(Shopping::start(pair, work, batch, patience)?),
            _ => Load::Programs(Programs::start(pair, work, batch)?),
        })
    }

    /// Waits until so many thousandths of all bytes, or replies, have arrived; whether they have,
    /// with a client still at work.
    pub(crate) fn wait_for(&self, mille: u64) -> bool {
        match self {
            Load::Programs(programs) => programs.wait_for(mille),
            Load::Shopping(shopping) => shopping.wait_for(mille),
        }
    }

    /// Whether all have ended.
    pub(crate) fn ended(&self) -> bool {
        match self {
            Load::Programs(programs) => programs.ended(),
            Load::Shopping(shopping) => shopping.ended(),
        }
    }

    /// Waits for the end of all. Gaps count from `since_ns` on. What a shop's clients have to tell
    /// is added to `notes`.
    pub(crate) fn finish(
        self,
        pair: &Pair,
        patience: Duration,
        since_ns: Option<u64>,
        notes: &mut Vec<Notes>,
    ) -> anyhow::Result<Vec<ClientReport>> {
        match self {
            Load::Programs(programs) => programs.finish(pair, patience, since_ns),
            Load::Shopping(shopping) => {
                let (reports, told) = shopping.finish(since_ns);
                notes.extend(told);
                Ok(reports)
            }
        }
    }
}

/// Running client programs.
#[derive(Debug)]
pub(crate) struct Programs {
    clients: Vec<(Job, Download)>,
    bell: Bell,
    batch: usize,
    size: u64,
}

impl Programs {
    fn start(pair: &Pair, work: &Workload, batch: usize) -> anyhow::Result<Programs> {
        let (host, at, bell) = (pair.client()?, pair.at(), Bell::default());
        let mut clients = Vec::new();
        for client in work.clients() {
            let download = Download::start(host, client, at, Site::LARGE, &bell)?;
            clients.push((Job::Download, download));
        }
        for _ in 0..work.uploads {
            clients.push((Job::Upload, Download::run(host, &upload(pair)?, &bell)?));
        }
        Ok(Programs { clients, bell, batch, size: pair.site.size })
    }

    /// Uploads are not counted.
    fn wait_for(&self, mille: u64) -> bool {
        let downloads = || self.clients.iter().filter(|(job, _)| *job == Job::Download);
        let goal = self.size * downloads().count() as u64 * mille / 1000;
        let reached = || downloads().map(|(_, d)| d.bytes()).sum::<u64>() >= goal;
        self.bell.wait_until(PATIENCE, || reached() || self.ended());
        reached() && !self.ended()
    }

    fn ended(&self) -> bool {
        self.clients.iter().all(|(_, client)| client.ended())
    }

    /// Ends those that do not get there.
    fn finish(
        self,
        pair: &Pair,
        patience: Duration,
        since_ns: Option<u64>,
    ) -> anyhow::Result<Vec<ClientReport>> {
        let late = !self.bell.wait_until(patience, || self.ended());
        if late {
            // Nothing to signal if the last one has ended just now.
            let _ = pair.client()?.signal(libc::SIGKILL, "a client", |process| {
                ["curl", "wget"].contains(&process.name.as_str())
            });
        }
        let hash: String = pair.site.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
        let answer: [u8; 32] = Sha256::digest(&hash).into();
        let report = |(job, client): (Job, Download)| -> anyhow::Result<ClientReport> {
            let outcome = client.finish()?;
            let (bytes, sha256) = if job == Job::Download {
                (pair.site.size, pair.site.sha256)
            } else {
                (hash.len() as u64, answer)
            };
            let identical = (outcome.bytes, outcome.sha256) == (bytes, sha256);
            let gap = since_ns.and_then(|since| outcome.longest_stall_after(since));
            let error = outcome.error.as_ref().map(|error| {
                let killed =
                    if late { format!(" (not ended after {patience:?})") } else { String::new() };
                format!("after {} of {bytes} bytes: {error}{killed}", outcome.bytes)
            });
            Ok(ClientReport {
                job,
                batch: self.batch,
                bytes: outcome.bytes,
                wrong: (error.is_none() && !identical || outcome.bytes > bytes)
                    .then(|| "it ended well with wrong bytes".to_owned()),
                error,
                gap_ms: gap
                    .filter(|_| job == Job::Download)
                    .map(|stall| (stall.to_ns - stall.from_ns) as f64 / 1e6),
            })
        };
        self.clients.into_iter().map(report).collect()
    }
}

/// Opens a workload's idle connections.
pub(crate) fn open_idle(pair: &Pair, work: &Workload) -> anyhow::Result<Idle> {
    let history = match work.serving {
        Serving::Stock(server) if server.keeps_alive() => Some(work.history),
        // Python's server ends the connection after one reply.
        _ => None,
    };
    Idle::open(pair.client()?, pair.at(), &pair.site, work.idle, history, PATIENCE)
}

/// A few new connections, as a client who knows nothing of the past: what is wrong.
pub(crate) fn try_out(
    pair: &Pair,
    work: &Workload,
    notes: &mut Vec<Notes>,
) -> anyhow::Result<Vec<String>> {
    if work.serving == Serving::Shop {
        return shopping::try_out(pair, work, notes);
    }
    let idle = Idle::open(pair.client()?, pair.at(), &pair.site, 3, None, PATIENCE)?;
    Ok(idle.finish(&pair.site, PATIENCE).failures)
}

/// A program that sends the large file and prints the server's answer, and does not try again.
fn upload(pair: &Pair) -> anyhow::Result<Vec<String>> {
    let curl = find::program("curl", "curl")?.display().to_string();
    let file = pair.site.root().join(&Site::LARGE[1..]).display().to_string();
    let url = format!("http://{}/", pair.at());
    let words =
        [&curl, "-q", "-sS", "-g", "--fail", "--noproxy", "*", "-H", "Expect:", "-T", &file, &url];
    Ok(words.map(str::to_owned).to_vec())
}

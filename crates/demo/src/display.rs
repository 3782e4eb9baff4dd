//! Progress for people: bars on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// More bars than this do not fit a screen: then there is one for all.
const MOST_BARS: usize = 32;
/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// What is counted for each client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes of downloads.
    Bytes,
    /// Replies of the shop.
    Replies,
}

impl Unit {
    fn template(self) -> &'static str {
        match self {
            Unit::Bytes => "{prefix:>10} {bar:40.green/dim} {bytes:>10} {binary_bytes_per_sec:>12}",
            Unit::Replies => "{prefix:>10} {bar:40.green/dim} {human_pos:>7} replies {per_sec:>12}",
        }
    }

    /// What a client is.
    fn client(self) -> &'static str {
        match self {
            Unit::Bytes => "curl",
            Unit::Replies => "client",
        }
    }

    /// A line where there is no terminal.
    fn line(self, total: u64, running: usize) -> String {
        match self {
            Unit::Bytes => format!("{} MB, {running} downloads running", total / 1_000_000),
            Unit::Replies => format!("{total} replies, {running} clients at work"),
        }
    }
}

/// The display of all clients.
pub(crate) struct Display {
    unit: Unit,
    each: u64,
    bars: Option<(MultiProgress, Vec<ProgressBar>)>,
    next_line: Instant,
}

impl Display {
    /// For `clients`, who want so much each.
    pub(crate) fn new(unit: Unit, clients: usize, each: u64) -> Display {
        let bars = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(15));
            let style = ProgressStyle::with_template(unit.template())
                .expect("the template is right")
                .progress_chars("━╸─");
            let bar = |name: String, length| {
                let bar = all.add(ProgressBar::new(length)).with_style(style.clone());
                bar.with_prefix(name)
            };
            let name = unit.client();
            let bars = if clients <= MOST_BARS {
                (1..=clients).map(|n| bar(format!("{name} {n}"), each)).collect()
            } else {
                vec![bar(format!("{clients} {name}s"), each.saturating_mul(clients as u64))]
            };
            (all, bars)
        });
        Display { unit, each, bars, next_line: Instant::now() }
    }

    /// Prints a line that stays.
    pub(crate) fn say(&self, line: &str) {
        match &self.bars {
            Some((all, _)) => {
                let _ = all.println(line); // a terminal that went away misses it
            }
            None => eprintln!("{line}"),
        }
    }

    /// Shows how much each client has, of whom so many are running.
    pub(crate) fn update(&mut self, have: &[u64], running: usize) {
        let total: u64 = have.iter().sum();
        match &self.bars {
            Some((_, bars)) if bars.len() == have.len() => {
                for (bar, &have) in bars.iter().zip(have) {
                    bar.set_position(have);
                }
            }
            Some((_, bars)) => bars.iter().for_each(|bar| bar.set_position(total)),
            None if Instant::now() >= self.next_line => {
                self.next_line = Instant::now() + LINE_EVERY;
                let all = self.each.saturating_mul(have.len() as u64).max(1);
                let percent = u128::from(total) * 100 / u128::from(all);
                eprintln!("{percent:>4} %  {}", self.unit.line(total, running));
            }
            None => {}
        }
    }

    /// Leaves the bars as they are.
    pub(crate) fn finish(&self) {
        for bar in self.bars.iter().flat_map(|(_, bars)| bars) {
            bar.abandon();
        }
    }
}

//! Progress for people: bars on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::download::Download;

/// More bars than this do not fit a screen: then there is one for all.
const MOST_BARS: usize = 32;
/// How often a line is printed where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The display of all downloads.
pub(crate) struct Display {
    size: u64,
    bars: Option<(MultiProgress, Vec<ProgressBar>)>,
    next_line: Instant,
}

impl Display {
    /// For `clients` downloads of `size` bytes each.
    pub(crate) fn new(clients: usize, size: u64) -> Display {
        let bars = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(15));
            let line = "{prefix:>10} {bar:40.green/dim} {bytes:>10} {binary_bytes_per_sec:>12}";
            let style = ProgressStyle::with_template(line)
                .expect("the template is right")
                .progress_chars("━╸─");
            let bar = |name: String, length| {
                let bar = all.add(ProgressBar::new(length)).with_style(style.clone());
                bar.with_prefix(name)
            };
            let bars = if clients <= MOST_BARS {
                (1..=clients).map(|n| bar(format!("curl {n}"), size)).collect()
            } else {
                vec![bar(format!("{clients} curls"), size.saturating_mul(clients as u64))]
            };
            (all, bars)
        });
        Display { size, bars, next_line: Instant::now() }
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

    /// Shows where the downloads are.
    pub(crate) fn update(&mut self, downloads: &[Download]) {
        let total: u64 = downloads.iter().map(Download::bytes).sum();
        match &self.bars {
            Some((_, bars)) if bars.len() == downloads.len() => {
                for (bar, download) in bars.iter().zip(downloads) {
                    bar.set_position(download.bytes());
                }
            }
            Some((_, bars)) => bars.iter().for_each(|bar| bar.set_position(total)),
            None if Instant::now() >= self.next_line => {
                self.next_line = Instant::now() + LINE_EVERY;
                let running = downloads.iter().filter(|d| !d.ended()).count();
                let all = self.size.saturating_mul(downloads.len() as u64).max(1);
                let percent = u128::from(total) * 100 / u128::from(all);
                let mb = total / 1_000_000;
                eprintln!("{percent:>4} %  {mb} MB, {running} downloads running");
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

//! Log lines on standard error, fit for whoever reads them.
//!
//! journald adds the time and wants the level as a `<n>` prefix (sd-daemon(3)); a terminal wants
//! the time and colours; a file or pipe wants the time and nothing else.

use std::fmt;
use std::io::IsTerminal;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Installs the process's log. `verbose` is how often `--verbose` was given; `RUST_LOG`, when it
/// is set, decides instead. A second call changes nothing.
pub fn init(verbose: u8) {
    let default = match verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that a log is installed already: a test's, which may stay.
    let _ = if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.event_format(Journald).try_init()
    } else {
        log.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init()
    };
}

struct Journald;

impl<S, N> FormatEvent<S, N> for Journald
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        Format::default()
            .without_time()
            .with_level(false)
            .with_target(false)
            .with_ansi(false)
            .format_event(context, writer, event)
    }
}

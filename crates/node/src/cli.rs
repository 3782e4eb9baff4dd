//! The command line: what can be asked, and which module answers.
//!
//! Exit codes are part of the interface: 0 done; 1 it failed (`check`: something must be mended,
//! `demo`: a client noticed); 2 the command line is wrong; 3 the configuration or the key is
//! wrong, so that a service manager need not try again. `passthrough` ends as its command does, or,
//! as in a shell, with 126 or 127.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use control::{KeyError, Psk, Rng};

use crate::config::{Config, ConfigError, DEFAULT_PATH};
use crate::{check, daemon, lab, logging, operator};

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  it failed; `check`: something must be mended; `demo`: a client noticed
  2  the command line is wrong
  3  the configuration or the key is wrong: trying again will not help
`passthrough` ends as its command does; 126: it may not be executed; 127: there is none";

/// TCP connections that outlive the server host behind them.
#[derive(Debug, Parser)]
#[command(name = "steadfast", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// Log more; twice: everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run this host's node daemon
    Node(ConfigArg),
    /// Check that this host can run a node, and say how to mend what is missing
    Check(CheckArgs),
    /// Make the key that both nodes share
    Keygen(KeygenArgs),
    /// Show what the running node does: roles, links, services, flows
    Status(StatusArgs),
    /// Show what happened: failovers, adopted flows, refused peers
    Events(EventsArgs),
    /// Hand this node's connections and addresses to the other node, without a failure
    Switchover(ConfigArg),
    /// Use a pair of nodes in namespaces, kill one of them, check every byte that clients get
    Demo(DemoArgs),
    /// Hosts in network namespaces, running the real daemon, to try things out
    Lab(::lab::cli::LabArgs),
    /// Run a program under the in-process runtime, which makes its system calls as they are
    Passthrough(PassthroughArgs),
    /// Run an unmodified program, and record what it does in a folder
    Record(RecordArgs),
    /// Have a recorded program do again what it did, and compare
    Replay(ReplayArgs),
    /// Print the records of a recording
    Trace(TraceArgs),
}

#[derive(Debug, Args)]
pub struct ConfigArg {
    /// The node's configuration
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub config: PathBuf,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Check this configuration too: interfaces, addresses, key, services
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one JSON object instead of lines
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct KeygenArgs {
    /// Where to write the key; an existing file is never overwritten
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub config: ConfigArg,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    pub config: ConfigArg,
    /// Go on printing events as they happen
    #[arg(short, long)]
    pub follow: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// How the service is protected
    #[arg(long, default_value = "track")]
    pub scheme: Scheme,
    /// How many clients there are at once [default: track 20, message 64]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: Option<u32>,
    /// track: how many idle keep-alive connections are open beside the downloads [default: 100]
    #[arg(long)]
    pub idle: Option<u32>,
    /// track: how many bytes each client downloads [default: 100000000]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub size: Option<u64>,
    /// track: the server to protect [default: nginx]
    #[arg(long)]
    pub server: Option<Server>,
    /// message: how many requests the clients make in all [default: 12000]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: Option<u32>,
    /// How the primary dies
    #[arg(long, value_name = "HOW", default_value = "host")]
    pub kill: Kill,
    /// The signal of `--kill process`, by name or number
    #[arg(long, default_value = "KILL", value_parser = ::lab::cli::signal_number)]
    pub signal: i32,
    /// Both nodes serve, each one half of the connections; one of them dies
    #[arg(long)]
    pub dual: bool,
    /// Use IPv6 addresses
    #[arg(long)]
    pub ipv6: bool,
    /// Rate of the service link, Mbit/s; 0: as fast as this machine goes
    #[arg(long, value_name = "MBIT", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub rate: u64,
    /// Silence after which the backup suspects the primary, ms
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(20..=10_000))]
    pub detection: u32,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Keep captures, logs and configurations even if nobody noticed
    #[arg(long)]
    pub keep: bool,
}

#[derive(Debug, Args)]
pub struct PassthroughArgs {
    /// The program, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct RecordArgs {
    /// A new folder, for the recording
    #[arg(short, long, value_name = "FOLDER")]
    pub output: PathBuf,
    /// The program, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The folder of the recording
    pub folder: PathBuf,
    /// Stop there (SIGSTOP), behind so many records: for a debugger
    #[arg(long, value_name = "RECORDS")]
    pub stop_at: Option<u64>,
    /// Let the program go on for real where the recording ends
    #[arg(long)]
    pub go_live: bool,
}

impl ReplayArgs {
    /// Whether it is watched to its end: nobody looks at the program, nor goes on with it.
    fn is_whole(&self) -> bool {
        self.stop_at.is_none() && !self.go_live
    }
}

#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The folder of the recording
    pub folder: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scheme {
    /// Downloads of a file, which the other node's server can send again
    Track,
    /// Orders in a shop, none of whose replies can be made twice
    Message,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kill {
    /// The whole host, at one instant: no packet leaves it afterwards
    Host,
    /// The server's processes
    Process,
    /// The node daemon
    Daemon,
    /// Everything on the host stops for five seconds, then resumes
    Hang,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Server {
    Nginx,
    Apache,
    Python,
    Busybox,
}

/// Parses the process's arguments, does what they say, and tells how it went.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    logging::init(cli.verbose);
    run(cli.command).unwrap_or_else(|error| {
        eprintln!("steadfast: {error:#}");
        ExitCode::from(exit_code(&error))
    })
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Node(arg) => daemon::run(Config::load(&arg.config)?)?,
        Command::Check(args) => return preflight(&args),
        Command::Keygen(args) => keygen(&args)?,
        Command::Status(args) => operator::status(&state_dir(&args.config)?, &args)?,
        Command::Events(args) => operator::events(&state_dir(&args.config)?, &args)?,
        Command::Switchover(arg) => operator::switchover(&state_dir(&arg)?)?,
        Command::Demo(args) => return lab::demo(&args),
        Command::Lab(args) => return lab::run(args),
        Command::Passthrough(args) => match launch::passthrough(&args.command)? {},
        Command::Record(args) => match launch::record(&args.output, &args.command)? {},
        Command::Replay(args) if args.is_whole() => return Ok(launch::replay(&args.folder)?.into()),
        Command::Replay(args) => {
            match launch::become_replay(&args.folder, args.stop_at, args.go_live)? {}
        }
        Command::Trace(args) => launch::trace(&args.folder, &mut std::io::stdout().lock())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let key = error.downcast_ref::<KeyError>();
    if error.is::<launch::NotFound>() {
        return launch::NOT_FOUND;
    }
    let wrong_key = key.is_some_and(|error| !matches!(error, KeyError::Unwritable { .. }));
    if wrong_key || error.is::<ConfigError>() { 3 } else { 1 }
}

fn state_dir(arg: &ConfigArg) -> anyhow::Result<PathBuf> {
    Ok(Config::load(&arg.config)?.node.state_dir)
}

fn preflight(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let config = args.config.as_deref().map(Config::load).transpose()?;
    let report = check::run(config.as_ref());
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        println!("{report}");
    }
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn keygen(args: &KeygenArgs) -> anyhow::Result<()> {
    Psk::generate(&args.file, &Rng::system())?;
    println!("{}: a new key; copy it to the other node, readable to its daemon only", {
        args.file.display()
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_configuration_has_an_exit_code_of_its_own() {
        let error = Config::load(std::path::Path::new("/nonexistent/file")).unwrap_err();
        let error = anyhow::Error::from(error);
        assert_eq!(exit_code(&error), 3);
        assert!(error.to_string().contains("/nonexistent/file"));
        assert_eq!(exit_code(&anyhow::anyhow!("anything else")), 1);
    }
}

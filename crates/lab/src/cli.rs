//! The `lab` command: labs from a shell.
//!
//! `up` leaves a keeper running in the background and returns when the lab is usable. The
//! keeper is the same program with the same arguments and one hidden flag more, in a
//! session of its own; what it has to say until the lab is up (ready, or why not) goes
//! through its standard output, and from then on into `<dir>/keeper.log`. The other
//! commands find it by its directory.

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    sync::atomic::{AtomicI32, Ordering::SeqCst},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::{
    CaptureOptions, Chance, Child, Cut, Faults, Flip, Kill, Lab, Link, Node, NodeSpec, Rate, Slow,
    Way, Where,
    control::{Answer, Remote, Request, Server, Status, Stopped},
};

/// How long node daemons may take to get ready.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// What the lab must know of the product that it runs.
pub trait Product {
    /// The daemons to start for `up --config`: reads the configuration and adapts it to
    /// the lab's hosts and interfaces.
    ///
    /// # Errors
    /// The configuration cannot be read or does not fit a lab.
    fn plan(&self, up: &Up, lab: &Lab) -> anyhow::Result<Vec<NodeSpec>>;

    /// Whether a daemon is ready for service.
    fn is_ready(&self, lab: &Lab, node: &Node) -> bool;
}

/// `lab` and its subcommands.
#[derive(Debug, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

/// What to do with a lab.
#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Bring a lab up: hosts client, a and b on one switch, and a cluster link between a and b
    Up(Up),
    /// Run a command inside a host
    Exec(Exec),
    /// Kill a host, or something in it
    Kill(KillArgs),
    /// Boot a host that was killed, and start its node daemon again
    Boot(OnHost),
    /// Let a host that hangs go on
    Resume(OnHost),
    /// Cut a link: frames are lost without a sign
    Cut(CutArgs),
    /// Heal a link: cuts and faults
    Heal(OnLink),
    /// Make a link bad: frames are lost, doubled, delayed, …
    Fault(FaultArgs),
    /// Flip one bit in a process
    Flip(FlipArgs),
    /// Give a host less CPU time or memory
    Slow(SlowArgs),
    /// Show hosts and links
    Status(StatusArgs),
    /// Take a lab down
    Down(Which),
}

/// Which lab.
#[derive(Debug, Args)]
struct Which {
    /// The lab; needed only if several are running
    #[arg(long)]
    name: Option<String>,
}

/// `lab up`.
#[derive(Clone, Debug, Args)]
pub struct Up {
    /// Services to run, from a configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of the lab [default: the first free of lab1, lab2, …]
    #[arg(long)]
    pub name: Option<String>,
    /// Rate of every service cable, Mbit/s
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rate: Option<u64>,
    /// Rate of every cluster cable, Mbit/s
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub cluster_rate: Option<u64>,
    /// Give the services IPv6 addresses
    #[arg(long)]
    pub ipv6: bool,
    /// Capture at this point of the switch (svc, clu, a.svc, …) into the lab's directory
    #[arg(long, value_name = "POINT")]
    pub capture: Vec<String>,
    /// Copy captures and logs here when the lab goes down
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Stay in the foreground; Ctrl-C takes the lab down
    #[arg(long)]
    pub foreground: bool,
    #[arg(long, hide = true)]
    keeper: bool,
}

#[derive(Debug, Args)]
struct Exec {
    #[command(flatten)]
    which: Which,
    /// The host: client, a, b
    host: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct KillArgs {
    #[command(flatten)]
    which: Which,
    /// The host: a, b
    host: String,
    /// What dies
    #[arg(long, value_enum, default_value_t = How::Host)]
    how: How,
    /// process: the signal, by name or number
    #[arg(long, default_value = "KILL", value_parser = signal_number)]
    signal: i32,
    /// process: only those whose name or command line contains this [default: all but the
    /// node daemon]
    #[arg(long, value_name = "TEXT")]
    matching: Option<String>,
    /// hang: for so many seconds
    #[arg(long = "for", value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    duration: Duration,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum How {
    /// The whole host at one instant: its links and all its processes
    Host,
    /// The server processes
    Process,
    /// The node daemon
    Daemon,
    /// Every process is stopped for a while; the host's kernel goes on
    Hang,
}

#[derive(Debug, Args)]
struct OnHost {
    #[command(flatten)]
    which: Which,
    /// The host: client, a, b
    host: String,
}

#[derive(Debug, Args)]
struct OnLink {
    #[command(flatten)]
    which: Which,
    /// a.svc, b.clu, …; service or cluster for all of that link; a host for all of its own
    link: String,
}

#[derive(Debug, Args)]
struct CutArgs {
    #[command(flatten)]
    on: OnLink,
    /// Take the carrier away as well, so that the host notices
    #[arg(long)]
    carrier: bool,
    /// Cut one way only
    #[arg(long, value_enum)]
    only: Option<Only>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Only {
    /// What the host sends
    FromHost,
    /// What the host is sent
    ToHost,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["loss", "dup", "reorder", "corrupt", "delay", "jitter", "clear"]))]
struct FaultArgs {
    #[command(flatten)]
    on: OnLink,
    /// Which way, as the host at the cable's end sees it
    #[arg(long, value_enum, default_value_t = Ways::Both)]
    way: Ways,
    /// A frame is lost: a probability, such as 0.1 or 10%
    #[arg(long, value_name = "P", default_value = "0")]
    loss: Chance,
    /// A frame arrives twice
    #[arg(long, value_name = "P", default_value = "0")]
    dup: Chance,
    /// A frame is overtaken by the next
    #[arg(long, value_name = "P", default_value = "0")]
    reorder: Chance,
    /// A bit of a frame is flipped, so that a checksum catches it
    #[arg(long, value_name = "P", default_value = "0")]
    corrupt: Chance,
    /// A frame takes so much longer
    #[arg(long, value_name = "MS", default_value = "0", value_parser = milliseconds)]
    delay: Duration,
    /// The delay varies by so much up and down
    #[arg(long, value_name = "MS", default_value = "0", value_parser = milliseconds)]
    jitter: Duration,
    /// The same seed brings the same luck
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// End the link's faults
    #[arg(long, conflicts_with_all = ["loss", "dup", "reorder", "corrupt", "delay", "jitter", "seed"])]
    clear: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Ways {
    /// What the host sends
    From,
    /// What the host is sent
    To,
    /// Both
    Both,
}

#[derive(Debug, Args)]
struct FlipArgs {
    #[command(flatten)]
    which: Which,
    /// The host: client, a, b
    host: String,
    /// A process whose name or command line contains this
    #[arg(long, value_name = "NAME")]
    process: String,
    /// Where the bit is
    #[arg(long = "where", value_enum)]
    place: Where,
    /// Chooses process, thread and bit
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true)
    .args(["cpu", "memory", "clear"]))]
struct SlowArgs {
    #[command(flatten)]
    which: Which,
    /// The host: client, a, b
    host: String,
    /// CPU time for the whole host, in percent of one CPU
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    cpu: Option<u32>,
    /// Memory for the whole host, MiB
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    memory: Option<u64>,
    /// Lift both limits
    #[arg(long, conflicts_with_all = ["cpu", "memory"])]
    clear: bool,
}

#[derive(Debug, Args)]
struct StatusArgs {
    #[command(flatten)]
    which: Which,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Runs a `lab` command. `exec` returns the command's own exit status (128 + signal if a
/// signal ended it).
///
/// # Errors
/// Whatever kept it from being done, in a sentence.
pub fn run(args: LabArgs, product: &dyn Product) -> anyhow::Result<ExitCode> {
    crate::preflight()?;
    let find = |which: &Which| Remote::find(which.name.as_deref());
    let tell = |which: &Which, request: Request| find(which)?.ask(&request);
    match args.command {
        LabCommand::Up(up) if up.keeper || up.foreground => keep(&up, product)?,
        LabCommand::Up(_) => launch()?,
        LabCommand::Exec(exec) => return execute(&find(&exec.which)?, &exec),
        LabCommand::Kill(kill) => {
            let how = match kill.how {
                How::Host => Kill::Host,
                How::Process => Kill::Process { signal: kill.signal, matching: kill.matching },
                How::Daemon => Kill::Daemon,
                How::Hang => Kill::Hang(kill.duration),
            };
            let answer = tell(&kill.which, Request::Kill(kill.host.clone(), how.clone()))?;
            match answer {
                Answer::Killed { pids, .. } if !pids.is_empty() => {
                    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                    println!("{}: killed: {how}, pids {pids}", kill.host);
                }
                _ => println!("{}: killed: {how}", kill.host),
            }
        }
        LabCommand::Boot(on) => {
            tell(&on.which, Request::Boot(on.host.clone()))?;
            println!("{}: up", on.host);
        }
        LabCommand::Resume(on) => {
            tell(&on.which, Request::Resume(on.host.clone()))?;
            println!("{}: goes on", on.host);
        }
        LabCommand::Cut(CutArgs { on, carrier, only }) => {
            let ways = match only {
                None => Way::BOTH.to_vec(),
                Some(Only::FromHost) => vec![Way::FromHost],
                Some(Only::ToHost) => vec![Way::ToHost],
            };
            tell(&on.which, Request::Cut(on.link.clone(), Cut { ways, carrier }))?;
            println!("{}: cut", on.link);
        }
        LabCommand::Heal(on) => {
            tell(&on.which, Request::Heal(on.link.clone()))?;
            println!("{}: healed", on.link);
        }
        LabCommand::Fault(args) => {
            let ways = match args.way {
                Ways::From => vec![Way::FromHost],
                Ways::To => vec![Way::ToHost],
                Ways::Both => Way::BOTH.to_vec(),
            };
            let faults = Faults {
                loss: args.loss,
                duplicate: args.dup,
                reorder: args.reorder,
                corrupt: args.corrupt,
                delay: args.delay,
                jitter: args.jitter,
                seed: args.seed,
            };
            tell(&args.on.which, Request::Fault(args.on.link.clone(), ways, faults))?;
            println!("{}: faults: {faults}", args.on.link);
        }
        LabCommand::Flip(FlipArgs { which, host, process, place, seed }) => {
            let request = Request::Flip(host.clone(), Flip { process, place, seed });
            match tell(&which, request)? {
                Answer::Flipped(flipped) => println!("{host}: {flipped}"),
                other => bail!("the keeper gave an odd answer: {other:?}"),
            }
        }
        LabCommand::Slow(args) => {
            let slow = Slow { cpu_percent: args.cpu, memory_mib: args.memory };
            tell(&args.which, Request::Slow(args.host.clone(), slow))?;
            println!("{}: {slow}", args.host);
        }
        LabCommand::Status(args) => {
            let status = find(&args.which)?.status()?;
            if args.json {
                println!("{}", serde_json::to_string_pretty(&status)?);
            } else {
                print!("{}", table(&status));
            }
        }
        LabCommand::Down(which) => {
            let lab = find(&which)?;
            lab.ask(&Request::Down)?;
            println!("lab {} is down", lab.name());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the keeper in the background and waits until it says that the lab is up.
fn launch() -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--keeper");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // SAFETY: setsid is async-signal-safe.
    unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?)) };
    let mut keeper = command.spawn().context("cannot start the lab's keeper")?;
    let stdout = keeper.stdout.take().expect("it was piped");
    let mut said = String::new();
    for line in BufReader::new(stdout).lines() {
        said += &line.context("cannot hear the lab's keeper")?;
        said.push('\n');
    }
    // It closes its standard output when the lab is up, and has said so, or when it ends.
    if said.is_empty() {
        let status = keeper.wait().context("cannot wait for the lab's keeper")?;
        bail!("the lab did not come up: its keeper ended ({status})");
    }
    print!("{said}");
    Ok(())
}

/// The keeper's life.
fn keep(up: &Up, product: &dyn Product) -> anyhow::Result<()> {
    let stop = stop_on_signals()?;
    let mut builder = Lab::builder();
    if let Some(name) = &up.name {
        builder = builder.name(name);
    }
    for (link, mbit) in [(Link::Service, up.rate), (Link::Cluster, up.cluster_rate)] {
        if let Some(mbit) = mbit {
            builder = builder.rate(link, Rate::mbit(mbit));
        }
    }
    if let Some(keep) = &up.keep {
        builder = builder.artifacts(std::path::absolute(keep)?);
    }
    if std::env::var_os("STEADFAST_BIN").is_none() {
        builder = builder.steadfast(std::env::current_exe()?);
    }
    let lab = builder.up()?;
    if up.keep.is_some() {
        lab.keep_files();
    }
    let captures = up.capture.iter().map(|point| lab.capture(point, CaptureOptions::default()));
    let captures = captures.collect::<crate::Result<Vec<_>>>()?;
    if up.config.is_some() {
        let plan = product.plan(up, &lab)?;
        let nodes = plan.iter().map(|spec| lab.start(spec)).collect::<crate::Result<Vec<_>>>()?;
        for node in nodes {
            node.wait_ready(READY_WITHIN, || product.is_ready(&lab, &node)).map_err(|e| {
                let log = fs::read_to_string(node.log()).unwrap_or_default();
                anyhow::Error::from(e).context(format!("its last words:\n{}", tail(&log, 20)))
            })?;
        }
    }
    let server = Server::new(&lab)?;
    println!("lab {} is up: {}", lab.name(), lab.dir().display());
    for host in lab.hosts() {
        println!("  {:8} {}  {}", host.name(), host.ipv4(Link::Service), host.ipv6(Link::Service));
    }
    io::stdout().flush()?;
    if up.keeper {
        let log = fs::File::create(lab.dir().join("keeper.log"))?;
        nix::unistd::dup2_stdout(&log)?;
        nix::unistd::dup2_stderr(&log)?;
    }
    let stopped = server.serve(&lab, &stop)?;
    for capture in captures {
        capture.stop()?;
    }
    drop(lab);
    if let Stopped::Down(client) = stopped {
        client.done();
    }
    Ok(())
}

/// The last `n` lines.
fn tail(text: &str, n: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}

/// A descriptor that becomes readable when SIGTERM, SIGINT or SIGHUP asks for the end.
/// A handler, not a signal mask: the processes of the lab would inherit the mask.
fn stop_on_signals() -> anyhow::Result<OwnedFd> {
    static WRITE_END: AtomicI32 = AtomicI32::new(-1);
    extern "C" fn tell(_: libc::c_int) {
        // SAFETY: write is async-signal-safe; the descriptor is never closed.
        unsafe { libc::write(WRITE_END.load(SeqCst), c"!".as_ptr().cast(), 1) };
    }
    let flags = nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK;
    let (read, write) = nix::unistd::pipe2(flags)?;
    WRITE_END.store(std::os::fd::IntoRawFd::into_raw_fd(write), SeqCst);
    let action = SigAction::new(SigHandler::Handler(tell), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: the handler only calls write and loads an atomic; errno is not looked at
        // by code that SA_RESTART resumes in the middle of a call.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(read)
}

/// `lab exec`: this process's terminal and pipes, the command's exit status.
fn execute(lab: &Remote, exec: &Exec) -> anyhow::Result<ExitCode> {
    let host = lab.host(&exec.host)?;
    let (program, args) = exec.command.split_first().expect("clap requires one");
    let signals = hold_signals()?;
    let mut command = host.interactive(program);
    let before = signals.before;
    // SAFETY: between fork and exec only the thread's signal mask is set.
    unsafe { command.as_std_mut().pre_exec(move || Ok(before.thread_set_mask()?)) };
    let mut child = command.args(args).spawn()?;
    signals.pass_on(&child)?;
    let status = child.wait()?;
    let code = status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Signals meant to end this process, which wait while there is no child to pass them to.
struct HeldSignals {
    held: SigSet,
    before: SigSet,
}

/// Of these, what a terminal sends on Ctrl-C reaches the child by itself.
const PASSED_ON: [Signal; 2] = [Signal::SIGTERM, Signal::SIGHUP];

/// Before the child is there, or a signal that comes just then ends this process alone. The
/// child inherits the mask, and has to set back the one `before`.
fn hold_signals() -> anyhow::Result<HeldSignals> {
    let mut held = SigSet::empty();
    PASSED_ON.into_iter().chain([Signal::SIGINT, Signal::SIGQUIT]).for_each(|s| held.add(s));
    let before = held.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    Ok(HeldSignals { held, before })
}

impl HeldSignals {
    /// From now on, and from before, they end the child first.
    fn pass_on(self, child: &Child) -> anyhow::Result<()> {
        let pidfd = child.process.pidfd.as_fd().try_clone_to_owned()?;
        std::thread::spawn(move || {
            let child = crate::sys::Pidfd::from(pidfd);
            while let Ok(signal) = self.held.wait() {
                if PASSED_ON.contains(&signal) {
                    let _ = child.signal(signal as i32); // it may have ended
                }
            }
        });
        Ok(())
    }
}

fn table(status: &Status) -> String {
    let mut out =
        format!("lab {}  (keeper {}, {})\n\n", status.name, status.keeper_pid, status.dir);
    out += &format!("{:10} {:6} {:>9} {:>8}  ADDRESSES\n", "HOST", "STATE", "PROCESSES", "DAEMON");
    for h in &status.hosts {
        let state = match (h.up, h.hung) {
            (false, _) => "down",
            (true, true) => "hangs",
            (true, false) => "up",
        };
        let daemon = h.daemon_pid.map_or("-".to_owned(), |p| p.to_string());
        let addresses = h.addresses.join(" ");
        out += &format!("{:10} {state:6} {:>9} {daemon:>8}  {addresses}\n", h.name, h.processes);
    }
    out += &format!(
        "\n{:14} {:10} {:>17} {:>15}\n",
        "LINK", "STATE", "LOST FROM HOST", "LOST TO HOST"
    );
    for l in &status.links {
        let state = match (l.no_carrier, l.cut_from_host, l.cut_to_host) {
            (true, ..) => "no carrier",
            (_, true, true) => "cut",
            (_, true, false) => "cut out",
            (_, false, true) => "cut in",
            _ => "up",
        };
        let (from, to) = (l.dropped_from_host, l.dropped_to_host);
        out += &format!("{:14} {state:10} {from:>17} {to:>15}\n", l.name);
    }
    let faults = faults(status);
    if !faults.is_empty() {
        out += &format!("\nFAULTS\n{}", faults.join("\n"));
        out.push('\n');
    }
    out
}

/// A line for each fault that is on.
fn faults(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    for h in status.hosts.iter().filter(|h| h.slow != Slow::default()) {
        lines.push(format!("{:14} {}", h.name, h.slow));
    }
    for l in &status.links {
        for (way, w) in [("from host", &l.from_host), ("to host", &l.to_host)] {
            if !w.faults.is_none() {
                let (faults, c) = (w.faults, w.counts);
                lines.push(format!("{:14} {way:10} {faults}", l.name));
                lines.push(format!(
                    "{:25} so far: lost {}, doubled {}, overtaken {}, corrupted {}, delayed {}, \
                     no room for {}",
                    "", c.lost, c.duplicated, c.reordered, c.corrupted, c.delayed, c.overflowed
                ));
            }
            if w.armed {
                lines.push(format!("{:14} {way:10} a trip is armed", l.name));
            }
        }
    }
    lines
}

/// A signal by name, with or without SIG, or by number.
///
/// # Errors
/// There is no such signal.
pub fn signal_number(text: &str) -> Result<i32, String> {
    let name = text.to_ascii_uppercase();
    let name = if name.starts_with("SIG") { name } else { format!("SIG{name}") };
    let known = name.parse::<Signal>().map(|s| s as i32);
    let number = || text.parse().ok().filter(|n| (1..=64).contains(n));
    known.ok().or_else(number).ok_or_else(|| format!("no signal \"{text}\""))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    parsed.ok_or_else(|| format!("\"{text}\" is not a number of seconds"))
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse().ok().map(|ms: f64| ms / 1000.0);
    let parsed = parsed.and_then(|s| Duration::try_from_secs_f64(s).ok());
    // An hour: so that sums of such times stay far from any limit.
    let parsed = parsed.filter(|time| *time <= Duration::from_secs(3600));
    parsed.ok_or_else(|| format!("\"{text}\" is not a number of milliseconds up to an hour"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_and_seconds_are_understood() {
        assert_eq!(signal_number("segv"), Ok(libc::SIGSEGV));
        assert_eq!(signal_number("SIGKILL"), Ok(9));
        assert_eq!(signal_number("15"), Ok(15));
        assert!(signal_number("0").is_err() && signal_number("nope").is_err());
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(milliseconds("1.5"), Ok(Duration::from_micros(1500)));
        assert!(milliseconds("-1").is_err() && milliseconds("3600001").is_err());
        assert!(seconds("-1").is_err() && seconds("5s").is_err() && seconds("1e99").is_err());
    }
}

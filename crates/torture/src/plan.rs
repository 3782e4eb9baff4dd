//! From a seed to a plan: who serves, who asks for what, what fails, and when.
//!
//! The plan of a seed never changes while this file stays as it is: the generator is `fastrand`'s
//! Wyrand, which version 2 keeps, and every choice is drawn in one fixed order.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use demo::download::Client;
use demo::server::Server;
use fastrand::Rng;
use lab::{Chance, Faults, Way, Where};
use serde::{Deserialize, Serialize};

use crate::fault::{Act, Bad, Cable, Kind, Program, Who};
use crate::moment::{Moment, Point};

/// How connections are protected.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Client bytes are logged, the requests are read again.
    Track,
    /// Replies are held by two nodes before they leave; long ones of files are made again.
    Message,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Scheme; 2] = [Scheme::Track, Scheme::Message];
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no scheme is hidden");
        f.write_str(value.get_name())
    }
}

/// Bytes of one of the shop's replies, about.
const REPLY_BYTES: u64 = 30_000;

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// A stock server; it takes no uploads.
    Stock(Server),
    /// A server that also answers an upload with its hash.
    Hashing,
    /// A shop, whose replies cannot be made twice; no file is asked for.
    Shop,
}

impl fmt::Display for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Serving::Stock(server) => server.fmt(f),
            Serving::Hashing => f.write_str("hashing"),
            Serving::Shop => f.write_str("the shop"),
        }
    }
}

impl Serialize for Serving {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// What clients do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Who serves.
    pub serving: Serving,
    /// Downloads by wget; the others are curl's.
    pub wgets: usize,
    /// Downloads by curl.
    pub curls: usize,
    /// Uploads.
    pub uploads: usize,
    /// Bytes of each download and upload.
    pub size: u64,
    /// Clients of the shop.
    pub shoppers: usize,
    /// Requests that each of them makes.
    pub each: usize,
    /// What they do is drawn from it.
    pub seed: u64,
    /// Idle connections.
    pub idle: usize,
    /// Requests that each of them has behind it, if its server keeps connections alive; half a
    /// request otherwise.
    pub history: usize,
    /// Rate of the service link, Mbit/s.
    pub rate_mbit: Option<u64>,
    /// Whether clients use IPv6.
    pub ipv6: bool,
}

impl Workload {
    /// How many downloads there are.
    pub fn downloads(&self) -> usize {
        self.curls + self.wgets
    }

    /// How many requests the shop gets.
    pub fn requests(&self) -> usize {
        self.shoppers * self.each
    }

    /// The client program of each download.
    pub fn clients(&self) -> impl Iterator<Item = Client> {
        let curls = std::iter::repeat_n(Client::Curl, self.curls);
        curls.chain(std::iter::repeat_n(Client::Wget, self.wgets))
    }
}

/// Something that is done at a moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// When.
    pub moment: Moment,
    /// What.
    pub act: Act,
}

/// A run before it is played.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Its seed.
    pub seed: u64,
    /// The scheme.
    pub scheme: Scheme,
    /// What clients do.
    pub work: Workload,
    /// The kind of fault.
    pub kind: Kind,
    /// What cables are like throughout.
    pub bad: Option<Bad>,
    /// What is done, in order.
    pub steps: Vec<Step>,
    /// Whether the pair is made whole, and new clients come, before the second step.
    pub mended_between: bool,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Plan {
        // The generator's first numbers of neighbouring seeds are alike; those of its numbers are not.
        let mut rng = Rng::with_seed(Rng::with_seed(seed).u64(..));
        let kind = Kind::ALL[rng.usize(..Kind::ALL.len())];
        let scheme = Scheme::ALL[rng.usize(..Scheme::ALL.len())];
        let mut work = workload(&mut rng);
        if scheme == Scheme::Message && rng.u32(..4) > 0 {
            work = shop(&mut rng, &work);
        }
        let mut plan =
            Plan { seed, scheme, work, kind, bad: None, steps: Vec::new(), mended_between: false };
        plan.draw_steps(&mut rng);
        plan
    }

    fn draw_steps(&mut self, rng: &mut Rng) {
        let who = if rng.u32(..10) < 7 { Who::Primary } else { Who::Backup };
        let moment = moment(rng, &self.work);
        let act = match self.kind {
            Kind::KillHost => Act::Host(who),
            Kind::KillServer => Act::Server(who, libc::SIGKILL),
            Kind::CrashServer => Act::Server(who, libc::SIGSEGV),
            Kind::AbortServer => Act::Server(who, libc::SIGABRT),
            Kind::KillDaemon => Act::Daemon(who),
            Kind::Hang => Act::Hang(who, Duration::from_millis(rng.u64(20..3000))),
            Kind::Cut => cut(rng, who),
            Kind::Partition => Act::Partition(who, Duration::from_millis(rng.u64(20..2000))),
            Kind::BadCables => {
                self.bad = Some(bad(rng));
                return;
            }
            Kind::BadCablesKill => {
                self.bad = Some(bad(rng));
                Act::Host(Who::Primary)
            }
            Kind::Slow => {
                let time = Duration::from_millis(rng.u64(200..2000));
                Act::Slow { who, percent: rng.u32(10..40), time }
            }
            Kind::Memory => {
                let time = Duration::from_millis(rng.u64(200..2000));
                // What its processes have already may not count, so it is little.
                Act::Starve { who, mib: 1 << rng.u32(0..5), time }
            }
            Kind::FlipServer => flip(rng, who, Program::Server),
            Kind::FlipDaemon => flip(rng, who, Program::Daemon),
            Kind::BackupThenPrimary => Act::Host(Who::Backup),
            Kind::KillDuringTakeover => any_failure(rng),
            Kind::DaemonDuringTakeover => Act::Server(Who::Primary, crash(rng)),
        };
        self.steps.push(Step { moment, act });
        let second = match self.kind {
            Kind::BackupThenPrimary => {
                self.mended_between = true;
                let moment = Moment::Bytes(rng.u64(1..900));
                Step { moment, act: any_failure(rng) }
            }
            Kind::KillDuringTakeover => {
                // A host that is dead already cannot die again.
                let old_lives = !matches!(self.steps[0].act, Act::Host(_));
                let who = if old_lives && rng.bool() { Who::Primary } else { Who::Backup };
                Step { moment: takeover(rng), act: Act::Host(who) }
            }
            Kind::DaemonDuringTakeover => {
                Step { moment: takeover(rng), act: Act::Daemon(Who::Primary) }
            }
            _ => return,
        };
        self.steps.push(second);
    }

    /// Plans that are wanted, from the seed on.
    pub fn from(seed: u64, wanted: Wanted) -> impl Iterator<Item = Plan> {
        (seed..).map(Plan::new).filter(move |plan| wanted.has(plan))
    }
}

/// Which plans are played; the seeds of others are passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Only this kind.
    pub kind: Option<Kind>,
    /// Only this scheme.
    pub scheme: Option<Scheme>,
}

impl Wanted {
    /// All of a kind.
    pub fn kind(kind: Kind) -> Wanted {
        Wanted { kind: Some(kind), scheme: None }
    }

    fn has(self, plan: &Plan) -> bool {
        self.kind.is_none_or(|kind| plan.kind == kind)
            && self.scheme.is_none_or(|scheme| plan.scheme == scheme)
    }
}

/// As arguments of `make torture`, each behind a space.
impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(kind) = self.kind {
            write!(f, " ONLY={kind}")?;
        }
        self.scheme.map_or(Ok(()), |scheme| write!(f, " SCHEME={scheme}"))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let w = &self.work;
        write!(f, "seed {}, {}, {}: {}", self.seed, self.scheme, self.kind, w.serving)?;
        if w.serving == Serving::Shop {
            write!(f, ", {} clients with {} requests each", w.shoppers, w.each)?;
        } else {
            write!(f, ", {} curl and {} wget", w.curls, w.wgets)?;
            if w.uploads > 0 {
                write!(f, " and {} uploads", w.uploads)?;
            }
            write!(f, " of {} kB, {} idle (history {})", w.size / 1000, w.idle, w.history)?;
        }
        match w.rate_mbit {
            Some(rate) => write!(f, ", {rate} Mbit/s")?,
            None => f.write_str(", unshaped")?,
        }
        f.write_str(if w.ipv6 { ", IPv6" } else { ", IPv4" })?;
        if let Some(bad) = &self.bad {
            write!(f, "; {bad}")?;
        }
        self.steps.iter().try_for_each(|step| write!(f, "; {}: {}", step.moment, step.act))
    }
}

fn workload(rng: &mut Rng) -> Workload {
    let serving = match rng.usize(..6) {
        n @ 0..4 => Serving::Stock(Server::ALL[n]),
        _ => Serving::Hashing,
    };
    let rate_mbit = [Some(10), Some(50), Some(100), Some(200), Some(1000), None][rng.usize(..6)];
    let downloads = rng.usize(1..=8);
    let wgets = rng.usize(..=downloads);
    let uploads = rng.usize(1..=3);
    let uploads = if serving == Serving::Hashing { uploads } else { 0 };
    // As long as a failure takes, and no longer than a campaign has time for.
    let bytes_per_ms = rate_mbit.unwrap_or(1000) * 125;
    let all = (rng.u64(700..2000) * bytes_per_ms).min(48_000_000);
    Workload {
        serving,
        wgets,
        curls: downloads - wgets,
        uploads,
        size: all / (downloads + uploads) as u64,
        shoppers: 0,
        each: 0,
        seed: 0,
        idle: rng.usize(..=40),
        history: rng.usize(..=12),
        rate_mbit,
        ipv6: rng.bool(),
    }
}

/// A shop on the links of this work, with requests for about as long.
fn shop(rng: &mut Rng, work: &Workload) -> Workload {
    let shoppers = rng.usize(48..=80);
    let bytes = work.size * (work.downloads() + work.uploads) as u64;
    // The shop is one process: faster links do not make it faster.
    let requests = (bytes / REPLY_BYTES).min(2000) as usize;
    Workload {
        serving: Serving::Shop,
        wgets: 0,
        curls: 0,
        uploads: 0,
        // Nobody asks for it.
        size: 50_000,
        shoppers,
        each: requests.div_ceil(shoppers).max(3),
        seed: rng.u64(..),
        idle: 0,
        history: 0,
        ..*work
    }
}

/// Bytes as often as all cut points together.
fn moment(rng: &mut Rng, work: &Workload) -> Moment {
    let mille = rng.u64(1..990);
    let point = Point::ALL[rng.usize(..Point::ALL.len())];
    let most = match point {
        // Each of its clients has one connection after the other.
        Point::SynAckBounce if work.serving == Serving::Shop => work.shoppers,
        Point::FinBounce if work.serving == Serving::Shop => work.shoppers / 2,
        _ if work.serving == Serving::Shop => work.requests() / 2,
        // A request is one segment; an upload is many.
        Point::BeforeAppend | Point::AfterAppend => work.downloads() + work.uploads * 8,
        Point::BeforeRelease => work.downloads() * 3,
        Point::SynAckBounce => work.downloads() + work.uploads,
        // Others must still run when the first one ends.
        Point::FinBounce => 1,
    };
    let (nth, swallow) = (rng.u32(1..=most as u32), rng.bool());
    if rng.bool() { Moment::Bytes(mille) } else { Moment::At { point, nth, swallow } }
}

fn takeover(rng: &mut Rng) -> Moment {
    if rng.bool() { Moment::DuringReplay } else { Moment::DuringPromotion }
}

fn crash(rng: &mut Rng) -> i32 {
    [libc::SIGKILL, libc::SIGSEGV, libc::SIGABRT][rng.usize(..3)]
}

fn any_failure(rng: &mut Rng) -> Act {
    match rng.usize(..3) {
        0 => Act::Host(Who::Primary),
        1 => Act::Daemon(Who::Primary),
        _ => Act::Server(Who::Primary, crash(rng)),
    }
}

fn cut(rng: &mut Rng, who: Who) -> Act {
    let cable = match rng.usize(..5) {
        0 | 1 => Cable::Service(who),
        2 | 3 => Cable::Cluster(who),
        _ => Cable::Clients,
    };
    let ways = match rng.usize(..4) {
        0 => vec![Way::FromHost],
        1 => vec![Way::ToHost],
        _ => Way::BOTH.to_vec(),
    };
    let carrier = rng.bool() && ways.len() == 2;
    Act::Cut { cable, ways, carrier, time: Duration::from_millis(rng.u64(20..2000)) }
}

fn flip(rng: &mut Rng, who: Who, program: Program) -> Act {
    let places =
        [Where::Register, Where::Memory, Where::Stack, Where::Heap, Where::Text, Where::Data];
    let place = places[rng.usize(..places.len())];
    // Most single flips hit nothing that matters.
    let bits = [1, 8, 64][rng.usize(..3)];
    Act::Flip { who, program, place, bits, seed: rng.u64(..) }
}

/// Bad, but not so bad that heartbeats fail for the detection time, nor that TCP alone would fail: one to three
/// of five.
fn bad(rng: &mut Rng) -> Bad {
    let mut faults = Faults { seed: rng.u64(..), ..Faults::NONE };
    let (mut loss, mut corrupt) = (0, 0);
    let percent = |rng: &mut Rng| rng.u32(1..=3);
    for _ in 0..rng.usize(1..=3) {
        match rng.usize(..5) {
            0 => loss = percent(rng),
            1 => faults.duplicate = Chance::percent(percent(rng)),
            2 => faults.reorder = Chance::percent(percent(rng)),
            3 => corrupt = percent(rng),
            _ => {
                faults.delay = Duration::from_micros(rng.u64(100..5000));
                faults.jitter = faults.delay / 2;
            }
        }
    }
    // Either way the segment is gone, and an acknowledgement passes six cables. Between two hosts without any
    // nodes, with what 3 % of both come to on that way, 6 of 96 downloads of 6.7 MB did not end within 80 s.
    faults.loss = Chance::percent(loss);
    faults.corrupt = Chance::percent(corrupt.min(3 - loss));
    Bad(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed that is written down somewhere names the same run for ever.
    #[test]
    fn the_plan_of_a_seed_stays() {
        assert_eq!(Plan::new(7), Plan::new(7));
        let expected = "seed 1, message, cut: the shop, 72 clients with 23 requests each, \
                        1000 Mbit/s, IPv6; after 97.5% of the bytes: the cluster cable of the \
                        primary is cut to its host for 1.272s";
        assert_eq!(Plan::new(1).to_string(), expected);
    }

    #[test]
    fn every_kind_server_and_moment_comes_up() {
        let plans: Vec<Plan> = Plan::from(1, Wanted::default()).take(500).collect();
        let names: Vec<String> =
            plans.iter().flat_map(|p| p.steps.iter().map(|s| s.moment.name())).collect();
        for kind in Kind::ALL {
            assert!(plans.iter().any(|p| p.kind == kind), "{kind}");
            assert!(Plan::from(1, Wanted::kind(kind)).take(3).all(|p| p.kind == kind));
        }
        for scheme in Scheme::ALL {
            for server in Server::ALL {
                let serves = |p: &&Plan| p.work.serving == Serving::Stock(server);
                assert!(plans.iter().filter(serves).any(|p| p.scheme == scheme), "{server}");
            }
        }
        let shop = |p: &&Plan| p.work.serving == Serving::Shop;
        assert!(plans.iter().filter(shop).all(|p| p.scheme == Scheme::Message));
        assert!(plans.iter().filter(shop).count() > 100);
        for moment in Point::ALL.map(|p| p.to_string()) {
            assert!(names.contains(&moment), "{moment}");
        }
        for moment in ["random", "during-replay", "during-promotion"] {
            assert!(names.iter().any(|n| n == moment), "{moment}");
        }
    }

    #[test]
    fn plans_can_be_played() {
        for plan in Plan::from(1, Wanted::default()).take(2000) {
            let w = &plan.work;
            assert!(w.size >= 50_000, "{plan}");
            assert_eq!(w.uploads > 0, w.serving == Serving::Hashing, "{plan}");
            assert_eq!(w.requests() > 0, w.serving == Serving::Shop, "{plan}");
            // A host does not die twice without having been booted.
            if let [first, second] = &plan.steps[..]
                && !plan.mended_between
                && let (Act::Host(a), Act::Host(b)) = (&first.act, &second.act)
            {
                assert_ne!(a, b, "{plan}");
            }
        }
    }
}

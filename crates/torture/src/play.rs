//! One run, from the plan to its evidence.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::ensure;
use demo::clock::now_ns;
use demo::pair::{CLIENT, other};
use demo::shop::Notes;
use e2e::machine::{self, Disturbed};
use e2e::witness::TOLERATED;
use lab::{Link, Way};
use oracle::{Class, Gap};

use crate::campaign::Options;
use crate::evidence::{ClientReport, Evidence, Found, Oracle};
use crate::fault::{Act, Kind, Program, Who};
use crate::leak::{Folder, Held};
use crate::load::{Load, open_idle, try_out};
use crate::moment::Moment;
use crate::plan::{Plan, Serving, Step};
use crate::rules::{self, Outcome};
use crate::shopping;
use crate::stage::{Stage, Waiting};

/// How long clients may need, from the last fault on.
const PATIENCE: Duration = Duration::from_secs(40);
/// The same where clients may wait for good: for a server with flipped bits, or with nobody left.
const PATIENCE_IN_VAIN: Duration = Duration::from_secs(5);

/// Plays a plan. Files of a run that is to be looked at go to `artifacts`.
///
/// # Errors
/// The run could not be played: the lab or the pair did not come up, or an act was refused.
pub(crate) fn play(plan: &Plan, options: &Options, artifacts: &Path) -> anyhow::Result<Evidence> {
    machine::watch();
    let (started, before) = (Instant::now(), Held::now());
    let mut stage = Stage::up(plan, options, artifacts)?;
    let dir = Folder::new(stage.pair.lab.dir());
    let mut evidence = Evidence { up_ns: stage.up_ns, ..Evidence::default() };
    let played = on(&mut stage, plan, &mut evidence);
    evidence.disturbed = disturbance(&evidence, options.detection_ms).or_else(|| {
        let worst = machine::stood_still_since(evidence.up_ns)?;
        Some(format!("the machine stood still for {worst:?}"))
    });
    let good = matches!(rules::judge(plan, &evidence), Outcome::Good | Outcome::Explained(_));
    if played.is_err() || !good {
        if evidence.last_words.is_empty() {
            evidence.last_words = stage.last_words();
        }
        stage.pair.lab.keep_files();
    }
    drop(stage);
    played?;
    evidence.leaked = before.leaked(&dir);
    evidence.took_s = started.elapsed().as_secs_f64();
    Ok(evidence)
}

/// Plays it on a pair that is up.
fn on(stage: &mut Stage, plan: &Plan, evidence: &mut Evidence) -> anyhow::Result<()> {
    let idle = open_idle(&stage.pair, &plan.work)?;
    evidence.idle = plan.work.idle;
    if let Some(bad) = &plan.bad {
        for link in Link::ALL {
            stage.pair.lab.set_faults(link.name(), &Way::BOTH, &bad.0)?;
        }
    }
    let first_frame = match plan.steps.first() {
        Some(step) => match step.moment {
            Moment::At { point, nth, swallow } => Some(stage.arm(point, nth, swallow, &step.act)?),
            _ => None,
        },
        None => None,
    };
    // Before the first act, or the frame may be gone already.
    let outputs = plan.steps.iter().any(|step| step.moment == Moment::DuringPromotion);
    let first_output = outputs.then(|| stage.arm_first_output()).transpose()?;
    let mut loads = vec![Load::start(&stage.pair, &plan.work, 0, patience(plan))?];
    if plan.steps.is_empty() {
        loads[0].wait_for(500);
    }
    let mut lasting = None;
    for (n, step) in plan.steps.iter().enumerate() {
        if n > 0 && plan.mended_between {
            stage.mend()?;
            evidence.mended_between_ns = Some(now_ns());
            stage.look_who_serves()?;
            loads.push(Load::start(&stage.pair, &plan.work, n, patience(plan))?);
        }
        let load = loads.last().expect("there is one");
        let frame = if n == 0 { first_frame.as_ref() } else { None };
        match come(stage, step.moment, load, frame, first_output.as_ref())? {
            Come::Now => evidence.done.push(stage.begin(&step.act)?),
            Come::Done(done) => evidence.done.push(done),
            Come::Never(why) => {
                evidence.missed = Some(why);
                break;
            }
        }
        if let (Some(who), true) = (flipped_daemon(&step.act), evidence.missed.is_none()) {
            evidence.flip_killed_at_once = stage.ends_at_once(stage.name(who));
        }
        lasting = Some(&step.act);
    }
    let report = thread::scope(|scope| -> anyhow::Result<_> {
        let site = &stage.pair.site;
        let asking = scope.spawn(move || idle.finish(site, PATIENCE.min(patience(plan) * 2)));
        if let Some(act) = lasting {
            stage.end(act)?;
        }
        Ok(asking.join().expect("the thread does not panic"))
    })?;
    if let Some(who) = lasting.and_then(starved) {
        let felt = stage.pair.lab.starved(stage.name(who))?;
        if felt.reached == 0 && evidence.missed.is_none() {
            evidence.missed = Some("nobody asked for memory while there was little".to_owned());
        }
        (evidence.starved, evidence.prompted) = (Some(felt), stage.prompted.get());
    }
    evidence.idle_failures = report.failures;
    let since_ns = evidence.last_fault_ns();
    let mut notes = Vec::new();
    for load in loads {
        let ended = load.finish(&stage.pair, patience(plan), since_ns, &mut notes)?;
        evidence.clients.extend(ended);
    }
    let broken = evidence.clients.iter().any(ClientReport::noticed);
    if broken || !evidence.idle_failures.is_empty() {
        evidence.last_words = stage.last_words();
    }
    look_after(stage, plan, notes, evidence)
}

/// A moment, once it has come or passed.
enum Come {
    /// Act.
    Now,
    /// The wire has acted.
    Done(crate::evidence::Done),
    /// It will not come.
    Never(String),
}

fn come(
    stage: &Stage,
    moment: Moment,
    load: &Load,
    frame: Option<&Waiting>,
    output: Option<&Waiting>,
) -> anyhow::Result<Come> {
    let never = || Come::Never(format!("{moment} did not come while clients ran"));
    let waiting = match moment {
        Moment::Bytes(mille) => {
            return Ok(if load.wait_for(mille) { Come::Now } else { never() });
        }
        Moment::DuringReplay => {
            return Ok(if stage.wait_for_takeover() { Come::Now } else { never() });
        }
        Moment::At { .. } => frame,
        Moment::DuringPromotion => output,
    };
    let waiting = waiting.expect("it was armed before the clients came");
    Ok(match stage.wait_for(waiting, || load.ended())? {
        Some(Some(done)) => Come::Done(done),
        // What the new primary has reported would die with it.
        Some(None) if moment == Moment::DuringPromotion && !stage.wait_for_takeover() => never(),
        Some(None) => Come::Now,
        None => never(),
    })
}

/// What there is to be seen when all clients are done.
fn look_after(
    stage: &Stage,
    plan: &Plan,
    mut notes: Vec<Notes>,
    evidence: &mut Evidence,
) -> anyhow::Result<()> {
    let may_crash = [Kind::FlipServer, Kind::FlipDaemon, Kind::Memory].contains(&plan.kind);
    if let (true, Some(done)) = (may_crash, evidence.done.first()) {
        stage.note_crashes(done.node.as_deref().unwrap_or(CLIENT), done.at_ns);
    }
    for (node, status) in stage.ended()? {
        let of_it = |step: &Step, act: fn(&Act) -> Option<Who>| {
            act(&step.act).is_some_and(|who| stage.name(who) == node)
        };
        let starved =
            plan.steps.iter().any(|step| of_it(step, starved)) && status.contains("SIGKILL");
        if plan.steps.iter().any(|step| of_it(step, flipped_daemon)) {
            evidence.flip_killed_daemon = true;
        } else if !starved && !plan.steps.iter().any(|step| of_it(step, killed_daemon)) {
            evidence.ended.push(format!("the daemon of {node} has ended by itself: {status}"));
        }
    }
    if plan.bad.is_some() {
        for link in Link::ALL {
            stage.pair.lab.clear_faults(link.name())?;
        }
    }
    let mut mended_ns = None;
    let mut mended = || -> anyhow::Result<()> {
        for who in plan.steps.iter().filter_map(|step| flipped_daemon(&step.act)) {
            stage.replace_daemon(stage.name(who))?;
        }
        for (step, done) in plan.steps.iter().zip(&evidence.done) {
            if let Some(who) = flipped(&step.act, Program::Server) {
                stage.replace_server(stage.name(who), done.at_ns)?;
            }
        }
        stage.mend()?;
        mended_ns = Some(now_ns());
        let failures = try_out(&stage.pair, &plan.work, &mut notes)?;
        ensure!(failures.is_empty(), "new clients: {}", failures.join("; "));
        Ok(())
    };
    if let Err(e) = mended() {
        evidence.not_mended = Some(format!("{e:#}"));
    }
    evidence.mended_ns = mended_ns;
    evidence.said = stage.said();
    evidence.resets = evidence.events("flow_reset").count();
    let shop = plan.work.serving == Serving::Shop;
    let cut_off = plan.steps.iter().find_map(|step| match step.act {
        Act::Partition(who, _) => Some(who),
        _ => None,
    });
    let reigns = stage.reigns(cut_off);
    evidence.shop = shop.then(|| shopping::audit(&stage.pair, &notes, &reigns));
    evidence.oracle = testimony(stage);
    Ok(())
}

fn killed_daemon(act: &Act) -> Option<Who> {
    if let Act::Daemon(who) = act { Some(*who) } else { None }
}

fn flipped_daemon(act: &Act) -> Option<Who> {
    flipped(act, Program::Daemon)
}

fn flipped(act: &Act, wanted: Program) -> Option<Who> {
    match act {
        Act::Flip { who, program, .. } if *program == wanted => Some(*who),
        _ => None,
    }
}

fn starved(act: &Act) -> Option<Who> {
    if let Act::Starve { who, .. } = act { Some(*who) } else { None }
}

/// Has the oracle judge the captures.
fn testimony(stage: &Stage) -> Oracle {
    let verdict = match stage.judge() {
        Ok(verdict) => verdict,
        Err(e) => {
            let findings = vec![gap(format!("no verdict: {e:#}"))];
            return Oracle { findings, ..Oracle::default() };
        }
    };
    let name = |class: &Class| format!("{class:?}");
    let (wall, now) = (SystemTime::now().duration_since(SystemTime::UNIX_EPOCH), now_ns());
    let wall_ns = wall.map_or(0, |since| since.as_nanos() as u64);
    let at = |at_ns| Some(now - wall_ns.saturating_sub(at_ns));
    let found = |f: &&oracle::Finding| Found {
        class: name(&f.class),
        at_ns: at(f.at_ns),
        flow_began_ns: at(f.flow_began_ns),
        text: f.to_string(),
    };
    let mut findings: Vec<_> = verdict.without(&TOLERATED).iter().map(found).collect();
    findings.extend(verdict.gaps.iter().map(|g| gap(g.to_string())));
    if verdict.statistics.segments == 0 {
        findings.push(gap("no segment of the service was captured".to_owned()));
    }
    Oracle {
        findings,
        blind: verdict.gaps.iter().any(|gap| matches!(gap, Gap::Missed { .. })),
        classes: verdict.by_class().iter().map(|(class, n)| (name(class), *n)).collect(),
        segments: verdict.statistics.segments,
    }
}

fn gap(text: String) -> Found {
    Found { class: "gap".to_owned(), at_ns: None, flow_began_ns: None, text }
}

fn patience(plan: &Plan) -> Duration {
    match plan.kind {
        Kind::FlipServer | Kind::FlipDaemon => PATIENCE_IN_VAIN,
        _ if rules::nobody_is_left(plan) => PATIENCE_IN_VAIN,
        // A segment that is lost twice, and its acknowledgement, cost TCP half a minute.
        _ if plan.bad.is_some() => 2 * PATIENCE,
        _ => PATIENCE,
    }
}

/// Whether the machine itself stood still and so made a node suspect its peer, to which nothing
/// had been done.
fn disturbance(evidence: &Evidence, detection_ms: u32) -> Option<String> {
    let innocent = |said: &&crate::evidence::Said| {
        let peer = other(&said.node);
        let done = |done: &&crate::evidence::Done| {
            done.at_ns <= said.at_ns && done.node.as_deref() != Some(said.node.as_str())
        };
        said.at_ns >= evidence.up_ns
            && said.at_ns <= now_ns()
            && !evidence.done.iter().filter(done).any(|done| done.node.as_deref() == Some(peer))
    };
    let quiet = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let blamed = evidence.events("suspected").filter(innocent).find_map(|said| {
        let what = format!("{}: {}", said.node, said.text);
        let panic = panic::catch_unwind(AssertUnwindSafe(|| {
            machine::blame(&what, said.at_ns, detection_ms)
        }));
        let panic = panic.expect_err("it never returns");
        panic.downcast::<Disturbed>().ok().map(|disturbed| disturbed.to_string())
    });
    panic::set_hook(quiet);
    blamed
}

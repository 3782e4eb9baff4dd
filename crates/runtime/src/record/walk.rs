//! What becomes of a call: it is made and written down, or answered from the record and compared.

use core::slice;
use core::sync::atomic::Ordering::Relaxed;

use linux_raw_sys::errno::EINTR;
use linux_raw_sys::general::{
    PROT_EXEC, SEEK_CUR, {MAP_FIXED, MAP_FIXED_NOREPLACE}, {MREMAP_FIXED, MREMAP_MAYMOVE, SIGKILL},
};
use recording::{Call, End, Hasher, Head, Left, Payload, Place, digest, read_words, write_words};
use systable::{Class, Entry, Refusal, Rule, Sysno};

use super::engine::{self, Turn};
use super::group::{self, turns};
use super::kinds::{self, Kind};
use super::pieces::{self, Given, Piece};
use super::placed::{Descriptors, connection, moves, nothing, stand_in};
use super::report::{Difference, Made, Where};
use super::timers;
use super::turns::Ids;
use super::waits::{self, Wait};
use super::{command, ids, long, processors};
use crate::birth::{self, Makes};
use crate::calls::{Calls, calls};
use crate::dispatch::{self, Outcome, before_signals};
use crate::frame::Context;
use crate::sigset::SigSet;
use crate::sys::{Args, NOT_MADE, checked, error};
use crate::thread::Thread;
use crate::{memory, own, robust};

/// What becomes of a call.
#[derive(Clone, Copy)]
pub struct Plan {
    /// As the table has it, or its descriptor, or its command.
    pub class: Class,
    /// What the kernel writes, of a call whose command says it.
    pub written: Option<Piece>,
    /// Errors that leave the call without an effect: it ends nothing if it fails with one.
    pub fails_with: &'static [u32],
}

impl Plan {
    /// Of a call of this class.
    pub const fn of(class: Class) -> Plan {
        Plan { class, written: None, fails_with: &[] }
    }

    /// Whether there is a record of such a call.
    fn is_recorded(&self) -> bool {
        !matches!(self.class, Class::Local | Class::Refuse(Refusal::Absent))
    }

    fn ends(&self) -> bool {
        matches!(self.class, Class::Refuse(Refusal::Ends))
    }
}

fn plan(name: Sysno, entry: &Entry, args: &Args) -> Plan {
    const ENDS: Plan = Plan::of(Class::Refuse(Refusal::Ends));
    match name {
        // Its number is this machine's.
        Sysno::clone | Sysno::clone3 | Sysno::fork | Sysno::vfork => {
            return match birth::makes(name, *args) {
                Makes::Other => ENDS,
                Makes::Thread | Makes::Process | Makes::Nothing => Plan::of(Class::Repeat),
            };
        }
        Sysno::mmap => return command::mmap(args),
        Sysno::open | Sysno::openat | Sysno::openat2 | Sysno::creat
            if kinds::is_made_up(name, args) =>
        {
            return Plan::of(Class::Emulate);
        }
        Sysno::sendmsg if pieces::has_control(args[1]) && kinds::of(args[0]) != Kind::Inside => {
            return ENDS;
        }
        Sysno::sendmmsg | Sysno::recvmmsg => return ENDS,
        // It has to be done in one turn.
        Sysno::write | Sysno::writev | Sysno::sendto | Sysno::sendmsg
            if turns().are_shared()
                && kinds::of(args[0]) == Kind::Inside
                && waits::is_too_long(name, args)
                && !long::is_possible(name, args[0]) =>
        {
            return ENDS;
        }
        _ => {}
    }
    match entry.rule {
        Rule::Always(class) => Plan::of(class),
        Rule::Descriptor { inside, .. } if kinds::is_inside(args[0]) => Plan::of(inside),
        Rule::Descriptor { outside, .. } => Plan::of(outside),
        Rule::Command(_) => command::plan(name, args),
    }
}

/// What is kept of the memory that a call is about.
#[derive(PartialEq, Eq)]
enum Kept {
    Nothing,
    /// What the kernel has written.
    Written,
    /// That it was the same.
    Hash,
}

fn kept(name: Sysno, entry: &Entry, class: Class, args: &Args) -> Kept {
    match class {
        Class::Output | Class::Execute if !entry.has_memory() && !maps_code(name, args) => {
            Kept::Nothing
        }
        // Where it is written is the runtime's affair.
        Class::Repeat if makes_one(name) => Kept::Nothing,
        Class::Emulate | Class::Repeat => Kept::Written,
        // Where in the file it has come to; the bytes are the file's.
        Class::Output if name == Sysno::sendfile => Kept::Written,
        Class::Output => Kept::Hash,
        // It may have descriptors with it, and who has sent it.
        Class::Execute if name == Sysno::recvmsg => Kept::Written,
        // The numbers of two descriptors.
        Class::Execute if kinds::makes_two(name, args).is_some() => Kept::Written,
        Class::Execute if matches!(entry.rule, Rule::Descriptor { .. }) => Kept::Hash,
        Class::Execute if maps_code(name, args) => Kept::Hash,
        _ => Kept::Nothing,
    }
}

/// Whether what the kernel writes is a structure, or some, in which most is small.
fn is_words(name: Sysno) -> bool {
    use Sysno::*;
    matches!(
        name,
        epoll_wait | epoll_pwait | epoll_pwait2 | stat | lstat | fstat | newfstatat | statx
    )
}

/// Whether it maps a file's instructions.
fn maps_code(name: Sysno, args: &Args) -> bool {
    name == Sysno::mmap && args[2] & PROT_EXEC as usize != 0 && kinds::of(args[4]) == Kind::File
}

/// Of a call that is recorded: whether it makes a thread, or a process.
fn makes_one(name: Sysno) -> bool {
    [Sysno::clone, Sysno::clone3, Sysno::fork, Sysno::vfork].contains(&name)
}

fn executes(name: Sysno) -> bool {
    [Sysno::execve, Sysno::execveat].contains(&name)
}

/// Calls with which there is more to do than their class says.
const fn is_special(name: Sysno) -> bool {
    use Sysno::*;
    let makes_or_ends = matches!(
        name,
        clone | clone3 | fork | vfork | execve | execveat | exit | exit_group | wait4 | waitid
    );
    makes_or_ends || timers::sets(name) || matches!(name, recvmsg | sched_getaffinity)
}

static SPECIAL: Calls = calls!(is_special);

/// A system call of a program that is recorded or replayed.
pub fn call(
    turn: Turn,
    thread: &'static Thread,
    number: usize,
    args: &Args,
    context: &mut Context,
) -> Outcome {
    let Some(name) = Sysno::new(number) else {
        // The kernel says so, each time.
        return unrecorded(turn, thread, number, args, context);
    };
    let entry = systable::entry(name);
    let plan = plan(name, entry, args);
    let of = Of { name, entry, plan, args };
    match (super::is_recording(), plan.is_recorded()) {
        (_, false) => unrecorded(turn, thread, number, args, context),
        (true, true) => of.record(turn, thread, context),
        (false, true) => of.replay(turn, thread, context),
    }
}

/// A call of which there is no record.
fn unrecorded(
    mut turn: Turn,
    thread: &'static Thread,
    number: usize,
    args: &Args,
    context: &mut Context,
) -> Outcome {
    let replays = !super::is_recording();
    if replays && turn.engine().take_signal(thread, true) {
        return Outcome::Value(NOT_MADE);
    }
    let outcome = dispatch::call(thread, number, args, context);
    let is_made = !matches!(outcome, Outcome::Value(NOT_MADE));
    thread.not_made.set(!is_made);
    turn.engine().unrecorded += u32::from(is_made);
    if replays {
        turn.engine().take_signal(thread, false);
    }
    outcome
}

/// A call, and what there is to know of it.
pub(super) struct Of<'a> {
    pub(super) name: Sysno,
    entry: &'static Entry,
    plan: Plan,
    pub(super) args: &'a Args,
}

impl Of<'_> {
    pub(super) fn number(&self) -> usize {
        self.name as usize
    }

    pub(super) fn digest(&self) -> u16 {
        // What a command does not take may be anything.
        let count = match self.name {
            Sysno::prctl => 2,
            _ => self.entry.arguments.len(),
        };
        digest(&self.args[..count])
    }

    fn wait(&self) -> Wait {
        if turns().are_shared() { self.may_wait() } else { Wait::No }
    }

    fn may_wait(&self) -> Wait {
        waits::of(self.name, self.plan.class, self.args)
    }

    fn make(&self, thread: &'static Thread, context: &mut Context) -> Outcome {
        dispatch::call(thread, self.number(), self.args, context)
    }

    fn refused(&self) -> End {
        let [a, b, c, ..] = self.args.map(|arg| arg as u64);
        End::Refused { number: self.number() as u16, args: [a, b, c] }
    }

    fn record(&self, mut turn: Turn, thread: &'static Thread, context: &mut Context) -> Outcome {
        if self.plan.ends() && self.plan.fails_with.is_empty() {
            turn.end(self.refused());
            return self.make(thread, context);
        }
        let is_special = SPECIAL.has(self.name);
        if is_special && self.exits() {
            return self.record_exit(turn, thread, context);
        }
        let wait = self.wait();
        if self.is_long(wait) {
            return self.record_long(&mut turn, thread, context);
        }
        let given = Given::read(self.name, self.args);
        // Others have yet to know of it if this process is killed before there is a record.
        let makes = || {
            if self.is_repeated() {
                turns().makes(self.number());
            }
        };
        let outcome = match wait {
            Wait::Apart => turn.apart(|| self.make(thread, context)),
            Wait::Inside(events) => {
                match waits::until_ready(&mut turn, thread, self.name, self.args, events) {
                    Some(instead) => Outcome::Value(instead),
                    None => {
                        makes();
                        turn.during(|| self.make(thread, context))
                    }
                }
            }
            // It looks at what only this thread has.
            Wait::No if is_special && (executes(self.name) || makes_one(self.name)) => {
                makes();
                self.make(thread, context)
            }
            Wait::No => {
                makes();
                turn.during(|| self.make(thread, context))
            }
        };
        let Outcome::Value(result) = outcome else { return outcome };
        thread.not_made.set(result == NOT_MADE);
        if is_special && result == 0 && makes_one(self.name) {
            // The child: there is a record of it where its parent is.
            return outcome;
        }
        if turn.is_over() || result == NOT_MADE {
            wait_for_vforked(&mut turn, thread);
            return outcome;
        }
        let fails = self.plan.fails_with.iter().any(|&errno| result == -(errno as isize));
        let ends = (self.plan.ends() && !fails) || (is_special && self.brings_control(result));
        if ends {
            turn.end(self.refused());
            return outcome;
        }
        let followed =
            checked(result).is_err() || kinds::follow(self.name, self.args, result.cast_unsigned());
        if is_special && self.is_buried(result) {
            let pid = self.waited_for(result);
            turns().bury(|real, _| real.process == pid);
        }
        if result <= 0 && waits::tells_of_ends(self.name, self.args, result) {
            turn.finds_killed();
        }
        if turn.is_over() {
            return outcome;
        }
        let sets = is_special && result >= 0 && timers::sets(self.name);
        if sets || (turn.tells_time() && self.may_wait() != Wait::No) {
            turn.tell_time(sets);
        }
        if is_special {
            processors::leave_one(self.name, self.args, result);
        }
        self.write_down(&mut turn, result, &given);
        wait_for_vforked(&mut turn, thread);
        if !turn.is_over() && !followed {
            turn.end(self.refused());
        }
        if !turn.is_over() {
            turn.yields(self.name == Sysno::sched_yield);
        }
        outcome
    }

    fn write_down(&self, turn: &mut Turn, result: isize, given: &Given) {
        let call = |payload| {
            let (number, digest) = (self.number() as u16, self.digest());
            Head::Call(Call { number, digest, result: result as i64, payload })
        };
        match kept(self.name, self.entry, self.plan.class, self.args) {
            Kept::Nothing => turn.append(&call(Payload::Nothing)),
            Kept::Hash => turn.append(&call(self.hash(result))),
            Kept::Written => {
                let is_words = is_words(self.name);
                let payload = if is_words { Payload::Words } else { Payload::Written };
                // Most of what is long has come through a descriptor, and the result is how much.
                let expected = match self.entry.rule {
                    Rule::Descriptor { .. } if !is_words => {
                        result.clamp(1, 1 << 16).cast_unsigned()
                    }
                    _ => 1,
                };
                turn.append_with(&call(payload), expected, |out| {
                    let (mut len, mut is_full) = (0, false);
                    let _put = self.written(result, given, &mut |(from, piece)| {
                        // SAFETY: the kernel has written to it a moment ago.
                        let written = unsafe { bytes(from, piece) };
                        let out = &mut out[len..];
                        let put = match is_words {
                            true => write_words(written, out),
                            false => out.get_mut(..piece).map(|out| {
                                out.copy_from_slice(written);
                                piece
                            }),
                        };
                        is_full = put.is_none();
                        len += put.ok_or(0isize)?;
                        Ok(())
                    });
                    (!is_full).then_some(len)
                });
            }
        }
    }

    /// Of a thread, or of all.
    fn record_exit(
        &self,
        mut turn: Turn,
        thread: &'static Thread,
        context: &mut Context,
    ) -> Outcome {
        if before_signals(thread).is_err() {
            thread.not_made.set(true);
            return Outcome::Value(NOT_MADE);
        }
        if self.ends_the_process(thread) && !turns().has_other_processes(thread.seat.get()) {
            turn.exits(self.args[0] as i32);
            // Nobody else goes on: the turn is not given away any more.
            return self.make(thread, context);
        }
        self.write_down(&mut turn, 0, &Given::default());
        robust::release(thread, ids::told_thread(thread));
        if turn.is_over() {
            // It could not be written.
        } else if self.ends_the_process(thread) {
            turn.leave_with_all();
        } else {
            thread.clear_word();
            turn.leave_for_ever();
        }
        self.make(thread, context)
    }

    /// Whether it is made in pieces.
    fn is_long(&self, wait: Wait) -> bool {
        self.plan.class == Class::Execute
            && matches!(wait, Wait::Inside(_))
            && waits::is_too_long(self.name, self.args)
    }

    /// Whether it has brought more than bytes and an address from outside.
    fn brings_control(&self, result: isize) -> bool {
        self.name == Sysno::recvmsg
            && result >= 0
            && pieces::has_control(self.args[1])
            && kinds::of(self.args[0]) != Kind::Inside
    }

    fn exits(&self) -> bool {
        [Sysno::exit, Sysno::exit_group].contains(&self.name)
    }

    fn ends_the_process(&self, thread: &Thread) -> bool {
        match self.name {
            Sysno::exit_group => true,
            Sysno::exit => !turns().are_shared() || turns().threads(thread.seat.get()) == 1,
            _ => false,
        }
    }

    /// Whether a process has ended, and will not be waited for again.
    fn is_buried(&self, result: isize) -> bool {
        const WNOWAIT: usize = 0x100_0000;
        const CLD_DUMPED: u32 = 3;
        match self.name {
            Sysno::wait4 if result > 0 => {
                let status = memory::read::<u32>(self.args[1]).unwrap_or(0);
                // Neither stopped nor continued.
                status & 0x7f != 0x7f && status != 0xffff
            }
            Sysno::waitid if result == 0 && self.args[2] != 0 => {
                let code = memory::read::<u32>(self.args[2] + 8).unwrap_or(0);
                self.waited_for(0) > 0
                    && (1..=CLD_DUMPED).contains(&code)
                    && self.args[3] & WNOWAIT == 0
            }
            _ => false,
        }
    }

    /// The process that was waited for.
    fn waited_for(&self, result: isize) -> i32 {
        match self.name {
            Sysno::waitid => memory::read::<u32>(self.args[2] + 12).unwrap_or(0).cast_signed(),
            _ => result as i32,
        }
    }

    /// Replayed: the same for a process that has another number. One that was killed has yet to be.
    fn bury(&self, result: isize) {
        let told = self.waited_for(result);
        let Some(real) = turns().real(Ids { thread: 0, process: told }) else { return };
        let was_killed = turns().bury(|_, ids| ids.process == told);
        // SAFETY: a child of this process, which has ended, or waits for a turn that will not come.
        unsafe {
            if was_killed == Some(true) {
                let _killed = own!(kill, real.process, SIGKILL);
            }
            let _gone = own!(wait4, real.process, 0, 0, 0);
        }
    }

    fn replay(&self, mut turn: Turn, thread: &'static Thread, context: &mut Context) -> Outcome {
        if self.is_long(self.wait()) {
            return self.replay_long(&mut turn, thread, context);
        }
        let given = Given::read(self.name, self.args);
        if self.wait() != Wait::No {
            turn.gives_way(Left::Before);
        }
        if turn.is_over() {
            return self.make_for_real(thread, context);
        }
        if turn.engine().take_signal(thread, true) {
            return Outcome::Value(NOT_MADE);
        }
        loop {
            match turn.engine().peek() {
                // It has succeeded: the next program follows this record.
                Some((Head::Begin(_), ..)) if executes(self.name) => {
                    let Outcome::Value(why) = self.make(thread, context) else {
                        unreachable!("it returns an error, or not at all")
                    };
                    let difference = Difference::Result { recorded: 0, replayed: why };
                    self.differs(&mut turn, &difference, context)
                }
                Some((Head::End(End::Exited { status }), _, _))
                    if self.ends_the_process(thread) =>
                {
                    turn.engine().finish(status)
                }
                Some((Head::End(_), ..)) | None => {
                    turn.stops();
                    return self.make_for_real(thread, context);
                }
                Some((Head::Killed(_), ..)) => turn.kills(),
                Some(_) => break,
            }
        }
        let (recorded, payload, place) = self.recorded(&mut turn, context);
        let result = recorded.result as isize;
        if self.exits() {
            turn.engine().go_on(Head::Call(recorded), place);
            before_signals(thread).expect("no signal comes but from the record");
            robust::release(thread, ids::told_thread(thread));
            if self.ends_the_process(thread) {
                turn.passes_with_all();
                if super::is_on() {
                    // Its status comes from the record. Whoever has begun the replay wants to know of that.
                    engine::exit(0);
                }
            } else {
                thread.clear_word();
                turn.passes_for_ever();
            }
            return self.make(thread, context);
        }
        let mut descriptors = None;
        if self.is_made_again(result) {
            let now = self.make_again(&mut turn, &recorded, thread, context);
            if now == 0 && makes_one(self.name) {
                // The child, whose turn it is. Its first signal has come with it.
                return Outcome::Value(0);
            }
            descriptors = Some(self.descriptors());
        }
        match recorded.payload {
            Payload::Nothing => {}
            Payload::Hash(_) if recorded.payload == self.hash(result) => {}
            Payload::Hash(_) => self.differs(&mut turn, &Difference::Bytes, context),
            Payload::Written => {
                let mut left = payload;
                let written = self.written(result, &given, &mut |(to, len)| {
                    let (piece, rest) = left.split_at_checked(len).ok_or(0isize)?;
                    left = rest;
                    memory::write_bytes(to, piece)
                });
                if written.is_err() || !left.is_empty() {
                    self.differs(&mut turn, &Difference::Payload, context);
                }
            }
            Payload::Words => {
                let mut left = payload;
                let written = self.written(result, &given, &mut |(to, len)| {
                    let mut buffer = [0; 1200];
                    for at in (0..len).step_by(buffer.len()) {
                        let part = &mut buffer[..(len - at).min(1200)];
                        left = read_words(left, part).ok_or(0isize)?;
                        memory::write_bytes(to + at, part)?;
                    }
                    Ok(())
                });
                if written.is_err() || !left.is_empty() {
                    self.differs(&mut turn, &Difference::Payload, context);
                }
            }
        }
        if descriptors.is_some_and(|mut made| !made.move_to(&self.descriptors())) {
            self.differs(&mut turn, &Difference::Payload, context);
        }
        if self.is_buried(result) {
            self.bury(result);
        }
        self.follow(result);
        if self.name == Sysno::rt_sigtimedwait
            && let Ok(signal) = checked(result)
        {
            let _no_more = thread.held.take(SigSet::default().with(signal as u32));
        }
        if let Ok(result) = checked(result) {
            let now = group::now().load(Relaxed);
            engine::timers().follow(self.name, self.args, result, now);
        }
        turn.engine().go_on(Head::Call(recorded), place);
        if let Some(child) = thread.vforked.take() {
            turn.must_give_way();
            birth::wait_for(child);
        }
        turn.gives_way(Left::Behind);
        if !turn.is_over() {
            turn.engine().take_signal(thread, false);
        }
        Outcome::Value(result)
    }

    /// The next record, which is of this call.
    pub(super) fn recorded(
        &self,
        turn: &mut Turn,
        context: &Context,
    ) -> (Call, &'static [u8], Place) {
        match turn.engine().peek() {
            Some((Head::Call(call), payload, place))
                if usize::from(call.number) == self.number() && call.digest == self.digest() =>
            {
                (call, payload, place)
            }
            _ => {
                turn.is_killed();
                let other = turn.engine().other();
                self.differs(turn, &other, context)
            }
        }
    }

    /// Behind the end of a recording.
    fn make_for_real(&self, thread: &'static Thread, context: &mut Context) -> Outcome {
        // Who was to wake it may have done so, as far as it knows.
        let has_been_awaited = turns().are_shared() && waits::is_futex_wait(self.name, self.args);
        if has_been_awaited { Outcome::Value(0) } else { self.make(thread, context) }
    }

    /// Whether a replay makes it again.
    fn is_repeated(&self) -> bool {
        matches!(self.plan.class, Class::Execute | Class::Repeat)
    }

    fn is_made_again(&self, result: isize) -> bool {
        // One that a signal has ended would wait for it; one that has failed to execute a program, or to make
        // a thread, might not.
        let is_lucky = executes(self.name) || (makes_one(self.name) && result < 0);
        self.is_repeated() && result != error(EINTR) && !is_lucky
    }

    fn make_again(
        &self,
        turn: &mut Turn,
        recorded: &Call,
        thread: &'static Thread,
        context: &mut Context,
    ) -> isize {
        let result = recorded.result as isize;
        if let Wait::Inside(events) = self.wait()
            && result >= 0
            && waits::would_wait(self.name, self.args, events)
        {
            self.differs(turn, &Difference::Waits, context);
        }
        let args = self.as_recorded(result);
        turn.engine().told = makes_one(self.name).then_some(result as i32);
        let made = |args: &Args| dispatch::call(thread, self.number(), args, context);
        let Outcome::Value(now) = ids::given(self.name, args, made) else {
            unreachable!("what goes on elsewhere has no record")
        };
        let agree = match self.plan.class {
            Class::Repeat if makes_one(self.name) => now >= 0,
            Class::Repeat => true,
            _ if kinds::makes_one(self.name, self.args) => {
                now == result || (now >= 0 && result >= 0 && moves(now, result))
            }
            _ => now == result,
        };
        if !agree {
            let (recorded, replayed) = (recorded.result, now);
            self.differs(turn, &Difference::Result { recorded, replayed }, context);
        }
        now
    }

    /// Those that the call has written to memory, and made.
    fn descriptors(&self) -> Descriptors {
        match kinds::makes_two(self.name, self.args) {
            Some(at) => Descriptors::two(at),
            None if self.name == Sysno::recvmsg && self.plan.class == Class::Execute => {
                let mut found = Descriptors::NONE;
                pieces::descriptors(self.args[1], |fd| found.add(fd));
                found
            }
            None => Descriptors::NONE,
        }
    }

    /// The arguments with which the call comes to what it came to.
    fn as_recorded(&self, result: isize) -> Args {
        let mut args = *self.args;
        let [_, _, _, flags, ..] = args;
        let fixed = (MAP_FIXED | MAP_FIXED_NOREPLACE) as usize;
        if self.name == Sysno::mmap && flags & fixed == 0 && checked(result).is_ok() {
            args[0] = result.cast_unsigned();
            args[3] |= MAP_FIXED_NOREPLACE as usize;
        }
        let moves = result.cast_unsigned() != args[0] && flags & MREMAP_MAYMOVE as usize != 0;
        if self.name == Sysno::mremap && checked(result).is_ok() && moves {
            args[3] |= MREMAP_FIXED as usize;
            args[4] = result.cast_unsigned();
        }
        args
    }

    /// What else a call has done that was not made again.
    fn follow(&self, result: isize) {
        let Ok(value) = checked(result) else { return };
        match self.name {
            Sysno::accept => stand_in(value, 0, connection),
            Sysno::accept4 => stand_in(value, self.args[3], connection),
            _ if self.plan.class == Class::Emulate && kinds::opens(self.name) => {
                let flags = if self.name == Sysno::open { self.args[1] } else { self.args[2] };
                stand_in(value, flags, nothing);
            }
            Sysno::sendfile if self.args[2] == 0 => {
                // SAFETY: as the call would have moved it.
                let _moved = unsafe { own!(lseek, self.args[1], value, SEEK_CUR) };
            }
            _ => {}
        }
        kinds::follow(self.name, self.args, value);
    }

    fn written(
        &self,
        result: isize,
        given: &Given,
        see: &mut impl FnMut(Piece) -> Result<(), isize>,
    ) -> Result<(), isize> {
        match self.plan.written {
            Some(piece) if result >= 0 => see(piece),
            Some(_) => Ok(()),
            None => pieces::written(self.name, self.entry, self.args, result, given, see),
        }
    }

    /// Of what the program has given to the kernel, or got from a file of its own.
    fn hash(&self, result: isize) -> Payload {
        let Ok(result) = checked(result) else { return Payload::Nothing };
        let mut hasher = Hasher::new();
        if maps_code(self.name, self.args) {
            hash_code(&mut hasher, result, self.args[1]);
            return Payload::Hash(hasher.hash() as u32);
        }
        let mut some = false;
        let mut add = |(at, len)| {
            some = true;
            // SAFETY: the kernel has read it, or written to it, a moment ago.
            hasher.add(unsafe { bytes(at, len) });
            Ok(())
        };
        let _given = pieces::given(self.entry, self.args, result, &mut add);
        if self.plan.class == Class::Execute {
            let (name, given) = (self.name, Given::default());
            let result = result.cast_signed();
            let _got = pieces::written(name, self.entry, self.args, result, &given, &mut add);
        }
        if some { Payload::Hash(hasher.hash() as u32) } else { Payload::Nothing }
    }

    pub(super) fn differs(&self, turn: &mut Turn, difference: &Difference, context: &Context) -> ! {
        let made = Made { number: self.number(), args: self.args };
        let at = Where::of(context);
        turn.engine().differs(format_args!("the program makes: {made}\n  {difference}\n  at: {at}"))
    }
}

/// A child of `vfork` has the memory until it has its own. Others go on meanwhile.
fn wait_for_vforked(turn: &mut Turn, thread: &Thread) {
    if let Some(child) = thread.vforked.take() {
        turn.behind(|| birth::wait_for(child));
    }
}

/// # Safety
/// They are there, and nobody writes to them meanwhile.
pub(super) unsafe fn bytes<'a>(at: usize, len: usize) -> &'a [u8] {
    // SAFETY: by the caller's word.
    unsafe { slice::from_raw_parts(at as *const u8, len) }
}

/// Of mapped instructions, as far as their file goes.
fn hash_code(hasher: &mut Hasher, at: usize, len: usize) {
    let mut buffer = [0; 4096];
    for from in (at..at + len).step_by(buffer.len()) {
        let part = &mut buffer[..(at + len - from).min(4096)];
        if memory::read_bytes(from, part).is_err() {
            break;
        }
        hasher.add(part);
    }
}

//! Records what a program does, and replays it.
//!
//! Both are one walk over the same calls. What a call is decides `plan`, from the table of all calls and,
//! where the table cannot say, from its descriptor or its command. While a program is *recorded*, every
//! call is made, and what the world has said with it is written down. While it is *replayed*, calls that
//! are about the program itself are made again and must come to the same, and the others are answered from
//! the record. Between two calls nothing can differ: the program begins with the same memory at the same
//! addresses, signals are delivered at calls only, and it cannot ask for the time without a call.
//!
//! What is not understood ends the recording, never the program: it is said, and the program goes on
//! without being recorded. So far that is so for a second thread and for a child, too. A replay ends
//! with the first difference.
//!
//! Code here runs where a call is dispatched. It is not entered twice: there is one thread, and signal
//! handlers of the runtime that interrupt it only take note of the signal.

mod command;
pub mod entry;
mod kinds;
mod pieces;
pub mod report;
mod stream;
mod timers;
mod tsc;

use core::cell::UnsafeCell;
use core::fmt;
use core::slice;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use linux_raw_sys::errno::EINTR;
use linux_raw_sys::general::{
    AT_FDCWD, F_DUPFD_CLOEXEC, O_RDWR, PROT_EXEC, SEEK_CUR, SIGSEGV, SIGSTOP,
};
use linux_raw_sys::general::{MAP_FIXED, MAP_FIXED_NOREPLACE, MREMAP_FIXED, MREMAP_MAYMOVE};
use recording::{Begin, Call, End, Hasher, Head, Payload, Place, Signal, digest};
use systable::{Class, Entry, Refusal, Rule, Sysno};

use crate::config::{Recorder, Way};
use crate::dispatch::{self, Outcome};
use crate::errno::Errno;
use crate::frame::{Context, SigInfo};
use crate::sigset::{SIGNALS, SigSet};
use crate::sys::{Args, NOT_MADE, checked, error};
use crate::thread::{Deferred, Thread};
use crate::{memory, own, say, signal, site};

use kinds::Kind;
use pieces::{Given, Piece};
use report::{Brief, Difference, Made, SHOWN, Where};
use stream::Stream;
use timers::Timers;

const OFF: u8 = 0;
const RECORD: u8 = 1;
const REPLAY: u8 = 2;
/// It was on, and is no more.
const OVER: u8 = 3;

static MODE: AtomicU8 = AtomicU8::new(OFF);

/// Status of a replay that could not be brought to its end.
const FAILED: i32 = 1;

struct Cell(UnsafeCell<Option<Engine>>);

// SAFETY: used by the one thread of a program that is recorded.
unsafe impl Sync for Cell {}

static ENGINE: Cell = Cell(UnsafeCell::new(None));

struct Engine {
    stream: Stream,
    /// Records so far.
    count: u64,
    /// Calls behind the last record of which there is none.
    unrecorded: u32,
    /// Whether the last call was not made, since a signal had come before.
    not_made: bool,
    /// The last records.
    last: [Option<Head>; SHOWN],
    /// Whether it is written, or followed, and how far.
    way: Way,
    /// Those of a replayed program.
    timers: Timers,
}

/// What becomes of a call.
#[derive(Clone, Copy)]
struct Plan {
    class: Class,
    /// What the kernel writes, of a call whose command says it.
    written: Option<Piece>,
    /// Errors that leave the call without an effect: it ends nothing if it fails with one.
    fails_with: &'static [u32],
}

impl Plan {
    const fn of(class: Class) -> Plan {
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
        // One thread, one process.
        Sysno::clone | Sysno::clone3 | Sysno::fork | Sysno::vfork => return ENDS,
        Sysno::mmap => return command::mmap(args),
        Sysno::open | Sysno::openat | Sysno::openat2 | Sysno::creat
            if kinds::is_made_up(name, args) =>
        {
            return Plan::of(Class::Emulate);
        }
        Sysno::sendmsg if pieces::has_control(args[1]) => return ENDS,
        Sysno::sendmmsg | Sysno::recvmmsg => return ENDS,
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
        Class::Emulate | Class::Repeat => Kept::Written,
        // Where in the file it has come to; the bytes are the file's.
        Class::Output if name == Sysno::sendfile => Kept::Written,
        Class::Output => Kept::Hash,
        Class::Execute if matches!(entry.rule, Rule::Descriptor { .. }) => Kept::Hash,
        Class::Execute if maps_code(name, args) => Kept::Hash,
        _ => Kept::Nothing,
    }
}

/// Whether it maps a file's instructions.
fn maps_code(name: Sysno, args: &Args) -> bool {
    name == Sysno::mmap && args[2] & PROT_EXEC as usize != 0 && kinds::of(args[4]) == Kind::File
}

fn ends_the_process(name: Sysno) -> bool {
    [Sysno::exit, Sysno::exit_group].contains(&name)
}

fn executes(name: Sysno) -> bool {
    [Sysno::execve, Sysno::execveat].contains(&name)
}

/// How a program begins.
pub struct Beginning {
    /// Sixteen bytes that the kernel has made up for it.
    pub random: *mut [u8; 16],
    /// Its stack pointer.
    pub stack: usize,
    /// Its instructions, and its interpreter's.
    pub code: [(usize, usize); 2],
}

fn set_mode(mode: u8) {
    MODE.store(mode, Relaxed);
    site::enter(is_on());
}

/// Whether the program is recorded, or replayed.
pub fn is_on() -> bool {
    [RECORD, REPLAY].contains(&MODE.load(Relaxed))
}

/// Whether it is or was: a call may have begun meanwhile.
pub fn was_on() -> bool {
    MODE.load(Relaxed) != OFF
}

/// What the program that this one is about to execute goes on with. `None`: nothing is recorded.
pub fn heir() -> Option<Recorder> {
    // SAFETY: see `engine`.
    let engine = unsafe { (*ENGINE.0.get()).as_ref() }?;
    let Place { at, seed } = engine.stream.place();
    Some(Recorder { fd: engine.stream.fd() as i32, way: engine.way, count: engine.count, at, seed })
}

/// The program is about to execute one that runs without the runtime.
pub fn leave(args: [usize; 3]) {
    if MODE.load(Relaxed) == RECORD {
        let number = Sysno::execve as u16;
        end(End::Refused { number, args: args.map(|arg| arg as u64) });
    }
}

/// The descriptor of the recording.
pub fn own_fd() -> Option<usize> {
    // SAFETY: see `engine`.
    unsafe { (*ENGINE.0.get()).as_ref() }.map(|engine| engine.stream.fd())
}

/// The recording has another descriptor from now on.
pub fn move_fd(fd: usize) {
    engine().stream.set_fd(fd);
}

fn engine() -> &'static mut Engine {
    // SAFETY: there is one thread, and it is not in here twice.
    unsafe { (*ENGINE.0.get()).as_mut() }.expect("it is recorded, or replayed")
}

/// The program is about to begin.
pub fn begin(recorder: Recorder, beginning: &Beginning) {
    let mut code = Hasher::new();
    for (from, to) in beginning.code {
        // SAFETY: mapped a moment ago, to be read and executed.
        code.add(unsafe { slice::from_raw_parts(from as *const u8, to - from) });
    }
    // SAFETY: where the kernel has put them.
    let random = unsafe { beginning.random.read() };
    let stack = beginning.stack as u64;
    let begin = Begin { random, stack, code: code.hash() };
    let Recorder { fd, way, count, at, seed } = recorder;
    let (fd, writes) = (fd as usize, way == Way::Record);
    let stream = match at {
        0 if writes => Stream::create(fd).map(Ok),
        0 => Stream::open(fd),
        at => Stream::resume(fd, Place { at, seed }, writes).map(Ok),
    };
    let stream = match stream {
        Ok(Ok(stream)) => stream,
        Ok(Err(damage)) => failed(format_args!("cannot replay: {}", report::damage(damage))),
        Err(why) => failed(format_args!("cannot use the file of the recording: {}", Errno(why))),
    };
    let (last, timers) = ([None; SHOWN], Timers::new());
    let fresh = Engine { stream, count, unrecorded: 0, not_made: false, last, way, timers };
    // SAFETY: the program has not begun, and nobody else is there.
    unsafe { *ENGINE.0.get() = Some(fresh) };
    if writes {
        set_mode(RECORD);
        engine().append(&Head::Begin(begin), 0, |_| {});
    } else {
        set_mode(REPLAY);
        let random = engine().check_beginning(&begin);
        // SAFETY: where the kernel has put others.
        unsafe { beginning.random.write(random) };
    }
    keep_voice(engine().stream.fd());
    tsc::allow(false);
}

/// A program that closes its standard error does not silence us.
fn keep_voice(above: usize) {
    // SAFETY: a further descriptor of it.
    if let Ok(fd) = unsafe { own!(fcntl, 2, F_DUPFD_CLOEXEC, above + 1) } {
        say::to(fd);
    }
}

fn failed(why: fmt::Arguments) -> ! {
    say::die(FAILED, why)
}

/// A system call of a program that is recorded or replayed.
pub fn call(thread: &'static Thread, number: usize, args: Args, context: &mut Context) -> Outcome {
    let Some(name) = Sysno::new(number) else {
        // The kernel says so, each time.
        return unrecorded(thread, number, args, context);
    };
    let entry = systable::entry(name);
    let plan = plan(name, entry, &args);
    let of = Of { name, entry, plan, args };
    match (MODE.load(Relaxed), plan.is_recorded()) {
        (_, false) => unrecorded(thread, number, args, context),
        (RECORD, true) => of.record(thread, context),
        _ => of.replay(thread, context),
    }
}

/// A call of which there is no record.
fn unrecorded(
    thread: &'static Thread,
    number: usize,
    args: Args,
    context: &mut Context,
) -> Outcome {
    let replays = MODE.load(Relaxed) == REPLAY;
    if replays && engine().take_signal(thread, true) {
        return Outcome::Value(NOT_MADE);
    }
    let outcome = dispatch::call(thread, number, args, context);
    let engine = engine();
    engine.not_made = matches!(outcome, Outcome::Value(NOT_MADE));
    if !engine.not_made {
        engine.unrecorded += 1;
    }
    if replays {
        engine.take_signal(thread, false);
    }
    outcome
}

/// A call, and what there is to know of it.
struct Of {
    name: Sysno,
    entry: &'static Entry,
    plan: Plan,
    args: Args,
}

impl Of {
    fn number(&self) -> usize {
        self.name as usize
    }

    fn digest(&self) -> u16 {
        digest(&self.args[..self.entry.arguments.len()])
    }

    fn record(&self, thread: &'static Thread, context: &mut Context) -> Outcome {
        let made =
            |context: &mut Context| dispatch::call(thread, self.number(), self.args, context);
        if self.plan.ends() && self.plan.fails_with.is_empty() {
            self.end_recording();
            return made(context);
        }
        if ends_the_process(self.name) {
            end(End::Exited { status: self.args[0] as i32 });
            return made(context);
        }
        let given = Given::read(self.entry, &self.args);
        let outcome = made(context);
        let Outcome::Value(result) = outcome else { return outcome };
        engine().not_made = result == NOT_MADE;
        if result == NOT_MADE {
            return outcome;
        }
        let fails = self.plan.fails_with.iter().any(|&errno| result == -(errno as isize));
        let has_control =
            self.name == Sysno::recvmsg && result >= 0 && pieces::has_control(self.args[1]);
        if (self.plan.ends() && !fails) || has_control {
            self.end_recording();
            return outcome;
        }
        let followed = checked(result).is_err()
            || kinds::follow(self.name, &self.args, result.cast_unsigned());
        let call = |payload| {
            let (number, digest) = (self.number() as u16, self.digest());
            Head::Call(Call { number, digest, result: result as i64, payload })
        };
        let engine = engine();
        match kept(self.name, self.entry, self.plan.class, &self.args) {
            Kept::Nothing => engine.append(&call(Payload::Nothing), 0, |_| {}),
            Kept::Hash => engine.append(&call(self.hash(result)), 0, |_| {}),
            Kept::Written => {
                let mut length = 0;
                let _counted = self.written(result, &given, &mut |(_, len)| {
                    length += len;
                    Ok(())
                });
                let payload = if length == 0 { Payload::Nothing } else { Payload::Written };
                engine.append(&call(payload), length, |out| {
                    let mut at = 0;
                    let _copied = self.written(result, &given, &mut |(from, len)| {
                        // SAFETY: the kernel has written to it a moment ago.
                        out[at..at + len].copy_from_slice(unsafe { bytes(from, len) });
                        at += len;
                        Ok(())
                    });
                });
            }
        }
        if !followed {
            self.end_recording();
        }
        outcome
    }

    fn replay(&self, thread: &'static Thread, context: &mut Context) -> Outcome {
        let engine = engine();
        if engine.take_signal(thread, true) {
            return Outcome::Value(NOT_MADE);
        }
        let (recorded, payload, place) = match engine.peek() {
            Some((Head::Call(call), payload, place))
                if usize::from(call.number) == self.number() && call.digest == self.digest() =>
            {
                (call, payload, place)
            }
            // It has succeeded: the next program follows this record.
            Some((Head::Begin(_), ..)) if executes(self.name) => {
                let why = dispatch::call(thread, self.number(), self.args, context);
                let Outcome::Value(why) = why else {
                    unreachable!("it returns an error, or not at all")
                };
                self.differs(&Difference::Result { recorded: 0, replayed: why }, context)
            }
            Some((Head::End(End::Exited { status }), _, _)) if ends_the_process(self.name) => {
                engine.finish(status)
            }
            Some((Head::End(_), ..)) | None => {
                engine.stop();
                return dispatch::call(thread, self.number(), self.args, context);
            }
            Some((other, ..)) => self.differs(&Difference::Other(other), context),
        };
        let result = recorded.result as isize;
        let given = Given::read(self.entry, &self.args);
        // One that a signal has ended would wait for it; one that has failed to execute a program might not.
        let is_made = result != error(EINTR) && !executes(self.name);
        if is_made && matches!(self.plan.class, Class::Execute | Class::Repeat) {
            let args = self.as_recorded(result);
            let Outcome::Value(now) = dispatch::call(thread, self.number(), args, context) else {
                unreachable!("what goes on elsewhere has no record")
            };
            if now != result && self.plan.class == Class::Execute {
                let (recorded, replayed) = (recorded.result, now);
                self.differs(&Difference::Result { recorded, replayed }, context);
            }
        }
        match recorded.payload {
            Payload::Nothing => {}
            Payload::Hash(_) if recorded.payload == self.hash(result) => {}
            Payload::Hash(_) => self.differs(&Difference::Bytes, context),
            Payload::Written => {
                let mut left = payload;
                let written = self.written(result, &given, &mut |(to, len)| {
                    let (piece, rest) = left.split_at_checked(len).ok_or(0isize)?;
                    left = rest;
                    memory::write_bytes(to, piece)
                });
                if written.is_err() || !left.is_empty() {
                    self.differs(&Difference::Payload, context);
                }
            }
        }
        self.follow(result);
        engine.timers.follow(self.name, &self.args);
        engine.go_on(Head::Call(recorded), place);
        engine.take_signal(thread, false);
        Outcome::Value(result)
    }

    /// The arguments with which the call comes to what it came to.
    fn as_recorded(&self, result: isize) -> Args {
        let mut args = self.args;
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
            Sysno::accept | Sysno::accept4 => stand_in(value, self.args[3], connection),
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
        kinds::follow(self.name, &self.args, value);
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
            None => pieces::written(self.name, self.entry, &self.args, result, given, see),
        }
    }

    /// Of what the program has given to the kernel, or got from a file of its own.
    fn hash(&self, result: isize) -> Payload {
        let Ok(result) = checked(result) else { return Payload::Nothing };
        let mut hasher = Hasher::new();
        if maps_code(self.name, &self.args) {
            hash_code(&mut hasher, result, self.args[1]);
            return Payload::Hash(hasher.hash());
        }
        let mut some = false;
        let mut add = |(at, len)| {
            some = true;
            // SAFETY: the kernel has read it, or written to it, a moment ago.
            hasher.add(unsafe { bytes(at, len) });
            Ok(())
        };
        let _given = pieces::given(self.entry, &self.args, result, &mut add);
        if self.plan.class == Class::Execute {
            let (name, given) = (self.name, Given::default());
            let result = result.cast_signed();
            let _got = pieces::written(name, self.entry, &self.args, result, &given, &mut add);
        }
        if some { Payload::Hash(hasher.hash()) } else { Payload::Nothing }
    }

    fn end_recording(&self) {
        let [a, b, c, ..] = self.args.map(|arg| arg as u64);
        end(End::Refused { number: self.number() as u16, args: [a, b, c] });
    }

    fn differs(&self, difference: &Difference, context: &Context) -> ! {
        let engine = engine();
        let made = Made { number: self.number(), args: &self.args };
        let at = Where::of(context);
        failed(format_args!(
            "the replay is not what was recorded, behind {engine}.\n  the program makes: {made}\n  \
            {difference}\n  at: {at}"
        ))
    }
}

/// Puts something at a number where the program is told that there is a descriptor, and there is none.
fn stand_in(fd: usize, flags: usize, make: fn(usize) -> Result<usize, isize>) {
    const O_CLOEXEC: usize = 0o2_000_000;
    let Ok(made) = make(flags) else { return };
    if made != fd {
        // SAFETY: where nothing is.
        unsafe {
            let _there = own!(dup3, made, fd, flags & O_CLOEXEC);
            let _closed = own!(close, made);
        }
    }
}

/// In place of a connection, while nobody is at its other end. The flags are those of `accept4`.
fn connection(flags: usize) -> Result<usize, isize> {
    const AF_INET: usize = 2;
    const SOCK_STREAM: usize = 1;
    // SAFETY: makes a descriptor.
    unsafe { own!(socket, AF_INET, SOCK_STREAM | flags, 0) }
}

/// In place of what the kernel made up when it was recorded.
fn nothing(_: usize) -> Result<usize, isize> {
    // SAFETY: makes a descriptor.
    unsafe { own!(openat, AT_FDCWD, c"/dev/null".as_ptr(), O_RDWR) }
}

/// # Safety
/// They are there, and nobody writes to them meanwhile.
unsafe fn bytes<'a>(at: usize, len: usize) -> &'a [u8] {
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

/// The recording ends, and the program goes on, or ends as well.
fn end(how: End) {
    let engine = engine();
    let _written = engine.stream.append(&Head::End(how), 0, |_| {});
    if !matches!(how, End::Exited { .. }) {
        say::line(format_args!("the recording ends here: {}", Brief(Head::End(how))));
    }
    stop_recording();
}

fn stop_recording() {
    stop();
    let action = Thread::current().process().action(SIGSEGV);
    let _as_before = signal::tell_about(SIGSEGV, &action);
}

/// A replayed program's handlers and timers become real. Its connections are at their end, and it finds out.
fn go_on_for_real() {
    let started = engine().timers.start();
    let process = Thread::current().process();
    stop();
    for number in 1..=SIGNALS {
        let _told = signal::tell_about(number, &process.action(number));
    }
    if !started {
        say::line(format_args!("it has more timers than could be started again"));
    }
}

fn stop() {
    let engine = engine();
    set_mode(OVER);
    engine.stream.close();
    // SAFETY: nobody uses it behind this.
    unsafe { *ENGINE.0.get() = None };
    say::as_the_program();
    tsc::allow(true);
}

/// Whether a signal that interrupts the program waits for its next call.
pub fn defers(info: &SigInfo) -> bool {
    MODE.load(Relaxed) == RECORD && !signal::is_fault(info)
}

/// Whether the program's handlers of such signals are called in a replay by the record alone.
pub fn keeps_handlers(signal: u32) -> bool {
    MODE.load(Relaxed) == REPLAY && !signal::may_be_fault(signal)
}

/// A signal is about to be delivered that has waited for it.
pub fn delivered(deferred: &Deferred) {
    if MODE.load(Relaxed) != RECORD {
        return;
    }
    let engine = engine();
    let signal = Signal {
        before: engine.not_made,
        behind: engine.unrecorded,
        temporary: deferred.temporary.map(|mask| mask.0),
    };
    let info = deferred.info.bytes();
    let len = info.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    engine.append(&Head::Signal(signal), len, |out| out.copy_from_slice(&info[..len]));
}

/// A fault of the program's that is none: it wanted to know the time.
pub fn reads_the_clock(info: &SigInfo, context: &mut Context) -> bool {
    if !is_on() || info.signal.cast_unsigned() != SIGSEGV {
        return false;
    }
    let Some(len) = tsc::reads(context) else { return false };
    let engine = engine();
    let read = if MODE.load(Relaxed) == RECORD {
        let (counter, processor) = tsc::read();
        engine.append(&Head::Tsc(counter, processor), 0, |_| {});
        (counter, processor)
    } else {
        match engine.peek() {
            Some((head @ Head::Tsc(counter, processor), _, place)) => {
                engine.go_on(head, place);
                (counter, processor)
            }
            Some((Head::End(_), ..)) | None => {
                engine.stop();
                return true;
            }
            Some((other, ..)) => {
                let at = Where::of(context);
                failed(format_args!(
                    "the replay is not what was recorded, behind {engine}.\n  the program reads \
                    the time stamp counter\n  {}\n  at: {at}",
                    Difference::Other(other)
                ))
            }
        }
    };
    tsc::go_on(context, len, read);
    true
}

impl Engine {
    /// Appends a record; if there is no room for it, the recording ends.
    fn append(&mut self, head: &Head, length: usize, payload: impl FnOnce(&mut [u8])) {
        match self.stream.append(head, length, payload) {
            Ok(()) => self.note(*head),
            Err(why) => end(End::Unwritten { errno: -why as i32 }),
        }
    }

    fn note(&mut self, head: Head) {
        self.count += 1;
        self.unrecorded = 0;
        self.last.rotate_left(1);
        self.last[SHOWN - 1] = Some(head);
    }

    /// The next record. `None`: there is none.
    fn peek(&mut self) -> Option<(Head, &'static [u8], Place)> {
        let count = self.count;
        match self.stream.peek() {
            Ok(Ok(None)) => None,
            Ok(Ok(Some((record, place)))) => {
                // SAFETY: mapped until the next record is asked for, which is behind this one's use.
                let payload =
                    unsafe { bytes(record.payload.as_ptr() as usize, record.payload.len()) };
                Some((record.head, payload, place))
            }
            Ok(Err(damage)) => failed(format_args!(
                "the replay ends behind record {count}, at byte {} of the recording: {}",
                self.stream.place().at,
                report::damage(damage)
            )),
            Err(why) => failed(format_args!("cannot read on in the recording: {}", Errno(why))),
        }
    }

    /// A record has been followed.
    fn go_on(&mut self, head: Head, place: Place) {
        self.stream.go_on(place);
        self.note(head);
        if matches!(self.way, Way::Replay { until, .. } if until == Some(self.count)) {
            say::line(format_args!("the replay stops behind {self}; SIGCONT goes on"));
            // SAFETY: the process stops, and goes on when somebody says so.
            unsafe {
                let pid = own!(getpid).unwrap_or(0);
                let _stopped = own!(kill, pid, SIGSTOP);
            }
        }
    }

    /// Delivers the signal that was delivered here, in front of a call or behind it. Whether there is one.
    fn take_signal(&mut self, thread: &Thread, before: bool) -> bool {
        let unrecorded = self.unrecorded;
        let Some((head @ Head::Signal(signal), payload, place)) = self.peek() else { return false };
        if (signal.before, signal.behind) != (before, unrecorded) {
            return false;
        }
        signal::block(SigSet::ALL.real());
        let temporary = signal.temporary.map(SigSet);
        thread.defer_replayed(Deferred { info: SigInfo::of_bytes(payload), temporary });
        self.go_on(head, place);
        true
    }

    fn check_beginning(&mut self, begin: &Begin) -> [u8; 16] {
        let Some((head @ Head::Begin(recorded), _, place)) = self.peek() else {
            failed(format_args!("cannot replay: the recording has no beginning"))
        };
        if recorded.code != begin.code {
            failed(format_args!(
                "cannot replay: the program, or the interpreter that it names (ld.so), is another \
                one than was recorded"
            ));
        }
        if recorded.stack != begin.stack {
            failed(format_args!(
                "cannot replay: the program's stack begins at {:#x}, and began at {:#x}: its \
                command line or environment is another one, or the kernel lays them out in another way",
                begin.stack, recorded.stack
            ));
        }
        self.go_on(head, place);
        recorded.random
    }

    /// The program ends where it ended.
    fn finish(&self, status: i32) -> ! {
        say::die(
            0,
            format_args!("replayed {} records, to where it ended with status {status}", self.count),
        )
    }

    /// There is nothing more: the program ends, or goes on for real.
    fn stop(&mut self) {
        let (count, live) = (self.count, matches!(self.way, Way::Replay { live: true, .. }));
        let end = match self.peek() {
            Some((head @ Head::End(_), ..)) => Some(Brief(head)),
            _ => None,
        };
        let say = |what: fmt::Arguments| match live {
            true => say::line(format_args!("{what}; the program goes on")),
            false => say::die(0, what),
        };
        match end {
            Some(end) => {
                say(format_args!("replayed {count} records; the recording ends here: {end}"));
            }
            None => say(format_args!(
                "replayed {count} records; there are no more: the program was killed, or still runs"
            )),
        }
        go_on_for_real();
    }
}

impl fmt::Display for Engine {
    /// Where it is.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "record {} (byte {} of the recording)", self.count, self.stream.place().at)?;
        let first = self.count - self.last.iter().flatten().count() as u64;
        for (i, head) in self.last.iter().flatten().enumerate() {
            write!(f, "\n    {} {}", first + i as u64 + 1, Brief(*head))?;
        }
        Ok(())
    }
}

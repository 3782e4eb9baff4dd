//! Records what a program does, and replays it.
//!
//! Both are one walk over the same calls ([`walk`]). While a program is *recorded*, every call is made, and
//! what the world has said with it is written down. While it is *replayed*, calls that are about the
//! program itself are made again and must come to the same, and the others are answered from the record.
//! Between two calls nothing can differ: the program begins with the same memory at the same addresses,
//! signals are delivered at calls only, it cannot ask for the time without a call, and of its threads one
//! at a time goes on ([`turns`]).
//!
//! What is not understood ends the recording, never the program: it is said, and the program goes on
//! without being recorded. A replay ends with the first difference.
//!
//! Code here runs where a call is dispatched. A thread does not enter it twice: signal handlers of the
//! runtime that interrupt it only take note of the signal.

mod clocks;
mod command;
mod ends;
mod engine;
pub mod entry;
mod group;
pub mod ids;
mod kinds;
mod long;
mod pieces;
mod placed;
mod processors;
pub mod report;
mod stream;
mod timers;
mod tsc;
mod turns;
mod waits;
mod walk;

use core::slice;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use linux_raw_sys::errno::EAGAIN;
use linux_raw_sys::general::{F_DUPFD, SIGSEGV};
use recording::{Begin, End, Hasher, Head, Signal};
use systable::Sysno;

use crate::config::{Recorder, Way};
use crate::dispatch::{self, Outcome};
use crate::errno::Errno;
use crate::frame::{Context, SigInfo};
use crate::sys::{Args, error};
use crate::thread::{Deferred, Thread};
use crate::{own, say, signal, site};

use engine::{Turn, failed};
use group::turns;
use report::Where;
use stream::Stream;
use turns::Ids;

pub use engine::heir;
pub use group::{FD as GROUP_FD, LEN as GROUP_LEN, OVER_AT};
pub use kinds::{forget_table, table_for_child};
pub use stream::FD as STREAM_FD;
pub use turns::Over;

const OFF: u8 = 0;
const RECORD: u8 = 1;
const REPLAY: u8 = 2;
/// It was on, and is no more.
const OVER: u8 = 3;

static MODE: AtomicU8 = AtomicU8::new(OFF);

/// Status of a replay that could not be brought to its end.
pub const FAILED: i32 = 1;

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

/// Whether what the program does is written down.
pub fn is_recording() -> bool {
    MODE.load(Relaxed) == RECORD
}

/// Whether it is answered from what was written down.
pub fn is_replaying() -> bool {
    MODE.load(Relaxed) == REPLAY
}

/// Nothing is recorded, or replayed, any more in this process. Whether something was.
fn ends() -> bool {
    let ends = is_on() && MODE.swap(OVER, Relaxed) != OVER;
    if ends {
        site::enter(false);
    }
    ends
}

/// Whether the program is recorded, or replayed.
pub fn is_on() -> bool {
    [RECORD, REPLAY].contains(&MODE.load(Relaxed))
}

/// Whether it is or was: a call may have begun meanwhile.
pub fn was_on() -> bool {
    MODE.load(Relaxed) != OFF
}

/// Whether it was, and is no more.
pub fn is_over() -> bool {
    MODE.load(Relaxed) == OVER
}

/// The program is about to execute one that runs without the runtime.
pub fn leave(args: [usize; 3]) {
    if is_recording() {
        let number = Sysno::execve as u16;
        let how = End::Refused { number, args: args.map(|arg| arg as u64) };
        Turn::held(Thread::current()).end(how);
    }
}

/// The program is about to begin.
pub fn begin(thread: &'static Thread, recorder: Recorder, beginning: &Beginning) {
    let mut code = Hasher::new();
    for (from, to) in beginning.code {
        // SAFETY: mapped a moment ago, to be read and executed.
        code.add(unsafe { slice::from_raw_parts(from as *const u8, to - from) });
    }
    // SAFETY: where the kernel has put them.
    let random = unsafe { beginning.random.read() };
    let pid = ids::own_process();
    let stack = beginning.stack as u64;
    let begin = Begin { random, stack, code: code.hash(), pid: pid.cast_unsigned() };
    let Recorder { fd, group, seat, voice, way } = recorder;
    let (fd, writes) = (fd as usize, way == Way::Record);
    if let Err(why) = group::join(group as usize) {
        say::die(FAILED, format_args!("cannot map what processes share: {}", Errno(why)));
    }
    if seat == 0 {
        let stream = if writes { Stream::create(fd).map(Ok) } else { Stream::open(fd) };
        let stream = match stream {
            Ok(Ok(stream)) => stream,
            Ok(Err(damage)) => failed(format_args!("cannot replay: {}", report::damage(damage))),
            Err(why) => {
                failed(format_args!("cannot use the file of the recording: {}", Errno(why)))
            }
        };
        thread.seat.set(turns::FIRST);
        engine::make(way, stream);
    } else {
        thread.seat.set(seat);
        stream::FD.set(fd);
        kinds::inherit();
        *engine::timers() = group::timers();
        turns().dismiss_others(seat);
    }
    set_mode(if writes { RECORD } else { REPLAY });
    let mut turn = Turn::held(thread);
    if writes {
        turn.append(&Head::Begin(begin));
        ids::sits(thread, pid, None);
    } else {
        let recorded = turn.engine().check_beginning(&begin);
        ids::sits(thread, pid, Some(recorded.pid.cast_signed()));
        // SAFETY: where the kernel has put others.
        unsafe { beginning.random.write(recorded.random) };
    }
    keep_voice(voice, fd);
    tsc::allow(false);
}

/// A program that closes its standard error does not silence us, nor those that it executes.
fn keep_voice(inherited: Option<i32>, above: usize) {
    // SAFETY: a further descriptor of it.
    let further = || unsafe { own!(fcntl, 2, F_DUPFD, above + 1) }.ok();
    if let Some(fd) = inherited.map(|fd| fd as usize).or_else(further) {
        say::VOICE.set(fd);
    }
}

/// A system call of a program that is, or was, recorded or replayed.
pub fn call(thread: &'static Thread, number: usize, args: &Args, context: &mut Context) -> Outcome {
    match Turn::enter(thread) {
        Some(turn) => walk::call(turn, thread, number, args, context),
        None => dispatch::call(thread, number, args, context),
    }
}

/// A thread, or a process, that is about to be made.
pub struct Newborn {
    seat: u16,
    told: Option<i32>,
}

/// A thread is about to be made, or a process, which takes turns with the others.
///
/// # Errors
/// `EAGAIN`: there are too many.
pub fn admit(thread: &Thread, is_process: bool) -> Result<Newborn, isize> {
    let seat = turns().admit(thread.seat.get(), is_process).ok_or(error(EAGAIN))?;
    Ok(Newborn { seat, told: group::engine().told.take() })
}

impl Newborn {
    /// It is this one.
    pub fn sits(&self, child: &Thread) {
        child.seat.set(self.seat);
    }

    /// It was not made.
    pub fn dismiss(self) {
        turns().dismiss(self.seat);
    }

    /// It was made, with this number: the one that the program is told.
    pub fn is_made(&self, tid: i32, is_process: bool) -> i32 {
        let told = self.told.map(|told| {
            let process = if is_process { told } else { ids::told_process() };
            Ids { thread: told, process }
        });
        let process = if is_process { tid } else { ids::own_process() };
        let real = Ids { thread: tid, process };
        turns().set_ids(self.seat, real, told.unwrap_or(real));
        self.told.unwrap_or(tid)
    }

    /// In a child that has a copy of the memory: it waits for its turn. The number that it is told.
    pub fn begins(&self, thread: &'static Thread) -> i32 {
        thread.seat.set(self.seat);
        *engine::timers() = timers::Timers::new();
        arrive(thread);
        ids::begins(thread, self.told);
        ids::told_process()
    }
}

/// A thread is about to begin: it waits for its turn.
pub fn arrive(thread: &'static Thread) {
    if !is_on() {
        return;
    }
    if let Some(mut turn) = Turn::first(thread)
        && is_replaying()
    {
        turn.engine().take_signal(thread, false);
    }
}

/// Whether a signal that interrupts the program waits for its next call.
pub fn defers(info: &SigInfo) -> bool {
    is_recording() && !signal::is_fault(info)
}

/// Whether the program's handlers of such signals are called in a replay by the record alone.
pub fn keeps_handlers(signal: u32) -> bool {
    is_replaying() && !signal::may_be_fault(signal)
}

/// A signal is about to be delivered that has waited for it.
pub fn delivered(thread: &'static Thread, deferred: &Deferred) {
    if !is_recording() {
        return;
    }
    let Some(mut turn) = Turn::enter(thread) else { return };
    turn.tell_time(false);
    let signal = Signal {
        before: thread.not_made.get(),
        behind: turn.engine().unrecorded,
        temporary: deferred.temporary.map(|mask| mask.0),
    };
    let info = deferred.info.bytes();
    let len = info.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    turn.append_with(&Head::Signal(signal), len, |out| {
        out.get_mut(..len)?.copy_from_slice(&info[..len]);
        Some(len)
    });
}

/// A fault of the program's that is none: it wanted to know the time.
pub fn reads_the_clock(thread: &'static Thread, info: &SigInfo, context: &mut Context) -> bool {
    if !was_on() || info.signal.cast_unsigned() != SIGSEGV {
        return false;
    }
    let Some(len) = tsc::reads(context) else { return false };
    let Some(mut turn) = Turn::enter(thread) else {
        // It may again, and this thread has not heard of it.
        return tsc::allow_again();
    };
    let read = if is_recording() {
        let (counter, processor) = tsc::read();
        turn.append(&Head::Tsc(counter, processor));
        (counter, processor)
    } else {
        if turn.stops() {
            return true;
        }
        let engine = turn.engine();
        let Some((head @ Head::Tsc(counter, processor), _, place)) = engine.peek() else {
            let (other, at) = (engine.other(), Where::of(context));
            engine.differs(format_args!(
                "the program reads the time stamp counter\n  {other}\n  at: {at}"
            ))
        };
        engine.go_on(head, place);
        (counter, processor)
    };
    tsc::go_on(context, len, read);
    true
}

//! What a recording is written, or followed with, and who may use it: the thread that has the turn.

use core::cell::UnsafeCell;
use core::fmt;
use core::slice;

use linux_raw_sys::general::{SIGSEGV, SIGSTOP};
use recording::{Begin, End, Head, Place, Turn as Next};

use super::report::{self, Brief, SHOWN};
use super::stream::Stream;
use super::timers::Timers;
use super::turns::{Left, Taken, Turns};
use super::{OVER, failed, ids, set_mode, tsc};
use crate::config::{Recorder, Way};
use crate::errno::Errno;
use crate::frame::SigInfo;
use crate::sigset::{SIGNALS, SigSet};
use crate::thread::{Deferred, Thread};
use crate::{own, say, signal, site};

/// Seconds that threads wait for one that makes no calls.
const PATIENCE: u64 = 5;

/// So many calls a thread makes, one after the other, while others wait for its turn.
const CALLS: u32 = 32;

/// Whose turn it is.
pub static TURNS: Turns = Turns::new(PATIENCE);

struct Cell(UnsafeCell<Option<Engine>>);

// SAFETY: used by whoever has the turn.
unsafe impl Sync for Cell {}

static ENGINE: Cell = Cell(UnsafeCell::new(None));

/// A recording that is written, or followed.
pub struct Engine {
    stream: Stream,
    /// Records so far.
    count: u64,
    /// Calls behind the last record of which there is none.
    pub unrecorded: u32,
    /// Calls since the turn changed hands.
    calls: u32,
    /// The last records.
    last: [Option<Head>; SHOWN],
    /// Whether it is written, or followed, and how far.
    way: Way,
    /// Those of a replayed program.
    pub timers: Timers,
    /// What a replayed program is told to be the number of the thread that it makes.
    pub told: Option<i32>,
}

/// Makes the engine. The program has not begun.
pub fn make(recorder: &Recorder, stream: Stream) {
    let Recorder { way, count, .. } = *recorder;
    let (last, timers) = ([None; SHOWN], Timers::new());
    let engine = Engine { stream, count, unrecorded: 0, calls: 0, last, way, timers, told: None };
    // SAFETY: nobody else is there.
    unsafe { *ENGINE.0.get() = Some(engine) };
}

/// What the program that this one is about to execute goes on with. `None`: nothing is recorded. By whoever
/// has the turn.
pub fn heir() -> Option<Recorder> {
    // SAFETY: by the caller's word.
    let engine = unsafe { (*ENGINE.0.get()).as_ref() }?;
    let Place { at, seed } = engine.stream.place();
    let fd = super::own_fd()? as i32;
    Some(Recorder { fd, way: engine.way, count: engine.count, at, seed })
}

/// What a replayed program is told to be the number of the thread that it has just made. By whoever has the
/// turn.
pub fn told() -> Option<i32> {
    // SAFETY: by the caller's word.
    unsafe { (*ENGINE.0.get()).as_mut() }.and_then(|engine| engine.told.take())
}

/// The calling thread has the turn, and is in the runtime: what is recorded is its to write, or to follow.
pub struct Turn {
    thread: &'static Thread,
    is_over: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over() {
            TURNS.exit();
        }
    }
}

impl Turn {
    /// Of a thread that comes from the program. `None`: nothing is recorded any more.
    pub fn enter(thread: &'static Thread) -> Option<Turn> {
        (super::is_on() && TURNS.enter()).then_some(Turn { thread, is_over: false })
    }

    /// Of a thread that is in the runtime already.
    pub fn held(thread: &'static Thread) -> Turn {
        Turn { thread, is_over: false }
    }

    /// Of a thread that is about to begin, once it is its turn.
    pub fn first(thread: &'static Thread) -> Option<Turn> {
        let mut turn = Turn { thread, is_over: false };
        if super::is_recording() {
            turn.take();
        } else {
            turn.is_over = !TURNS.wait(thread.seat.get());
        }
        (!turn.is_over).then_some(turn)
    }

    /// Whether nothing is recorded any more.
    pub fn is_over(&self) -> bool {
        self.is_over || !super::is_on()
    }

    /// What only one thread at a time has.
    pub fn engine(&mut self) -> &mut Engine {
        assert!(!self.is_over, "nothing is recorded any more");
        // SAFETY: this thread has the turn.
        unsafe { (*ENGINE.0.get()).as_mut() }.expect("it is recorded, or replayed")
    }

    /// Makes a call that may wait: other threads go on meanwhile.
    pub fn apart<T>(&mut self, call: impl FnOnce() -> T) -> T {
        if !TURNS.are_shared() {
            return call();
        }
        TURNS.leave(self.thread.seat.get(), Left::Before);
        let came = call();
        self.take();
        came
    }

    /// Makes a call that no other thread may see half done.
    pub fn during<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (came, has_it) = TURNS.during(call);
        self.is_over |= !has_it;
        came
    }

    /// Behind a call: lets others go on who wait, now and then or as the program wants it.
    pub fn yields(&mut self, wanted: bool) {
        let engine = self.engine();
        engine.calls += 1;
        if (wanted || engine.calls >= CALLS) && TURNS.are_awaited() {
            TURNS.leave(self.thread.seat.get(), Left::Behind);
            self.take();
        }
    }

    /// The thread ends. Others go on.
    pub fn leave_for_ever(mut self) {
        let seat = self.thread.seat.get();
        TURNS.dismiss(seat);
        TURNS.leave(seat, Left::Behind);
        self.is_over = true;
    }

    fn take(&mut self) {
        let thread = self.thread.seat.get();
        match TURNS.take(thread) {
            Taken::Again => {}
            Taken::From(left) => {
                self.engine().calls = 0;
                self.append(&Head::Turn(Next { thread, behind: left == Left::Behind }), 0, |_| {});
            }
            Taken::Away(thread) => {
                self.end(End::Stuck { thread });
                // It may have put off a signal, which its next call has to find.
                site::enter(true);
            }
            Taken::Over => self.is_over = true,
        }
    }

    /// Replayed: gives the turn to whom the record says, at a call or behind it, and waits to get it back.
    pub fn gives_way(&mut self, behind: bool) {
        while TURNS.are_shared() && !self.is_over() && self.passes(behind) {
            self.is_over = !TURNS.wait(self.thread.seat.get());
        }
    }

    /// Replayed: the thread ends where it ended. Others go on.
    pub fn passes_for_ever(mut self) {
        TURNS.dismiss(self.thread.seat.get());
        let others = TURNS.threads();
        if self.passes(true) {
            self.is_over = true;
        } else if others > 0 {
            match self.engine().peek() {
                None | Some((Head::End(_), ..)) => self.stop(),
                Some((other, ..)) => failed(format_args!(
                    "the replay is not what was recorded, behind {}.\n  a thread has ended\n  {}",
                    self.engine(),
                    report::Difference::Other(other)
                )),
            }
        }
    }

    fn passes(&mut self, behind: bool) -> bool {
        let engine = self.engine();
        match engine.peek() {
            Some((head @ Head::Turn(next), _, place)) if next.behind == behind => {
                engine.go_on(head, place);
                if !TURNS.pass(next.thread) {
                    failed(format_args!(
                        "the replay is not what was recorded, behind {engine}.\n  there is no such thread"
                    ));
                }
                true
            }
            _ => false,
        }
    }

    /// Appends a record; if there is no room for it, the recording ends.
    pub fn append(&mut self, head: &Head, length: usize, payload: impl FnOnce(&mut [u8])) {
        let engine = self.engine();
        match engine.stream.append(head, length, payload) {
            Ok(()) => engine.note(*head),
            Err(why) => self.end(End::Unwritten { errno: -why as i32 }),
        }
    }

    /// The recording ends, and the program goes on.
    pub fn end(&mut self, how: End) {
        self.write_end(how);
        say::line(format_args!("the recording ends here: {}", Brief(Head::End(how))));
        self.is_over = true;
        stop();
        let action = self.thread.process().action(SIGSEGV);
        let _as_before = signal::tell_about(SIGSEGV, &action);
    }

    /// The program ends itself: nobody else goes on.
    pub fn exits(&mut self, status: i32) {
        self.write_end(End::Exited { status });
    }

    fn write_end(&mut self, how: End) {
        let engine = self.engine();
        let _written = engine.stream.append(&Head::End(how), 0, |_| {});
        engine.stream.close();
    }

    /// Replayed: there is nothing more. The program ends, or goes on for real.
    pub fn stop(&mut self) {
        let engine = self.engine();
        let (count, live) = (engine.count, matches!(engine.way, Way::Replay { live: true, .. }));
        let end = match engine.peek() {
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
        self.go_on_for_real();
    }

    /// A replayed program's handlers and timers become real. Its connections are at their end, and it finds
    /// out.
    fn go_on_for_real(&mut self) {
        let started = self.engine().timers.start();
        self.engine().stream.close();
        self.is_over = true;
        set_mode(OVER);
        ids::go_on();
        let process = self.thread.process();
        for number in 1..=SIGNALS {
            let _told = signal::tell_about(number, &process.action(number));
        }
        stop();
        if !started {
            say::line(format_args!("it has more timers than could be started again"));
        }
    }
}

/// Nothing is recorded, or replayed, any more. All threads go on.
fn stop() {
    set_mode(OVER);
    // SAFETY: this thread has the turn, and nobody has it behind this.
    unsafe { *ENGINE.0.get() = None };
    say::as_the_program();
    tsc::allow(true);
    TURNS.end();
}

impl Engine {
    fn note(&mut self, head: Head) {
        self.count += 1;
        self.unrecorded = 0;
        self.last.rotate_left(1);
        self.last[SHOWN - 1] = Some(head);
    }

    /// The next record. `None`: there is none.
    pub fn peek(&mut self) -> Option<(Head, &'static [u8], Place)> {
        let count = self.count;
        match self.stream.peek() {
            Ok(Ok(None)) => None,
            Ok(Ok(Some((record, place)))) => {
                let payload = record.payload;
                // SAFETY: mapped until the next record is asked for, which is behind this one's use.
                let payload = unsafe { slice::from_raw_parts(payload.as_ptr(), payload.len()) };
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
    pub fn go_on(&mut self, head: Head, place: Place) {
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
    pub fn take_signal(&mut self, thread: &Thread, before: bool) -> bool {
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

    /// Compares how the program begins with how it began, which is returned.
    pub fn check_beginning(&mut self, begin: &Begin) -> Begin {
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
        recorded
    }

    /// The program ends where it ended.
    pub fn finish(&self, status: i32) -> ! {
        say::die(
            0,
            format_args!("replayed {} records, to where it ended with status {status}", self.count),
        )
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

//! What a recording is written, or followed with, and who may use it: the thread that has the turn.

use core::cell::UnsafeCell;
use core::fmt;
use core::slice;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linux_raw_sys::general::{SIGSEGV, SIGSTOP};
use recording::{Begin, Clocks, End, Head, Left, Place, Turn as Next};

use super::ends::kill_this;
use super::group::{self, turns};
use super::report::{self, Brief, Difference, SHOWN};
use super::stream::{self, Stream};
use super::timers::{self, Timers};
use super::turns::{Over, Taken, Turns, Waited};
use super::{FAILED, ids, kinds, tsc};
use crate::config::{Recorder, Way};
use crate::errno::Errno;
use crate::frame::SigInfo;
use crate::sigset::{SIGNALS, SigSet};
use crate::thread::{Deferred, Thread};
use crate::{own, say, signal, site};

/// Behind so many calls of a thread others go on, if they wait for its turn.
const CALLS: u32 = 32;

/// A recording that is written, or followed. Processes share it.
pub struct Engine {
    stream: Stream,
    /// Records so far.
    count: u64,
    /// Calls behind the last record of which there is none.
    pub unrecorded: u32,
    /// What the program was told of the time.
    pub clocks: Clocks,
    /// Calls since the turn changed hands, or might have.
    calls: u32,
    /// The last records: where each is, its number says.
    last: [Option<Head>; SHOWN],
    /// Whether it is written, or followed, and how far.
    way: Way,
    /// What a replayed program is told to be the number of the thread, or process, that it makes.
    pub told: Option<i32>,
    /// Whether the program has ever set a timer.
    has_timers: bool,
}

/// If timers run, how late it is is recorded with calls that may wait, but not more often than so.
const APART: u64 = 1_000_000;

/// Those of a replayed process.
struct OwnTimers(UnsafeCell<Timers>);

// SAFETY: used by whoever has the turn.
unsafe impl Sync for OwnTimers {}

static TIMERS: OwnTimers = OwnTimers(UnsafeCell::new(Timers::new()));

/// Whether this process is about to end: its other threads wait for that, and for nothing else.
static ENDS: AtomicBool = AtomicBool::new(false);

/// The timers of this process. By whoever has the turn.
#[allow(clippy::mut_from_ref)] // there is one who has the turn
pub fn timers() -> &'static mut Timers {
    // SAFETY: by the caller's word.
    unsafe { &mut *TIMERS.0.get() }
}

/// Makes the engine. The first program has not begun.
pub fn make(way: Way, stream: Stream) {
    let last = [None; SHOWN];
    let clocks = Clocks::new();
    group::put(Engine {
        stream,
        count: 0,
        unrecorded: 0,
        clocks,
        calls: 0,
        last,
        way,
        told: None,
        has_timers: false,
    });
    turns().begin();
}

/// What the program that this one is about to execute goes on with. `None`: nothing is recorded. By whoever
/// has the turn.
pub fn heir(thread: &Thread) -> Option<Recorder> {
    if !super::is_on() {
        return None;
    }
    let (fd, group) = (stream::FD.get()? as i32, group::FD.get()? as i32);
    kinds::leave();
    // Those here are its parent's, if it has no memory of its own.
    let is_own = thread.has_process_alone();
    group::leave(if is_own { timers().of_next() } else { Timers::new() });
    let voice = say::VOICE.get().map(|fd| fd as i32);
    Some(Recorder { fd, group, seat: thread.seat.get(), voice, way: group::engine().way })
}

/// Says why, and ends the replay: all its processes.
pub fn quit(status: i32, why: fmt::Arguments) -> ! {
    if group::FD.get().is_some() {
        say::line(why);
        turns().end(if status == 0 { Over::End } else { Over::Fail });
        end_as_all();
    }
    say::die(status, why)
}

/// A replay that cannot go on.
pub fn failed(why: fmt::Arguments) -> ! {
    quit(FAILED, why)
}

/// Ends the process, if all end.
fn end_as_all() {
    let status = match turns().over() {
        None | Some(Over::GoOn | Over::Stuck) => return,
        Some(Over::End) => 0,
        Some(Over::Fail) => FAILED,
    };
    exit(status)
}

/// Ends the process.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        let _ended = unsafe { own!(exit_group, status) };
    }
}

/// A thread finds out that nothing is recorded, or replayed, any more: neither is its process.
fn hears(thread: &Thread) {
    end_as_all();
    let replayed = super::is_replaying();
    if !super::ends() {
        // Another one has found out before.
        return;
    }
    if replayed {
        // A replayed program's handlers and timers become real. Its connections are at their end, and it
        // finds out.
        ids::go_on();
        for number in 1..=SIGNALS {
            let _told = signal::tell_about(number, &thread.process().action(number));
        }
        if !timers().start(group::now().load(Relaxed)) {
            say::line(format_args!("it has more timers than could be started again"));
        }
    } else {
        let action = thread.process().action(SIGSEGV);
        let _as_before = signal::tell_about(SIGSEGV, &action);
        // The thread that is stuck may have put off a signal, which its next call has to find.
        site::enter(turns().over() == Some(Over::Stuck));
    }
    stream::close();
    // Its memory stays: a thread may still look at it.
    group::FD.close();
    say::VOICE.close();
    tsc::allow(true);
}

/// The calling thread has the turn, and is in the runtime: what is recorded is its to write, or to follow.
pub struct Turn {
    thread: &'static Thread,
    is_over: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_over() {
            turns().exit();
        }
    }
}

impl Turn {
    /// Of a thread that comes from the program. `None`: nothing is recorded any more.
    pub fn enter(thread: &'static Thread) -> Option<Turn> {
        if !super::is_on() {
            return None;
        }
        if turns().enter(thread.seat.get()) {
            return Some(Turn { thread, is_over: false });
        }
        hears(thread);
        None
    }

    /// Of a thread that is in the runtime already.
    pub fn held(thread: &'static Thread) -> Turn {
        Turn { thread, is_over: false }
    }

    /// Of a thread that is about to begin, once it is its turn.
    pub fn first(thread: &'static Thread) -> Option<Turn> {
        let mut turn = Turn::held(thread);
        if super::is_recording() {
            turn.take();
        } else {
            turn.waits();
        }
        (!turn.is_over()).then_some(turn)
    }

    /// Whether nothing is recorded any more.
    pub fn is_over(&self) -> bool {
        self.is_over || !super::is_on()
    }

    /// What only one thread at a time has.
    pub fn engine(&mut self) -> &mut Engine {
        assert!(!self.is_over(), "nothing is recorded any more");
        group::engine()
    }

    /// Makes a call that may wait: other threads go on meanwhile.
    pub fn apart<T>(&mut self, call: impl FnOnce() -> T) -> T {
        self.without(|turns, seat| turns.offer(seat), call)
    }

    /// Has other threads go on behind a record, until `wait` is over.
    pub fn behind<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        self.without(|turns, seat| turns.leave(seat, Left::Behind), wait)
    }

    fn without<T>(&mut self, gives: impl FnOnce(&Turns, u16), call: impl FnOnce() -> T) -> T {
        if !turns().are_shared() || self.is_over() {
            return call();
        }
        gives(turns(), self.thread.seat.get());
        let came = call();
        self.take();
        came
    }

    /// Makes a call that no other thread may see half done.
    pub fn during<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (came, has_it) = turns().during(self.thread.seat.get(), call);
        if !has_it {
            self.is_over = true;
            hears(self.thread);
        }
        came
    }

    /// Behind a call: lets others go on who wait, now and then or as the program wants it.
    pub fn yields(&mut self, wanted: bool) {
        let engine = self.engine();
        engine.calls += 1;
        if wanted || engine.calls >= CALLS {
            engine.calls = 0;
            if turns().are_awaited() {
                self.behind(|| ());
            }
        }
    }

    /// The thread ends. Others go on.
    pub fn leave_for_ever(mut self) {
        let seat = self.thread.seat.get();
        // While it has the turn: who is made next gets this seat, here as in a replay.
        turns().dismiss(seat);
        turns().leave(seat, Left::Behind);
        self.is_over = true;
    }

    /// The process ends. Others go on, once it has.
    pub fn leave_with_all(mut self) {
        self.ends_with_all();
        turns().leave(self.thread.seat.get(), Left::Behind);
        self.is_over = true;
    }

    fn ends_with_all(&mut self) {
        // A child of `vfork` has no other threads, and what it writes here its parent sees.
        ENDS.store(self.thread.has_process_alone(), Relaxed);
        turns().dismiss_process(self.thread.seat.get());
    }

    fn take(&mut self) {
        let thread = self.thread.seat.get();
        while ENDS.load(Relaxed) {
            // SAFETY: waits for the end of the process.
            let _waited = unsafe { own!(pause) };
        }
        match turns().take(thread) {
            Taken::Again => turns().is_recorded(),
            Taken::From(left) => {
                self.engine().calls = 0;
                self.append(&Head::Turn(Next { thread, left }));
            }
            Taken::Away(thread) => self.end(End::Stuck { thread }),
            Taken::Killed(thread) => self.end(End::Killed { thread }),
            Taken::Over => {
                self.is_over = true;
                hears(self.thread);
            }
        }
    }

    /// Replayed: gives the turn to whom the record says, at a call or behind it, and waits to get it back.
    pub fn gives_way(&mut self, at: Left) {
        while turns().are_shared() && !self.is_over() && self.passes(at) {
            self.waits();
        }
    }

    fn waits(&mut self) {
        loop {
            match turns().wait(self.thread.seat.get()) {
                Waited::Passed => break,
                Waited::Inherited if self.passes(Left::Killed) => {}
                Waited::Inherited => {
                    let engine = self.engine();
                    failed(format_args!(
                        "a process of the replay was killed, behind {engine}: none was when it was recorded"
                    ))
                }
                Waited::Over => {
                    self.is_over = true;
                    hears(self.thread);
                    break;
                }
            }
        }
    }

    /// Others may have been killed, and this thread be about to find out: there are records of that.
    pub fn finds_killed(&mut self) {
        while turns().are_shared()
            && !self.is_over()
            && let Some(thread) = turns().killed()
        {
            self.append(&Head::Killed(thread));
        }
    }

    /// Replayed: kills who was killed.
    pub fn kills(&mut self) {
        let engine = self.engine();
        if let Some((head @ Head::Killed(thread), _, place)) = engine.peek() {
            engine.go_on(head, place);
            if !turns().kill(thread) {
                engine.differs(format_args!("there is no such process"));
            }
        }
    }

    /// Replayed: the process is killed where it was killed, if the record says so. Others go on, once it is.
    pub fn is_killed(&mut self) {
        let engine = self.engine();
        if matches!(engine.peek(), Some((Head::Turn(Next { left: Left::Killed, .. }), ..))) {
            turns().is_leaving(self.thread.seat.get());
            self.passes(Left::Killed);
            kill_this();
        }
    }

    /// Replayed: the thread ends where it ended. Others go on.
    pub fn passes_for_ever(mut self) {
        turns().dismiss(self.thread.seat.get());
        self.must_pass();
        self.is_over = true;
    }

    /// Replayed: the process ends where it ended. Others go on, once it has.
    pub fn passes_with_all(mut self) {
        self.ends_with_all();
        self.must_pass();
        self.is_over = true;
    }

    /// Replayed: the same, where somebody else has gone on for certain, unless the recording ends there.
    pub fn must_give_way(&mut self) {
        if self.must_pass() {
            self.waits();
        }
    }

    /// `false`: the recording ends there.
    fn must_pass(&mut self) -> bool {
        let passes = self.passes(Left::Behind);
        if !passes && !self.stops() {
            let other = self.engine().other();
            self.engine().differs(format_args!("another thread goes on\n  {other}"));
        }
        passes
    }

    fn passes(&mut self, at: Left) -> bool {
        let engine = self.engine();
        match engine.peek() {
            Some((head @ Head::Turn(next), _, place)) if next.left == at => {
                engine.go_on(head, place);
                if !turns().pass(next.thread) {
                    engine.differs(format_args!("there is no such thread"));
                }
                true
            }
            _ => false,
        }
    }

    /// Appends a record without a payload; if there is no room for it, the recording ends.
    pub fn append(&mut self, head: &Head) {
        self.append_with(head, 0, |_| Some(0));
    }

    /// The same with a payload: see [`Stream::append`].
    pub fn append_with(
        &mut self,
        head: &Head,
        expected: usize,
        payload: impl FnMut(&mut [u8]) -> Option<usize>,
    ) {
        let engine = self.engine();
        match engine.stream.append(head, expected, payload) {
            Ok(()) => {
                engine.note(*head);
                turns().is_recorded();
            }
            Err(why) => self.end(End::Unwritten { errno: -why as i32 }),
        }
    }

    /// Records how late it is, while the program has timers: if it goes on for real behind what is recorded,
    /// each of them has the time left. `sets`: the next record is about one that is set.
    pub fn tell_time(&mut self, sets: bool) {
        let engine = self.engine();
        engine.has_timers |= sets;
        if !engine.has_timers {
            return;
        }
        let now = timers::now();
        if sets || now >= group::now().load(Relaxed) + APART {
            // Without room the next record ends the recording, and what that one is about is not recorded yet.
            let head = Head::Now(now);
            if engine.stream.append(&head, 0, |_| Some(0)).is_ok() {
                engine.note(head);
            }
        }
    }

    /// Whether it does.
    pub fn tells_time(&mut self) -> bool {
        self.engine().has_timers
    }

    /// The recording ends, and the program goes on.
    pub fn end(&mut self, how: End) {
        self.tell_time(false);
        self.write_end(how);
        say::line(format_args!("the recording ends here: {}", Brief(Head::End(how))));
        self.goes_on(match how {
            End::Stuck { .. } => Over::Stuck,
            _ => Over::GoOn,
        });
    }

    /// The program ends itself: nobody else goes on.
    pub fn exits(&mut self, status: i32) {
        self.write_end(End::Exited { status });
    }

    fn write_end(&mut self, how: End) {
        let engine = self.engine();
        let _written = engine.stream.append(&Head::End(how), 0, |_| Some(0));
        engine.stream.cut();
    }

    /// Replayed: whether there is nothing more. Then the program ends, or goes on for real.
    pub fn stops(&mut self) -> bool {
        let engine = self.engine();
        let (count, live) = (engine.count, matches!(engine.way, Way::Replay { live: true, .. }));
        let end = match engine.peek() {
            None => None,
            Some((head @ Head::End(_), ..)) => Some(Brief(head)),
            Some(_) => return false,
        };
        let say = |what: fmt::Arguments| match live {
            true => say::line(format_args!("{what}; the program goes on")),
            false => quit(0, what),
        };
        match end {
            Some(end) => {
                say(format_args!("replayed {count} records; the recording ends here: {end}"));
            }
            None => say(format_args!(
                "replayed {count} records; there are no more: the program was killed, or still runs"
            )),
        }
        self.goes_on(Over::GoOn);
        true
    }

    /// Nothing is recorded, or replayed, any more. All threads of all processes go on.
    fn goes_on(&mut self, how: Over) {
        self.is_over = true;
        turns().end(how);
        hears(self.thread);
    }
}

impl Engine {
    fn note(&mut self, head: Head) {
        if let Head::Turn(Next { left: Left::Killed, .. }) = head {
            // Whoever was killed may have been about to write down what a clock has said.
            self.clocks = Clocks::new();
        }
        self.last[self.count as usize % SHOWN] = Some(head);
        self.count += 1;
        match head {
            // A replay finds it in front of calls of which there is no record, wherever among them it was told.
            Head::Now(now) => group::now().store(now, Relaxed),
            _ => self.unrecorded = 0,
        }
    }

    /// The next record that is about what the program does. `None`: there is none.
    pub fn peek(&mut self) -> Option<(Head, &'static [u8], Place)> {
        while let Some((head @ Head::Now(_), _, place)) = self.next() {
            self.go_on(head, place);
        }
        self.next()
    }

    fn next(&mut self) -> Option<(Head, &'static [u8], Place)> {
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
        let info = SigInfo::of_bytes(payload);
        timers().heard(&info);
        thread.defer_here(Deferred { info, temporary });
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

    /// What there is instead of what should be there. There is something.
    pub fn other(&mut self) -> Difference {
        let (head, ..) = self.peek().expect("the recording does not end here");
        Difference::Other(head)
    }

    /// The replay fails, because of this.
    pub fn differs(&self, what: fmt::Arguments) -> ! {
        failed(format_args!("the replay is not what was recorded, behind {self}.\n  {what}"))
    }

    /// The program ends where it ended.
    pub fn finish(&self, status: i32) -> ! {
        quit(
            0,
            format_args!("replayed {} records, to where it ended with status {status}", self.count),
        )
    }
}

impl fmt::Display for Engine {
    /// Where it is.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "record {} (byte {} of the recording)", self.count, self.stream.place().at)?;
        for number in self.count.saturating_sub(SHOWN as u64)..self.count {
            if let Some(head) = self.last[number as usize % SHOWN] {
                write!(f, "\n    {} {}", number + 1, Brief(head))?;
            }
        }
        Ok(())
    }
}

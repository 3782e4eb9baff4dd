//! Turns: of all threads of a program and of its children that is recorded, or replayed, one at a time goes on
//! (record 19).
//!
//! Who has the turn runs the program, or is in the runtime on its behalf. It is given away at system calls
//! alone. So the order of turns is the order of all that threads do to each other's memory, and processes to
//! each other's files and pipes.
//!
//! While a program is recorded, threads stand in a line, and the first one is next. While it is replayed,
//! the record says who is next, and the turn is passed to that one. A thread sits on a *seat*, whose number
//! is the lowest one that was free when it was made: the same in a replay.
//!
//! All of it lies in memory that the processes share, and begins as zeros.

use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU16, AtomicU32, Ordering::*, compiler_fence,
};

use linux_raw_sys::errno::ETIMEDOUT;
use linux_raw_sys::general::{FUTEX_WAIT, FUTEX_WAKE, SIGKILL};
use recording::Left;
use systable::Sysno;

use super::ends::{has_ended, is_gone, kill_this};
use crate::lock::Lock;
use crate::own;
use crate::sys::error;

/// Threads that take turns at a time, at most.
const SEATS: usize = 4096;

/// The first thread's seat.
pub const FIRST: u16 = 1;
const NOBODY: u16 = 0;
/// Everybody.
const ALL: u16 = u16::MAX;

/// Who waits in the line looks so often, in nanoseconds, whether the one who has the turn is still there.
const LOOK: u64 = 100_000_000;
/// So many looks, without a call of whoever has the turn, are enough: five seconds.
const PATIENCE: u32 = 50;

/// What becomes of who waits on a seat.
const IDLE: u32 = 0;
const WAITS: u32 = 1;
const HAS_IT: u32 = 2;
const ENDED: u32 = 3;
const KILLED: u32 = 4;

/// What the one who has the turn does: it is in the runtime, and may be about to write a record,
const BUSY: u32 = 0;
/// it runs the program,
const RUNS: u32 = 1;
/// has the kernel make a call of the program's,
const CALLS: u32 = 2;
/// or it makes one that may wait, and whoever wants the turn may have it.
const OFFERS: u32 = 3;

/// What there has yet to be a record of: nothing,
const NOTHING: u32 = 0;
/// that the one who has the turn has got it,
const TAKING: u32 = 1;
/// or a call, its number behind this one, that a replay has to make again.
const CALL: u32 = 2;

/// That this one offers the turn.
fn offered_by(number: u16) -> u32 {
    OFFERS | u32::from(number) << 8
}

/// Who takes turns.
pub struct Turns {
    /// Whether there was ever more than one thread. Until then nothing here costs anything.
    shared: AtomicBool,
    /// See [`BUSY`]. Who has the turn writes it, at each call and without looking at it, and others only instead
    /// of [`OFFERS`].
    doing: AtomicU32,
    /// See [`NOTHING`].
    unwritten: AtomicU32,
    /// Who is about to take the turn away, or [`ALL`], for ever: who has it finds out under the lock, before it
    /// does anything, whether it still has it.
    doubted: AtomicU16,
    /// Whether somebody stands in the line.
    awaited: AtomicBool,
    /// Another number with each call of whoever has the turn.
    beats: AtomicU32,
    /// How it has ended: 0, or one of [`Over`].
    over: AtomicU32,
    lock: Lock,
    line: UnsafeCell<Line>,
    /// That of number 0 is nobody's.
    seats: [Seat; SEATS],
}

/// Who waits, under the lock.
struct Line {
    /// Who has the turn.
    holder: u16,
    /// Who gave it away last, and where.
    last: u16,
    left: Left,
    /// The first one in the line, and the last one.
    first: u16,
    end: u16,
    /// A process that was about to end when it gave the turn away. Who goes on waits until it has, and what
    /// the kernel does for it at its end is done.
    leaving: i32,
}

struct Seat {
    /// A futex: see [`WAITS`].
    word: AtomicU32,
    /// Who is behind it in the line.
    next: AtomicU16,
    /// The seat that its process has begun on. [`NOBODY`]: it is free.
    process: AtomicU16,
    /// Whether its process has ended, and was not waited for. Nobody else gets its seat before.
    ended: AtomicBool,
    /// Whether others know that its process was killed.
    killed: AtomicBool,
    /// What the kernel calls it, and its process.
    real: AtomicI32,
    real_process: AtomicI32,
    /// What the program is told.
    told: AtomicI32,
    told_process: AtomicI32,
}

/// Numbers of a thread and of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// Of the thread.
    pub thread: i32,
    /// Of its process.
    pub process: i32,
}

/// How turns are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Over {
    /// All go on, as they like.
    GoOn = 1,
    /// The same; who made no calls has yet to find out.
    Stuck = 2,
    /// A replay has come to its end, and all end as well.
    End = 3,
    /// A replay has failed.
    Fail = 4,
}

impl Over {
    /// How, if they are over.
    pub fn of(word: u32) -> Option<Over> {
        match word {
            0 => None,
            1 => Some(Over::GoOn),
            2 => Some(Over::Stuck),
            3 => Some(Over::End),
            _ => Some(Over::Fail),
        }
    }
}

/// What has become of who wanted the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It has the turn, and nobody else had it meanwhile.
    Again,
    /// Somebody else had it, and gave it away so.
    From(Left),
    /// It took the turn away from a thread that made no calls.
    Away(u16),
    /// Or from one whose process was killed in the midst of a call.
    Killed(u16),
    /// There are no turns any more.
    Over,
}

/// What has become of who waited until the turn was passed to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It has it.
    Passed,
    /// It has it for the moment: the process of who had it has ended, and passed it to nobody.
    Inherited,
    /// There are no turns any more.
    Over,
}

// SAFETY: the line is looked at under the lock alone.
unsafe impl Sync for Turns {}

impl Turns {
    /// Of nobody.
    #[cfg(test)]
    const fn new() -> Turns {
        Turns {
            shared: AtomicBool::new(false),
            doing: AtomicU32::new(BUSY),
            unwritten: AtomicU32::new(NOTHING),
            doubted: AtomicU16::new(NOBODY),
            awaited: AtomicBool::new(false),
            beats: AtomicU32::new(0),
            over: AtomicU32::new(0),
            lock: Lock::free(),
            line: UnsafeCell::new(Line {
                holder: NOBODY,
                last: NOBODY,
                left: Left::Before,
                first: NOBODY,
                end: NOBODY,
                leaving: 0,
            }),
            seats: [const {
                Seat {
                    word: AtomicU32::new(IDLE),
                    next: AtomicU16::new(NOBODY),
                    process: AtomicU16::new(NOBODY),
                    ended: AtomicBool::new(false),
                    killed: AtomicBool::new(false),
                    real: AtomicI32::new(0),
                    real_process: AtomicI32::new(0),
                    told: AtomicI32::new(0),
                    told_process: AtomicI32::new(0),
                }
            }; SEATS],
        }
    }

    /// The first thread has the turn.
    pub fn begin(&self) {
        self.with(|line| {
            line.holder = FIRST;
            line.last = FIRST;
            self.seat(FIRST).process.store(FIRST, Relaxed);
        });
    }

    /// Where in it its end stands.
    pub(super) const OVER_AT: usize = offset_of!(Turns, over);

    /// Whether there was ever more than one thread.
    pub fn are_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }

    /// How they have ended, if they have.
    pub fn over(&self) -> Option<Over> {
        Over::of(self.over.load(Acquire))
    }

    /// Whoever has the turn comes from the program into the runtime. `false`: it has it no more.
    pub fn enter(&self, me: u16) -> bool {
        if !self.are_shared() {
            return true;
        }
        self.beat();
        self.is_busy(me)
    }

    /// And goes back.
    pub fn exit(&self) {
        if self.are_shared() {
            self.is_recorded();
            self.doing.store(RUNS, Release);
        }
    }

    /// Whoever has the turn is about to make a call that has to be made again.
    pub fn makes(&self, number: usize) {
        self.unwritten.store(CALL + number as u32, Release);
    }

    /// There is a record of everything.
    pub fn is_recorded(&self) {
        self.unwritten.store(NOTHING, Release);
    }

    /// Makes a call, which may take long. `false`: somebody else has the turn now.
    pub fn during<T>(&self, me: u16, call: impl FnOnce() -> T) -> (T, bool) {
        if !self.are_shared() {
            return (call(), true);
        }
        self.doing.store(CALLS, Release);
        let came = call();
        self.beat();
        (came, self.is_busy(me))
    }

    /// Whether it has the turn. Who doubts that has either seen by now that it is busy, or is seen to doubt it:
    /// see [`Turns::take_away`].
    fn is_busy(&self, me: u16) -> bool {
        self.doing.store(BUSY, Release);
        compiler_fence(SeqCst);
        self.is_undoubted(me)
    }

    fn is_undoubted(&self, me: u16) -> bool {
        self.doubted.load(Acquire) == NOBODY || self.still_has(me)
    }

    fn still_has(&self, me: u16) -> bool {
        self.with(|line| {
            let has = line.holder == me && self.over().is_none();
            if has {
                self.doubted.store(NOBODY, Relaxed);
            }
            has
        })
    }

    /// Offers the turn to whoever wants it, until [`Turns::take`].
    pub fn offer(&self, me: u16) {
        // Either this sees who has come, or who comes sees this.
        self.doing.store(offered_by(me), SeqCst);
        if self.awaited.load(SeqCst) && self.has_offered(me) {
            self.leave(me, Left::Before);
        }
    }

    /// Whether what this one has offered is still there. It is offered no more.
    fn has_offered(&self, me: u16) -> bool {
        self.doing.compare_exchange(offered_by(me), BUSY, SeqCst, Relaxed).is_ok()
    }

    fn beat(&self) {
        self.beats.store(self.beats.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// A seat for one more thread of the process of this one, or of a process of its own. By whoever has the
    /// turn.
    pub fn admit(&self, parent: u16, is_process: bool) -> Option<u16> {
        self.shared.store(true, Relaxed);
        self.with(|_| {
            let number = (FIRST..SEATS as u16).find(|&seat| self.process_of(seat) == NOBODY)?;
            let seat = self.seat(number);
            let process = if is_process { number } else { self.process_of(parent) };
            seat.word.store(IDLE, Relaxed);
            seat.ended.store(false, Relaxed);
            seat.killed.store(false, Relaxed);
            self.set_ids(number, Ids::default(), Ids::default());
            seat.process.store(process, Relaxed);
            Some(number)
        })
    }

    /// Who sits there, to the kernel and to the program.
    pub fn set_ids(&self, number: u16, real: Ids, told: Ids) {
        let seat = self.seat(number);
        seat.real.store(real.thread, Relaxed);
        seat.real_process.store(real.process, Relaxed);
        seat.told.store(told.thread, Relaxed);
        seat.told_process.store(told.process, Relaxed);
    }

    /// The same, again: to the kernel, and to the program.
    pub fn ids(&self, number: u16) -> (Ids, Ids) {
        (self.seat(number).real(), self.seat(number).told())
    }

    /// What the kernel calls the thread that the program is told to be this one.
    pub fn real(&self, told: Ids) -> Option<Ids> {
        self.find(|seat| {
            (told.thread == 0 || seat.told.load(Relaxed) == told.thread)
                && (told.process == 0 || seat.told_process.load(Relaxed) == told.process)
        })
        .map(|seat| seat.real())
    }

    /// What the program is told the process to be that the kernel calls so.
    pub fn told(&self, process: i32) -> Option<i32> {
        let found = self.find(|seat| seat.real_process.load(Relaxed) == process);
        found.map(|seat| seat.told_process.load(Relaxed)).filter(|&told| told != 0)
    }

    fn find(&self, is_it: impl Fn(&Seat) -> bool) -> Option<&Seat> {
        let is_taken = |seat: &&Seat| seat.process.load(Relaxed) != NOBODY;
        self.seats.iter().filter(is_taken).find(|seat| is_it(seat))
    }

    /// Gives a seat back: its thread ends, or was not made. By whoever has the turn.
    pub fn dismiss(&self, number: u16) {
        self.with(|line| self.empty(line, number));
    }

    fn empty(&self, line: &mut Line, number: u16) {
        self.seat(number).process.store(NOBODY, Relaxed);
        line.remove(self, number);
    }

    /// The process of this thread goes on with it alone: it has executed a program. By whoever has the turn.
    pub fn dismiss_others(&self, number: u16) {
        self.with(|line| {
            let process = self.process_of(number);
            for other in self.of_process(process).filter(|&other| other != number) {
                self.empty(line, other);
            }
        });
    }

    /// The process of this thread is about to end. Its number stays taken until it is waited for. By whoever
    /// has the turn.
    pub fn dismiss_process(&self, number: u16) {
        self.with(|line| {
            let process = self.process_of(number);
            line.leaving = self.seat(number).real_process.load(Relaxed);
            for other in self.of_process(process) {
                if other == process {
                    self.seat(other).ended.store(true, Relaxed);
                    line.remove(self, other);
                } else {
                    self.empty(line, other);
                }
            }
        });
    }

    /// A process has ended and was waited for. Whether it had not said so before. By whoever has the turn.
    pub fn bury(&self, is_it: impl Fn(Ids, Ids) -> bool) -> Option<bool> {
        self.with(|line| {
            let process = self.find(|seat| is_it(seat.real(), seat.told()))?.process.load(Relaxed);
            let unannounced = !self.seat(process).ended.load(Relaxed);
            for other in self.of_process(process) {
                self.empty(line, other);
            }
            Some(unannounced)
        })
    }

    fn of_process(&self, process: u16) -> impl Iterator<Item = u16> {
        (FIRST..SEATS as u16).filter(move |&number| self.process_of(number) == process)
    }

    fn process_of(&self, number: u16) -> u16 {
        self.seat(number).process.load(Relaxed)
    }

    /// How many threads the process of this one has.
    pub fn threads(&self, number: u16) -> usize {
        self.with(|_| self.of_process(self.process_of(number)).count())
    }

    /// Whether there are other processes, which live.
    pub fn has_other_processes(&self, number: u16) -> bool {
        let process = self.process_of(number);
        self.find(|seat| {
            let is_other = seat.process.load(Relaxed) != process;
            is_other && !seat.ended.load(Relaxed) && !has_ended(seat.real_process.load(Relaxed), 0)
        })
        .is_some()
    }

    /// A process that was killed, and of which that is not known yet: it is now. By whoever has the turn.
    pub fn killed(&self) -> Option<u16> {
        let killed = (FIRST..SEATS as u16).find(|&number| {
            let seat = self.seat(number);
            let lives = !seat.ended.load(Relaxed) && !seat.killed.load(Relaxed);
            self.process_of(number) == number && lives && is_gone(seat.real_process.load(Relaxed))
        })?;
        self.seat(killed).killed.store(true, Relaxed);
        Some(killed)
    }

    /// Replayed: the same happens to it. `false`: there is no such process.
    pub fn kill(&self, number: u16) -> bool {
        let is_there = usize::from(number) < SEATS && self.process_of(number) == number;
        let process = if is_there { self.seat(number).real_process.load(Relaxed) } else { 0 };
        if process <= 0 {
            return false;
        }
        // SAFETY: a process of the replay's, which waits for its turn.
        if unsafe { own!(kill, process, SIGKILL) }.is_err() {
            // Who finds it killed need not have the right to kill it. It does so itself.
            self.of_process(number).for_each(|thread| self.wake(thread, KILLED));
        }
        while !has_ended(process, 1000) {}
        true
    }

    /// Whether somebody stands in the line.
    pub fn are_awaited(&self) -> bool {
        self.awaited.load(Relaxed)
    }

    /// Gives the turn away, to the first one in the line.
    pub fn leave(&self, me: u16, left: Left) {
        let next = self.with(|line| {
            debug_assert_eq!(line.holder, me, "it has the turn");
            (line.last, line.left) = (me, left);
            line.holder = line.first;
            if line.holder != NOBODY {
                let next = self.seat(line.holder).next.load(Relaxed);
                line.begin_with(self, next);
                self.unwritten.store(TAKING, Release);
            }
            line.holder
        });
        if next != NOBODY {
            self.wake(next, HAS_IT);
        }
    }

    /// Takes the turn, or waits in the line for it.
    pub fn take(&self, me: u16) -> Taken {
        if self.has_offered(me) {
            self.beat();
            return if self.is_undoubted(me) { Taken::Again } else { Taken::Over };
        }
        let at_once = self.with(|line| {
            if self.over().is_some() {
                return Ok(Taken::Over);
            }
            let mut waits = line.holder != NOBODY;
            if waits {
                self.seat(me).next.store(NOBODY, Relaxed);
                self.seat(me).word.store(WAITS, Relaxed);
                line.append(self, me);
                if line.first == me && self.has_offered(line.holder) {
                    (line.last, line.left) = (line.holder, Left::Before);
                    line.remove(self, me);
                    self.seat(me).word.store(IDLE, Relaxed);
                    waits = false;
                }
            }
            if !waits {
                line.holder = me;
                self.unwritten.store(TAKING, Release);
            }
            if waits || line.leaving != 0 { Err(waits) } else { Ok(line.taken(me)) }
        });
        let waits = match at_once {
            Ok(taken) => {
                self.beat();
                return taken;
            }
            Err(waits) => waits,
        };
        if waits {
            match self.wait_in_line(me) {
                Ok(true) => {}
                Ok(false) => return Taken::Over,
                Err(taken) => {
                    self.await_end();
                    return taken;
                }
            }
        }
        self.beat();
        self.await_end();
        self.with(|line| line.taken(me))
    }

    /// `Err`: who had the turn has made no calls, or is dead, and has it no more.
    fn wait_in_line(&self, me: u16) -> Result<bool, Taken> {
        let (mut beats, mut looks) = (self.beats.load(Relaxed), 0);
        loop {
            if let Some(has_it) = self.came(me) {
                return Ok(has_it);
            }
            if self.sleep(me) != Err(error(ETIMEDOUT)) {
                continue;
            }
            let before = core::mem::replace(&mut beats, self.beats.load(Relaxed));
            looks = if before == beats { looks + 1 } else { 0 };
            if let Some(taken) = self.take_away(me, looks > PATIENCE) {
                return Err(taken);
            }
        }
    }

    /// Takes the turn away from who has it: if it has died, or else if that is wanted and it is not in the
    /// runtime.
    fn take_away(&self, me: u16, wanted: bool) -> Option<Taken> {
        let is_idle = || [RUNS, CALLS].contains(&self.doing.load(Acquire));
        let doubts = self.with(|line| {
            let holder = line.holder;
            if holder == NOBODY || holder == me || self.over().is_some() {
                return None;
            }
            let is_dead = is_gone(self.seat(holder).real.load(Relaxed));
            let doubts = !is_dead && wanted && is_idle() && self.doubted.load(Relaxed) == NOBODY;
            if doubts {
                self.doubted.store(me, SeqCst);
            }
            (is_dead || doubts).then_some((holder, is_dead))
        });
        let (holder, is_dead) = doubts?;
        if !is_dead {
            // From here on it sees the doubt, or has said that it is in the runtime.
            await_stores();
        }
        self.with(|line| {
            let doubts = self.doubted.load(Relaxed) == me;
            let is_its = line.holder == holder && self.over().is_none();
            let takes = is_its && (is_dead || (doubts && is_idle()));
            if !takes {
                if doubts {
                    self.doubted.store(NOBODY, Relaxed);
                }
                return None;
            }
            let taken = match is_dead {
                true => self.inherit(line, me),
                false => Taken::Away(holder),
            };
            line.holder = me;
            line.remove(self, me);
            Some(taken)
        })
    }

    /// What the turn is worth that the process of who had it has left behind.
    fn inherit(&self, line: &mut Line, me: u16) -> Taken {
        let holder = line.holder;
        line.leaving = self.seat(holder).real_process.load(Relaxed);
        let sends = [Sysno::kill, Sysno::tkill, Sysno::tgkill, Sysno::rt_tgsigqueueinfo];
        match self.unwritten.swap(TAKING, AcqRel) {
            NOTHING => {}
            // As if it never had the turn.
            TAKING => return line.taken(me),
            // Most who are killed in the midst of such a call have killed themselves.
            call if self.doing.load(Acquire) == CALLS
                && sends.iter().any(|&name| name as u32 == call - CALL) => {}
            _ => return Taken::Killed(holder),
        }
        self.doing.store(BUSY, Release);
        (line.last, line.left) = (holder, Left::Killed);
        line.taken(me)
    }

    /// Gives the turn to this one. `false`: there is no such thread.
    pub fn pass(&self, to: u16) -> bool {
        let is_there = self.with(|line| {
            let is_there = usize::from(to) < SEATS && self.process_of(to) != NOBODY;
            if is_there {
                line.holder = to;
            }
            is_there
        });
        if is_there {
            self.wake(to, HAS_IT);
        }
        is_there
    }

    /// Waits until the turn is passed to this one.
    pub fn wait(&self, me: u16) -> Waited {
        let word = &self.seat(me).word;
        let _may_have_come = word.compare_exchange(IDLE, WAITS, Relaxed, Relaxed);
        loop {
            match self.came(me) {
                Some(true) => {
                    self.await_end();
                    return Waited::Passed;
                }
                Some(false) => return Waited::Over,
                None => {}
            }
            if self.sleep(me) == Err(error(ETIMEDOUT)) && self.inherits(me) {
                self.await_end();
                return Waited::Inherited;
            }
        }
    }

    /// Takes the turn if its holder's process has ended.
    fn inherits(&self, me: u16) -> bool {
        self.with(|line| {
            let holder = line.holder;
            let ended = holder != NOBODY
                && holder != me
                && self.over().is_none()
                && is_gone(self.seat(holder).real.load(Relaxed));
            if ended {
                line.leaving = self.seat(holder).real_process.load(Relaxed);
                line.holder = me;
                self.seat(me).word.store(IDLE, Relaxed);
            }
            ended
        })
    }

    /// The process of this thread is about to be killed, as it was. Who goes on waits until it is.
    pub fn is_leaving(&self, number: u16) {
        self.with(|line| line.leaving = self.seat(number).real_process.load(Relaxed));
    }

    /// There are no turns any more.
    pub fn end(&self, how: Over) {
        self.with(|_| {
            self.over.store(how as u32, Release);
            self.doubted.store(ALL, Release);
        });
        if self.are_shared() {
            for number in FIRST..SEATS as u16 {
                if self.process_of(number) != NOBODY {
                    self.wake(number, ENDED);
                }
            }
        }
    }

    /// Waits for the end of a process that has given the turn away for ever.
    fn await_end(&self) {
        let leaving = self.with(|line| core::mem::take(&mut line.leaving));
        if leaving != 0 {
            while !has_ended(leaving, 1000) {}
        }
    }

    fn came(&self, me: u16) -> Option<bool> {
        let word = &self.seat(me).word;
        match word.load(Acquire) {
            HAS_IT => {
                word.store(IDLE, Relaxed);
                Some(true)
            }
            ENDED => Some(false),
            KILLED => kill_this(),
            _ => None,
        }
    }

    fn sleep(&self, me: u16) -> Result<usize, isize> {
        let time = [0, LOOK];
        // SAFETY: waits for the word to change; coming back early is no harm.
        unsafe { own!(futex, self.seat(me).word.as_ptr(), FUTEX_WAIT, WAITS, time.as_ptr()) }
    }

    fn wake(&self, number: u16, with: u32) {
        let word = &self.seat(number).word;
        if word.swap(with, Release) == WAITS {
            // SAFETY: wakes who waits there.
            let _woken = unsafe { own!(futex, word.as_ptr(), FUTEX_WAKE, 1) };
        }
    }

    fn seat(&self, number: u16) -> &Seat {
        &self.seats[usize::from(number)]
    }

    fn with<T>(&self, look: impl FnOnce(&mut Line) -> T) -> T {
        let _guard = self.lock.lock();
        // SAFETY: under the lock.
        look(unsafe { &mut *self.line.get() })
    }
}

impl Line {
    /// Of this one, who has it.
    fn taken(&self, me: u16) -> Taken {
        if self.last == me { Taken::Again } else { Taken::From(self.left) }
    }

    fn append(&mut self, turns: &Turns, number: u16) {
        match self.first {
            NOBODY => self.begin_with(turns, number),
            _ => turns.seat(self.end).next.store(number, Relaxed),
        }
        self.end = number;
    }

    fn begin_with(&mut self, turns: &Turns, number: u16) {
        self.first = number;
        turns.awaited.store(number != NOBODY, SeqCst);
    }

    /// Takes one out of it who does not want the turn any more, if it is in it.
    fn remove(&mut self, turns: &Turns, number: u16) {
        let next = |of: u16| turns.seat(of).next.load(Relaxed);
        if self.first == number {
            self.begin_with(turns, next(number));
            return;
        }
        let mut at = self.first;
        while at != NOBODY {
            if next(at) == number {
                turns.seat(at).next.store(next(number), Relaxed);
                if self.end == number {
                    self.end = at;
                }
                return;
            }
            at = next(at);
        }
    }
}

impl Seat {
    fn real(&self) -> Ids {
        Ids { thread: self.real.load(Relaxed), process: self.real_process.load(Relaxed) }
    }

    fn told(&self) -> Ids {
        Ids { thread: self.told.load(Relaxed), process: self.told_process.load(Relaxed) }
    }
}

/// Waits until what other processors have stored so far is seen.
fn await_stores() {
    const MEMBARRIER_CMD_GLOBAL: usize = 1;
    let moment = [0u64, 10_000_000];
    // SAFETY: no effect but the one that is wanted; or else a moment passes, which is more than enough.
    unsafe {
        if own!(membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0).is_err() {
            let _slept = own!(nanosleep, moment.as_ptr(), 0);
        }
    }
}

const _: () = assert!(SEATS <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;
    use std::vec::Vec;

    use super::*;

    fn begin(turns: &Turns, others: usize) -> Vec<u16> {
        turns.begin();
        (0..others).map(|_| turns.admit(FIRST, false).unwrap()).collect()
    }

    /// One thread has the turn at a time, and who wants it gets it, in the order of the line.
    #[test]
    fn one_at_a_time() {
        static TURNS: Turns = Turns::new();
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let seats = begin(&TURNS, 3);
        assert_eq!((seats.as_slice(), TURNS.threads(FIRST)), ([2, 3, 4].as_slice(), 4));
        thread::scope(|scope| {
            for seat in seats {
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        assert!(!matches!(TURNS.take(seat), Taken::Over | Taken::Away(_)));
                        COUNT.store(COUNT.load(Relaxed) + 1, Relaxed);
                        TURNS.leave(seat, Left::Behind);
                    }
                });
            }
            TURNS.leave(FIRST, Left::Before);
        });
        assert_eq!(COUNT.load(Relaxed), 60_000);
        assert_eq!(TURNS.take(FIRST), Taken::From(Left::Behind));
        TURNS.leave(FIRST, Left::Before);
        assert_eq!(TURNS.take(FIRST), Taken::Again);
    }

    /// Who offers the turn has it again if nobody has wanted it, and else is told that somebody has had it.
    #[test]
    fn offered() {
        static TURNS: Turns = Turns::new();
        static LAST: AtomicU16 = AtomicU16::new(NOBODY);
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let seats = begin(&TURNS, 3);
        let goes_on = |seat, taken| {
            let last = LAST.load(Relaxed);
            match taken {
                Taken::Again => assert_eq!(last, seat),
                Taken::From(Left::Before) => assert_ne!(last, seat),
                other => panic!("{other:?}"),
            }
            LAST.store(seat, Relaxed);
            COUNT.store(COUNT.load(Relaxed) + 1, Relaxed);
        };
        TURNS.offer(FIRST);
        thread::scope(|scope| {
            for seat in seats {
                scope.spawn(move || {
                    for round in 0..20_000 {
                        goes_on(seat, TURNS.take(seat));
                        TURNS.offer(seat);
                        // With and without the others between.
                        (0..round % 64).for_each(|_| std::hint::spin_loop());
                    }
                });
            }
        });
        assert_eq!(COUNT.load(Relaxed), 60_000);
        assert!(!TURNS.are_awaited());
    }

    /// The order in which it is passed is the order in which they go on, whoever is there first.
    #[test]
    fn as_it_is_passed() {
        static TURNS: Turns = Turns::new();
        static LAST: AtomicU16 = AtomicU16::new(FIRST);
        let others = begin(&TURNS, 2);
        let order: Vec<u16> = (0..3000u16).map(|n| FIRST + (n * 7 / 3) % 3).collect();
        let goes_on = |me: u16, order: &[u16]| {
            for pair in order.windows(2).filter(|pair| pair[0] == me) {
                if LAST.load(Relaxed) != me {
                    assert_eq!(TURNS.wait(me), Waited::Passed);
                }
                LAST.store(me, Relaxed);
                if pair[1] != me {
                    LAST.store(NOBODY, Relaxed);
                    assert!(TURNS.pass(pair[1]));
                }
            }
        };
        thread::scope(|scope| {
            let (goes_on, order) = (&goes_on, order.as_slice());
            for seat in others {
                scope.spawn(move || goes_on(seat, order));
            }
            goes_on(FIRST, order);
        });
        assert!(!TURNS.pass(4));
    }

    #[test]
    fn who_waits_goes_on_when_it_is_over() {
        static TURNS: Turns = Turns::new();
        let seat = begin(&TURNS, 1)[0];
        thread::scope(|scope| {
            let waits = scope.spawn(move || TURNS.take(seat));
            while !TURNS.are_awaited() {
                thread::yield_now();
            }
            TURNS.end(Over::GoOn);
            assert_eq!(waits.join().unwrap(), Taken::Over);
        });
        assert!(
            TURNS.wait(seat) == Waited::Over
                && TURNS.take(FIRST) == Taken::Over
                && !TURNS.enter(FIRST)
        );
    }

    /// Who makes no calls loses the turn, and finds out at its next one.
    #[test]
    fn who_makes_no_calls() {
        static TURNS: Turns = Turns::new();
        let seat = begin(&TURNS, 1)[0];
        TURNS.exit();
        thread::scope(|scope| {
            assert_eq!(scope.spawn(move || TURNS.take(seat)).join().unwrap(), Taken::Away(FIRST));
        });
        assert!(!TURNS.enter(FIRST));
    }

    /// Who has the turn dies: who waits for it finds out soon.
    #[test]
    fn who_has_died() {
        static TURNS: Turns = Turns::new();
        begin(&TURNS, 0);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = TURNS.admit(FIRST, true).unwrap();
        let process = child.id() as i32;
        let ids = Ids { thread: process, process };
        TURNS.set_ids(dead, ids, Ids { thread: 7, process: 7 });
        assert_eq!(
            (TURNS.real(Ids { thread: 0, process: 7 }), TURNS.told(process)),
            (Some(ids), Some(7))
        );
        // Its process has ended before there was a record of its having the turn,
        let give = || {
            TURNS.leave(FIRST, Left::Before);
            TURNS.with(|line| line.holder = dead);
            TURNS.unwritten.store(TAKING, Relaxed);
        };
        give();
        assert_eq!(TURNS.take(FIRST), Taken::Again);
        // in the midst of a call,
        give();
        TURNS.makes(1);
        assert_eq!(TURNS.take(FIRST), Taken::Killed(dead));
        // and behind it.
        give();
        TURNS.makes(1);
        TURNS.is_recorded();
        assert_eq!(TURNS.take(FIRST), Taken::From(Left::Killed));
        assert!(TURNS.pass(dead));
        assert_eq!(TURNS.wait(FIRST), Waited::Inherited);
        child.wait().unwrap();
        assert!(!TURNS.has_other_processes(FIRST));
        assert_eq!(TURNS.bury(|real, _| real == ids), Some(true));
        assert_eq!((TURNS.bury(|real, _| real == ids), TURNS.told(process)), (None, None));
    }

    #[test]
    fn seats_are_used_again() {
        static TURNS: Turns = Turns::new();
        let seats = begin(&TURNS, 3);
        TURNS.dismiss(seats[1]);
        assert_eq!((TURNS.admit(FIRST, false), TURNS.admit(FIRST, false)), (Some(3), Some(5)));
        // Of a process that has ended the seats of its other threads are free, and its own is not yet.
        let process = TURNS.admit(FIRST, true).unwrap();
        let thread = TURNS.admit(process, false).unwrap();
        assert_eq!((process, thread, TURNS.threads(process)), (6, 7, 2));
        TURNS.dismiss_process(thread);
        assert_eq!(TURNS.admit(FIRST, false), Some(7));
    }
}

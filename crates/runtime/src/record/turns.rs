//! Turns: of the threads of a program that is recorded, or replayed, one at a time goes on (record 19).
//!
//! Who has the turn runs the program, or is in the runtime on its behalf. It is given away at system calls
//! alone. So the order of turns is the order of all that threads do to each other's memory.
//!
//! While a program is recorded, threads stand in a line, and the first one is next. While it is replayed,
//! the record says who is next, and the turn is passed to that one. A thread sits on a *seat*, whose number
//! is the lowest one that was free when it was made: the same in a replay.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering::*};

use linux_raw_sys::errno::ETIMEDOUT;
use linux_raw_sys::general::{FUTEX_WAIT, FUTEX_WAKE};

use crate::lock::Lock;
use crate::own;
use crate::sys::error;
use crate::thread::MAX_SLOTS;

/// The first thread's seat.
pub const FIRST: u16 = 0;
const NOBODY: u16 = u16::MAX;

/// What becomes of who waits on a seat.
const IDLE: u32 = 0;
const WAITS: u32 = 1;
const HAS_IT: u32 = 2;
const ENDED: u32 = 3;

/// What the one who has the turn does: it runs the program,
const RUNS: u32 = 0;
/// is in the runtime, and may be about to write a record,
const BUSY: u32 = 1;
/// has the kernel make a call of the program's,
const CALLS: u32 = 2;
/// or has it no more: somebody else has had enough.
const LOST: u32 = 3;

/// Who takes turns.
pub struct Turns {
    /// Whether there was ever more than one. Until then nothing here costs anything.
    shared: AtomicBool,
    /// See [`RUNS`].
    doing: AtomicU32,
    /// Another number with each call of whoever has the turn.
    beats: AtomicU32,
    /// Seconds.
    patience: u64,
    lock: Lock,
    line: UnsafeCell<Line>,
    seats: [Seat; MAX_SLOTS],
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
    /// How many seats are taken.
    threads: u16,
    /// Nobody waits for anybody any more.
    over: bool,
}

struct Seat {
    /// A futex: see [`WAITS`].
    word: AtomicU32,
    /// Who is behind it in the line.
    next: AtomicU16,
    taken: AtomicBool,
}

/// Where a turn was given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// At a call that was about to be made.
    Before,
    /// Behind one of which there is a record.
    Behind,
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
    /// There are no turns any more.
    Over,
}

// SAFETY: the line is looked at under the lock alone.
unsafe impl Sync for Turns {}

impl Turns {
    /// Of one thread, on the first seat. After `patience` seconds without a call of whoever has the turn the
    /// others have waited long enough.
    pub const fn new(patience: u64) -> Turns {
        Turns {
            shared: AtomicBool::new(false),
            doing: AtomicU32::new(BUSY),
            beats: AtomicU32::new(0),
            patience,
            lock: Lock::free(),
            line: UnsafeCell::new(Line {
                holder: FIRST,
                last: FIRST,
                left: Left::Before,
                first: NOBODY,
                end: NOBODY,
                threads: 1,
                over: false,
            }),
            seats: [const {
                Seat {
                    word: AtomicU32::new(IDLE),
                    next: AtomicU16::new(NOBODY),
                    taken: AtomicBool::new(false),
                }
            }; MAX_SLOTS],
        }
    }

    /// Whether there was ever more than one thread.
    pub fn are_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }

    /// Whoever has the turn comes from the program into the runtime. `false`: it has it no more.
    pub fn enter(&self) -> bool {
        if !self.are_shared() {
            return true;
        }
        self.beat();
        self.change(RUNS, BUSY)
    }

    /// And goes back.
    pub fn exit(&self) {
        if self.are_shared() {
            self.doing.store(RUNS, Release);
        }
    }

    /// Runs `call`, which may take long. `false`: somebody else has the turn now.
    pub fn during<T>(&self, call: impl FnOnce() -> T) -> (T, bool) {
        if !self.are_shared() {
            return (call(), true);
        }
        self.doing.store(CALLS, Release);
        let came = call();
        self.beat();
        (came, self.change(CALLS, BUSY))
    }

    fn change(&self, from: u32, to: u32) -> bool {
        self.doing.compare_exchange(from, to, Acquire, Relaxed).is_ok()
    }

    fn beat(&self) {
        self.beats.store(self.beats.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// A seat for one more. By whoever has the turn.
    pub fn admit(&self) -> Option<u16> {
        self.shared.store(true, Relaxed);
        self.with(|line| {
            let free = (1..).zip(&self.seats[1..]).find(|(_, seat)| !seat.taken.load(Relaxed));
            let (number, seat) = free?;
            seat.word.store(IDLE, Relaxed);
            seat.taken.store(true, Relaxed);
            line.threads += 1;
            Some(number)
        })
    }

    /// Gives a seat back: its thread ends, or was not made. By whoever has the turn.
    pub fn dismiss(&self, number: u16) {
        self.with(|line| {
            self.seat(number).taken.store(false, Relaxed);
            line.threads -= 1;
        });
    }

    /// How many there are.
    pub fn threads(&self) -> u16 {
        self.with(|line| line.threads)
    }

    /// Whether somebody stands in the line.
    pub fn are_awaited(&self) -> bool {
        self.are_shared() && self.with(|line| line.first != NOBODY)
    }

    /// Gives the turn away, to the first one in the line.
    pub fn leave(&self, me: u16, left: Left) {
        let next = self.with(|line| {
            debug_assert_eq!(line.holder, me, "it has the turn");
            (line.last, line.left) = (me, left);
            line.holder = line.first;
            if line.holder != NOBODY {
                line.first = self.seat(line.holder).next.load(Relaxed);
            }
            line.holder
        });
        if next != NOBODY {
            self.wake(next, HAS_IT);
        }
    }

    /// Waits in the line for the turn.
    pub fn take(&self, me: u16) -> Taken {
        let waits = self.with(|line| {
            if line.over {
                return None;
            }
            let waits = line.holder != NOBODY;
            if waits {
                self.seat(me).next.store(NOBODY, Relaxed);
                self.seat(me).word.store(WAITS, Relaxed);
                match line.first {
                    NOBODY => line.first = me,
                    _ => self.seat(line.end).next.store(me, Relaxed),
                }
                line.end = me;
            } else {
                line.holder = me;
            }
            Some(waits)
        });
        match waits {
            None => return Taken::Over,
            Some(true) => match self.wait_in_line(me) {
                Ok(true) => {}
                Ok(false) => return Taken::Over,
                Err(other) => return Taken::Away(other),
            },
            Some(false) => {}
        }
        self.beat();
        self.with(|line| if line.last == me { Taken::Again } else { Taken::From(line.left) })
    }

    /// `Err`: who has the turn makes no calls, and has it no more.
    fn wait_in_line(&self, me: u16) -> Result<bool, u16> {
        let mut beats = self.beats.load(Relaxed);
        loop {
            if let Some(has_it) = self.came(me) {
                return Ok(has_it);
            }
            if self.sleep(me, Some(self.patience)) == Err(error(ETIMEDOUT)) {
                let before = core::mem::replace(&mut beats, self.beats.load(Relaxed));
                if before == beats
                    && let Some(other) = self.take_away(me)
                {
                    return Err(other);
                }
            }
        }
    }

    /// Takes the turn away from who has it, unless it is in the runtime.
    fn take_away(&self, me: u16) -> Option<u16> {
        self.with(|line| {
            let is_idle = line.holder != NOBODY && line.holder != me && !line.over;
            (is_idle && (self.change(RUNS, LOST) || self.change(CALLS, LOST)))
                .then(|| core::mem::replace(&mut line.holder, me))
        })
    }

    /// Gives the turn to this one. `false`: there is no such thread.
    pub fn pass(&self, to: u16) -> bool {
        let is_there = self.with(|line| {
            let is_there = self.seats.get(usize::from(to)).is_some_and(|s| s.taken.load(Relaxed))
                || to == FIRST;
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

    /// Waits until the turn is passed to this one. `false`: there are no turns any more.
    pub fn wait(&self, me: u16) -> bool {
        let word = &self.seat(me).word;
        let _may_have_come = word.compare_exchange(IDLE, WAITS, Relaxed, Relaxed);
        loop {
            if let Some(has_it) = self.came(me) {
                return has_it;
            }
            let _woken = self.sleep(me, None);
        }
    }

    /// There are no turns any more: all go on as they like.
    pub fn end(&self) {
        self.with(|line| line.over = true);
        self.doing.store(LOST, Release);
        if self.are_shared() {
            for number in FIRST..MAX_SLOTS as u16 {
                if number == FIRST || self.seat(number).taken.load(Relaxed) {
                    self.wake(number, ENDED);
                }
            }
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
            _ => None,
        }
    }

    fn sleep(&self, me: u16, seconds: Option<u64>) -> Result<usize, isize> {
        let time = [seconds.unwrap_or(0), 0];
        let time = if seconds.is_some() { time.as_ptr() } else { core::ptr::null() };
        // SAFETY: waits for the word to change; coming back early is no harm.
        unsafe { own!(futex, self.seat(me).word.as_ptr(), FUTEX_WAIT, WAITS, time) }
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

const _: () = assert!(MAX_SLOTS < NOBODY as usize);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;
    use std::vec::Vec;

    use super::*;

    /// One thread has the turn at a time, and who wants it gets it, in the order of the line.
    #[test]
    fn one_at_a_time() {
        static TURNS: Turns = Turns::new(60);
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let seats: Vec<u16> = (0..3).map(|_| TURNS.admit().unwrap()).collect();
        assert_eq!((seats.as_slice(), TURNS.threads()), ([1, 2, 3].as_slice(), 4));
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

    /// The order in which it is passed is the order in which they go on, whoever is there first.
    #[test]
    fn as_it_is_passed() {
        static TURNS: Turns = Turns::new(60);
        static LAST: AtomicU16 = AtomicU16::new(FIRST);
        let others: Vec<u16> = (0..2).map(|_| TURNS.admit().unwrap()).collect();
        let order: Vec<u16> = (0..3000u16).map(|n| (n * 7 / 3) % 3).collect();
        let goes_on = |me: u16, order: &[u16]| {
            for pair in order.windows(2).filter(|pair| pair[0] == me) {
                if LAST.load(Relaxed) != me {
                    assert!(TURNS.wait(me));
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
        assert!(!TURNS.pass(3));
    }

    #[test]
    fn who_waits_goes_on_when_it_is_over() {
        static TURNS: Turns = Turns::new(60);
        let seat = TURNS.admit().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(move || TURNS.take(seat));
            while !TURNS.are_awaited() {
                thread::yield_now();
            }
            TURNS.end();
            assert_eq!(waits.join().unwrap(), Taken::Over);
        });
        assert!(!TURNS.wait(seat) && TURNS.take(FIRST) == Taken::Over && !TURNS.enter());
    }

    /// Who makes no calls loses the turn, and finds out at its next one.
    #[test]
    fn who_makes_no_calls() {
        static TURNS: Turns = Turns::new(1);
        let seat = TURNS.admit().unwrap();
        TURNS.exit();
        thread::scope(|scope| {
            assert_eq!(scope.spawn(move || TURNS.take(seat)).join().unwrap(), Taken::Away(FIRST));
        });
        assert!(!TURNS.enter());
    }

    #[test]
    fn seats_are_used_again() {
        static TURNS: Turns = Turns::new(60);
        let seats: Vec<u16> = (0..3).map(|_| TURNS.admit().unwrap()).collect();
        TURNS.dismiss(seats[1]);
        assert_eq!((TURNS.admit(), TURNS.admit()), (Some(2), Some(4)));
    }
}

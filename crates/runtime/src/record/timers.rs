//! Timers of a replayed program. Those that signal do not run while it is replayed: what they came to is in the
//! record. When it goes on for real each has the time left that it had where the recording ends, and one that
//! has fired for good does not do so again.

use linux_raw_sys::general::{
    CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, ITIMER_PROF, ITIMER_REAL,
    ITIMER_VIRTUAL, SIGALRM, SIGPROF, SIGVTALRM,
};
use systable::Sysno;

use crate::frame::SigInfo;
use crate::sys::Args;
use crate::{memory, own};

/// A program may have so many.
const MOST: usize = 64;

const SECOND: u64 = 1_000_000_000;
const MICRO: u64 = 1_000;

/// Of `timer_settime` and `timerfd_settime`: the time is a moment of the clock.
const ABSTIME: usize = 1;

/// Which timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// Of `setitimer`, or `alarm`.
    Interval(u32),
    /// Of `timer_create`.
    Posix(u32),
    /// Of `timerfd_create`.
    Descriptor(u32),
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    which: Which,
    /// What it signals; 0: nothing.
    signal: u32,
    /// Whether it measures what the processor does, and not the time.
    is_of_processor: bool,
    flags: usize,
    /// What it was last given, in nanoseconds: until it fires, or never if that is 0; and from then on.
    value: u64,
    interval: u64,
    /// When: see [`now`].
    since: u64,
    /// Whether the program has heard of it since.
    has_fired: bool,
}

/// All of a process.
#[derive(Clone, Debug)]
pub struct Timers {
    timers: [Option<Timer>; MOST],
    /// Some did not fit in.
    has_more: bool,
}

/// What the time is measured by: nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes the time there.
    let _asked = unsafe { own!(clock_gettime, CLOCK_MONOTONIC, time.as_mut_ptr()) };
    time[0] * SECOND + time[1]
}

/// Whether a call sets a timer.
pub const fn sets(name: Sysno) -> bool {
    use Sysno::*;
    matches!(name, setitimer | alarm | timer_settime | timerfd_settime)
}

impl Timers {
    /// None.
    pub const fn new() -> Timers {
        Timers { timers: [None; MOST], has_more: false }
    }

    /// A call has succeeded, at this moment; it may be about a timer.
    pub fn follow(&mut self, name: Sysno, args: &Args, result: usize, now: u64) {
        let [first, second, third, ..] = *args;
        let descriptor = Which::Descriptor(first as u32);
        match name {
            Sysno::setitimer => {
                let which = Which::Interval(first as u32);
                self.set(which, 0, times(second, MICRO), now);
            }
            Sysno::alarm => {
                let value = first as u32 as u64 * SECOND;
                self.set(Which::Interval(ITIMER_REAL), 0, [0, value], now);
            }
            Sysno::timer_create => {
                let id = memory::read::<u32>(third).unwrap_or(0);
                self.put(Timer {
                    signal: signal_of(second),
                    is_of_processor: is_of_processor(first),
                    ..Timer::new(Which::Posix(id))
                });
            }
            Sysno::timer_settime => {
                self.set(Which::Posix(first as u32), second, times(third, 1), now);
            }
            Sysno::timerfd_settime => self.set(descriptor, second, times(third, 1), now),
            Sysno::timer_delete => self.forget(Which::Posix(first as u32)),
            // Whatever had this number is no more.
            Sysno::timerfd_create => self.forget(Which::Descriptor(result as u32)),
            Sysno::close => self.forget(descriptor),
            Sysno::read | Sysno::readv if result == 8 => self.fired(|t| t.which == descriptor),
            Sysno::rt_sigtimedwait => match memory::read(second) {
                Ok(info) => self.heard(&info),
                Err(_) => self.fired(|timer| timer.signal == result as u32),
            },
            _ => {}
        }
    }

    /// A signal is delivered to the program.
    pub fn heard(&mut self, info: &SigInfo) {
        const SI_TIMER: i32 = -2;
        const SI_KERNEL: i32 = 0x80;
        let signal = info.signal.cast_unsigned();
        match info.code {
            SI_TIMER => self.fired(|timer| timer.which == Which::Posix(info.fields[0] as u32)),
            SI_KERNEL => self
                .fired(|timer| matches!(timer.which, Which::Interval(_)) && timer.signal == signal),
            _ => {}
        }
    }

    /// Those that a program keeps which this one executes. Until then it has all of them: it may fail.
    pub fn of_next(&self) -> Timers {
        let mut next = self.clone();
        for slot in &mut next.timers {
            slot.take_if(|timer| matches!(timer.which, Which::Posix(_)));
        }
        next
    }

    /// Starts them. `now` is where the recording ends. `false`: there were too many.
    pub fn start(&self, now: u64) -> bool {
        self.timers.iter().flatten().for_each(|timer| timer.start(now));
        !self.has_more
    }

    fn find(&mut self, which: Which) -> Option<&mut Option<Timer>> {
        self.timers.iter_mut().find(|slot| slot.is_some_and(|timer| timer.which == which))
    }

    fn forget(&mut self, which: Which) {
        if let Some(slot) = self.find(which) {
            *slot = None;
        }
    }

    fn put(&mut self, timer: Timer) {
        self.forget(timer.which);
        match self.timers.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(timer),
            None => self.has_more = true,
        }
    }

    fn set(&mut self, which: Which, flags: usize, [interval, value]: [u64; 2], now: u64) {
        let known = self.find(which).and_then(|slot| *slot).unwrap_or(Timer::new(which));
        self.put(Timer { flags, value, interval, since: now, has_fired: false, ..known });
    }

    fn fired(&mut self, is_it: impl Fn(&Timer) -> bool) {
        for timer in self.timers.iter_mut().flatten().filter(|timer| is_it(timer)) {
            timer.has_fired = true;
        }
    }
}

impl Timer {
    fn new(which: Which) -> Timer {
        let (signal, is_of_processor) = match which {
            Which::Interval(ITIMER_VIRTUAL) => (SIGVTALRM, true),
            Which::Interval(ITIMER_PROF) => (SIGPROF, true),
            Which::Interval(_) => (SIGALRM, false),
            Which::Posix(_) | Which::Descriptor(_) => (0, false),
        };
        let (flags, value, interval, since, has_fired) = (0, 0, 0, 0, false);
        Timer { which, signal, is_of_processor, flags, value, interval, since, has_fired }
    }

    /// Its interval, and what is left at this moment, in nanoseconds. A moment of a clock is that moment, also
    /// where it has passed; of the processor's time nobody knows how much has passed.
    fn left(&self, now: u64) -> [u64; 2] {
        let Timer { value, interval, .. } = *self;
        if value == 0 || (self.has_fired && interval == 0) {
            return [0, 0];
        }
        if self.is_of_processor || self.flags & ABSTIME != 0 {
            return [interval, value];
        }
        let passed = now.saturating_sub(self.since);
        let left = match value.checked_sub(passed) {
            Some(left @ 1..) => left,
            // It fires at once.
            _ if interval == 0 => 1,
            _ => interval - (passed - value) % interval,
        };
        [interval, left]
    }

    fn start(&self, now: u64) {
        let unit = if matches!(self.which, Which::Interval(_)) { MICRO } else { 1 };
        let per_second = SECOND / unit;
        // Not shorter: 0 would be never.
        let parts = self.left(now).map(|nanos| nanos.div_ceil(unit));
        let time = parts.map(|part| [part / per_second, part % per_second]);
        let time = time.as_ptr();
        // SAFETY: what the program has asked for.
        let _started = unsafe {
            match self.which {
                Which::Interval(which) => own!(setitimer, which, time, 0),
                Which::Posix(id) => own!(timer_settime, id, self.flags, time, 0),
                // It has run while the program was replayed.
                Which::Descriptor(fd) => own!(timerfd_settime, fd, self.flags, time, 0),
            }
        };
    }
}

/// `struct itimerval`, or `struct itimerspec`: the interval and the value, in nanoseconds.
fn times(at: usize, unit: u64) -> [u64; 2] {
    let words = memory::read::<[u64; 4]>(at).unwrap_or_default();
    let nanos = |seconds: u64, rest: u64| {
        seconds.saturating_mul(SECOND).saturating_add(rest.saturating_mul(unit))
    };
    [nanos(words[0], words[1]), nanos(words[2], words[3])]
}

/// What a timer signals, by its `struct sigevent`; 0: nothing.
fn signal_of(event: usize) -> u32 {
    const SIGEV_NONE: u32 = 1;
    if event == 0 {
        return SIGALRM;
    }
    match memory::read::<[u32; 4]>(event) {
        Ok([_, _, _, SIGEV_NONE]) | Err(_) => 0,
        Ok([_, _, signal, _]) => signal,
    }
}

fn is_of_processor(clock: usize) -> bool {
    let clock = clock as u32;
    // Those of other processes and threads are negative.
    [CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID].contains(&clock) || clock.cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: Which = Which::Interval(ITIMER_REAL);

    fn left(timers: &mut Timers, which: Which, now: u64) -> Option<[u64; 2]> {
        timers.find(which).and_then(|slot| *slot).map(|timer| timer.left(now))
    }

    #[test]
    fn the_last_word_about_each_timer_counts() {
        let time = [0u64, 0, 5, 0];
        let at = time.as_ptr() as usize;
        let mut timers = Timers::new();
        let count = |timers: &Timers| timers.timers.iter().flatten().count();
        timers.follow(Sysno::setitimer, &[0, at, 0, 0, 0, 0], 0, 0);
        timers.follow(Sysno::alarm, &[3, 0, 0, 0, 0, 0], 0, 0);
        assert_eq!(count(&timers), 1, "alarm is the real-time timer");
        assert_eq!(left(&mut timers, REAL, 0), Some([0, 3 * SECOND]));
        timers.follow(Sysno::setitimer, &[1, at, 0, 0, 0, 0], 0, 0);
        timers.follow(Sysno::timer_settime, &[0, 0, at, 0, 0, 0], 0, 0);
        timers.follow(Sysno::timerfd_settime, &[0, 0, at, 0, 0, 0], 0, 0);
        assert_eq!(count(&timers), 4);
        assert_eq!(count(&timers.of_next()), 3, "the next program has those that have no number");
        assert_eq!(count(&timers), 4, "this one has all, if there is no next one");
        timers.follow(Sysno::timer_delete, &[0; 6], 0, 0);
        timers.follow(Sysno::timerfd_create, &[1, 0, 0, 0, 0, 0], 0, 0);
        assert_eq!((count(&timers), timers.has_more), (2, false));
        for id in 0..MOST {
            timers.follow(Sysno::timer_settime, &[id, 0, at, 0, 0, 0], 0, 0);
        }
        assert!(timers.has_more);
    }

    #[test]
    fn what_is_left_is_what_has_not_passed() {
        let once = Timer { value: 100, since: 1000, ..Timer::new(REAL) };
        assert_eq!(once.left(1030), [0, 70]);
        assert_eq!(once.left(1200), [0, 1], "the program has not heard of it yet");
        assert_eq!(Timer { has_fired: true, ..once }.left(1200), [0, 0]);
        assert_eq!(Timer { value: 0, ..once }.left(1200), [0, 0]);
        let again = Timer { interval: 30, has_fired: true, ..once };
        assert_eq!(again.left(1030), [30, 70]);
        assert_eq!(again.left(1110), [30, 20]);
        assert_eq!(again.left(1130), [30, 30]);
        let processor =
            Timer { value: 100, since: 1000, ..Timer::new(Which::Interval(ITIMER_PROF)) };
        assert_eq!(processor.left(1030), [0, 100]);
        assert_eq!(Timer { flags: ABSTIME, ..once }.left(1030), [0, 100]);
    }

    #[test]
    fn who_has_fired_is_known_by_what_the_program_has_heard() {
        let time = [0u64, 0, 5, 0];
        let event = [0u32, 0, 34, 0];
        let (at, event) = (time.as_ptr() as usize, event.as_ptr() as usize);
        let mut timers = Timers::new();
        let set = |timers: &mut Timers| {
            for id in [7u32, 8] {
                timers.follow(
                    Sysno::timer_create,
                    &[1, event, &raw const id as usize, 0, 0, 0],
                    0,
                    0,
                );
                timers.follow(Sysno::timer_settime, &[id as usize, 0, at, 0, 0, 0], 0, 0);
            }
            timers.follow(Sysno::setitimer, &[0, at, 0, 0, 0, 0], 0, 0);
            timers.follow(Sysno::timerfd_settime, &[9, 0, at, 0, 0, 0], 0, 0);
        };
        set(&mut timers);
        let fired = |timers: &Timers| {
            let fired = timers.timers.iter().flatten().filter(|timer| timer.has_fired);
            fired.map(|timer| timer.which).collect::<std::vec::Vec<_>>()
        };
        let alarm = SigInfo::of_kernel(SIGALRM);
        let mut sent = alarm;
        sent.code = 0;
        timers.heard(&sent);
        assert_eq!(fired(&timers), [], "somebody has sent it (kill)");
        timers.heard(&alarm);
        let mut posix = SigInfo::of_kernel(34);
        (posix.code, posix.fields[0]) = (-2, 8);
        timers.heard(&posix);
        timers.follow(Sysno::read, &[9, 0, 8, 0, 0, 0], 8, 0);
        assert_eq!(fired(&timers), [Which::Posix(8), REAL, Which::Descriptor(9)]);
        set(&mut timers);
        assert_eq!(fired(&timers), [], "they are set again");
        timers.follow(Sysno::rt_sigtimedwait, &[0; 6], 34, 0);
        assert_eq!(fired(&timers), [Which::Posix(7), Which::Posix(8)], "nobody has said which");
    }
}

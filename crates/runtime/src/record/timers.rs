//! Timers of a replayed program. They do not run while it is replayed: what they came to is in the record.
//! When it goes on for real they are started again, each with the time that it was last given.

use systable::Sysno;

use crate::memory;
use crate::sys::{Args, own};

/// A program may have so many.
const MOST: usize = 64;

/// The last call that was about a timer.
#[derive(Clone, Copy)]
struct Started {
    name: Sysno,
    args: Args,
    /// `struct itimerval`, or `struct itimerspec`.
    time: [u64; 4],
}

/// All of a process.
pub struct Timers {
    started: [Option<Started>; MOST],
    /// Some did not fit in.
    has_more: bool,
}

impl Timers {
    /// None.
    pub const fn new() -> Timers {
        Timers { started: [None; MOST], has_more: false }
    }

    /// A call was answered; it may be about a timer.
    pub fn follow(&mut self, name: Sysno, args: &Args) {
        let value = match name {
            Sysno::setitimer => args[1],
            Sysno::timer_settime => args[2],
            Sysno::alarm | Sysno::timer_delete => 0,
            _ => return,
        };
        let mut time = [0; 4];
        for (i, word) in time.iter_mut().enumerate() {
            *word = memory::read(value + 8 * i).unwrap_or(0);
        }
        let slot = match self.started.iter().position(|slot| slot.is_some_and(|s| s.is(name, args)))
        {
            Some(slot) => slot,
            None => match self.started.iter().position(Option::is_none) {
                Some(slot) => slot,
                None => {
                    self.has_more = true;
                    return;
                }
            },
        };
        self.started[slot] =
            (name != Sysno::timer_delete).then_some(Started { name, args: *args, time });
    }

    /// Starts them. `false`: there were too many.
    pub fn start(&self) -> bool {
        for Started { name, mut args, time } in self.started.into_iter().flatten() {
            let (value, old) = if name == Sysno::setitimer { (1, 2) } else { (2, 3) };
            if name != Sysno::alarm {
                args[value] = time.as_ptr() as usize;
                args[old] = 0;
            }
            // SAFETY: what the program has asked for.
            let _started = unsafe { own(name, args) };
        }
        !self.has_more
    }
}

impl Started {
    /// Whether such a call is about the same timer.
    fn is(&self, name: Sysno, args: &Args) -> bool {
        let is_posix = |name| [Sysno::timer_settime, Sysno::timer_delete].contains(&name);
        let which = |name, args: &Args| if name == Sysno::alarm { 0 } else { args[0] };
        is_posix(self.name) == is_posix(name) && which(self.name, &self.args) == which(name, args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_about_each_timer_counts() {
        let time = [0u64, 0, 5, 0];
        let at = time.as_ptr() as usize;
        let mut timers = Timers::new();
        let count = |timers: &Timers| timers.started.iter().flatten().count();
        timers.follow(Sysno::setitimer, &[0, at, 0, 0, 0, 0]);
        timers.follow(Sysno::alarm, &[3, 0, 0, 0, 0, 0]);
        assert_eq!(count(&timers), 1, "alarm is the real-time timer");
        timers.follow(Sysno::setitimer, &[1, at, 0, 0, 0, 0]);
        timers.follow(Sysno::timer_settime, &[0, 0, at, 0, 0, 0]);
        timers.follow(Sysno::timer_settime, &[1, 0, at, 0, 0, 0]);
        assert_eq!(count(&timers), 4);
        timers.follow(Sysno::timer_delete, &[0, 0, 0, 0, 0, 0]);
        assert_eq!((count(&timers), timers.has_more), (3, false));
        for id in 0..MOST {
            timers.follow(Sysno::timer_settime, &[id, 0, at, 0, 0, 0]);
        }
        assert!(timers.has_more);
    }
}

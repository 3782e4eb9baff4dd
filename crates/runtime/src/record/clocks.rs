//! Asking the vDSO for the time, which programs do more often than anything else: its records are small ones.

use core::ptr;

use recording::{Clocks, Head, Left};
use systable::Sysno;

use super::engine::Turn;
use super::report::{Made, Where};
use crate::frame::Context;
use crate::memory;
use crate::sys::{self, Args, checked};
use crate::thread::Thread;

const SECOND: i64 = 1_000_000_000;
const MICROS: i64 = 1_000_000;

/// What the program asks for.
#[derive(Clone, Copy)]
struct Question {
    name: Sysno,
    args: Args,
    clock: u8,
}

impl Question {
    /// `None`: something else, or not as programs do.
    fn of(number: usize, args: Args) -> Option<Question> {
        let [first, second, ..] = args;
        let name = Sysno::new(number)?;
        let clock = match name {
            Sysno::clock_gettime if first < usize::from(Clocks::OF_DAY) => first as u8,
            Sysno::gettimeofday if first != 0 && second == 0 => Clocks::OF_DAY,
            Sysno::time => Clocks::SECONDS,
            _ => return None,
        };
        Some(Question { name, args, clock })
    }

    /// Where the answer is written to, and how many of its units are a second. `None`: it is only returned.
    fn answer(&self) -> Option<(usize, i64)> {
        match self.name {
            Sysno::clock_gettime => Some((self.args[1], SECOND)),
            Sysno::gettimeofday => Some((self.args[0], MICROS)),
            _ => None,
        }
    }

    /// Asks the kernel: what the clock says. `None`: it does not.
    fn ask(&self) -> Option<i64> {
        // No filter (seccomp) of the program's sees it, as none would see it of the kernel's own vDSO.
        // SAFETY: the program has asked for it, and the kernel knows whether it may be written there.
        let result = checked(unsafe { sys::own(self.name, self.args) }).ok()?;
        Some(match self.answer() {
            // SAFETY: the kernel has written it a moment ago.
            Some((at, unit)) => unsafe {
                let [seconds, rest] = ptr::read_unaligned(at as *const [i64; 2]);
                seconds * unit + rest
            },
            None => result as i64,
        })
    }

    /// Answers as it was answered: what is returned.
    fn repeat(&self, value: i64) -> Result<isize, isize> {
        match self.answer() {
            Some((at, unit)) => {
                let parts =
                    [value.div_euclid(unit), value.rem_euclid(unit)].map(|part| part as usize);
                memory::write(at, &parts).map(|()| 0)
            }
            None => {
                let to = self.args[0];
                let written = if to == 0 { Ok(()) } else { memory::write(to, &(value as usize)) };
                written.map(|()| value as isize)
            }
        }
    }
}

/// The program calls a function of its vDSO: what it returns. `None`: it is a call like any other.
pub fn call(
    thread: &'static Thread,
    context: &Context,
    number: usize,
    args: Args,
) -> Option<isize> {
    let question = Question::of(number, args)?;
    let mut turn = Turn::enter(thread)?;
    if super::is_recording() {
        let value = question.ask()?;
        thread.not_made.set(false);
        let time = turn.engine().clocks.tell(question.clock, value);
        turn.append(&Head::Time(time));
        if !turn.is_over() {
            turn.yields(false);
        }
        return Some(if question.answer().is_some() { 0 } else { value as isize });
    }
    let engine = turn.engine();
    let (time, head, place) = match engine.peek() {
        Some((head @ Head::Time(time), _, place)) if time.clock == question.clock => {
            (time, head, place)
        }
        // It has failed, or the recording ends here.
        _ => return None,
    };
    let value = engine.clocks.told(time).expect("there is such a clock");
    engine.go_on(head, place);
    let Ok(result) = question.repeat(value) else {
        let made = Made { number, args: &args };
        turn.engine().differs(format_args!(
            "the program makes: {made}\n  there is no place for the answer\n  at: {}",
            Where::of(context)
        ))
    };
    turn.gives_way(Left::Behind);
    if !turn.is_over() {
        turn.engine().take_signal(thread, false);
    }
    Some(result)
}

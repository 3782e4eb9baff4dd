//! Numbers of processes and threads. A replayed program is told the recorded ones; the kernel has others. What
//! the program says to the kernel is translated, as is what it asks for once it goes on for real.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use systable::Sysno;

use crate::sys::{Args, checked};
use crate::thread::{self, Thread};
use crate::{memory, own, site};

/// What the process was told to be its number. 0: what the kernel says.
static TOLD: AtomicU32 = AtomicU32::new(0);

/// Calls that are asked about the caller.
const ASKED: [Sysno; 3] = [Sysno::getpid, Sysno::gettid, Sysno::set_tid_address];

/// Calls that are given such numbers.
const GIVEN: [Sysno; 20] = [
    Sysno::kill,
    Sysno::tkill,
    Sysno::tgkill,
    Sysno::rt_sigqueueinfo,
    Sysno::rt_tgsigqueueinfo,
    Sysno::pidfd_open,
    Sysno::timer_create,
    Sysno::prlimit64,
    Sysno::get_robust_list,
    Sysno::getpriority,
    Sysno::setpriority,
    Sysno::sched_setparam,
    Sysno::sched_getparam,
    Sysno::sched_setscheduler,
    Sysno::sched_getscheduler,
    Sysno::sched_setattr,
    Sysno::sched_getattr,
    Sysno::sched_setaffinity,
    Sysno::sched_getaffinity,
    Sysno::sched_rr_get_interval,
];

/// The process is told this number.
pub fn begin(pid: u32) {
    TOLD.store(pid, Relaxed);
}

/// A replayed program goes on for real: such calls come to [`answer`] and [`given`].
pub fn go_on() {
    if TOLD.load(Relaxed) != 0 {
        ASKED.iter().chain(&GIVEN).for_each(|&name| site::report(name));
    }
}

/// A child of the program has a number of its own.
pub fn forget(thread: &Thread) {
    TOLD.store(0, Relaxed);
    thread.told.set(0);
}

/// What a program that goes on for real is told about itself.
pub fn answer(thread: &Thread, name: Sysno) -> Option<isize> {
    let told = match name {
        Sysno::getpid => TOLD.load(Relaxed) as isize,
        Sysno::gettid | Sysno::set_tid_address => thread.told.get() as isize,
        _ => 0,
    };
    (told != 0).then_some(told)
}

/// Whether a call is given such numbers that are to be translated.
pub fn takes(name: Sysno) -> bool {
    TOLD.load(Relaxed) != 0 && GIVEN.contains(&name)
}

/// Makes a call with the numbers that the kernel knows.
pub fn given<T>(name: Sysno, mut args: Args, make: impl FnOnce(&Args) -> T) -> T {
    /// Where `struct sigevent` has the number of a thread, and what says so.
    const THREAD: usize = 16;
    const NOTIFY: usize = 12;
    const SIGEV_THREAD_ID: u32 = 4;
    const PRIO_PROCESS: usize = 0;
    if !takes(name) {
        return make(&args);
    }
    match name {
        Sysno::tgkill | Sysno::rt_tgsigqueueinfo => {
            (args[0], args[1]) = (process(args[0]), real(args[1]));
        }
        Sysno::kill | Sysno::rt_sigqueueinfo => args[0] = process(args[0]),
        Sysno::getpriority | Sysno::setpriority if args[0] == PRIO_PROCESS => {
            args[1] = real(args[1]);
        }
        Sysno::getpriority | Sysno::setpriority => {}
        Sysno::timer_create => {
            let at = args[1];
            let is_given = at != 0 && memory::read::<u32>(at + NOTIFY) == Ok(SIGEV_THREAD_ID);
            if is_given && let Ok(told) = memory::read::<u32>(at + THREAD) {
                // Nobody else looks meanwhile, but for the kernel.
                let _there = memory::write(at + THREAD, &(real(told as usize) as u32));
                let made = make(&args);
                let _back = memory::write(at + THREAD, &told);
                return made;
            }
        }
        _ => args[0] = real(args[0]),
    }
    make(&args)
}

/// The number of the process, or of another one.
fn process(told: usize) -> usize {
    if told as u32 != TOLD.load(Relaxed) {
        return told;
    }
    // SAFETY: changes nothing.
    unsafe { own!(getpid) }.unwrap_or(told)
}

/// The number of a thread of this process, or of something else.
fn real(told: usize) -> usize {
    let is_one = checked(told.cast_signed()).is_ok() && told != 0;
    let real = if is_one { thread::real_tid(told as i32) } else { None };
    real.map_or(told, |tid| tid as usize)
}

//! Numbers of processes and threads. A replayed program is told the recorded ones; the kernel has others. What
//! the program says to the kernel is translated, as is what it asks for once it goes on for real.

use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use systable::Sysno;

use super::ends;
use super::group::turns;
use super::turns::Ids;
use crate::sys::{Args, checked};
use crate::thread::Thread;
use crate::{memory, own, site};

/// What the process was told to be its number. 0: what the kernel says.
static TOLD: AtomicI32 = AtomicI32::new(0);

/// Calls that are asked about the caller.
const ASKED: [Sysno; 4] = [Sysno::getpid, Sysno::gettid, Sysno::set_tid_address, Sysno::getppid];

/// Calls that are given such numbers.
const GIVEN: [Sysno; 25] = [
    Sysno::kill,
    Sysno::tkill,
    Sysno::tgkill,
    Sysno::rt_sigqueueinfo,
    Sysno::rt_tgsigqueueinfo,
    Sysno::wait4,
    Sysno::waitid,
    Sysno::setpgid,
    Sysno::getpgid,
    Sysno::getsid,
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

/// A program begins, in this process. Replayed: it is told this number.
pub fn sits(thread: &Thread, pid: i32, told: Option<i32>) {
    let seat = thread.seat.get();
    let (real, known) = turns().ids(seat);
    // What its parent calls it stays: it may be in a namespace where it has another number.
    let process = if real.process == 0 { pid } else { real.process };
    let known = if known.process == 0 { told.unwrap_or(pid) } else { known.process };
    let of = |number| Ids { thread: number, process: number };
    turns().set_ids(seat, of(process), of(known));
    ends::see_others(process == pid);
    is_told(thread, told);
}

/// What the first thread of a process is told to be its number, and the process's.
fn is_told(thread: &Thread, told: Option<i32>) {
    thread.told.set(told.unwrap_or(0));
    TOLD.store(told.unwrap_or(0), Relaxed);
}

/// A process begins as a copy of another one.
pub fn begins(thread: &Thread, told: Option<i32>) {
    ends::see_others(turns().ids(thread.seat.get()).0.process == own_process());
    is_told(thread, told);
}

/// This process, as the program is told.
pub fn told_process() -> i32 {
    match TOLD.load(Relaxed) {
        0 => own_process(),
        told => told,
    }
}

/// The calling thread, as the program is told.
pub fn told_thread(thread: &Thread) -> i32 {
    match thread.told.get() {
        // SAFETY: changes nothing.
        0 => unsafe { own!(gettid) }.unwrap_or(0) as i32,
        told => told,
    }
}

/// This process.
pub fn own_process() -> i32 {
    // SAFETY: changes nothing.
    unsafe { own!(getpid) }.unwrap_or(0) as i32
}

/// A replayed program goes on for real: such calls come to [`answer`] and [`given`].
pub fn go_on() {
    if TOLD.load(Relaxed) != 0 {
        ASKED.iter().chain(&GIVEN).for_each(|&name| site::report(name));
    }
}

/// A child of a program that goes on for real has a number of its own.
pub fn forget(thread: &Thread) {
    is_told(thread, None);
}

/// What a program that goes on for real is told about itself.
pub fn answer(thread: &Thread, name: Sysno) -> Option<isize> {
    let told = match name {
        Sysno::getpid => TOLD.load(Relaxed),
        Sysno::gettid | Sysno::set_tid_address => thread.told.get(),
        Sysno::getppid if TOLD.load(Relaxed) != 0 => {
            // SAFETY: changes nothing.
            let parent = unsafe { own!(getppid) }.unwrap_or(0) as i32;
            turns().told(parent).unwrap_or(0)
        }
        _ => 0,
    };
    (told != 0).then_some(told as isize)
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
    const P_PID: usize = 1;
    if !takes(name) {
        return make(&args);
    }
    match name {
        Sysno::tgkill | Sysno::rt_tgsigqueueinfo => {
            (args[0], args[1]) = (process(args[0]), thread(args[1]));
        }
        Sysno::kill | Sysno::wait4 | Sysno::rt_sigqueueinfo => args[0] = process(args[0]),
        Sysno::setpgid => (args[0], args[1]) = (process(args[0]), process(args[1])),
        Sysno::getpgid | Sysno::getsid => args[0] = process(args[0]),
        Sysno::waitid if args[0] == P_PID => args[1] = process(args[1]),
        Sysno::waitid => {}
        Sysno::getpriority | Sysno::setpriority if args[0] == PRIO_PROCESS => {
            args[1] = thread(args[1]);
        }
        Sysno::getpriority | Sysno::setpriority => {}
        Sysno::timer_create => {
            let at = args[1];
            let is_given = at != 0 && memory::read::<u32>(at + NOTIFY) == Ok(SIGEV_THREAD_ID);
            if is_given && let Ok(told) = memory::read::<u32>(at + THREAD) {
                // Nobody else looks meanwhile, but for the kernel.
                let _there = memory::write(at + THREAD, &(thread(told as usize) as u32));
                let made = make(&args);
                let _back = memory::write(at + THREAD, &told);
                return made;
            }
        }
        _ => args[0] = thread(args[0]),
    }
    make(&args)
}

/// What a program that goes on for real is told of a process that a call has returned.
pub fn returned(name: Sysno, result: isize) -> isize {
    match name {
        Sysno::wait4 if result > 0 => {
            turns().told(result as i32).map_or(result, |told| told as isize)
        }
        _ => result,
    }
}

/// The number of a process, or of a group of them, negative.
fn process(told: usize) -> usize {
    let number = told as i32;
    if number == 0 || checked(told.cast_signed()).is_err() && number == -1 {
        return told;
    }
    let real = turns().real(Ids { thread: 0, process: number.abs() });
    real.map_or(told, |ids| (ids.process * number.signum()) as isize as usize)
}

/// The number of a thread.
fn thread(told: usize) -> usize {
    let number = told as i32;
    let real = if number > 0 { turns().real(Ids { thread: number, process: 0 }) } else { None };
    real.map_or(told, |ids| ids.thread as usize)
}

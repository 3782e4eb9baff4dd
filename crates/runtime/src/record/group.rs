//! What the processes of a recording share: whose turn it is, how far the recording has come, and what a
//! process leaves for the program that it executes.
//!
//! It is a file without a name, which every process has in the same place. `fork` leaves it where it is, and
//! a program that is executed is told its descriptor.

use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{MAP_FIXED, MAP_SHARED, PROT_READ, PROT_WRITE};

use super::engine::Engine;
use super::kinds;
use super::timers::Timers;
use super::turns::Turns;
use crate::fds::Own;
use crate::layout::{GROUP, page_up};
use crate::own;

/// All of it. It begins as zeros.
#[repr(C)]
struct Group {
    turns: Turns,
    is_made: AtomicBool,
    engine: UnsafeCell<MaybeUninit<Engine>>,
    /// How late it was when that was recorded last: see [`super::timers::now`].
    now: AtomicU64,
    /// What descriptors are, of a process that executes a program: see [`kinds`].
    kinds: [AtomicU8; kinds::MOST],
    /// And its timers.
    timers: UnsafeCell<MaybeUninit<Timers>>,
}

/// Bytes of it.
pub const LEN: usize = page_up(size_of::<Group>());

/// Where in it stands how turns are over: 32 bits, of which [`super::Over::of`] makes it.
pub const OVER_AT: usize = offset_of!(Group, turns) + Turns::OVER_AT;

const _: () = assert!(LEN <= GROUP.end - GROUP.start);

/// The descriptor of its file. None: this process does not belong to one, or no more.
pub static FD: Own = Own::none();

/// Maps it, from its descriptor.
///
/// # Errors
/// The kernel's.
pub fn join(fd: usize) -> Result<(), isize> {
    let (access, flags) = (PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED);
    // SAFETY: nothing else is ever there.
    unsafe { own!(mmap, GROUP.start, LEN, access, flags, fd, 0)? };
    FD.set(fd);
    Ok(())
}

fn group() -> &'static Group {
    // SAFETY: mapped before anything is recorded or replayed, and for ever. Any bytes that are in it were
    // zeros, of which its parts are made, or written by a process of the same image.
    unsafe { &*(GROUP.start as *const Group) }
}

/// Whose turn it is.
pub fn turns() -> &'static Turns {
    &group().turns
}

/// Puts the engine there.
pub fn put(engine: Engine) {
    // SAFETY: by the first thread of the first process, before anybody else is there.
    unsafe { (*group().engine.get()).write(engine) };
    group().is_made.store(true, Relaxed);
}

/// What a recording is written, or followed with. By whoever has the turn.
#[allow(clippy::mut_from_ref)] // there is one who has the turn
pub fn engine() -> &'static mut Engine {
    let group = group();
    assert!(group.is_made.load(Relaxed), "the first process has put it there");
    // SAFETY: it is there, and the caller has the turn.
    unsafe { (*group.engine.get()).assume_init_mut() }
}

/// How late it was when that was recorded last. Written by whoever has the turn.
pub fn now() -> &'static AtomicU64 {
    &group().now
}

/// What descriptors are, of a process that executes a program. By whoever has the turn.
pub fn kinds() -> &'static [AtomicU8; kinds::MOST] {
    &group().kinds
}

/// Leaves its timers to the program that this process is about to execute. By whoever has the turn.
pub fn leave(timers: Timers) {
    // SAFETY: the caller has the turn.
    unsafe { (*group().timers.get()).write(timers) };
}

/// Those that the program in front of this one has left. By whoever has the turn.
pub fn timers() -> Timers {
    // SAFETY: by the program's word that has told this one that it is recorded. The caller has the turn.
    unsafe { (*group().timers.get()).assume_init_ref() }.clone()
}

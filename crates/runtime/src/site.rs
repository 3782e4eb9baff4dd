//! Sites: the places in the program from which it makes system calls, and how a call costs less there.
//!
//! To report a call to us takes the kernel 1.6 µs. A site that is used again and again is *patched*: the
//! call becomes a jump to the site's *stub*, which goes on in `steadfast_site`. A call that needs nothing
//! of the runtime is made there and then. Any other is made by the stub itself, and reported.
//!
//! ```text
//!   site     jmp stub                  before: syscall, and the first instructions behind it
//!   stub     lea rcx, tail; jmp steadfast_site
//!            syscall                   reported: what `steadfast_site` does not make
//!   tail     those instructions; jmp back
//! ```
//!
//! A thread must never come back to the middle of the jump. So every reported call of a site that might
//! be patched goes back to the tail, from the first one on: nobody is ever behind the call when the jump
//! is written. Nor may a thread that runs through the site meanwhile see half a jump: it meets `int3`,
//! and the SIGTRAP sends it to the stub.
//!
//! In `steadfast_site` all registers are the program's, but `rcx` and `r11`, which a system call destroys
//! in any case. So a signal that arrives there finds the program either at the site or at the tail.

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering::*};

use linux_raw_sys::errno::ENOMEM;
use linux_raw_sys::general::*;
use systable::Sysno;

use crate::frame::Context;
use crate::layout::{PAGE, page_down, page_up};
use crate::lock::Lock;
use crate::relocate::{CALL, JUMP, MOST, is_jumped_into, movable};
use crate::sys::error;
use crate::thread::Thread;
use crate::{dispatch, maps, memory, own, record};

/// A site is patched when its calls have been reported so many times.
const OFTEN: u32 = 8;
/// So many sites are known at most.
const MAX_SITES: usize = 4096;
/// Bytes of memory for stubs that is taken at a time.
const ARENA: usize = 64 << 10;
/// So far a jump may lead, with room for an arena.
const REACH: usize = (1 << 31) - (2 << 20);
const MAX_ARENAS: usize = 64;
/// Code is searched for jumps to a site as far as this around it.
const AROUND: usize = 512;

/// How calls may be made at a site, by their numbers.
static FAST: [AtomicU8; NUMBERS] = fast();
const NUMBERS: usize = 512;
/// Only if they are reported.
const REPORTED: u8 = 0;
/// As they are.
const AS_IT_IS: u8 = 1;
/// As they are, unless the first argument is the runtime's descriptor.
const NOT_THE_IMAGE: u8 = 2;
/// As they are, if the fifth argument, or the fourth, is no address of a mask.
const WITHOUT_FIFTH: u8 = 3;
const WITHOUT_FOURTH: u8 = 4;

const fn fast() -> [AtomicU8; NUMBERS] {
    let mut table = [const { AtomicU8::new(REPORTED) }; NUMBERS];
    let mut number = 0;
    while number < NUMBERS {
        if let Some(name) = Sysno::new(number) {
            let how = match name {
                Sysno::close | Sysno::fstat | Sysno::newfstatat | Sysno::fcntl | Sysno::dup => {
                    NOT_THE_IMAGE
                }
                Sysno::epoll_pwait | Sysno::epoll_pwait2 => WITHOUT_FIFTH,
                Sysno::ppoll => WITHOUT_FOURTH,
                Sysno::open | Sysno::openat => AS_IT_IS,
                name if dispatch::is_made_as_it_is(name) => AS_IT_IS,
                _ => REPORTED,
            };
            table[number] = AtomicU8::new(how);
        }
        number += 1;
    }
    table
}

/// Whether the program is recorded: all its calls are dispatched.
static ENTERS: AtomicU8 = AtomicU8::new(0);

/// Which calls, then, need not be reported.
static ENTERED: [bool; NUMBERS] = {
    let mut table = [false; NUMBERS];
    let mut number = 0;
    while number < NUMBERS {
        if let Some(name) = Sysno::new(number) {
            table[number] = record::entry::is_enough_for(name);
        }
        number += 1;
    }
    table
};

/// Calls at patched sites are dispatched from now on, or no longer.
pub fn enter(all: bool) {
    ENTERS.store(u8::from(all), Relaxed);
}

/// Calls with this number are reported from now on, wherever they are made.
pub fn report(name: Sysno) {
    FAST[name as usize].store(REPORTED, Relaxed);
}

global_asm!(
    ".text",
    ".globl steadfast_site, steadfast_site_call, steadfast_site_behind, steadfast_site_leave",
    ".globl steadfast_time, steadfast_time_call, steadfast_time_behind, steadfast_site_end",
    ".balign 16",
    // (a system call's registers, but the tail: rcx)
    "steadfast_site:",
    "cmp rax, {last}",
    "ja 9f",
    "cmp byte ptr [rip + {enters}], 0",
    "jne 6f",
    "lea r11, [rip + {fast}]",
    "movzx r11d, byte ptr [r11 + rax]",
    "cmp r11d, {as_it_is}",
    "jne 3f",
    "2:",
    "mov gs:[{tail}], rcx",
    "steadfast_site_call:",
    "syscall",
    "steadfast_site_behind:",
    "jmp qword ptr gs:[{tail}]",
    "3:",
    "cmp r11d, {not_the_image}",
    "jne 4f",
    "cmp edi, gs:[{image_fd}]",
    "jne 2b",
    "jmp 9f",
    "4:",
    "cmp r11d, {without_fifth}",
    "jne 5f",
    "test r8, r8",
    "jz 2b",
    "jmp 9f",
    "5:",
    "cmp r11d, {without_fourth}",
    "jne 9f",
    "test r10, r10",
    "jz 2b",
    "jmp 9f",
    "6:",
    "lea r11, [rip + {entered}]",
    "cmp byte ptr [r11 + rax], 0",
    "jne steadfast_recorded",
    "9:",
    "sub rcx, {call}",
    "steadfast_site_leave:",
    "jmp rcx",
    // The same for a call of our vDSO: without the runtime, no seccomp filter of the program's would see it.
    "steadfast_time:",
    "cmp byte ptr [rip + {enters}], 0",
    "jne steadfast_asked",
    "mov gs:[{tail}], rcx",
    "steadfast_time_call:",
    "syscall",
    "steadfast_time_behind:",
    "jmp qword ptr gs:[{tail}]",
    "steadfast_site_end:",
    last = const NUMBERS - 1,
    fast = sym FAST,
    enters = sym ENTERS,
    entered = sym ENTERED,
    as_it_is = const AS_IT_IS,
    not_the_image = const NOT_THE_IMAGE,
    without_fifth = const WITHOUT_FIFTH,
    without_fourth = const WITHOUT_FOURTH,
    tail = const offset_of!(Thread, tail),
    image_fd = const offset_of!(Thread, image_fd),
    call = const CALL,
);

unsafe extern "C" {
    static steadfast_site: u8;
    static steadfast_site_call: u8;
    static steadfast_site_behind: u8;
    static steadfast_site_leave: u8;
    static steadfast_time: u8;
    static steadfast_time_call: u8;
    static steadfast_time_behind: u8;
    static steadfast_site_end: u8;
}

/// The address behind the instruction that makes calls at patched sites.
pub fn behind_call() -> usize {
    &raw const steadfast_site_behind as usize
}

/// A stub, as it lies in memory.
#[repr(C, packed)]
struct Stub {
    /// `lea rcx, [rip + …]`
    lea: [u8; 3],
    to_tail: u32,
    /// `jmp [rip + …]`
    jump: [u8; 2],
    to_target: u32,
    /// `syscall`
    call: [u8; CALL],
    /// The moved instructions, the jump back, and nothing.
    tail: [u8; MOST + JUMP],
    /// Where `jump` leads.
    target: usize,
    /// Whose stub it is.
    site: usize,
    /// How many bytes were moved.
    moved: usize,
}

const TAIL: usize = offset_of!(Stub, tail);
const STUB: usize = size_of::<Stub>().next_multiple_of(16);

/// What is known of a site.
#[derive(Clone, Copy)]
struct Site {
    /// 0: nothing, here or further on.
    at: usize,
    /// Its stub. 0: it is not to be patched.
    stub: usize,
    /// How often it was reported.
    times: u32,
    patched: bool,
}

struct Sites {
    lock: Lock,
    known: UnsafeCell<[Site; MAX_SITES]>,
    count: UnsafeCell<usize>,
    arenas: UnsafeCell<[Arena; MAX_ARENAS]>,
}

/// Memory for stubs.
#[derive(Clone, Copy)]
struct Arena {
    at: usize,
    used: usize,
}

// SAFETY: everything is looked at under the lock alone.
unsafe impl Sync for Sites {}

static SITES: Sites = Sites {
    lock: Lock::free(),
    known: UnsafeCell::new([Site { at: 0, stub: 0, times: 0, patched: false }; MAX_SITES]),
    count: UnsafeCell::new(0),
    arenas: UnsafeCell::new([Arena { at: 0, used: 0 }; MAX_ARENAS]),
};

/// While this is held no site is patched: a copy of the memory may be made.
pub fn still() -> impl Drop {
    SITES.lock.lock()
}

/// A call was reported: `context` is behind it. If its site might be patched, now or later, the program
/// goes on at its tail. The site: where the program is to be if the call is not made.
pub fn reported(context: &mut Context) -> usize {
    let site = context.registers.rip - CALL;
    let _guard = SITES.lock.lock();
    // SAFETY: under the lock.
    if unsafe { SITES.has_stub_around(site) } {
        return site_of(context.registers.rip);
    }
    // SAFETY: under the lock.
    let Some(known) = (unsafe { SITES.find(site) }) else { return site };
    if known.stub != 0 && !is_unchanged(known) {
        // Other code is there than was when the stub was made.
        *known = Site { at: site, stub: 0, times: 0, patched: false };
    }
    if known.times == 0 && !is_jumped_around(site) {
        // SAFETY: under the lock.
        known.stub = unsafe { SITES.make_stub(site, &raw const steadfast_site) }.unwrap_or(0);
    }
    known.times = known.times.saturating_add(1);
    if known.stub != 0 {
        context.registers.rip = known.stub + TAIL;
        if known.times == OFTEN {
            known.patched = patch(site, known.stub);
        }
    }
    site
}

/// Patches a site of our vDSO, which nobody uses yet.
///
/// # Errors
/// There is no memory.
///
/// # Safety
/// It is one, and can be written to.
pub unsafe fn answer(site: usize) -> Result<(), isize> {
    let _guard = SITES.lock.lock();
    // SAFETY: under the lock, and by the caller's word.
    unsafe {
        let stub = SITES.make_stub(site, &raw const steadfast_time).ok_or(error(ENOMEM))?;
        let known = SITES.find(site).expect("it is among the first");
        *known = Site { at: site, stub, times: OFTEN, patched: true };
        ptr::copy_nonoverlapping(jump(site, stub).as_ptr(), site as *mut u8, JUMP);
    }
    Ok(())
}

/// Where the program is that a signal has interrupted in `steadfast_site`: the context says so from now
/// on. `false`: it was elsewhere.
pub fn interrupted(thread: &Thread, context: &mut Context) -> bool {
    let registers = &mut context.registers;
    let begin = &raw const steadfast_site as usize;
    if !(begin..&raw const steadfast_site_end as usize).contains(&registers.rip) {
        return false;
    }
    let tail = thread.tail.get();
    registers.rip = match registers.rip {
        at if at == behind_call() || at == &raw const steadfast_time_behind as usize => tail,
        at if at == &raw const steadfast_site_leave as usize => registers.rcx,
        // The kernel has come back to make the call once more, and `rcx` is gone.
        at if at == &raw const steadfast_site_call as usize => site_of(tail),
        at if at == &raw const steadfast_time_call as usize => site_of(tail),
        _ => site_of(registers.rcx),
    };
    true
}

/// A SIGTRAP: whether the program has met a site that is being patched, and goes on at its stub.
pub fn trapped(context: &mut Context) -> bool {
    let site = context.registers.rip - 1;
    let _guard = SITES.lock.lock();
    // SAFETY: under the lock.
    let found = unsafe { SITES.find(site) }.map_or(0, |known| known.stub);
    if found != 0 {
        context.registers.rip = found;
    }
    found != 0
}

/// Where an instruction is in the program that may be a stub's.
pub fn in_program(at: usize) -> usize {
    let _guard = SITES.lock.lock();
    // SAFETY: under the lock.
    if unsafe { SITES.has_stub_around(at) } { site_of(at) + CALL } else { at }
}

/// Whose tail this is.
pub fn site_of(tail: usize) -> usize {
    // SAFETY: a stub's tail; stubs are never given back.
    unsafe { ptr::read_unaligned(&raw const (*((tail - TAIL) as *const Stub)).site) }
}

/// Whether the code is still what the stub was made from, or the jump to it: the call may have been made
/// right before.
fn is_unchanged(known: &Site) -> bool {
    if known.patched {
        let mut now = [0; JUMP];
        return memory::read_bytes(known.at, &mut now).is_ok() && now == jump(known.at, known.stub);
    }
    let mut now = [0; MOST];
    // SAFETY: a stub that was made.
    let (moved, tail) = unsafe {
        let stub = known.stub as *const Stub;
        (
            ptr::read_unaligned(&raw const (*stub).moved),
            ptr::read_unaligned(&raw const (*stub).tail),
        )
    };
    let now = &mut now[..moved];
    memory::read_bytes(known.at + CALL, now).is_ok() && *now == tail[..moved]
}

impl Sites {
    /// Whether this address is in a stub.
    ///
    /// # Safety
    /// The lock is held.
    unsafe fn has_stub_around(&self, at: usize) -> bool {
        // SAFETY: by the caller's word.
        let arenas = unsafe { &*self.arenas.get() };
        arenas.iter().any(|arena| arena.at != 0 && (arena.at..arena.at + ARENA).contains(&at))
    }

    /// What is known of a site, as it is or begun. `None`: there are too many.
    ///
    /// # Safety
    /// The lock is held.
    #[allow(clippy::mut_from_ref)] // under the lock there is nobody else
    unsafe fn find(&self, site: usize) -> Option<&mut Site> {
        // SAFETY: by the caller's word.
        let (known, count) = unsafe { (&mut *self.known.get(), &mut *self.count.get()) };
        let begin = (site.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % MAX_SITES;
        let mut slots = (0..MAX_SITES).map(|i| (begin + i) % MAX_SITES);
        let slot = slots.find(|&slot| [0, site].contains(&known[slot].at))?;
        if known[slot].at == 0 {
            if *count >= MAX_SITES / 2 {
                return None;
            }
            *count += 1;
            known[slot].at = site;
        }
        Some(&mut known[slot])
    }

    /// Makes the site's stub, which leads to `target`, if what is behind the site may be moved.
    ///
    /// # Safety
    /// The lock is held.
    unsafe fn make_stub(&self, site: usize, target: *const u8) -> Option<usize> {
        let mut behind = [0; MOST];
        let got = read_up_to(site + CALL, &mut behind);
        let moved = movable(&behind[..got])?;
        // SAFETY: by the caller's word.
        let at = unsafe { self.room_near(site)? };
        let back = site + CALL + moved;
        let mut tail = [0xcc; MOST + JUMP];
        tail[..moved].copy_from_slice(&behind[..moved]);
        let jump = jump(at + TAIL + moved, back);
        tail[moved..moved + JUMP].copy_from_slice(&jump);
        let stub = Stub {
            lea: [0x48, 0x8d, 0x0d],
            to_tail: (TAIL - offset_of!(Stub, jump)) as u32,
            jump: [0xff, 0x25],
            to_target: (offset_of!(Stub, target) - offset_of!(Stub, call)) as u32,
            call: [0x0f, 0x05],
            tail,
            target: target as usize,
            site,
            moved,
        };
        write_code(at, &stub).ok().map(|()| at)
    }

    /// A place for a stub from which a jump leads to `site` and back.
    ///
    /// # Safety
    /// The lock is held.
    unsafe fn room_near(&self, site: usize) -> Option<usize> {
        // SAFETY: by the caller's word.
        let arenas = unsafe { &mut *self.arenas.get() };
        let fits = |arena: &&mut Arena| {
            arena.at == 0 || (arena.at.abs_diff(site) < REACH && arena.used + STUB <= ARENA)
        };
        let arena = arenas.iter_mut().find(fits)?;
        if arena.at == 0 {
            *arena = Arena { at: map_near(site)?, used: 0 };
        }
        arena.used += STUB;
        Some(arena.at + arena.used - STUB)
    }
}

/// The first place below `site` where there is room for an arena.
fn map_near(site: usize) -> Option<usize> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    let below = |n: usize| page_down(site).checked_sub(n * ARENA).filter(|&at| at >= ARENA);
    (1..REACH / ARENA).map_while(below).find_map(|at| {
        // SAFETY: takes only what is nobody's.
        unsafe { own!(mmap, at, ARENA, PROT_READ | PROT_EXEC, flags, usize::MAX, 0) }.ok()
    })
}

/// Whether code near a site jumps to what would be overwritten.
fn is_jumped_around(site: usize) -> bool {
    let (mut code, from) = ([0; 2 * AROUND], around(site));
    let got = read_up_to(from, &mut code);
    is_jumped_into(&code[..got], from, site)
}

/// Where to begin to look at the code around a site: as far in front as can be read.
fn around(site: usize) -> usize {
    let far = site.saturating_sub(AROUND);
    let is_there = memory::read::<u64>(far).is_ok();
    if is_there { far } else { page_down(site) }
}

/// Reads as many bytes as there are, up to the end of the page that can be read.
fn read_up_to(at: usize, buffer: &mut [u8]) -> usize {
    if memory::read_bytes(at, buffer).is_ok() {
        return buffer.len();
    }
    let len = (page_up(at + 1) - at).min(buffer.len());
    if memory::read_bytes(at, &mut buffer[..len]).is_ok() { len } else { 0 }
}

fn jump(from: usize, to: usize) -> [u8; JUMP] {
    let distance = to.wrapping_sub(from + JUMP).cast_signed();
    let distance = i32::try_from(distance).expect("stubs are where jumps reach them");
    let [a, b, c, d] = distance.to_le_bytes();
    [0xe9, a, b, c, d]
}

/// Writes what is executed, and belongs to nobody who executes it yet.
fn write_code<T>(at: usize, what: &T) -> Result<(), isize> {
    let (from, len) = (page_down(at), page_up(at + size_of::<T>()) - page_down(at));
    // SAFETY: the runtime's own memory.
    unsafe {
        own!(mprotect, from, len, PROT_READ | PROT_WRITE | PROT_EXEC)?;
        ptr::copy_nonoverlapping(ptr::from_ref(what).cast::<u8>(), at as *mut u8, size_of::<T>());
        own!(mprotect, from, len, PROT_READ | PROT_EXEC)?;
    }
    Ok(())
}

/// Makes a jump of a site. Only of code that comes from a file and is not written to: what a program
/// makes while it runs it may make anew.
fn patch(site: usize, stub: usize) -> bool {
    const INT3: u8 = 0xcc;
    if !maps::is_code_of_a_file(site, JUMP) || !synchronise() {
        return false;
    }
    let jump = jump(site, stub);
    let (from, len) = (page_down(site), page_up(site + JUMP) - page_down(site));
    // SAFETY: the bytes of the call and of instructions that the stub has; threads that are at the site
    // meanwhile meet `int3`.
    unsafe {
        if own!(mprotect, from, len, PROT_READ | PROT_WRITE | PROT_EXEC).is_err() {
            return false;
        }
        let code = site as *mut u8;
        code.write_volatile(INT3);
        assert!(synchronise(), "what could be done can be done again");
        for (i, &byte) in jump.iter().enumerate().skip(1) {
            code.add(i).write_volatile(byte);
        }
        assert!(synchronise(), "what could be done can be done again");
        code.write_volatile(jump[0]);
        assert!(synchronise(), "what could be done can be done again");
        let _as_before = own!(mprotect, from, len, PROT_READ | PROT_EXEC);
    }
    true
}

/// All threads of the process see what has been written, before they execute anything more. `false`: the
/// kernel cannot do that (it can from 4.16 on, if it is built so).
fn synchronise() -> bool {
    const SYNC_CORE: usize = 1 << 5;
    const REGISTER_SYNC_CORE: usize = 1 << 6;
    // SAFETY: no effect but the one that is wanted.
    unsafe {
        let register = || own!(membarrier, REGISTER_SYNC_CORE, 0, 0);
        let done = own!(membarrier, SYNC_CORE, 0, 0);
        done.or_else(|_| register().and_then(|_| own!(membarrier, SYNC_CORE, 0, 0))).is_ok()
    }
}

const _: () = assert!(STUB <= PAGE);

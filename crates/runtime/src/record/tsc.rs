//! The processor's time stamp counter, which a program reads without asking anybody: while it is recorded,
//! the kernel forbids that, and it comes to us.

use crate::frame::Context;
use crate::{memory, own};

const PR_SET_TSC: usize = 26;
const PR_TSC_ENABLE: usize = 1;
const PR_TSC_SIGSEGV: usize = 2;

/// `rdtsc`, and `rdtscp`, which also tells the processor.
const RDTSC: [u8; 2] = [0x0f, 0x31];
const RDTSCP: [u8; 3] = [0x0f, 0x01, 0xf9];

/// Whether programs may read it.
pub fn allow(may: bool) {
    let how = if may { PR_TSC_ENABLE } else { PR_TSC_SIGSEGV };
    // SAFETY: changes what two instructions do, which the runtime does not use meanwhile.
    let _set = unsafe { own!(prctl, PR_SET_TSC, how) };
}

/// The calling thread may again; it tries once more.
pub fn allow_again() -> bool {
    allow(true);
    true
}

/// The instruction that the program was about to execute, if it reads the counter: its length.
pub fn reads(context: &Context) -> Option<usize> {
    let mut code = [0; 3];
    let at = context.registers.rip;
    let got = match memory::read_bytes(at, &mut code) {
        Ok(()) => 3,
        // At the end of the last page.
        Err(_) => memory::read_bytes(at, &mut code[..2]).map_or(0, |()| 2),
    };
    [&RDTSC[..], &RDTSCP[..]]
        .into_iter()
        .find(|known| code[..got].starts_with(known))
        .map(<[u8]>::len)
}

/// Reads it.
pub fn read() -> (u64, u32) {
    let mut processor = 0;
    allow(true);
    // SAFETY: it is allowed.
    let counter = unsafe { core::arch::x86_64::__rdtscp(&raw mut processor) };
    allow(false);
    (counter, processor)
}

/// Goes on behind the instruction, of this length, with what it has read.
pub fn go_on(context: &mut Context, len: usize, (counter, processor): (u64, u32)) {
    let registers = &mut context.registers;
    registers.rip += len;
    registers.rax = counter as u32 as usize;
    registers.rdx = (counter >> 32) as usize;
    if len == RDTSCP.len() {
        registers.rcx = processor as usize;
    }
}

//! seccomp filters of the program's. They judge the calls that it makes, and must not see those that
//! the runtime makes to serve it: a server that has forbidden itself `sigaltstack` did not mean ours.
//! So every filter gets a few instructions in front, which ask where a call is made.
//!
//! A sandbox under the runtime holds against a program that does what it was written for. It is no
//! wall against one that has been taken over: whoever may execute any code can jump into the runtime's.

use linux_raw_sys::errno::{EFAULT, ENOMEM};
use linux_raw_sys::general::*;
use systable::Sysno;

use crate::birth::behind_birth;
use crate::layout::{OWN, page_up};
use crate::memory;
use crate::own;
use crate::sys::{self, Args, EINVAL, behind_guest, error};
use crate::thread::Thread;
use crate::{signal, site};

const SECCOMP_SET_MODE_STRICT: usize = 0;
const SECCOMP_SET_MODE_FILTER: usize = 1;
const SECCOMP_MODE_STRICT: usize = 1;
const SECCOMP_MODE_FILTER: usize = 2;

/// `struct sock_filter`, as a word: code, two jumps, a constant.
type Instruction = u64;

/// A filter may have so many instructions.
const MAX: usize = 4096;

const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000;

/// Where `struct seccomp_data` has the call's number and its two halves of an address.
const NUMBER: u32 = 0;
const ADDRESS_LOW: u32 = 8;
const ADDRESS_HIGH: u32 = 12;

// One half of an address says whose it is.
const _: () = assert!(OWN.end - OWN.start == 1 << 32 && OWN.start.is_multiple_of(1 << 32));

const fn instruction(code: u16, if_true: u8, if_false: u8, constant: u32) -> Instruction {
    code as u64 | (if_true as u64) << 16 | (if_false as u64) << 24 | (constant as u64) << 32
}

/// What comes in front: calls of the runtime's own are allowed.
fn in_front() -> [Instruction; 7] {
    let high = (OWN.start >> 32) as u32;
    [
        instruction(LOAD, 0, 0, ADDRESS_HIGH),
        instruction(JUMP_IF_EQUAL, 0, 5, high),
        instruction(LOAD, 0, 0, ADDRESS_LOW),
        instruction(JUMP_IF_EQUAL, 3, 0, behind_guest() as u32),
        instruction(JUMP_IF_EQUAL, 2, 0, behind_birth() as u32),
        instruction(JUMP_IF_EQUAL, 1, 0, site::behind_call() as u32),
        instruction(RETURN, 0, 0, ALLOW),
    ]
}

/// What `SECCOMP_MODE_STRICT` allows, as a filter. The rest is SIGKILL's, which no filter sends: see
/// [`broken`].
fn strict() -> [Instruction; 7] {
    [
        instruction(LOAD, 0, 0, NUMBER),
        instruction(JUMP_IF_EQUAL, 4, 0, Sysno::read as u32),
        instruction(JUMP_IF_EQUAL, 3, 0, Sysno::write as u32),
        instruction(JUMP_IF_EQUAL, 2, 0, Sysno::exit as u32),
        instruction(JUMP_IF_EQUAL, 1, 0, Sysno::rt_sigreturn as u32),
        instruction(RETURN, 0, 0, TRAP),
        instruction(RETURN, 0, 0, ALLOW),
    ]
}

/// `prctl(PR_SET_SECCOMP, mode, filter)`.
pub fn prctl(thread: &Thread, number: usize, args: Args) -> isize {
    match args[1] {
        SECCOMP_MODE_FILTER => with_filter(number, args, args[2]),
        SECCOMP_MODE_STRICT => install_strict(thread),
        // SAFETY: the program's call, which the kernel refuses.
        _ => unsafe { sys::guest(number, &args) },
    }
}

/// `seccomp(operation, flags, filter)`.
pub fn seccomp(thread: &Thread, number: usize, args: Args) -> isize {
    match args[0] {
        SECCOMP_SET_MODE_FILTER => with_filter(number, args, args[2]),
        SECCOMP_SET_MODE_STRICT if args[1] == 0 && args[2] == 0 => install_strict(thread),
        // SAFETY: the program's call; it installs nothing.
        _ => unsafe { sys::guest(number, &args) },
    }
}

/// The call with its third argument, a `struct sock_fprog`, replaced.
fn with_filter(number: usize, mut args: Args, program: usize) -> isize {
    let mut install = || {
        let [len, at] = memory::read::<[usize; 2]>(program)?;
        let (len, front) = (len & 0xffff, in_front());
        if len == 0 || at == 0 || len + front.len() > MAX {
            return Err(EINVAL);
        }
        let room = page_up(MAX * size_of::<Instruction>());
        let (access, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        // SAFETY: fresh memory with room for as many instructions, given back at the end; the
        // program's call, with another filter.
        unsafe {
            let whole =
                own!(mmap, 0, room, access, flags, usize::MAX, 0).map_err(|_| error(ENOMEM))?;
            let filter = core::slice::from_raw_parts_mut(whole as *mut Instruction, MAX);
            filter[..front.len()].copy_from_slice(&front);
            let bytes = (&raw mut filter[front.len()]).cast::<u8>();
            let bytes = core::slice::from_raw_parts_mut(bytes, len * size_of::<Instruction>());
            let result = match memory::read_bytes(at, bytes) {
                Ok(()) => {
                    let replaced = [len + front.len(), whole];
                    args[2] = &raw const replaced as usize;
                    sys::guest(number, &args)
                }
                Err(_) => error(EFAULT),
            };
            let _freed = own!(munmap, whole, room);
            Ok(result)
        }
    };
    install().unwrap_or_else(|error| error)
}

fn install_strict(thread: &Thread) -> isize {
    let (front, rest) = (in_front(), strict());
    let mut filter = [0; 14];
    filter[..front.len()].copy_from_slice(&front);
    filter[front.len()..].copy_from_slice(&rest);
    let program = [filter.len(), filter.as_ptr() as usize];
    // Nobody who may install the strict mode needs to be allowed to install a filter.
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    // SAFETY: the same effect, in another way.
    unsafe {
        let _set = own!(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let made = own!(seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw const program);
        thread.strict.set(made.is_ok());
        made.map_or_else(|error| error, |_| 0)
    }
}

/// A filter has reported a call. In the strict mode nobody else hears of it.
pub fn broken(thread: &Thread) {
    if thread.strict.get() {
        signal::die(SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_laid_out_as_the_kernel_has_them() {
        // JEQ 7, 1, 2: code 0x0015, jt 1, jf 2, k 7
        let bytes = instruction(JUMP_IF_EQUAL, 1, 2, 7).to_le_bytes();
        assert_eq!(bytes, [0x15, 0, 1, 2, 7, 0, 0, 0]);
    }
}

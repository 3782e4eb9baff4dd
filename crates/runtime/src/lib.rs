//! The in-process runtime: loads an unmodified program and owns every system call it makes.
//!
//! It is a static program without a library of its own beneath it (`program/`). `start` maps the
//! program and its interpreter, `signal` has the kernel report their system calls, `dispatch` says
//! what becomes of each. Record 17 says why it is done so.
//!
//! Code here runs inside somebody else's process, on signal handlers' stacks. It allocates nothing,
//! takes no lock but [`lock::Lock`], touches the program's memory only through [`memory`] (so that a
//! bad address is an error of the call, not a fault), and aborts on a panic.

#![cfg_attr(not(test), no_std)]
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

pub mod altstack;
pub mod birth;
pub mod calls;
pub mod config;
pub mod dispatch;
pub mod elf;
pub mod errno;
pub mod exe;
pub mod exec;
pub mod fds;
pub mod frame;
pub mod handlers;
mod held;
pub mod image;
pub mod layout;
pub mod lock;
pub mod maps;
pub mod masks;
pub mod memory;
pub mod process;
pub mod record;
pub mod relocate;
mod robust;
pub mod say;
pub mod seccomp;
pub mod signal;
pub mod sigset;
pub mod site;
pub mod start;
pub mod sys;
pub mod thread;
pub mod vdso;

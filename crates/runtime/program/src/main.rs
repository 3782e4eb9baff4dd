//! The runtime as a program. All of it is in the library; here is what only a program has.

#![no_std]
#![no_main]

mod mem;

/// The first instruction.
///
/// # Safety
/// The kernel's to go to.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn _start() -> ! {
    core::arch::naked_asm!("jmp {entry}", entry = sym runtime::start::entry)
}

#[panic_handler]
fn panicked(info: &core::panic::PanicInfo) -> ! {
    runtime::say::die(
        runtime::say::NOT_FOUND,
        format_args!("the runtime has failed, which is a bug: {info}"),
    )
}

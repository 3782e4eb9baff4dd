//! Whether other processes are still there.
//!
//! Who asks with a descriptor must have the turn. For a moment the descriptor has the lowest number that is free,
//! and a thread that has the turn might put one of the program's there meanwhile, for us to close.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linux_raw_sys::errno::ESRCH;
use linux_raw_sys::general::{POLLIN, SIGKILL};

use crate::layout::OWN;
use crate::own;
use crate::sys::error;

/// Whether this process cannot find others by their numbers.
static BLIND: AtomicBool = AtomicBool::new(false);

/// Whether this process finds others by their numbers: it is in the same namespace.
pub fn see_others(are_seen: bool) {
    BLIND.store(!are_seen, Relaxed);
}

/// Whether a process has ended, also if nobody has waited for it yet, or does so within some milliseconds.
pub fn has_ended(process: i32, patience: i32) -> bool {
    if process == 0 || BLIND.load(Relaxed) {
        return patience > 0;
    }
    // SAFETY: a descriptor of the runtime's, which is closed again.
    unsafe {
        match own!(pidfd_open, process, 0) {
            Ok(fd) => {
                let mut poll: [u32; 2] = [fd as u32, POLLIN];
                let ended = own!(poll, poll.as_mut_ptr(), 1, patience) == Ok(1);
                let _closed = own!(close, fd);
                ended
            }
            Err(why) if why == error(ESRCH) => true,
            // It cannot be asked. Who only wants to wait does so, for a moment.
            Err(_) => {
                let moment = [0u64, 10_000_000];
                patience > 0 && own!(nanosleep, moment.as_ptr(), 0).is_ok()
            }
        }
    }
}

/// Whether a thread has given back its memory, and with it its process, if it was killed: the kernel closes its
/// descriptors and frees its locks behind that. Asked without a descriptor, by who only waits for the turn, and
/// without `/proc`, which is not in every root; whoever has no right to look at the thread is told as well.
pub fn is_gone(thread: i32) -> bool {
    if thread == 0 || BLIND.load(Relaxed) {
        return false;
    }
    let mut byte = 0u8;
    let (here, there) = ([&raw mut byte as usize, 1], [OWN.start, 1]);
    // SAFETY: reads a byte that every process with the runtime has.
    let read = unsafe { own!(process_vm_readv, thread, here.as_ptr(), 1, there.as_ptr(), 1, 0) };
    // EPERM: it is there.
    read == Err(error(ESRCH))
}

/// Kills this process.
pub fn kill_this() -> ! {
    loop {
        // SAFETY: ends the process.
        let _killed = unsafe { own!(kill, own!(getpid).unwrap_or(0), SIGKILL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_nobody_has_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let process = child.id().cast_signed();
        assert!(!has_ended(process, 0) && !is_gone(process));
        child.kill().unwrap();
        assert!(has_ended(process, 5000) && is_gone(process));
        child.wait().unwrap();
        assert!(has_ended(process, 0) && is_gone(process));
        assert!(!is_gone(0));
    }
}

//! Whether other processes are still there.
//!
//! Who asks with a descriptor must have the turn. For a moment the descriptor has the lowest number that is free,
//! and a thread that has the turn might put one of the program's there meanwhile, for us to close.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use linux_raw_sys::errno::{ENOENT, ESRCH};
use linux_raw_sys::general::{AT_FDCWD, O_CLOEXEC, O_DIRECTORY, O_PATH, O_RDONLY, POLLIN};

use crate::exec::Name;
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

/// Whether a thread has given back its memory, and with it its process, if it was killed; its descriptors may still
/// be open. Asked without a descriptor, by who only waits for the turn.
pub fn is_gone(thread: i32) -> bool {
    if thread == 0 || BLIND.load(Relaxed) {
        return false;
    }
    let mut byte = 0u8;
    let (here, there) = ([&raw mut byte as usize, 1], [OWN.start, 1]);
    // SAFETY: reads a byte that every process with the runtime has.
    let read = unsafe { own!(process_vm_readv, thread, here.as_ptr(), 1, there.as_ptr(), 1, 0) };
    // Whoever may not be looked at is there.
    read == Err(error(ESRCH))
}

/// Whether a process has ended, or is about to and has begun to close its descriptors.
pub fn is_ending(process: i32) -> bool {
    // PF_EXITING
    const IS_ENDING: u32 = 4;
    if process == 0 || BLIND.load(Relaxed) {
        return false;
    }
    let mut buffer = [0; 512];
    match read_stat(process, &mut buffer) {
        Ok(len) => flags(&buffer[..len]).is_some_and(|flags| flags & IS_ENDING != 0),
        Err(why) => [error(ENOENT), error(ESRCH)].contains(&why),
    }
}

fn read_stat(process: i32, buffer: &mut [u8]) -> Result<usize, isize> {
    let name = Name::of_descriptor(c"/proc/", process);
    // SAFETY: descriptors of the runtime's, which are closed again.
    unsafe {
        let flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
        let folder = own!(openat, AT_FDCWD, name.as_c_str().as_ptr(), flags)?;
        let file = own!(openat, folder, c"stat".as_ptr(), O_RDONLY | O_CLOEXEC);
        let _closed = own!(close, folder);
        let read = own!(read, file?, buffer.as_mut_ptr(), buffer.len());
        let _closed = own!(close, file?);
        read
    }
}

/// The flags in `/proc/PID/stat`, in which the program's name may be anything.
fn flags(stat: &[u8]) -> Option<u32> {
    let behind_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let words = core::str::from_utf8(&stat[behind_name..]).ok()?;
    words.split_ascii_whitespace().nth(6)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_nobody_has_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let process = child.id().cast_signed();
        assert!(!is_ending(process) && !has_ended(process, 0) && !is_gone(process));
        child.kill().unwrap();
        assert!(has_ended(process, 5000) && is_ending(process) && is_gone(process));
        child.wait().unwrap();
        assert!(has_ended(process, 0) && is_ending(process) && is_gone(process));
        assert!(!is_ending(0) && !is_gone(0));
    }

    #[test]
    fn the_name_may_be_anything() {
        let stat = b"27 (a ) b (c) R 1 2 3 0 -1 4194308 9 9";
        assert_eq!((flags(stat), flags(b"27 (")), (Some(0x40_0004), None));
    }
}

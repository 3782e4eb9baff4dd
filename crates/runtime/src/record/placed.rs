//! Descriptors of a replayed program: where they were, also if the kernel has given out another number, and where
//! there is nothing of the kind.

use linux_raw_sys::general::{AT_FDCWD, F_GETFD, O_CLOEXEC, O_RDWR};

use crate::{memory, own};

/// Numbers that a call has written to memory.
pub struct Descriptors {
    numbers: [i32; MOST_SENT],
    len: usize,
}

/// The kernel sends no more with one message (`SCM_MAX_FD`).
const MOST_SENT: usize = 253;

impl Descriptors {
    /// None of them.
    pub const NONE: Descriptors = Descriptors { numbers: [0; MOST_SENT], len: 0 };

    /// The two that are written there.
    pub fn two(at: usize) -> Descriptors {
        let mut two = Descriptors::NONE;
        (0..2).for_each(|i| two.add(memory::read::<u32>(at + 4 * i).map_or(-1, u32::cast_signed)));
        two
    }

    /// And this one.
    pub fn add(&mut self, fd: i32) {
        if let Some(free) = self.numbers.get_mut(self.len) {
            *free = fd;
            self.len += 1;
        }
    }

    fn list(&self) -> &[i32] {
        &self.numbers[..self.len]
    }

    /// Moves them to where they were. Whether they are there.
    pub fn move_to(&mut self, recorded: &Descriptors) -> bool {
        let len = self.len;
        // Where one has to go another one may be, which has to go first.
        for _ in 0..len {
            let pairs = self.numbers[..len].iter_mut().zip(recorded.list());
            for (now, &to) in pairs.filter(|(now, to)| now != to) {
                if moves(*now as isize, to as isize) {
                    *now = to;
                }
            }
        }
        self.list() == recorded.list()
    }
}

/// Puts a descriptor where it was, if there is none. Whether it is there.
pub fn moves(now: isize, to: isize) -> bool {
    // SAFETY: asks; and then moves a descriptor that nobody knows to where there is none.
    unsafe {
        let is_free = own!(fcntl, to, F_GETFD).is_err();
        let Ok(flags) = own!(fcntl, now, F_GETFD) else { return false };
        is_free && put(now as usize, to as usize, if flags == 0 { 0 } else { O_CLOEXEC })
    }
}

/// Puts a descriptor that nobody knows at another number.
fn put(now: usize, to: usize, flags: u32) -> bool {
    // SAFETY: of the replay's own making.
    unsafe {
        let is_there = own!(dup3, now, to, flags).is_ok();
        let _closed = own!(close, now);
        is_there
    }
}

/// Puts something at a number where the program is told that there is a descriptor, and there is none.
pub fn stand_in(fd: usize, flags: usize, make: fn(usize) -> Result<usize, isize>) {
    let Ok(made) = make(flags) else { return };
    if made != fd {
        let _there = put(made, fd, flags as u32 & O_CLOEXEC);
    }
}

/// In place of a connection, while nobody is at its other end. The flags are those of `accept4`.
pub fn connection(flags: usize) -> Result<usize, isize> {
    const AF_INET: usize = 2;
    const SOCK_STREAM: usize = 1;
    // SAFETY: makes a descriptor.
    unsafe { own!(socket, AF_INET, SOCK_STREAM | flags, 0) }
}

/// In place of what the kernel made up when it was recorded.
pub fn nothing(_: usize) -> Result<usize, isize> {
    // SAFETY: makes a descriptor.
    unsafe { own!(openat, AT_FDCWD, c"/dev/null".as_ptr(), O_RDWR) }
}

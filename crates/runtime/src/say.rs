//! What the runtime has to say, on standard error: a line, as a rule the last one.

use core::fmt::{self, Write};

use crate::fds::Own;
use crate::own;

/// Bytes of the longest thing that is said.
const ROOM: usize = 2048;

const STDERR: usize = 2;

/// Where what is said goes, if that is a descriptor of the runtime's own.
pub static VOICE: Own = Own::none();

/// A line under construction; what does not fit is left out.
struct Line {
    bytes: [u8; ROOM],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let len = text.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

/// Says something.
pub fn line(what: fmt::Arguments) {
    let mut line = Line { bytes: [0; ROOM], len: 0 };
    let _cut = writeln!(line, "steadfast: {what}");
    // SAFETY: writes what is in the line.
    let _written =
        unsafe { own!(write, VOICE.get().unwrap_or(STDERR), line.bytes.as_ptr(), line.len) };
}

/// Says why, and ends the process with `status`.
pub fn die(status: i32, why: fmt::Arguments) -> ! {
    line(why);
    loop {
        // SAFETY: ends the process.
        let _ended = unsafe { own!(exit_group, status) };
    }
}

/// Status of what cannot be executed, as shells have it.
pub const NOT_EXECUTED: i32 = 126;
/// Status of what is not there, and of whatever else keeps a program from beginning.
pub const NOT_FOUND: i32 = 127;

/// Says why, formatted, and ends the process with the status of a program that has not begun.
#[macro_export]
macro_rules! die {
    ($($arg:tt)*) => { $crate::say::die($crate::say::NOT_FOUND, format_args!($($arg)*)) };
}

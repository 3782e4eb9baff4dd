//! What the runtime has to say before it ends a process: one line on standard error.

use core::fmt::{self, Write};

use crate::own;

/// A line under construction; what does not fit is left out.
struct Line {
    bytes: [u8; 512],
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

/// Says why, and ends the process with `status`.
pub fn die(status: i32, why: fmt::Arguments) -> ! {
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _cut = writeln!(line, "steadfast: {why}");
    // SAFETY: writes what is in the line; ends the process.
    unsafe {
        let _written = own!(write, 2, line.bytes.as_ptr(), line.len);
        loop {
            let _ended = own!(exit_group, status);
        }
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

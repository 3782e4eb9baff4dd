//! What a runtime is told by whoever starts it: the first words of its command line. (Not its
//! environment, which is the program's.)
//!
//! The command line is: the runtime's name, one word for it ([`Config`]), the path under which the
//! program was executed, a mark, and then the program's own.

use core::ffi::CStr;
use core::fmt::{self, Write as _};

/// Words of the command line that are the runtime's. The program's own begin at an address that is as
/// aligned as the whole.
pub const OWN_WORDS: usize = 4;

/// The first word, for people who look at a process that has not come far.
pub const NAME: &CStr = c"steadfast-runtime";

/// The last one.
pub const MARK: &CStr = c"--";

/// What a runtime is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The descriptor of its own image.
    pub image: i32,
    /// The descriptor of the program; none: it is to be found, and checked, under the path.
    pub program: Option<i32>,
}

/// A word of a command line, with the zero at its end.
pub struct Word {
    bytes: [u8; 64],
    len: usize,
}

impl Config {
    /// As a word.
    pub fn word(&self) -> Word {
        let mut word = Word { bytes: [0; 64], len: 0 };
        let written = match self.program {
            Some(program) => write!(word, "image={},program={program}", self.image),
            None => write!(word, "image={}", self.image),
        };
        written.expect("two numbers have room in a word");
        word
    }

    /// From a word. `None`: it is none of [`Config::word`]'s.
    pub fn parse(word: &CStr) -> Option<Config> {
        let mut config = Config { image: -1, program: None };
        for part in word.to_str().ok()?.split(',') {
            match part.split_once('=')? {
                ("image", fd) => config.image = fd.parse().ok()?,
                ("program", fd) => config.program = Some(fd.parse().ok()?),
                _ => return None,
            }
        }
        (config.image >= 0).then_some(config)
    }
}

impl Word {
    /// As execve wants it.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is never written to")
    }
}

impl fmt::Write for Word {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        if end >= self.bytes.len() {
            return Err(fmt::Error);
        }
        self.bytes[self.len..end].copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        for program in [None, Some(0), Some(i32::MAX)] {
            let config = Config { image: 1_000_000, program };
            assert_eq!(Config::parse(config.word().as_c_str()), Some(config));
        }
    }

    #[test]
    fn nothing_else_is_heard() {
        for word in [c"", c"image=", c"program=3", c"image=3,what=4", c"image=-1", c"image=3,"] {
            assert_eq!(Config::parse(word), None, "{word:?}");
        }
    }
}

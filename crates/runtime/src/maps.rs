//! What is mapped where: `/proc/self/maps`.

use linux_raw_sys::general::{AT_FDCWD, O_CLOEXEC, O_RDONLY};

use crate::own;

/// Bytes of a line that are looked at: those in front of the file's name, and most names.
const LINE: usize = 256;

/// Whether these bytes are instructions of a file, mapped for this process, and not to be written to.
pub fn is_code_of_a_file(at: usize, len: usize) -> bool {
    let mut found = false;
    each_line(|line| {
        let Some(mapping) = Mapping::parse(line) else { return false };
        let is_here = mapping.from <= at && at + len <= mapping.to;
        found |= is_here && mapping.is_executed_only && mapping.is_of_a_file;
        is_here
    });
    found
}

/// Calls `tell` with the file that is mapped at an address, and with the place in the file.
pub fn with_file_of<T>(at: usize, tell: impl FnOnce(&str, usize) -> T) -> Option<T> {
    let (mut told, mut tell) = (None, Some(tell));
    each_line(|line| {
        let Some(mapping) = Mapping::parse(line) else { return false };
        let is_here = (mapping.from..mapping.to).contains(&at);
        let line = core::str::from_utf8(line).unwrap_or_default();
        let mut words = line.split_ascii_whitespace().skip(2);
        let offset = words.next().and_then(|word| usize::from_str_radix(word, 16).ok());
        if let (true, Some(offset), Some(name)) = (is_here, offset, words.nth(2)) {
            told = tell.take().map(|tell| tell(name, at - mapping.from + offset));
        }
        is_here
    });
    told
}

#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    from: usize,
    to: usize,
    /// It may be read and executed, and a write would make a copy.
    is_executed_only: bool,
    is_of_a_file: bool,
}

impl Mapping {
    /// A line: `from-to access offset device inode name`, in hexadecimal but for the inode.
    fn parse(line: &[u8]) -> Option<Mapping> {
        let mut words = core::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let access = words.next()?;
        let inode = words.nth(2)?;
        Some(Mapping {
            from: usize::from_str_radix(from, 16).ok()?,
            to: usize::from_str_radix(to, 16).ok()?,
            is_executed_only: access == "r-xp",
            is_of_a_file: inode != "0",
        })
    }
}

/// Calls `see` with each line, or its beginning, until it says that it has seen enough.
fn each_line(mut see: impl FnMut(&[u8]) -> bool) {
    // SAFETY: opens a file, reads into a buffer, closes it.
    let Ok(fd) =
        (unsafe { own!(openat, AT_FDCWD, c"/proc/self/maps".as_ptr(), O_RDONLY | O_CLOEXEC) })
    else {
        return;
    };
    let (mut buffer, mut line, mut len) = ([0u8; 2048], [0u8; LINE], 0);
    'file: loop {
        // SAFETY: as above.
        let read = unsafe { own!(read, fd, buffer.as_mut_ptr(), buffer.len()) };
        let Ok(got @ 1..) = read else { break };
        for &byte in &buffer[..got] {
            if byte == b'\n' {
                if see(&line[..len]) {
                    break 'file;
                }
                len = 0;
            } else if len < LINE {
                line[len] = byte;
                len += 1;
            }
        }
    }
    // SAFETY: as above.
    let _closed = unsafe { own!(close, fd) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let code = b"7ffff7dfa000-7ffff7f50000 r-xp 00026000 fe:00 326269   /usr/lib/libc.so.6";
        let expected = Mapping {
            from: 0x7fff_f7df_a000,
            to: 0x7fff_f7f5_0000,
            is_executed_only: true,
            is_of_a_file: true,
        };
        assert_eq!(Mapping::parse(code), Some(expected));
        let made = Mapping::parse(b"3f0000003000-3f0000011000 rwxp 00000000 00:00 0 ").unwrap();
        assert!(!made.is_executed_only && !made.is_of_a_file);
        assert_eq!(Mapping::parse(b"cut off"), None);
    }

    #[test]
    fn this_test_is_code_of_a_file() {
        let here = this_test_is_code_of_a_file as *const () as usize;
        assert!(is_code_of_a_file(here, 5));
        let variable = 0u64;
        assert!(!is_code_of_a_file(&raw const variable as usize, 5));
        assert!(!is_code_of_a_file(16, 5));
        let told = with_file_of(here, |file, _| file.contains("runtime"));
        assert_eq!((told, with_file_of(16, |_, _| ())), (Some(true), None));
    }
}

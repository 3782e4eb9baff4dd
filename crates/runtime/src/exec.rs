//! `execve`: the program becomes another one, and the runtime comes along.
//!
//! The kernel executes the runtime's own image, which loads the program. So everything that the kernel
//! would have refused the program for has to be found before: behind `execve` there is nobody left to
//! return an error to. The file is opened here, with the rights that the caller has now, and the next
//! runtime gets the descriptor.
//!
//! Programs that the kernel would give other rights than the caller's (set-user-ID, capabilities), or
//! that it knows how to start and we do not, are executed as they are, without the runtime.

use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::errno::{E2BIG, EACCES, ELOOP, ENODATA};
use linux_raw_sys::general::*;
use systable::Sysno;

use crate::config::{Config, MARK, NAME, OWN_WORDS, Recorder};
use crate::elf::{self, File, HEAD, Kind};
use crate::layout::page_up;
use crate::sys::{self, EINVAL, error};
use crate::thread::Thread;
use crate::{exe, memory, own, record};

/// Scripts may have scripts as interpreters, so many times.
const MAX_SCRIPTS: usize = 4;

/// Bytes of the longest path, with the zero at its end.
const MAX_PATH: usize = 4096;

/// Strings of ours that go along: a path, and what scripts add.
const STRINGS: usize = MAX_PATH + (MAX_SCRIPTS + 1) * 2 * HEAD;

/// How `execveat` may be told to find the file, and (Linux 6.14) to say only whether it would execute it.
const FINDS: u32 = AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW;
const AT_EXECVE_CHECK: u32 = 0x1_0000;

/// Strings that are added in front of the program's own, for each script two and its path.
const MAX_ADDED: usize = 3 * (MAX_SCRIPTS + 1);

/// `execveat(dir, path, argv, envp, flags)`.
pub fn execve(
    thread: &Thread,
    dir: i32,
    path: usize,
    argv: usize,
    envp: usize,
    flags: u32,
) -> isize {
    let made = try_execve(thread, (dir, path, argv, envp, flags), record::heir(thread));
    free_scratch(thread);
    made.unwrap_or_else(|error| error)
}

/// The first program of all, which the runtime is told by its path. Returns why not.
pub fn first(
    thread: &Thread,
    path: usize,
    argv: usize,
    envp: usize,
    recorder: Option<Recorder>,
) -> isize {
    try_execve(thread, (AT_FDCWD, path, argv, envp, 0), recorder).unwrap_or_else(|error| error)
}

/// Gives back the memory of an `execve` that has failed, or that a child has made that shares memory.
pub fn free_scratch(thread: &Thread) {
    let (at, len) = thread.scratch.take();
    if len > 0 {
        // SAFETY: it was mapped for this, and nobody uses it any more.
        let freed = unsafe { own!(munmap, at, len) };
        assert!(freed.is_ok(), "what was mapped can be given back");
    }
}

fn try_execve(
    thread: &Thread,
    (dir, path, argv, envp, flags): (i32, usize, usize, usize, u32),
    recorder: Option<Recorder>,
) -> Result<isize, isize> {
    let mut buffer = [0; MAX_PATH];
    let path = memory::read_str(path, &mut buffer)?;
    if flags & !(FINDS | AT_EXECVE_CHECK) != 0 {
        return Err(EINVAL);
    } else if flags & AT_EXECVE_CHECK != 0 {
        let args = [dir as usize, path.as_ptr() as usize, argv, envp, flags as usize, 0];
        // SAFETY: nothing is executed.
        return Ok(unsafe { sys::guest(Sysno::execveat as usize, &args) });
    }
    let mut program = Opened::at(dir, path, flags)?;
    let given = count(argv)?;
    let mut words = Words::new(thread, given + OWN_WORDS + MAX_ADDED)?;
    let name = words.keep(program.name(dir, path).as_c_str().to_bytes())?;
    let mut added = Added::default();
    let mut head = [0; HEAD];
    for scripts in 0.. {
        program.may_be_executed()?;
        let got = elf::read_at(program.0, &mut head, 0)?;
        match elf::kind(&head[..got]) {
            Kind::Program if !program.gains_rights()? => break,
            Kind::Script { .. } if scripts > MAX_SCRIPTS => return Err(error(ELOOP)),
            Kind::Script { interpreter, argument } => {
                if added.first().is_none() {
                    added.put(name);
                }
                if let Some(argument) = argument {
                    added.put(words.keep(argument)?);
                }
                let interpreter = words.keep(interpreter)?;
                added.put(interpreter);
                // SAFETY: kept a moment ago, with a zero at its end.
                let path = unsafe { CStr::from_ptr(interpreter as *const _) };
                program = Opened::at(AT_FDCWD, path, 0)?;
            }
            _ => {
                let args = [dir as usize, path.as_ptr() as usize, argv, envp, flags as usize, 0];
                drop(program);
                record::leave([dir as usize, argv, envp]);
                // SAFETY: the program's call.
                return Ok(unsafe { sys::guest(Sysno::execveat as usize, &args) });
            }
        }
    }
    check_interpreter(&File::read(program.0)?)?;
    let kept = program.keep()?;
    let image = thread.process().image_fd.load(Relaxed);
    let config = Config { image, program: Some(kept.0 as i32), recorder }.word();
    for word in [NAME.as_ptr() as usize, config.as_c_str().as_ptr() as usize, name] {
        words.push(word);
    }
    words.push(MARK.as_ptr() as usize);
    added.in_order().for_each(|word| words.push(word));
    // What a script adds stands in place of its own name.
    let from = usize::from(added.first().is_some());
    for number in from..given {
        words.push(memory::read::<usize>(argv + number * size_of::<usize>())?);
    }
    if given == 0 {
        words.push(c"".as_ptr() as usize);
    }
    let args = [image as usize, c"".as_ptr() as usize, words.at, envp, AT_EMPTY_PATH as usize, 0];
    // SAFETY: the program's call, in our way. It does not return unless it fails.
    Ok(unsafe { sys::guest(Sysno::execveat as usize, &args) })
}

/// How many strings there are.
fn count(argv: usize) -> Result<usize, isize> {
    let mut number = 0;
    while argv != 0 && memory::read::<usize>(argv + number * size_of::<usize>())? != 0 {
        number += 1;
        if number > 1 << 20 {
            return Err(error(E2BIG));
        }
    }
    Ok(number)
}

fn check_interpreter(file: &File) -> Result<(), isize> {
    let mut buffer = [0; MAX_PATH];
    if let Some(path) = file.interpreter(&mut buffer)? {
        let interpreter = Opened::at(AT_FDCWD, path, 0)?;
        interpreter.may_be_executed()?;
        File::read(interpreter.0).map_err(|_| error(linux_raw_sys::errno::ELIBBAD))?;
    }
    Ok(())
}

/// The strings of a command line, and what they consist of, in memory that outlives this function.
struct Words {
    at: usize,
    next: usize,
    strings: usize,
    end: usize,
}

impl Words {
    fn new(thread: &Thread, words: usize) -> Result<Words, isize> {
        let table = (words + 1) * size_of::<usize>();
        let len = page_up(table + STRINGS);
        let (access, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        // SAFETY: fresh memory.
        let at = unsafe { own!(mmap, 0, len, access, flags, usize::MAX, 0)? };
        thread.scratch.set((at, len));
        Ok(Words { at, next: at, strings: at + table, end: at + len })
    }

    /// Appends a word; zeros are behind it.
    fn push(&mut self, word: usize) {
        assert!(self.next < self.end, "there is room for as many words as there are");
        // SAFETY: within what was mapped.
        unsafe { ptr::write(self.next as *mut usize, word) };
        self.next += size_of::<usize>();
    }

    /// Where a copy of a string is, with a zero at its end.
    fn keep(&mut self, text: &[u8]) -> Result<usize, isize> {
        let at = self.strings;
        if at + text.len() >= self.end {
            return Err(error(E2BIG));
        }
        // SAFETY: within what was mapped, which is zeros.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), at as *mut u8, text.len()) };
        self.strings += text.len() + 1;
        Ok(at)
    }
}

/// What scripts put in front of a command line: the last one first.
#[derive(Default)]
struct Added {
    words: [usize; MAX_ADDED],
    len: usize,
}

impl Added {
    fn put(&mut self, word: usize) {
        self.words[self.len] = word;
        self.len += 1;
    }

    fn first(&self) -> Option<usize> {
        self.len.checked_sub(1).map(|last| self.words[last])
    }

    fn in_order(&self) -> impl Iterator<Item = usize> {
        self.words[..self.len].iter().rev().copied()
    }
}

/// A file that is open here and nowhere else.
struct Opened(usize);

/// `struct stat`, as far as it is looked at.
#[repr(C)]
struct Stat {
    before: [u64; 3],
    mode: u32,
    uid: u32,
    gid: u32,
    rest: [u32; 27],
}

const _: () = assert!(size_of::<Stat>() == 144);

impl Opened {
    fn at(dir: i32, path: &CStr, flags: u32) -> Result<Opened, isize> {
        let name = Name::of_descriptor(c"/proc/self/fd/", dir);
        let follow = if flags & AT_SYMLINK_NOFOLLOW != 0 { O_NOFOLLOW } else { 0 };
        let (dir, path) = match flags & AT_EMPTY_PATH != 0 && path.is_empty() {
            true if dir == AT_FDCWD => (dir, c"."),
            true => {
                // SAFETY: changes nothing. One that is not open is no file that is not there.
                unsafe { own!(fcntl, dir, F_GETFD)? };
                (AT_FDCWD, name.as_c_str())
            }
            false => (dir, path),
        };
        let path = if exe::is(path) { exe::path() } else { path };
        // Not blocking, in case that it is no file.
        let how = O_RDONLY | O_CLOEXEC | O_NONBLOCK | follow;
        // SAFETY: opens a file.
        unsafe { own!(openat, dir, path.as_ptr(), how).map(Opened) }
    }

    /// The path under which it was executed, as programs are told.
    fn name(&self, dir: i32, path: &CStr) -> Name {
        if dir == AT_FDCWD || path.to_bytes().starts_with(b"/") {
            Name::plain(path)
        } else {
            let mut name = Name::of_descriptor(c"/dev/fd/", dir);
            if !path.is_empty() {
                name.append(b"/");
                name.append(path.to_bytes());
            }
            name
        }
    }

    fn may_be_executed(&self) -> Result<(), isize> {
        let argv = [c"".as_ptr(), ptr::null()];
        let flags = AT_EMPTY_PATH | AT_EXECVE_CHECK;
        // SAFETY: executes nothing.
        match unsafe { own!(execveat, self.0, c"".as_ptr(), argv.as_ptr(), 0, flags) } {
            Err(EINVAL) => {} // before Linux 6.14: what can be found out without
            known => return known.map(drop),
        }
        const X_OK: usize = 1;
        const S_IFMT: u32 = 0o170_000;
        const S_IFREG: u32 = 0o100_000;
        if self.stat()?.mode & S_IFMT != S_IFREG {
            return Err(error(EACCES));
        }
        let flags = AT_EMPTY_PATH | AT_EACCESS;
        // SAFETY: changes nothing.
        unsafe { own!(faccessat2, self.0, c"".as_ptr(), X_OK, flags) }.map(drop)
    }

    /// Whether who executes it gets rights that they do not have.
    fn gains_rights(&self) -> Result<bool, isize> {
        const S_ISUID: u32 = 0o4000;
        const SET_GROUP: u32 = 0o2010;
        let stat = self.stat()?;
        // SAFETY: these change nothing.
        let (uid, gid, capable) = unsafe {
            let name = c"security.capability".as_ptr();
            (own!(geteuid)?, own!(getegid)?, own!(fgetxattr, self.0, name, 0, 0))
        };
        let user = stat.mode & S_ISUID != 0 && stat.uid as usize != uid;
        let group = stat.mode & SET_GROUP == SET_GROUP && stat.gid as usize != gid;
        let none = [error(ENODATA), error(linux_raw_sys::errno::EOPNOTSUPP)];
        Ok(user || group || (uid != 0 && !capable.is_err_and(|error| none.contains(&error))))
    }

    fn stat(&self) -> Result<Stat, isize> {
        // SAFETY: any bytes are one; the kernel writes as many.
        unsafe {
            let mut stat: Stat = core::mem::zeroed();
            own!(fstat, self.0, &raw mut stat)?;
            Ok(stat)
        }
    }

    /// A descriptor of the file that the next program gets.
    fn keep(self) -> Result<Opened, isize> {
        // SAFETY: a further descriptor.
        unsafe { own!(fcntl, self.0, F_DUPFD, 3).map(Opened) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it is nobody else's.
        let _closed = unsafe { own!(close, self.0) };
    }
}

/// A path, with a zero at its end.
pub struct Name {
    bytes: [u8; MAX_PATH],
    len: usize,
}

impl Name {
    fn plain(path: &CStr) -> Name {
        let mut name = Name { bytes: [0; MAX_PATH], len: 0 };
        name.append(path.to_bytes());
        name
    }

    /// That of an open file.
    pub fn of_descriptor(folder: &CStr, fd: i32) -> Name {
        let mut name = Name::plain(folder);
        let (mut digits, mut left) = ([0u8; 10], fd.unsigned_abs());
        let mut from = digits.len();
        loop {
            from -= 1;
            digits[from] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        name.append(&digits[from..]);
        name
    }

    fn append(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(MAX_PATH - 1 - self.len);
        self.bytes[self.len..self.len + len].copy_from_slice(&bytes[..len]);
        self.len += len;
    }

    /// As system calls want it.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is never written to")
    }
}

#[cfg(test)]
mod tests {
    use linux_raw_sys::errno::ENOENT;

    use super::*;

    #[test]
    fn names_of_descriptors() {
        assert_eq!(Name::of_descriptor(c"/dev/fd/", 0).as_c_str(), c"/dev/fd/0");
        assert_eq!(Name::of_descriptor(c"x", 1023).as_c_str(), c"x1023");
        assert_eq!(Name::plain(c"./x").as_c_str(), c"./x");
    }

    #[test]
    fn files_that_may_be_executed() {
        let shell = Opened::at(AT_FDCWD, c"/bin/sh", 0).unwrap();
        assert_eq!((shell.may_be_executed(), shell.gains_rights()), (Ok(()), Ok(false)));
        let text = Opened::at(AT_FDCWD, c"/etc/passwd", 0).unwrap();
        assert_eq!(text.may_be_executed(), Err(error(EACCES)));
        let folder = Opened::at(AT_FDCWD, c"/", 0).unwrap();
        assert_eq!(folder.may_be_executed(), Err(error(EACCES)));
        assert!(Opened::at(AT_FDCWD, c"/nothing", 0).is_err_and(|e| e == error(ENOENT)));
    }
}

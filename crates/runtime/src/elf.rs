//! Programs in files, and how they get into memory: as the kernel would load them
//! (`fs/binfmt_elf.c`), but for the place of the interpreter, which is the next free one.

use core::ffi::CStr;

use linux_raw_sys::elf::{
    ELFCLASS, ELFDATA, ELFMAG, ET_DYN, Elf_Ehdr, Elf_Phdr, PF_R, PF_W, PF_X, PT_INTERP, PT_LOAD,
};
use linux_raw_sys::errno::{EIO, ENOEXEC, ENOMEM};
use linux_raw_sys::general::*;

use crate::layout::{PAGE, PROGRAM, page_down, page_up};
use crate::own;
use crate::sys::error;

/// Machine of x86-64 programs.
const EM_X86_64: u16 = 62;
const ET_EXEC: u16 = 2;
/// Of a program that is read: the kernel takes no more than a page of them.
const MAX_HEADERS: usize = PAGE / size_of::<Elf_Phdr>();

/// What a file begins with that can be executed.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A program for this processor.
    Program,
    /// A script: its interpreter, and one argument for it.
    Script {
        /// A path.
        interpreter: &'a [u8],
        /// Everything behind it on the line.
        argument: Option<&'a [u8]>,
    },
    /// Something else: the kernel knows what, or that it is nothing.
    Other,
}

/// How much of a file the kernel looks at.
pub const HEAD: usize = 256;

/// Looks at the first bytes of a file.
pub fn kind(head: &[u8]) -> Kind<'_> {
    if let Some(line) = head.strip_prefix(b"#!") {
        return script(line).unwrap_or(Kind::Other);
    }
    match program_header(head) {
        Some(_) => Kind::Program,
        None => Kind::Other,
    }
}

/// As `fs/binfmt_script.c`.
fn script(line: &[u8]) -> Option<Kind<'_>> {
    let is_space = |byte: &u8| [b' ', b'\t'].contains(byte);
    let end = line.iter().position(|&byte| byte == b'\n' || byte == 0);
    let cut = end.is_none() && line.len() == HEAD - 2;
    let line = &line[..end.unwrap_or(line.len())];
    let from = line.iter().position(|byte| !is_space(byte))?;
    let line = &line[from..];
    let until = line.iter().position(is_space);
    if cut && until.is_none() {
        return None; // nobody knows where its name ends
    }
    let (interpreter, rest) = line.split_at(until.unwrap_or(line.len()));
    let first = rest.iter().position(|byte| !is_space(byte));
    let last = rest.iter().rposition(|byte| !is_space(byte));
    let argument = first.zip(last).map(|(first, last)| &rest[first..=last]);
    Some(Kind::Script { interpreter, argument })
}

fn program_header(head: &[u8]) -> Option<Elf_Ehdr> {
    if head.len() < size_of::<Elf_Ehdr>() {
        return None;
    }
    // SAFETY: there are as many bytes, and any are a header.
    let header = unsafe { head.as_ptr().cast::<Elf_Ehdr>().read_unaligned() };
    let fits = header.e_ident[..4] == ELFMAG
        && header.e_ident[4] == ELFCLASS
        && header.e_ident[5] == ELFDATA
        && header.e_machine == EM_X86_64
        && [ET_EXEC, ET_DYN].contains(&header.e_type)
        && usize::from(header.e_phentsize) == size_of::<Elf_Phdr>()
        && (1..=MAX_HEADERS).contains(&usize::from(header.e_phnum));
    fits.then_some(header)
}

/// A program, or its interpreter, in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loaded {
    /// What was added to the addresses in the file.
    pub bias: usize,
    /// Its first instruction.
    pub entry: usize,
    /// Its table of segments, and how many there are.
    pub headers: (usize, usize),
    /// Its instructions.
    pub code: (usize, usize),
    /// Its data in the file.
    pub data: (usize, usize),
    /// The first page behind it.
    pub end: usize,
}

/// The segments of a file.
pub struct File {
    fd: usize,
    header: Elf_Ehdr,
    headers: [Elf_Phdr; MAX_HEADERS],
}

impl File {
    /// Reads what is in a file.
    ///
    /// # Errors
    /// `ENOEXEC`: it is no program for this processor; what reading it came to.
    pub fn read(fd: usize) -> Result<File, isize> {
        let mut head = [0; HEAD];
        let got = read_at(fd, &mut head, 0)?;
        let header = program_header(&head[..got]).ok_or(error(ENOEXEC))?;
        // SAFETY: any bytes are a header.
        let mut file = unsafe { File { fd, header, headers: core::mem::zeroed() } };
        let len = usize::from(file.header.e_phnum) * size_of::<Elf_Phdr>();
        // SAFETY: there are no more than fit in, and any bytes are one.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(file.headers.as_mut_ptr().cast::<u8>(), len) };
        if read_at(fd, bytes, file.header.e_phoff)? != len {
            return Err(error(EIO));
        }
        Ok(file)
    }

    fn segments(&self, kind: u32) -> impl Iterator<Item = &Elf_Phdr> {
        let all = &self.headers[..usize::from(self.header.e_phnum)];
        all.iter().filter(move |header| header.p_type == kind)
    }

    /// The program that this one wants to be started by.
    ///
    /// # Errors
    /// The file says no sensible path.
    pub fn interpreter<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<&'a CStr>, isize> {
        let Some(header) = self.segments(PT_INTERP).next() else {
            return Ok(None);
        };
        let path = buffer.get_mut(..header.p_filesz).ok_or(error(ENOEXEC))?;
        if read_at(self.fd, path, header.p_offset)? != path.len() {
            return Err(error(EIO));
        }
        CStr::from_bytes_with_nul(path).map(Some).map_err(|_| error(ENOEXEC))
    }

    /// Maps it.
    ///
    /// # Errors
    /// `ENOEXEC`: there is nothing to map, or it says what cannot be; `ENOMEM` and whatever else
    /// mapping comes to.
    pub fn load(&self, is_interpreter: bool) -> Result<Loaded, isize> {
        let last = self.segments(PT_LOAD).last().ok_or(error(ENOEXEC))?;
        let first = self.segments(PT_LOAD).next().ok_or(error(ENOEXEC))?;
        let start = page_down(first.p_vaddr);
        let end = last.p_vaddr.checked_add(last.p_memsz).ok_or(error(ENOEXEC))?;
        let len = page_up(end).checked_sub(start).ok_or(error(ENOEXEC))?;
        let align = self.segments(PT_LOAD).map(|header| header.p_align).max().unwrap_or(PAGE);
        let align = if align.is_power_of_two() { align.max(PAGE) } else { PAGE };
        let bias = match (self.header.e_type, is_interpreter) {
            (ET_DYN, true) => reserve(0, len, align)? - start,
            (ET_DYN, false) => reserve(PROGRAM & !(align - 1), len, PAGE)? - start,
            _ => reserve(start, len, PAGE)? - start,
        };
        let mut loaded = Loaded { bias, end: bias + page_up(end), ..Loaded::default() };
        loaded.entry = bias + self.header.e_entry;
        for header in self.segments(PT_LOAD) {
            self.map(header, bias)?;
            let at = bias + header.p_vaddr;
            let bounds = (at, at + header.p_filesz);
            if header.p_flags & PF_X != 0 {
                loaded.code = widened(loaded.code, bounds);
            } else {
                loaded.data = widened(loaded.data, bounds);
            }
            let (from, table) = (header.p_offset, self.header.e_phoff);
            if (from..from + header.p_filesz).contains(&table) {
                loaded.headers = (at + (table - from), usize::from(self.header.e_phnum));
            }
        }
        Ok(loaded)
    }

    fn map(&self, header: &Elf_Phdr, bias: usize) -> Result<(), isize> {
        let at = bias + header.p_vaddr;
        let in_page = at - page_down(at);
        let access = [(PF_R, PROT_READ), (PF_W, PROT_WRITE), (PF_X, PROT_EXEC)];
        let access = access.into_iter().filter(|(flag, _)| header.p_flags & flag != 0);
        let access = access.fold(0, |all, (_, one)| all | one);
        let fixed = MAP_PRIVATE | MAP_FIXED;
        if header.p_offset % PAGE != in_page || header.p_filesz > header.p_memsz {
            return Err(error(ENOEXEC));
        }
        let (in_file, in_memory) = (at + header.p_filesz, page_up(at + header.p_memsz));
        let mut rest = page_down(at);
        // SAFETY: within what was reserved for this file.
        unsafe {
            if header.p_filesz > 0 {
                let (from, len) = (header.p_offset - in_page, header.p_filesz + in_page);
                own!(mmap, page_down(at), len, access, fixed, self.fd, from)?;
                rest = page_up(in_file);
                if header.p_memsz > header.p_filesz && access & PROT_WRITE != 0 {
                    core::ptr::write_bytes(in_file as *mut u8, 0, rest - in_file);
                }
            }
            if in_memory > rest {
                let fixed = fixed | MAP_ANONYMOUS;
                own!(mmap, rest, in_memory - rest, access, fixed, usize::MAX, 0)?;
            }
        }
        Ok(())
    }
}

fn widened(bounds: (usize, usize), more: (usize, usize)) -> (usize, usize) {
    if bounds == (0, 0) { more } else { (bounds.0.min(more.0), bounds.1.max(more.1)) }
}

/// Takes `len` bytes at `at`, or, if that is 0, wherever there is room, at a multiple of `align`.
fn reserve(at: usize, len: usize, align: usize) -> Result<usize, isize> {
    let fixed = if at == 0 { 0 } else { MAP_FIXED_NOREPLACE };
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed;
    let more = align - PAGE;
    // SAFETY: takes only what is nobody's, and gives back only what it has taken.
    unsafe {
        let got = own!(mmap, at, len + more, PROT_NONE, flags, usize::MAX, 0)?;
        if at != 0 && got != at {
            return Err(error(ENOMEM));
        }
        let aligned = (got + align - 1) & !(align - 1);
        let behind = got + len + more - (aligned + len);
        if aligned > got {
            own!(munmap, got, aligned - got)?;
        }
        if behind > 0 {
            own!(munmap, aligned + len, behind)?;
        }
        Ok(aligned)
    }
}

/// Reads as much as there is, up to the buffer's length.
///
/// # Errors
/// The kernel's.
pub fn read_at(fd: usize, buffer: &mut [u8], at: usize) -> Result<usize, isize> {
    // SAFETY: the kernel writes to the buffer alone.
    unsafe { own!(pread64, fd, buffer.as_mut_ptr(), buffer.len(), at) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script<'a>(interpreter: &'a str, argument: Option<&'a str>) -> Kind<'a> {
        let argument = argument.map(str::as_bytes);
        Kind::Script { interpreter: interpreter.as_bytes(), argument }
    }

    #[test]
    fn scripts() {
        assert_eq!(kind(b"#!/bin/sh\necho"), script("/bin/sh", None));
        assert_eq!(kind(b"#! \t/bin/sh -e  x \nrest"), script("/bin/sh", Some("-e  x")));
        assert_eq!(kind(b"#!/bin/sh"), script("/bin/sh", None), "a file of one line");
        assert_eq!(kind(b"#!/bin/sh\t\n"), script("/bin/sh", None));
        assert_eq!(kind(b"#!\n/bin/sh"), Kind::Other);
        assert_eq!(kind(b"#!   "), Kind::Other);
    }

    #[test]
    fn a_script_whose_first_line_is_too_long() {
        let mut head = [b'x'; HEAD];
        head[..2].copy_from_slice(b"#!");
        assert_eq!(kind(&head), Kind::Other, "its interpreter's name may go on");
        head[20] = b' ';
        let Kind::Script { interpreter, argument } = kind(&head) else { panic!("it is one") };
        assert_eq!((interpreter.len(), argument.map(<[u8]>::len)), (18, Some(HEAD - 21)));
    }

    #[test]
    fn programs() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(kind(&own[..HEAD]), Kind::Program);
        let mut other = own[..HEAD].to_vec();
        other[18] = 40; // 32-bit ARM
        assert_eq!(kind(&other), Kind::Other);
        assert_eq!(kind(&own[..40]), Kind::Other, "cut off");
        assert_eq!(kind(b""), Kind::Other);
    }
}

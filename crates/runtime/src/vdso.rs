//! The vDSO of a recorded program: functions that ask for the time.
//!
//! The kernel's answer without a call, and would not be noticed. These are calls whose sites are patched from
//! the beginning (see [`crate::site`]): what they cost is the record, not a report.
//!
//! It is a page laid out as a library, of which C libraries and Go's runtime each read another part: one
//! segment, symbols that a hash table leads to, and the version that the kernel's have.

use core::mem::offset_of;
use core::ptr;

use linux_raw_sys::elf::*;
use linux_raw_sys::general::*;
use systable::Sysno;

use crate::layout::{PAGE, VDSO};
use crate::relocate::CALL;
use crate::{own, site};

const DT_STRSZ: usize = 10;
const DT_SONAME: usize = 14;
const DT_VERDEFNUM: usize = 0x6fff_fffd;

/// Bytes of the longest name.
const NAME: usize = 24;
/// Bytes of a function.
const CODE: usize = 16;
/// Bytes of its first instruction, behind which it makes its call.
const NUMBER: usize = 5;

const FUNCTIONS: [(&str, Sysno); 5] = [
    ("__vdso_clock_gettime", Sysno::clock_gettime),
    ("__vdso_gettimeofday", Sysno::gettimeofday),
    ("__vdso_time", Sysno::time),
    ("__vdso_getcpu", Sysno::getcpu),
    ("__vdso_clock_getres", Sysno::clock_getres),
];
const COUNT: usize = FUNCTIONS.len();

/// Of the library, and of its version, which have the first two numbers.
const NAMES: [&str; 2] = ["linux-vdso.so.1", "LINUX_2.6"];

#[repr(C)]
struct Library {
    header: Elf_Ehdr,
    segments: [Elf_Phdr; 2],
    dynamic: [[usize; 2]; 10],
    /// The first one is none.
    symbols: [Elf_Sym; COUNT + 1],
    /// Buckets and symbols; the one bucket; the chain.
    hash: [u32; 4 + COUNT],
    /// Of each symbol.
    versions: [u16; COUNT + 1],
    definitions: [Definition; NAMES.len()],
    /// Nothing, [`NAMES`], and the functions'.
    names: [[u8; NAME]; 1 + NAMES.len() + COUNT],
    code: [[u8; CODE]; COUNT],
}

#[repr(C)]
struct Definition {
    head: Elf_Verdef,
    name: Elf_Verdaux,
}

static LIBRARY: Library = Library {
    header: Elf_Ehdr {
        e_ident: {
            let [a, b, c, d] = ELFMAG;
            [a, b, c, d, ELFCLASS, ELFDATA, EV_CURRENT, ELFOSABI_SYSV, 0, 0, 0, 0, 0, 0, 0, 0]
        },
        e_type: ET_DYN,
        e_machine: EM_CURRENT,
        e_version: EV_CURRENT as u32,
        e_entry: 0,
        e_phoff: offset_of!(Library, segments),
        e_shoff: 0,
        e_flags: 0,
        e_ehsize: size_of::<Elf_Ehdr>() as u16,
        e_phentsize: size_of::<Elf_Phdr>() as u16,
        e_phnum: 2,
        e_shentsize: 0,
        e_shnum: 0,
        e_shstrndx: 0,
    },
    segments: [
        segment(PT_LOAD, PF_R | PF_X, 0, size_of::<Library>(), PAGE),
        segment(
            PT_DYNAMIC,
            PF_R,
            offset_of!(Library, dynamic),
            size_of::<[[usize; 2]; 10]>(),
            align_of::<usize>(),
        ),
    ],
    dynamic: [
        [DT_SONAME, name_at(1)],
        [DT_HASH, offset_of!(Library, hash)],
        [DT_STRTAB, offset_of!(Library, names)],
        [DT_SYMTAB, offset_of!(Library, symbols)],
        [DT_STRSZ, size_of::<[[u8; NAME]; 1 + NAMES.len() + COUNT]>()],
        [DT_SYMENT, size_of::<Elf_Sym>()],
        [DT_VERDEF, offset_of!(Library, definitions)],
        [DT_VERDEFNUM, NAMES.len()],
        [DT_VERSYM, offset_of!(Library, versions)],
        [DT_NULL, 0],
    ],
    symbols: {
        let mut symbols = [const { symbol(None) }; COUNT + 1];
        let mut function = 0;
        while function < COUNT {
            symbols[1 + function] = symbol(Some(function));
            function += 1;
        }
        symbols
    },
    hash: {
        // All are in the one bucket, each behind the one before it.
        let mut hash = [0; 4 + COUNT];
        [hash[0], hash[1], hash[2]] = [1, 1 + COUNT as u32, 1];
        let mut function = 1;
        while function < COUNT {
            hash[3 + function] = function as u32 + 1;
            function += 1;
        }
        hash
    },
    versions: {
        let mut versions = [2; COUNT + 1];
        versions[0] = 0;
        versions
    },
    definitions: [definition(0), definition(1)],
    names: {
        let mut names = [[0; NAME]; 1 + NAMES.len() + COUNT];
        let mut number = 1;
        while number < names.len() {
            names[number] = text(name(number));
            number += 1;
        }
        names
    },
    code: {
        let mut code = [[0; CODE]; COUNT];
        let mut function = 0;
        while function < COUNT {
            let [a, b, c, d] = (FUNCTIONS[function].1 as u32).to_le_bytes();
            // mov eax, number; syscall; three nops, which make room for a jump; ret
            let bytes = [0xb8, a, b, c, d, 0x0f, 0x05, 0x90, 0x90, 0x90, 0xc3];
            code[function].split_at_mut(bytes.len()).0.copy_from_slice(&bytes);
            function += 1;
        }
        code
    },
};

const _: () = assert!(size_of::<Library>() <= PAGE);

const fn segment(kind: u32, flags: u32, at: usize, len: usize, align: usize) -> Elf_Phdr {
    Elf_Phdr {
        p_type: kind,
        p_flags: flags,
        p_offset: at,
        p_vaddr: at,
        p_paddr: at,
        p_filesz: len,
        p_memsz: len,
        p_align: align,
    }
}

const fn symbol(function: Option<usize>) -> Elf_Sym {
    let Some(function) = function else {
        return Elf_Sym {
            st_name: 0,
            st_info: 0,
            st_other: 0,
            st_shndx: SHN_UNDEF,
            st_value: 0,
            st_size: 0,
        };
    };
    Elf_Sym {
        st_name: name_at(1 + NAMES.len() + function) as u32,
        st_info: STB_GLOBAL << 4 | STT_FUNC,
        st_other: STV_DEFAULT,
        // Any: there are no headers of sections.
        st_shndx: 1,
        st_value: code_at(function),
        st_size: CODE,
    }
}

const fn definition(number: usize) -> Definition {
    let is_last = number + 1 == NAMES.len();
    Definition {
        head: Elf_Verdef {
            vd_version: VER_DEF_CURRENT,
            vd_flags: if number == 0 { VER_FLG_BASE } else { 0 },
            vd_ndx: number as u16 + 1,
            vd_cnt: 1,
            vd_hash: hash(NAMES[number]),
            vd_aux: offset_of!(Definition, name) as u32,
            vd_next: if is_last { 0 } else { size_of::<Definition>() as u32 },
        },
        name: Elf_Verdaux { vda_name: name_at(1 + number) as u32, _vda_next: 0 },
    }
}

const fn name(number: usize) -> &'static str {
    if number <= NAMES.len() { NAMES[number - 1] } else { FUNCTIONS[number - 1 - NAMES.len()].0 }
}

/// Where a name is among all.
const fn name_at(number: usize) -> usize {
    number * NAME
}

/// Where a function is in the page.
const fn code_at(function: usize) -> usize {
    offset_of!(Library, code) + function * CODE
}

const fn text(name: &str) -> [u8; NAME] {
    let mut text = [0; NAME];
    assert!(name.len() < NAME, "there is a zero at its end");
    text.split_at_mut(name.len()).0.copy_from_slice(name.as_bytes());
    text
}

/// A name's hash (System V ABI, "Hash Table").
const fn hash(name: &str) -> u32 {
    let (mut hash, mut at) = (0u32, 0);
    while at < name.len() {
        hash = (hash << 4).wrapping_add(name.as_bytes()[at] as u32);
        let high = hash & 0xf000_0000;
        hash = (hash ^ high >> 24) & !high;
        at += 1;
    }
    hash
}

/// Puts it in its place, from where it answers through the runtime.
///
/// # Errors
/// There is no memory.
pub fn map() -> Result<usize, isize> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    // SAFETY: the runtime's own memory, where nothing is; the page has room for it.
    unsafe {
        own!(mmap, VDSO.start, PAGE, PROT_READ | PROT_WRITE, flags, usize::MAX, 0)?;
        ptr::copy_nonoverlapping(&raw const LIBRARY, VDSO.start as *mut Library, 1);
        for function in 0..COUNT {
            site::answer(VDSO.start + code_at(function) + NUMBER)?;
        }
        own!(mprotect, VDSO.start, PAGE, PROT_READ | PROT_EXEC)?;
    }
    Ok(VDSO.start)
}

/// Whether a call that the program goes on behind was made here.
pub fn is_asked(behind: usize) -> bool {
    VDSO.contains(&(behind - CALL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_as_others_compute_them() {
        assert_eq!((hash("LINUX_2.6"), hash("printf")), (0x03ae_75f6, 0x0779_05a6));
    }
}

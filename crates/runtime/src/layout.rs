//! Where the runtime's own memory lies: far from where the kernel and programs put theirs, and at
//! the same place in every process.

use core::ops::Range;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Everything that is the runtime's. Programs may neither map nor unmap anything here.
pub const OWN: Range<usize> = 0x3f00_0000_0000..0x3f01_0000_0000;

/// Where the runtime's image is linked to (`crates/launch/build.rs` tells the linker).
pub const IMAGE: usize = OWN.start;

/// What the processes of a recording share: see [`crate::record`].
pub const GROUP: Range<usize> = 0x3f00_2000_0000..0x3f00_2100_0000;

/// For some threads what their descriptors are.
pub const TABLES: Range<usize> = 0x3f00_2100_0000..0x3f00_2500_0000;

/// The page of a recorded program's vDSO: see [`crate::vdso`]. What it needs to be answered lies below it.
pub const VDSO: Range<usize> = 0x3f00_3fff_f000..0x3f00_4000_0000;

/// A slot for each thread: see [`crate::thread`].
pub const SLOTS: Range<usize> = 0x3f00_4000_0000..0x3f00_c000_0000;

/// The window through which a recording is written or read: see [`crate::record`].
pub const STREAM: Range<usize> = 0x3f00_c000_0000..0x3f01_0000_0000;

/// Where a position-independent program goes: the place that the kernel gives it when addresses are
/// not randomised.
pub const PROGRAM: usize = 0x5555_5555_4000;

/// The first page boundary at or after `address`.
pub const fn page_up(address: usize) -> usize {
    page_down(address + PAGE - 1)
}

/// The last page boundary at or before `address`.
pub const fn page_down(address: usize) -> usize {
    address & !(PAGE - 1)
}

/// Whether `len` bytes at `address` touch what is the runtime's.
pub const fn is_own(address: usize, len: usize) -> bool {
    let end = address.saturating_add(if len == 0 { 1 } else { len });
    address < OWN.end && end > OWN.start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_what_touches_it() {
        assert!(is_own(OWN.start, 0) && is_own(OWN.end - 1, 1) && is_own(0, usize::MAX));
        assert!(!is_own(OWN.end, PAGE) && !is_own(OWN.start - PAGE, PAGE) && !is_own(0, 0));
        assert!(is_own(OWN.start - PAGE, PAGE + 1));
    }

    #[test]
    fn pages() {
        assert_eq!((page_up(1), page_up(PAGE), page_down(PAGE + 1)), (PAGE, PAGE, PAGE));
    }
}

//! Sets of signals, as the kernel has them.

use linux_raw_sys::general::{SIGKILL, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP};

use crate::record;

/// How many there are: 1 to this.
pub const SIGNALS: u32 = 64;

/// A set of signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct SigSet(pub u64);

impl SigSet {
    /// All that can be blocked.
    pub const ALL: SigSet = SigSet(!0).without(SIGKILL).without(SIGSTOP);

    /// Whether `signal` is in it.
    pub const fn contains(self, signal: u32) -> bool {
        self.0 & bit(signal) != 0
    }

    /// This and `signal`.
    #[must_use]
    pub const fn with(self, signal: u32) -> SigSet {
        SigSet(self.0 | bit(signal))
    }

    /// This but `signal`.
    #[must_use]
    pub const fn without(self, signal: u32) -> SigSet {
        SigSet(self.0 & !bit(signal))
    }

    /// All of both.
    #[must_use]
    pub const fn and(self, other: SigSet) -> SigSet {
        SigSet(self.0 | other.0)
    }

    /// What the kernel may be told while the program runs: a system call of a thread that blocks
    /// SIGSYS would kill it, and so would a site that is being patched one that blocks SIGTRAP, and the
    /// clock of one that is recorded who blocks SIGSEGV.
    #[must_use]
    pub fn real(self) -> SigSet {
        let real = self.without(SIGSYS).without(SIGTRAP);
        if record::is_on() { real.without(SIGSEGV) } else { real }
    }
}

const fn bit(signal: u32) -> u64 {
    assert!(1 <= signal && signal <= SIGNALS);
    1 << (signal - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets() {
        let set = SigSet::default().with(1).with(64).with(SIGSYS);
        assert!(set.contains(1) && set.contains(64) && !set.contains(2));
        assert!(set.contains(SIGSYS) && !set.real().contains(SIGSYS));
        assert_eq!(set.without(1).and(SigSet::default().with(2)).without(64).real().0, 2);
        assert!(!SigSet::ALL.contains(SIGKILL) && SigSet::ALL.contains(SIGSYS));
    }
}

//! Calls of which a command says what they do. What is not here ends a recording.

use linux_raw_sys::errno::{EACCES, EINVAL, ENODEV, ENOENT, ENOSYS, ENOTBLK, ENOTTY};
use linux_raw_sys::errno::{EOPNOTSUPP, EPERM, ESRCH};
use systable::{Class, Refusal, Sysno};

use super::kinds::{self, Kind};
use super::walk::Plan;
use crate::dispatch::PR_SET_SYSCALL_USER_DISPATCH;
use crate::memory;
use crate::sys::Args;

/// `fcntl` that makes a descriptor.
pub fn is_dup(command: usize) -> bool {
    [F_DUPFD, F_DUPFD_CLOEXEC].contains(&command)
}

/// `fcntl` that waits for a lock.
pub fn waits_for_lock(command: usize) -> bool {
    [F_SETLKW, F_OFD_SETLKW].contains(&command)
}

/// `fcntl` that locks, or unlocks.
pub fn locks(command: usize) -> bool {
    [F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW].contains(&command)
}

/// `futex` that waits for a word.
pub fn is_futex_wait(command: usize) -> bool {
    [FUTEX_WAIT, FUTEX_WAIT_BITSET].contains(&(command & FUTEX_COMMAND))
}

/// What becomes of such a call.
pub fn plan(name: Sysno, args: &Args) -> Plan {
    match name {
        Sysno::fcntl => fcntl(args),
        Sysno::ioctl => ioctl(args),
        Sysno::setsockopt => setsockopt(args),
        Sysno::getsockopt => getsockopt(args),
        Sysno::prctl => prctl(args),
        Sysno::arch_prctl => arch_prctl(args),
        Sysno::futex => futex(args),
        Sysno::seccomp => seccomp(args),
        // File servers ask, and most file systems have none.
        Sysno::quotactl => Plan { fails_with: NO_QUOTA, ..ENDS },
        _ => ENDS,
    }
}

const EXECUTE: Plan = Plan::of(Class::Execute);
const REPEAT: Plan = Plan::of(Class::Repeat);
const EMULATE: Plan = Plan::of(Class::Emulate);
const ENDS: Plan = Plan::of(Class::Refuse(Refusal::Ends));

const F_DUPFD: usize = 0;
const F_SETLK: usize = 6;
const F_SETLKW: usize = 7;
const F_OFD_SETLK: usize = 37;
const F_OFD_SETLKW: usize = 38;
const F_DUPFD_CLOEXEC: usize = 1030;

fn fcntl(args: &Args) -> Plan {
    const F_GETFD: usize = 1;
    const F_SETFD: usize = 2;
    const F_GETFL: usize = 3;
    const F_SETFL: usize = 4;
    const F_SETOWN: usize = 8;
    const F_GETOWN: usize = 9;
    const F_SETSIG: usize = 10;
    const F_SETPIPE_SZ: usize = 1031;
    const F_GETPIPE_SZ: usize = 1032;
    const F_ADD_SEALS: usize = 1033;
    const F_GET_SEALS: usize = 1034;
    const F_GETLK: usize = 5;
    const F_OFD_GETLK: usize = 36;
    const FLOCK: usize = 32;
    match args[1] {
        F_DUPFD | F_DUPFD_CLOEXEC | F_GETFD | F_SETFD | F_ADD_SEALS | F_GET_SEALS => EXECUTE,
        F_SETFL | F_SETPIPE_SZ => REPEAT,
        F_SETLK | F_SETLKW | F_OFD_SETLK | F_OFD_SETLKW => REPEAT,
        // Signals come from the record.
        F_GETLK | F_OFD_GETLK => Plan { written: Some((args[2], FLOCK)), ..EMULATE },
        F_GETFL | F_GETPIPE_SZ | F_SETOWN | F_GETOWN | F_SETSIG => EMULATE,
        _ => ENDS,
    }
}

fn ioctl(args: &Args) -> Plan {
    const FIOCLEX: u32 = 0x5451;
    const FIONCLEX: u32 = 0x5450;
    const FIONBIO: u32 = 0x5421;
    const FIOASYNC: u32 = 0x5452;
    const FIONREAD: u32 = 0x541b;
    const TCGETS: u32 = 0x5401;
    const TCSETS: u32 = 0x5402;
    const TCSETSF: u32 = 0x5404;
    const TIOCGPGRP: u32 = 0x540f;
    const TIOCSPGRP: u32 = 0x5410;
    const TIOCGWINSZ: u32 = 0x5413;
    const TIOCNOTTY: u32 = 0x5422;
    const SIOCETHTOOL: u32 = 0x8946;
    /// `struct ifreq`, of what one asks about an interface.
    const IFREQ: usize = 40;
    const SIOCGIF: [u32; 9] =
        [0x8910, 0x8913, 0x8915, 0x8917, 0x8919, 0x891b, 0x8921, 0x8927, 0x8933];
    let written = |len| Plan { written: Some((args[2], len)), ..EMULATE };
    match args[1] as u32 {
        FIOCLEX | FIONCLEX => EXECUTE,
        FIONBIO => REPEAT,
        FIONREAD | TIOCGPGRP => written(4),
        TCGETS => written(36),
        TIOCGWINSZ => written(8),
        // Signals come from the record.
        FIOASYNC | TCSETS..=TCSETSF | TIOCSPGRP | TIOCNOTTY => EMULATE,
        SIOCETHTOOL => ethtool(args),
        command if SIOCGIF.contains(&command) => written(IFREQ),
        // Most ask whether something is a terminal, and it is none.
        _ => Plan { fails_with: &[ENOTTY], ..ENDS },
    }
}

/// What servers ask about an interface's cable: a structure, which begins with what is asked for.
fn ethtool(args: &Args) -> Plan {
    const DATA: usize = 16;
    const GET_LINK_SETTINGS: u32 = 0x4c;
    /// In it, how many words of each mask there is room for.
    const WORDS: usize = 15;
    let data = memory::read::<usize>(args[2] + DATA).unwrap_or(0);
    let len = match memory::read::<u32>(data).unwrap_or(0) {
        // GSET, GLINK, GRXRINGS, GCHANNELS, GET_TS_INFO
        0x01 => 44,
        0x0a => 8,
        0x2d => 192,
        0x3c => 36,
        0x41 => 44,
        GET_LINK_SETTINGS => {
            let words = memory::read::<u32>(data + WORDS - 3).map_or(0, |four| four >> 24);
            48 + 3 * 4 * usize::from((words as u8).cast_signed().max(0).unsigned_abs())
        }
        _ => return Plan { fails_with: &[EOPNOTSUPP, ENODEV], ..ENDS },
    };
    Plan { written: Some((data, len)), ..EMULATE }
}

/// Options whose value is in the bytes that they are set with, and nowhere else.
fn setsockopt(args: &Args) -> Plan {
    const SOL_IP: u32 = 0;
    const SOL_SOCKET: u32 = 1;
    const SOL_TCP: u32 = 6;
    const SOL_UDP: u32 = 17;
    const SOL_IPV6: u32 = 41;
    let known: &[u32] = match args[1] as u32 {
        SOL_SOCKET => &[
            2, 5, 6, 7, 8, 9, 10, 12, 13, 15, 16, 18, 20, 21, 25, 29, 32, 33, 34, 35, 36, 46, 49,
            66, 67,
        ],
        SOL_TCP => &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 18, 23, 25, 30],
        SOL_IP => &[1, 2, 8, 10, 11, 15, 19, 24, 32, 33, 34, 35],
        SOL_IPV6 => &[16, 17, 18, 19, 20, 23, 24, 25, 26, 49, 67, 78],
        SOL_UDP => &[103, 104],
        _ => &[],
    };
    if known.contains(&(args[2] as u32)) { REPEAT } else { ENDS }
}

fn getsockopt(args: &Args) -> Plan {
    const SOL_TCP: u32 = 6;
    const TCP_ZEROCOPY_RECEIVE: u32 = 35;
    match (args[1] as u32, args[2] as u32) {
        // It writes elsewhere as well.
        (SOL_TCP, TCP_ZEROCOPY_RECEIVE) => ENDS,
        // What it writes is as long as it says.
        _ => EMULATE,
    }
}

fn prctl(args: &Args) -> Plan {
    const PR_SET_PDEATHSIG: usize = 1;
    const PR_GET_DUMPABLE: usize = 3;
    const PR_SET_DUMPABLE: usize = 4;
    const PR_GET_KEEPCAPS: usize = 7;
    const PR_SET_KEEPCAPS: usize = 8;
    const PR_SET_NAME: usize = 15;
    const PR_GET_NAME: usize = 16;
    const PR_CAPBSET_READ: usize = 23;
    const PR_CAPBSET_DROP: usize = 24;
    const PR_SET_TIMERSLACK: usize = 29;
    const PR_GET_TIMERSLACK: usize = 30;
    const PR_GET_SECCOMP: usize = 21;
    const PR_SET_SECCOMP: usize = 22;
    const PR_GET_SECUREBITS: usize = 27;
    const PR_SET_SECUREBITS: usize = 28;
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    const PR_GET_NO_NEW_PRIVS: usize = 39;
    const PR_SET_THP_DISABLE: usize = 41;
    const PR_GET_THP_DISABLE: usize = 42;
    const PR_CAP_AMBIENT: usize = 47;
    const PR_SET_VMA: usize = 0x5356_4d41;
    match args[0] {
        PR_SET_NAME | PR_GET_NAME | PR_GET_DUMPABLE | PR_SET_DUMPABLE | PR_GET_KEEPCAPS
        | PR_SET_KEEPCAPS | PR_CAPBSET_READ | PR_CAPBSET_DROP | PR_SET_NO_NEW_PRIVS
        | PR_GET_NO_NEW_PRIVS | PR_SET_THP_DISABLE | PR_GET_THP_DISABLE | PR_CAP_AMBIENT
        | PR_SET_VMA | PR_GET_SECUREBITS | PR_SET_SECUREBITS | PR_GET_SECCOMP | PR_SET_SECCOMP => {
            EXECUTE
        }
        PR_SET_PDEATHSIG | PR_SET_TIMERSLACK | PR_GET_TIMERSLACK => REPEAT,
        // The runtime refuses it.
        PR_SET_SYSCALL_USER_DISPATCH => EXECUTE,
        _ => ENDS,
    }
}

fn arch_prctl(args: &Args) -> Plan {
    const ARCH_SET_FS: usize = 0x1002;
    const ARCH_GET_FS: usize = 0x1003;
    const ARCH_SET_GS: usize = 0x1001;
    const ARCH_GET_GS: usize = 0x1004;
    match args[0] {
        ARCH_SET_FS | ARCH_GET_FS | ARCH_SET_GS | ARCH_GET_GS => EXECUTE,
        // C libraries ask for shadow stacks.
        _ => Plan { fails_with: &[linux_raw_sys::errno::EINVAL, ENOSYS], ..ENDS },
    }
}

const NO_QUOTA: &[u32] =
    &[ENOSYS, ESRCH, EPERM, EACCES, ENOENT, ENOTBLK, ENODEV, EINVAL, EOPNOTSUPP];

/// Filters are a process's own. One that tells somebody else of calls is not.
fn seccomp(args: &Args) -> Plan {
    const SET_MODE_STRICT: usize = 0;
    const SET_MODE_FILTER: usize = 1;
    const GET_ACTION_AVAIL: usize = 2;
    const NEW_LISTENER: usize = 8;
    match args[0] {
        SET_MODE_STRICT | GET_ACTION_AVAIL => EXECUTE,
        SET_MODE_FILTER if args[1] & NEW_LISTENER == 0 => EXECUTE,
        _ => ENDS,
    }
}

/// Whoever waits comes to what was recorded, in turn.
fn futex(args: &Args) -> Plan {
    const WAKE: usize = 1;
    const REQUEUE: usize = 3;
    const CMP_REQUEUE: usize = 4;
    const WAKE_OP: usize = 5;
    const WAKE_BITSET: usize = 10;
    match args[1] & FUTEX_COMMAND {
        FUTEX_WAIT | FUTEX_WAIT_BITSET | WAKE | WAKE_BITSET => EMULATE,
        REQUEUE | CMP_REQUEUE => EMULATE,
        // It changes the second word.
        WAKE_OP => Plan { written: Some((args[4], 4)), ..EMULATE },
        _ => ENDS,
    }
}

const FUTEX_COMMAND: usize = 0x7f;
const FUTEX_WAIT: usize = 0;
const FUTEX_WAIT_BITSET: usize = 9;

/// What a mapping is of.
pub fn mmap(args: &Args) -> Plan {
    const MAP_ANONYMOUS: usize = 0x20;
    if args[3] & MAP_ANONYMOUS != 0 || kinds::of(args[4]) == Kind::File { EXECUTE } else { ENDS }
}

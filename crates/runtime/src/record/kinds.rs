//! What descriptors are: whether what they lead to is the replica's own, or the world's.

use core::mem::zeroed;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_FDCWD, F_GETPIPE_SZ, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE,
    PROT_READ, PROT_WRITE, STATX_MNT_ID_UNIQUE, STATX_TYPE, stat, statfs, statx,
};
use systable::Sysno;

use super::group;
use crate::layout::TABLES;
use crate::sys::Args;
use crate::thread::{Slot, Thread};
use crate::{memory, own};

/// Descriptors with higher numbers are not followed: a recording ends with the first.
pub const MOST: usize = 1 << 16;

/// What a descriptor leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The world: what the program was given to begin with, devices, `/proc`, timers, what tells of events.
    World = 0,
    /// A file or a folder.
    File,
    /// Something that is in the replica alone: a pipe, an event counter, `epoll`.
    Inside,
    /// A socket that the program has made.
    Socket,
    /// A connection that it has accepted.
    Connection,
    /// Something that was opened by its path. What it is is found out when it matters, and is never this: see
    /// [`of`].
    Opened,
}

/// For each descriptor.
type Table = [AtomicU8; MOST];

static KINDS: Table = [const { AtomicU8::new(Kind::World as u8) }; MOST];

/// That of the calling thread: of its process, or its own (a child of `vfork`, which has descriptors of its
/// own in its parent's memory).
fn table() -> &'static Table {
    match Thread::current().kinds.get() {
        0 => &KINDS,
        // SAFETY: see `table_for_child`.
        at => unsafe { &*(at as *const Table) },
    }
}

fn copy(from: &Table, to: &Table) {
    for (from, to) in from.iter().zip(to) {
        let kind = from.load(Relaxed);
        // Most pages of it are never touched.
        if to.load(Relaxed) != kind {
            to.store(kind, Relaxed);
        }
    }
}

/// Leaves it to the program that this process is about to execute. By whoever has the turn.
pub fn leave() {
    copy(table(), group::kinds());
}

/// Takes over what the program in front of this one has left. By whoever has the turn.
pub fn inherit() {
    copy(group::kinds(), &KINDS);
}

/// Gives a child that shares its parent's memory, but not its descriptors, a table of its own.
///
/// # Errors
/// There is no memory.
pub fn table_for_child(child: &Thread) -> Result<(), isize> {
    let (access, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    let room = (TABLES.end - TABLES.start) / size_of::<Table>();
    let at = TABLES.start + Slot::of(child).number() % room * size_of::<Table>();
    let flags = flags | MAP_FIXED_NOREPLACE;
    // SAFETY: the runtime's own memory, where nothing is.
    unsafe { own!(mmap, at, size_of::<Table>(), access, flags, usize::MAX, 0)? };
    // SAFETY: zeros are a table, and nobody else has it.
    copy(table(), unsafe { &*(at as *const Table) });
    child.kinds.set(at);
    Ok(())
}

/// Takes it away: the child has memory of its own by now, or is no more.
pub fn forget_table(child: &Thread) {
    let at = child.kinds.take();
    if at != 0 {
        // SAFETY: nobody uses it any more.
        let _freed = unsafe { own!(munmap, at, size_of::<Table>()) };
    }
}

/// What a descriptor is.
pub fn of(fd: usize) -> Kind {
    let fd = fd as u32 as usize;
    match known(fd) {
        Kind::Opened => {
            let kind = of_path(fd);
            set(fd, kind);
            kind
        }
        kind => kind,
    }
}

fn known(fd: usize) -> Kind {
    let kind = table().get(fd).map_or(0, |kind| kind.load(Relaxed));
    let all = [Kind::World, Kind::File, Kind::Inside, Kind::Socket, Kind::Connection, Kind::Opened];
    all[usize::from(kind)]
}

/// Whether each replica has it for itself.
pub fn is_inside(fd: usize) -> bool {
    matches!(of(fd), Kind::File | Kind::Inside)
}

fn set(fd: usize, kind: Kind) {
    if let Some(known) = table().get(fd) {
        known.store(kind as u8, Relaxed);
    }
}

/// Whether it opens something by its path.
pub fn opens(name: Sysno) -> bool {
    matches!(name, Sysno::open | Sysno::openat | Sysno::openat2 | Sysno::creat)
}

/// Whether it opens what the kernel makes up, as it is at this moment and in this process: below `/proc`, and
/// `/sys`. (But for a file of its own that it opens once more.)
pub fn is_made_up(name: Sysno, args: &Args) -> bool {
    let (dir, path) = match name {
        Sysno::open | Sysno::creat => (AT_FDCWD as usize, args[0]),
        _ => (args[0], args[1]),
    };
    let mut buffer = [0; 40];
    let Ok(path) = memory::glance_at_str(path, &mut buffer) else { return false };
    match path.first() {
        Some(b'/') => {
            let is_below = path.starts_with(b"/proc/") || path.starts_with(b"/sys/");
            is_below && !own_descriptor(path).is_some_and(is_inside)
        }
        _ => dir as i32 != AT_FDCWD && of(dir) == Kind::World,
    }
}

/// Whether it makes a descriptor, and returns it.
pub fn makes_one(name: Sysno, args: &Args) -> bool {
    use Sysno::*;
    match name {
        name if opens(name) => true,
        fcntl => super::command::is_dup(args[1]),
        memfd_create
        | memfd_secret
        | socket
        | dup
        | eventfd
        | eventfd2
        | epoll_create
        | epoll_create1
        | signalfd
        | signalfd4
        | timerfd_create
        | inotify_init
        | inotify_init1
        | pidfd_open
        | landlock_create_ruleset => true,
        _ => false,
    }
}

/// Where a call writes the two descriptors that it makes.
pub fn makes_two(name: Sysno, args: &Args) -> Option<usize> {
    match name {
        Sysno::pipe | Sysno::pipe2 => Some(args[0]),
        Sysno::socketpair => Some(args[3]),
        _ => None,
    }
}

/// The descriptor that a path names.
fn own_descriptor(path: &[u8]) -> Option<usize> {
    core::str::from_utf8(path).ok()?.strip_prefix("/proc/self/fd/")?.parse().ok()
}

/// A call has returned this, and no error: what it says of descriptors. `false`: there are too many.
pub fn follow(name: Sysno, args: &Args, result: usize) -> bool {
    use Sysno::*;
    let kind = match name {
        name if opens(name) => Kind::Opened,
        fstat => return learn(args[0], args[1]),
        newfstatat if is_of_descriptor(args) => return learn(args[0], args[2]),
        memfd_create => Kind::File,
        socket => Kind::Socket,
        accept | accept4 => Kind::Connection,
        eventfd | eventfd2 | epoll_create | epoll_create1 => Kind::Inside,
        signalfd | signalfd4 | timerfd_create | inotify_init | inotify_init1 | pidfd_open => {
            Kind::World
        }
        dup | dup2 | dup3 => of(args[0]),
        fcntl if super::command::is_dup(args[1]) => of(args[0]),
        pipe | pipe2 | socketpair => return both(makes_two(name, args).unwrap_or_default()),
        recvmsg if is_inside(args[0]) => {
            let mut fits = true;
            super::pieces::descriptors(args[1], |fd| {
                set(fd as usize, of_sent(fd as usize));
                fits &= (fd as usize) < MOST;
            });
            return fits;
        }
        close => {
            set(args[0] as u32 as usize, Kind::World);
            return true;
        }
        _ => return true,
    };
    set(result, kind);
    result < MOST
}

/// Both ends of something.
fn both(at: usize) -> bool {
    // SAFETY: the kernel has written two numbers there a moment ago.
    let fds = unsafe { (at as *const [i32; 2]).read_unaligned() };
    fds.iter().all(|&fd| {
        set(fd as usize, Kind::Inside);
        (fd as usize) < MOST
    })
}

/// Of something that another process has sent.
fn of_sent(fd: usize) -> Kind {
    const SO_DOMAIN: usize = 39;
    const AF_UNIX: u32 = 1;
    match socket_option(fd, SO_DOMAIN) {
        Some(AF_UNIX) => Kind::Inside,
        Some(_) => Kind::Connection,
        None if is_pipe(fd) => Kind::Inside,
        None => of_path(fd),
    }
}

/// Whether it is an end of a pipe.
pub fn is_pipe(fd: usize) -> bool {
    // SAFETY: asks, and changes nothing.
    unsafe { own!(fcntl, fd, F_GETPIPE_SZ) }.is_ok()
}

/// A number that a socket says of itself. `None`: it is no socket.
pub fn socket_option(fd: usize, option: usize) -> Option<u32> {
    const SOL_SOCKET: usize = 1;
    let (mut value, mut len) = (0u32, 4u32);
    // SAFETY: asks, and changes nothing.
    let asked = unsafe { own!(getsockopt, fd, SOL_SOCKET, option, &raw mut value, &raw mut len) };
    asked.is_ok().then_some(value)
}

/// The program has asked what it has opened: often all there is to know of it. (Follows it, in any case.)
fn learn(fd: usize, at: usize) -> bool {
    if known(fd as u32 as usize) == Kind::Opened {
        // SAFETY: the kernel has written it a moment ago.
        let stat = unsafe { (at as *const stat).read_unaligned() };
        // What is on a disk is not made up.
        let is_on_disk = stat.st_dev >> 8 & 0xfff != 0;
        if is_on_disk && is_file(stat.st_mode as u16) {
            set(fd as u32 as usize, Kind::File);
        }
    }
    true
}

/// `newfstatat` that has succeeded: whether it was about the descriptor itself.
fn is_of_descriptor(args: &Args) -> bool {
    let path = args[1] as *const u8;
    // SAFETY: the kernel has read it a moment ago.
    args[3] & AT_EMPTY_PATH as usize != 0 && (path.is_null() || unsafe { path.read() } == 0)
}

/// Whether it is one, or a folder.
fn is_file(mode: u16) -> bool {
    const S_IFMT: u16 = 0o170_000;
    const S_IFREG: u16 = 0o100_000;
    const S_IFDIR: u16 = 0o040_000;
    [S_IFREG, S_IFDIR].contains(&(mode & S_IFMT))
}

/// Of something that was opened by its path.
fn of_path(fd: usize) -> Kind {
    // SAFETY: integers, of which zero is one; the kernel writes one.
    let (stat, asked) = unsafe {
        let mut stat: statx = zeroed();
        let what = STATX_TYPE | STATX_MNT_ID_UNIQUE;
        let asked = own!(statx, fd, c"".as_ptr(), AT_EMPTY_PATH, what, &raw mut stat);
        (stat, asked)
    };
    let mount = if stat.stx_mask & STATX_MNT_ID_UNIQUE == 0 { 0 } else { stat.stx_mnt_id };
    if asked.is_ok() && is_file(stat.stx_mode) && is_real(fd, mount) {
        Kind::File
    } else {
        Kind::World
    }
}

/// Whether a file is not made up. Its mount has a number that no other one ever gets; 0: that is not known.
fn is_real(fd: usize, mount: u64) -> bool {
    /// What the kernel makes up when it is read: `/proc`, `/sys`, and below them.
    const MADE_UP: [u64; 6] =
        [0x9fa0, 0x6265_6572, 0x6367_7270, 0x6462_6720, 0x7472_6163, 0x0027_e0eb];
    /// The last mount that was asked about, and is real.
    static REAL: AtomicU64 = AtomicU64::new(0);
    if mount != 0 && mount == REAL.load(Relaxed) {
        return true;
    }
    // SAFETY: integers, of which zero is one; the kernel writes one.
    let is_real = unsafe {
        let mut system: statfs = zeroed();
        own!(fstatfs, fd, &raw mut system).is_ok() && !MADE_UP.contains(&(system.f_type as u64))
    };
    if is_real {
        REAL.store(mount, Relaxed);
    }
    is_real
}

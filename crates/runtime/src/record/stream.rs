//! The file of a recording, through a window of memory that is shared with it: what is written there is in
//! the file, also if the process is killed in the next instant, and costs no system call.

use core::slice;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use linux_raw_sys::ctypes::c_void;
use linux_raw_sys::errno::EFBIG;
use linux_raw_sys::general::{MAP_FIXED, MAP_SHARED, PROT_READ, PROT_WRITE, RLIMIT_FSIZE, iovec};
use recording::{Damage, Head, MAGIC, MOST, Place, Record};

use crate::fds::Own;
use crate::layout::{PAGE, STREAM, page_down, page_up};
use crate::own;
use crate::sys::error;

/// Bytes of the window, at least.
const WINDOW: usize = 64 << 20;
/// Room on the disk is made by writing zeros, so many bytes at once: a write to memory cannot say that there is
/// none. To room that was only asked for (`fallocate`) a first write to each page costs 2.7 µs instead of 1.0.
const STEP: u64 = 256 << 10;
/// So many bytes of it are kept in front of what is written. Processes that may write no files (`RLIMIT_FSIZE`)
/// live on what others have made.
const AHEAD: u64 = 4 << 20;

/// The descriptor of the file. There is one recording in a process.
pub static FD: Own = Own::none();

/// To the kernel.
fn fd() -> usize {
    FD.get().expect("there is a recording")
}

/// Where in the file this process has its window, and the window's length.
static WINDOW_FROM: AtomicU64 = AtomicU64::new(0);
static WINDOW_LEN: AtomicUsize = AtomicUsize::new(0);

/// A recording that is being written, or read. Processes share what is in here, and each has its window.
pub struct Stream {
    place: Place,
    /// Bytes of the file: all of them, or as many as there is room for so far.
    len: u64,
    writes: bool,
}

impl Stream {
    /// A new one, in an empty file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(fd: usize) -> Result<Stream, isize> {
        let mut stream = Stream { place: Place::FIRST, len: 0, writes: true };
        FD.set(fd);
        stream.make_room(MAGIC.len())?;
        // SAFETY: the window is mapped, and as long.
        unsafe { slice::from_raw_parts_mut(STREAM.start as *mut u8, MAGIC.len()) }
            .copy_from_slice(&MAGIC);
        Ok(stream)
    }

    /// One that is there.
    ///
    /// # Errors
    /// The kernel's; [`Damage::Magic`] within.
    pub fn open(fd: usize) -> Result<Result<Stream, Damage>, isize> {
        let len = len(fd)?;
        let stream = Stream { place: Place::FIRST, len, writes: false };
        FD.set(fd);
        if len < MAGIC.len() as u64 {
            return Ok(Err(Damage::Magic));
        }
        stream.map(0, WINDOW)?;
        let begins = stream.mapped()[..MAGIC.len()] == MAGIC;
        Ok(if begins { Ok(stream) } else { Err(Damage::Magic) })
    }

    /// How far it has been written, or read.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Appends a record with about so many bytes of payload: see [`Place::write`].
    ///
    /// # Errors
    /// There is no room for it. The recording is as it was.
    pub fn append(
        &mut self,
        head: &Head,
        expected: usize,
        mut payload: impl FnMut(&mut [u8]) -> Option<usize>,
    ) -> Result<(), isize> {
        let mut needed = MOST + if expected == 0 { 0 } else { expected.max(PAGE) };
        loop {
            self.make_room(needed)?;
            let at = STREAM.start + (self.place.at - WINDOW_FROM.load(Relaxed)) as usize;
            // SAFETY: the window is mapped so far, and there is room for it in the file. Nobody else has it.
            let out = unsafe { slice::from_raw_parts_mut(at as *mut u8, needed) };
            if let Some(place) = self.place.write(out, head, expected, &mut payload) {
                self.place = place;
                return Ok(());
            }
            needed *= 2;
        }
    }

    /// The next record, and the place behind it; `None`: there is none any more.
    ///
    /// # Errors
    /// The kernel's; what is damaged, within.
    pub fn peek(&mut self) -> Result<Result<Option<(Record<'_>, Place)>, Damage>, isize> {
        let place = self.place;
        loop {
            let (from, window) = (WINDOW_FROM.load(Relaxed), WINDOW_LEN.load(Relaxed));
            let end = from + window as u64;
            if place.at < end {
                let is_cut = matches!(place.read(self.rest()), Err(Damage::Short));
                if !is_cut || end >= self.len {
                    break;
                }
            } else if place.at >= self.len {
                return Ok(Ok(None));
            }
            // It goes on behind the window.
            let is_here = from == page_down(place.at as usize) as u64;
            self.map(place.at, if is_here && window > 0 { 2 * window } else { WINDOW })?;
        }
        Ok(place.read(self.rest()))
    }

    /// Goes on at a place that [`Stream::peek`] has found.
    pub fn go_on(&mut self, place: Place) {
        self.place = place;
    }

    /// Cuts the file off behind its last record.
    pub fn cut(&self) {
        if self.writes {
            // SAFETY: the runtime's own descriptor. Nothing is read or written behind this.
            let _cut = unsafe { own!(ftruncate, fd(), self.place.at) };
        }
    }

    fn mapped(&self) -> &[u8] {
        let from = WINDOW_FROM.load(Relaxed);
        let len = WINDOW_LEN.load(Relaxed).min((self.len - from) as usize);
        // SAFETY: mapped, and not behind the end of the file.
        unsafe { slice::from_raw_parts(STREAM.start as *const u8, len) }
    }

    fn rest(&self) -> &[u8] {
        &self.mapped()[(self.place.at - WINDOW_FROM.load(Relaxed)) as usize..]
    }

    /// Room for so many bytes at the end.
    fn make_room(&mut self, needed: usize) -> Result<(), isize> {
        let end = self.place.at + needed as u64;
        while self.len < end + AHEAD {
            if may_be_as_long(self.len + STEP) {
                self.allocate()?;
            } else if self.len < end {
                return Err(error(EFBIG));
            } else {
                break;
            }
        }
        if end > WINDOW_FROM.load(Relaxed) + WINDOW_LEN.load(Relaxed) as u64 {
            self.map(self.place.at, (needed + PAGE).max(WINDOW))?;
        }
        Ok(())
    }

    fn allocate(&mut self) -> Result<(), isize> {
        static ZEROS: [u8; PAGE] = [0; PAGE];
        const PAGES: usize = STEP as usize / PAGE;
        let zeros =
            [iovec { iov_base: ZEROS.as_ptr() as *mut c_void, iov_len: PAGE as u64 }; PAGES];
        let end = self.len + STEP;
        while self.len < end {
            let pages = ((end - self.len) as usize).div_ceil(PAGE);
            // SAFETY: makes the file longer.
            let written = unsafe { own!(pwritev, fd(), zeros.as_ptr(), pages, self.len)? };
            self.len += written as u64;
        }
        Ok(())
    }

    /// Moves the window to where `at` is.
    fn map(&self, at: u64, len: usize) -> Result<(), isize> {
        let (from, len) = (page_down(at as usize), page_up(len));
        if len > STREAM.end - STREAM.start {
            return Err(error(EFBIG));
        }
        let access = if self.writes { PROT_READ | PROT_WRITE } else { PROT_READ };
        // SAFETY: nothing else is ever in this place.
        unsafe { own!(mmap, STREAM.start, len, access, MAP_SHARED | MAP_FIXED, fd(), from)? };
        WINDOW_FROM.store(from as u64, Relaxed);
        WINDOW_LEN.store(len, Relaxed);
        Ok(())
    }
}

/// Whether this process may make a file so long. If it may not, trying to would be its death (SIGXFSZ).
fn may_be_as_long(len: u64) -> bool {
    let mut limits = [0u64; 2];
    // SAFETY: both of the limits are written to it.
    let asked = unsafe { own!(prlimit64, 0, RLIMIT_FSIZE, 0, limits.as_mut_ptr()) };
    asked.is_err() || len <= limits[0]
}

/// This process gives back what it has of it.
pub fn close() {
    // SAFETY: the runtime's own mapping, which nothing uses behind this.
    unsafe {
        let _unmapped = own!(munmap, STREAM.start, WINDOW_LEN.swap(0, Relaxed));
    }
    FD.close();
}

/// Bytes of a file.
fn len(fd: usize) -> Result<u64, isize> {
    const SEEK_END: usize = 2;
    // SAFETY: moves the offset of the runtime's own descriptor, which nobody reads by.
    unsafe { own!(lseek, fd, 0, SEEK_END) }.map(|len| len as u64)
}

//! Bit flips in a process: what a cosmic ray or a worn memory cell does.
//!
//! One thread of the process is stopped by ptrace, one bit of one of its general registers
//! is flipped, or one of a page that is in memory, and the thread goes on. Memory is written
//! through `/proc/<pid>/mem`, which also reaches text: the kernel gives the process a copy of
//! the page, and the file stays as it is. Pages shared with other processes are left alone,
//! or the flip would hit them, and the file behind the pages, as well.
//!
//! Everything is chosen by the seed among what is there, so a process in the same state is
//! hit in the same place. A process runs on while it is looked at, and its addresses differ
//! from run to run: the report says what it was.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        ptrace,
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::{
    dice::Dice,
    error::{Doing, Error, Result},
    host::ProcessInfo,
    lab::Lab,
    sys,
};

/// Where a bit is flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// A general register of one thread, the program counter and stack pointer included
    Register,
    /// Any private memory: the four below and whatever else is mapped
    Memory,
    /// The main thread's stack
    Stack,
    /// The heap that the program break ends
    Heap,
    /// Program code
    Text,
    /// Writable data of the program and its libraries
    Data,
}

/// A flip to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flip {
    /// Processes whose name or command line contains this; the seed picks one of them.
    pub process: String,
    /// Where.
    pub place: Where,
    /// Chooses process, thread and bit.
    pub seed: u64,
}

/// What was flipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flipped {
    /// The process's id, as seen from outside the host.
    pub pid: u32,
    /// The thread that was stopped for it.
    pub tid: u32,
    /// The process's name.
    pub process: String,
    /// Where the bit was.
    pub what: FlippedBit,
    /// Which bit, 0 for the lowest: below 64 in a register, below 8 in memory.
    pub bit: u32,
    /// Register or byte, before.
    pub before: u64,
    /// Register or byte, after.
    pub after: u64,
}

/// A place in a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlippedBit {
    /// A register, by name.
    Register(String),
    /// A byte of memory.
    Memory {
        /// Its address.
        address: u64,
        /// What is mapped there: a file, `[heap]`, `[stack]`, or nothing.
        mapping: String,
        /// How, such as `rw-p`.
        protection: String,
    },
}

impl fmt::Display for Flipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Flipped { pid, tid, process, what, bit, before, after } = self;
        write!(f, "{process} (pid {pid}, thread {tid}): bit {bit} of ")?;
        match what {
            FlippedBit::Register(name) => write!(f, "register {name}")?,
            FlippedBit::Memory { address, mapping, protection } => {
                let mapping = if mapping.is_empty() { "anonymous" } else { mapping };
                write!(f, "the byte at {address:#x} ({mapping}, {protection})")?;
            }
        }
        write!(f, " flipped, {before:#x} became {after:#x}")
    }
}

/// How long a thread may take to stop: one that waits for a disk, or in vfork for a child,
/// cannot be stopped until it goes on.
const STOPS_WITHIN: Duration = Duration::from_secs(2);

const DIE_PROCESS: u64 = 0;
const DIE_THREAD: u64 = 1;
const DIE_PLACE: u64 = 2;
const DIE_BIT: u64 = 3;

impl Lab {
    /// Flips one bit in a process of a host, and says which.
    ///
    /// # Errors
    /// There is no such host, it is down, [`Error::NoProcess`], nothing of that kind is in
    /// the process's memory, or the kernel refuses ptrace.
    pub fn flip(&self, host: &str, flip: &Flip) -> Result<Flipped> {
        let host = self.host(host)?;
        let mut processes = host.processes()?;
        processes.retain(|p| p.matches(&flip.process));
        let dice = Dice(flip.seed);
        let process = pick(&processes, dice, DIE_PROCESS).ok_or_else(|| Error::NoProcess {
            host: host.name().to_owned(),
            what: flip.process.clone(),
        })?;
        let doing = || format!("flip a bit in process {} of host {}", process.pid, host.name());
        // A thread of its own: the kernel takes ptrace requests from the tracing thread only,
        // and lets go of everything it traces when that ends.
        sys::on_thread(|| hit(process, flip.place, dice).doing(doing))
    }
}

fn hit(process: &ProcessInfo, place: Where, dice: Dice) -> io::Result<Flipped> {
    let pid = process.pid;
    let mut tids = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        tids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    tids.sort_unstable();
    let gone = || io::Error::new(io::ErrorKind::NotFound, "it has ended");
    let tid = *pick(&tids, dice, DIE_THREAD).ok_or_else(gone)?;
    let stopped = Stopped::new(tid)?;
    let (what, bit, before, after) = match place {
        Where::Register => flip_register(stopped.tid, dice)?,
        _ => flip_memory(pid, place, dice)?,
    };
    let process = process.name.clone();
    Ok(Flipped { pid, tid, process, what, bit, before, after })
}

fn pick<T>(all: &[T], dice: Dice, die: u64) -> Option<&T> {
    if all.is_empty() { None } else { all.get(dice.below(0, die, all.len() as u64) as usize) }
}

/// A thread that ptrace has stopped; it goes on when this is dropped.
struct Stopped {
    tid: Pid,
    /// A signal that arrived while we were stopping it, and is its own.
    signal: Option<nix::sys::signal::Signal>,
}

impl Stopped {
    fn new(tid: u32) -> io::Result<Stopped> {
        let tid = Pid::from_raw(tid as i32);
        ptrace::seize(tid, ptrace::Options::empty())?;
        ptrace::interrupt(tid)?;
        let deadline = Instant::now() + STOPS_WITHIN;
        // It may be a child of this process: to take its end away here is to reap it, and neither
        // whoever started it nor the burial of its host could wait for it any more.
        let looking = WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG | WaitPidFlag::__WALL;
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | looking;
        loop {
            let signal = match waitid(Id::Pid(tid), flags)? {
                WaitStatus::StillAlive if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(200)); // nothing else tells us
                    continue;
                }
                // The kernel lets go of it when our thread ends.
                WaitStatus::StillAlive => {
                    let said = "it waits in the kernel and does not stop; resume its host, \
                                or choose another process";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, said));
                }
                // waitid tells a signal that has arrived as event 0.
                WaitStatus::PtraceEvent(_, signal, 0) => Some(signal),
                WaitStatus::PtraceEvent(..) => None,
                _ => return Err(io::Error::new(io::ErrorKind::NotFound, "it has ended")),
            };
            return Ok(Stopped { tid, signal });
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.tid, self.signal); // killed meanwhile: nothing to resume
    }
}

type Hit = (FlippedBit, u32, u64, u64);

#[cfg(target_arch = "x86_64")]
fn flip_register(tid: Pid, dice: Dice) -> io::Result<Hit> {
    let mut r = ptrace::getregs(tid)?;
    let registers: [(&str, &mut u64); 17] = [
        ("rax", &mut r.rax),
        ("rbx", &mut r.rbx),
        ("rcx", &mut r.rcx),
        ("rdx", &mut r.rdx),
        ("rsi", &mut r.rsi),
        ("rdi", &mut r.rdi),
        ("rbp", &mut r.rbp),
        ("rsp", &mut r.rsp),
        ("r8", &mut r.r8),
        ("r9", &mut r.r9),
        ("r10", &mut r.r10),
        ("r11", &mut r.r11),
        ("r12", &mut r.r12),
        ("r13", &mut r.r13),
        ("r14", &mut r.r14),
        ("r15", &mut r.r15),
        ("rip", &mut r.rip),
    ];
    let at = dice.below(0, DIE_PLACE, registers.len() as u64) as usize;
    let bit = dice.below(0, DIE_BIT, 64) as u32;
    let (name, value) = registers.into_iter().nth(at).expect("it is below the length");
    let before = *value;
    *value ^= 1 << bit;
    let hit = (FlippedBit::Register(name.to_owned()), bit, before, *value);
    ptrace::setregs(tid, r)?;
    Ok(hit)
}

#[cfg(not(target_arch = "x86_64"))]
fn flip_register(_: Pid, _: Dice) -> io::Result<Hit> {
    let said = "registers are known on x86-64 only; flip a bit of memory instead";
    Err(io::Error::new(io::ErrorKind::Unsupported, said))
}

/// One line of `/proc/<pid>/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    protection: String,
    name: String,
}

impl Mapping {
    fn parse(line: &str) -> Option<Mapping> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let protection = words.next()?.to_owned();
        let name = words.nth(3).unwrap_or_default().trim().to_owned();
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Mapping { start: number(start)?, end: number(end)?, protection, name })
    }

    fn is(&self, place: Where) -> bool {
        let private = self.protection.ends_with('p');
        // The kernel's own pages: not the process's memory, or not to be written.
        if !private || ["[vvar", "[vdso]", "[vsyscall]"].iter().any(|k| self.name.starts_with(k)) {
            return false;
        }
        let (writable, code) =
            (self.protection.as_bytes()[1] == b'w', self.protection.as_bytes()[2] == b'x');
        match place {
            Where::Register => false,
            Where::Memory => self.protection.starts_with('r'),
            Where::Stack => self.name == "[stack]",
            Where::Heap => self.name == "[heap]",
            Where::Text => code,
            Where::Data => writable && self.name.starts_with('/'),
        }
    }
}

fn flip_memory(pid: u32, place: Where, dice: Dice) -> io::Result<Hit> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mappings = maps.lines().filter_map(Mapping::parse).filter(|m| m.is(place));
    let mappings: Vec<_> = mappings.collect();
    // A flip in a page that is not there is none: it would be filled afterwards.
    let present = File::open(format!("/proc/{pid}/pagemap"))?;
    let page =
        u64::try_from(nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.unwrap_or(4096))
            .expect("a page has a size");
    let mut pages = Vec::new();
    for mapping in &mappings {
        let (mut at, end) = (mapping.start / page, mapping.end / page);
        // Piece by piece: what is mapped may be far more than what is there.
        let mut entries = vec![0; 64 << 10];
        while at < end {
            let count = (end - at).min(entries.len() as u64 / 8);
            let entries = &mut entries[..count as usize * 8];
            present.read_exact_at(entries, at * 8)?;
            for (n, entry) in entries.chunks_exact(8).enumerate() {
                let in_memory = entry[7] & 0x80 != 0; // bit 63
                if in_memory {
                    pages.push(((at + n as u64) * page, mapping));
                }
            }
            at += count;
        }
    }
    let none = || {
        let said = format!("it has no {place:?} in memory; choose another place");
        io::Error::new(io::ErrorKind::NotFound, said)
    };
    let (start, mapping) = pick(&pages, dice, DIE_PLACE).ok_or_else(none)?;
    let bit = dice.below(0, DIE_BIT, page * 8);
    let (address, bit) = (start + bit / 8, (bit % 8) as u32);
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let mut byte = [0];
    memory.read_exact_at(&mut byte, address)?;
    let before = byte[0];
    byte[0] ^= 1 << bit;
    memory.write_all_at(&byte, address)?;
    let what = FlippedBit::Memory {
        address,
        mapping: mapping.name.clone(),
        protection: mapping.protection.clone(),
    };
    Ok((what, bit, before.into(), byte[0].into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_apart() {
        let is = |line: &str, place| Mapping::parse(line).unwrap().is(place);
        let text = "55d0-55d1 r-xp 00002000 fd:00 123       /usr/bin/with space";
        assert_eq!(Mapping::parse(text).unwrap().name, "/usr/bin/with space");
        assert!(is(text, Where::Text) && is(text, Where::Memory) && !is(text, Where::Data));
        let data = "7f00-7f10 rw-p 00000000 fd:00 123 /lib/libc.so";
        assert!(is(data, Where::Data) && !is(data, Where::Text) && !is(data, Where::Heap));
        assert!(is("1000-2000 rw-p 00000000 00:00 0 [heap]", Where::Heap));
        assert!(is("1000-2000 rw-p 00000000 00:00 0 [stack]", Where::Stack));
        assert!(is("1000-2000 rw-p 00000000 00:00 0 ", Where::Memory));
        for kernel in ["r--p 0 00:00 0 [vvar]", "r-xp 0 00:00 0 [vdso]", "rw-s 0 fd:00 1 /file"] {
            assert!(!is(&format!("1000-2000 {kernel}"), Where::Memory), "{kernel}");
        }
    }
}

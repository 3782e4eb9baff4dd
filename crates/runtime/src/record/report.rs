//! What a replay has to say.

use core::fmt::{self, Display, Formatter};

use recording::{Call, Clocks, Damage, End, Head, Left, Time, Turn};
use systable::Sysno;

use crate::errno::Errno;
use crate::frame::Context;
use crate::sys::Args;
use crate::{maps, memory, site};

/// So many records in front of where a replay ends are shown.
pub const SHOWN: usize = 6;

/// A call that a replay has made.
pub struct Made<'a> {
    /// Its number.
    pub number: usize,
    /// Its arguments.
    pub args: &'a Args,
}

impl Display for Made<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        Name(self.number).fmt(f)?;
        let count = Sysno::new(self.number).map_or(6, |name| systable::entry(name).arguments.len());
        f.write_str("(")?;
        for (i, arg) in self.args[..count].iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{arg:#x}")?;
        }
        f.write_str(")")
    }
}

/// The name of a call.
pub struct Name(pub usize);

impl Display for Name {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match Sysno::new(self.0) {
            Some(name) => f.write_str(name.name()),
            None => write!(f, "system call {}", self.0),
        }
    }
}

/// A record, in a few words.
#[derive(Clone, Copy)]
pub struct Brief(pub Head);

impl Display for Brief {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self.0 {
            Head::Begin(_) => f.write_str("the program begins"),
            Head::Call(Call { number, result, .. }) => {
                write!(f, "{} = {result}", Name(usize::from(number)))
            }
            Head::Signal(_) => f.write_str("a signal"),
            Head::Tsc(..) => f.write_str("the time stamp counter"),
            Head::Time(Time { clock: Clocks::OF_DAY, .. }) => f.write_str("gettimeofday"),
            Head::Time(Time { clock: Clocks::SECONDS, .. }) => f.write_str("time"),
            Head::Time(Time { clock, .. }) => write!(f, "clock_gettime({clock})"),
            Head::Now(nanos) => {
                write!(f, "{}.{:06} s", nanos / 1_000_000_000, nanos / 1000 % 1_000_000)
            }
            Head::Turn(Turn { thread, left: Left::Killed }) => {
                write!(f, "a process is killed, and thread {thread} goes on")
            }
            Head::Turn(Turn { thread, .. }) => write!(f, "thread {thread} goes on"),
            Head::Killed(thread) => write!(f, "the process of thread {thread} was killed"),
            Head::End(End::Exited { status }) => write!(f, "it ends with status {status}"),
            Head::End(End::Refused { number, args: [a, b, c] }) => {
                let name = Name(usize::from(number));
                write!(f, "{name}({a:#x}, {b:#x}, {c:#x}, …), which is not recorded")
            }
            Head::End(End::Stuck { thread }) => {
                write!(f, "thread {thread} makes no system calls, and the others wait for it")
            }
            Head::End(End::Killed { thread }) => {
                write!(f, "the process of thread {thread} was killed in the midst of a system call")
            }
            Head::End(End::Unwritten { errno }) => {
                write!(f, "what follows could not be written: {}", Errno(-(errno as isize)))
            }
        }
    }
}

/// How a replay and its recording differ.
pub enum Difference {
    /// The program has done something else.
    Other(Head),
    /// A call has come to something else.
    Result {
        /// What was recorded.
        recorded: i64,
        /// And now.
        replayed: isize,
    },
    /// The same call has other bytes.
    Bytes,
    /// It would wait, and did not.
    Waits,
    /// What was recorded is too short for it, or too long, or has no place to go.
    Payload,
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Difference::Other(head) => write!(f, "the recording has: {}", Brief(*head)),
            Difference::Result { recorded, replayed } => {
                write!(f, "it returned {replayed}; recorded is {recorded}")
            }
            Difference::Bytes => f.write_str("its bytes are not those that were recorded"),
            Difference::Waits => f.write_str("it would have to wait, which it did not"),
            Difference::Payload => {
                f.write_str("what was recorded of it does not fit into the program's memory")
            }
        }
    }
}

/// What is wrong with a recording, in words for whoever has it.
pub fn damage(damage: Damage) -> &'static str {
    match damage {
        Damage::Magic => "it is no recording, or one of another version of Steadfast",
        Damage::Short => "its last record is cut off",
        Damage::Check => "it is damaged there",
    }
}

/// Where in the program it is: its instruction, and the callers that keep a frame pointer.
pub struct Where {
    /// The instruction.
    rip: usize,
    /// The frame pointer.
    rbp: usize,
}

impl Where {
    /// Of a thread that goes on so.
    pub fn of(context: &Context) -> Where {
        let registers = &context.registers;
        Where { rip: site::in_program(registers.rip), rbp: registers.rbp }
    }
}

impl Display for Where {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write_place(f, self.rip)?;
        let mut frame = self.rbp;
        for _ in 0..8 {
            let Ok([next, back]) = memory::read::<[usize; 2]>(frame) else { break };
            if next <= frame || !maps::is_code_of_a_file(back, 1) {
                break;
            }
            f.write_str("\n      ")?;
            write_place(f, back)?;
            frame = next;
        }
        Ok(())
    }
}

fn write_place(f: &mut Formatter, at: usize) -> fmt::Result {
    write!(f, "{at:#x}")?;
    maps::with_file_of(at, |file, offset| {
        let name = file.rsplit('/').next().unwrap_or(file);
        write!(f, " ({name}+{offset:#x})")
    })
    .unwrap_or(Ok(()))
}

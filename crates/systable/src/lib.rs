//! One table of all x86-64 system calls: what becomes of each when a program is recorded, and replayed on
//! another replica, and what its arguments point to. `docs/syscalls.md` is made from it.
//!
//! The table has every number that the crate `syscalls` knows: a new one does not compile until it is
//! classified. What depends on more than the number says so ([`Rule`]); it is never guessed.
//!
//! The classes answer FT-TCP's question of playback (F8): what the environment says comes from the record,
//! what the program does to itself is done again and compared, and what it says to clients is compared
//! and not sent twice.

#![no_std]
#![forbid(unsafe_code)]

mod page;
mod table;

pub use page::Page;
pub use syscalls::Sysno;
pub use table::entry;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It is made on each replica, and the results are compared.
    Execute,
    /// It is made on each replica, for what it does there. What it returns comes from the record: it is a
    /// number of this machine's, or depends on it.
    Repeat,
    /// It is made where the program is recorded. Elsewhere it is answered from the record: the result,
    /// and what the kernel has written to memory.
    Emulate,
    /// It is made where the program is recorded, as soon as everything that it depends on is stable.
    /// Elsewhere what it would have sent is compared by its hash.
    Output,
    /// The runtime does it, or has it done for itself; every replica comes to the same by itself.
    Local,
    /// It is not made.
    Refuse(Refusal),
}

/// How a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not exist: `ENOSYS`, recorded or not. Programs do without it.
    Absent,
    /// Recording ends, and says because of what; the program goes on.
    Ends,
}

/// What the class of a call depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nothing.
    Always(Class),
    /// What its first descriptor is: something that each replica has for itself (a file, a pipe within the
    /// replica), or something that leads outside (a connection, a terminal, a timer).
    Descriptor {
        /// Of the former.
        inside: Class,
        /// Of the latter.
        outside: Class,
    },
    /// Which command the argument of this number is. Each is classified where it is carried out; one that is
    /// not ends recording.
    Command(u8),
}

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A number, flags, an enumeration.
    Number,
    /// A descriptor.
    Descriptor,
    /// An address that the call does not follow, or follows in a way of its own.
    Address,
    /// The address of a string with a zero at its end, which is read.
    Path,
    /// The address of memory that is read.
    In(Size),
    /// The address of memory that is written to.
    Out(Size),
    /// Both.
    InOut(Size),
}

/// How long what an argument points to is. Arguments are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes.
    Bytes(u16),
    /// As many bytes as this argument says.
    Argument(u8),
    /// As many items as this argument says, of so many bytes each.
    Items(u8, u16),
    /// As many bytes as the result says, but not more than this argument.
    Result(u8),
    /// As many items as the result says, but not more than this argument, of so many bytes each.
    ResultItems(u8, u16),
    /// As many bytes as the 32-bit number says that this argument points to, before and after the call.
    At(u8),
    /// As many bits as this argument says.
    Bits(u8),
    /// `struct iovec`, as many as this argument says, and what they point to: the result says how much.
    Vectors(u8),
    /// `struct msghdr`, and what it points to.
    Message,
    /// `struct mmsghdr`, as many as this argument says, and what they point to.
    Messages(u8),
    /// Addresses of strings, up to one that is 0.
    Strings,
    /// What the command says.
    Command,
    /// A structure that says its own length.
    Own,
}

/// An argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// As the manual calls it.
    pub name: &'static str,
    /// What it is.
    pub shape: Shape,
}

/// All there is to know of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What its class depends on.
    pub rule: Rule,
    /// Its arguments.
    pub arguments: &'static [Argument],
}

impl Entry {
    /// Whether the call does not exist under the runtime.
    pub const fn is_absent(&self) -> bool {
        matches!(self.rule, Rule::Always(Class::Refuse(Refusal::Absent)))
    }

    /// Whether the call is about memory of the program's, other than paths.
    pub const fn has_memory(&self) -> bool {
        let mut arguments = self.arguments;
        while let [first, rest @ ..] = arguments {
            if matches!(first.shape, Shape::In(_) | Shape::Out(_) | Shape::InOut(_)) {
                return true;
            }
            arguments = rest;
        }
        false
    }
}

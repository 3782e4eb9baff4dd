//! What memory a call is about, piece by piece: what the program gives to the kernel, and what it gets.
//!
//! The pieces follow from the arguments, the result, and what lies in the program's memory: so a replay,
//! which writes them one after the other, finds the same ones.

use linux_raw_sys::errno::EINTR;
use systable::{Entry, Shape, Size, Sysno};

use crate::calls::{Calls, calls};
use crate::memory;
use crate::sys::{Args, error};

/// `struct msghdr`.
const NAME: usize = 0;
const NAME_LEN: usize = 8;
const IOV: usize = 16;
const IOV_LEN: usize = 24;
const CONTROL: usize = 32;
const CONTROL_LEN: usize = 40;
const FLAGS: usize = 48;
/// Bytes of a `struct iovec`.
const VECTOR: usize = 16;

/// A piece of memory, and how long it is.
pub type Piece = (usize, usize);

/// Lengths that a call is given, and that the kernel overwrites.
#[derive(Clone, Copy, Default)]
pub struct Given {
    /// Of the arguments.
    lengths: [usize; 6],
    /// Of a message's name, and of what belongs to it.
    message: [usize; 2],
}

impl Given {
    /// Before the call is made.
    pub fn read(name: Sysno, args: &Args) -> Given {
        let mut given = Given::default();
        if !GIVEN.has(name) {
            return given;
        }
        for (i, argument) in systable::entry(name).arguments.iter().enumerate() {
            match argument.shape {
                Shape::Out(Size::At(at)) if args[usize::from(at)] != 0 => {
                    given.lengths[usize::from(at)] = word(args[usize::from(at)]);
                }
                Shape::Out(Size::Message) => {
                    given.message = [word(args[i] + NAME_LEN), word(args[i] + CONTROL_LEN)];
                }
                _ => {}
            }
        }
        given
    }
}

/// Whether such a call is given lengths.
const fn is_given(name: Sysno) -> bool {
    let mut arguments = systable::entry(name).arguments;
    while let [first, rest @ ..] = arguments {
        if matches!(first.shape, Shape::Out(Size::At(_) | Size::Message)) {
            return true;
        }
        arguments = rest;
    }
    false
}

static GIVEN: Calls = calls!(is_given);

/// A 32-bit number of the program's; what is not there is 0, and the call will say so.
fn word(at: usize) -> usize {
    if at == 0 { 0 } else { memory::glance_at::<u32>(at).unwrap_or(0) as usize }
}

fn long(at: usize) -> usize {
    memory::glance_at::<usize>(at).unwrap_or(0)
}

/// Calls `see` with each piece that the kernel has written.
///
/// # Errors
/// The first of `see`'s.
pub fn written(
    name: Sysno,
    entry: &Entry,
    args: &Args,
    result: isize,
    given: &Given,
    see: &mut impl FnMut(Piece) -> Result<(), isize>,
) -> Result<(), isize> {
    if result < 0 {
        // How long it has yet to sleep, and no other failure writes anything.
        return match name {
            Sysno::nanosleep if result == error(EINTR) => some((args[1], 16), see),
            Sysno::clock_nanosleep if result == error(EINTR) && args[1] == 0 => {
                some((args[3], 16), see)
            }
            _ => Ok(()),
        };
    }
    let sleeps = [Sysno::nanosleep, Sysno::clock_nanosleep].contains(&name);
    if sleeps {
        return Ok(());
    }
    let sizes =
        entry.arguments.iter().enumerate().filter_map(|(i, argument)| match argument.shape {
            Shape::Out(size) | Shape::InOut(size) => Some((args[i], size)),
            _ => None,
        });
    let is_late = |size: &Size| matches!(size, Size::At(_));
    for (at, size) in sizes.clone().filter(|(_, size)| !is_late(size)) {
        match size {
            Size::Vectors(count) => vectors(at, args[usize::from(count)], result as usize, see)?,
            Size::Message => message(at, result as usize, given.message, see)?,
            size => some((at, len(size, args, result as usize)), see)?,
        }
    }
    // Behind the pieces that say how long these are.
    for (at, size) in sizes {
        if let Size::At(of) = size {
            let of = usize::from(of);
            some((at, given.lengths[of].min(word(args[of]))), see)?;
        }
    }
    Ok(())
}

/// Calls `see` with each piece that the kernel was given, as far as it took it.
pub fn given(
    entry: &Entry,
    args: &Args,
    result: usize,
    see: &mut impl FnMut(Piece) -> Result<(), isize>,
) -> Result<(), isize> {
    for (i, argument) in entry.arguments.iter().enumerate() {
        let Shape::In(size) = argument.shape else { continue };
        match size {
            Size::Vectors(count) => vectors(args[i], args[usize::from(count)], result, see)?,
            Size::Message => {
                vectors(long(args[i] + IOV), long(args[i] + IOV_LEN), result, see)?;
            }
            // The data is the first of them.
            size => some((args[i], len(size, args, result).min(result)), see)?,
        }
    }
    Ok(())
}

/// Whether a message has more with it than bytes and an address: descriptors, for example.
pub fn has_control(message: usize) -> bool {
    long(message + CONTROL) != 0 && long(message + CONTROL_LEN) != 0
}

/// Calls `see` with each descriptor that has come with a message.
pub fn descriptors(message: usize, mut see: impl FnMut(i32)) {
    const HEAD: usize = 16;
    const SOL_SOCKET: u32 = 1;
    const SCM_RIGHTS: u32 = 1;
    let (mut at, len) = (long(message + CONTROL), long(message + CONTROL_LEN));
    let end = at + if at == 0 { 0 } else { len };
    while at + HEAD <= end {
        let [len, level, kind] = [long(at), word(at + 8), word(at + 12)];
        if len < HEAD || at + len > end {
            break;
        }
        if [level, kind] == [SOL_SOCKET, SCM_RIGHTS].map(|word| word as usize) {
            (at + HEAD..at + len).step_by(4).for_each(|at| see(word(at) as i32));
        }
        at += len.next_multiple_of(8);
    }
}

/// Bytes of these pieces.
pub fn vectors_len(at: usize, count: usize) -> usize {
    let mut len = 0;
    let _counted = vectors(at, count, usize::MAX, &mut |(_, piece)| {
        len += piece;
        Ok(())
    });
    len
}

/// Bytes of a message.
pub fn message_len(at: usize) -> usize {
    vectors_len(long(at + IOV), long(at + IOV_LEN))
}

fn some((at, len): Piece, see: &mut impl FnMut(Piece) -> Result<(), isize>) -> Result<(), isize> {
    if at == 0 || len == 0 { Ok(()) } else { see((at, len)) }
}

fn len(size: Size, args: &Args, result: usize) -> usize {
    let argument = |at: u8| args[usize::from(at)];
    match size {
        Size::Bytes(len) => usize::from(len),
        Size::Argument(at) => argument(at),
        Size::Items(at, len) => argument(at).saturating_mul(usize::from(len)),
        Size::Result(most) => result.min(argument(most)),
        Size::ResultItems(most, len) => result.min(argument(most)) * usize::from(len),
        // As the kernel has them: in words.
        Size::Bits(at) => argument(at).div_ceil(64) * 8,
        // Elsewhere, or nothing that a call that is recorded has.
        Size::At(_)
        | Size::Vectors(_)
        | Size::Message
        | Size::Messages(_)
        | Size::Strings
        | Size::Command
        | Size::Own => 0,
    }
}

fn vectors(
    at: usize,
    count: usize,
    mut left: usize,
    see: &mut impl FnMut(Piece) -> Result<(), isize>,
) -> Result<(), isize> {
    for number in 0..count {
        if left == 0 {
            break;
        }
        let [base, len]: [usize; 2] = memory::glance_at(at + number * VECTOR)?;
        let len = len.min(left);
        some((base, len), see)?;
        left -= len;
    }
    Ok(())
}

fn message(
    at: usize,
    result: usize,
    [name, control]: [usize; 2],
    see: &mut impl FnMut(Piece) -> Result<(), isize>,
) -> Result<(), isize> {
    for piece in [(at + NAME_LEN, 4), (at + CONTROL_LEN, 8), (at + FLAGS, 4)] {
        see(piece)?;
    }
    some((long(at + NAME), name.min(word(at + NAME_LEN))), see)?;
    some((long(at + CONTROL), control.min(word(at + CONTROL_LEN))), see)?;
    vectors(long(at + IOV), long(at + IOV_LEN), result, see)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(name: Sysno, args: Args, result: isize) -> std::vec::Vec<Piece> {
        let entry = systable::entry(name);
        let given = Given::read(name, &args);
        let mut found = std::vec![];
        written(name, entry, &args, result, &given, &mut |piece| {
            found.push(piece);
            Ok(())
        })
        .unwrap();
        found
    }

    #[test]
    fn no_more_than_there_was_room_for() {
        assert_eq!(pieces(Sysno::read, [3, 4096, 100, 0, 0, 0], 40), [(4096, 40)]);
        assert_eq!(pieces(Sysno::read, [3, 4096, 100, 0, 0, 0], -9), []);
        // A datagram was longer (`MSG_TRUNC`), and a list was only asked for its length.
        assert_eq!(pieces(Sysno::recvfrom, [3, 4096, 100, 0x20, 0, 0], 900), [(4096, 100)]);
        assert_eq!(pieces(Sysno::getgroups, [0, 0, 0, 0, 0, 0], 7), []);
        assert_eq!(pieces(Sysno::epoll_wait, [3, 4096, 8, 0, 0, 0], 2), [(4096, 24)]);
        assert_eq!(pieces(Sysno::select, [65, 4096, 0, 8192, 0, 0], 1), [(4096, 16), (8192, 16)]);
    }

    #[test]
    fn lengths_that_the_kernel_overwrites() {
        let (mut len, address) = (16u32, [0u8; 110]);
        let (at, to) = (&raw mut len as usize, address.as_ptr() as usize);
        let args = [3, to, at, 0, 0, 0];
        let given = Given::read(Sysno::accept, &args);
        // It would have needed more.
        len = 110;
        let mut found = std::vec![];
        let entry = systable::entry(Sysno::accept);
        written(Sysno::accept, entry, &args, 4, &given, &mut |piece| {
            found.push(piece);
            Ok(())
        })
        .unwrap();
        assert_eq!((found, len), (std::vec![(at, 4), (to, 16)], 110));
    }

    #[test]
    fn vectors_as_far_as_the_result_goes() {
        let list: [[usize; 2]; 3] = [[4096, 10], [8192, 0], [12288, 10]];
        let args = [3, list.as_ptr() as usize, 3, 0, 0, 0];
        assert_eq!(pieces(Sysno::readv, args, 14), [(4096, 10), (12288, 4)]);
        let mut found = std::vec![];
        given(systable::entry(Sysno::writev), &args, 12, &mut |piece| {
            found.push(piece);
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [(4096, 10), (12288, 2)]);
    }

    #[test]
    fn who_sleeps_is_told_the_rest_only_if_something_came() {
        assert_eq!(pieces(Sysno::nanosleep, [4096, 8192, 0, 0, 0, 0], 0), []);
        let interrupted = error(EINTR);
        assert_eq!(pieces(Sysno::nanosleep, [4096, 8192, 0, 0, 0, 0], interrupted), [(8192, 16)]);
        // Until a point in time: there is no rest.
        assert_eq!(pieces(Sysno::clock_nanosleep, [0, 1, 4096, 8192, 0, 0], interrupted), []);
    }
}

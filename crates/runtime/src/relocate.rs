//! Which instructions may be moved.
//!
//! A jump takes five bytes, a system call two: the instructions behind it have to make room, and run
//! somewhere else. Only a few kinds ever stand there, and only those are moved of which nothing depends
//! on where they are. What is not recognised stays.

/// Bytes of a jump to a 32-bit distance.
pub const JUMP: usize = 5;
/// Bytes of a system call.
pub const CALL: usize = 2;
/// No more than so many bytes are ever moved.
pub const MOST: usize = 11;

/// How many bytes of whole instructions at the beginning of `code` make room for the rest of a jump,
/// if they may be moved.
pub fn movable(code: &[u8]) -> Option<usize> {
    let mut len = 0;
    while len < JUMP - CALL {
        len += instruction(code.get(len..)?)?;
    }
    (len <= MOST).then_some(len)
}

/// The length of an instruction that may be moved.
fn instruction(code: &[u8]) -> Option<usize> {
    let rex = usize::from(*code.first()? & 0xf0 == 0x40);
    let (&opcode, rest) = code.get(rex..)?.split_first()?;
    let len = match opcode {
        // pop REGISTER
        0x58..=0x5f => 1,
        // cmp rax, 32 bits; test al, 8 bits; test rax, 32 bits
        0x3d | 0xa9 => 5,
        0xa8 => 2,
        // mov, test, xor, cmp, movsxd between registers; mov to and from what is near the stack pointer
        0x89 | 0x8b | 0x85 | 0x31 | 0x33 | 0x39 | 0x3b | 0x63 => 1 + operand(rest)?,
        // cmp REGISTER, 8 bits; and, add, or, sub alike
        0x83 if *rest.first()? >= 0xc0 => 3,
        // mov REGISTER, 32 bits
        0xb8..=0xbf if rex == 0 => 5,
        _ => return None,
    };
    (code.len() >= rex + len).then_some(rex + len)
}

/// The length of an operand's description: two registers, or one and a place relative to the stack
/// pointer.
fn operand(code: &[u8]) -> Option<usize> {
    let &first = code.first()?;
    let relative_to_rsp = first & 7 == 4 && code.get(1) == Some(&0x24);
    match first >> 6 {
        3 => Some(1),
        0 if relative_to_rsp => Some(2),
        1 if relative_to_rsp => Some(3),
        2 if relative_to_rsp => Some(6),
        _ => None,
    }
}

/// Whether what looks like a jump in `code`, which begins at the address `at`, leads to one of the
/// addresses behind `site` that would be overwritten. What is no instruction may look like a jump, too:
/// then a site stays as it is without need.
pub fn is_jumped_into(code: &[u8], at: usize, site: usize) -> bool {
    let overwritten = site + 1..site + JUMP;
    let leads =
        |from: usize, distance: isize| overwritten.contains(&from.wrapping_add_signed(distance));
    (0..code.len()).any(|i| {
        let byte = |n: usize| code.get(i + n).copied();
        let long = |n: usize| {
            let bytes = code.get(i + n..i + n + 4)?;
            Some(i32::from_le_bytes(bytes.try_into().ok()?) as isize)
        };
        let short = match code[i] {
            0x70..=0x7f | 0xeb | 0xe0..=0xe3 => {
                byte(1).is_some_and(|d| leads(at + i + 2, d.cast_signed() as isize))
            }
            _ => false,
        };
        let near = match (code[i], byte(1)) {
            (0xe8 | 0xe9, _) => long(1).is_some_and(|d| leads(at + i + 5, d)),
            (0x0f, Some(0x80..=0x8f)) => long(2).is_some_and(|d| leads(at + i + 6, d)),
            _ => false,
        };
        short || near
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_system_calls() {
        // cmp $-4096,%rax; ja
        assert_eq!(movable(&[0x48, 0x3d, 0, 0xf0, 0xff, 0xff, 0x77, 5]), Some(6));
        // cmp $-4095,%eax
        assert_eq!(movable(&[0x3d, 1, 0xf0, 0xff, 0xff, 0x73]), Some(5));
        // mov %eax,0xc(%rsp)
        assert_eq!(movable(&[0x89, 0x44, 0x24, 0xc, 0x90]), Some(4));
        // mov %rax,%rbx
        assert_eq!(movable(&[0x48, 0x89, 0xc3]), Some(3));
        // mov %eax,%r8d; test %eax,%eax: the second one because the first one is too short
        assert_eq!(movable(&[0x89, 0xc3, 0x85, 0xc0, 0x74]), Some(4));
        // cmp $0xf1,%rax
        assert_eq!(movable(&[0x48, 0x83, 0xf8, 0xf1]), Some(4));
    }

    #[test]
    fn what_must_stay() {
        let jump = [0x74, 5, 0x90, 0x90];
        let call = [0xe8, 1, 2, 3, 4];
        // mov 0x1234(%rip),%rax
        let relative_to_itself = [0x48, 0x8b, 5, 0x34, 0x12, 0, 0];
        let back = [0xc3, 0x90, 0x90];
        let cut = [0x48, 0x3d, 0, 0xf0];
        let store = [0x89, 7, 0x90]; // mov %eax,(%rdi): it may fault, where it is not expected
        for code in [&jump[..], &call, &relative_to_itself, &back, &cut, &store, &[]] {
            assert_eq!(movable(code), None, "{code:x?}");
        }
    }

    #[test]
    fn jumps_into_what_would_be_overwritten() {
        let site = 0x1000;
        let short = |from: usize, to: usize| {
            let mut code = [0x90; 64];
            code[from] = 0x74;
            code[from + 1] = (to as isize - (site - 32 + from + 2) as isize) as u8;
            is_jumped_into(&code, site - 32, site)
        };
        assert!(short(0, site + 2), "from in front");
        assert!(short(50, site + 4), "from behind");
        assert!(!short(0, site), "to the call itself");
        assert!(!short(0, site + 5), "to what follows");
        let mut near = [0x90; 64];
        near[0..2].copy_from_slice(&[0x0f, 0x85]);
        near[2..6].copy_from_slice(&(32 - 6 + 2i32).to_le_bytes());
        assert!(is_jumped_into(&near, site - 32, site));
        near[0] = 0x90;
        assert!(!is_jumped_into(&near, site - 32, site));
    }
}

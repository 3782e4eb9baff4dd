//! Which instructions may be moved.
//!
//! A jump takes five bytes, a system call two: the instructions behind it have to make room, and run
//! somewhere else. Only a few kinds ever stand there, and only those are moved of which nothing depends
//! on where they are. What is not recognised stays.

use yaxpeax_arch::LengthedInstruction as _;
use yaxpeax_x86::amd64::{InstDecoder, Instruction, Opcode, Operand, RegSpec};

/// Bytes of a jump to a 32-bit distance.
pub const JUMP: usize = 5;
/// Bytes of a system call.
pub const CALL: usize = 2;
/// No more than so many bytes are ever moved.
pub const MOST: usize = 11;

/// Instructions have so many bytes at most.
const LONGEST: usize = 15;

/// How many bytes of whole instructions at the beginning of `code` make room for the rest of a jump,
/// if they may be moved.
pub fn movable(code: &[u8]) -> Option<usize> {
    let mut len = 0;
    while len < JUMP - CALL {
        let (instruction, next) = decode(code.get(len..)?)?;
        if !may_be_moved(&instruction) {
            return None;
        }
        len += next;
    }
    (len <= MOST).then_some(len)
}

fn may_be_moved(instruction: &Instruction) -> bool {
    let plain = matches!(
        instruction.opcode(),
        Opcode::MOV
            | Opcode::MOVSXD
            | Opcode::CMP
            | Opcode::TEST
            | Opcode::XOR
            | Opcode::AND
            | Opcode::OR
            | Opcode::ADD
            | Opcode::SUB
            | Opcode::NEG
            | Opcode::POP
            | Opcode::NOP
    );
    // Other memory than the stack might not be there, and the fault would be seen in the stub.
    let operands = (0..instruction.operand_count()).map(|i| instruction.operand(i));
    plain
        && operands.into_iter().all(|operand| match operand {
            Operand::MemDeref { base } | Operand::Disp { base, .. } => base == RegSpec::rsp(),
            Operand::Register { reg } => reg != RegSpec::rsp(),
            other => !other.is_memory(),
        })
}

/// Whether an instruction in `code`, which begins at the address `at` and contains `site`, jumps to one
/// of the addresses behind `site` that would be overwritten.
pub fn is_jumped_into(code: &[u8], at: usize, site: usize) -> bool {
    let in_front = site - at;
    let behind = jumps_into(&code[in_front..], site, site);
    // Nobody knows where instructions begin in front of the site. Whoever begins at a wrong place
    // is right after a few of them, and then meets the site.
    let meets = |&begin: &usize| walk(&code[begin..], |_, at| begin + at == in_front);
    let begin = (0..in_front).find(meets);
    behind || begin.is_none_or(|begin| jumps_into(&code[begin..in_front], at + begin, site))
}

fn jumps_into(code: &[u8], at: usize, site: usize) -> bool {
    let overwritten = site + 1..site + JUMP;
    walk(code, |instruction, from| {
        let distance = match instruction.operand(0) {
            Operand::ImmediateI8 { imm } => imm as isize,
            Operand::ImmediateI32 { imm } => imm as isize,
            _ => return false,
        };
        let next = at + from + length(instruction);
        is_jump(instruction) && overwritten.contains(&next.wrapping_add_signed(distance))
    })
}

fn is_jump(instruction: &Instruction) -> bool {
    let others = [
        Opcode::JMP,
        Opcode::CALL,
        Opcode::JRCXZ,
        Opcode::LOOP,
        Opcode::LOOPZ,
        Opcode::LOOPNZ,
        Opcode::XBEGIN,
    ];
    instruction.opcode().is_jcc() || others.contains(&instruction.opcode())
}

/// Shows each instruction of `code`, and where it begins, until one is found. What is none is a byte
/// long.
fn walk(code: &[u8], mut found: impl FnMut(&Instruction, usize) -> bool) -> bool {
    let mut at = 0;
    while at < code.len() {
        let decoded = decode(&code[at..]);
        match &decoded {
            Some((instruction, _)) if found(instruction, at) => return true,
            _ => at += decoded.map_or(1, |(_, len)| len),
        }
    }
    false
}

fn decode(code: &[u8]) -> Option<(Instruction, usize)> {
    let code = &code[..code.len().min(LONGEST)];
    let instruction = InstDecoder::default().decode_slice(code).ok()?;
    let len = length(&instruction);
    Some((instruction, len))
}

fn length(instruction: &Instruction) -> usize {
    usize::try_from(instruction.len().to_const()).unwrap_or(LONGEST)
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
        // mov %eax,%ebx; test %eax,%eax: the second one because the first one is too short
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
        let store = [0x48, 0x89, 7]; // mov %rax,(%rdi): it may fault, where it is not expected
        let stack = [0x48, 0x83, 0xc4, 0x28]; // add $0x28,%rsp
        for code in [&jump[..], &call, &relative_to_itself, &back, &cut, &store, &stack, &[]] {
            assert_eq!(movable(code), None, "{code:x?}");
        }
    }

    /// 32 bytes in front of a site, the site, and what follows, as nops but for one jump.
    fn with_jump(from: usize, jump: &[u8]) -> bool {
        let mut code = [0x90; 64];
        code[32..34].copy_from_slice(&[0x0f, 0x05]);
        code[from..from + jump.len()].copy_from_slice(jump);
        is_jumped_into(&code, 0x1000 - 32, 0x1000)
    }

    #[test]
    fn jumps_into_what_would_be_overwritten() {
        let short = |from: usize, to: usize| {
            with_jump(from, &[0x74, (to as isize - from as isize - 2) as u8])
        };
        assert!(short(0, 32 + 2), "from in front");
        assert!(short(50, 32 + 4), "from behind");
        assert!(!short(0, 32), "to the call itself");
        assert!(!short(0, 32 + 5), "to what follows");
        let [a, b, c, d] = (32 + 2 - 6i32).to_le_bytes();
        assert!(with_jump(0, &[0x0f, 0x85, a, b, c, d]));
        assert!(!with_jump(0, &[0x0f, 0x1f, a, b, c, d]), "no jump");
    }

    #[test]
    fn what_only_looks_like_a_jump_is_none() {
        // mov 0x74(%rsp),%ebx, in which 74 30 would be a jump to the site's second half.
        assert!(!with_jump(0, &[0x8b, 0x5c, 0x24, 0x74, 30, 0x90]));
    }

    #[test]
    fn most_sites_of_a_library_can_be_patched() {
        let path = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"];
        let Some(library) = path.iter().find_map(|path| std::fs::read(path).ok()) else { return };
        let calls = library.windows(CALL).enumerate().filter(|(_, bytes)| *bytes == [0x0f, 0x05]);
        // What is behind nearly all of them tells real ones from others: cmp $-4096 or $-4095,%rax.
        let real = |at: &usize| library[at + CALL..].starts_with(&[0x48, 0x3d]);
        let sites: Vec<usize> = calls.map(|(at, _)| at).filter(real).collect();
        let good = sites.iter().filter(|&&site| {
            let from = site.saturating_sub(512);
            let around = &library[from..(site + 512).min(library.len())];
            movable(&library[site + CALL..]).is_some() && !is_jumped_into(around, from, site)
        });
        let good = good.count();
        assert!(sites.len() > 100 && good * 100 >= sites.len() * 98, "{good} of {}", sites.len());
    }
}

//! From the kernel's `execve` to the first instruction of the program.

use core::arch::naked_asm;
use core::ffi::CStr;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::auxvec::{
    AT_BASE, AT_ENTRY, AT_EXECFN, AT_HWCAP2, AT_NULL, AT_PHDR, AT_PHENT, AT_PHNUM, AT_RANDOM,
    AT_SYSINFO_EHDR,
};
use linux_raw_sys::elf::Elf_Phdr;
use linux_raw_sys::general::{AT_FDCWD, O_CLOEXEC, O_RDONLY, SIG_SETMASK};
use linux_raw_sys::prctl::{PR_SET_MM, PR_SET_MM_MAP, PR_SET_NAME, prctl_mm_map};

use crate::config::{Config, OWN_WORDS};
use crate::elf::{File, Loaded};
use crate::errno::Errno;
use crate::process::{Action, FIRST};
use crate::record::{self, Beginning};
use crate::sigset::{SIGNALS, SigSet};
use crate::sys::error;
use crate::thread::{Slot, Thread};
use crate::{die, exe, exec, image, own, say, signal, vdso};

/// In `AT_HWCAP2`: programs may set `gs`.
const HWCAP2_FSGSBASE: usize = 2;

/// The first instruction of the runtime.
///
/// # Safety
/// The stack is as the kernel has laid it out, and nothing has happened yet.
#[unsafe(naked)]
pub unsafe extern "C" fn entry() -> ! {
    naked_asm!("mov rdi, rsp", "and rsp, -16", "call {start}", "ud2", start = sym start)
}

/// What the kernel has put on the stack: the command line, the environment, the auxiliary vector.
struct Stack {
    /// The number of words; the words; 0; the environment; 0; the vector.
    at: *mut usize,
    envp: *mut usize,
    auxv: *mut [usize; 2],
    auxv_len: usize,
}

impl Stack {
    /// # Safety
    /// `at` is what the stack pointer was at the program's start.
    unsafe fn read(at: *mut usize) -> Stack {
        // SAFETY: as the kernel lays it out.
        unsafe {
            let envp = at.add(1 + *at + 1);
            let mut end = envp;
            while *end != 0 {
                end = end.add(1);
            }
            let auxv = end.add(1).cast::<[usize; 2]>();
            let mut auxv_len = 0;
            while (*auxv.add(auxv_len))[0] != AT_NULL as usize {
                auxv_len += 1;
            }
            Stack { at, envp, auxv, auxv_len: auxv_len + 1 }
        }
    }

    fn words(&self) -> usize {
        // SAFETY: as the kernel lays it out.
        unsafe { *self.at }
    }

    /// Where a word of the command line is.
    fn word(&self, number: usize) -> usize {
        assert!(number < self.words(), "there are as many words");
        // SAFETY: as the kernel lays it out.
        unsafe { *self.at.add(1 + number) }
    }

    fn argv(&self, from: usize) -> *mut usize {
        // SAFETY: as the kernel lays it out; there are more words than the runtime's.
        unsafe { self.at.add(1 + from) }
    }

    fn text(&self, number: usize) -> &CStr {
        // SAFETY: the kernel has put a string there.
        unsafe { CStr::from_ptr(self.word(number) as *const _) }
    }

    /// An entry of the auxiliary vector.
    fn entry(&mut self, kind: u32) -> Option<&mut usize> {
        // SAFETY: as the kernel lays it out; nobody else holds a reference to it.
        let entries = unsafe { core::slice::from_raw_parts_mut(self.auxv, self.auxv_len) };
        let mut found = entries.iter_mut().filter(|entry| entry[0] == kind as usize);
        found.next().map(|entry| &mut entry[1])
    }
}

unsafe extern "C" fn start(at: *mut usize) -> ! {
    // SAFETY: what `entry` was entered with.
    let mut stack = unsafe { Stack::read(at) };
    if stack.words() <= OWN_WORDS {
        die!("this is the runtime of Steadfast, which `steadfast passthrough` starts");
    }
    let Some(config) = Config::parse(stack.text(1)) else {
        die!("the runtime does not understand {:?}: it is of another version", stack.text(1));
    };
    if stack.entry(AT_HWCAP2).is_none_or(|features| *features & HWCAP2_FSGSBASE == 0) {
        die!(
            "programs may not set the gs register here: the processor has no FSGSBASE, or Linux is \
            older than 5.9"
        );
    }
    let thread = first_thread(config.image);
    let Some(program) = config.program else {
        let argv = stack.argv(OWN_WORDS);
        let (path, envp) = (stack.word(2), stack.envp as usize);
        let why = exec::first(thread, path, argv as usize, envp, config.recorder);
        let found = why != error(linux_raw_sys::errno::ENOENT);
        let status = if found { say::NOT_EXECUTED } else { say::NOT_FOUND };
        say::die(status, format_args!("cannot execute {:?}: {}", stack.text(2), Errno(why)));
    };
    let (entry, code) = load(&mut stack, program as usize);
    if let Some(recorder) = config.recorder {
        record::begin(thread, recorder, &beginning(&mut stack, code));
    }
    // Descriptors, handlers, and the mask are in order: from here on nothing is made but what the
    // program asks for.
    signal::handle_calls();
    signal::own_calls();
    // SAFETY: the program's beginning, with its part of the stack.
    unsafe { enter(entry, stack.argv(OWN_WORDS).sub(1)) }
}

/// The thread that this is; what the program before this one has left behind is as it was.
fn first_thread(image: i32) -> &'static Thread {
    let Ok(slot) = Slot::take() else { die!("there is no memory for a stack") };
    let mut mask = SigSet::default();
    // SAFETY: asks, and changes nothing; then the thread enters its own slot, which nobody shares.
    let thread = unsafe {
        let _same = own!(rt_sigprocmask, SIG_SETMASK, 0, &raw mut mask, size_of::<SigSet>());
        FIRST.image_fd.store(image, Relaxed);
        let thread = slot.fill(mask, &FIRST);
        thread.enter();
        slot.belongs_to(own!(gettid).unwrap_or(0) as i32);
        thread
    };
    signal::block(mask.real());
    signal::use_stack(&slot.stack());
    for number in 1..=SIGNALS {
        // What was ignored stays ignored, and programs ask.
        let mut action = Action::DEFAULT;
        // SAFETY: asks, and changes nothing.
        let _same = unsafe { own!(rt_sigaction, number, 0, &raw mut action, size_of::<SigSet>()) };
        FIRST.with(number, |known| *known = action);
    }
    thread
}

/// How a program that is recorded begins: it has to ask for the time where that can be recorded.
fn beginning(stack: &mut Stack, code: [(usize, usize); 2]) -> Beginning {
    if let Some(kernels) = stack.entry(AT_SYSINFO_EHDR) {
        *kernels = match vdso::map() {
            Ok(own) => own,
            Err(why) => die!("there is no memory for a vDSO: {}", Errno(why)),
        };
    }
    let Some(&mut random) = stack.entry(AT_RANDOM) else { die!("this kernel gives no AT_RANDOM") };
    Beginning { random: random as *mut _, stack: stack.argv(OWN_WORDS) as usize, code }
}

/// Loads the program and its interpreter, and tells kernel and program where they are. Where to begin, and
/// where their instructions are.
fn load(stack: &mut Stack, fd: usize) -> (usize, [(usize, usize); 2]) {
    // SAFETY: the kernel has put a string there.
    let name = unsafe { CStr::from_ptr(stack.word(2) as *const _) };
    let load = |fd, is_interpreter| {
        let file = File::read(fd)?;
        let loaded = file.load(is_interpreter)?;
        Ok((file, loaded))
    };
    let (file, program): (File, Loaded) = match load(fd, false) {
        Ok(both) => both,
        Err(why) => die!("cannot load {name:?}: {}", Errno(why)),
    };
    let mut buffer = [0; 4096];
    let interpreter = match file.interpreter(&mut buffer) {
        Ok(None) => None,
        Ok(Some(path)) => {
            let flags = O_RDONLY | O_CLOEXEC;
            // SAFETY: opens a file.
            let opened = unsafe { own!(openat, AT_FDCWD, path.as_ptr(), flags) };
            match opened.and_then(|fd| load(fd, true).map(|(_, loaded)| (fd, loaded))) {
                Ok((fd, loaded)) => {
                    close(fd);
                    Some(loaded)
                }
                Err(why) => die!("cannot load {path:?}, which {name:?} needs: {}", Errno(why)),
            }
        }
        Err(why) => die!("cannot load {name:?}: {}", Errno(why)),
    };
    let entries = [
        (AT_PHDR, program.headers.0),
        (AT_PHENT, size_of::<Elf_Phdr>()),
        (AT_PHNUM, program.headers.1),
        (AT_BASE, interpreter.map_or(0, |loaded| loaded.bias)),
        (AT_ENTRY, program.entry),
    ];
    let strings_end = stack.entry(AT_EXECFN).map_or(0, |at| *at);
    let execfn = stack.word(2);
    for (kind, value) in entries.into_iter().chain([(AT_EXECFN, execfn)]) {
        if let Some(at) = stack.entry(kind) {
            *at = value;
        }
    }
    // Without the right to say which file is executed, the runtime has to say it itself.
    let left = image::leave_file();
    if left.is_err() || describe(stack, &program, strings_end, fd as u32).is_err() {
        let _undescribed = describe(stack, &program, strings_end, u32::MAX);
        exe::remember(fd);
    }
    let path = name.to_bytes_with_nul();
    let base = path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    // SAFETY: a name that ends with a zero.
    let _named = unsafe { own!(prctl, PR_SET_NAME, path[base..].as_ptr(), 0, 0, 0) };
    close(fd);
    let code = [program.code, interpreter.map_or((0, 0), |loaded| loaded.code)];
    (interpreter.map_or(program.entry, |loaded| loaded.entry), code)
}

/// Tells the kernel what of the memory is what, for those who look at the process from outside.
fn describe(stack: &Stack, program: &Loaded, strings_end: usize, exe: u32) -> Result<(), isize> {
    // SAFETY: as the kernel lays it out.
    let first = unsafe { *stack.envp };
    let args_end = if first == 0 { strings_end } else { first };
    let map = prctl_mm_map {
        start_code: program.code.0 as u64,
        end_code: program.code.1 as u64,
        start_data: program.data.0 as u64,
        end_data: program.data.1 as u64,
        start_brk: program.end as u64,
        brk: program.end as u64,
        start_stack: stack.argv(OWN_WORDS) as u64 - 8,
        arg_start: stack.word(OWN_WORDS) as u64,
        arg_end: args_end as u64,
        env_start: args_end as u64,
        env_end: strings_end as u64,
        auxv: stack.auxv.cast(),
        auxv_size: (stack.auxv_len * size_of::<[usize; 2]>()) as u32,
        exe_fd: exe,
    };
    // SAFETY: these are descriptions alone, but for the break, below which there is nothing yet.
    unsafe { own!(prctl, PR_SET_MM, PR_SET_MM_MAP, &raw const map, size_of_val(&map), 0) }.map(drop)
}

fn close(fd: usize) {
    // SAFETY: it is the runtime's, and not used any more.
    let _closed = unsafe { own!(close, fd) };
}

/// Becomes the program.
unsafe fn enter(entry: usize, stack: *mut usize) -> ! {
    // SAFETY: by the caller's word.
    unsafe {
        // The words in front of it were the runtime's.
        let words = *stack.sub(OWN_WORDS) - OWN_WORDS;
        *stack = words;
        core::arch::asm!(
            "mov rsp, rdi",
            "xor edi, edi",
            "xor edx, edx",
            "xor ebp, ebp",
            "xor ebx, ebx",
            "xor ecx, ecx",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "xor r10d, r10d",
            "xor r11d, r11d",
            "xor r12d, r12d",
            "xor r13d, r13d",
            "xor r14d, r14d",
            "xor r15d, r15d",
            "push rsi",
            "xor esi, esi",
            "ret",
            in("rdi") stack,
            in("rsi") entry,
            options(noreturn),
        );
    }
}

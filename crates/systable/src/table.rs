//! The table. A line a call: its arguments, and its class.
//!
//! In it: `N` a number, `FD` a descriptor, `A` an address, `P` a path; `In`, `Out`, `InOut` memory.
//! Structures are given by their lengths in bytes, as the kernel has them on x86-64.

use syscalls::Sysno;

use crate::Shape::{In, InOut, Out};
use crate::Size::*;
use crate::{Argument, Class, Entry, Refusal, Rule, Shape};

const N: Shape = Shape::Number;
const FD: Shape = Shape::Descriptor;
const A: Shape = Shape::Address;
const P: Shape = Shape::Path;

const EXECUTE: Rule = Rule::Always(Class::Execute);
const REPEAT: Rule = Rule::Always(Class::Repeat);
const EMULATE: Rule = Rule::Always(Class::Emulate);
const LOCAL: Rule = Rule::Always(Class::Local);
const ABSENT: Rule = Rule::Always(Class::Refuse(Refusal::Absent));
const ENDS: Rule = Rule::Always(Class::Refuse(Refusal::Ends));
/// Something comes in through a descriptor, or is asked about what it leads to.
const INPUT: Rule = Rule::Descriptor { inside: Class::Execute, outside: Class::Emulate };
/// Something goes out through a descriptor.
const OUTPUT: Rule = Rule::Descriptor { inside: Class::Execute, outside: Class::Output };
/// The kernel has it no more, or never had it: it says so on each replica.
const GONE: Rule = EXECUTE;

const fn command(argument: u8) -> Rule {
    Rule::Command(argument)
}

macro_rules! table {
    ($($name:ident ($($argument:ident $shape:expr),*) $rule:expr;)*) => {
        const ENTRIES: [Option<Entry>; NUMBERS] = {
            let mut entries = [None; NUMBERS];
            $(
                let arguments: &[Argument] =
                    &[$(Argument { name: stringify!($argument), shape: $shape }),*];
                assert!(entries[Sysno::$name as usize].is_none(), "a system call stands here twice");
                entries[Sysno::$name as usize] = Some(Entry { rule: $rule, arguments });
            )*
            entries
        };
    };
}

/// All numbers are below.
const NUMBERS: usize = 512;

/// Every number is classified.
const _: () = {
    let mut number = 0;
    while number < 2 * NUMBERS {
        let is_there = number < NUMBERS && ENTRIES[number].is_some();
        assert!(Sysno::new(number).is_some() == is_there, "a system call is not in the table");
        number += 1;
    }
};

static TABLE: [Option<Entry>; NUMBERS] = ENTRIES;

/// What there is to know of a call.
pub const fn entry(name: Sysno) -> &'static Entry {
    TABLE[name as usize].as_ref().expect("every number is classified")
}

table! {
    // Files, pipes, connections.
    read (fd FD, buf Out(Result(2)), count N) INPUT;
    write (fd FD, buf In(Argument(2)), count N) OUTPUT;
    open (path P, flags N, mode N) EXECUTE;
    openat (dirfd FD, path P, flags N, mode N) EXECUTE;
    openat2 (dirfd FD, path P, how In(Argument(3)), size N) EXECUTE;
    creat (path P, mode N) EXECUTE;
    close (fd FD) EXECUTE;
    close_range (first FD, last FD, flags N) EXECUTE;
    stat (path P, statbuf Out(Bytes(144))) EMULATE;
    fstat (fd FD, statbuf Out(Bytes(144))) EMULATE;
    lstat (path P, statbuf Out(Bytes(144))) EMULATE;
    newfstatat (dirfd FD, path P, statbuf Out(Bytes(144)), flags N) EMULATE;
    statx (dirfd FD, path P, flags N, mask N, statxbuf Out(Bytes(256))) EMULATE;
    statfs (path P, buf Out(Bytes(120))) EMULATE;
    fstatfs (fd FD, buf Out(Bytes(120))) EMULATE;
    ustat (dev N, ubuf Out(Bytes(32))) EMULATE;
    lseek (fd FD, offset N, whence N) INPUT;
    pread64 (fd FD, buf Out(Result(2)), count N, offset N) INPUT;
    pwrite64 (fd FD, buf In(Argument(2)), count N, offset N) OUTPUT;
    readv (fd FD, iov Out(Vectors(2)), iovcnt N) INPUT;
    writev (fd FD, iov In(Vectors(2)), iovcnt N) OUTPUT;
    preadv (fd FD, iov Out(Vectors(2)), iovcnt N, offset N, high N) INPUT;
    pwritev (fd FD, iov In(Vectors(2)), iovcnt N, offset N, high N) OUTPUT;
    preadv2 (fd FD, iov Out(Vectors(2)), iovcnt N, offset N, high N, flags N) INPUT;
    pwritev2 (fd FD, iov In(Vectors(2)), iovcnt N, offset N, high N, flags N) OUTPUT;
    sendfile (out_fd FD, in_fd FD, offset InOut(Bytes(8)), count N) OUTPUT;
    copy_file_range (fd_in FD, off_in InOut(Bytes(8)), fd_out FD, off_out InOut(Bytes(8)), len N, flags N) EXECUTE;
    splice (fd_in FD, off_in InOut(Bytes(8)), fd_out FD, off_out InOut(Bytes(8)), len N, flags N) ENDS;
    tee (fd_in FD, fd_out FD, len N, flags N) ENDS;
    vmsplice (fd FD, iov In(Vectors(2)), nr_segs N, flags N) ENDS;
    ioctl (fd FD, op N, argp InOut(Command)) command(1);
    fcntl (fd FD, op N, arg InOut(Command)) command(1);
    flock (fd FD, op N) REPEAT;
    access (path P, mode N) EMULATE;
    faccessat (dirfd FD, path P, mode N) EMULATE;
    faccessat2 (dirfd FD, path P, mode N, flags N) EMULATE;
    pipe (pipefd Out(Bytes(8))) EXECUTE;
    pipe2 (pipefd Out(Bytes(8)), flags N) EXECUTE;
    dup (oldfd FD) EXECUTE;
    dup2 (oldfd FD, newfd FD) EXECUTE;
    dup3 (oldfd FD, newfd FD, flags N) EXECUTE;
    fsync (fd FD) REPEAT;
    fdatasync (fd FD) REPEAT;
    sync () REPEAT;
    syncfs (fd FD) REPEAT;
    sync_file_range (fd FD, offset N, nbytes N, flags N) REPEAT;
    readahead (fd FD, offset N, count N) REPEAT;
    fadvise64 (fd FD, offset N, len N, advice N) REPEAT;
    fallocate (fd FD, mode N, offset N, len N) EXECUTE;
    truncate (path P, length N) EXECUTE;
    ftruncate (fd FD, length N) EXECUTE;
    getdents (fd FD, dirp Out(Result(2)), count N) EMULATE;
    getdents64 (fd FD, dirp Out(Result(2)), count N) EMULATE;
    getcwd (buf Out(Result(1)), size N) EXECUTE;
    chdir (path P) EXECUTE;
    fchdir (fd FD) EXECUTE;
    chroot (path P) EXECUTE;
    rename (oldpath P, newpath P) EXECUTE;
    renameat (olddirfd FD, oldpath P, newdirfd FD, newpath P) EXECUTE;
    renameat2 (olddirfd FD, oldpath P, newdirfd FD, newpath P, flags N) EXECUTE;
    mkdir (path P, mode N) EXECUTE;
    mkdirat (dirfd FD, path P, mode N) EXECUTE;
    rmdir (path P) EXECUTE;
    link (oldpath P, newpath P) EXECUTE;
    linkat (olddirfd FD, oldpath P, newdirfd FD, newpath P, flags N) EXECUTE;
    symlink (target P, linkpath P) EXECUTE;
    symlinkat (target P, newdirfd FD, linkpath P) EXECUTE;
    unlink (path P) EXECUTE;
    unlinkat (dirfd FD, path P, flags N) EXECUTE;
    readlink (path P, buf Out(Result(2)), bufsiz N) EMULATE;
    readlinkat (dirfd FD, path P, buf Out(Result(3)), bufsiz N) EMULATE;
    chmod (path P, mode N) EXECUTE;
    fchmod (fd FD, mode N) EXECUTE;
    fchmodat (dirfd FD, path P, mode N) EXECUTE;
    fchmodat2 (dirfd FD, path P, mode N, flags N) EXECUTE;
    chown (path P, owner N, group N) EXECUTE;
    fchown (fd FD, owner N, group N) EXECUTE;
    lchown (path P, owner N, group N) EXECUTE;
    fchownat (dirfd FD, path P, owner N, group N, flags N) EXECUTE;
    umask (mask N) EXECUTE;
    utime (path P, times In(Bytes(16))) EXECUTE;
    utimes (path P, times In(Bytes(32))) EXECUTE;
    futimesat (dirfd FD, path P, times In(Bytes(32))) EXECUTE;
    utimensat (dirfd FD, path P, times In(Bytes(32)), flags N) EXECUTE;
    mknod (path P, mode N, dev N) EXECUTE;
    mknodat (dirfd FD, path P, mode N, dev N) EXECUTE;
    setxattr (path P, name P, value In(Argument(3)), size N, flags N) EXECUTE;
    lsetxattr (path P, name P, value In(Argument(3)), size N, flags N) EXECUTE;
    fsetxattr (fd FD, name P, value In(Argument(3)), size N, flags N) EXECUTE;
    setxattrat (dirfd FD, path P, flags N, name P, args In(Argument(5)), size N) EXECUTE;
    getxattr (path P, name P, value Out(Result(3)), size N) EMULATE;
    lgetxattr (path P, name P, value Out(Result(3)), size N) EMULATE;
    fgetxattr (fd FD, name P, value Out(Result(3)), size N) EMULATE;
    getxattrat (dirfd FD, path P, flags N, name P, args InOut(Argument(5)), size N) ENDS;
    listxattr (path P, list Out(Result(2)), size N) EMULATE;
    llistxattr (path P, list Out(Result(2)), size N) EMULATE;
    flistxattr (fd FD, list Out(Result(2)), size N) EMULATE;
    listxattrat (dirfd FD, path P, flags N, list Out(Result(4)), size N) EMULATE;
    removexattr (path P, name P) EXECUTE;
    lremovexattr (path P, name P) EXECUTE;
    fremovexattr (fd FD, name P) EXECUTE;
    removexattrat (dirfd FD, path P, flags N, name P) EXECUTE;
    file_getattr (dirfd FD, path P, attr Out(Argument(3)), size N, flags N) EMULATE;
    file_setattr (dirfd FD, path P, attr In(Argument(3)), size N, flags N) EXECUTE;
    name_to_handle_at (dirfd FD, path P, handle InOut(Own), mount_id Out(Bytes(4)), flags N) ENDS;
    open_by_handle_at (mount_fd FD, handle In(Own), flags N) ENDS;
    memfd_create (name P, flags N) EXECUTE;
    memfd_secret (flags N) EXECUTE;
    cachestat (fd FD, range In(Bytes(16)), cstat Out(Bytes(40)), flags N) EMULATE;
    quotactl (op N, special P, id N, addr InOut(Command)) command(0);
    quotactl_fd (fd FD, op N, id N, addr InOut(Command)) ENDS;

    // Connections.
    socket (domain N, kind N, protocol N) EXECUTE;
    socketpair (domain N, kind N, protocol N, sv Out(Bytes(8))) EXECUTE;
    connect (sockfd FD, addr In(Argument(2)), addrlen N) INPUT;
    accept (sockfd FD, addr Out(At(2)), addrlen InOut(Bytes(4))) INPUT;
    accept4 (sockfd FD, addr Out(At(2)), addrlen InOut(Bytes(4)), flags N) INPUT;
    sendto (sockfd FD, buf In(Argument(2)), len N, flags N, dest_addr In(Argument(5)), addrlen N) OUTPUT;
    recvfrom (sockfd FD, buf Out(Result(2)), len N, flags N, src_addr Out(At(5)), addrlen InOut(Bytes(4))) INPUT;
    sendmsg (sockfd FD, msg In(Message), flags N) OUTPUT;
    recvmsg (sockfd FD, msg Out(Message), flags N) INPUT;
    sendmmsg (sockfd FD, msgvec InOut(Messages(2)), vlen N, flags N) OUTPUT;
    recvmmsg (sockfd FD, msgvec Out(Messages(2)), vlen N, flags N, timeout In(Bytes(16))) INPUT;
    shutdown (sockfd FD, how N) OUTPUT;
    bind (sockfd FD, addr In(Argument(2)), addrlen N) EXECUTE;
    listen (sockfd FD, backlog N) EXECUTE;
    getsockname (sockfd FD, addr Out(At(2)), addrlen InOut(Bytes(4))) EMULATE;
    getpeername (sockfd FD, addr Out(At(2)), addrlen InOut(Bytes(4))) EMULATE;
    setsockopt (sockfd FD, level N, optname N, optval In(Argument(4)), optlen N) command(2);
    getsockopt (sockfd FD, level N, optname N, optval Out(At(4)), optlen InOut(Bytes(4))) command(2);

    // What is ready.
    poll (fds InOut(Items(1, 8)), nfds N, timeout N) EMULATE;
    ppoll (fds InOut(Items(1, 8)), nfds N, tmo_p InOut(Bytes(16)), sigmask In(Argument(4)), sigsetsize N) EMULATE;
    select (nfds N, readfds InOut(Bits(0)), writefds InOut(Bits(0)), exceptfds InOut(Bits(0)), timeout InOut(Bytes(16))) EMULATE;
    pselect6 (nfds N, readfds InOut(Bits(0)), writefds InOut(Bits(0)), exceptfds InOut(Bits(0)), timeout InOut(Bytes(16)), sigmask In(Bytes(16))) EMULATE;
    epoll_create (size N) EXECUTE;
    epoll_create1 (flags N) EXECUTE;
    epoll_ctl (epfd FD, op N, fd FD, event In(Bytes(12))) REPEAT;
    epoll_wait (epfd FD, events Out(ResultItems(2, 12)), maxevents N, timeout N) EMULATE;
    epoll_pwait (epfd FD, events Out(ResultItems(2, 12)), maxevents N, timeout N, sigmask In(Argument(5)), sigsetsize N) EMULATE;
    epoll_pwait2 (epfd FD, events Out(ResultItems(2, 12)), maxevents N, timeout In(Bytes(16)), sigmask In(Argument(5)), sigsetsize N) EMULATE;
    eventfd (initval N) EXECUTE;
    eventfd2 (initval N, flags N) EXECUTE;
    signalfd (fd FD, mask In(Argument(2)), sizemask N) EXECUTE;
    signalfd4 (fd FD, mask In(Argument(2)), sizemask N, flags N) EXECUTE;
    timerfd_create (clockid N, flags N) EXECUTE;
    timerfd_settime (fd FD, flags N, new_value In(Bytes(32)), old_value Out(Bytes(32))) REPEAT;
    timerfd_gettime (fd FD, curr_value Out(Bytes(32))) EMULATE;
    inotify_init () EXECUTE;
    inotify_init1 (flags N) EXECUTE;
    inotify_add_watch (fd FD, path P, mask N) EXECUTE;
    inotify_rm_watch (fd FD, wd N) EXECUTE;
    fanotify_init (flags N, event_f_flags N) ENDS;
    fanotify_mark (fd FD, flags N, mask N, dirfd FD, path P) ENDS;
    io_setup (nr_events N, ctx_idp Out(Bytes(8))) ABSENT;
    io_destroy (ctx_id A) ABSENT;
    io_submit (ctx_id A, nr N, iocbpp A) ABSENT;
    io_cancel (ctx_id A, iocb A, result A) ABSENT;
    io_getevents (ctx_id A, min_nr N, nr N, events A, timeout In(Bytes(16))) ABSENT;
    io_pgetevents (ctx_id A, min_nr N, nr N, events A, timeout In(Bytes(16)), sig A) ABSENT;
    io_uring_setup (entries N, params A) ABSENT;
    io_uring_enter (fd FD, to_submit N, min_complete N, flags N, argp A, argsz N) ABSENT;
    io_uring_register (fd FD, opcode N, arg A, nr_args N) ABSENT;

    // Memory.
    mmap (addr A, length N, prot N, flags N, fd FD, offset N) EXECUTE;
    munmap (addr A, length N) EXECUTE;
    mprotect (addr A, size N, prot N) EXECUTE;
    pkey_mprotect (addr A, size N, prot N, pkey N) EXECUTE;
    pkey_alloc (flags N, access_rights N) EXECUTE;
    pkey_free (pkey N) EXECUTE;
    mremap (old_address A, old_size N, new_size N, flags N, new_address A) EXECUTE;
    brk (addr A) EXECUTE;
    madvise (addr A, size N, advice N) EXECUTE;
    process_madvise (pidfd FD, iovec In(Vectors(2)), n N, advice N, flags N) ENDS;
    msync (addr A, length N, flags N) REPEAT;
    mincore (addr A, length N, vec Out(Result(1))) ENDS;
    mlock (addr A, size N) REPEAT;
    mlock2 (addr A, size N, flags N) REPEAT;
    munlock (addr A, size N) EXECUTE;
    mlockall (flags N) REPEAT;
    munlockall () EXECUTE;
    mseal (addr A, size N, flags N) EXECUTE;
    remap_file_pages (addr A, size N, prot N, pgoff N, flags N) EXECUTE;
    mbind (addr A, len N, mode N, nodemask A, maxnode N, flags N) EXECUTE;
    set_mempolicy (mode N, nodemask A, maxnode N) EXECUTE;
    get_mempolicy (mode Out(Bytes(4)), nodemask A, maxnode N, addr A, flags N) ENDS;
    set_mempolicy_home_node (start A, len N, home_node N, flags N) EXECUTE;
    migrate_pages (pid N, maxnode N, old_nodes A, new_nodes A) ENDS;
    move_pages (pid N, count N, pages A, nodes A, status A, flags N) ENDS;
    membarrier (cmd N, flags N, cpu_id N) EXECUTE;
    map_shadow_stack (addr A, size N, flags N) ENDS;
    userfaultfd (flags N) ENDS;
    process_vm_readv (pid N, local_iov Out(Vectors(2)), liovcnt N, remote_iov A, riovcnt N, flags N) ENDS;
    process_vm_writev (pid N, local_iov In(Vectors(2)), liovcnt N, remote_iov A, riovcnt N, flags N) ENDS;
    process_mrelease (pidfd FD, flags N) ENDS;
    shmget (key N, size N, shmflg N) EXECUTE;
    shmat (shmid N, shmaddr A, shmflg N) EXECUTE;
    shmdt (shmaddr A) EXECUTE;
    shmctl (shmid N, op N, buf InOut(Command)) command(1);
    semget (key N, nsems N, semflg N) EXECUTE;
    semop (semid N, sops In(Items(2, 6)), nsops N) EMULATE;
    semtimedop (semid N, sops In(Items(2, 6)), nsops N, timeout In(Bytes(16))) EMULATE;
    semctl (semid N, semnum N, op N, arg InOut(Command)) command(2);
    msgget (key N, msgflg N) EXECUTE;
    msgsnd (msqid N, msgp In(Argument(2)), msgsz N, msgflg N) ENDS;
    msgrcv (msqid N, msgp Out(Result(2)), msgsz N, msgtyp N, msgflg N) ENDS;
    msgctl (msqid N, op N, buf InOut(Command)) command(1);
    mq_open (name P, oflag N, mode N, attr In(Bytes(64))) EXECUTE;
    mq_unlink (name P) EXECUTE;
    mq_timedsend (mqdes FD, msg_ptr In(Argument(2)), msg_len N, msg_prio N, abs_timeout In(Bytes(16))) OUTPUT;
    mq_timedreceive (mqdes FD, msg_ptr Out(Result(2)), msg_len N, msg_prio Out(Bytes(4)), abs_timeout In(Bytes(16))) INPUT;
    mq_notify (mqdes FD, sevp In(Bytes(64))) ENDS;
    mq_getsetattr (mqdes FD, newattr In(Bytes(64)), oldattr Out(Bytes(64))) EMULATE;

    // Signals.
    rt_sigaction (signum N, act In(Bytes(32)), oldact Out(Bytes(32)), sigsetsize N) LOCAL;
    rt_sigprocmask (how N, set In(Argument(3)), oldset Out(Argument(3)), sigsetsize N) LOCAL;
    rt_sigreturn () LOCAL;
    sigaltstack (ss In(Bytes(24)), old_ss Out(Bytes(24))) LOCAL;
    rt_sigpending (set Out(Argument(1)), sigsetsize N) EMULATE;
    rt_sigsuspend (mask In(Argument(1)), sigsetsize N) EMULATE;
    rt_sigtimedwait (set In(Argument(3)), info Out(Bytes(128)), timeout In(Bytes(16)), sigsetsize N) EMULATE;
    pause () EMULATE;
    kill (pid N, sig N) EMULATE;
    tkill (tid N, sig N) EMULATE;
    tgkill (tgid N, tid N, sig N) EMULATE;
    rt_sigqueueinfo (tgid N, sig N, info In(Bytes(128))) EMULATE;
    rt_tgsigqueueinfo (tgid N, tid N, sig N, info In(Bytes(128))) EMULATE;
    pidfd_send_signal (pidfd FD, sig N, info In(Bytes(128)), flags N) EMULATE;

    // Threads, processes, programs.
    clone (flags N, stack A, parent_tid Out(Bytes(4)), child_tid A, tls A) EXECUTE;
    clone3 (cl_args In(Argument(1)), size N) EXECUTE;
    fork () EXECUTE;
    vfork () EXECUTE;
    execve (path P, argv In(Strings), envp In(Strings)) EXECUTE;
    execveat (dirfd FD, path P, argv In(Strings), envp In(Strings), flags N) EXECUTE;
    exit (status N) EXECUTE;
    exit_group (status N) EXECUTE;
    wait4 (pid N, wstatus Out(Bytes(4)), options N, rusage Out(Bytes(144))) EMULATE;
    waitid (idtype N, id N, infop Out(Bytes(128)), options N, rusage Out(Bytes(144))) EMULATE;
    pidfd_open (pid N, flags N) EXECUTE;
    pidfd_getfd (pidfd FD, targetfd FD, flags N) ENDS;
    set_tid_address (tidptr A) REPEAT;
    set_robust_list (head A, len N) EXECUTE;
    get_robust_list (pid N, head_ptr Out(Bytes(8)), len_ptr Out(Bytes(8))) EXECUTE;
    rseq (rseq A, rseq_len N, flags N, sig N) ABSENT;
    futex (uaddr A, futex_op N, val N, timeout In(Command), uaddr2 A, val3 N) command(1);
    futex_waitv (waiters In(Items(1, 24)), nr_futexes N, flags N, timeout In(Bytes(16)), clockid N) EMULATE;
    futex_wait (uaddr A, val N, mask N, flags N, timeout In(Bytes(16)), clockid N) EMULATE;
    futex_wake (uaddr A, mask N, nr N, flags N) EMULATE;
    futex_requeue (waiters In(Bytes(48)), flags N, nr_wake N, nr_requeue N) EMULATE;
    sched_yield () EMULATE;
    sched_setparam (pid N, param In(Bytes(4))) REPEAT;
    sched_getparam (pid N, param Out(Bytes(4))) EXECUTE;
    sched_setscheduler (pid N, policy N, param In(Bytes(4))) REPEAT;
    sched_getscheduler (pid N) EXECUTE;
    sched_setattr (pid N, attr In(Own), flags N) REPEAT;
    sched_getattr (pid N, attr Out(Argument(2)), size N, flags N) EXECUTE;
    sched_get_priority_max (policy N) EXECUTE;
    sched_get_priority_min (policy N) EXECUTE;
    sched_rr_get_interval (pid N, tp Out(Bytes(16))) EMULATE;
    sched_setaffinity (pid N, cpusetsize N, mask In(Argument(1))) REPEAT;
    sched_getaffinity (pid N, cpusetsize N, mask Out(Result(1))) EMULATE;
    getpriority (which N, who N) REPEAT;
    setpriority (which N, who N, prio N) REPEAT;
    ioprio_set (which N, who N, ioprio N) REPEAT;
    ioprio_get (which N, who N) EXECUTE;
    unshare (flags N) EXECUTE;
    setns (fd FD, nstype N) ENDS;
    kcmp (pid1 N, pid2 N, kind N, idx1 N, idx2 N) ENDS;
    ptrace (op N, pid N, addr A, data InOut(Command)) ENDS;
    prctl (op N, arg2 InOut(Command), arg3 N, arg4 N, arg5 N) command(0);
    arch_prctl (op N, addr A) command(0);
    set_thread_area (u_info A) GONE;
    get_thread_area (u_info A) GONE;
    modify_ldt (func N, ptr InOut(Argument(2)), bytecount N) ENDS;
    seccomp (operation N, flags N, args In(Command)) command(0);
    restart_syscall () LOCAL;
    personality (persona N) EXECUTE;
    uprobe () GONE;
    uretprobe () GONE;

    // Who one is.
    getpid () EMULATE;
    gettid () EMULATE;
    getppid () EMULATE;
    getpgrp () EMULATE;
    getpgid (pid N) EMULATE;
    getsid (pid N) EMULATE;
    setpgid (pid N, pgid N) REPEAT;
    setsid () REPEAT;
    getuid () EXECUTE;
    geteuid () EXECUTE;
    getgid () EXECUTE;
    getegid () EXECUTE;
    getresuid (ruid Out(Bytes(4)), euid Out(Bytes(4)), suid Out(Bytes(4))) EXECUTE;
    getresgid (rgid Out(Bytes(4)), egid Out(Bytes(4)), sgid Out(Bytes(4))) EXECUTE;
    setuid (uid N) EXECUTE;
    setgid (gid N) EXECUTE;
    setreuid (ruid N, euid N) EXECUTE;
    setregid (rgid N, egid N) EXECUTE;
    setresuid (ruid N, euid N, suid N) EXECUTE;
    setresgid (rgid N, egid N, sgid N) EXECUTE;
    setfsuid (fsuid N) EXECUTE;
    setfsgid (fsgid N) EXECUTE;
    getgroups (size N, list Out(ResultItems(0, 4))) EXECUTE;
    setgroups (size N, list In(Items(0, 4))) EXECUTE;
    capget (hdrp InOut(Bytes(8)), datap Out(Bytes(24))) EXECUTE;
    capset (hdrp In(Bytes(8)), datap In(Bytes(24))) EXECUTE;
    landlock_create_ruleset (attr In(Argument(1)), size N, flags N) EXECUTE;
    landlock_add_rule (ruleset_fd FD, rule_type N, rule_attr In(Bytes(16)), flags N) EXECUTE;
    landlock_restrict_self (ruleset_fd FD, flags N) EXECUTE;
    lsm_get_self_attr (attr N, ctx Out(At(2)), size InOut(Bytes(4)), flags N) EMULATE;
    lsm_set_self_attr (attr N, ctx In(Argument(2)), size N, flags N) EXECUTE;
    lsm_list_modules (ids Out(At(1)), size InOut(Bytes(4)), flags N) EMULATE;

    // Time, chance, and the machine.
    time (tloc Out(Bytes(8))) EMULATE;
    gettimeofday (tv Out(Bytes(16)), tz Out(Bytes(8))) EMULATE;
    clock_gettime (clockid N, tp Out(Bytes(16))) EMULATE;
    clock_getres (clockid N, res Out(Bytes(16))) EMULATE;
    clock_nanosleep (clockid N, flags N, request In(Bytes(16)), remain Out(Bytes(16))) EMULATE;
    nanosleep (duration In(Bytes(16)), rem Out(Bytes(16))) EMULATE;
    alarm (seconds N) EMULATE;
    getitimer (which N, curr_value Out(Bytes(32))) EMULATE;
    setitimer (which N, new_value In(Bytes(32)), old_value Out(Bytes(32))) EMULATE;
    timer_create (clockid N, sevp In(Bytes(64)), timerid Out(Bytes(4))) EXECUTE;
    timer_settime (timerid N, flags N, new_value In(Bytes(32)), old_value Out(Bytes(32))) EMULATE;
    timer_gettime (timerid N, curr_value Out(Bytes(32))) EMULATE;
    timer_getoverrun (timerid N) EMULATE;
    timer_delete (timerid N) EXECUTE;
    adjtimex (buf InOut(Bytes(208))) EMULATE;
    clock_adjtime (clockid N, buf InOut(Bytes(208))) EMULATE;
    settimeofday (tv In(Bytes(16)), tz In(Bytes(8))) ENDS;
    clock_settime (clockid N, tp In(Bytes(16))) ENDS;
    getrandom (buf Out(Result(1)), buflen N, flags N) EMULATE;
    getcpu (cpu Out(Bytes(4)), node Out(Bytes(4)), tcache A) EMULATE;
    times (buf Out(Bytes(32))) EMULATE;
    getrusage (who N, usage Out(Bytes(144))) EMULATE;
    sysinfo (info Out(Bytes(112))) EMULATE;
    uname (buf Out(Bytes(390))) EMULATE;
    getrlimit (resource N, rlim Out(Bytes(16))) EXECUTE;
    setrlimit (resource N, rlim In(Bytes(16))) REPEAT;
    prlimit64 (pid N, resource N, new_limit In(Bytes(16)), old_limit Out(Bytes(16))) EXECUTE;

    // The machine's own affairs.
    mount (source P, target P, filesystemtype P, mountflags N, data In(Command)) ENDS;
    umount2 (target P, flags N) ENDS;
    mount_setattr (dirfd FD, path P, flags N, attr In(Argument(4)), size N) ENDS;
    move_mount (from_dirfd FD, from_path P, to_dirfd FD, to_path P, flags N) ENDS;
    open_tree (dirfd FD, path P, flags N) ENDS;
    open_tree_attr (dirfd FD, path P, flags N, attr In(Argument(4)), size N) ENDS;
    fsopen (fsname P, flags N) ENDS;
    fsconfig (fd FD, cmd N, key P, value In(Command), aux N) ENDS;
    fsmount (fd FD, flags N, attr_flags N) ENDS;
    fspick (dirfd FD, path P, flags N) ENDS;
    statmount (req In(Own), buf Out(Argument(2)), bufsize N, flags N) ENDS;
    listmount (req In(Own), ids Out(ResultItems(2, 8)), nr N, flags N) ENDS;
    pivot_root (new_root P, put_old P) ENDS;
    swapon (path P, swapflags N) ENDS;
    swapoff (path P) ENDS;
    acct (path P) ENDS;
    reboot (magic N, magic2 N, op N, arg In(Command)) ENDS;
    sethostname (name In(Argument(1)), len N) ENDS;
    setdomainname (name In(Argument(1)), len N) ENDS;
    iopl (level N) ENDS;
    ioperm (from N, num N, turn_on N) ENDS;
    vhangup () ENDS;
    syslog (kind N, bufp Out(Result(2)), len N) ENDS;
    init_module (module_image In(Argument(1)), len N, param_values P) ENDS;
    finit_module (fd FD, param_values P, flags N) ENDS;
    delete_module (name P, flags N) ENDS;
    kexec_load (entry A, nr_segments N, segments A, flags N) ENDS;
    kexec_file_load (kernel_fd FD, initrd_fd FD, cmdline_len N, cmdline In(Argument(2)), flags N) ENDS;
    bpf (cmd N, attr InOut(Argument(2)), size N) ENDS;
    perf_event_open (attr In(Own), pid N, cpu N, group_fd FD, flags N) ENDS;
    add_key (kind P, description P, payload In(Argument(3)), plen N, keyring N) ENDS;
    request_key (kind P, description P, callout_info P, dest_keyring N) ENDS;
    keyctl (operation N, arg2 InOut(Command), arg3 N, arg4 N, arg5 N) ENDS;
    lookup_dcookie (cookie N, buffer Out(Result(2)), len N) GONE;
    sysfs (option N, arg1 N, arg2 N) ENDS;
    uselib (library P) GONE;
    _sysctl (args A) GONE;
    create_module (name P, size N) GONE;
    get_kernel_syms (table A) GONE;
    query_module (name P, which N, buf A, bufsize N, ret A) GONE;
    nfsservctl (cmd N, argp A, resp A) GONE;
    getpmsg () GONE;
    putpmsg () GONE;
    afs_syscall () GONE;
    tuxcall () GONE;
    security () GONE;
    vserver () GONE;
    epoll_ctl_old () GONE;
    epoll_wait_old () GONE;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;

    fn all() -> impl Iterator<Item = (Sysno, &'static Entry)> {
        (0..1024).filter_map(Sysno::new).map(|name| (name, entry(name)))
    }

    #[test]
    fn no_call_has_more_than_six_arguments() {
        assert!(all().count() > 370);
        assert!(all().all(|(_, entry)| entry.arguments.len() <= 6));
    }

    /// A length that is taken from another argument is taken from one that is a length.
    #[test]
    fn lengths_are_where_the_table_says() {
        for (name, entry) in all() {
            for argument in entry.arguments {
                let (Shape::In(size) | Shape::Out(size) | Shape::InOut(size)) = argument.shape
                else {
                    continue;
                };
                let shape = |at: u8| entry.arguments.get(usize::from(at)).map(|other| other.shape);
                let good = match size {
                    Size::Argument(at) | Size::Items(at, _) | Size::Bits(at) => {
                        shape(at) == Some(N)
                    }
                    Size::Result(at) | Size::ResultItems(at, _) => shape(at) == Some(N),
                    Size::Vectors(at) | Size::Messages(at) => shape(at) == Some(N),
                    Size::At(at) => shape(at) == Some(InOut(Size::Bytes(4))),
                    _ => true,
                };
                assert!(good, "{name}: {}", argument.name);
            }
        }
    }

    #[test]
    fn what_depends_on_something_has_it() {
        for (name, entry) in all() {
            let good = match entry.rule {
                Rule::Command(at) => {
                    entry.arguments.get(usize::from(at)).map(|a| a.shape) == Some(N)
                }
                Rule::Descriptor { .. } => entry.arguments.first().map(|a| a.shape) == Some(FD),
                Rule::Always(_) => true,
            };
            assert!(good, "{name}");
        }
    }

    /// What is emulated is answered from the record, which must know how much the kernel writes.
    #[test]
    fn what_is_emulated_is_written_in_known_lengths() {
        for (name, entry) in all().filter(|(_, entry)| entry.rule == EMULATE) {
            let unknown = entry.arguments.iter().find(|argument| {
                matches!(argument.shape, Out(Size::Command) | InOut(Size::Command) | Shape::Address)
            });
            let told = ["futex_wait", "futex_wake", "getcpu"].contains(&name.name());
            assert!(unknown.is_none() || told, "{name}: {unknown:?}");
        }
    }
}

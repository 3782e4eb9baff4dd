/* seccomp: a program's filters judge its calls, and not the runtime's. */
#include "guest.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#define DENY(number, action) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, action)

static void filter(struct sock_filter *code, unsigned short len)
{
	struct sock_fprog program = { len, code };
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void handle(int signal)
{
	SEE(handled, "%d", signal);
}

static void trapped(int signal, siginfo_t *info, void *context)
{
	(void)context;
	SEE(trapped, "%d, code %d, call %d", signal, info->si_code, info->si_syscall);
}

/* Everything is denied that the runtime makes to serve a program that makes none of it. */
static void sandboxed(void)
{
	signal(SIGUSR1, handle);
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		DENY(SYS_getppid, SECCOMP_RET_ERRNO | EPERM),
		DENY(SYS_sigaltstack, SECCOMP_RET_KILL_PROCESS),
		DENY(SYS_prctl, SECCOMP_RET_KILL_PROCESS),
		DENY(SYS_process_vm_readv, SECCOMP_RET_KILL_PROCESS),
		DENY(SYS_process_vm_writev, SECCOMP_RET_KILL_PROCESS),
		DENY(SYS_mprotect, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter(code, sizeof code / sizeof *code);
	long denied = syscall(SYS_getppid);
	SEE(denied, "%ld %s", denied, strerrorname_np(errno));
	raise(SIGUSR1);
	pid_t pid = vfork();
	if (pid == 0)
		_exit(3);
	int status;
	MUST(waitpid(pid, &status, 0) == pid);
	SEE(child, "%x", status);
}

static void traps(void)
{
	struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO };
	MUST(sigaction(SIGSYS, &action, NULL) == 0);
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		DENY(SYS_getppid, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter(code, sizeof code / sizeof *code);
	syscall(SYS_getppid);
	SEE(after, "yes");
}

static void *nothing(void *none)
{
	return none;
}

static void no_children(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		DENY(SYS_clone, SECCOMP_RET_ERRNO | EPERM),
		DENY(SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS),
		DENY(SYS_fork, SECCOMP_RET_ERRNO | EPERM),
		DENY(SYS_vfork, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter(code, sizeof code / sizeof *code);
	pthread_t thread;
	SEE(fork, "%d", fork());
	SEE(vfork, "%d", vfork());
	SEE(thread, "%s", strerrorname_np(pthread_create(&thread, NULL, nothing, NULL)));
}

static void kills(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		DENY(SYS_getppid, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter(code, sizeof code / sizeof *code);
	syscall(SYS_getppid);
}

static void strict(int number)
{
	fflush(stdout);
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
	MUST(write(1, "strict\n", 7) == 7);
	syscall(number, 0);
	_exit(1);
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	SEE(sandboxed, "%x", CHILD(sandboxed()));
	SEE(traps, "%x", CHILD(traps()));
	SEE(no_children, "%x", CHILD(no_children()));
	SEE(kills, "%x", CHILD(kills()) & 0x7f);
	SEE(strict, "%x", CHILD(strict(SYS_exit)));
	SEE(strict_broken, "%x", CHILD(strict(SYS_getpid)) & 0x7f);
	struct sock_fprog bad = { 0, NULL };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	int refused = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &bad);
	SEE(empty, "%d %s", refused, strerrorname_np(errno));
	bad.len = 1;
	refused = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &bad);
	SEE(nowhere, "%d %s", refused, strerrorname_np(errno));
	return 0;
}

/* SIGSYS and seccomp are the program's as well as the runtime's. */
#include "guest.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <time.h>

#define DENY(number, action) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, action)

static void filter(struct sock_filter *code, unsigned short len)
{
	struct sock_fprog program = { len, code };
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void handle(int signal, siginfo_t *info, void *context)
{
	(void)context;
	SEE(handled, "%d, code %d, call %d", signal, info->si_code,
	    info->si_code == 1 ? info->si_syscall : 0);
}

static void times(void)
{
	struct timespec now, unit;
	struct timeval day;
	unsigned processor;
	MUST(clock_gettime(CLOCK_REALTIME, &now) == 0 && gettimeofday(&day, NULL) == 0);
	MUST(clock_getres(CLOCK_MONOTONIC, &unit) == 0);
	MUST((processor = sched_getcpu()) < 4096);
	SEE(times, "%ld.%09ld %ld.%06ld %ld %ld %u", now.tv_sec, now.tv_nsec, day.tv_sec, day.tv_usec,
	    time(NULL), unit.tv_nsec, processor);
}

/* Natively nobody sees who asks the vDSO. */
static void nobody_is_asked(void)
{
	times();
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		DENY(SYS_clock_gettime, SECCOMP_RET_KILL_PROCESS),
		DENY(SYS_gettimeofday, SECCOMP_RET_KILL_PROCESS),
		DENY(SYS_time, SECCOMP_RET_KILL_PROCESS),
		DENY(SYS_getcpu, SECCOMP_RET_KILL_PROCESS),
		DENY(SYS_clock_getres, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter(code, sizeof code / sizeof *code);
	for (int i = 0; i < 20; i++)
		times();
}

static void traps(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		DENY(SYS_getppid, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter(code, sizeof code / sizeof *code);
	for (int i = 0; i < 20; i++)
		syscall(SYS_getppid);
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO }, before;
	MUST(sigaction(SIGSYS, &action, &before) == 0 && before.sa_handler == SIG_DFL);
	raise(SIGSYS);
	/* PR_SET_SYSCALL_USER_DISPATCH, on, for everything but nothing. */
	int armed = prctl(59, 1, 0, 0, 0);
	SEE(armed, "%d %s", armed, strerrorname_np(errno));
	SEE(traps, "%x", CHILD(traps()));
	SEE(nobody_is_asked, "%x", CHILD(nobody_is_asked()));
	nobody_is_asked();
	return 0;
}

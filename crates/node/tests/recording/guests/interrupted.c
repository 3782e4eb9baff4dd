/* Signals that arrive whenever they do: between calls, and in the middle of them. */
#include "guest.h"
#include <sys/select.h>
#include <time.h>

static volatile long ticks, sum;

static void tick(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	ticks++;
	sum = sum * 31 + info->si_code;
}

static sigjmp_buf back;

static void fault(int signal)
{
	siglongjmp(back, signal);
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = tick, .sa_flags = SA_SIGINFO };
	struct itimerval every = { { 0, 300 }, { 0, 300 } };
	struct timespec rest;
	long turns = 0, interrupted = 0;

	MUST(sigaction(SIGALRM, &action, NULL) == 0);
	action.sa_flags |= SA_RESTART;
	MUST(sigaction(SIGVTALRM, &action, NULL) == 0);
	MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
	MUST(setitimer(ITIMER_VIRTUAL, &every, NULL) == 0);
	/* What is computed between two calls must not depend on the moment. */
	while (ticks < 200) {
		turns++;
		for (volatile int i = 0; i < 1000; i++)
			;
		sum = sum * 7 + ticks;
		getppid();
		if (turns % 50 == 0)
			interrupted += nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, &rest);
	}
	SEE(turns, "%ld, %ld ticks, %ld, rest %ld", turns, ticks, sum, rest.tv_nsec);
	SEE(interrupted, "%ld", interrupted);
	struct itimerval none = { 0 };
	MUST(setitimer(ITIMER_VIRTUAL, &none, NULL) == 0);

	/* Waits of every kind. */
	sigset_t set, empty;
	sigemptyset(&empty);
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	for (int i = 0; i < 10; i++) {
		MUST(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
		MUST(sigsuspend(&empty) == -1 && errno == EINTR);
		MUST(pselect(0, NULL, NULL, NULL, NULL, &empty) == -1 && errno == EINTR);
		MUST(sigwaitinfo(&set, NULL) == SIGALRM);
		MUST(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
		pause();
	}
	SEE(waited, "%ld %ld", ticks, sum);
	MUST(setitimer(ITIMER_REAL, &none, NULL) == 0);

	/* What an instruction comes to is no signal of anybody's. */
	signal(SIGSEGV, fault);
	signal(SIGILL, fault);
	if (sigsetjmp(back, 1) == 0)
		*(volatile int *)8 = 1;
	if (sigsetjmp(back, 1) == 0)
		__builtin_trap();
	raise(SIGALRM);
	SEE(faults, "survived, %ld ticks", ticks);
	return 0;
}

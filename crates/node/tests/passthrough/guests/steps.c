/* A signal at every single instruction of a system call. The child makes a call, the parent lets it go
 * so many instructions, has a signal arrive, and lets it run: the handler must be called, once, before
 * the child goes on. */
#include "guest.h"
#include <stddef.h>
#include <sys/ptrace.h>

static volatile int calls, phase;
static int ends[2];

static void handle(int signal)
{
	(void)signal;
	calls++;
	MUST(write(ends[1], "x", 1) == 1);
}

/* A call as libc makes it, from one and the same place; what is asked about is the last of so many. */
static long call(long number, long a, long b, long c, int times)
{
	long result = 0, kept = 0x1234567;
	for (int i = 1; i <= times; i++) {
		result = i < times ? SYS_getppid : number;
		if (i == times) {
			raise(SIGSTOP);
			phase = 1;
		}
		__asm__ volatile("syscall\n cmpq $-4096, %%rax"
				 : "+a"(result), "+b"(kept)
				 : "D"(a), "S"(b), "d"(c)
				 : "rcx", "r11", "memory");
	}
	phase = 2;
	MUST(kept == 0x1234567);
	return result;
}

/* A call that returns at once. Nothing else is called before the handler has been. */
static void returns(int times)
{
	long result = call(SYS_getppid, 0, 0, 0, times);
	for (long spins = 0; !calls && spins < 4000000000; spins++)
		;
	MUST(calls == 1 && result == getppid());
}

/* A call that waits for what the handler does. */
static void waits(int times)
{
	char byte = 0;
	long got = call(SYS_read, ends[0], (long)&byte, 1, times);
	MUST(calls == 1);
	MUST((got == 1 && byte == 'x') || got == -EINTR);
}

static int peek(pid_t child)
{
	errno = 0;
	long word = ptrace(PTRACE_PEEKDATA, child, &phase, NULL);
	MUST(errno == 0);
	return (int)word;
}

/* Lets the child go on until it stops; 0 if it does not, within a time in which it would have. */
static int stopped(pid_t child, int *status, int patience_ms)
{
	for (int waited = 0; waited < patience_ms * 50; waited++) {
		pid_t who = waitpid(child, status, WNOHANG);
		MUST(who == 0 || who == child);
		if (who == child)
			return 1;
		if (waited > 100)
			usleep(20);
	}
	return 0;
}

/* Signals that the child gets from elsewhere are its own affair. */
static int passed_on(int status)
{
	return WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
}

/* One child. Whether the call was over, or waited, when the signal came. */
static int try(void (*work)(int), int times, int steps, int flags)
{
	MUST(pipe(ends) == 0);
	fflush(stdout);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		struct sigaction action = { .sa_handler = handle, .sa_flags = flags };
		MUST(sigaction(SIGUSR1, &action, NULL) == 0);
		MUST(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
		work(times);
		_exit(0);
	}
	int status, over = 0, sent = 0, signal = 0;
	/* To the call: what is before it is not asked about. */
	for (;;) {
		MUST(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
		if (WSTOPSIG(status) == SIGSTOP)
			break;
		MUST(ptrace(PTRACE_CONT, child, NULL, (void *)(long)WSTOPSIG(status)) == 0);
	}
	while (peek(child) == 0) {
		MUST(ptrace(PTRACE_SINGLESTEP, child, NULL, (void *)(long)signal) == 0);
		MUST(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
		signal = passed_on(status) == SIGSTOP ? 0 : passed_on(status);
	}
	for (int step = 0; step < steps && !over; step++) {
		MUST(ptrace(PTRACE_SINGLESTEP, child, NULL, (void *)(long)signal) == 0);
		signal = 0;
		if (!stopped(child, &status, 100)) {
			over = sent = 1;
			MUST(kill(child, SIGUSR1) == 0);
			MUST(stopped(child, &status, 5000));
		}
		MUST(WIFSTOPPED(status));
		signal = passed_on(status);
		over |= peek(child) == 2;
	}
	if (!sent)
		MUST(kill(child, SIGUSR1) == 0);
	for (;;) {
		MUST(ptrace(PTRACE_CONT, child, NULL, (void *)(long)signal) == 0);
		if (!stopped(child, &status, 5000)) {
			printf("step %d: the signal is not handled\n", steps);
			fflush(stdout);
			kill(child, SIGKILL);
			_exit(98);
		}
		if (!WIFSTOPPED(status))
			break;
		signal = passed_on(status);
	}
	if (status != 0)
		printf("step %d: %x\n", steps, status);
	MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
	return over;
}

int main(void)
{
	/* Places that are met for the first time take long, with the runtime; these are not asked about. */
	for (int i = 0; i < 20; i++)
		raise(SIGCONT);
	/* At a place that is known, and at one that is well known. */
	for (int times = 2; times <= 22; times += 20) {
		int steps;
		for (steps = 0; !try(returns, times, steps, 0);)
			steps++;
		for (steps = 0; !try(waits, times, steps, 0);)
			steps++;
	}
	for (int steps = 0; !try(waits, 22, steps, SA_RESTART);)
		steps++;
	SEE(every_instruction, "yes");
	return 0;
}

/* Handlers: what they get, on which stack, under which mask, and what comes after. */
#include "guest.h"
#include <poll.h>
#include <sys/select.h>

static volatile sig_atomic_t calls, on_stack, masked, number;
static char *stack;
static const size_t STACK = 64 << 10;

static void handle(int signal, siginfo_t *info, void *context)
{
	char here;
	sigset_t mask;
	calls++;
	number = signal;
	on_stack = &here >= stack && &here < stack + STACK;
	MUST(sigprocmask(SIG_SETMASK, NULL, &mask) == 0);
	masked = 0;
	for (int i = 1; i < 32; i++)
		masked |= sigismember(&mask, i) << i;
	MUST(info->si_signo == signal);
	MUST(((uintptr_t)context & 15) == 0);
	ucontext_t *uc = context;
	MUST((char *)uc->uc_mcontext.gregs[REG_RSP] != NULL);
	SEE(handled, "%d from %s, altstack %d, mask %x", signal,
	    info->si_pid == getpid() ? "here" : "elsewhere", (int)on_stack, (unsigned)masked);
}

static void quiet(int signal)
{
	calls++;
	number = signal;
}

static void install(int signal, int flags, int also)
{
	struct sigaction action = { .sa_sigaction = handle, .sa_flags = SA_SIGINFO | flags }, old;
	sigemptyset(&action.sa_mask);
	if (also)
		sigaddset(&action.sa_mask, also);
	MUST(sigaction(signal, &action, NULL) == 0);
	MUST(sigaction(signal, NULL, &old) == 0);
	MUST(old.sa_sigaction == handle);
	MUST(sigismember(&old.sa_mask, also ? also : SIGUSR2) == !!also);
}

static sigjmp_buf back;

static void fault(int signal, siginfo_t *info, void *context)
{
	(void)context;
	SEE(fault, "%d at %p", signal, info->si_addr);
	siglongjmp(back, 1);
}

static void skip(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)info;
	ucontext_t *uc = context;
	uc->uc_mcontext.gregs[REG_RIP] += 2; /* ud2 */
	uc->uc_mcontext.gregs[REG_RBX] = 77;
}

static void floats(int signal)
{
	(void)signal;
	volatile double x = 2.5;
	for (int i = 0; i < 100; i++)
		x = x * 1.5 + 1;
	__asm__ volatile("pxor %%xmm7, %%xmm7" ::: "xmm7");
}

static void alarm_in(long us)
{
	struct itimerval timer = { .it_value = { 0, us } };
	MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	install(SIGUSR1, 0, 0);
	raise(SIGUSR1);
	install(SIGUSR1, SA_NODEFER, SIGTERM);
	raise(SIGUSR1);

	/* An alternate stack. */
	stack = malloc(STACK);
	stack_t alternate = { .ss_sp = stack, .ss_size = STACK }, was;
	MUST(sigaltstack(NULL, &was) == 0);
	SEE(altstack, "%d", was.ss_flags);
	MUST(sigaltstack(&alternate, NULL) == 0);
	MUST(sigaltstack(NULL, &was) == 0);
	SEE(altstack, "%d %d", was.ss_flags, was.ss_sp == stack);
	raise(SIGUSR1);
	install(SIGUSR1, SA_ONSTACK | SA_RESETHAND, 0);
	raise(SIGUSR1);
	struct sigaction old;
	MUST(sigaction(SIGUSR1, NULL, &old) == 0);
	SEE(reset, "%d", old.sa_handler == SIG_DFL);
	alternate.ss_size = 100;
	int refused = sigaltstack(&alternate, NULL);
	SEE(small, "%d %s", refused, strerrorname_np(errno));

	/* A blocked signal waits; two of a kind are one. */
	sigset_t set, before, pending;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGSYS);
	install(SIGUSR2, 0, 0);
	MUST(sigprocmask(SIG_BLOCK, &set, &before) == 0);
	MUST(sigprocmask(SIG_BLOCK, NULL, &before) == 0);
	SEE(blocked, "%d %d", sigismember(&before, SIGUSR2), sigismember(&before, SIGSYS));
	calls = 0;
	raise(SIGUSR2);
	raise(SIGUSR2);
	MUST(sigpending(&pending) == 0);
	SEE(pending, "%d, %d calls", sigismember(&pending, SIGUSR2), (int)calls);
	MUST(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);
	SEE(after, "%d calls", (int)calls);

	/* A wait under another mask. */
	MUST(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	raise(SIGUSR2);
	sigset_t none;
	sigemptyset(&none);
	MUST(sigsuspend(&none) == -1);
	SEE(suspended, "%s, %d calls", strerrorname_np(errno), (int)calls);
	raise(SIGUSR2);
	MUST(ppoll(NULL, 0, NULL, &none) == -1);
	SEE(ppoll, "%s, %d calls", strerrorname_np(errno), (int)calls);
	raise(SIGUSR2);
	MUST(pselect(0, NULL, NULL, NULL, NULL, &none) == -1);
	SEE(pselect, "%s, %d calls", strerrorname_np(errno), (int)calls);
	raise(SIGUSR2);
	siginfo_t info;
	SEE(waited, "%d", sigwaitinfo(&set, &info) == SIGUSR2);
	MUST(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0);

	/* Interrupted and restarted. */
	int ends[2];
	char byte = 0;
	MUST(pipe(ends) == 0);
	struct sigaction plain = { .sa_handler = quiet };
	MUST(sigaction(SIGALRM, &plain, NULL) == 0);
	alarm_in(20000);
	ssize_t got = read(ends[0], &byte, 1);
	SEE(interrupted, "%zd %s %d", got, strerrorname_np(errno), (int)number);
	plain.sa_flags = SA_RESTART;
	MUST(sigaction(SIGALRM, &plain, NULL) == 0);
	fflush(stdout);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		usleep(100000);
		_exit(write(ends[1], "x", 1) != 1);
	}
	calls = 0;
	alarm_in(20000);
	got = read(ends[0], &byte, 1);
	SEE(restarted, "%zd %c %d", got, byte, (int)calls);
	MUST(waitpid(child, NULL, 0) == child);
	alarm_in(20000);
	struct timespec nap = { 10, 0 }, left = { 0, 0 };
	MUST(nanosleep(&nap, &left) == -1);
	SEE(nap, "%s, %ld s left", strerrorname_np(errno), (long)left.tv_sec);

	/* Faults that the program handles. */
	struct sigaction faults = { .sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	MUST(sigaction(SIGSEGV, &faults, NULL) == 0);
	for (int i = 0; i < 3; i++)
		if (sigsetjmp(back, 1) == 0)
			*(volatile int *)(uintptr_t)(0x1230 + i) = 1;
	faults.sa_sigaction = skip;
	MUST(sigaction(SIGILL, &faults, NULL) == 0);
	long rbx = 1;
	__asm__ volatile("ud2" : "+b"(rbx));
	SEE(register, "%ld", rbx);

	/* Vector registers survive a handler. */
	plain.sa_handler = floats;
	MUST(sigaction(SIGUSR1, &plain, NULL) == 0);
	double kept = 0;
	long tid = syscall(SYS_gettid), pid = getpid(), result = SYS_tgkill;
	__asm__ volatile("movq %[value], %%xmm7\n syscall\n movq %%xmm7, %[kept]"
			 : [kept] "=r"(kept), "+a"(result)
			 : [value] "r"(3.25), "D"(pid), "S"(tid), "d"((long)SIGUSR1)
			 : "xmm7", "rcx", "r11", "memory");
	SEE(vectors, "%.2f", kept);

	/* A SIGSYS of the program's own. */
	install(SIGSYS, 0, 0);
	raise(SIGSYS);

	/* Ends. */
	SEE(by_signal, "%x", CHILD(raise(SIGTERM)));
	SEE(by_sigsys, "%x", CHILD(signal(SIGSYS, SIG_DFL); raise(SIGSYS)));
	SEE(by_fault, "%x", CHILD(signal(SIGSEGV, SIG_DFL); *(volatile int *)8 = 1) & 0x7f);
	SEE(by_abort, "%x", CHILD(abort()) & 0x7f);
	SEE(stopped, "%x", ({
		pid_t stopped = fork();
		if (stopped == 0) {
			raise(SIGSTOP);
			_exit(5);
		}
		int status;
		MUST(waitpid(stopped, &status, WUNTRACED) == stopped && WIFSTOPPED(status));
		MUST(kill(stopped, SIGCONT) == 0);
		MUST(waitpid(stopped, &status, 0) == stopped);
		status;
	}));
	return 0;
}

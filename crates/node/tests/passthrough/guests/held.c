/* Signals that the runtime needs, and how handlers begin: what is blocked stays blocked, what cannot be
 * delivered is a fault. */
#include "guest.h"
#include <poll.h>
#include <sys/select.h>

static volatile int came;
static sigset_t both;

static void note(int signal)
{
	came = came * 100 + signal;
}

static void handle(int signal, int flags, void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
	MUST(sigaction(signal, &action, NULL) == 0);
}

static void see_pending(void)
{
	sigset_t pending;
	MUST(sigpending(&pending) == 0);
	SEE(pending, "%d %d", sigismember(&pending, SIGSYS), sigismember(&pending, SIGTRAP));
}

static void blocked(void)
{
	handle(SIGSYS, 0, note);
	handle(SIGTRAP, 0, note);
	MUST(sigprocmask(SIG_BLOCK, &both, NULL) == 0);
	for (int times = 0; times < 3; times++)
		MUST(kill(getpid(), SIGSYS) == 0 && raise(SIGTRAP) == 0);
	see_pending();
	SEE(came, "%d", came);
	SEE(in_child, "%x", CHILD(see_pending()));
	sigset_t one;
	sigemptyset(&one);
	sigaddset(&one, SIGSYS);
	MUST(sigprocmask(SIG_UNBLOCK, &one, NULL) == 0);
	SEE(came, "%d", came);
	see_pending();
	siginfo_t info;
	struct timespec none = { 0, 0 };
	SEE(waited, "%d", sigtimedwait(&both, &info, &none));
	SEE(from, "%d %d", info.si_code, info.si_pid == getpid());
	SEE(waited, "%d", sigtimedwait(&both, &info, &none));
	MUST(sigprocmask(SIG_UNBLOCK, &both, NULL) == 0);
	SEE(came, "%d", came);
}

static void blocked_by_handler(int signal)
{
	raise(SIGTRAP);
	note(signal);
}

static void until_a_handler_returns(void)
{
	came = 0;
	struct sigaction action = { .sa_handler = blocked_by_handler, .sa_mask = both };
	MUST(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
	SEE(in_order, "%d", came);
	/* Nobody handles it: it ends the program, but not before it may come. */
	SEE(ended, "%x", CHILD({
		signal(SIGSYS, SIG_DFL);
		MUST(sigprocmask(SIG_BLOCK, &both, NULL) == 0 && raise(SIGSYS) == 0);
		SEE(still, "%s", "here");
		fflush(stdout);
		MUST(sigprocmask(SIG_UNBLOCK, &both, NULL) == 0);
	}));
}

/* Two of them at once, and calls that let one come while they wait. */
static void let_come(void)
{
	sigset_t none;
	sigemptyset(&none);
	handle(SIGSYS, 0, note);
	handle(SIGTRAP, 0, note);
	came = 0;
	MUST(sigprocmask(SIG_BLOCK, &both, NULL) == 0);
	MUST(raise(SIGSYS) == 0 && raise(SIGTRAP) == 0);
	MUST(sigprocmask(SIG_UNBLOCK, &both, NULL) == 0);
	SEE(two, "%d", came == 531 || came == 3105);
	came = 0;
	MUST(sigprocmask(SIG_BLOCK, &both, NULL) == 0 && raise(SIGTRAP) == 0);
	SEE(suspended, "%d", sigsuspend(&none));
	SEE(came, "%d", came);
	MUST(raise(SIGTRAP) == 0);
	SEE(polled, "%d", ppoll(NULL, 0, NULL, &none));
	SEE(came, "%d", came);
	MUST(raise(SIGSYS) == 0);
	SEE(selected, "%d", pselect(0, NULL, NULL, NULL, NULL, &none));
	SEE(came, "%d", came);
	see_pending();
	MUST(sigprocmask(SIG_UNBLOCK, &both, NULL) == 0);
}

static void once(void)
{
	struct sigaction seen;
	handle(SIGUSR2, SA_RESETHAND | SA_RESTART | SA_NODEFER, note);
	MUST(raise(SIGUSR2) == 0 && sigaction(SIGUSR2, NULL, &seen) == 0);
	SEE(once, "%d %x", seen.sa_handler == SIG_DFL, (unsigned)seen.sa_flags & ~0x04000000);
}

static jmp_buf back;

static void fault(int signal)
{
	siglongjmp(back, signal);
}

static void without_a_stack(void)
{
	size_t size = 1 << 16;
	stack_t stack = { .ss_size = size };
	stack.ss_sp = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(stack.ss_sp != MAP_FAILED && sigaltstack(&stack, NULL) == 0);
	handle(SIGUSR1, SA_ONSTACK, note);
	SEE(unhandled, "%x", CHILD(raise(SIGUSR1)));
	handle(SIGSEGV, 0, fault);
	int signal = sigsetjmp(back, 1);
	if (signal == 0)
		raise(SIGUSR1);
	SEE(faults, "%d", signal);
	handle(SIGSEGV, SA_ONSTACK, fault);
	SEE(twice, "%x", CHILD(raise(SIGUSR1)));
	MUST(mprotect(stack.ss_sp, size, PROT_READ | PROT_WRITE) == 0);
	came = 0;
	MUST(raise(SIGUSR1) == 0);
	SEE(came, "%d", came);
}

/* A handler's frame on a stack that has yet to grow for it. */
static void far_down(void)
{
	handle(SIGUSR2, 0, note);
	char *volatile here = __builtin_frame_address(0);
	came = 0;
	asm volatile("mov %%rsp, %%rbx\n\tsub $0x200000, %%rsp\n\tsyscall\n\tmov %%rbx, %%rsp"
		     : : "a"(SYS_tkill), "D"(gettid()), "S"(SIGUSR2)
		     : "rbx", "rcx", "r11", "memory");
	SEE(far_down, "%d %d", came, here != NULL);
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	sigemptyset(&both);
	sigaddset(&both, SIGSYS);
	sigaddset(&both, SIGTRAP);
	blocked();
	until_a_handler_returns();
	let_come();
	once();
	far_down();
	without_a_stack();
	return 0;
}

/* Signals at every moment: no call's result is lost, none is made twice, no signal is forgotten. */
#include "guest.h"

static volatile long ticks;
static volatile sig_atomic_t stop;

static void tick(int signal)
{
	(void)signal;
	int kept = errno;
	/* On any thread, and on two at a time. */
	__atomic_add_fetch(&ticks, 1, __ATOMIC_SEQ_CST);
	/* A call from a handler, too. */
	MUST(getppid() > 0);
	errno = kept;
}

static void *work(void *ends_)
{
	int *ends = ends_;
	for (unsigned i = 0; !stop; i++) {
		unsigned char byte = (unsigned char)i, got = 0;
		ssize_t wrote;
		while ((wrote = write(ends[1], &byte, 1)) == -1 && errno == EINTR)
			;
		MUST(wrote == 1);
		ssize_t n;
		while ((n = read(ends[0], &got, 1)) == -1 && errno == EINTR)
			;
		MUST(n == 1 && got == byte);
		MUST(syscall(SYS_getppid) > 0);
		MUST(close(-1) == -1 && errno == EBADF);
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGALRM);
		MUST(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
		MUST(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
	}
	return NULL;
}

static void *child(void *none)
{
	(void)none;
	while (!stop) {
		pid_t pid = vfork();
		MUST(pid >= 0);
		if (pid == 0)
			_exit(7);
		int status;
		while (waitpid(pid, &status, 0) == -1)
			MUST(errno == EINTR);
		MUST(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int flags = argc > 1 && !strcmp(argv[1], "restart") ? SA_RESTART : 0;
	struct sigaction action = { .sa_handler = tick, .sa_flags = flags };
	MUST(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval timer = { { 0, 100 }, { 0, 100 } };
	pthread_t threads[3];
	int ends[3][2];
	for (int i = 0; i < 3; i++) {
		MUST(pipe(ends[i]) == 0);
		MUST(pthread_create(&threads[i], NULL, i < 2 ? work : child, ends[i]) == 0);
	}
	MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	/* As many as it takes: a signal that is forgotten makes this hang. */
	while (ticks < 5000) {
		sigset_t set, old;
		sigemptyset(&set);
		sigaddset(&set, SIGALRM);
		MUST(pthread_sigmask(SIG_BLOCK, &set, &old) == 0);
		long before = ticks;
		MUST(sigsuspend(&old) == -1 && errno == EINTR);
		MUST(ticks > before);
		MUST(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
	}
	stop = 1;
	memset(&timer, 0, sizeof timer);
	MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	for (int i = 0; i < 3; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	SEE(survived, "yes");
	return 0;
}

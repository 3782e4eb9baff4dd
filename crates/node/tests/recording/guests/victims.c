/* Children that are killed, by themselves and by others, wherever they are. */
#include "guest.h"

static volatile int zero, sum;

static void computes(int n)
{
	for (int i = 0; i < n; i++)
		sum += i;
}

/* Until somebody kills it. */
static void goes_on(void)
{
	for (;;) {
		computes(50000);
		getppid();
	}
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	SEE(aborts, "%x", CHILD(abort()));
	SEE(kills, "%x", CHILD(kill(getpid(), SIGKILL)));
	SEE(raises, "%x", CHILD(raise(SIGTERM)));
	SEE(nowhere, "%x", CHILD(*(volatile int *)8 = 1));
	SEE(divides, "%x", CHILD(sum = 10 / zero));
	SEE(illegal, "%x", CHILD(__builtin_trap()));
	int *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED);
	for (int round = 0; round < (argc > 1 ? atoi(argv[1]) : 0); round++) {
		int ends[2], status;
		MUST(pipe(ends) == 0);
		pid_t pid = fork();
		MUST(pid >= 0);
		if (pid == 0) {
			MUST(close(ends[0]) == 0 && write(ends[1], "x", 1) == 1);
			goes_on();
		}
		char byte;
		MUST(close(ends[1]) == 0 && read(ends[0], &byte, 1) == 1);
		/* Whoever reads this kills it. */
		SEE(victim, "%d", pid);
		MUST(read(ends[0], &byte, 1) == 0 && close(ends[0]) == 0);
		MUST(waitpid(pid, &status, 0) == pid);
		SEE(killed, "%x", status);
	}
	return 5;
}

/* A process without /proc, without rights, and that may write no files, finds out that another one was killed;
 * others live. */
#include "guest.h"
#include <sys/random.h>
#include <sys/resource.h>

int main(void)
{
	char jail[] = "jailXXXXXX", byte;
	int ends[2], status;
	MUST(mkdtemp(jail) && pipe(ends) == 0);
	pid_t victim = fork();
	MUST(victim >= 0);
	if (victim == 0)
		for (;;)
			pause();
	MUST(close(ends[1]) == 0);
	pid_t jailed = fork();
	MUST(jailed >= 0);
	if (jailed == 0) {
		MUST(chroot(jail) == 0 && chdir("/") == 0);
		MUST(setresgid(1, 1, 1) == 0 && setresuid(1, 1, 1) == 0);
		MUST(setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0}) == 0);
		/* What is recorded of it is long. */
		for (int n = 0; n < 20000; n++)
			MUST(getrandom(&byte, 1, 0) == 1);
		/* The end comes when the victim does not have the other end any more. */
		MUST(read(ends[0], &byte, 1) == 0);
		_exit(7);
	}
	MUST(kill(victim, SIGKILL) == 0);
	MUST(waitpid(jailed, &status, 0) == jailed);
	SEE(jailed, "%x", status);
	MUST(waitpid(victim, &status, 0) == victim);
	SEE(victim, "%x", status);
	MUST(rmdir(jail) == 0);
	return 6;
}

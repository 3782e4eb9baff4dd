/* Does what is not recorded, and goes on. */
#include "guest.h"
#include <sched.h>
#include <sys/ioctl.h>

int main(int argc, char **argv)
{
	MUST(argc == 2);
	if (!strcmp(argv[1], "clone")) {
		/* A process that shares its parent's folder. */
		long child = syscall(SYS_clone, CLONE_FS | SIGCHLD, NULL, NULL, NULL, NULL);
		if (child == 0)
			_exit(0);
		MUST(child > 0 && waitpid(child, NULL, 0) == child);
	} else if (!strcmp(argv[1], "ioctl")) {
		int fd = open("/dev/random", O_RDONLY), bits;
		MUST(ioctl(fd, 0x80045200, &bits) == 0); /* RNDGETENTCNT */
	} else if (!strcmp(argv[1], "prctl")) {
		MUST(prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0) == 0);
	} else if (!strcmp(argv[1], "killed")) {
		for (;;)
			MUST(write(1, "again\n", 6) == 6);
	}
	SEE(goes_on, "%d", CHILD(puts("a child")));
	return 7;
}

/* What is the runtime's own: programs find neither it nor its absence. */
#include "guest.h"
#include <linux/close_range.h>
#include <sys/stat.h>

static void can_execute(void)
{
	SEE(executes, "%x", CHILD(execl("/bin/true", "true", NULL)));
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	can_execute();
	/* Nothing above the standard descriptors, as far as a program can tell. */
	for (int fd = 3; fd < 2000; fd++)
		close(fd);
	for (int fd = 3; fd < 2000; fd++) {
		struct stat found;
		MUST(close(fd) == -1 && errno == EBADF);
		MUST(fstat(fd, &found) == -1 && errno == EBADF);
		MUST(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
		MUST(dup(fd) == -1 && errno == EBADF);
		MUST(dup2(fd, fd == 3 ? 4 : 3) == -1 && errno == EBADF);
	}
	can_execute();
	MUST(close_range(3, ~0U, 0) == 0);
	can_execute();
	MUST(close_range(3, ~0U, CLOSE_RANGE_UNSHARE) == 0);
	can_execute();
	for (int fd = 990; fd < 1020; fd++)
		MUST(dup2(1, fd) == fd);
	can_execute();
	for (int fd = 990; fd < 1020; fd++)
		MUST(fcntl(fd, F_GETFD) == 0 && close(fd) == 0);
	can_execute();
	MUST(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0);
	can_execute();
	return 0;
}

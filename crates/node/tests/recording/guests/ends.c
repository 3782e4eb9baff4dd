/* Does what is not recorded, and goes on. */
#include "guest.h"
#include <sys/ioctl.h>

int main(int argc, char **argv)
{
	MUST(argc == 2);
	if (!strcmp(argv[1], "ioctl")) {
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

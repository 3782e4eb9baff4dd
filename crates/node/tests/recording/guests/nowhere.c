/* Calls that name memory that is not there, or only half of it. */
#include "guest.h"
#include <sys/socket.h>
#include <sys/uio.h>

#define FAILS(call) \
	do { \
		errno = 0; \
		long result_ = (long)(call); \
		printf("%s: %ld %d\n", #call, result_, errno); \
	} while (0)

int main(void)
{
	/* Not there, not the program's, and no address at all. */
	void *where[] = {(void *)8, (void *)0xffff800000000000, (void *)0x1234567890abcdef};
	int ends[2], in, out = open("/dev/null", O_WRONLY);
	char byte;
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && write(ends[1], "some words", 10) == 10);
	MUST((in = open("/etc/passwd", O_RDONLY)) >= 0 && out >= 0);
	for (int i = 0; i < 3; i++) {
		FAILS(open(where[i], O_RDONLY));
		FAILS(openat(in, where[i], O_RDONLY));
		FAILS(writev(out, where[i], 2));
		FAILS(readv(in, where[i], 2));
		FAILS(recvfrom(ends[0], &byte, 1, MSG_PEEK, (struct sockaddr *)&byte, where[i]));
		FAILS(sendmsg(ends[1], where[i], 0));
		FAILS(recvmsg(ends[0], where[i], 0));
		FAILS(accept(ends[0], (struct sockaddr *)&byte, where[i]));
		FAILS(getsockopt(ends[0], SOL_SOCKET, SO_TYPE, &byte, where[i]));
	}
	/* The end of what is there. */
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(page != MAP_FAILED && munmap(page + 4096, 4096) == 0);
	strcpy(page + 4096 - sizeof "/etc", "/etc");
	FAILS(close(open(page + 4096 - sizeof "/etc", O_RDONLY)));
	page[4095] = 'c';
	FAILS(open(page + 4096 - sizeof "/etc", O_RDONLY));
	struct iovec *vectors = (struct iovec *)(page + 4096) - 1;
	*vectors = (struct iovec){&byte, 1};
	FAILS(writev(out, vectors, 1));
	FAILS(writev(out, vectors, 2));
	FAILS(readv(in, vectors, 1));
	return 0;
}

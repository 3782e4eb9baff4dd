/* What programs do without under the runtime. */
#include "guest.h"
#include <asm/prctl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static void refused(const char *what, long result)
{
	printf("%s: %s\n", what, result == -1 ? strerrorname_np(errno) : "done");
}

int main(void)
{
	struct io_uring_params params = { 0 };
	aio_context_t context = 0;
	unsigned long base;
	void *own = (void *)0x3f0000000000;
	refused("io_uring_setup", syscall(SYS_io_uring_setup, 4, &params));
	refused("io_setup", syscall(SYS_io_setup, 1, &context));
	refused("rseq", syscall(SYS_rseq, NULL, 32, 0, 0));
	refused("syscall_user_dispatch", prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, 0));
	refused("arch_prctl", syscall(SYS_arch_prctl, ARCH_GET_GS, &base));
	refused("mmap", (long)mmap(own, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	refused("munmap", munmap(own, 4096));
	return 0;
}

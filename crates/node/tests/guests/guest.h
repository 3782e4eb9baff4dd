/* What every guest has: each prints what it sees, which must be the same with and without the runtime. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* A line of what is seen. */
#define SEE(what, ...) printf(#what ": " __VA_ARGS__), puts("")

/* A condition that does not hold ends the guest, and says which. */
#define MUST(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: %s (%s)\n", __LINE__, #condition, strerror(errno)); \
			fflush(stdout); \
			_exit(99); \
		} \
	} while (0)

/* Runs in a child; how it ended. */
#define CHILD(...) \
	({ \
		fflush(stdout); \
		pid_t child_ = fork(); \
		MUST(child_ >= 0); \
		if (child_ == 0) { \
			__VA_ARGS__; \
			fflush(stdout); \
			_exit(0); \
		} \
		int status_; \
		MUST(waitpid(child_, &status_, 0) == child_); \
		status_; \
	})

/* Counts the alarms of a timer, and says so, until somebody ends it. */
#include "guest.h"
#include <poll.h>
#include <sys/timerfd.h>

static volatile int alarms;

static void count(int signal)
{
	(void)signal;
	alarms++;
}

int main(void)
{
	struct itimerval every = { { 0, 20000 }, { 0, 20000 } };
	struct itimerspec later = { { 0, 30000000 }, { 0, 30000000 } };
	int timer = timerfd_create(CLOCK_MONOTONIC, 0);

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGALRM, count);
	MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
	MUST(timerfd_settime(timer, 0, &later, NULL) == 0);
	for (int turn = 1;; turn++) {
		struct pollfd ready = { timer, POLLIN, 0 };
		uint64_t times = 0;
		MUST(poll(&ready, 1, -1) >= 0 || errno == EINTR);
		if (ready.revents)
			MUST(read(timer, &times, 8) == 8);
		SEE(turn, "%d, %d alarms, %s", turn, alarms, times ? "timer" : "none");
	}
}

/* Timers that have fired, that have yet to, and one that another program has left; says what it has heard. */
#include "guest.h"
#include <poll.h>
#include <sys/timerfd.h>

static volatile int alarms, heard;

static void alarmed(int signal)
{
	(void)signal;
	alarms++;
}

static void hears(int signal)
{
	(void)signal;
	heard++;
}

static int expired(struct pollfd *timer)
{
	uint64_t times;

	if (!timer->revents)
		return 0;
	MUST(read(timer->fd, &times, 8) == 8);
	return times;
}

int main(int argc, char **argv)
{
	struct itimerval last = { { 0, 0 }, { 4, 0 } };
	struct itimerspec soon = { { 0, 0 }, { 0, 100000000 } }, later = { { 1, 0 }, { 1, 500000000 } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
	struct pollfd timers[2] = { { .events = POLLIN }, { .events = POLLIN } };
	int once = 0, every = 0;
	timer_t timer;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 1) {
		signal(SIGALRM, SIG_IGN);
		MUST(setitimer(ITIMER_REAL, &last, NULL) == 0);
		execl(argv[0], argv[0], "again", NULL);
		MUST(!"it is executed again");
	}
	signal(SIGALRM, alarmed);
	signal(SIGRTMIN, hears);
	MUST(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
	MUST(timer_settime(timer, 0, &soon, NULL) == 0);
	timers[0].fd = timerfd_create(CLOCK_MONOTONIC, 0);
	MUST(timerfd_settime(timers[0].fd, 0, &soon, NULL) == 0);
	timers[1].fd = timerfd_create(CLOCK_MONOTONIC, 0);
	MUST(timerfd_settime(timers[1].fd, 0, &later, NULL) == 0);
	for (;;) {
		MUST(poll(timers, 2, 20) >= 0 || errno == EINTR);
		once += expired(&timers[0]);
		every += expired(&timers[1]);
		SEE(beat, "%d %d %d %d", alarms, heard, once, every);
	}
}

/* A thread waits for another one without a system call. */
#include "guest.h"

static volatile int flag;

static void *wait_for_it(void *argument)
{
	usleep(1000);
	while (!flag)
		;
	return argument;
}

int main(void)
{
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, wait_for_it, NULL) == 0);
	usleep(100000);
	flag = 1;
	MUST(pthread_join(thread, NULL) == 0);
	SEE(flag, "%d", flag);
	return 0;
}

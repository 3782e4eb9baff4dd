/* The first thread ends before the others; the last one ends the process by ending itself. */
#include "guest.h"

#include <time.h>

static void *last(void *argument)
{
	pthread_t first = *(pthread_t *)argument;
	MUST(pthread_join(first, NULL) == 0);
	struct timespec time;
	clock_gettime(CLOCK_REALTIME, &time);
	SEE(last, "%ld", time.tv_nsec);
	fflush(stdout);
	return NULL;
}

int main(void)
{
	static pthread_t self;
	self = pthread_self();
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, last, &self) == 0);
	SEE(first, "ends");
	pthread_exit(NULL);
}

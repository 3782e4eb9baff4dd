/* Threads: many, one after the other and at once, with signals of their own. */
#include "guest.h"
#include <sched.h>
#include <semaphore.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long total;
static __thread int own;
static __thread volatile sig_atomic_t told;
static sem_t ready;

static void *add(void *times)
{
	for (long i = 0; i < (long)times; i++) {
		pthread_mutex_lock(&mutex);
		total++;
		own++;
		pthread_mutex_unlock(&mutex);
		if (i % 64 == 0)
			sched_yield();
	}
	return (void *)(long)own;
}

static void tell(int signal)
{
	(void)signal;
	told++;
}

static void *listen_(void *none)
{
	(void)none;
	sigset_t set, old;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &set, &old);
	sem_post(&ready);
	while (told < 1)
		sigsuspend(&old);
	return (void *)(long)told;
}

static void *sleep_(void *none)
{
	sem_post(&ready);
	for (;;)
		pause();
	return none;
}

static void *nothing(void *it)
{
	return it;
}

int main(void)
{
	pthread_t threads[16];
	void *result;
	for (int i = 0; i < 16; i++)
		MUST(pthread_create(&threads[i], NULL, add, (void *)1000) == 0);
	long sum = 0;
	for (int i = 0; i < 16; i++) {
		MUST(pthread_join(threads[i], &result) == 0);
		sum += (long)result;
	}
	SEE(added, "%ld %ld", total, sum);

	for (long i = 0; i < 3000; i++) {
		MUST(pthread_create(&threads[0], NULL, nothing, (void *)i) == 0);
		MUST(pthread_join(threads[0], &result) == 0 && (long)result == i);
	}
	SEE(serial, "yes");

	struct sigaction action = { .sa_handler = tell };
	MUST(sigaction(SIGUSR1, &action, NULL) == 0);
	sem_init(&ready, 0, 0);
	for (int i = 0; i < 8; i++) {
		MUST(pthread_create(&threads[i], NULL, listen_, NULL) == 0);
		MUST(sem_wait(&ready) == 0);
	}
	for (int i = 0; i < 8; i++)
		MUST(pthread_kill(threads[i], SIGUSR1) == 0);
	sum = 0;
	for (int i = 0; i < 8; i++) {
		MUST(pthread_join(threads[i], &result) == 0);
		sum += (long)result;
	}
	SEE(told, "%ld, here %d", sum, (int)told);

	MUST(pthread_create(&threads[0], NULL, sleep_, NULL) == 0);
	MUST(sem_wait(&ready) == 0);
	MUST(pthread_cancel(threads[0]) == 0);
	MUST(pthread_join(threads[0], &result) == 0);
	SEE(cancelled, "%d", result == PTHREAD_CANCELED);

	/* A process of which only a thread is left. */
	SEE(thread_alone, "%x", CHILD(({
		pthread_t last;
		MUST(pthread_create(&last, NULL, nothing, NULL) == 0);
		pthread_exit(NULL);
	})));
	/* A thread forks; its child has one thread. */
	SEE(fork_among_threads, "%x", ({
		int status[4];
		pthread_t busy;
		MUST(pthread_create(&busy, NULL, add, (void *)100000) == 0);
		for (int i = 0; i < 4; i++)
			status[i] = CHILD(({
				pthread_t more;
				MUST(pthread_create(&more, NULL, nothing, NULL) == 0);
				MUST(pthread_join(more, NULL) == 0);
			}));
		MUST(pthread_join(busy, NULL) == 0);
		status[0] | status[1] | status[2] | status[3];
	}));
	return 0;
}

/* Threads that see each other's every step, without any order but the one in which they happen to go on. */
#include "guest.h"

#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <x86intrin.h>

enum { CREW = 6, STEPS = 60, LOG = 20000 };

/* What has happened, one behind the other: no lock protects it. */
static struct {
	int who, what;
	long seen;
} happened[LOG];
static volatile int length;

static void note(int who, int what, long seen)
{
	int at = length++;
	if (at < LOG) {
		happened[at].who = who;
		happened[at].what = what;
		happened[at].seen = seen;
	}
}

static long now(void)
{
	struct timespec time;
	MUST(clock_gettime(CLOCK_REALTIME, &time) == 0);
	return time.tv_nsec;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t places;
static long under_mutex, waiting, generation;
static int numbers[2], events, pair[2];
static _Thread_local int mine;
static volatile sig_atomic_t signals;

static void on_signal(int signal)
{
	signals++;
	note(mine, -signal, syscall(SYS_gettid));
}

/* Each of these waits for others, or is seen by them. */
static void step(int me, int number)
{
	int64_t count = 1;
	char byte = (char)number, message[2];
	switch ((me * 7 + number * 5) % 11) {
	case 0:
		pthread_mutex_lock(&mutex);
		under_mutex += me;
		if (number % 3 == 0)
			usleep(100);
		note(me, 0, under_mutex);
		pthread_mutex_unlock(&mutex);
		break;
	case 1:
		pthread_mutex_lock(&mutex);
		long before = generation;
		if (++waiting == 2) {
			waiting = 0;
			generation++;
			pthread_cond_broadcast(&changed);
		} else {
			struct timespec until;
			clock_gettime(CLOCK_REALTIME, &until);
			until.tv_nsec += 3000000;
			if (until.tv_nsec >= 1000000000)
				until.tv_sec++, until.tv_nsec -= 1000000000;
			while (generation == before)
				if (pthread_cond_timedwait(&changed, &mutex, &until) == ETIMEDOUT) {
					if (generation == before)
						waiting--;
					break;
				}
		}
		note(me, 1, generation - before);
		pthread_mutex_unlock(&mutex);
		break;
	case 2:
		MUST(write(numbers[1], &byte, 1) == 1);
		note(me, 2, byte);
		break;
	case 3:
		MUST(write(numbers[1], &byte, 1) == 1);
		MUST(read(numbers[0], &byte, 1) == 1);
		note(me, 3, byte);
		break;
	case 4:
		MUST(write(events, &count, 8) == 8);
		MUST(read(events, &count, 8) == 8 || errno == EAGAIN);
		note(me, 4, count);
		break;
	case 5:
		usleep(now() % 300);
		note(me, 5, now());
		break;
	case 6:
		sched_yield();
		note(me, 6, (long)__rdtsc());
		break;
	case 7:
		sem_wait(&places);
		note(me, 7, syscall(SYS_gettid));
		sched_yield();
		sem_post(&places);
		break;
	case 8:;
		/* Descriptors: the lowest number that is free, whoever asks. */
		int fd = open("/etc/passwd", O_RDONLY);
		note(me, 8, fd);
		if (number % 2)
			sched_yield();
		MUST(fd >= 0 && read(fd, message, 2) == 2 && close(fd) == 0);
		break;
	case 9:
		MUST(send(pair[0], &byte, 1, 0) == 1);
		MUST(recv(pair[1], &byte, 1, 0) == 1);
		note(me, 9, byte);
		break;
	case 10:;
		void *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		note(me, 10, (long)memory);
		sched_yield();
		MUST(memory != MAP_FAILED && munmap(memory, 8192) == 0);
		break;
	}
}

static void *work(void *argument)
{
	int me = mine = (int)(long)argument;
	pthread_barrier_wait(&barrier);
	for (int number = 0; number < STEPS; number++)
		step(me, number);
	note(me, 20, mine);
	return (void *)(long)(me + length);
}

static void *short_life(void *argument)
{
	note(100, 21, syscall(SYS_gettid));
	if (argument)
		usleep(50);
	return argument;
}

/* A client and a server in one program: what they say goes through the kernel. */
static void *client(void *argument)
{
	struct sockaddr_in *to = argument;
	for (int number = 0; number < 20; number++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		MUST(fd >= 0 && connect(fd, (void *)to, sizeof *to) == 0);
		note(200, 30, fd);
		char text[40];
		int len = sprintf(text, "%d %ld", number, now());
		MUST(send(fd, text, len, 0) == len);
		MUST(recv(fd, text, sizeof text, 0) == len);
		MUST(close(fd) == 0);
	}
	return NULL;
}

static void *serve(void *argument)
{
	int listener = *(int *)argument;
	for (int number = 0; number < 20; number++) {
		int fd = accept(listener, NULL, NULL);
		MUST(fd >= 0);
		note(201, 31, fd);
		char text[40];
		ssize_t len = recv(fd, text, sizeof text, 0);
		MUST(len > 0 && send(fd, text, len, 0) == len);
		MUST(close(fd) == 0);
	}
	return NULL;
}

int main(void)
{
	pthread_t crew[CREW];
	MUST(pipe(numbers) == 0 && (events = eventfd(0, EFD_NONBLOCK)) >= 0);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	MUST(sem_init(&places, 0, 2) == 0 && pthread_barrier_init(&barrier, NULL, CREW) == 0);
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	sigaction(SIGUSR1, &action, NULL);
	for (long me = 0; me < CREW; me++)
		MUST(pthread_create(&crew[me], NULL, work, (void *)(me + 1)) == 0);
	for (int number = 0; number < 40; number++) {
		pthread_kill(crew[number % CREW], SIGUSR1);
		usleep(200);
		pthread_t shortly;
		MUST(pthread_create(&shortly, NULL, short_life, (void *)(long)(number % 2)) == 0);
		if (number % 3)
			MUST(pthread_join(shortly, NULL) == 0);
		else
			MUST(pthread_detach(shortly) == 0);
	}
	long sum = 0;
	for (int me = 0; me < CREW; me++) {
		void *came;
		MUST(pthread_join(crew[me], &came) == 0);
		sum += (long)came;
	}
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof at;
	MUST(bind(listener, (void *)&at, size) == 0 && listen(listener, 5) == 0);
	MUST(getsockname(listener, (void *)&at, &size) == 0);
	MUST(pthread_create(&crew[0], NULL, serve, &listener) == 0);
	MUST(pthread_create(&crew[1], NULL, client, &at) == 0);
	MUST(pthread_join(crew[0], NULL) == 0 && pthread_join(crew[1], NULL) == 0);
	for (int at = 0; at < length && at < LOG; at++)
		printf("%d %d %ld\n", happened[at].who, happened[at].what, happened[at].seen);
	SEE(all, "%d steps, %ld, %d signals", length, sum, (int)signals);
	fflush(stdout);
	/* One of them ends the process while others wait. */
	MUST(pthread_create(&crew[0], NULL, (void *(*)(void *))(void *)pause, NULL) == 0);
	exit(3);
}

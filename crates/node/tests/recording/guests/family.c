/* Processes that wait for each other, send each other bytes and descriptors, share memory and files, and execute
 * programs; and what becomes of them. */
#include "guest.h"

#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <time.h>

enum { CHILDREN = 5, STEPS = 40 };

static long now(void)
{
	struct timespec time;
	MUST(clock_gettime(CLOCK_REALTIME, &time) == 0);
	return time.tv_nsec;
}

/* Memory that all of them see, and that no lock protects. */
static struct shared {
	volatile int length;
	struct {
		int who, what;
		long seen;
	} happened[20000];
	pthread_mutex_t mutex;
	long under_mutex;
} *shared;

static void note(int who, int what, long seen)
{
	int at = shared->length++;
	if (at < 20000) {
		shared->happened[at].who = who;
		shared->happened[at].what = what;
		shared->happened[at].seen = seen;
	}
}

static int numbers[2], pair[2], file;

static void child(int me)
{
	char byte = (char)me;
	for (int number = 0; number < STEPS; number++) {
		switch ((me * 3 + number) % 7) {
		case 0:
			usleep(now() % 200);
			note(me, 0, now());
			break;
		case 1:
			MUST(write(numbers[1], &byte, 1) == 1);
			MUST(read(numbers[0], &byte, 1) == 1);
			note(me, 1, byte);
			break;
		case 2:
			pthread_mutex_lock(&shared->mutex);
			if (number % 2)
				usleep(50);
			note(me, 2, shared->under_mutex += me);
			pthread_mutex_unlock(&shared->mutex);
			break;
		case 3: {
			/* One offset for all. */
			char text[40];
			int len = sprintf(text, "%d %ld\n", me, now());
			MUST(write(file, text, len) == len);
			note(me, 3, lseek(file, 0, SEEK_CUR));
			break;
		}
		case 4:
			MUST(flock(file, LOCK_EX) == 0);
			sched_yield();
			note(me, 4, getpid());
			MUST(flock(file, LOCK_UN) == 0);
			break;
		case 5:
			if (number % 5 == 0)
				note(me, 5, WEXITSTATUS(CHILD(note(me, 50, getppid()); _exit(number))));
			break;
		case 6:
			sched_yield();
			note(me, 6, syscall(SYS_gettid));
			break;
		}
	}
}

/* Sends a descriptor, or gets one. */
static int pass(int socket, int fd)
{
	char byte = 'f', room[CMSG_SPACE(sizeof(int))] = "";
	struct iovec vector = { &byte, 1 };
	struct msghdr message = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof room };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	if (fd >= 0) {
		head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &fd, sizeof fd);
		MUST(sendmsg(socket, &message, 0) == 1);
	} else {
		MUST(recvmsg(socket, &message, 0) == 1);
		head = CMSG_FIRSTHDR(&message);
		MUST(head && head->cmsg_type == SCM_RIGHTS);
		memcpy(&fd, CMSG_DATA(head), sizeof fd);
	}
	return fd;
}

static volatile sig_atomic_t died;

static void on_child(int signal)
{
	(void)signal;
	died++;
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		printf("executed: %s %ld\n", argv[1], now());
		return 5;
	}
	MUST((file = open("together", O_CREAT | O_RDWR | O_TRUNC, 0600)) >= 0);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED && pipe(numbers) == 0);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pthread_mutexattr_t attributes;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&shared->mutex, &attributes);
	struct sigaction action = { .sa_handler = on_child, .sa_flags = SA_RESTART };
	sigaction(SIGCHLD, &action, NULL);
	for (int me = 1; me <= CHILDREN; me++) {
		pid_t pid = fork();
		MUST(pid >= 0);
		if (pid == 0) {
			child(me);
			_exit(me);
		}
		note(0, 1, pid);
	}
	for (int number = 0; number < CHILDREN; number++) {
		int status;
		pid_t pid = wait(&status);
		MUST(pid > 0);
		note(0, 2, WEXITSTATUS(status));
	}
	/* A child that hears of its parent's descriptors, and ends when it is told to. */
	pid_t receiver = fork();
	if (receiver == 0) {
		int got = pass(pair[1], -1);
		note(7, 7, got);
		MUST(lseek(got, 0, SEEK_SET) == 0);
		char text[10];
		MUST(read(got, text, 5) == 5);
		pause();
	}
	int sent = dup(file);
	pass(pair[0], sent);
	MUST(close(sent) == 0);
	while (lseek(file, 0, SEEK_CUR) != 5)
		sched_yield();
	MUST(kill(receiver, SIGKILL) == 0);
	int status;
	MUST(waitpid(receiver, &status, 0) == receiver && WTERMSIG(status) == SIGKILL);
	/* What a child writes at once is more than a pipe holds. */
	pid_t writer = fork();
	if (writer == 0) {
		static char much[300000];
		for (unsigned at = 0; at < sizeof much; at++)
			much[at] = (char)(at * 7 >> 3);
		MUST(write(numbers[1], much, sizeof much) == sizeof much);
		_exit(0);
	}
	MUST(close(numbers[1]) == 0);
	char some[5000];
	long sum = 0, got;
	while ((got = read(numbers[0], some, sizeof some)) > 0)
		for (long at = 0; at < got; at++)
			sum = sum * 31 + some[at];
	MUST(waitpid(writer, &status, 0) == writer && status == 0);
	note(0, 8, sum);
	/* Programs: of a copy, and of who has shared the memory. */
	for (int number = 0; number < 3; number++) {
		char *words[] = { argv[0], number ? "spawned" : "copied", NULL };
		pid_t pid;
		fflush(stdout);
		if (number) {
			MUST(posix_spawn(&pid, argv[0], NULL, NULL, words, NULL) == 0);
		} else {
			pid = fork();
			if (pid == 0) {
				execv(argv[0], words);
				_exit(1);
			}
		}
		MUST(waitpid(pid, &status, 0) == pid);
		SEE(status, "%d", WEXITSTATUS(status));
	}
	pid_t nobody;
	char *words[] = { "none", NULL };
	SEE(none, "%d", posix_spawn(&nobody, "/none", NULL, NULL, words, NULL));
	for (int at = 0; at < shared->length && at < 20000; at++)
		printf("%d %d %ld\n", shared->happened[at].who, shared->happened[at].what,
		       shared->happened[at].seen);
	SEE(died, "%d", died > 0);
	/* One that is left alone goes on. */
	fflush(stdout);
	if (fork() == 0) {
		usleep(20000);
		SEE(alone, "%ld", now());
		fflush(stdout);
		_exit(4);
	}
	return 4;
}

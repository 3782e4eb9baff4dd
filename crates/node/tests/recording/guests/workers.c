/* A server: one thread accepts, others answer with what is in their memory, which each request changes. */
#include "guest.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { WORKERS = 4, ROOM = 8 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_more = PTHREAD_COND_INITIALIZER, has_room = PTHREAD_COND_INITIALIZER;
static int queue[ROOM], from, count;
static long answered;

static void *work(void *argument)
{
	for (;;) {
		pthread_mutex_lock(&mutex);
		while (count == 0)
			pthread_cond_wait(&has_more, &mutex);
		int fd = queue[from];
		from = (from + 1) % ROOM, count--;
		pthread_cond_signal(&has_room);
		pthread_mutex_unlock(&mutex);
		char text[200];
		ssize_t got = recv(fd, text, sizeof text - 1, 0);
		if (got > 0) {
			pthread_mutex_lock(&mutex);
			long number = ++answered;
			pthread_mutex_unlock(&mutex);
			int len = sprintf(text, "HTTP/1.0 200 OK\r\n\r\n%ld %ld %d\n", number, (long)argument,
					  getpid());
			send(fd, text, len, MSG_NOSIGNAL);
		}
		close(fd);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	MUST(argc == 2);
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				  .sin_port = htons(atoi(argv[1])) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
	MUST(bind(listener, (void *)&at, sizeof at) == 0 && listen(listener, 50) == 0);
	for (long me = 1; me <= WORKERS; me++) {
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, work, (void *)me) == 0);
	}
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		MUST(fd >= 0);
		pthread_mutex_lock(&mutex);
		while (count == ROOM)
			pthread_cond_wait(&has_room, &mutex);
		queue[(from + count++) % ROOM] = fd;
		pthread_cond_signal(&has_more);
		pthread_mutex_unlock(&mutex);
	}
}

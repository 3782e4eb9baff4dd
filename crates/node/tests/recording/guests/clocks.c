/* What is another each time, however it is asked for. */
#include "guest.h"
#include <sys/auxv.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <x86intrin.h>

int main(void)
{
	struct timespec now, rest;
	struct timeval day;
	struct rusage usage;
	struct sysinfo machine;
	unsigned long chance[4];
	unsigned processor;

	for (int clock = 0; clock < 8; clock++) {
		MUST(clock_gettime(clock, &now) == 0);
		SEE(clock, "%d %ld.%09ld", clock, now.tv_sec, now.tv_nsec);
	}
	MUST(gettimeofday(&day, NULL) == 0);
	SEE(day, "%ld.%06ld %ld", day.tv_sec, day.tv_usec, time(NULL));
	SEE(counter, "%llu %llu", __rdtsc(), __rdtscp(&processor));
	SEE(processor, "%u %d", processor & 0xfff, sched_getcpu());
	MUST(getrandom(chance, sizeof(chance), 0) == sizeof(chance));
	SEE(chance, "%lx %lx", chance[0], chance[3]);
	memcpy(chance, (void *)getauxval(AT_RANDOM), 16);
	SEE(beginning, "%lx %lx", chance[0], chance[1]);
	int fd = open("/dev/urandom", O_RDONLY);
	MUST(fd >= 0 && read(fd, chance, 8) == 8 && close(fd) == 0);
	SEE(device, "%lx", chance[0]);
	SEE(identity, "%d %d %d", getpid(), getppid(), getpgrp());
	MUST(getrusage(RUSAGE_SELF, &usage) == 0 && sysinfo(&machine) == 0);
	SEE(used, "%ld %lu", usage.ru_utime.tv_usec, machine.freeram);
	MUST(clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ .tv_nsec = 1000000 }, &rest) == 0);

	/* What the kernel makes up. */
	char line[4096];
	FILE *stat = fopen("/proc/self/stat", "r");
	MUST(stat && fgets(line, sizeof(line), stat));
	printf("stat: %s", line);
	fclose(stat);
	struct stat self;
	MUST(fstatat(AT_FDCWD, "/proc/self", &self, 0) == 0);
	SEE(folder, "%lu %ld", self.st_ino, self.st_mtim.tv_nsec);
	return 0;
}

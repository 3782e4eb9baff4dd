/* What a program finds when it begins. */
#include "guest.h"
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>

extern char **environ;
static char zeros[100000];
static int initialised = 42;

static void comm(void)
{
	char name[32] = "";
	MUST(prctl(PR_GET_NAME, name) == 0);
	SEE(comm, "%s", name);
}

static void file(const char *path)
{
	char bytes[4096];
	int fd = open(path, O_RDONLY);
	MUST(fd >= 0);
	ssize_t got = read(fd, bytes, sizeof bytes);
	MUST(got >= 0);
	close(fd);
	for (ssize_t i = 0; i < got; i++)
		putchar(bytes[i] ? bytes[i] : '|');
	puts("");
}

int main(int argc, char **argv)
{
	SEE(argc, "%d", argc);
	for (int i = 0; i <= argc; i++)
		SEE(argv, "%s", argv[i] ? argv[i] : "none");
	for (char **e = environ; *e; e++)
		if (!strncmp(*e, "GUEST", 5))
			SEE(environment, "%s", *e);
	comm();
	file("/proc/self/cmdline");

	char exe[PATH_MAX] = "";
	MUST(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0);
	SEE(exe, "%s", exe);
	SEE(execfn, "%s", (char *)getauxval(AT_EXECFN));
	SEE(pagesize, "%lu", getauxval(AT_PAGESZ));
	const Elf64_Phdr *headers = (void *)getauxval(AT_PHDR);
	SEE(headers, "%lu of %lu, first of type %u", getauxval(AT_PHNUM), getauxval(AT_PHENT),
	    headers[0].p_type);
	SEE(stack_aligned, "%d", (int)((uintptr_t)(argv - 1) % 16));

	for (size_t i = 0; i < sizeof zeros; i++)
		MUST(zeros[i] == 0);
	SEE(data, "%d", initialised);
	char *before = sbrk(1 << 20);
	MUST(before != (void *)-1);
	memset(before, 1, 1 << 20);
	MUST(sbrk(0) == before + (1 << 20));
	MUST(before >= zeros + sizeof zeros || before < zeros);
	/* The first descriptor that is free. */
	int fd = open("/dev/null", O_RDONLY);
	SEE(descriptor, "%d", fd);
	double sum = 0;
	for (int i = 1; i < 1000; i++)
		sum += 1.0 / i;
	SEE(floats, "%.12f", sum);
	return argc;
}

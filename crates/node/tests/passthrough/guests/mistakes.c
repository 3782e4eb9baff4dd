/* Calls that cannot be made as they are asked for: the runtime, which makes them in its own way, says what
 * the kernel would. */
#include "guest.h"
#include <linux/sched.h>
#include <sys/stat.h>

#define AT_EXECVE_CHECK 0x10000

extern char **environ;

static char *words[] = { "true", NULL };

static void at(const char *what, int dir, const char *path, int flags)
{
	int status = CHILD({
		long result = syscall(SYS_execveat, dir, path, words, environ, flags);
		printf("%s: %s\n", what, result ? strerrorname_np(errno) : "fine");
		fflush(stdout);
		_exit(7);
	});
	SEE(ended, "%x", status);
}

static void executed(void)
{
	int file = open("/bin/true", O_PATH | O_CLOEXEC);
	MUST(file >= 0 && dup2(file, 1500) == 1500 && close(1500) == 0);
	at("no descriptor", -1, "", AT_EMPTY_PATH);
	at("one that is not open", 1500, "", AT_EMPTY_PATH);
	at("the folder", AT_FDCWD, "", AT_EMPTY_PATH);
	at("no path", file, "", 0);
	at("what is no folder", file, "true", 0);
	at("unknown flags", AT_FDCWD, "/bin/true", -1);
	at("only asked", AT_FDCWD, "/bin/true", AT_EXECVE_CHECK);
	at("only asked of a text", AT_FDCWD, "/etc/passwd", AT_EXECVE_CHECK);
	char busy[] = "/tmp/busy-XXXXXX";
	int writer = mkstemp(busy);
	MUST(writer >= 0 && fchmod(writer, 0700) == 0 && write(writer, "#!/bin/true\n", 12) == 12);
	at("that is being written", AT_FDCWD, busy, 0);
	MUST(close(writer) == 0);
	at("that was written", AT_FDCWD, busy, 0);
	MUST(unlink(busy) == 0);
	at("without mistake", file, "", AT_EMPTY_PATH);
}

/* A page at whose end nothing follows. */
static char *page_before_nothing(void)
{
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(page != MAP_FAILED && mprotect(page + 4096, 4096, PROT_NONE) == 0);
	return page;
}

static void cloned(const char *what, void *args, size_t size)
{
	fflush(stdout);
	long pid = syscall(SYS_clone3, args, size);
	if (pid == 0)
		_exit(0);
	printf("%s: %s\n", what, pid < 0 ? strerrorname_np(errno) : "fine");
	MUST(pid < 0 || waitpid((pid_t)pid, NULL, 0) == pid);
}

static void threads_and_processes(void)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	char *end = page_before_nothing() + 4096;
	cloned("nothing", NULL, sizeof args);
	cloned("too short", &args, 63);
	cloned("the first version", memcpy(end - 64, &args, 64), 64);
	cloned("longer than there is memory", memcpy(end - sizeof args, &args, sizeof args), sizeof args + 1);
	char *later = end - sizeof args - 16;
	memset(later, 0, sizeof args + 16);
	memcpy(later, &args, sizeof args);
	cloned("from a later header", later, sizeof args + 16);
	later[sizeof args + 3] = 1;
	cloned("with what it has more", later, sizeof args + 16);
	cloned("longer than a page", later, 5000);
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	executed();
	threads_and_processes();
	return 0;
}

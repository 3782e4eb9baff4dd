/* Children, and what they execute. The first argument is this file's folder. */
#include "guest.h"
#include <linux/sched.h>
#include <spawn.h>
#include <sys/stat.h>

extern char **environ;

static char *in(const char *dir, const char *name)
{
	static char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static char *make(const char *dir, const char *name, int mode, const char *text)
{
	char *path = in(dir, name);
	unlink(path);
	int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
	MUST(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	MUST(fchmod(fd, mode) == 0 && close(fd) == 0);
	return path;
}

static void run(const char *path, char *const argv[])
{
	int status = CHILD({
		execve(path, argv, environ);
		SEE(refused, "%s", strerrorname_np(errno));
		fflush(stdout);
		_exit(1);
	});
	SEE(status, "%x", status);
}

int main(int argc, char **argv)
{
	MUST(argc == 2);
	const char *dir = argv[1];
	setvbuf(stdout, NULL, _IONBF, 0);
	char *echo[] = { "echo", "one", "two words", NULL };
	run("/bin/echo", echo);
	run("/nonexistent/file", echo);
	run("/etc/passwd", echo);
	run("/", echo);
	run(make(dir, "not-a-program", 0700, "\001\002\003\004"), echo);
	run(make(dir, "empty", 0700, ""), echo);
	run(make(dir, "script", 0700, "#!/bin/sh -f\necho \"$0\" \"$@\" $-\n"), echo);
	run(make(dir, "script-of-script", 0700, "#! script with words\n"), echo);
	char script[PATH_MAX], first[PATH_MAX + 16];
	snprintf(script, sizeof script, "%s", in(dir, "script"));
	snprintf(first, sizeof first, "#!%s  a b \n", script);
	run(make(dir, "script-of-script", 0700, first), echo);
	char loop[PATH_MAX + 8];
	snprintf(loop, sizeof loop, "#!%s\n", in(dir, "loop"));
	run(make(dir, "loop", 0700, loop), echo);
	run(make(dir, "no-interpreter", 0700, "#!/nonexistent/interpreter\n"), echo);
	run("/bin/echo", (char *[]){ NULL });
	void *volatile bad_address = (void *)8;
	CHILD(execve("/bin/echo", bad_address, environ); SEE(refused, "%s", strerrorname_np(errno)));
	CHILD(execve(bad_address, echo, environ); SEE(refused, "%s", strerrorname_np(errno)));
	int fd = open("/bin/echo", O_RDONLY | O_CLOEXEC);
	MUST(fd >= 0);
	SEE(by_descriptor, "%x", CHILD(fexecve(fd, echo, environ)));
	MUST(chdir("/bin") == 0);
	SEE(by_relative_path, "%x", CHILD(execve("./echo", echo, environ)));
	int bin = open("/", O_PATH | O_DIRECTORY);
	SEE(by_folder, "%x", CHILD(syscall(SYS_execveat, bin, "bin/echo", echo, environ, 0)));

	/* Memory shared with the parent. */
	static volatile int shared;
	pid_t pid = vfork();
	if (pid == 0) {
		shared = 5;
		execve("/bin/true", (char *[]){ "true", NULL }, environ);
		_exit(1);
	}
	int status;
	MUST(waitpid(pid, &status, 0) == pid);
	SEE(vfork, "%d %x", shared, status);
	for (volatile int i = 0; i < 200; i++) {
		MUST((pid = vfork()) >= 0);
		if (pid == 0)
			_exit(i & 1);
		MUST(waitpid(pid, &status, 0) == pid && status == (i & 1) << 8);
	}
	MUST(posix_spawn(&pid, "/bin/echo", NULL, NULL, echo, environ) == 0);
	MUST(waitpid(pid, &status, 0) == pid);
	SEE(spawn, "%x", status);
	SEE(spawn_nothing, "%s",
	    strerrorname_np(posix_spawn(&pid, "/nonexistent", NULL, NULL, echo, environ)));

	/* What a child inherits of handlers. */
	signal(SIGUSR1, SIG_IGN);
	signal(SIGUSR2, exit);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	SEE(system, "%x",
	    system("grep -E '^Sig(Blk|Ign)' /proc/self/status; kill -USR1 $$; echo ignored; "
		   "kill -USR2 $$; echo not reached"));
	struct clone_args args = { .flags = CLONE_CLEAR_SIGHAND, .exit_signal = SIGCHLD };
	pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
	MUST(pid >= 0);
	if (pid == 0) {
		struct sigaction one, two;
		sigaction(SIGUSR1, NULL, &one);
		sigaction(SIGUSR2, NULL, &two);
		_exit((one.sa_handler == SIG_IGN) | (two.sa_handler == SIG_DFL) << 1);
	}
	MUST(waitpid(pid, &status, 0) == pid);
	SEE(cleared, "%x", status);
	struct sigaction two;
	sigaction(SIGUSR2, NULL, &two);
	SEE(parent_keeps, "%d", two.sa_handler == exit);

	FILE *pipe_ = popen("tr a-z A-Z | tr O 0", "w");
	MUST(pipe_ && fputs("hello world\n", pipe_) > 0);
	SEE(popen, "%x", pclose(pipe_));
	/* Without rights, in another root. */
	SEE(unprivileged, "%x", CHILD({
		MUST(setgid(65534) == 0 && setuid(65534) == 0);
		execve("/bin/sh", (char *[]){ "sh", "-c", "id -u; exec id -g", NULL }, environ);
	}));
	fflush(stdout);
	execve("/bin/sh", (char *[]){ "sh", "-c", "echo last; exit 3", NULL }, environ);
	return 1;
}

/* Files, pipes and memory: each replica has its own. Run in an empty folder. */
#include "guest.h"
#include <dirent.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

static void seen(const char *path)
{
	struct stat st;
	MUST(stat(path, &st) == 0);
	SEE(file, "%s %ld bytes, inode %lu, %ld.%09ld", path, st.st_size, st.st_ino, st.st_mtim.tv_sec,
	    st.st_mtim.tv_nsec);
}

int main(void)
{
	char buffer[64] = "", second[64];
	int ends[2], fd = open("one", O_RDWR | O_CREAT | O_EXCL, 0644);

	/* Bytes in, bytes out. */
	MUST(fd == 3 && write(fd, "some words\n", 11) == 11);
	MUST(lseek(fd, 5, SEEK_SET) == 5 && read(fd, buffer, sizeof(buffer)) == 6);
	SEE(read, "%s", buffer);
	struct iovec pieces[] = { { "and ", 4 }, { "more", 4 } };
	MUST(writev(fd, pieces, 2) == 8 && pread(fd, second, 8, 11) == 8);
	MUST(pwrite(fd, "S", 1, 0) == 1 && ftruncate(fd, 15) == 0 && fsync(fd) == 0);
	MUST(flock(fd, LOCK_EX) == 0 && lseek(fd, 0, SEEK_END) == 15);
	seen("one");

	/* Descriptors and names. */
	MUST(dup(fd) == 4 && dup2(fd, 9) == 9 && fcntl(9, F_DUPFD_CLOEXEC, 20) == 20);
	MUST(close(4) == 0 && close(9) == 0 && close(20) == 0 && close(9) == -1);
	/* Once more, by the number under which it is open: a file like any other. */
	sprintf(second, "/proc/self/fd/%d", fd);
	int again = open(second, O_RDONLY);
	MUST(again == 4 && read(again, buffer, 15) == 15 && lseek(again, 2, SEEK_SET) == 2 && close(again) == 0);
	SEE(again, "%.15s", buffer);
	MUST(mkdir("folder", 0755) == 0 && rename("one", "folder/two") == 0);
	MUST(symlink("folder/two", "link") == 0 && readlink("link", buffer, 64) == 10);
	MUST(access("one", F_OK) == -1 && open("none", O_RDONLY) == -1);
	seen("link");
	DIR *folder = opendir(".");
	for (struct dirent *entry; (entry = readdir(folder)); )
		SEE(entry, "%s %lu", entry->d_name, entry->d_ino);
	closedir(folder);
	MUST(chdir("folder") == 0 && unlink("two") == 0);
	SEE(here, "%s", strrchr(getcwd(second, sizeof(second)) ?: "/", '/'));

	/* Within the process. */
	MUST(pipe(ends) == 0 && write(ends[1], "through", 7) == 7);
	MUST(read(ends[0], buffer, sizeof(buffer)) == 7 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	MUST(read(ends[0], buffer, sizeof(buffer)) == -1 && errno == EAGAIN);
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	MUST(write(ends[0], "across", 6) == 6 && read(ends[1], buffer, 64) == 6);
	uint64_t count = 5;
	int event = eventfd(3, 0);
	MUST(write(event, &count, 8) == 8 && read(event, &count, 8) == 8 && count == 8);

	/* Memory. */
	void *at[4];
	for (int i = 0; i < 4; i++) {
		at[i] = mmap(NULL, 1 << (14 + i), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(at[i] != MAP_FAILED);
	}
	at[1] = mremap(at[1], 1 << 15, 1 << 20, MREMAP_MAYMOVE);
	MUST(at[1] != MAP_FAILED && munmap(at[2], 1 << 16) == 0);
	void *text = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	MUST(text != MAP_FAILED && memcmp(text, "Some words\nand ", 15) == 0);
	SEE(memory, "%p %p %p %p, %p", at[0], at[1], at[3], text, sbrk(4096));
	for (int i = 0; i < 100; i++)
		MUST(malloc(1000 * i));
	SEE(heap, "%p", sbrk(0));
	return 0;
}

/* Executes its arguments; the first system call of theirs that is not made in the runtime kills them. */
#include "guest.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

int main(int argc, char **argv)
{
	/* The upper half of the address behind the instruction that makes the call. */
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, instruction_pointer) + 4),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x3f00, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	MUST(argc > 1);
	/* Not PR_SET_NO_NEW_PRIVS: whoever runs the tests may do without, and programs behave differently. */
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 127;
}

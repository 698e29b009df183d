/*
 * Signals stay the program's, beside the library's thread.
 *
 *   sigwait SIGNAL   a daemon blocks all signals and takes each by sigwaitinfo; another process
 *                    sends it this one
 *   sigwait traps    a filter of system calls, which the program adds for all its threads, makes
 *                    purges raise SIGSYS; the program's handler refuses them
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "check.h"

enum { BLOCKS = 20480, BLOCK_BYTES = 1024 };
static char *blocks[BLOCKS];

static int threads(void) {
    int count = -2;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    while (readdir(tasks) != NULL) count++;
    closedir(tasks);
    return count;
}

/* Allocates until the library has its thread. */
static void grow(void) {
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BLOCK_BYTES);
        CHECK(blocks[i] != NULL);
        memset(blocks[i], 1, BLOCK_BYTES);
    }
    for (int i = 0; i < 1000 && threads() < 2; i++) usleep(10 * 1000);
    CHECK(threads() == 2);
    usleep(50 * 1000);
}

static void takes(int number) {
    sigset_t all;
    siginfo_t taken;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
    grow();
    pid_t sender = fork();
    CHECK(sender >= 0);
    if (sender == 0) _exit(kill(getppid(), number));
    int status;
    CHECK(waitpid(sender, &status, 0) == sender && status == 0);
    /* A thread that does not block the signal has it by now. */
    usleep(50 * 1000);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    CHECK(sigwaitinfo(&one, &taken) == number && taken.si_pid == sender);
}

static volatile long refused_elsewhere;

/* Makes the refused call return EINVAL. */
static void refuse(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    ucontext_t *interrupted = context;
    if (syscall(SYS_gettid) != getpid()) refused_elsewhere++;
#if defined __x86_64__
    interrupted->uc_mcontext.gregs[REG_RAX] = -EINVAL;
#elif defined __aarch64__
    interrupted->uc_mcontext.regs[0] = (unsigned long long)-EINVAL;
#endif
}

static void traps(void) {
    struct sigaction action = {.sa_sigaction = refuse, .sa_flags = SA_SIGINFO};
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_DONTNEED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    grow();
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    /* Idle memory rests about a second. */
    for (int i = 0; i < 2000 && refused_elsewhere == 0; i++) usleep(10 * 1000);
    CHECK(refused_elsewhere > 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (strcmp(argv[1], "traps") == 0) traps();
    else takes(atoi(argv[1]));
    puts("ok");
    return 0;
}

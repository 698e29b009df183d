/*
 * Locked memory.
 *
 *   locked unprivileged HOW WHEN   mlockall by a user with RLIMIT_MEMLOCK of 8 MiB, the default of
 *                                  distributions. HOW is `current`, `future`, `both`, or
 *                                  `onfault`: both, but a page when it is touched. WHEN is
 *                                  `before` or `after` the first allocation.
 *   locked refused                 the kernel refuses every purge, as it does for locked pages: few
 *                                  calls are made in vain, for any number of freed blocks.
 *   locked kept                    memory that mlockall locked stays until malloc_trim asks for it.
 */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

struct link {
    struct link *next;
};

/* Allocates objects of a kilobyte, up to `most` bytes or the first refusal, and frees all. Returns
 * the bytes allocated. */
static size_t use(size_t most) {
    struct link *first = NULL;
    size_t bytes = 0;
    for (struct link *object; bytes < most; bytes += 1000) {
        errno = 0;
        object = malloc(1000);
        if (object == NULL) {
            CHECK(errno == ENOMEM);
            break;
        }
        CHECK(errno == 0);
        memset(object, 1, 1000);
        object->next = first;
        first = object;
    }
    while (first != NULL) {
        struct link *next = first->next;
        free(first);
        first = next;
    }
    return bytes;
}

static void unprivileged(const char *how, const char *when) {
    struct rlimit limit = {8 << 20, 8 << 20};
    int flags = 0;
    if (strcmp(how, "future") != 0) flags |= MCL_CURRENT;
    if (strcmp(how, "current") != 0) flags |= MCL_FUTURE;
    if (strcmp(how, "onfault") == 0) flags |= MCL_ONFAULT;
    if (strcmp(when, "after") == 0) CHECK(use(100000) == 100000);
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (geteuid() == 0) CHECK(setresuid(65534, 65534, 65534) == 0);
    CHECK(mlockall(flags) == 0);
    /* The same amount fits again. With MCL_FUTURE all of it is locked, and the limit bounds it. */
    size_t first = use(64 << 20);
    fprintf(stderr, "%zu KiB were allocated\n", first >> 10);
    CHECK(first >= 1 << 20);
    CHECK((flags & MCL_FUTURE) ? first < 8 << 20 : first >= 64 << 20);
    for (int round = 0; round < 5; round++) CHECK(use(64 << 20) >= first);
}

static volatile long refusals;

/* Makes the refused call return EINVAL. */
static void refuse(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    ucontext_t *interrupted = context;
    __atomic_fetch_add(&refusals, 1, __ATOMIC_RELAXED);
#if defined __x86_64__
    interrupted->uc_mcontext.gregs[REG_RAX] = -EINVAL;
#elif defined __aarch64__
    interrupted->uc_mcontext.regs[0] = (unsigned long long)-EINVAL;
#endif
}

static void refuse_purges(void) {
    struct sigaction action = {.sa_sigaction = refuse, .sa_flags = SA_SIGINFO};
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_DONTNEED, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 24 /* MADV_DONTNEED_LOCKED */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

enum { BLOCKS = 2048, BLOCK_BYTES = 65536 };
static char *blocks[BLOCKS];

static void wave(void) {
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BLOCK_BYTES);
        CHECK(blocks[i] != NULL);
        blocks[i][0] = blocks[i][BLOCK_BYTES - 1] = (char)i;
    }
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(blocks[i][0] == (char)i && blocks[i][BLOCK_BYTES - 1] == (char)i);
        free(blocks[i]);
    }
}

static void refused(void) {
    refuse_purges();
    for (int round = 0; round < 4; round++) wave();
    long seen = refusals;
    fprintf(stderr, "%ld calls were refused while %d blocks were freed\n", seen, 4 * BLOCKS);
    /* One attempt for each chunk, 64 for 128 MiB, and again every ten seconds. */
    CHECK(seen > 0 && seen < 1000);
    malloc_trim(0);
    wave();
}

static void kept(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0 || (geteuid() != 0 && limit.rlim_cur != RLIM_INFINITY)) {
        /* Skipped: the call requires a privilege. */
        return;
    }
    wave();
    usleep(1500 * 1000);
    long before = status_kib("VmRSS:");
    fprintf(stderr, "%ld KiB resident after the frees\n", before);
    CHECK(before > 120 << 10);
    CHECK(malloc_trim(0) == 1);
    long after = status_kib("VmRSS:");
    fprintf(stderr, "%ld KiB after the trim\n", after);
    CHECK(after < 32 << 10);
    /* Reused memory is zero for calloc, and locked. */
    char *block = calloc(1, 1 << 20);
    CHECK(block != NULL);
    for (int i = 0; i < 1 << 20; i++) CHECK(block[i] == 0);
    memset(block, 1, 1 << 20);
    CHECK(status_kib("VmLck:") >= 1 << 10);
    /* Blocks whose pages realloc would move keep their contents here too. */
    for (size_t size = 2 << 20; size <= 64 << 20; size *= 2) {
        block = realloc(block, size);
        CHECK(block != NULL && block[0] == 1 && block[(1 << 20) - 1] == 1);
    }
    free(block);
    wave();
}

int main(int count, char **args) {
    CHECK(count >= 2);
    if (strcmp(args[1], "unprivileged") == 0) {
        CHECK(count == 4);
        unprivileged(args[2], args[3]);
    } else if (strcmp(args[1], "refused") == 0) {
        refused();
    } else {
        kept();
    }
    /* Not through stdio, whose buffer may find no memory. */
    CHECK(write(1, "ok\n", 3) == 3);
    return 0;
}

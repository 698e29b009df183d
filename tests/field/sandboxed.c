/*
 * A program that confined itself to the calls that it knows, as apt's methods do, allocates on: the
 * heap grows to many times what it was. The filter kills for `mincore`, which no allocator needs.
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "check.h"

enum { OBJECTS = 1 << 20, LARGE_FROM = OBJECTS - 4096 };
static void *objects[OBJECTS];

/* 64 MiB of small objects, and then 64 MiB of objects beyond a page. */
static size_t bytes_of(int i) { return i < LARGE_FROM ? 64 : 16 << 10; }

static void forbid(unsigned call) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

int main(void) {
    objects[0] = malloc(bytes_of(0));
    forbid(SYS_mincore);
    for (int i = 1; i < OBJECTS; i++) {
        objects[i] = malloc(bytes_of(i));
        CHECK(objects[i] != NULL);
        memset(objects[i], i, bytes_of(i));
    }
    /* Some looks of the background thread. */
    usleep(300 * 1000);
    for (int i = 0; i < OBJECTS; i++) free(objects[i]);
    puts("ok");
    return 0;
}

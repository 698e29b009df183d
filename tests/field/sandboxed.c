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

enum { OBJECTS = 1 << 20, OBJECT_BYTES = 64 };
static void *objects[OBJECTS];

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
    objects[0] = malloc(OBJECT_BYTES);
    forbid(SYS_mincore);
    for (int i = 1; i < OBJECTS; i++) {
        objects[i] = malloc(OBJECT_BYTES);
        CHECK(objects[i] != NULL);
        memset(objects[i], i, OBJECT_BYTES);
    }
    for (int i = 0; i < OBJECTS; i++) free(objects[i]);
    puts("ok");
    return 0;
}

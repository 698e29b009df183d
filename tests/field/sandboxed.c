/*
 * A program confined to the calls that it knows allocates on: the heap grows to many times what it
 * was. The filter kills for `mincore`, which no allocator needs.
 *
 *   sandboxed early     the program adds the filter when it starts, as apt's methods do
 *   sandboxed late      when its heap has 64 MiB
 *   sandboxed thread    the same, and only one of its threads has the filter
 *   sandboxed service   the filter is there at the start, and also forbids what systemd's
 *                       `SystemCallFilter=@system-service` does not know
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "check.h"

enum { OBJECTS = 1 << 20, LARGE_FROM = OBJECTS - 4096 };
static void *objects[OBJECTS];

/* Calls that a service does not make: some of those that are in none of systemd's sets, and the
 * changes of scheduling, which `~@resources` takes away. */
static const unsigned UNKNOWN_TO_SERVICES[] = {
    SYS_mincore, SYS_ptrace, SYS_process_madvise, SYS_perf_event_open, SYS_bpf, SYS_syslog, SYS_mbind,
    SYS_migrate_pages, SYS_move_pages, SYS_set_mempolicy, SYS_ioprio_set, SYS_setpriority, SYS_setrlimit,
    SYS_sched_setaffinity, SYS_sched_setattr, SYS_sched_setparam, SYS_sched_setscheduler, SYS_acct,
    SYS_swapon, SYS_reboot, SYS_mount, SYS_pivot_root, SYS_init_module, SYS_kexec_load,
};

/* 64 MiB of small objects, and then 64 MiB of objects beyond a page. */
static size_t bytes_of(int i) { return i < LARGE_FROM ? 64 : 16 << 10; }

static void allocate(int from, int to) {
    for (int i = from; i < to; i++) {
        objects[i] = malloc(bytes_of(i));
        CHECK(objects[i] != NULL);
        memset(objects[i], i, bytes_of(i));
    }
}

static void forbid(const unsigned *calls, int count) {
    struct sock_filter code[2 + 2 * 32];
    CHECK(count <= 32);
    code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < count; i++) {
        code[1 + 2 * i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        code[2 + 2 * i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    code[1 + 2 * count] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {2 + 2 * count, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void *confined(void *nothing) {
    forbid(UNKNOWN_TO_SERVICES, 1);
    allocate(LARGE_FROM, OBJECTS);
    return nothing;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *when = argv[1];
    if (strcmp(when, "service") == 0) {
        forbid(UNKNOWN_TO_SERVICES, sizeof UNKNOWN_TO_SERVICES / sizeof *UNKNOWN_TO_SERVICES);
        execl("/proc/self/exe", argv[0], "served", NULL);
        return 1;
    }
    allocate(0, 1);
    if (strcmp(when, "early") == 0) forbid(UNKNOWN_TO_SERVICES, 1);
    allocate(1, LARGE_FROM);
    if (strcmp(when, "late") == 0) forbid(UNKNOWN_TO_SERVICES, 1);
    if (strcmp(when, "thread") == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, confined, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        allocate(LARGE_FROM, OBJECTS);
    }
    /* Some looks of the background thread. */
    usleep(300 * 1000);
    for (int i = 0; i < OBJECTS; i++) free(objects[i]);
    puts("ok");
    return 0;
}

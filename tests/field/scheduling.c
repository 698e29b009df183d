/*
 * The background thread runs as an ordinary thread of the process, even if a special thread started
 * it.
 *
 *   scheduling changed    a thread that made itself real-time, pinned, urgent and bound to a node
 *                         allocates
 *   scheduling filtered   a program that was started urgent allocates under a filter that kills for
 *                         any call that changes scheduling
 *
 * Without the privilege for a change the program prints that and continues without the change.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BLOCKS = 40000, BLOCK_BYTES = 1000, IOPRIO_REALTIME = 1 << 13 };
static void *volatile blocks[BLOCKS];

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("not so: %s\n", what);
        exit(1);
    }
}

static void refused(int result, const char *what)
{
    if (result != 0)
        printf("refused: %s: %s\n", what, strerror(errno));
}

static void allocate(void)
{
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BLOCK_BYTES);
        memset(blocks[i], 1, BLOCK_BYTES);
    }
}

/* The only other thread; 0 if there is none. */
static pid_t other_thread(void)
{
    pid_t found = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        pid_t id = atoi(task->d_name);
        if (id > 0 && id != getpid())
            found = id;
    }
    closedir(tasks);
    return found;
}

/* The value behind `key` in the thread's status file. */
static void status(pid_t thread, const char *key, char *value, size_t bytes)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)thread);
    FILE *file = fopen(path, "r");
    value[0] = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            snprintf(value, bytes, "%s", line + strlen(key));
    if (file != NULL)
        fclose(file);
    value[strcspn(value, "\n")] = 0;
}

/* Waits until the thread has set its name, which it does first. */
static void until_named(pid_t thread)
{
    char name[64] = "";
    for (int i = 0; i < 3000 && strcmp(name, "uslab-reaper") != 0; i++) {
        usleep(10000);
        status(thread, "Name:\t", name, sizeof name);
    }
    check(strcmp(name, "uslab-reaper") == 0, "the thread is called uslab-reaper");
    usleep(20000);
}

static void changed(void)
{
    cpu_set_t first, one;
    sched_getaffinity(0, sizeof first, &first);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    int given = getpriority(PRIO_PROCESS, 0);
    sched_setaffinity(0, sizeof one, &one);
    unsigned long node = 1;
    refused(setpriority(PRIO_PROCESS, 0, -10), "a nice value of -10");
    refused((int)syscall(SYS_ioprio_set, 1, 0, IOPRIO_REALTIME | 2), "a real-time I/O priority");
    refused((int)syscall(SYS_set_mempolicy, 2, &node, 64), "memory bound to node 0");
    struct sched_param real_time = {.sched_priority = 50}, ordinary = {0};
    refused(sched_setscheduler(0, SCHED_FIFO, &real_time), "SCHED_FIFO");
    allocate();
    /* This thread has not slept, so a thread with its policy and CPU could not have run yet. */
    pid_t thread = other_thread();
    check(thread != 0, "there is a background thread");
    cpu_set_t now;
    sched_getaffinity(thread, sizeof now, &now);
    int policy = sched_getscheduler(thread);
    sched_setscheduler(0, SCHED_OTHER, &ordinary);
    check(policy == SCHED_OTHER, "its policy is SCHED_OTHER");
    check(CPU_EQUAL(&now, &first), "it has the CPUs that the process was started with");
    until_named(thread);
    check(getpriority(PRIO_PROCESS, thread) == (given < 0 ? 0 : given), "its nice value is ordinary");
    check((syscall(SYS_ioprio_get, 1, thread) & 0xe000) != IOPRIO_REALTIME, "its I/O priority is ordinary");
    char text[64];
    status(thread, "SigBlk:\t", text, sizeof text);
    unsigned long blocked = strtoul(text, NULL, 16);
    for (int signal = 1; signal < 32; signal++)
        if (signal != SIGKILL && signal != SIGSTOP && signal != SIGSYS)
            check(blocked >> (signal - 1) & 1, "it blocks all signals but SIGSYS");
    sched_getaffinity(0, sizeof now, &now);
    check(CPU_EQUAL(&now, &one), "the program's own thread stays where it was");
}

static void filter(void)
{
    int calls[] = {SYS_sched_setscheduler, SYS_sched_setparam, SYS_sched_setattr, SYS_sched_setaffinity,
                   SYS_setpriority, SYS_ioprio_set, SYS_set_mempolicy};
    enum { CALLS = sizeof calls / sizeof *calls };
    struct sock_filter code[CALLS + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (unsigned i = 0; i < CALLS; i++)
        code[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], CALLS - i, 0);
    code[CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[CALLS + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {CALLS + 3, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "a filter can be installed");
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    if (strcmp(how, "changed") == 0) {
        changed();
    } else if (strcmp(how, "filtered") == 0) {
        struct sched_param real_time = {.sched_priority = 1};
        refused(setpriority(PRIO_PROCESS, 0, -5), "a nice value of -5");
        refused(sched_setscheduler(0, SCHED_FIFO, &real_time), "SCHED_FIFO");
        execl(argv[0], argv[0], "started", NULL);
        return 1;
    } else {
        filter();
        allocate();
        pid_t thread = other_thread();
        check(thread != 0, "there is a background thread");
        until_named(thread);
    }
    puts("ok");
    return 0;
}

/*
 * A seccomp filter refuses membarrier after start: `membarrier before|amid SECONDS`.
 *
 *   before  the filter is installed before the threads start
 *   amid    the filter is installed for all threads while one drains; in a new process each time,
 *           because a filter cannot be removed
 *
 * Sandboxes and containers install such filters after a program has set itself up. Each worker
 * writes its tag to its objects and checks that it is still there. The main thread drains
 * continuously, and forks: in the child its objects must be unchanged, and never be allocated
 * again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OBJECTS = 24, KEPT = 200, WORKERS = 3 };

static volatile long doubled;
static volatile int stop;

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Refuses membarrier to all present and future threads. */
static void refuse(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { 4, code };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)) {
        perror("seccomp");
        exit(2);
    }
}

static void own(unsigned long **objects, int n, unsigned long tag)
{
    for (int i = 0; i < n; i++) {
        objects[i] = malloc(64);
        objects[i][0] = tag;
        objects[i][1] = (unsigned long)objects[i] ^ tag;
    }
}

static long look(unsigned long **objects, int n, unsigned long tag)
{
    long bad = 0;
    for (int i = 0; i < n; i++)
        bad += objects[i][0] != tag || objects[i][1] != ((unsigned long)objects[i] ^ tag);
    return bad;
}

static void give(unsigned long **objects, int n)
{
    for (int i = 0; i < n; i++)
        free(objects[i]);
}

static void *work(void *tag)
{
    unsigned long *objects[OBJECTS];
    while (!stop) {
        own(objects, OBJECTS, (unsigned long)tag);
        long bad = look(objects, OBJECTS, (unsigned long)tag);
        if (bad)
            __sync_fetch_and_add(&doubled, bad);
        give(objects, OBJECTS);
    }
    return 0;
}

static void *refuse_soon(void *microseconds)
{
    usleep((long)microseconds);
    refuse();
    return 0;
}

/* The child checks the main thread's objects, and allocates more. */
static long fork_and_look(unsigned long **kept, unsigned long tag)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        unsigned long *objects[500];
        long bad = look(kept, KEPT, tag);
        for (int round = 0; round < 3; round++) {
            own(objects, 500, ~tag);
            bad += look(objects, 500, ~tag) + look(kept, KEPT, tag);
            give(objects, 500);
            malloc_trim(0);
        }
        give(kept, KEPT);
        _exit(bad != 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    return status != 0;
}

static long storm(long ms, long filter_us)
{
    pthread_t threads[WORKERS + 1];
    unsigned long *kept[KEPT];
    long end = now_ms() + ms, drains = 0, forks = 0, bad = 0;
    stop = 0;
    for (long i = 0; i < WORKERS; i++)
        pthread_create(&threads[i], 0, work, (void *)(i + 1));
    if (filter_us)
        pthread_create(&threads[WORKERS], 0, refuse_soon, (void *)filter_us);
    own(kept, KEPT, 77);
    while (now_ms() < end) {
        malloc_trim(0);
        if (++drains % 20000 == 0) {
            bad += fork_and_look(kept, 77);
            forks++;
        }
    }
    bad += look(kept, KEPT, 77);
    give(kept, KEPT);
    stop = 1;
    for (int i = 0; i < WORKERS + !!filter_us; i++)
        pthread_join(threads[i], 0);
    printf("%ld drains, %ld forks: %ld objects with two owners, %ld bad children or objects\n", drains, forks,
           doubled, bad);
    return bad + doubled;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    long bad = 0, ms = atol(argv[2]) * 1000;
    free(malloc(64)); /* set up: the process is registered by now */
    if (!strcmp(argv[1], "before")) {
        refuse();
        bad = storm(ms, 0);
    } else {
        for (long end = now_ms() + ms, round = 1; now_ms() < end; round++) {
            fflush(stdout);
            pid_t child = fork();
            int status;
            if (child == 0) {
                bad = storm(40, 1000 + round * 3001 % 15000);
                fflush(stdout);
                _exit(bad != 0);
            }
            waitpid(child, &status, 0);
            if (status) {
                printf("round %ld ended with status %x\n", round, status);
                bad++;
            }
        }
    }
    if (bad)
        return 1;
    puts("ok");
    return 0;
}

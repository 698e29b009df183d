/*
 * Children without fork handlers: `raw_clone CHECK`.
 *
 * Sandboxes and container tools create processes by the system call. Such a child has a copy of the
 * memory but no other thread, not even the allocator's background thread.
 */
#define _GNU_SOURCE
#include "process.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { LARGE = 40, LARGE_BYTES = 1 << 20, LIMIT_S = 30 };

static int entries(const char *directory, int from) {
    int n = 0;
    DIR *listed = opendir(directory);
    CHECK(listed != NULL);
    for (struct dirent *entry; (entry = readdir(listed));)
        n += entry->d_name[0] != '.' && atoi(entry->d_name) >= from;
    closedir(listed);
    return n;
}

static int threads(void) {
    return entries("/proc/self/task", 0);
}

/* Uses more memory than the background thread's threshold, until the thread exists. */
static int grow_until_threads(int wanted) {
    static void *block[LARGE];
    for (int n = 0; n < 200; n++) {
        for (int i = 0; i < LARGE; i++) CHECK((block[i] = malloc(LARGE_BYTES)) != NULL);
        churn(2000, 5);
        for (int i = 0; i < LARGE; i++) free(block[i]);
        if (threads() >= wanted) return 1;
        usleep(5000);
    }
    return 0;
}

static void expect_clean(pid_t child) {
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

/* The child detects that it has no background thread, and starts its own. */
static void has_its_own_thread(int wanted) {
    CHECK(grow_until_threads(wanted));
    /* The thread must be idle while the memory is copied, because no handler holds it off. */
    usleep(300000);
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        alarm(LIMIT_S);
        CHECK(threads() == 1);
        CHECK(grow_until_threads(wanted));
        _exit(0);
    }
    expect_clean(child);
    CHECK(threads() == wanted);
}

static int grows(void *wanted) {
    alarm(LIMIT_S);
    CHECK(grow_until_threads(*(int *)wanted));
    return 7;
}

/* A child of the C library's function, whose memory is a copy, ends when its function returns. */
static void returns(int wanted) {
    static char stack[1 << 18];
    int status = -1;
    pid_t child = clone(grows, stack + sizeof stack, SIGCHLD, &wanted);
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static int grows_and_loses_proc(void *wanted) {
    grows(wanted);
    return chroot("/dev") == 0 ? 8 : 7;
}

/* The same where the child cannot list its threads, if it has the privilege to get there. */
static void returns_without_proc(int wanted) {
    static char stack[1 << 18];
    int status = -1;
    pid_t child = clone(grows_and_loses_proc, stack + sizeof stack, SIGCHLD, &wanted);
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) >= 7);
}

static atomic_int is_counting = 1;

static void *counts(void *rounds) {
    while (is_counting) {
        mallinfo2();
        ++*(atomic_int *)rounds;
    }
    return NULL;
}

/* A child that calls `exit` ends, whatever locks the parent's other thread held. */
static void exits(void) {
    enum { CHILDREN = 300 };
    static atomic_int rounds;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, counts, &rounds) == 0);
    while (rounds == 0) sched_yield();
    for (int n = 0; n < CHILDREN; n++) {
        pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            alarm(LIMIT_S / 2);
            exit(0);
        }
        expect_clean(child);
    }
    is_counting = 0;
    CHECK(pthread_join(thread, NULL) == 0);
}

/* The lowest number of the library's descriptors; the program's are below. */
enum { KEPT_FROM = 64 };

static int inherited;

static int kept(void) {
    return entries("/proc/self/fd", KEPT_FROM) - inherited;
}

/* A fork child has none of the descriptors of the parent's background thread, except a number that
 * the program now uses itself. */
static void has_no_descriptors(int wanted) {
    CHECK(grow_until_threads(wanted));
    for (int n = 0; n < 500 && kept() < wanted - 1; n++) usleep(10000);
    int before = kept();
    CHECK(before == wanted - 1);
    for (int generation = 0; generation < 2; generation++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(LIMIT_S);
            CHECK(kept() == 0);
            _exit(0);
        }
        expect_clean(child);
        CHECK(kept() == before);
    }
    /* The program closes all descriptors and reuses the numbers. */
    for (int fd = KEPT_FROM; fd < KEPT_FROM + 8; fd++) close(fd);
    int null = open("/dev/null", O_RDWR);
    for (int fd = KEPT_FROM; fd < KEPT_FROM + 4; fd++) CHECK(dup2(null, fd) == fd);
    pid_t child = fork();
    if (child == 0) {
        alarm(LIMIT_S);
        for (int fd = KEPT_FROM; fd < KEPT_FROM + 4; fd++) CHECK(fcntl(fd, F_GETFD) != -1);
        _exit(0);
    }
    expect_clean(child);
}

int main(int argc, char **argv) {
    /* Two threads with the allocator's one; one without it, as a control. */
    int wanted = getenv("USLAB_SNAPSHOT") ? 2 : 1;
    alarm(LIMIT_S);
    CHECK(argc == 2);
    inherited = kept();
    if (strcmp(argv[1], "thread") == 0)
        has_its_own_thread(wanted);
    else if (strcmp(argv[1], "returns") == 0)
        returns(wanted), returns_without_proc(wanted);
    else if (strcmp(argv[1], "exits") == 0)
        exits();
    else if (strcmp(argv[1], "descriptors") == 0)
        has_no_descriptors(wanted);
    else
        return 2;
    dprintf(1, "ok\n");
    return 0;
}

/*
 * fork, vfork and fork handlers in a process whose other threads allocate.
 *
 * A forked child has one thread and a copy of every lock. It must be able to allocate, start
 * threads and exit in every way. A vforked child shares the memory, and even the thread control
 * block of its suspended parent, while the parent's other threads run. The CPU number that it reads
 * may be wrong.
 */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STORM_THREADS = 3, CHILD_LIMIT_S = 30 };

/* The parent's blocks, which every child finds, verifies, frees and replaces in its own copy. */
static char *inherited[500];

static size_t inherited_size(int i) {
    return (size_t)i * (i % 50 == 0 ? 2000 : 7) + 1;
}

static int replace_inherited(void) {
    int good = 1;
    for (int i = 0; i < 500; i++) {
        good &= !inherited[i] || intact(inherited[i], inherited_size(i), (uint64_t)i);
        free(inherited[i]);
        inherited[i] = malloc(inherited_size(i));
        if (!inherited[i]) return 0;
        fill(inherited[i], inherited_size(i), (uint64_t)i);
    }
    return good;
}

static void forks_in_a_storm(void) {
    replace_inherited();
    storm_begin(STORM_THREADS);
    for (int n = 0; n < 200; n++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_LIMIT_S);
            CHECK(replace_inherited(), "an inherited block was damaged");
            CHECK(churn(2000, (uint64_t)n + 1), "a block was damaged in a child");
            /* Every way to exit: at once, through the exit handlers, by executing another
             * program. */
            if (n % 3 == 0) _exit(0);
            if (n % 3 == 1) exit(0);
#ifndef __GLIBC__
            /* No program of this C library is installed. */
            unsetenv("LD_PRELOAD");
#endif
            execl("/bin/true", "true", (char *)NULL);
            _exit(9);
        }
        expect_clean_child(child, "a forked child");
        if (n % 10 == 0) CHECK(replace_inherited(), "the parent's own blocks");
    }
    CHECK(storm_end() > 0);
}

/* Children with threads of their own, and children of children. */
static void forks_of_forks(void) {
    storm_begin(STORM_THREADS);
    for (int n = 0; n < 30; n++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_LIMIT_S);
            storm_begin(2);
            for (int m = 0; m < 3; m++) {
                pid_t grandchild = fork();
                if (grandchild == 0) {
                    alarm(CHILD_LIMIT_S);
                    CHECK(churn(2000, 77), "a block was damaged in a grandchild");
                    exit(0);
                }
                expect_clean_child(grandchild, "a grandchild");
            }
            CHECK(storm_end() > 0);
            exit(0);
        }
        expect_clean_child(child, "a child with threads");
    }
    CHECK(storm_end() > 0);
}

static void *fork_repeatedly(void *argument) {
    for (int n = 0; n < 40; n++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_LIMIT_S);
            _exit(churn(1000, (uint64_t)n + 1) ? 0 : 1);
        }
        expect_clean_child(child, "a child of one of several forking threads");
    }
    return argument;
}

static void forks_from_several_threads(void) {
    pthread_t threads[4];
    storm_begin(2);
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, fork_repeatedly, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(storm_end() > 0);
}

static char *given[64];

/* What a child does that shares the memory; returns its status. The parent frees the blocks that it
 * leaves. */
static int allocate_and_give(void *number) {
    int good = churn(5000, (uint64_t)*(int *)number + 1);
    for (int i = 0; i < 64; i++) {
        given[i] = malloc((size_t)i * 40 + 1);
        if (given[i]) fill(given[i], (size_t)i * 40 + 1, (uint64_t)i);
    }
    return good ? 0 : 1;
}

/* A function of its own, because the child must not return from the function that called vfork. */
__attribute__((noinline)) static pid_t vfork_and_allocate(int n) {
    pid_t child = vfork();
    if (child == 0) _exit(allocate_and_give(&n));
    return child;
}

static void take_given(void) {
    for (int i = 0; i < 64; i++) {
        /* POSIX allows vfork to be fork: then the child's blocks were in its own memory, and are
         * gone. */
        if (!given[i]) continue;
        CHECK(intact(given[i], (size_t)i * 40 + 1, (uint64_t)i), "a block from a child");
        free(given[i]);
        given[i] = NULL;
    }
}

static void vforks_in_a_storm(void) {
    storm_begin(STORM_THREADS);
    for (int n = 0; n < 200; n++) {
        expect_clean_child(vfork_and_allocate(n), "a vforked child");
        take_given();
    }
    CHECK(storm_end() > 0);
    CHECK(churn(20000, 5));
}

/* The same by clone, with a stack for the child, as programs start others. */
static void clones_in_a_storm(void) {
    enum { STACK_BYTES = 256 << 10 };
    char *stack = malloc(STACK_BYTES);
    CHECK(stack != NULL);
    storm_begin(STORM_THREADS);
    for (int n = 0; n < 200; n++) {
        int flags = CLONE_VM | CLONE_VFORK | SIGCHLD | (n % 2 ? CLONE_FILES | CLONE_FS | CLONE_SIGHAND : 0);
        pid_t child = clone(allocate_and_give, stack + STACK_BYTES, flags, &n);
        CHECK(child > 0, "clone");
        expect_clean_child(child, "a cloned child");
        take_given();
    }
    CHECK(storm_end() > 0);
    CHECK(churn(20000, 6));
    free(stack);
#ifdef __GLIBC__
    /* glibc refuses a child without a stack; musl's clone writes below address 0. */
    errno = 0;
    CHECK(clone(allocate_and_give, NULL, CLONE_VM | CLONE_VFORK, NULL) == -1 && errno == EINVAL);
#endif
}

static char *block_over_fork;

static void before_fork(void) {
    block_over_fork = malloc(400);
    if (block_over_fork) fill(block_over_fork, 400, 8), note(COUNT_ATFORK);
}

static void after_fork(void) {
    if (intact(block_over_fork, 400, 8)) note(COUNT_ATFORK);
    block_over_fork = realloc(block_over_fork, 50000);
    free(block_over_fork);
    free(calloc(1, 3000));
}

static void fork_with_handlers(int expected) {
    storm_begin(STORM_THREADS);
    for (int n = 0; n < 50; n++) {
        shared_counts[COUNT_ATFORK] = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_LIMIT_S);
            _exit(churn(500, 9) ? 0 : 1);
        }
        expect_clean_child(child, "a child after fork handlers");
        CHECK(shared_counts[COUNT_ATFORK] == expected, "%d handlers allocated", shared_counts[COUNT_ATFORK]);
    }
    CHECK(storm_end() > 0);
}

/* Handlers of the program: prepare in the parent, then one in the parent and one in the child. */
static void fork_handlers_allocate(void) {
    CHECK(pthread_atfork(before_fork, after_fork, after_fork) == 0);

    fork_with_handlers(3);
}

extern int early_fork_handlers_on;

/* Handlers registered before the allocator's start run inside its own handlers: prepare after the
 * allocator's, the others before. */
static void early_fork_handlers_allocate(void) {
    early_fork_handlers_on = 1;

    fork_with_handlers(3);
}

static void *fork_on(void *unused) {
    (void)unused;
    for (;;) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child > 0) waitpid(child, NULL, 0);
    }
    return NULL;
}

/* The destructors of the process run while other threads are inside fork: each of these forks ends,
 * and releases what it holds. */
static void forks_during_exit(void) {
    for (int n = 0; n < 60; n++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(CHILD_LIMIT_S);
            pthread_t thread;
            for (int i = 0; i < STORM_THREADS; i++) {
                CHECK(pthread_create(&thread, NULL, fork_on, NULL) == 0);
                CHECK(pthread_detach(thread) == 0);
            }
            usleep(1000 + 100 * (unsigned)n);
            exit(0);
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "status %#x", (unsigned)status);
    }
}

const struct check fork_checks[] = {
    {"forks_in_a_storm", forks_in_a_storm},
    {"forks_of_forks", forks_of_forks},
    {"forks_from_several_threads", forks_from_several_threads},
    {"vforks_in_a_storm", vforks_in_a_storm},
    {"clones_in_a_storm", clones_in_a_storm},
    {"fork_handlers_allocate", fork_handlers_allocate},
    {"early_fork_handlers_allocate", early_fork_handlers_allocate},
    {"forks_during_exit", forks_during_exit},
    {NULL, NULL},
};

/*
 * Before main and after it: blocks from a program's earliest code to its last.
 *
 * The order at the start: the program's preinit functions, constructors of libraries (early.c's
 * before a preloaded library's), the program's constructors, main. At the end: atexit handlers, the
 * program's destructors, the libraries' destructors.
 */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *from_preinit, *from_constructor;

static void preinit(void) {
    from_preinit = malloc(777);
    if (from_preinit) fill(from_preinit, 777, 1);
    free(calloc(1, 100000));
}

__attribute__((section(".preinit_array"), used)) static void (*const preinit_entry)(void) = preinit;

__attribute__((constructor(101))) static void construct(void) {
    from_constructor = aligned_alloc(4096, 3000);
    if (from_constructor) fill(from_constructor, 3000, 2);
    from_preinit = realloc(from_preinit, 70000);
}

static void at_exit(void) {
    char *p = malloc(2000);
    if (p && intact(from_preinit, 777, 1) && intact(from_constructor, 3000, 2)) note(COUNT_EXIT);
    free(p);
}

__attribute__((destructor(101))) static void destruct(void) {
    free(from_preinit);
    free(from_constructor);
    char *p = realloc(calloc(10, 10), 1 << 20);
    if (p && all_zero(p, 100)) note(COUNT_DESTRUCTOR);
    free(p);
}

static void before_main(void) {
    CHECK(from_preinit && intact(from_preinit, 777, 1), "a block from .preinit_array");
    CHECK(from_constructor && intact(from_constructor, 3000, 2), "a block from a constructor");
}

/* A child runs the whole exit, so that its parent can count the handlers that ran. */
static void after_main(void) {
    for (int threads = 0; threads <= 3; threads += 3) {
        for (int i = 0; i < COUNTS; i++) shared_counts[i] = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            /* Many programs exit while their threads still allocate. */
            if (threads) storm_begin(threads);
            atexit(at_exit);
            exit(0);
        }
        expect_clean_child(child, "the way out");
        CHECK(shared_counts[COUNT_EXIT] == 1, "the atexit handler, with %d threads", threads);
        CHECK(shared_counts[COUNT_DESTRUCTOR] == 1, "the program's destructor, with %d threads", threads);
        CHECK(shared_counts[COUNT_STATIC] == 1, "the destructor of a static C++ object, with %d threads", threads);
        CHECK(shared_counts[COUNT_LATE] == 1, "the destructor of a library that ends late, with %d threads", threads);
    }
}

static pthread_key_t key;
static atomic_int key_runs;

/* glibc runs a destructor up to four times while it sets the key again. */
static void at_thread_exit(void *value) {
    char *block = value;
    CHECK(intact(block, 300, 5));
    free(block);
    if (atomic_fetch_add(&key_runs, 1) % 2 == 0) {
        block = malloc(300);
        fill(block, 300, 5);
        pthread_setspecific(key, block);
    }
}

static void *thread_with_key(void *argument) {
    char *block = malloc(300);
    fill(block, 300, 5);
    pthread_setspecific(key, block);
    return argument;
}

static void thread_destructors(void) {
    CHECK(pthread_key_create(&key, at_thread_exit) == 0);
    for (int i = 0; i < 2000; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, thread_with_key, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    CHECK(key_runs == 4000, "%d", key_runs);
}

/* A library that allocates in its constructor and destructor is loaded and unloaded in a storm; its
 * blocks outlive it. */
static void loaded_libraries(void) {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 20);
    CHECK(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/libplugin.so");
    storm_begin(2);
    for (int i = 0; i < 300; i++) {
        shared_counts[COUNT_LATE] = 0;
        void *library = dlopen(path, i % 2 ? RTLD_NOW : RTLD_LAZY | RTLD_LOCAL);
        CHECK(library != NULL, "%s", dlerror());
        char *(*block_of)(size_t) = (char *(*)(size_t))dlsym(library, "early_block");
        CHECK(block_of != NULL, "%s", dlerror());
        size_t size = (size_t)i * 100 + 1;
        char *block = block_of(size);
        CHECK(dlsym(library, "no_such_name") == NULL && dlerror() != NULL);
        CHECK(dlclose(library) == 0);
        CHECK(shared_counts[COUNT_LATE] == 1, "its destructor ran");
        CHECK(block[0] == 0x77 && block[size - 1] == 0x77);
        free(block);
    }
    CHECK(storm_end() > 0);
}

const struct check lifecycle_checks[] = {
    {"before_main", before_main},
    {"after_main", after_main},
    {"thread_destructors", thread_destructors},
    {"loaded_libraries", loaded_libraries},
    {NULL, NULL},
};

/*
 * Threads: ten thousand short-lived ones, and blocks freed by another thread than the one that
 * allocated them.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Blocks in transit between threads; the thread that takes one out verifies and frees it. */
enum { TRANSIT = 1024 };
static _Atomic(char *) transit[TRANSIT];

/* A block in transit begins with its size and the seed of its content. */
struct parcel {
    size_t n;
    uint64_t seed;
};

static void receive(char *block) {
    if (!block) return;
    struct parcel parcel;
    memcpy(&parcel, block, sizeof parcel);
    CHECK(intact(block + sizeof parcel, parcel.n, parcel.seed), "a block from another thread was damaged");
    free(block);
}

static void send(uint64_t *random) {
    struct parcel parcel = {.n = (size_t)(next_random(random) % 2000), .seed = next_random(random)};
    char *block = malloc(sizeof parcel + parcel.n);
    CHECK(block != NULL);
    memcpy(block, &parcel, sizeof parcel);
    fill(block + sizeof parcel, parcel.n, parcel.seed);
    receive(atomic_exchange(&transit[next_random(random) % TRANSIT], block));
}

static void *short_life(void *argument) {
    uint64_t random = (uint64_t)(uintptr_t)argument * 2 + 1;
    CHECK(churn(100, random), "a block was damaged");
    for (int i = 0; i < 20; i++) send(&random);
    return NULL;
}

static void empty_transit(void) {
    for (int i = 0; i < TRANSIT; i++) receive(atomic_exchange(&transit[i], NULL));
}

static long resident_kib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* A hundred threads at a time. A thread that ended may leave nothing behind. */
static void threads_come_and_go(void) {
    enum { AT_ONCE = 100, TURNS = 100 };
    pthread_t threads[AT_ONCE];
    long after_ten = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < AT_ONCE; i++) {
            void *number = (void *)(uintptr_t)(turn * AT_ONCE + i + 1);
            CHECK(pthread_create(&threads[i], NULL, short_life, number) == 0, "thread %d", turn * AT_ONCE + i);
        }
        for (int i = 0; i < AT_ONCE; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        if (turn == 10) after_ten = resident_kib();
    }
    long grown = resident_kib() - after_ten;
    CHECK(grown < 32768, "%ld KiB more resident after 10000 threads than after 1000", grown);
    empty_transit();
}

/* Detached threads end at any time, some during the exit of the process. */
static atomic_int detached_left;

static void *detached(void *argument) {
    short_life(argument);
    atomic_fetch_sub(&detached_left, 1);
    return NULL;
}

static void detached_threads(void) {
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, 256 * 1024) == 0);
    for (int i = 0; i < 2000; i++) {
        while (atomic_load(&detached_left) > 200) usleep(100);
        atomic_fetch_add(&detached_left, 1);
        pthread_t thread;
        CHECK(pthread_create(&thread, &attributes, detached, (void *)(uintptr_t)(i + 1)) == 0);
    }
    CHECK(pthread_attr_destroy(&attributes) == 0);
}

static void *traffic(void *argument) {
    uint64_t random = (uint64_t)(uintptr_t)argument * 2 + 1;
    for (int i = 0; i < 200000; i++) send(&random);
    return NULL;
}

/* More threads than CPUs; each mostly frees blocks of other threads. */
static void freed_by_others(void) {
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, traffic, (void *)(uintptr_t)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    empty_transit();
}

const struct check thread_checks[] = {
    {"threads_come_and_go", threads_come_and_go},
    {"detached_threads", detached_threads},
    {"freed_by_others", freed_by_others},
    {NULL, NULL},
};

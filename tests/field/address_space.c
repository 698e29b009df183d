/*
 * Limits on mapped memory: RLIMIT_AS and RLIMIT_DATA, set after the heap has grown.
 *
 *   address_space later      a limit of 4 GiB on a small heap: threads start, memory is mapped and
 *                            allocated
 *   address_space as|data    96 MiB above the present use: the program can map freed memory, and it
 *                            can be allocated again; 5 rounds
 *   address_space start      run under `ulimit -v`: half of the limit can be allocated repeatedly
 */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static void *churn(void *argument) {
    void *objects[1000];
    for (int i = 0; i < 1000; i++) CHECK((objects[i] = malloc(100 + i)) != NULL);
    for (int i = 0; i < 1000; i++) free(objects[i]);
    return argument;
}

static void start_threads(int count) {
    pthread_t threads[8];
    for (int i = 0; i < count; i++) CHECK(pthread_create(&threads[i], NULL, churn, NULL) == 0);
    for (int i = 0; i < count; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void *map(size_t bytes) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return start == MAP_FAILED ? NULL : start;
}

static void limit_to(int resource, size_t bytes) {
    struct rlimit limit = {bytes, RLIM_INFINITY};
    CHECK(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = bytes;
    CHECK(setrlimit(resource, &limit) == 0);
}

static void later(void) {
    free(malloc(10));
    limit_to(RLIMIT_AS, (size_t)4 << 30);
    start_threads(8);
    CHECK(map(MIB) != NULL);
    CHECK(map(1024 * MIB) != NULL);
    char *block = malloc(1024 * MIB);
    CHECK(block != NULL);
    block[0] = block[1024 * MIB - 1] = 1;
    start_threads(8);
    free(block);
    /* A limit below the present use: free memory still serves allocations, and refusals are
     * clean. */
    void *objects[1000];
    for (int i = 0; i < 1000; i++) CHECK((objects[i] = malloc(1000)) != NULL);
    limit_to(RLIMIT_AS, 4096);
    for (int i = 0; i < 1000; i++) free(objects[i]);
    for (int i = 0; i < 1000; i++) CHECK((objects[i] = malloc(1000)) != NULL);
    errno = 0;
    /* More than the block that was freed, which may still be there. */
    CHECK(malloc(3072 * MIB) == NULL && errno == ENOMEM);
    for (int i = 0; i < 1000; i++) free(objects[i]);
}

/* Blocks of `size` bytes, `bytes` in all, kept in a list. */
static void *take(size_t size, size_t bytes) {
    void **first = NULL;
    for (size_t had = 0; had < bytes; had += size) {
        void **block = malloc(size);
        CHECK(block != NULL);
        memset(block, 1, size);
        *block = first;
        first = block;
    }
    return first;
}

static void give(void *list) {
    while (list != NULL) {
        void *next = *(void **)list;
        free(list);
        list = next;
    }
}

static void given_back(int resource, const char *figure) {
    give(take(MIB, 20 * MIB));
    start_threads(2);
    limit_to(resource, ((size_t)status_kib(figure) << 10) + 96 * MIB);
    size_t sizes[] = {100, 5000, 100000, MIB, 56 * MIB};
    for (int round = 0; round < 5; round++) {
        give(take(sizes[round % 5], 56 * MIB));
        /* The background thread unmaps it soon; without that thread the program trims. */
        const char *reaper = getenv("USLAB_REAPER");
        if (reaper != NULL && *reaper == '0') malloc_trim(0);
        void *program_own = NULL;
        for (int wait = 0; wait < 1000 && (program_own = map(72 * MIB)) == NULL; wait++) usleep(10 * 1000);
        CHECK(program_own != NULL);
        /* Beside it the same amount does not fit, and the refusal is clean. */
        errno = 0;
        CHECK(malloc(56 * MIB) == NULL && errno == ENOMEM);
        CHECK(munmap(program_own, 72 * MIB) == 0);
    }
}

static void at_start(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY);
    start_threads(4);
    for (int round = 0; round < 6; round++) give(take(round % 2 ? 1000 : 100000, limit.rlim_cur / 2));
    CHECK(malloc(limit.rlim_cur) == NULL && errno == ENOMEM);
    start_threads(4);
}

int main(int count, char **args) {
    CHECK(count == 2);
    if (strcmp(args[1], "later") == 0) later();
    else if (strcmp(args[1], "as") == 0) given_back(RLIMIT_AS, "VmSize:");
    else if (strcmp(args[1], "data") == 0) given_back(RLIMIT_DATA, "VmData:");
    else at_start();
    CHECK(write(1, "ok\n", 3) == 3);
    return 0;
}

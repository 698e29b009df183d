/*
 * malloc is no cancellation point: a thread that was canceled goes on as long as it only allocates,
 * and the process goes on after it.
 *
 *   cancel grows BYTES    it allocates 64 MiB in blocks of so many bytes
 *   cancel misuses        it frees a block twice; the library reports that and goes on
 *   cancel at random      30 threads are canceled at random times while they allocate
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "check.h"

static size_t bytes;
static volatile int is_canceled, is_done;

static void allocate(size_t size, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char *block = malloc(size);
        CHECK(block != NULL);
        memset(block, 1, 8);
    }
}

static void *grows(void *nothing) {
    while (!is_canceled) continue;
    allocate(bytes, 64 * MIB / bytes);
    is_done = 1;
    pthread_testcancel();
    return nothing;
}

static void *misuses(void *nothing) {
    while (!is_canceled) continue;
    void *volatile block = malloc(100);
    free(block);
    free(block);
    is_done = 1;
    pthread_testcancel();
    return nothing;
}

/* Cancels a thread before its first allocation. It must end where it asks for that. */
static void cancel(void *(*body)(void *)) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0);
    CHECK(pthread_cancel(thread) == 0);
    is_canceled = 1;
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(is_done && result == PTHREAD_CANCELED);
}

static void *allocates(void *nothing) {
    allocate(20000, 1500);
    pause();
    return nothing;
}

static void cancel_at_random(void) {
    for (unsigned n = 0; n < 30; n++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, allocates, NULL) == 0);
        usleep(n * 137);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
    }
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    if (strcmp(argv[1], "grows") == 0) {
        CHECK(argc == 3);
        bytes = strtoul(argv[2], NULL, 10);
        cancel(grows);
    } else if (strcmp(argv[1], "misuses") == 0) {
        cancel(misuses);
    } else {
        cancel_at_random();
    }
    /* No lock is left taken. */
    allocate(1000, 20000);
    allocate(3000, 20000);
    puts("ok");
    return 0;
}

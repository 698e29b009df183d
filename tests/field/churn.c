/* 16 threads that allocate and free: each holds between 4000 and 8000 objects of 64 bytes at any
 * time. Runs until the end of its input. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 16, LEAST = 4000, MOST = 8000 };
static pthread_barrier_t filled;

static void *churn(void *seed) {
    void **held = malloc(MOST * sizeof *held);
    if (!held) exit(1);
    int n = 0;
    while (n < LEAST) memset(held[n++] = malloc(64), 1, 64);
    pthread_barrier_wait(&filled);
    for (unsigned state = (unsigned)(size_t)seed;;) {
        state = state * 1664525 + 1013904223;
        int goal = LEAST + (int)(state >> 8) % (MOST - LEAST);
        while (n < goal) memset(held[n++] = malloc(64), 1, 64);
        while (n > goal) free(held[--n]);
    }
    return NULL;
}

int main(void) {
    pthread_barrier_init(&filled, NULL, THREADS + 1);
    for (size_t i = 1; i <= THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, churn, (void *)i)) return 1;
    }
    pthread_barrier_wait(&filled);
    puts("ready");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    poll(&input, 1, -1);
    fflush(stdout);
    _Exit(0);
}

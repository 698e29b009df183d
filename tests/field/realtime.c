/* A drainer of real-time priority shares a CPU with ordinary threads, which it preempts within
 * their steps. If it spun for them, they would run only in the few milliseconds a second that the
 * kernel reserves for ordinary threads. So a spin would appear as most of a second of the drainer's
 * own CPU time, on a loaded machine too. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 3, DRAINS = 400, OBJECTS = 100 };
/* A drain of this process takes microseconds. */
static const long TOO_LONG_MS = 300;

static volatile int stop;

static long cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void *work(void *ignored)
{
    void *objects[OBJECTS];
    while (!stop) {
        for (int i = 0; i < OBJECTS; i++)
            objects[i] = malloc(64);
        for (int i = 0; i < OBJECTS; i++)
            free(objects[i]);
    }
    return ignored;
}

static void *drain(void *worst)
{
    struct sched_param parameter = { .sched_priority = 10 };
    if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &parameter)) {
        *(long *)worst = -1;
        return 0;
    }
    for (int i = 0; i < DRAINS; i++) {
        struct timespec sleep_ms = { 0, 200000 + i % 7 * 1000 };
        clock_nanosleep(CLOCK_MONOTONIC, 0, &sleep_ms, 0);
        long before = cpu_ms();
        malloc_trim(0);
        long took = cpu_ms() - before;
        if (took > *(long *)worst)
            *(long *)worst = took;
        if (took > TOO_LONG_MS)
            break;
    }
    return 0;
}

int main(void)
{
    cpu_set_t set, one;
    pthread_t workers[WORKERS], drainer;
    long worst = 0;
    sched_getaffinity(0, sizeof set, &set);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &set)) {
            CPU_SET(cpu, &one);
            break;
        }
    sched_setaffinity(0, sizeof one, &one);
    free(malloc(64));
    for (int i = 0; i < WORKERS; i++)
        pthread_create(&workers[i], 0, work, 0);
    pthread_create(&drainer, 0, drain, &worst);
    pthread_join(drainer, 0);
    stop = 1;
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i], 0);
    if (worst < 0) {
        puts("skipped: no right to real-time priorities\nok");
        return 0;
    }
    printf("the longest drain took %ld ms of its thread's time\n", worst);
    if (worst > TOO_LONG_MS)
        return 1;
    puts("ok");
    return 0;
}

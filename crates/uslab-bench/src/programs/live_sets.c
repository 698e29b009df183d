/*
 * Threads with a live set each: suites/threads.rs compiles it when the benchmark runs; by hand:
 *
 *   cc -O2 -pthread -o live_sets live_sets.c
 *   LD_PRELOAD=ALLOCATOR ./live_sets THREADS REPLACEMENTS ROUNDS
 *
 * In a round, new threads fill their sets of 256 objects of 16 to 527 bytes. Then they start
 * together, and each makes REPLACEMENTS: it frees a random object of its set, and allocates one of
 * random size in its place. With no more threads than CPUs each stays on a CPU of its own.
 *
 * Output: a line a figure, "NAME VALUE". A complaint is one line.
 *
 *   replace_ns        of the fastest round, the time from the start to the end of the last thread,
 *                     for each replacement of all threads
 *   pages_of_a_set    pages of 4 KiB that a set lies in at the end of the last round, the mean of
 *                     all threads
 *   pages_of_all      pages that all sets lie in
 *   resident_bytes    resident memory at that time, less what it was when the program started
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 64, LIVE = 256, SMALLEST = 16, SIZES = 512, SETTLE = 250, PAGE_SHIFT = 12, LIMIT_S = 600 };

struct set {
    uint64_t random;
    /* The first word of an object is its size. */
    size_t *objects[LIVE];
    uint64_t begin_ns, end_ns;
    uintptr_t pages[LIVE];
} __attribute__((aligned(64)));

static size_t threads, replacements;
static uint64_t resident_bytes;
static struct set sets[MAX_THREADS];
static pthread_barrier_t barrier;

static void fail(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The resident memory of the process. */
static uint64_t resident(void)
{
    char text[128] = {0};
    unsigned long long size, pages;
    int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) < 0 || close(file) != 0) fail("cannot read statm");
    if (sscanf(text, "%llu %llu", &size, &pages) != 2) fail("statm tells no pages");
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Marsaglia's xorshift. */
static size_t below(struct set *set, uint32_t bound)
{
    set->random ^= set->random << 13;
    set->random ^= set->random >> 7;
    set->random ^= set->random << 17;
    return (set->random >> 32) * bound >> 32;
}

static size_t *obtain(struct set *set)
{
    size_t bytes = SMALLEST + below(set, SIZES);
    size_t *object = malloc(bytes);
    if (object == NULL) fail("malloc returned NULL");
    *object = bytes;
    return object;
}

static void give_back(size_t *object)
{
    if (*object < SMALLEST || *object >= SMALLEST + SIZES) fail("an object was overwritten");
    free(object);
}

static void replace(struct set *set, size_t times)
{
    for (size_t n = 0; n < times; n++) {
        size_t at = below(set, LIVE);
        give_back(set->objects[at]);
        set->objects[at] = obtain(set);
    }
}

/* The CPU of a thread where there is one for each. */
static void stay(size_t thread)
{
    cpu_set_t all, own;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || (size_t)CPU_COUNT(&all) < threads) return;
    int cpu = -1;
    for (size_t n = 0; n <= thread; n++)
        do cpu++; while (!CPU_ISSET(cpu, &all));
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    sched_setaffinity(0, sizeof own, &own);
}

static void *run(void *argument)
{
    struct set *set = argument;
    stay((size_t)(set - sets));
    for (size_t n = 0; n < LIVE; n++) set->objects[n] = obtain(set);
    replace(set, SETTLE);
    pthread_barrier_wait(&barrier);
    set->begin_ns = now_ns();
    replace(set, replacements);
    set->end_ns = now_ns();
    for (size_t n = 0; n < LIVE; n++) set->pages[n] = (uintptr_t)set->objects[n] >> PAGE_SHIFT;
    /* One of the threads reads it, while all sets are there. */
    if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) resident_bytes = resident();
    pthread_barrier_wait(&barrier);
    for (size_t n = 0; n < LIVE; n++) give_back(set->objects[n]);
    return NULL;
}

static int by_number(const void *left, const void *right)
{
    uintptr_t a = *(const uintptr_t *)left, b = *(const uintptr_t *)right;
    return (a > b) - (a < b);
}

static size_t distinct(uintptr_t *pages, size_t count)
{
    size_t found = 0;
    qsort(pages, count, sizeof *pages, by_number);
    for (size_t n = 0; n < count; n++) found += n == 0 || pages[n] != pages[n - 1];
    return found;
}

int main(int argc, char **argv)
{
    static uintptr_t pages[MAX_THREADS * LIVE];
    if (argc != 4) fail("arguments: THREADS REPLACEMENTS ROUNDS");
    threads = strtoul(argv[1], NULL, 10);
    replacements = strtoul(argv[2], NULL, 10);
    size_t rounds = strtoul(argv[3], NULL, 10), of_sets = 0, count = 0;
    if (threads < 1 || threads > MAX_THREADS) fail("1 to 64 threads");
    if (replacements < 1 || rounds < 1) fail("one replacement and one round at least");
    /* Ends a run that hangs. */
    alarm(LIMIT_S);
    uint64_t least_ns = UINT64_MAX, begin_bytes = resident();
    for (size_t n = 0; n < threads; n++) sets[n].random = 0x9e3779b97f4a7c15u * (n + 1);
    for (size_t round = 0; round < rounds; round++) {
        pthread_t started[MAX_THREADS];
        pthread_barrier_init(&barrier, NULL, (unsigned)threads);
        for (size_t n = 0; n < threads; n++)
            if (pthread_create(&started[n], NULL, run, &sets[n]) != 0) fail("cannot start a thread");
        for (size_t n = 0; n < threads; n++) pthread_join(started[n], NULL);
        pthread_barrier_destroy(&barrier);
        uint64_t begin_ns = sets[0].begin_ns, end_ns = sets[0].end_ns;
        for (size_t n = 1; n < threads; n++) {
            if (sets[n].begin_ns < begin_ns) begin_ns = sets[n].begin_ns;
            if (sets[n].end_ns > end_ns) end_ns = sets[n].end_ns;
        }
        if (end_ns - begin_ns < least_ns) least_ns = end_ns - begin_ns;
    }
    for (size_t n = 0; n < threads; n++) {
        for (size_t i = 0; i < LIVE; i++) pages[count++] = sets[n].pages[i];
        of_sets += distinct(sets[n].pages, LIVE);
    }
    printf("replace_ns %.4f\n", (double)least_ns / (double)threads / (double)replacements);
    printf("pages_of_a_set %.1f\n", (double)of_sets / (double)threads);
    printf("pages_of_all %zu\n", distinct(pages, count));
    printf("resident_bytes %llu\n", (unsigned long long)(resident_bytes - begin_bytes));
    return 0;
}

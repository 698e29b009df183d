/*
 * How long a fork holds the other threads of a process: one thread forks again and again, others
 * allocate and free meanwhile. suites/fork.rs compiles it when the benchmark runs; by hand:
 *
 *   cc -O2 -o forks forks.c
 *   LD_PRELOAD=ALLOCATOR ./forks WORK THREADS FORKS LIVE_MIB
 *
 * WORK is what a step of a thread does:
 *
 *   pairs    one object, allocated and freed
 *   bursts   200 objects, allocated and then freed
 *   none     nothing: it writes a word of its own, and so meets the kernel's part alone
 *
 * Before the first fork the program allocates LIVE_MIB of objects, and keeps them. Each thread
 * reads the clock after each step. A gap is the time between two readings. The hold of a thread by
 * a fork is its longest gap that meets the time from the call of fork to its return in the parent,
 * less the usual gap of this thread. Threads that other programs push off their CPU look held, too:
 * on a busy machine start it by `chrt -f 1`, with one thread.
 *
 * The child ends at once. The tables here come from mmap, so that the allocator serves nothing but
 * the objects. Output: a line a figure, "NAME VALUE". A complaint is one line.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 64, MAX_FORKS = 100000, BURST = 200, SIZES = 8, SETTLE_US = 500, LIMIT_S = 60 };

enum work { PAIRS, BURSTS, NONE };

/* A thread's part. */
struct part {
    /* Its longest gaps that met a fork, by fork. */
    uint64_t *holds;
    uint64_t usual;
};

static enum work work;
static size_t threads, forks;
static struct part parts[MAX_THREADS];
static atomic_int ready, stop;
/* The fork in progress or the last one, from 1, and its time: the end is 0 while it lasts. */
static struct current {
    _Atomic uint64_t number, begin, end;
} *current;

static void fail(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Memory that a fork protects from writes, as it does all that is MAP_PRIVATE; memory that is
 * MAP_SHARED it leaves alone. */
static void *table(size_t bytes, int kind)
{
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (start == MAP_FAILED) fail("mmap failed");
    return start;
}

/* The forking thread and its children stay on the first CPU, the other threads on all others: a
 * child that pushes a thread off its CPU is the scheduler's doing. On one CPU all stay where they
 * are. */
static void stay(int is_forking)
{
    cpu_set_t all, own;
    /* Threads of real-time priority that share a CPU do not take turns. */
    if (threads > 1) sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0});
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;
    int first = 0;
    while (!CPU_ISSET(first, &all)) first++;
    CPU_ZERO(&own);
    CPU_SET(first, &own);
    if (!is_forking) CPU_XOR(&own, &own, &all);
    sched_setaffinity(0, sizeof own, &own);
}

static size_t size_of(size_t n)
{
    static const size_t sizes[SIZES] = {24, 64, 100, 200, 48, 350, 16, 1000};
    return sizes[n % SIZES];
}

static void step(volatile char **objects, size_t turn)
{
    size_t count = work == BURSTS ? BURST : 1;
    if (work == NONE) {
        *(volatile size_t *)objects = turn;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        objects[i] = malloc(size_of(turn + i));
        if (objects[i] == NULL) fail("malloc returned NULL");
        *objects[i] = 1;
    }
    for (size_t i = 0; i < count; i++) free((void *)objects[i]);
}

static void *run(void *argument)
{
    struct part *part = argument;
    stay(0);
    volatile char **objects = table(4096, MAP_PRIVATE);
    uint64_t *holds = part->holds, usual = UINT64_MAX;
    for (size_t turn = 0; turn < 20000; turn++) step(objects, turn);
    for (size_t turn = 0; turn < 2000; turn++) {
        uint64_t begin = now();
        step(objects, turn);
        uint64_t gap = now() - begin;
        if (gap < usual) usual = gap;
    }
    part->usual = usual;
    atomic_fetch_add(&ready, 1);
    uint64_t last = now();
    for (size_t turn = 0; !atomic_load_explicit(&stop, memory_order_relaxed); turn++) {
        step(objects, turn);
        uint64_t time = now(), number = atomic_load_explicit(&current->number, memory_order_acquire);
        if (number > 0) {
            uint64_t end = atomic_load_explicit(&current->end, memory_order_acquire);
            uint64_t begin = atomic_load_explicit(&current->begin, memory_order_acquire);
            /* The fork has begun before this step ended, and not ended before it began. */
            if (begin < time && (end == 0 || last < end) && time - last > holds[number - 1])
                holds[number - 1] = time - last;
        }
        last = time;
    }
    return NULL;
}

static int by_size(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static void tell(const char *name, uint64_t *values, size_t count)
{
    if (count == 0) fail("no thread ran while a fork was in progress");
    qsort(values, count, sizeof *values, by_size);
    printf("%s_median_ns %llu\n", name, (unsigned long long)values[count / 2]);
    printf("%s_p99_ns %llu\n", name, (unsigned long long)values[count - 1 - count / 100]);
    printf("%s_longest_ns %llu\n", name, (unsigned long long)values[count - 1]);
}

int main(int argc, char **argv)
{
    if (argc != 5) fail("arguments: WORK THREADS FORKS LIVE_MIB");
    work = strcmp(argv[1], "pairs") == 0 ? PAIRS : strcmp(argv[1], "bursts") == 0 ? BURSTS : NONE;
    threads = strtoul(argv[2], NULL, 10);
    forks = strtoul(argv[3], NULL, 10);
    size_t live_bytes = strtoul(argv[4], NULL, 10) << 20;
    if (threads < 1 || threads > MAX_THREADS) fail("1 to 64 threads");
    if (forks < 1 || forks > MAX_FORKS) fail("1 to 100000 forks");
    for (size_t n = 0, bytes = 0; bytes < live_bytes; bytes += size_of(n++)) {
        char *object = malloc(size_of(n));
        if (object == NULL) fail("malloc returned NULL");
        *object = 1;
    }
    /* Ends a run that hangs. */
    alarm(LIMIT_S);
    pthread_t started[MAX_THREADS];
    /* A fault in a table of the program's own would look like a hold. */
    uint64_t *lasted = table(forks * sizeof *lasted, MAP_SHARED);
    uint64_t *holds = table(threads * forks * sizeof *holds, MAP_SHARED);
    current = table(sizeof *current, MAP_SHARED);
    for (size_t n = 0; n < threads; n++) {
        parts[n].holds = holds + n * forks;
        if (pthread_create(&started[n], NULL, run, &parts[n]) != 0) fail("cannot start a thread");
    }
    while (atomic_load(&ready) < (int)threads) usleep(1000);
    stay(1);
    for (size_t n = 0; n < forks; n++) {
        atomic_store_explicit(&current->end, 0, memory_order_release);
        uint64_t begin = now();
        atomic_store_explicit(&current->begin, begin, memory_order_release);
        atomic_store_explicit(&current->number, n + 1, memory_order_release);
        pid_t child = fork();
        if (child == 0) _exit(0);
        uint64_t end = now();
        atomic_store_explicit(&current->end, end, memory_order_release);
        if (child < 0) fail("fork failed");
        lasted[n] = end - begin;
        waitpid(child, NULL, 0);
        /* Threads that were held end their step and note it before the next fork. */
        usleep(SETTLE_US);
    }
    atomic_store(&stop, 1);
    for (size_t n = 0; n < threads; n++) pthread_join(started[n], NULL);
    /* A thread that had no CPU from before a fork until the next one noted nothing. */
    size_t noted = 0;
    for (size_t n = 0; n < threads; n++)
        for (size_t i = 0; i < forks; i++) {
            uint64_t gap = parts[n].holds[i], usual = parts[n].usual;
            if (gap > 0) holds[noted++] = gap > usual ? gap - usual : 0;
        }
    tell("hold", holds, noted);
    tell("fork", lasted, forks);
    return 0;
}

/*
 * The malloc family as POSIX, C23 and glibc's manual pages specify it: one program with many named
 * checks.
 *
 *   malloc_conformance --list      names, one a line
 *   malloc_conformance NAME        runs one check: status 0 and "NAME ok", or status 1 and the
 *                                  failed condition
 *
 * Each check runs in a process of its own, so that a crash or a hang affects no other check.
 */
#include "check.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

_Atomic(int) *shared_counts;

void failed(const char *file, int line, const char *what, const char *format, ...) {
    int error = errno;
    char text[1024];
    int used = snprintf(text, sizeof text, "%s:%d: does not hold: %s (errno %d) ", file, line, what, error);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(text + used, sizeof text - (size_t)used - 2, format, arguments);
    va_end(arguments);
    if (used > (int)sizeof text - 2) used = sizeof text - 2;
    text[used++] = '\n';
    if (write(2, text, (size_t)used) < 0) abort();
    _exit(1);
}

size_t opaque(size_t n) {
    volatile size_t hidden = n;
    return hidden;
}

uint64_t next_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    *state = x;
    return x * 2685821657736338717u;
}

static unsigned char byte_at(size_t place, uint64_t seed) {
    return (unsigned char)((place * 0x9e3779b97f4a7c15u + seed * 0xbf58476d1ce4e5b9u) >> 56);
}

void fill(void *block, size_t n, uint64_t seed) {
    unsigned char *bytes = block;
    for (size_t i = 0; i < n; i++) bytes[i] = byte_at(i, seed);
}

int intact(const void *block, size_t n, uint64_t seed) {
    const unsigned char *bytes = block;
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != byte_at(i, seed)) return 0;
    return 1;
}

int all_zero(const void *block, size_t n) {
    const unsigned char *bytes = block;
    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
}

/* Typical sizes: mostly small, some of a few pages, occasionally a large one. */
static size_t usual_size(uint64_t random) {
    switch (random % 64) {
    case 0: return (size_t)(random >> 32) % (512 * 1024) + 1;
    case 1: case 2: case 3: return (size_t)(random >> 32) % 20000 + 1;
    default: return (size_t)(random >> 32) % 600 + 1;
    }
}

int churn(int rounds, uint64_t seed) {
    enum { LIVE = 64 };
    struct { unsigned char *block; size_t n; uint64_t seed; } live[LIVE] = {{0, 0, 0}};
    uint64_t random = seed * 2 + 1;
    int good = 1;
    for (int round = 0; round < rounds + LIVE; round++) {
        int slot = round < rounds ? (int)(next_random(&random) % LIVE) : round - rounds;
        /* Only the ends of a large block are written: the test is about pages, not about memory
         * bandwidth. */
        size_t shown = live[slot].n < 512 ? live[slot].n : 512;
        if (live[slot].block) {
            good &= intact(live[slot].block, shown, live[slot].seed);
            good &= intact(live[slot].block + live[slot].n - shown, shown, live[slot].seed) || live[slot].n < 1024;
            free(live[slot].block);
            live[slot].block = NULL;
        }
        if (round >= rounds) continue;
        size_t n = usual_size(next_random(&random));
        unsigned char *block = malloc(n);
        if (!block) return 0;
        shown = n < 512 ? n : 512;
        live[slot].block = block, live[slot].n = n, live[slot].seed = next_random(&random);
        fill(block, shown, live[slot].seed);
        if (n >= 1024) fill(block + n - shown, shown, live[slot].seed);
    }
    return good;
}

static atomic_int storm_over;
static atomic_ullong storm_blocks;
static pthread_t storm_threads[64];
static int storm_count;

static void *storm(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    while (!atomic_load(&storm_over)) {
        CHECK(churn(500, seed++), "a block was damaged in a storm");
        atomic_fetch_add(&storm_blocks, 500);
    }
    return NULL;
}

void storm_begin(int threads) {
    atomic_store(&storm_over, 0);
    atomic_store(&storm_blocks, 0);
    storm_count = threads;
    for (int i = 0; i < threads; i++)
        CHECK(pthread_create(&storm_threads[i], NULL, storm, (void *)(uintptr_t)((i + 1) * 1000003)) == 0);
    /* Every thread has started before the check does. */
    while (atomic_load(&storm_blocks) < (unsigned)threads * 500u) usleep(1000);
}

uint64_t storm_end(void) {
    atomic_store(&storm_over, 1);
    for (int i = 0; i < storm_count; i++) CHECK(pthread_join(storm_threads[i], NULL) == 0);
    return atomic_load(&storm_blocks);
}

void expect_clean_child(pid_t child, const char *what) {
    int status;
    CHECK(child > 0, "%s: no child", what);
    CHECK(waitpid(child, &status, 0) == child, "%s", what);
    CHECK(!WIFSIGNALED(status), "%s: signal %d%s", what, WTERMSIG(status),
          WTERMSIG(status) == 14 ? ": it hung until its alarm" : "");
    CHECK(WEXITSTATUS(status) == 0, "%s: exit status %d", what, WEXITSTATUS(status));
}

void note(int which) {
    if (shared_counts) atomic_fetch_add(&shared_counts[which], 1);
}

#ifdef WITHOUT_OPERATORS
const struct check operator_checks[] = {{NULL, NULL}};
#endif

static const struct check *const tables[] = {limits_checks, content_checks, alignment_checks, lifecycle_checks,
                                             signal_checks, fork_checks, thread_checks, operator_checks};

int main(int argc, char **argv) {
    int list = argc == 2 && strcmp(argv[1], "--list") == 0;
    shared_counts = mmap(NULL, COUNTS * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared_counts != MAP_FAILED);
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++) {
        for (const struct check *check = tables[table]; check->name; check++) {
            if (list) {
                printf("%s\n", check->name);
            } else if (argc == 2 && strcmp(argv[1], check->name) == 0) {
                check->run();
                printf("%s ok\n", check->name);
                return 0;
            }
        }
    }
    if (!list) fprintf(stderr, "usage: malloc_conformance --list | NAME\n");
    return list ? 0 : 2;
}

/*
 * Sizes at the ends of their range, overflow, errno, statistics, and exhaustion of the address
 * space.
 *
 * Sources: C23 7.24.3, POSIX.1-2024 malloc(3p), calloc(3p), realloc(3p), reallocarray(3p); glibc's
 * malloc(3), malloc_usable_size(3), malloc_trim(3), mallinfo2(3).
 */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

/* Programs written for glibc take a null pointer for "no memory", so size 0 must return a distinct
 * pointer each time. */
static void zero_size(void) {
    void *p[5] = {malloc(opaque(0)), malloc(opaque(0)), calloc(opaque(0), 8), calloc(8, opaque(0)), realloc(NULL, opaque(0))};
    for (int i = 0; i < 5; i++) {
        CHECK(p[i] != NULL, "call %d", i);
        for (int j = 0; j < i; j++) CHECK(p[i] != p[j], "calls %d and %d gave the same pointer", j, i);
    }
    for (int i = 0; i < 5; i++) free(p[i]);
    free(NULL);
}

static void huge_size(void) {
    size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 15, SIZE_MAX - 4095, SIZE_MAX - 4096, SIZE_MAX / 2 + 1, PTRDIFF_MAX,
                      PTRDIFF_MAX - 4096, (size_t)1 << 62, (size_t)1 << 50};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = opaque(sizes[i]);
        errno = 0;
        CHECK(malloc(n) == NULL && errno == ENOMEM, "malloc(%zu)", n);
        errno = 0;
        CHECK(calloc(1, n) == NULL && errno == ENOMEM, "calloc(1, %zu)", n);
        errno = 0;
        CHECK(calloc(n, 1) == NULL && errno == ENOMEM, "calloc(%zu, 1)", n);
        errno = 0;
        CHECK(realloc(NULL, n) == NULL && errno == ENOMEM, "realloc(NULL, %zu)", n);
        for (size_t old = 1; old <= (8 << 20); old *= 8) {
            char *p = malloc(old);
            fill(p, old, i);
            errno = 0;
            CHECK(realloc(p, n) == NULL && errno == ENOMEM, "realloc of %zu bytes to %zu", old, n);
            CHECK(intact(p, old, i), "%zu bytes must survive a realloc that fails", old);
            free(p);
        }
    }
}

static void multiplication_overflow(void) {
    size_t pairs[][2] = {{SIZE_MAX, 2}, {2, SIZE_MAX}, {(size_t)1 << 32, (size_t)1 << 32}, {SIZE_MAX / 2 + 2, 2},
                         {((size_t)1 << 32) + 1, ((size_t)1 << 32) - 1}, {SIZE_MAX / 16 + 2, 16}, {SIZE_MAX, SIZE_MAX}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        size_t a = opaque(pairs[i][0]), b = opaque(pairs[i][1]);
        errno = 0;
        CHECK(calloc(a, b) == NULL && errno == ENOMEM, "calloc(%zu, %zu)", a, b);
        errno = 0;
        CHECK(reallocarray(NULL, a, b) == NULL && errno == ENOMEM, "reallocarray(NULL, %zu, %zu)", a, b);
        char *p = malloc(100);
        fill(p, 100, i);
        errno = 0;
        CHECK(reallocarray(p, a, b) == NULL && errno == ENOMEM, "reallocarray(p, %zu, %zu)", a, b);
        CHECK(intact(p, 100, i), "the block must survive");
        free(p);
    }
    char *p = reallocarray(NULL, 25, 40);
    CHECK(p != NULL && malloc_usable_size(p) >= 1000);
    fill(p, 1000, 1);
    p = reallocarray(p, 50, 40);
    CHECK(p != NULL && malloc_usable_size(p) >= 2000 && intact(p, 1000, 1));
    free(p);
}

static long resident_kib(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_maxrss;
}

/* To size 0: frees and returns null, as glibc does, or returns a block of size 0. Neither may leak
 * the memory. */
static void realloc_to_zero(void) {
    long before = resident_kib();
    for (int i = 0; i < 20000; i++) {
        size_t n = i % 2 ? 65536 : 200;
        char *p = malloc(n);
        CHECK(p != NULL);
        memset(p, 1, n);
        void *q = realloc(p, opaque(0));
#ifndef __GLIBC__
        CHECK(q != NULL, "musl's programs would free the block again");
#endif
        if (q) free(q);
    }
    long grown = resident_kib() - before;
    CHECK(grown < 65536, "%ld KiB more resident after 20000 blocks were reallocated to nothing", grown);
}

static void free_keeps_errno(void) {
    for (size_t n = 1; n <= (64 << 20); n *= 4) {
        for (int round = 0; round < 3; round++) {
            char *p = malloc(n);
            CHECK(p != NULL);
            p[0] = p[n - 1] = 1;
            errno = 4242;
            free(p);
            CHECK(errno == 4242, "free of %zu bytes", n);
        }
    }
    errno = 4242;
    free(NULL);
    CHECK(errno == 4242);
}

static void usable_size(void) {
    CHECK(malloc_usable_size(NULL) == 0);
    for (size_t n = 0; n < (4 << 20); n += 1 + n / 7) {
        char *p = malloc(n);
        CHECK(p != NULL);
        size_t usable = malloc_usable_size(p);
        CHECK(usable >= n && (n < 64 || usable <= 2 * n + 4096), "%zu for %zu", usable, n);
        char *other = malloc(n);
        fill(other, n, 2);
        fill(p, usable, 1);
        CHECK(intact(other, n, 2), "writing the usable bytes of one block damaged another");
        p = realloc(p, usable + 1);
        CHECK(p != NULL && intact(p, usable, 1), "realloc of %zu keeps the usable bytes", n);
        free(other);
        free(p);
    }
}

static void sized_frees(void) {
    void (*sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    void (*aligned)(void *, size_t, size_t) = (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    CHECK(sized != NULL, "the library exports free_sized");
    CHECK(aligned != NULL, "the library exports free_aligned_sized");
    sized(NULL, 10);
    aligned(NULL, 64, 10);
    for (int round = 0; round < 3; round++) {
        for (size_t n = 0; n < (8 << 20); n += 1 + n / 5) {
            char *p = round ? malloc(n) : calloc(1, n), *q = realloc(malloc(1), n ? n : 1);
            CHECK(p != NULL && q != NULL);
            errno = 4242;
            sized(p, n);
            sized(q, n ? n : 1);
            CHECK(errno == 4242);
            for (size_t align = 16; align <= 65536; align *= 4) {
                p = aligned_alloc(align, n);
                CHECK(p != NULL);
                fill(p, n < 64 ? n : 64, 1);
                aligned(p, align, n);
            }
        }
    }
    CHECK(churn(20000, 7), "blocks are sound afterwards");
}

#ifndef __GLIBC__
/* Only the preload library defines it. */
int malloc_trim(size_t pad) __attribute__((weak));
#endif

static size_t in_use(void) {
#ifdef __GLIBC__
    struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
#else
    return 0;
#endif
}

static void statistics(void) {
    size_t before = in_use();
    void *blocks[256];
    for (int i = 0; i < 256; i++) {
        blocks[i] = malloc(i < 16 ? 1 << 20 : 65536);
        CHECK(blocks[i] != NULL);
        memset(blocks[i], 1, 65536);
    }
    size_t during = in_use(), grown = during - before;
    CHECK(during == 0 || (grown >= (24 << 20) && grown < (256 << 20)), "31 MiB more in use, and mallinfo2 says %zu bytes", grown);
    for (int i = 0; i < 256; i++) free(blocks[i]);
    int trimmed = malloc_trim(0);
    CHECK(trimmed == 0 || trimmed == 1, "malloc_trim gave %d", trimmed);
    CHECK(churn(20000, 3), "blocks are sound after a trim");
}

/*
 * Uses all memory up repeatedly, each time in blocks of one size. Meant to run under `ulimit -v`.
 * Without it, huge untouched blocks exhaust the address space, or the memory that the system
 * commits.
 */
static void memory_runs_out(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    int limited = limit.rlim_cur <= ((rlim_t)8 << 30);
    size_t small[] = {1 << 20, 65536, 4096, 1 << 20}, huge[] = {(size_t)1 << 36, (size_t)1 << 34, (size_t)1 << 36, (size_t)1 << 34};
    size_t most = 2 << 20;
    void **blocks = mmap(NULL, most * sizeof *blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(blocks != MAP_FAILED);
    for (int turn = 0; turn < 4; turn++) {
        size_t size = limited ? small[turn] : huge[turn], n = 0;
        errno = 0;
        while (n < most && (blocks[n] = malloc(size))) n++;
        CHECK(n < most && errno == ENOMEM, "%zu blocks of %zu bytes, then errno", n, size);
        CHECK(!limited || n * size >= ((size_t)1 << 30), "only %zu blocks of %zu bytes", n, size);
        errno = 0;
        CHECK(malloc(size) == NULL && errno == ENOMEM, "a second refusal");
        errno = 0;
        CHECK(calloc(1, size) == NULL && errno == ENOMEM, "calloc is refused too");
        errno = 0;
        size_t more = limited ? (size_t)3 << 30 : size * 8;
        CHECK(n == 0 || (realloc(blocks[0], more) == NULL && errno == ENOMEM), "realloc is refused too");
        while (n) free(blocks[--n]);
        CHECK(churn(20000, (uint64_t)turn + 1), "after everything was freed there is memory again");
    }
}

/* A block larger than memory and swap together, as of a damaged length in a file. */
static void beyond_memory(void) {
    FILE *file = fopen("/proc/sys/vm/overcommit_memory", "r");
    int mode = 1;
    CHECK(!file || fscanf(file, "%d", &mode) == 1);
    if (file) fclose(file);
    struct sysinfo info;
    CHECK(sysinfo(&info) == 0);
    size_t size = (size_t)(info.totalram + info.totalswap) * info.mem_unit + ((size_t)1 << 30);
    for (int round = 0; round < 3; round++) {
        errno = 0;
        void *p = malloc(size);
        CHECK(mode == 1 || (!p && errno == ENOMEM), "%zu bytes at %p", size, p);
        free(p);
        CHECK(churn(1000, (uint64_t)round + 1), "other blocks are still to be had");
    }
}

const struct check limits_checks[] = {
    {"zero_size", zero_size},
    {"huge_size", huge_size},
    {"multiplication_overflow", multiplication_overflow},
    {"realloc_to_zero", realloc_to_zero},
    {"free_keeps_errno", free_keeps_errno},
    {"usable_size", usable_size},
    {"sized_frees", sized_frees},
    {"statistics", statistics},
    {"memory_runs_out", memory_runs_out},
    {"beyond_memory", beyond_memory},
    {NULL, NULL},
};

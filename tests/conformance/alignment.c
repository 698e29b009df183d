/*
 * Alignment: of every plain result, as requested, and refused where it is invalid.
 *
 * C23 7.24.3.1 (aligned_alloc: an alignment that is not supported gives a null pointer),
 * POSIX.1-2024 posix_memalign(3p) (EINVAL, and the pointer is unchanged), glibc's posix_memalign(3)
 * for the older functions.
 */
#define _GNU_SOURCE
#include "check.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_aligned(const void *p, size_t align) {
    return ((uintptr_t)p & (align - 1)) == 0;
}

/* 16 on all supported machines (max_align_t), for every size. */
static void plain_results(void) {
    for (size_t n = 0; n < (16 << 20); n = n < 5000 ? n + 1 : n + n / 9) {
        void *p[4] = {malloc(n), calloc(1, n), realloc(NULL, n), realloc(malloc(1), n + 1)};
        for (int i = 0; i < 4; i++) {
            CHECK(p[i] != NULL && is_aligned(p[i], 16), "%zu bytes, call %d: %p", n, i, p[i]);
            free(p[i]);
        }
    }
}

typedef void *allocate(size_t align, size_t n);

static void *by_posix_memalign(size_t align, size_t n) {
    void *p = (void *)1;
    int error = posix_memalign(&p, align, n);
    CHECK(error == 0, "posix_memalign(%zu, %zu) gave %d", align, n, error);
    return p;
}

static void as_asked_for(void) {
    allocate *ways[] = {aligned_alloc, memalign, by_posix_memalign};
    for (int way = 0; way < 3; way++) {
        for (size_t align = way == 2 ? sizeof(void *) : 1; align <= (8 << 20); align *= 2) {
            size_t sizes[] = {0, 1, 7, 24, 100, 1000, 4096, 5000, 70000, align, align + 1, 3 * align};
            char *blocks[sizeof sizes / sizeof *sizes];
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                blocks[i] = ways[way](align, sizes[i]);
                CHECK(blocks[i] != NULL && is_aligned(blocks[i], align), "way %d: %zu bytes at %zu", way, sizes[i], align);
                CHECK(malloc_usable_size(blocks[i]) >= sizes[i]);
                fill(blocks[i], sizes[i] < 100000 ? sizes[i] : 100000, i);
            }
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                size_t n = sizes[i] < 100000 ? sizes[i] : 100000;
                CHECK(intact(blocks[i], n, i), "blocks overlap");
                /* A block with an alignment can be reallocated like any other, and keeps its
                 * contents. */
                if (i % 2) blocks[i] = realloc(blocks[i], sizes[i] + 5000);
                CHECK(blocks[i] != NULL && intact(blocks[i], n, i), "realloc of an aligned block");
                free(blocks[i]);
            }
        }
    }
}

static void not_a_power_of_two(void) {
    size_t bad[] = {0, 3, 5, 6, 7, 12, 24, 48, 100, 4095, 4097, SIZE_MAX, SIZE_MAX - 7, ((size_t)1 << 40) + 8};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t align = opaque(bad[i]);
        errno = 0;
        CHECK(aligned_alloc(align, 64) == NULL && errno == EINVAL, "aligned_alloc(%zu, 64)", align);
        /* memalign may refuse or, as glibc does, take the next power of two. */
        errno = 0;
        char *p = memalign(align, 64);
        CHECK(p ? is_aligned(p, 16) : errno == EINVAL || errno == ENOMEM, "memalign(%zu, 64)", align);
        free(p);
        void *kept = &bad;
        errno = 4242;
        CHECK(posix_memalign(&kept, align, 64) == EINVAL, "posix_memalign(%zu, 64)", align);
        CHECK(kept == &bad && errno == 4242, "posix_memalign(%zu, 64) leaves the pointer and errno alone", align);
    }
    /* posix_memalign also requires a multiple of a pointer's size. */
    for (size_t align = 1; align < sizeof(void *); align *= 2) {
        void *kept = &bad;
        errno = 4242;
        CHECK(posix_memalign(&kept, opaque(align), 64) == EINVAL && kept == &bad && errno == 4242, "%zu", align);
    }
}

/* ENOMEM, or a block with that alignment: an allocator with enough room may align to a terabyte. */
static void refused_or_right(void *p, int error, size_t align, size_t n) {
    CHECK(p ? is_aligned(p, align) && align < (size_t)1 << 47 : error == ENOMEM, "%zu bytes at %zu: %p", n, align, p);
    if (p) fill(p, n < 4096 ? n : 4096, 1);
    free(p);
}

static void absurd(void) {
    for (int shift = 40; shift < 64; shift++) {
        for (size_t n = 1; n < ((size_t)1 << 24); n = n * 64 + 3) {
            size_t align = opaque((size_t)1 << shift);
            errno = 0;
            void *p = aligned_alloc(align, n);
            refused_or_right(p, errno, align, n);
            errno = 0;
            p = memalign(align, n);
            refused_or_right(p, errno, align, n);
            p = &p;
            int error = posix_memalign(&p, align, n);
            CHECK(error == 0 || p == &p || p == NULL, "posix_memalign failed and stored something that is no block");
            refused_or_right(error ? NULL : p, error, align, n);
        }
    }
    size_t sizes[] = {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX - 4096, SIZE_MAX / 2 + 1, PTRDIFF_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t align = 16; align <= (2 << 20); align *= 8) {
            size_t n = opaque(sizes[i]);
            void *p = NULL;
            errno = 0;
            CHECK(aligned_alloc(align, n) == NULL && errno == ENOMEM, "aligned_alloc(%zu, %zu)", align, n);
            errno = 0;
            CHECK(memalign(align, n) == NULL && errno == ENOMEM, "memalign(%zu, %zu)", align, n);
            CHECK(posix_memalign(&p, align, n) == ENOMEM, "posix_memalign(%zu, %zu)", align, n);
        }
    }
    CHECK(churn(10000, 5), "and blocks are sound afterwards");
}

#ifndef __GLIBC__
/* Only the preload library defines it. */
void *pvalloc(size_t size) __attribute__((weak));
#endif

static void page_functions(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t n = 0; n < 5 * page; n += 501) {
        char *v = valloc(n), *pv = pvalloc(n);
        CHECK(v != NULL && is_aligned(v, page), "valloc(%zu)", n);
        CHECK(pv != NULL && is_aligned(pv, page), "pvalloc(%zu)", n);
        CHECK(malloc_usable_size(pv) >= (n + page - 1) / page * page, "pvalloc(%zu) gives whole pages", n);
        fill(pv, malloc_usable_size(pv), 1);
        free(v);
        free(pv);
    }
    errno = 0;
    CHECK(valloc(opaque(SIZE_MAX)) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(pvalloc(opaque(SIZE_MAX)) == NULL && errno == ENOMEM, "rounding up must not wrap around");
    errno = 0;
    CHECK(pvalloc(opaque(SIZE_MAX - page + 2)) == NULL && errno == ENOMEM);
}

const struct check alignment_checks[] = {
    {"plain_alignment", plain_results},
    {"alignment_as_asked", as_asked_for},
    {"alignment_not_a_power_of_two", not_a_power_of_two},
    {"alignment_absurd", absurd},
    {"page_functions", page_functions},
    {NULL, NULL},
};

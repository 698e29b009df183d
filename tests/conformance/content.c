/*
 * The contents of blocks: no overlap with other blocks, zeros where guaranteed, and unchanged after
 * a move.
 */
#define _GNU_SOURCE
#include "check.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* Many blocks of every size class at a time, freed in another order than they were allocated. */
static void blocks_do_not_overlap(void) {
    enum { LIVE = 20000 };
    static struct { char *block; size_t n; } live[LIVE];
    uint64_t random = 99;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < LIVE; i++) {
            if (live[i].block) continue;
            live[i].n = (size_t)i % 3000 + (i % 500 == 0 ? 100000 : 0);
            live[i].block = malloc(live[i].n);
            CHECK(live[i].block != NULL);
            fill(live[i].block, live[i].n, (uint64_t)i);
        }
        for (int i = 0; i < LIVE; i++) {
            CHECK(intact(live[i].block, live[i].n, (uint64_t)i), "block %d of %zu bytes, round %d", i, live[i].n, round);
            if (round < 3 && next_random(&random) % 3) continue;
            free(live[i].block);
            live[i].block = NULL;
        }
    }
}

/* Small blocks are marked completely; large ones at both ends and in the middle, because realloc
 * may move pages one by one. */
enum { WHOLE = 60000, PART = 10000 };

static void write_marks(char *p, size_t n) {
    if (n <= WHOLE) {
        fill(p, n, n);
    } else {
        fill(p, PART, 1);
        fill(p + n / 2, PART, 2);
        fill(p + n - PART, PART, 3);
    }
}

static int marks_intact(const char *p, size_t n) {
    if (n <= WHOLE) return intact(p, n, n);
    return intact(p, PART, 1) && intact(p + n / 2, PART, 2) && intact(p + n - PART, PART, 3);
}

/* From each size of a list over the whole range to each other one, up and down. */
static void realloc_keeps_content(void) {
    size_t sizes[200], count = 0;
    for (size_t n = 1; n <= ((size_t)64 << 20); n = n < 16 ? n + 3 : n + n / 2 + 1) sizes[count++] = n;
    sizes[count++] = (size_t)64 << 20;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            size_t from = sizes[i], to = sizes[j], both = from < to ? from : to;
            /* Pairs of large sizes take long and differ little: tests all neighbours, and a sample
             * of the rest. */
            if (both > (1 << 20) && i + 1 != j && j + 1 != i && (i * 7 + j) % 6) continue;
            char *p = malloc(from);
            CHECK(p != NULL);
            write_marks(p, both);
            p = realloc(p, to);
            CHECK(p != NULL && marks_intact(p, both), "%zu to %zu", from, to);
            fill(p, to < 4096 ? to : 4096, 9);
            p[to - 1] = 1;
            free(p);
        }
    }
}

/* Byte by byte, and by factors, up and down, with every byte checked. */
static void realloc_step_by_step(void) {
    char *p = NULL;
    for (size_t n = 1; n < 6000; n++) {
        p = realloc(p, n);
        CHECK(p != NULL && intact(p, n - 1, 0), "growing to %zu", n);
        fill(p, n, 0);
    }
    for (size_t n = 5999; n > 0; n--) {
        p = realloc(p, n);
        CHECK(p != NULL && intact(p, n, 0), "shrinking to %zu", n);
    }
    for (size_t n = 1, old = 0; n <= ((size_t)64 << 20); old = n, n = n * 9 / 8 + 1) {
        p = realloc(p, n);
        CHECK(p != NULL && (old == 0 || (p[old - 1] == (char)old && p[old / 2] == (char)old)), "%zu to %zu", old, n);
        p[n / 2] = p[n - 1] = (char)n;
    }
    free(p);
}

/* Memory of blocks that were filled with ones comes back from calloc as zeros. */
static void calloc_is_zero(void) {
    for (int round = 0; round < 3; round++) {
        for (size_t n = 1; n <= ((size_t)32 << 20); n = n < 300 ? n + 1 : n + n / 4) {
            int blocks = n < 5000 ? 100 : n < (1 << 20) ? 8 : 2;
            char *p[100];
            for (int i = 0; i < blocks; i++) {
                p[i] = malloc(n);
                CHECK(p[i] != NULL);
                memset(p[i], 0xff, malloc_usable_size(p[i]));
            }
            for (int i = 0; i < blocks; i++) free(p[(i * 7) % blocks]);
            for (int i = 0; i < blocks; i++) {
                p[i] = i % 2 ? calloc(1, n) : calloc(n, 1);
                CHECK(p[i] != NULL && all_zero(p[i], n), "%zu bytes, block %d, round %d", n, i, round);
                memset(p[i], 0xff, n);
            }
            for (int i = 0; i < blocks; i++) free(p[i]);
        }
    }
}

/* A block that shrinks and grows again, and calloc after a large block was split: zeros where
 * guaranteed. */
static void calloc_after_moves(void) {
    for (int round = 0; round < 200; round++) {
        size_t n = (size_t)1 << (12 + round % 12);
        char *p = malloc(n);
        memset(p, 0xee, n);
        p = realloc(p, n / 3 + 1);
        char *q = calloc(n / 2, 1);
        CHECK(q != NULL && all_zero(q, n / 2), "%zu bytes", n / 2);
        memset(q, 0xdd, n / 2);
        p = realloc(p, 2 * n);
        memset(p, 0xcc, 2 * n);
        free(q);
        free(p);
        q = calloc(3, n);
        CHECK(q != NULL && all_zero(q, 3 * n), "%zu bytes", 3 * n);
        free(q);
    }
}

const struct check content_checks[] = {
    {"blocks_do_not_overlap", blocks_do_not_overlap},
    {"realloc_keeps_content", realloc_keeps_content},
    {"realloc_step_by_step", realloc_step_by_step},
    {"calloc_is_zero", calloc_is_zero},
    {"calloc_after_moves", calloc_after_moves},
    {NULL, NULL},
};

/* Shared by the programs about processes: blocks that contain their owner's tag. */
#ifndef USLAB_FIELD_PROCESS_H
#define USLAB_FIELD_PROCESS_H

#include "check.h"
#include <stdint.h>

/* A block of `words` words, all of which are its owner's tag. */
static inline uint64_t *tagged(size_t words, uint64_t tag) {
    uint64_t *block = malloc(words * sizeof *block);
    CHECK(block != NULL);
    for (size_t i = 0; i < words; i++) block[i] = tag;
    return block;
}

/* Whether the block still contains only the tag. */
static inline int is_tagged(const uint64_t *block, size_t words, uint64_t tag) {
    for (size_t i = 0; i < words; i++)
        if (block[i] != tag) return 0;
    return 1;
}

static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

enum { CHURN_BLOCKS = 64 };

/* Allocates, checks and frees blocks of a few sizes; ends the process if one had two owners. */
static inline void churn(int rounds, uint64_t tag) {
    uint64_t *block[CHURN_BLOCKS] = {0};
    size_t words[CHURN_BLOCKS] = {0};
    uint64_t random = tag * 0x9E3779B97F4A7C15u | 1;
    for (int n = 0; n < rounds; n++) {
        size_t at = next_random(&random) % CHURN_BLOCKS;
        if (block[at]) {
            CHECK(is_tagged(block[at], words[at], tag));
            free(block[at]);
            block[at] = NULL;
        } else {
            words[at] = 2 + next_random(&random) % 3 * 6;
            block[at] = tagged(words[at], tag);
        }
    }
    for (size_t at = 0; at < CHURN_BLOCKS; at++) {
        if (!block[at]) continue;
        CHECK(is_tagged(block[at], words[at], tag));
        free(block[at]);
    }
}

#endif

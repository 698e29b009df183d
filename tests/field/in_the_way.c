/*
 * Mappings of the program directly behind the heap: the heap grows behind them, and frees,
 * reallocations and lookups work on both sides.
 */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The end of the mapping that contains `inside`; adjacent mappings count as one. */
static uintptr_t end_of(const void *inside) {
    static char line[512];
    uintptr_t from, to, end = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        CHECK(sscanf(line, "%lx-%lx", &from, &to) == 2);
        if (from <= (uintptr_t)inside && (uintptr_t)inside < to) end = to;
        if (from == end) end = to;
    }
    fclose(maps);
    CHECK(end != 0);
    return end;
}

enum { BLOCKS = 600 };

int main(void) {
    static unsigned char *blocks[BLOCKS];
    static size_t sizes[BLOCKS];
    void *foreign[3];
    int count = 0;
    for (int wave = 0; wave < 3; wave++) {
        for (int i = 0; i < BLOCKS / 3; i++, count++) {
            sizes[count] = count % 7 == 0 ? 3 * MIB : 1000 + (size_t)count * 100;
            blocks[count] = malloc(sizes[count]);
            CHECK(blocks[count] != NULL);
            memset(blocks[count], count, sizes[count]);
        }
        /* Behind the highest block: a page, then some megabytes, then a gigabyte. */
        unsigned char *highest = blocks[0];
        for (int i = 1; i < count; i++)
            if (blocks[i] > highest) highest = blocks[i];
        uintptr_t end = end_of(highest);
        size_t bytes = wave == 0 ? 65536 : wave == 1 ? 7 * MIB : 1024 * MIB;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
        foreign[wave] = mmap((void *)end, bytes, wave ? PROT_READ | PROT_WRITE : PROT_NONE, flags, -1, 0);
        CHECK(foreign[wave] == (void *)end);
    }
    /* A block that fits in no gap. */
    char *large = malloc(2048 * MIB);
    CHECK(large != NULL && (uintptr_t)large > (uintptr_t)foreign[2]);
    large[0] = large[2048 * MIB - 1] = 7;
    for (int i = 0; i < 3; i++) CHECK(malloc_usable_size((char *)foreign[i] + 16) == 0);
    for (int i = 0; i < BLOCKS; i++) {
        size_t size = sizes[i] * 2;
        blocks[i] = realloc(blocks[i], size);
        CHECK(blocks[i] != NULL && malloc_usable_size(blocks[i]) >= size);
        for (size_t at = 0; at < sizes[i]; at += 97) CHECK(blocks[i][at] == (unsigned char)i);
        blocks[i][sizes[i] - 1] = blocks[i][size - 1] = (unsigned char)i;
    }
    /* The heap did not replace the program's mappings. */
    memset(foreign[1], 3, 7 * MIB);
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(blocks[i][0] == (unsigned char)i && blocks[i][sizes[i] * 2 - 1] == (unsigned char)i);
        free(blocks[i]);
    }
    large = realloc(large, 2049 * MIB);
    CHECK(large != NULL && large[0] == 7 && large[2048 * MIB - 1] == 7);
    free(large);
    malloc_trim(0);
    for (size_t at = 0; at < 7 * MIB; at += 4096) CHECK(((char *)foreign[1])[at] == 3);
    for (int i = 0; i < BLOCKS; i++) CHECK((blocks[i] = malloc(100000)) != NULL);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    puts("ok");
    return 0;
}

/* Objects of 1 byte to 8 MiB come and go, and all of their sizes: memory that is free serves other
 * sizes, wherever it begins and ends. The process holds at most 1.9 times what lives at most.
 */
#define _GNU_SOURCE
#include <sys/resource.h>

#include "check.h"

enum { OBJECTS = 4096, ROUNDS = 100000, MOST_LIVE = 100 << 20 };

static unsigned state = 1;

static unsigned next(void) {
    state = state * 1103515245 + 12345;
    return state >> 8 & 0xffffff;
}

static long peak_kib(void) {
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_maxrss;
}

int main(void) {
    static char *objects[OBJECTS];
    static size_t sizes[OBJECTS];
    size_t live = 0, most = 0;
    long before = peak_kib();
    for (int round = 0; round < ROUNDS; round++) {
        unsigned at = next() % OBJECTS;
        free(objects[at]);
        live -= sizes[at];
        objects[at] = NULL;
        size_t size = (size_t)1 << next() % 22;
        size += next() % size;
        sizes[at] = live + size < MOST_LIVE ? size : 0;
        if (sizes[at] == 0) continue;
        CHECK((objects[at] = malloc(size)) != NULL);
        memset(objects[at], 1, size);
        live += size;
        if (live > most) most = live;
    }
    long held = peak_kib() - before;
    fprintf(stderr, "%ld KiB were held for %zu KiB\n", held, most >> 10);
    CHECK(held < (long)(most >> 10) * 19 / 10);
    puts("ok");
    return 0;
}

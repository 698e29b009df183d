/* Holds 128 MiB of mappings that it splits and merges all the time: while the kernel lists them, it
 * may list memory twice.
 */
#include "check.h"

#include <sys/mman.h>

enum { PARTS = 64 };

int main(void)
{
    const size_t part = 2 * MIB;
    size_t at;
    char *start = mmap(NULL, PARTS * part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED);
    memset(start, 1, PARTS * part);
    CHECK(puts("ready") >= 0 && fflush(stdout) == 0);
    /* Until the test ends it. */
    for (;;) {
        for (at = 0; at < PARTS; at += 2) CHECK(madvise(start + at * part, part, MADV_DONTDUMP) == 0);
        CHECK(madvise(start, PARTS * part, MADV_DODUMP) == 0);
    }
}

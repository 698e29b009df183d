/* Large tables of zeroes of which a program touches little stay small, whatever had their pages
 * before; and are zero where all of the pages were written, in part, or locked.
 */
#include <sys/mman.h>

#include "check.h"

enum { TABLE_BYTES = 200 << 20, CHUNK_BYTES = 2 << 20 };

static int is_zero(const char *table) {
    return table[0] == 0 && memcmp(table, table + 1, TABLE_BYTES - 1) == 0;
}

/* Touched at two places, freed, and taken again. */
static void touched(void) {
    long before = status_kib("VmRSS");
    for (int round = 0; round < 4; round++) {
        char *table = calloc(1, TABLE_BYTES);
        CHECK(table && table[5] == 0 && table[TABLE_BYTES - 5] == 0);
        table[5] = table[TABLE_BYTES - 5] = 1;
        CHECK(status_kib("VmRSS") - before < 20 << 10);
        free(table);
    }
}

/* Of each chunk, `parts` of eight parts were written by the table before. */
static void written(int parts, int is_locked) {
    char *table = malloc(TABLE_BYTES);
    CHECK(table != NULL);
    for (size_t at = 0; at < TABLE_BYTES; at += CHUNK_BYTES)
        memset(table + at, 7, CHUNK_BYTES / 8 * (size_t)parts);
    if (is_locked && mlock(table, TABLE_BYTES) != 0) return free(table);
    free(table);
    table = calloc(TABLE_BYTES, 1);
    CHECK(table && is_zero(table));
    munlock(table, TABLE_BYTES);
    free(table);
}

int main(void) {
    touched();
    for (int parts = 0; parts <= 8; parts += 2) written(parts, 0);
    written(3, 1);
    puts("ok");
    return 0;
}

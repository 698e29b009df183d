/* After a random 90 % of a heap was freed, the pages that hold a live object stay resident, and at
 * most a tenth more.
 *
 * For each size the program makes 16 MiB of objects, writes to all of them, and frees nine of ten
 * by chance. Two idle seconds later it counts, of the pages on which objects of a size lay, those
 * that hold a live object and those that are resident; and it compares the growth of its resident
 * memory with all pages that hold a live object. Its own tables are mapped, and resident before.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#include "check.h"

enum { LIVE_BYTES = 16 << 20, KEPT_ONE_IN = 10, MAX_LOOKS = 4 };

static const size_t sizes[] = {32, 64, 100, 256, 500, 1000, 2048, 3000, 4096, 5000, 8192};

enum { SIZES = sizeof sizes / sizeof *sizes };

/* A bit for each size of which objects lay, or lie, on a page. */
struct page {
    uint16_t had, live;
};

/* The pages from the lowest object on: 4 GiB of addresses. */
enum { MAX_PAGES = 1 << 20 };

static struct page *pages;
static uintptr_t page_bytes, first_page = UINTPTR_MAX;
static unsigned char **objects[SIZES];

static void *mapped(size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static size_t below(size_t end) {
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)((state >> 32) * end >> 32);
}

static size_t count(size_t size) { return LIVE_BYTES / sizes[size]; }

static size_t kept(size_t size) { return count(size) / KEPT_ONE_IN; }

static void make(size_t size) {
    for (size_t i = 0; i < count(size); i++) {
        unsigned char *object = malloc(sizes[size]);
        CHECK(object != NULL);
        memset(object, 1, sizes[size]);
        objects[size][i] = object;
        uintptr_t page = (uintptr_t)object / page_bytes;
        first_page = page < first_page ? page : first_page;
    }
}

/* Frees all but a tenth, by chance and in a random order. */
static void thin(size_t size) {
    unsigned char **all = objects[size];
    for (size_t i = count(size) - 1; i > 0; i--) {
        size_t other = below(i + 1);
        unsigned char *object = all[i];
        all[i] = all[other];
        all[other] = object;
    }
    for (size_t i = kept(size); i < count(size); i++) {
        free(all[i]);
    }
}

/* Marks the pages of the objects, of which the first ones live. */
static void mark(size_t size) {
    for (size_t i = 0; i < count(size); i++) {
        uintptr_t start = (uintptr_t)objects[size][i];
        uintptr_t last = (start + sizes[size] - 1) / page_bytes - first_page;
        CHECK(last < MAX_PAGES);
        for (uintptr_t page = start / page_bytes - first_page; page <= last; page++) {
            pages[page].had |= (uint16_t)(1u << size);
            pages[page].live |= (uint16_t)((i < kept(size)) << size);
        }
    }
}

static size_t is_resident(size_t page) {
    unsigned char state = 0;
    /* A page that is not mapped any more is not resident either. */
    return mincore((void *)((first_page + page) * page_bytes), page_bytes, &state) == 0 && state & 1;
}

/* Prints what is resident; returns how many figures are above their bound. */
static size_t look(long before_kib) {
    size_t had[SIZES] = {0}, live[SIZES] = {0}, resident[SIZES] = {0}, all_live = 0, missed = 0;
    for (size_t page = 0; page < MAX_PAGES; page++) {
        all_live += pages[page].live != 0;
        size_t stays = pages[page].had != 0 && is_resident(page);
        for (size_t size = 0; size < SIZES; size++) {
            had[size] += pages[page].had >> size & 1;
            live[size] += pages[page].live >> size & 1;
            resident[size] += stays && (pages[page].had >> size & 1);
        }
    }
    size_t grown = (size_t)(status_kib("RssAnon:") - before_kib) * 1024 / page_bytes;
    for (size_t size = 0; size < SIZES; size++) {
        printf("%5zu bytes: of %5zu pages %5zu resident, %5zu with a live object: %.3f\n", sizes[size],
               had[size], resident[size], live[size], (double)resident[size] / (double)live[size]);
        missed += resident[size] * 10 > live[size] * 11;
    }
    printf("resident memory grew by %zu pages for %zu: %.3f\n", grown, all_live,
           (double)grown / (double)all_live);
    fflush(stdout);
    return missed + (grown * 10 > all_live * 11);
}

int main(void) {
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    pages = mapped(MAX_PAGES * sizeof *pages);
    for (size_t size = 0; size < SIZES; size++) {
        objects[size] = mapped(count(size) * sizeof **objects);
    }
    status_kib("RssAnon:");
    long before_kib = status_kib("RssAnon:");
    for (size_t size = 0; size < SIZES; size++) {
        make(size);
    }
    for (size_t size = 0; size < SIZES; size++) {
        thin(size);
        mark(size);
    }
    /* Two idle seconds suffice, unless other programs keep the background thread from a CPU. */
    struct timespec idle = {2, 0};
    for (int looks = 0; looks < MAX_LOOKS; looks++) {
        nanosleep(&idle, NULL);
        if (look(before_kib) == 0) {
            puts("ok");
            return 0;
        }
    }
    CHECK(!"the pages without a live object went back");
}

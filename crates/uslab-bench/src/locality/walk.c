/*
 * A linked list of objects from malloc, walked: where an allocator puts objects, measured by the
 * program that uses them. suites/locality.rs compiles it when the benchmark runs; by hand:
 *
 *   cc -O2 -o walk walk.c
 *   LD_PRELOAD=ALLOCATOR ./walk [OBJECTS [HALVES [SIZE...]]]       2000000 4 32 64 96 208
 *
 * Phases, each with its minor faults (getrusage) and the resident set at its end:
 *
 *   grow     the list is built, sizes by turns, linked in the order of allocation
 *   fresh    the list is walked
 *   churn    a random half is freed in list order and made again, HALVES times; each new object takes
 *            the place of one that was freed
 *   reused   the list is walked again
 *   rebuild  every object is freed in list order, then the list is built again; five times
 *   rebuilt  the list is walked a last time
 *
 * A walk reads a word of each object beside its link, and the least of five walks counts. Growth
 * and rebuilding are ns an allocation, writing the first 16 bytes of the object included. Beside
 * each walk stands what needs no counter of the processor, computed from addresses in walk order:
 * distinct pages and 2 MiB regions, steps that change them, and how far a step goes.
 *
 * The program's own tables come from mmap, so that the allocator serves nothing but the objects.
 * Output: a line a figure, "NAME VALUE", units last in the names. A complaint is one line.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { WALKS = 5, REBUILDS = 5, MAX_SIZES = 16 };

struct object {
    struct object *next;
    uint64_t value;
};

static size_t objects = 2000000;
/* Halves that go and come again between the walks `fresh` and `reused`. */
static size_t halves = 4;
static size_t sizes[MAX_SIZES] = {32, 64, 96, 208};
static size_t size_count = 4;
/* The objects in list order. */
static struct object **list;
static uint64_t state = 0x9e3779b97f4a7c15;
/* Read by no line of this program: a walk cannot be left out by the compiler. */
volatile uint64_t seen;

static void fail(const char *why)
{
    fprintf(stderr, "walk: %s\n", why);
    exit(1);
}

/* Marsaglia's xorshift. */
static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void *table(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED) fail("no memory for a table");
    return at;
}

static double resident_bytes(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*s %ld", &pages) != 1) fail("/proc/self/statm cannot be read");
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

static void show(const char *phase, const char *name, double value)
{
    printf("%s_%s %.3f\n", phase, name, value);
}

static void ends(const char *phase, long faults_before)
{
    show(phase, "faults", (double)(faults() - faults_before));
    show(phase, "resident_bytes", resident_bytes());
}

static struct object *make(size_t i)
{
    struct object *made = malloc(sizes[i % size_count]);
    if (made == NULL) fail("malloc returned NULL");
    made->value = i;
    return made;
}

static void build(void)
{
    struct object *last = NULL;
    for (size_t i = 0; i < objects; i++) {
        struct object *made = make(i);
        made->next = NULL;
        list[i] = made;
        if (last != NULL) last->next = made;
        last = made;
    }
}

static void free_all(void)
{
    for (size_t i = 0; i < objects; i++) free(list[i]);
}

static void link_all(void)
{
    for (size_t i = 0; i + 1 < objects; i++) list[i]->next = list[i + 1];
    list[objects - 1]->next = NULL;
}

/* A random half goes and comes again. */
static void churn(void)
{
    unsigned char *gone = table(objects);
    for (size_t half = 0; half < halves; half++) {
        for (size_t i = 0; i < objects; i++) {
            gone[i] = (next_random() >> 40) & 1;
            if (gone[i]) free(list[i]);
        }
        for (size_t i = 0; i < objects; i++)
            if (gone[i]) list[i] = make(i);
    }
    munmap(gone, objects);
    link_all();
}

/* How many different values `address >> shift` has. */
static size_t distinct(int shift)
{
    size_t slots = 64, count = 0;
    while (slots < 2 * objects) slots *= 2;
    uintptr_t *set = table(slots * sizeof *set);
    for (size_t i = 0; i < objects; i++) {
        uintptr_t key = (uintptr_t)list[i] >> shift;
        size_t at = (key * 0x9e3779b97f4a7c15u) & (slots - 1);
        while (set[at] != 0 && set[at] != key) at = (at + 1) & (slots - 1);
        count += set[at] == 0;
        set[at] = key;
    }
    munmap(set, slots * sizeof *set);
    return count;
}

/* What a walk meets, from addresses alone. */
static void show_places(const char *phase)
{
    size_t pages = 0, regions = 0, forward = 0;
    double bytes = 0;
    for (size_t i = 1; i < objects; i++) {
        uintptr_t from = (uintptr_t)list[i - 1], to = (uintptr_t)list[i];
        pages += from >> 12 != to >> 12;
        regions += from >> 21 != to >> 21;
        /* As far as a prefetcher follows. */
        forward += to > from && to - from <= 4096;
        bytes += (double)(to > from ? to - from : from - to);
    }
    double thousands = (double)(objects - 1) / 1000, steps = (double)(objects - 1);
    show(phase, "distinct_pages", (double)distinct(12));
    show(phase, "distinct_regions", (double)distinct(21));
    show(phase, "page_changes_per_1000", (double)pages / thousands);
    show(phase, "region_changes_per_1000", (double)regions / thousands);
    show(phase, "near_steps_per_1000", (double)forward / thousands);
    show(phase, "stride_bytes", bytes / steps);
}

static void walk(const char *phase)
{
    double least = 1e18;
    long before = faults();
    for (int i = 0; i < WALKS; i++) {
        uint64_t sum = 0;
        double start = now_ns();
        for (struct object *at = list[0]; at != NULL; at = at->next) sum += at->value;
        double took = now_ns() - start;
        seen = sum;
        if (sum != (uint64_t)objects * (objects - 1) / 2) fail("an object was lost");
        if (took < least) least = took;
    }
    show(phase, "walk_ns", least / (double)objects);
    ends(phase, before);
    show_places(phase);
}

static void grow(void)
{
    long before = faults();
    double start = now_ns();
    build();
    show("grow", "ns", (now_ns() - start) / (double)objects);
    ends("grow", before);
}

static void rebuild(void)
{
    double least = 1e18, most = 0, freeing = 1e18;
    long before = faults();
    for (int i = 0; i < REBUILDS; i++) {
        double start = now_ns();
        free_all();
        double freed = now_ns();
        build();
        double took = now_ns() - freed;
        if (took < least) least = took;
        if (took > most) most = took;
        if (freed - start < freeing) freeing = freed - start;
    }
    show("rebuild", "ns", least / (double)objects);
    show("rebuild", "most_ns", most / (double)objects);
    show("rebuild", "free_ns", freeing / (double)objects);
    ends("rebuild", before);
}

int main(int argc, char **argv)
{
    if (argc > 1) objects = strtoul(argv[1], NULL, 10);
    if (argc > 2) halves = strtoul(argv[2], NULL, 10);
    if (argc > 3) size_count = (size_t)argc - 3;
    if (halves < 1) fail("one half at least");
    if (objects < 2 || size_count > MAX_SIZES) fail("two objects at least, of at most 16 sizes");
    for (size_t i = 0; argc > 3 && i < size_count; i++) {
        sizes[i] = strtoul(argv[i + 3], NULL, 10);
        if (sizes[i] < sizeof(struct object)) fail("an object has 16 bytes at least");
    }
    list = table(objects * sizeof *list);

    grow();
    walk("fresh");
    long before = faults();
    double start = now_ns();
    churn();
    show("churn", "ns", (now_ns() - start) / (double)objects / (double)halves);
    ends("churn", before);
    walk("reused");
    rebuild();
    walk("rebuilt");
    return 0;
}

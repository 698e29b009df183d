/*
 * What walk.c and containers.cpp have in common: objects that are built, walked, half of them
 * exchanged, walked, all freed and built again, walked; the time of each phase, its minor faults
 * and where the objects lie.
 *
 *   grow     everything is built
 *   fresh    it is walked
 *   churn    a random half goes and comes again, HALVES times
 *   reused   it is walked
 *   rebuild  everything goes, then all of it is built again, five times
 *   rebuilt  it is walked a last time
 *
 * The least of five walks counts, and the least of five rebuildings. Beside each walk stands what
 * needs no counter of the processor, computed from addresses in the order of the walk: distinct
 * pages and regions of 2 MiB, steps that change them, how far a step goes, and the misses of two
 * simulated TLBs of pages of 4 KiB, of 64 and of 2048 entries, least recently used of a set first.
 * A jump is a miss of the first TLB where the neighbouring page before is not in it either: the
 * walk comes to a page without having been on its neighbour, so no prefetcher has followed it.
 *
 * The tables here come from mmap, so that the allocator serves nothing but the objects.
 * Output: a line a figure, "NAME VALUE", units last in the names. A complaint is one line.
 */
#ifndef USLAB_BENCH_LOCALITY_MEASURE_H
#define USLAB_BENCH_LOCALITY_MEASURE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { WALKS = 5, REBUILDS = 5 };

/* What is measured, as functions over globals of the program. */
struct subject {
    size_t objects;
    size_t halves;
    void (*build)(void);
    /* Reads a word of each object, and returns their sum. */
    uint64_t (*walk)(void);
    /* A random half goes and comes again. */
    void (*churn)(void);
    void (*clear)(void);
    /* The objects' addresses in the order of the walk. */
    void (*places)(uintptr_t *addresses);
};

static void fail(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static uint64_t random_state = 0x9e3779b97f4a7c15;

/* Marsaglia's xorshift. */
static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int coin(void)
{
    return (int)(next_random() >> 40) & 1;
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void *table(size_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) fail("no memory for a table");
    return at;
}

static double resident_bytes(void)
{
    char text[128] = {0};
    long size = 0, pages = 0;
    /* Not through stdio's streams, which ask malloc for a buffer. */
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0) fail("/proc/self/statm cannot be read");
    close(file);
    sscanf(text, "%ld %ld", &size, &pages);
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

static void phase_ends(const char *phase, long faults_before)
{
    show(phase, "faults", (double)(faults() - faults_before));
    show(phase, "resident_bytes", resident_bytes());
}

/* How many different values `address >> shift` has. */
static size_t distinct(const uintptr_t *addresses, size_t objects, int shift)
{
    size_t slots = 64, count = 0;
    while (slots < 2 * objects) slots *= 2;
    uintptr_t *set = (uintptr_t *)table(slots * sizeof *set);
    for (size_t i = 0; i < objects; i++) {
        uintptr_t key = addresses[i] >> shift;
        size_t at = (size_t)((uint64_t)key * 0x9e3779b97f4a7c15u >> 20) & (slots - 1);
        while (set[at] != 0 && set[at] != key) at = (at + 1) & (slots - 1);
        count += set[at] == 0;
        set[at] = key;
    }
    munmap(set, slots * sizeof *set);
    return count;
}

/* A simulated TLB: of each set the entries, the most recently used first. */
struct tlb {
    size_t sets, ways;
    uintptr_t entries[2048];
};

static struct tlb *tlb(size_t sets, size_t ways)
{
    struct tlb *made = (struct tlb *)table(sizeof *made);
    made->sets = sets;
    made->ways = ways;
    return made;
}

/* Whether a page is in it; a page that is used is in it afterwards. */
static int tlb_has(struct tlb *tlb, uintptr_t page, int use)
{
    uintptr_t *set = tlb->entries + page % tlb->sets * tlb->ways;
    size_t at = 0;
    while (at < tlb->ways && set[at] != page) at++;
    int has = at < tlb->ways;
    if (use) {
        for (size_t i = has ? at : tlb->ways - 1; i > 0; i--) set[i] = set[i - 1];
        set[0] = page;
    }
    return has;
}

static void show_places(const char *phase, const struct subject *subject)
{
    size_t objects = subject->objects, pages = 0, regions = 0, misses = 0, jumps = 0, misses_of_2048 = 0;
    struct tlb *small = tlb(16, 4), *large = tlb(256, 8);
    uintptr_t *addresses = (uintptr_t *)table(objects * sizeof *addresses);
    double bytes = 0, steps = (double)(objects - 1);
    subject->places(addresses);
    for (size_t i = 1; i < objects; i++) {
        uintptr_t from = addresses[i - 1], to = addresses[i];
        pages += from >> 12 != to >> 12;
        regions += from >> 21 != to >> 21;
        if (!tlb_has(small, (to >> 12) - 1, 0) && !tlb_has(small, to >> 12, 0)) jumps++;
        misses += !tlb_has(small, to >> 12, 1);
        misses_of_2048 += !tlb_has(large, to >> 12, 1);
        bytes += (double)(to > from ? to - from : from - to);
    }
    show(phase, "distinct_pages", (double)distinct(addresses, objects, 12));
    show(phase, "distinct_regions", (double)distinct(addresses, objects, 21));
    show(phase, "page_changes_per_1000", (double)pages / steps * 1000);
    show(phase, "region_changes_per_1000", (double)regions / steps * 1000);
    show(phase, "tlb_64_misses_per_1000", (double)misses / steps * 1000);
    show(phase, "tlb_2048_misses_per_1000", (double)misses_of_2048 / steps * 1000);
    show(phase, "jumps_per_1000", (double)jumps / steps * 1000);
    show(phase, "stride_bytes", bytes / steps);
    munmap(addresses, objects * sizeof *addresses);
    munmap(small, sizeof *small);
    munmap(large, sizeof *large);
}

/* Read by no line of these programs: a walk cannot be left out by the compiler. */
static volatile uint64_t seen;

static void measure_walk(const char *phase, const struct subject *subject)
{
    double least = 1e18;
    long before = faults();
    for (int i = 0; i < WALKS; i++) {
        double start = now_ns();
        seen = subject->walk();
        double took = now_ns() - start;
        if (took < least) least = took;
    }
    show(phase, "walk_ns", least / (double)subject->objects);
    phase_ends(phase, before);
    show_places(phase, subject);
}

static void measure_rebuild(const struct subject *subject)
{
    double least = 1e18, most = 0, freeing = 1e18, objects = (double)subject->objects;
    long before = faults();
    for (int i = 0; i < REBUILDS; i++) {
        double start = now_ns();
        subject->clear();
        double cleared = now_ns();
        subject->build();
        double took = now_ns() - cleared;
        if (took < least) least = took;
        if (took > most) most = took;
        if (cleared - start < freeing) freeing = cleared - start;
    }
    show("rebuild", "ns", least / objects);
    show("rebuild", "most_ns", most / objects);
    show("rebuild", "free_ns", freeing / objects);
    phase_ends("rebuild", before);
}

static void measure(const struct subject *subject)
{
    if (subject->objects < 2 || subject->halves < 1) fail("two objects and one half at least");
    long before = faults();
    double start = now_ns();
    subject->build();
    show("grow", "ns", (now_ns() - start) / (double)subject->objects);
    phase_ends("grow", before);
    measure_walk("fresh", subject);

    before = faults();
    start = now_ns();
    for (size_t i = 0; i < subject->halves; i++) subject->churn();
    show("churn", "ns", (now_ns() - start) / (double)subject->objects / (double)subject->halves);
    phase_ends("churn", before);
    measure_walk("reused", subject);
    measure_rebuild(subject);
    measure_walk("rebuilt", subject);
}

#endif

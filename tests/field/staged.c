/* Programs whose memory has a known cause, for the verdict of `uslab top`. Each prints `ready` and
 * goes on until its input ends: a step for each 40 ms of the clock. A program that could not run
 * for a while makes up for its steps, so that its memory follows the time on a busy machine too. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)

enum { OBJECTS = 1 << 19 };

static void *objects[OBJECTS];
static size_t held;

/* Allocates an object, touches it, and keeps it. */
static void keep(size_t bytes)
{
    char *object;
    if (held == OBJECTS) return;
    object = malloc(bytes);
    CHECK(object != NULL);
    memset(object, 1, bytes);
    objects[held++] = object;
}

static void keep_many(size_t count, size_t bytes)
{
    while (count-- > 0) keep(bytes);
}

/* Frees all kept objects but one in `part`; with 0, all. */
static void free_but(size_t part)
{
    size_t at, left = 0;
    for (at = 0; at < held; at++) {
        if (part > 0 && at % part == 0) objects[left++] = objects[at];
        else free(objects[at]);
    }
    held = left;
}

static void *outside(size_t bytes)
{
    char *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(block != MAP_FAILED);
    memset(block, 1, bytes);
    return block;
}

static void *sleeper(void *unused)
{
    volatile char stack[MIB];
    size_t at;
    (void)unused;
    for (at = 0; at < sizeof stack; at += 4 * KIB) stack[at] = 1;
    for (;;) pause();
    return NULL;
}

static void threads(void)
{
    pthread_attr_t attributes;
    int n;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, 2 * MIB) == 0);
    for (n = 0; n < 40; n++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, &attributes, sleeper, NULL) == 0);
    }
}

static void file_pages(void)
{
    static char block[MIB];
    char path[] = "staged-XXXXXX";
    int n, file = mkstemp(path);
    CHECK(file >= 0 && unlink(path) == 0);
    for (n = 0; n < 32; n++) CHECK(write(file, block, sizeof block) == (ssize_t)sizeof block);
    for (n = 0; n < 32; n++) CHECK(pread(file, block, sizeof block, n * (off_t)MIB) > 0);
}

/* A load that comes and goes, of so many objects. */
static void wave(size_t step, size_t levels, size_t bytes)
{
    static void *load[20];
    size_t n, level = step % levels;
    for (n = 0; level == 0 && n < levels; n++) {
        free(load[n]);
        load[n] = NULL;
    }
    load[level] = malloc(bytes);
    CHECK(load[level] != NULL);
    memset(load[level], 1, bytes);
}

static int is(const char *name, const char *other)
{
    return strcmp(name, other) == 0;
}

static void begin(const char *name)
{
    size_t n;
    /* A heap of some size, as a program has that was running for a while. */
    keep_many(512, 16 * KIB);
    if (is(name, "fragmentation")) {
        keep_many(160000, 200);
        free_but(12);
    }
    if (is(name, "fragmentation_of_classes")) {
        for (n = 0; n < 16; n++) keep_many(2 * MIB / (100 + 60 * n), 100 + 60 * n);
        free_but(12);
    }
    if (is(name, "kept")) {
        keep_many(4000, 16 * KIB);
        free_but(64);
    }
    if (is(name, "stacks")) threads();
    if (is(name, "mappings")) outside(48 * MIB);
    if (is(name, "page_cache")) file_pages();
    if (is(name, "sinking")) keep_many(60000, 200);
    /* What is free between two waves must not stand out: it is a cause of its own. */
    if (is(name, "load")) keep_many(1536, 16 * KIB);
}

static void step(const char *name, size_t number)
{
    if (is(name, "leak_fast")) keep_many(1500, 200);
    if (is(name, "leak_slow")) keep_many(30, 500);
    if (is(name, "leak_of_large")) keep(200 * KIB);
    if (is(name, "leak_below_a_load")) {
        wave(number, 20, 200 * KIB);
        keep_many(300, 200);
    }
    if (is(name, "filling") && number < 40) keep_many(1000, 300);
    if (is(name, "mappings_grow")) outside(256 * KIB);
    /* Large objects, whose figures are always up to date. */
    if (is(name, "load")) wave(number, 7, 1100 * KIB);
    /* Objects of a cache, in a process that is too small for a background thread; together less
     * than stands out while they are free. */
    if (is(name, "load_of_medium")) wave(number, 20, 200 * KIB);
    if (is(name, "sinking") && held > 1000) {
        size_t n;
        for (n = 0; n < 250; n++) free(objects[--held]);
    }
}

static size_t now_ms(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (size_t)now.tv_sec * 1000 + (size_t)now.tv_nsec / 1000000;
}

int main(int count, char **arguments)
{
    size_t number = 0, began_ms;
    struct pollfd input = { .fd = 0, .events = POLLIN };
    CHECK(count == 2);
    begin(arguments[1]);
    CHECK(puts("ready") >= 0 && fflush(stdout) == 0);
    began_ms = now_ms();
    while (poll(&input, 1, 40) == 0 && number < 3000) {
        size_t steps = (now_ms() - began_ms) / 40;
        while (number < steps) step(arguments[1], number++);
    }
    _exit(0);
}

/* Invalid frees, one case a run: `free_misuse CASE`. Before each misuse the program writes the
 * expected report to standard error. Under `USLAB_ON_MISUSE=report` the library must keep every
 * object intact: it returns no object twice, misaligned, or over another one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void (*free_sized_)(void *, size_t);
static void (*delete_)(void *);
static void (*delete_sized)(void *, size_t);

static void must(int ok, const char *why)
{
    if (!ok) {
        printf("%s\n", why);
        exit(1);
    }
}

/* Checks that new objects of `size` bytes are aligned, and overlap neither each other nor
 * `kept`. */
static void check(size_t size, char *kept)
{
    enum { COUNT = 200 };
    static char *objects[COUNT];
    for (int i = 0; i < COUNT; i++) {
        objects[i] = malloc(size);
        must(objects[i] && (uintptr_t)objects[i] % 16 == 0, "an object is not aligned");
        must(!kept || (uintptr_t)(objects[i] - kept) >= size || objects[i] + size <= kept, "an object overlaps a kept one");
        memset(objects[i], i, size);
    }
    for (int i = 0; i < COUNT; i++)
        for (size_t at = 0; at < size; at += 8)
            must(objects[i][at] == (char)i, "two objects share their bytes");
    for (int i = 0; i < COUNT; i++)
        free(objects[i]);
}

static void owe(void *pointer, const char *what, const char *cache)
{
    fprintf(stderr, "owed: free of %p: %s %s\n", pointer, what, cache);
}

static void twice(char *object, const char *cache)
{
    owe(object, "an object of", cache);
}

static void inside(char *object, size_t offset, const char *cache)
{
    char what[100];
    snprintf(what, sizeof what, "it lies %zu byte%s inside object %p of", offset, offset == 1 ? "" : "s",
             (void *)object);
    owe(object + offset, what, cache);
}

int main(int argc, char **argv)
{
    must(argc == 2, "which case?");
    /* A double free in a row is recognised on the CPU of the first free. */
    cpu_set_t cpu;
    CPU_ZERO(&cpu);
    CPU_SET(sched_getcpu(), &cpu);
    must(sched_setaffinity(0, sizeof cpu, &cpu) == 0, "cannot stay on a CPU");
    const char *name = argv[1];
    *(void **)&free_sized_ = dlsym(RTLD_DEFAULT, "free_sized");
    *(void **)&delete_ = dlsym(RTLD_DEFAULT, "_ZdlPv");
    *(void **)&delete_sized = dlsym(RTLD_DEFAULT, "_ZdlPvm");
    must(free_sized_ && delete_ && delete_sized, "run it on the preload library");

    if (!strcmp(name, "twice")) {
        char *p = malloc(100);
        free(p);
        twice(p, "malloc-112");
        free(p);
        check(100, NULL);
    } else if (!strcmp(name, "every-class-twice")) {
        for (size_t size = 16; size <= 1 << 20; size += size < 128 ? 16 : size / 8) {
            char *p = malloc(size);
            free(p);
            twice(p, "malloc-");
            free(p);
            check(size, NULL);
        }
    } else if (!strcmp(name, "twice-many")) {
        /* With an empty, a partly filled and a full sheaf. */
        enum { COUNT = 300 };
        static char *p[COUNT];
        for (int i = 0; i < COUNT; i++)
            p[i] = malloc(200);
        for (int i = 0; i < COUNT; i++) {
            free(p[i]);
            twice(p[i], "malloc-224");
            free(p[i]);
        }
        check(200, NULL);
    } else if (!strcmp(name, "inside")) {
        char *p = malloc(100);
        for (size_t offset = 1; offset < 112; offset += 7) {
            inside(p, offset, "malloc-112");
            free(p + offset);
        }
        check(100, p);
        free(p);
    } else if (!strcmp(name, "every-class-inside")) {
        for (size_t size = 16; size <= 1 << 20; size += size < 128 ? 16 : size / 8) {
            char *p = malloc(size);
            for (size_t offset = 8; offset < size; offset += size < 64 ? 8 : 8 + (size / 5 & ~7ul)) {
                inside(p, offset, "malloc-");
                free(p + offset);
            }
            check(size, p);
            free(p);
        }
    } else if (!strcmp(name, "behind-the-last")) {
        /* 2730 objects of 48 bytes leave 32 bytes of a slab of 128 KiB. */
        for (int i = 0; i < 10000; i++) {
            char *p = malloc(48);
            if (((uintptr_t)p & 0x1ffff) == 2729 * 48) {
                owe(p + 48, "no object of", "malloc-48");
                free(p + 48);
                check(48, p);
                puts("ok");
                return 0;
            }
        }
        must(0, "no object is the last of a slab");
    } else if (!strcmp(name, "medium") || !strcmp(name, "large")) {
        size_t size = name[0] == 'm' ? 1 << 20 : 3 << 20;
        const char *cache = name[0] == 'm' ? "malloc-1m" : "large objects";
        char *p = malloc(size);
        size_t offsets[] = { 8, 16, 4096, 4104, 65536, (1 << 20) - 16 };
        for (int i = 0; i < 6; i++) {
            inside(p, offsets[i], cache);
            free(p + offsets[i]);
        }
        memset(p, 1, size);
        free(p);
        if (name[0] == 'm') twice(p, cache);
        else owe(p, "nothing is allocated there", "");
        free(p);
    } else if (!strcmp(name, "sized")) {
        char *p = malloc(100);
        free_sized_(p, 100);
        twice(p, "malloc-112");
        free_sized_(p, 100);
        p = malloc(100);
        inside(p, 8, "malloc-112");
        free_sized_(p + 8, 100);
        check(100, p);
        p = malloc(5000);
        inside(p, 16, "malloc-5k");
        free_sized_(p + 16, 5000);
        check(5000, p);
    } else if (!strcmp(name, "delete")) {
        char *p = malloc(64);
        delete_(p);
        twice(p, "malloc-64");
        delete_sized(p, 64);
        p = malloc(64);
        inside(p, 16, "malloc-64");
        delete_(p + 16);
        inside(p, 8, "malloc-64");
        delete_sized(p + 8, 64);
        check(64, p);
    } else if (!strcmp(name, "realloc")) {
        char *p = malloc(100), *medium = malloc(100000), *large = malloc(3000000);
        inside(p, 8, "malloc-112");
        must(realloc(p + 8, 50) == NULL, "realloc took the inside of an object");
        inside(p, 8, "malloc-112");
        must(realloc(p + 8, 100) == NULL, "realloc took the inside of an object of the same class");
        inside(medium, 16, "malloc-112k");
        must(realloc(medium + 16, 200000) == NULL, "realloc took the inside of a medium object");
        inside(medium, 8192, "malloc-112k");
        must(realloc(medium + 8192, 10) == NULL, "realloc took a page of a medium object");
        must(malloc_usable_size(medium + 16) == 0 && malloc_usable_size(medium + 4096) == 0, "usable size, medium");
        inside(large, 16, "large objects");
        must(realloc(large + 16, 6 << 20) == NULL, "realloc took the inside of a large object");
        inside(large, 8192, "large objects");
        must(realloc(large + 8192, 10) == NULL, "realloc took a page of a large object");
        must(malloc_usable_size(p) == 112 && malloc_usable_size(p + 8) == 0, "usable size");
        must(malloc_usable_size(large + 16) == 0 && malloc_usable_size(large + 4096) == 0, "usable size, large");
        check(100, p);
        free(p);
        free(medium);
        free(large);
    } else {
        must(0, "no such case");
    }
    puts("ok");
    return 0;
}

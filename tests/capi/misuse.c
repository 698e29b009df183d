/* Invalid arguments of uslab_free and its relatives: each case runs in a child, and the parent
 * checks its report and its end. */
#define _GNU_SOURCE
#include "check.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uslab.h>

static uslab_cache *cache;

/* A misuse of the address `offset` bytes behind an object's start, and its report. */
struct misuse {
    void (*commit)(void *object);
    int of_the_cache;
    size_t offset;
    const char *report;
};

static void free_twice(void *object)
{
    uslab_free(object);
    uslab_free(object);
}

static void free_sized_twice(void *object)
{
    uslab_free_sized(object, 100);
    uslab_free_sized(object, 100);
}

static void free_inside(void *inside)
{
    uslab_free(inside);
}

static void free_sized_inside(void *inside)
{
    uslab_free_sized(inside, 100);
}

static void free_bulk_inside(void *inside)
{
    void *objects[3];
    CHECK(uslab_malloc_bulk(100, 3, objects));
    objects[1] = inside;
    uslab_free_bulk(3, objects);
}

static void cache_free_twice(void *object)
{
    uslab_cache_free(cache, object);
    uslab_cache_free(cache, object);
}

static void cache_free_inside(void *inside)
{
    uslab_cache_free(cache, inside);
}

static const struct misuse misuses[] = {
    { free_twice, 0, 0, "double free of %p: an object of malloc-112" },
    { free_sized_twice, 0, 0, "double free of %p: an object of malloc-112" },
    { free_inside, 0, 8, "invalid free of %p: it lies 8 bytes inside object" },
    { free_sized_inside, 0, 16, "invalid free of %p: it lies 16 bytes inside object" },
    { free_bulk_inside, 0, 8, "invalid free of %p: it lies 8 bytes inside object" },
    { cache_free_twice, 1, 0, "double free of %p: an object of records" },
    { cache_free_inside, 1, 8, "invalid free of %p: it lies 8 bytes inside object" },
};

static void look_at(const struct misuse *misuse)
{
    char *object = misuse->of_the_cache ? uslab_cache_alloc(cache, 0) : uslab_malloc(100);
    char expected[200], report[1000] = "";
    size_t used = 0;
    ssize_t n;
    int ends[2], status;
    pid_t child;

    CHECK(object != NULL && pipe(ends) == 0);
    (void)snprintf(expected, sizeof expected, misuse->report, (void *)(object + misuse->offset));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        (void)dup2(ends[1], 2);
        misuse->commit(object + misuse->offset);
        _exit(0);
    }
    (void)close(ends[1]);
    while ((n = read(ends[0], report + used, sizeof report - 1 - used)) > 0) used += (size_t)n;
    (void)close(ends[0]);
    CHECK(waitpid(child, &status, 0) == child);
    if (strstr(report, expected) == NULL) {
        printf("expected: %s\nreported: %s\n", expected, report);
        exit(1);
    }
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
    size_t i;
    cpu_set_t cpu;
    CPU_ZERO(&cpu);
    CPU_SET(sched_getcpu(), &cpu);
    CHECK(sched_setaffinity(0, sizeof cpu, &cpu) == 0);
    cache = uslab_cache_create("records", 48, NULL);
    CHECK(cache != NULL);
    for (i = 0; i < sizeof misuses / sizeof misuses[0]; i++) look_at(&misuses[i]);
    return ended();
}

/* The malloc family, heaps, and forks: the guarantees of the header. */
#include "check.h"

#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uslab.h>

static int all_are(const void *memory, int byte, size_t n)
{
    const unsigned char *bytes = (const unsigned char *)memory;
    while (n-- > 0)
        if (bytes[n] != byte) return 0;
    return 1;
}

/* A size that the compiler cannot see. */
static size_t hidden(size_t size)
{
    volatile size_t copy = size;
    return copy;
}

static void sizes(void)
{
    size_t size;
    for (size = 0; size < 3u << 20; size = size * 3 / 2 + 1) {
        unsigned char *p = (unsigned char *)uslab_malloc(size), *q;
        CHECK(p != NULL && (uintptr_t)p % 16 == 0);
        CHECK(uslab_usable_size(p) >= size);
        CHECK(uslab_good_size(size) == uslab_usable_size(p));
        memset(p, 0x11, uslab_usable_size(p));
        q = (unsigned char *)uslab_realloc(p, size * 2);
        CHECK(q != NULL && all_are(q, 0x11, size));
        q = (unsigned char *)uslab_realloc(q, size / 2);
        CHECK(q != NULL && all_are(q, 0x11, size / 2));
        uslab_free_sized(q, size / 2);
        q = (unsigned char *)uslab_calloc(3, size);
        CHECK(q != NULL && all_are(q, 0, 3 * size));
        memset(q, 0xff, 3 * size);
        uslab_free(q);
        q = (unsigned char *)uslab_malloc_flags(size, USLAB_ZERO | USLAB_NORECLAIM);
        CHECK(q != NULL && all_are(q, 0, size));
        uslab_free_sized(q, size);
    }
    for (size = 1; size <= 4096; size *= 2) {
        void *p = uslab_malloc(size);
        CHECK((uintptr_t)p % size == 0);
        uslab_free(p);
    }
    for (size = 1; size <= 4u << 20; size *= 2) {
        void *p = uslab_aligned_alloc(size, 100);
        CHECK(p != NULL && (uintptr_t)p % size == 0);
        uslab_free_aligned_sized(p, size, 100);
        p = uslab_aligned_alloc_flags(size, 100000, USLAB_ZERO);
        CHECK(p != NULL && (uintptr_t)p % size == 0 && all_are(p, 0, 100000));
        memset(p, 0x11, 100000);
        uslab_free_aligned_sized(p, size, 100000);
        p = uslab_aligned_alloc_flags(size, 100000, USLAB_ZERO | USLAB_NORECLAIM);
        CHECK(p != NULL && (uintptr_t)p % size == 0 && all_are(p, 0, 100000));
        uslab_free_aligned_sized(p, size, 100000);
    }
}

static void errors(void)
{
    int here = 0;
    void *p[2];
    CHECK_FAILS(uslab_malloc(hidden((size_t)-1)), ENOMEM);
    CHECK_FAILS(uslab_malloc(hidden((size_t)-1 / 2)), ENOMEM);
    CHECK_FAILS(uslab_calloc(hidden((size_t)-1), hidden(2)), ENOMEM);
    CHECK_FAILS(uslab_malloc_flags(8, 0x80000000u), EINVAL);
    CHECK_FAILS(uslab_aligned_alloc(24, 8), EINVAL);
    CHECK_FAILS(uslab_aligned_alloc(0, 8), EINVAL);
    CHECK_FAILS(uslab_aligned_alloc((size_t)1 << 62, 8), ENOMEM);
    CHECK_FAILS(uslab_aligned_alloc_flags(64, 8, 0x80000000u), EINVAL);
    CHECK_FAILS(uslab_aligned_alloc_flags(24, 8, 0), EINVAL);
    CHECK_FAILS(uslab_aligned_alloc_flags(24, 1 << 20, USLAB_NORECLAIM | USLAB_ZERO), EINVAL);
    CHECK_FAILS(uslab_aligned_alloc_flags((size_t)1 << 62, 8, USLAB_NORECLAIM | USLAB_ZERO), ENOMEM);
    CHECK_FAILS(uslab_malloc_bulk(8, 1, NULL), EINVAL);
    CHECK_FAILS(uslab_malloc_bulk(hidden((size_t)-1 / 2), 2, p), ENOMEM);
    CHECK(uslab_malloc_bulk(8, 0, NULL));
    CHECK(uslab_usable_size(NULL) == 0 && uslab_usable_size(&here) == 0);
    errno = EDOM;
    uslab_free(NULL);
    uslab_free_sized(NULL, 8);
    uslab_free_aligned_sized(NULL, 64, 8);
    uslab_free_bulk(0, NULL);
    p[0] = p[1] = NULL;
    uslab_free_bulk(2, p);
    CHECK(errno == EDOM);
    CHECK(uslab_good_size((size_t)-1) == (size_t)-1);
}

static void bulk(void)
{
    static void *objects[4000];
    size_t i, n = sizeof objects / sizeof *objects;
    CHECK(uslab_malloc_bulk(100, n, objects));
    for (i = 0; i < n; i++) memset(objects[i], (int)(i % 251), 100);
    for (i = 0; i < n; i++) CHECK(all_are(objects[i], (int)(i % 251), 100));
    objects[7] = uslab_realloc(objects[7], 100000);
    uslab_free(objects[9]);
    objects[9] = NULL;
    uslab_free_bulk(n, objects);
    CHECK(uslab_malloc_bulk(50000, 30, objects));
    uslab_free_bulk(30, objects);
}

static void heaps(void)
{
    uslab_heap *heap = uslab_heap_create();
    uslab_usage before, after;
    void *p;
    size_t size;
    memset(&before, 0, sizeof before);
    before.type_size = sizeof before;
    after = before;
    CHECK(heap != NULL);
    CHECK(uslab_get_usage(&before) == 0);
    for (size = 1; size < 1u << 20; size *= 2) {
        void *keep = uslab_heap_malloc(heap, size);
        CHECK(keep != NULL);
        memset(keep, 0x22, size);
        p = uslab_heap_calloc(heap, 2, size);
        CHECK(p != NULL && all_are(p, 0, 2 * size));
        memset(p, 0x33, 2 * size);
        p = uslab_heap_realloc(heap, p, 5 * size);
        CHECK(p != NULL && all_are(p, 0x33, 2 * size));
        if (size % 3 == 1)
            uslab_heap_free(heap, p);
        else
            uslab_free(p);
        p = uslab_heap_aligned_alloc(heap, 256, size);
        CHECK(p != NULL && (uintptr_t)p % 256 == 0);
        CHECK(all_are(keep, 0x22, size));
    }
    p = uslab_heap_realloc(heap, NULL, 10);
    CHECK(p != NULL && uslab_heap_realloc(heap, p, 12) == p);
    CHECK_FAILS(uslab_heap_malloc(NULL, 1), EINVAL);
    CHECK_FAILS(uslab_heap_aligned_alloc(heap, 3, 1), EINVAL);
    CHECK_FAILS(uslab_heap_calloc(heap, hidden((size_t)-1), 2), ENOMEM);
    uslab_heap_destroy(heap);
    uslab_heap_destroy(NULL);
    CHECK(uslab_get_usage(&after) == 0);
    CHECK(after.large_objects == before.large_objects);
    CHECK(after.allocated_bytes <= before.allocated_bytes);
}

static void forks(void)
{
    void *kept = uslab_malloc(1000);
    int status;
    pid_t child;
    memset(kept, 0x44, 1000);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        sizes();
        CHECK(all_are(kept, 0x44, 1000));
        uslab_free(kept);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(all_are(kept, 0x44, 1000));
    uslab_free(kept);
}

int main(void)
{
    sizes();
    errors();
    bulk();
    heaps();
    forks();
    return ended();
}

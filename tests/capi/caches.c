/* Caches and prefilled sheaves: each guarantee of the header in turn. */
#include "check.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <uslab.h>

enum { MANY = 5000 };
static void *objects[MANY];

static uslab_cache_options options(void)
{
    uslab_cache_options options;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    return options;
}

static int all_are(const void *memory, int byte, size_t n)
{
    const unsigned char *bytes = (const unsigned char *)memory;
    while (n-- > 0)
        if (bytes[n] != byte) return 0;
    return 1;
}

static void plain(void)
{
    uslab_cache *cache = uslab_cache_create("plain", 48, NULL);
    int i, j;
    CHECK(cache != NULL);
    CHECK(strcmp(uslab_cache_name(cache), "plain") == 0);
    CHECK(uslab_cache_object_size(cache) == 48 && uslab_cache_usable_size(cache) >= 48);
    for (i = 0; i < MANY; i++) {
        objects[i] = uslab_cache_alloc(cache, 0);
        CHECK(objects[i] != NULL && (uintptr_t)objects[i] % 16 == 0);
        CHECK(uslab_usable_size(objects[i]) == uslab_cache_usable_size(cache));
        memset(objects[i], i & 0xff, 48);
    }
    for (i = 0; i < MANY; i++) CHECK(all_are(objects[i], i & 0xff, 48));
    for (i = 0; i < MANY; i += 2) uslab_cache_free(cache, objects[i]);
    /* uslab_free finds the cache of an object. */
    for (i = 1; i < MANY; i += 2) uslab_free(objects[i]);
    uslab_cache_free(cache, NULL);
    for (j = 0; j < 3; j++) {
        for (i = 0; i < MANY; i++) {
            objects[i] = uslab_cache_alloc(cache, j == 1 ? USLAB_ZERO : j == 2 ? USLAB_NORECLAIM | USLAB_ZERO : 0);
            CHECK(objects[i] != NULL);
            if (j > 0) CHECK(all_are(objects[i], 0, 48));
            memset(objects[i], 0xa5, 48);
        }
        for (i = 0; i < MANY; i++) uslab_cache_free(cache, objects[i]);
    }
    CHECK(uslab_cache_shrink(cache) > 0);
    CHECK(uslab_cache_destroy(cache) == 0);
}

static void errors(void)
{
    static const char long_name[] = "a name of more than forty-seven bytes, which is cut where it must be cut";
    uslab_cache_options wrong = options();
    uslab_cache *cache;
    size_t n = 1;
    CHECK_FAILS(uslab_cache_create(NULL, 8, NULL), EINVAL);
    CHECK_FAILS(uslab_cache_create("none", 0, NULL), EINVAL);
    CHECK_FAILS(uslab_cache_create("huge", (256u << 10) + 1, NULL), E2BIG);
    CHECK_FAILS(uslab_cache_create("huge", (size_t)-1, NULL), E2BIG);
    wrong.align = 24;
    CHECK_FAILS(uslab_cache_create("align", 8, &wrong), EINVAL);
    wrong.align = (size_t)1 << 40;
    CHECK_FAILS(uslab_cache_create("align", 8, &wrong), E2BIG);
    wrong = options();
    wrong.flags = 0x80000000u;
    CHECK_FAILS(uslab_cache_create("flags", 8, &wrong), EINVAL);
    wrong.flags = USLAB_ZERO;
    CHECK_FAILS(uslab_cache_create("flags", 8, &wrong), EINVAL);
    wrong.flags = USLAB_POISON | USLAB_STORE_USER | USLAB_HWCACHE_ALIGN | 0x2000u;
    CHECK_FAILS(uslab_cache_create("flags", 8, &wrong), EINVAL);

    CHECK_FAILS(uslab_cache_alloc(NULL, 0), EINVAL);
    CHECK_FAILS(uslab_cache_alloc(NULL, USLAB_ZERO), EINVAL);
    CHECK_FAILS(uslab_cache_alloc_bulk(NULL, 0, 1, objects), EINVAL);
    CHECK_FAILS(uslab_cache_prefill(NULL, 0, 1), EINVAL);
    CHECK_FAILS(uslab_cache_shrink(NULL), EINVAL);
    CHECK_FAILS(uslab_cache_name(NULL), EINVAL);
    CHECK(uslab_cache_destroy(NULL) == 0);
    CHECK(uslab_cache_object_size(NULL) == 0 && uslab_cache_usable_size(NULL) == 0);
    uslab_cache_free(NULL, NULL);
    errno = 0;
    uslab_cache_free(NULL, &n);
    CHECK(errno == EINVAL);
    uslab_cache_free_bulk(NULL, 0, NULL);

    cache = uslab_cache_create(long_name, 8, NULL);
    CHECK(cache != NULL && strncmp(uslab_cache_name(cache), long_name, 47) == 0);
    CHECK(strlen(uslab_cache_name(cache)) == 47);
    CHECK_FAILS(uslab_cache_alloc(cache, USLAB_HWCACHE_ALIGN), EINVAL);
    CHECK_FAILS(uslab_cache_alloc(cache, 0x80000000u), EINVAL);
    CHECK_FAILS(uslab_cache_alloc_bulk(cache, 0x80000000u, 1, objects), EINVAL);
    CHECK_FAILS(uslab_cache_alloc_bulk(cache, 0, 1, NULL), EINVAL);
    CHECK_FAILS(uslab_cache_alloc_bulk(cache, 0, (size_t)-1 / 2, NULL), EINVAL);
    CHECK(uslab_cache_alloc_bulk(cache, 0, 0, NULL));
    /* A bulk request larger than any memory fails, and the objects popped before are freed. */
    CHECK(uslab_cache_alloc_bulk(cache, 0, 100, objects));
    uslab_cache_free_bulk(cache, 100, objects);
    CHECK_FAILS(uslab_cache_alloc_bulk(cache, 0, (size_t)-1, objects), ENOMEM);
    CHECK_FAILS(uslab_cache_prefill(cache, 0x80000000u, 1), EINVAL);
    CHECK_FAILS(uslab_cache_prefill(cache, USLAB_ZERO, 1), EINVAL);
    CHECK(uslab_cache_destroy(cache) == 0);
    /* A destroyed handle whose memory no cache uses yet. */
    CHECK(uslab_cache_destroy(cache) == EINVAL);
    CHECK_FAILS(uslab_cache_alloc(cache, 0), EINVAL);
    CHECK_FAILS(uslab_cache_alloc_bulk(cache, 0, 3, objects), EINVAL);

    cache = uslab_cache_create("not \xff UTF-8", 8, NULL);
    CHECK(cache != NULL && strcmp(uslab_cache_name(cache), "not ") == 0);
    CHECK(uslab_cache_destroy(cache) == 0);
}

static void alignment(void)
{
    uslab_cache_options wanted = options();
    size_t align;
    int i;
    for (align = 8; align <= 256u << 10; align *= 2) {
        uslab_cache *cache;
        wanted.align = align;
        cache = uslab_cache_create("aligned", 24, &wanted);
        CHECK(cache != NULL);
        for (i = 0; i < 9; i++) {
            objects[i] = uslab_cache_alloc(cache, 0);
            CHECK(objects[i] != NULL && (uintptr_t)objects[i] % align == 0);
        }
        uslab_cache_free_bulk(cache, 9, objects);
        CHECK(uslab_cache_destroy(cache) == 0);
    }
    wanted = options();
    wanted.flags = USLAB_HWCACHE_ALIGN | USLAB_COLD | USLAB_NO_CACHING;
    wanted.min_objects = 64;
    wanted.min_order = 1;
    wanted.max_order = 5;
    wanted.sheaf_capacity = 10;
    {
        uslab_cache *cache = uslab_cache_create("knobs", 200, &wanted);
        CHECK(cache != NULL);
        objects[0] = uslab_cache_alloc(cache, 0);
        CHECK(objects[0] != NULL && (uintptr_t)objects[0] % 64 == 0);
        uslab_cache_free(cache, objects[0]);
        CHECK(uslab_cache_destroy(cache) == 0);
    }
}

/* Each policy is accepted, with an effect on machines of several nodes. The first node exists
 * there. An older caller has the local policy. */
static void policies(void)
{
    static const unsigned known[] = {USLAB_NUMA_LOCAL, USLAB_NUMA_BIND, USLAB_NUMA_INTERLEAVE};
    uslab_cache_options wanted = options();
    size_t i;
    for (i = 0; i < sizeof known / sizeof *known; i++) {
        uslab_cache *cache;
        wanted.numa_policy = known[i];
        cache = uslab_cache_create("placed", 200, &wanted);
        CHECK(cache != NULL);
        CHECK(uslab_cache_alloc_bulk(cache, 0, 100, objects));
        uslab_cache_free_bulk(cache, 100, objects);
        CHECK(uslab_cache_destroy(cache) == 0);
    }
    wanted.numa_policy = 3;
    CHECK_FAILS(uslab_cache_create("placed", 200, &wanted), EINVAL);
    wanted.numa_policy = USLAB_NUMA_LOCAL;
    wanted.numa_node = 1;
    CHECK_FAILS(uslab_cache_create("placed", 200, &wanted), EINVAL);
    wanted.type_size = offsetof(uslab_cache_options, numa_policy);
    {
        uslab_cache *cache = uslab_cache_create("older", 200, &wanted);
        CHECK(cache != NULL);
        CHECK(uslab_cache_destroy(cache) == 0);
    }
}

static int constructed;

static void construct(void *object)
{
    ++constructed;
    memset(object, 0x5c, 100);
}

static void constructor(void)
{
    uslab_cache_options wanted = options();
    uslab_cache *cache;
    int i, round, first;
    wanted.ctor = construct;
    cache = uslab_cache_create("constructed", 100, &wanted);
    CHECK(cache != NULL);
    CHECK_FAILS(uslab_cache_alloc(cache, USLAB_ZERO), EINVAL);
    CHECK_FAILS(uslab_cache_alloc_bulk(cache, USLAB_ZERO, 1, objects), EINVAL);
    for (round = 0, first = 0; round < 3; round++) {
        CHECK(uslab_cache_alloc_bulk(cache, 0, 500, objects));
        for (i = 0; i < 500; i++) CHECK(all_are(objects[i], 0x5c, 100));
        if (round == 0) first = constructed;
        uslab_cache_free_bulk(cache, 500, objects);
    }
    CHECK(first >= 500 && constructed == first);
    CHECK(uslab_cache_destroy(cache) == 0);
}

static void bulk(void)
{
    static const size_t sizes[] = {1, 2, 3, 15, 16, 63, 64, 65, 500, MANY};
    uslab_cache *cache = uslab_cache_create("bulk", 64, NULL);
    size_t s, i;
    CHECK(cache != NULL);
    for (s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        CHECK(uslab_cache_alloc_bulk(cache, s % 2 ? USLAB_ZERO : s % 4 ? USLAB_NORECLAIM : 0, sizes[s], objects));
        for (i = 0; i < sizes[s]; i++) {
            if (s % 2) CHECK(all_are(objects[i], 0, 64));
            memset(objects[i], (int)(i % 251), 64);
        }
        for (i = 0; i < sizes[s]; i++) CHECK(all_are(objects[i], (int)(i % 251), 64));
        uslab_cache_free_bulk(cache, sizes[s], objects);
    }
    CHECK(uslab_cache_destroy(cache) == 0);
}

static void busy(void)
{
    uslab_cache *cache = uslab_cache_create("busy", 32, NULL);
    void *object = uslab_cache_alloc(cache, 0);
    uslab_sheaf *sheaf;
    CHECK(object != NULL);
    errno = 0;
    CHECK(uslab_cache_destroy(cache) == EBUSY && errno == EBUSY);
    /* The cache continues to work. */
    uslab_cache_free(cache, object);
    sheaf = uslab_cache_prefill(cache, 0, 2);
    CHECK(sheaf != NULL);
    CHECK(uslab_cache_destroy(cache) == EBUSY);
    uslab_sheaf_return(sheaf);
    CHECK(uslab_cache_destroy(cache) == 0);
}

static void sheaves(void)
{
    uslab_cache *cache = uslab_cache_create("sheaves", 72, NULL);
    size_t n, i;
    for (n = 0; n <= 3000; n = n * 3 + 1) {
        uslab_sheaf *sheaf = uslab_cache_prefill(cache, 0, n);
        CHECK(sheaf != NULL && uslab_sheaf_count(sheaf) == n);
        for (i = 0; i < n; i++) {
            objects[i] = uslab_sheaf_alloc(sheaf, i % 2 ? USLAB_ZERO : 0);
            CHECK(objects[i] != NULL && (i % 2 == 0 || all_are(objects[i], 0, 72)));
            memset(objects[i], 0xff, 72);
        }
        CHECK_FAILS(uslab_sheaf_alloc(sheaf, 0), ENOMEM);
        CHECK(uslab_sheaf_refill(sheaf, 0, 5) == 0 && uslab_sheaf_count(sheaf) == 5);
        CHECK(uslab_sheaf_refill(sheaf, 0, 3) == 0 && uslab_sheaf_count(sheaf) == 5);
        CHECK(uslab_sheaf_refill(sheaf, 0x80000000u, 30) == EINVAL);
        CHECK_FAILS(uslab_sheaf_alloc(sheaf, 0x80000000u), EINVAL);
        uslab_cache_free_bulk(cache, n, objects);
        uslab_sheaf_return(sheaf);
    }
    CHECK_FAILS(uslab_sheaf_alloc(NULL, 0), EINVAL);
    CHECK(uslab_sheaf_count(NULL) == 0 && uslab_sheaf_refill(NULL, 0, 1) == EINVAL);
    CHECK_FAILS(uslab_cache_prefill(cache, 0, (size_t)-1), ENOMEM);
    uslab_sheaf_return(NULL);
    CHECK(uslab_cache_destroy(cache) == 0);
}

static void *churn(void *argument)
{
    uslab_cache *cache = (uslab_cache *)argument;
    void *mine[100];
    int round, i;
    for (round = 0; round < 2000; round++) {
        CHECK(uslab_cache_alloc_bulk(cache, 0, 50, mine));
        for (i = 50; i < 100; i++) CHECK((mine[i] = uslab_cache_alloc(cache, i % 2 ? USLAB_NORECLAIM : 0)) != NULL);
        for (i = 0; i < 100; i++) memset(mine[i], i, 40);
        for (i = 0; i < 100; i++) CHECK(all_are(mine[i], i, 40));
        for (i = 0; i < 50; i++) uslab_cache_free(cache, mine[i]);
        uslab_cache_free_bulk(cache, 50, mine + 50);
    }
    return NULL;
}

struct seen {
    size_t count, end;
    unsigned char *last;
};

static int see(void *context, void *object)
{
    struct seen *seen = (struct seen *)context;
    CHECK((unsigned char *)object > seen->last && all_are(object, 0x3c, 100));
    seen->last = (unsigned char *)object;
    return ++seen->count == seen->end ? 42 : 0;
}

static void visits(void)
{
    uslab_cache *cache = uslab_cache_create("visited", 100, NULL);
    uslab_sheaf *sheaf;
    struct seen seen = {0, 0, NULL};
    int i;
    CHECK(uslab_cache_visit(cache, see, &seen) == 0 && seen.count == 0);
    for (i = 0; i < MANY; i++) {
        objects[i] = uslab_cache_alloc(cache, 0);
        memset(objects[i], i % 5 == 0 ? 0 : 0x3c, 100);
    }
    for (i = 0; i < MANY; i += 5) uslab_cache_free(cache, objects[i]);
    CHECK(uslab_cache_visit(cache, see, &seen) == 0 && seen.count == MANY / 5 * 4);
    seen.count = 0, seen.end = 3, seen.last = NULL;
    CHECK(uslab_cache_visit(cache, see, &seen) == 42 && seen.count == 3);
    for (i = 0; i < MANY; i++)
        if (i % 5 != 0) uslab_cache_free(cache, objects[i]);
    sheaf = uslab_cache_prefill(cache, 0, 1);
    memset(uslab_sheaf_alloc(sheaf, 0), 0x3c, 100);
    seen.count = 0, seen.end = 0, seen.last = NULL;
    CHECK(uslab_cache_visit(cache, see, &seen) == 0 && seen.count == 1);
    uslab_cache_free(cache, seen.last);
    uslab_sheaf_return(sheaf);
    CHECK(uslab_cache_destroy(cache) == 0);
}

/* Objects of a store of one's own, of the cache and of a prefilled store, freed either way. */
static void local(void)
{
    uslab_cache *cache = uslab_cache_create("local", 72, NULL);
    uslab_sheaf *mine = uslab_cache_local(cache, 0), *stock;
    uslab_cache_stats stats;
    size_t i, round;
    CHECK(mine != NULL && uslab_sheaf_count(mine) == 0);
    for (round = 0; round < 3; round++) {
        for (i = 0; i < MANY; i++) {
            objects[i] = i % 3 == 0 ? uslab_cache_alloc(cache, 0) : uslab_sheaf_alloc(mine, i % 3 == 1 ? USLAB_ZERO : 0);
            CHECK(objects[i] != NULL && (i % 3 != 1 || all_are(objects[i], 0, 72)));
            memset(objects[i], (int)(i % 251), 72);
        }
        for (i = 0; i < MANY; i++) CHECK(all_are(objects[i], (int)(i % 251), 72));
        memset(&stats, 0, sizeof stats);
        stats.type_size = sizeof stats;
        CHECK(uslab_cache_get_stats(cache, &stats) == 0 && stats.active_objects == MANY);
        for (i = 0; i < MANY; i++) {
            if (i % 2)
                uslab_sheaf_free(mine, objects[i]);
            else
                uslab_cache_free(cache, objects[i]);
        }
        CHECK(uslab_cache_get_stats(cache, &stats) == 0 && stats.active_objects == 0);
    }
    CHECK(uslab_sheaf_count(mine) > 0 && uslab_cache_destroy(cache) == EBUSY);
    CHECK(uslab_sheaf_refill(mine, 0, 1) == EINVAL);
    CHECK_FAILS(uslab_sheaf_alloc(mine, 0x80000000u), EINVAL);
    objects[0] = uslab_sheaf_alloc(mine, USLAB_NORECLAIM);
    CHECK(objects[0] != NULL);
    uslab_sheaf_free(mine, NULL);
    uslab_sheaf_return(mine);
    stock = uslab_cache_prefill(cache, 0, 5);
    uslab_sheaf_free(stock, objects[0]);
    CHECK(uslab_sheaf_count(stock) == 6);
    for (i = 0; i < 6; i++) objects[i] = uslab_sheaf_alloc(stock, 0);
    CHECK_FAILS(uslab_sheaf_alloc(stock, 0), ENOMEM);
    for (i = 6; i < 100; i++) objects[i] = uslab_cache_alloc(cache, 0);
    for (i = 0; i < 100; i++) uslab_sheaf_free(stock, objects[i]);
    CHECK(uslab_sheaf_count(stock) >= 6);
    uslab_sheaf_return(stock);
    CHECK_FAILS(uslab_cache_local(cache, USLAB_ZERO), EINVAL);
    CHECK(uslab_cache_destroy(cache) == 0);
}

struct sum {
    size_t objects, bytes;
};

static int add(void *context, void *object, size_t bytes)
{
    struct sum *sum = context;
    CHECK(object != NULL);
    sum->objects++, sum->bytes += bytes;
    return sum->objects == 1000 ? 7 : 0;
}

static void heaps(void)
{
    uslab_heap *heap = uslab_heap_create_named("named");
    uslab_heap_stats stats;
    struct sum sum = {0, 0};
    int i;
    CHECK(heap != NULL);
    CHECK_FAILS(uslab_heap_create_named(NULL), EINVAL);
    for (i = 0; i < 100; i++) CHECK(uslab_heap_malloc(heap, 100) != NULL);
    CHECK(uslab_heap_malloc(heap, 1 << 20) != NULL);
    memset(&stats, 0, sizeof stats);
    CHECK(uslab_heap_get_stats(heap, &stats) == EINVAL && uslab_heap_get_stats(heap, NULL) == EINVAL);
    stats.type_size = sizeof stats;
    CHECK(uslab_heap_get_stats(heap, &stats) == 0 && stats.objects == 100 && stats.large_objects == 1);
    CHECK(uslab_heap_visit(heap, add, &sum) == 0);
    CHECK(sum.objects == 101 && sum.bytes == stats.object_bytes + stats.large_bytes);
    sum.objects = 998;
    CHECK(uslab_heap_visit(heap, add, &sum) == 7 && uslab_heap_visit(heap, NULL, &sum) == EINVAL);
    uslab_heap_destroy(heap);
}

static void threads(void)
{
    uslab_cache *cache = uslab_cache_create("threads", 40, NULL);
    pthread_t started[6];
    int i;
    for (i = 0; i < 6; i++) CHECK(pthread_create(&started[i], NULL, churn, cache) == 0);
    for (i = 0; i < 6; i++) CHECK(pthread_join(started[i], NULL) == 0);
    CHECK(uslab_cache_destroy(cache) == 0);
}

int main(void)
{
    plain();
    errors();
    alignment();
    policies();
    constructor();
    bulk();
    busy();
    sheaves();
    visits();
    local();
    heaps();
    threads();
    return ended();
}

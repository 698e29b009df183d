/* Wrong arguments for every function with arguments: an error where the library can detect it, and
 * never a crash. */
#include "check.h"

#include <stdint.h>
#include <uslab.h>

static void *objects[4];

/* A value that the compiler cannot see. */
static size_t hidden(size_t value)
{
    volatile size_t copy = value;
    return copy;
}

static size_t none(void *context, const uslab_shrink_control *control)
{
    (void)context;
    (void)control;
    return 0;
}

/* A misaligned pointer, at which no array of pointers, structure or handle can be. */
static void *askew(void *pointer)
{
    return (void *)((uintptr_t)pointer + 1);
}

#define CHECK_SETS(call, error)  \
    do {                         \
        errno = 0;               \
        call;                    \
        CHECK(errno == (error)); \
    } while (0)

#define CHECK_IS(call, error)              \
    do {                                   \
        errno = 0;                         \
        CHECK((call) == (error));          \
        CHECK((error) == 0 || errno == (error)); \
    } while (0)

static int see_object(void *context, void *object)
{
    (void)context, (void)object;
    return 0;
}

/* Every function with a cache argument. */
static void caches(uslab_cache *wrong)
{
    uslab_cache_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.type_size = sizeof stats;
    CHECK_FAILS(uslab_cache_alloc_bulk(wrong, 0, 4, objects), EINVAL);
    CHECK_FAILS(uslab_cache_alloc_bulk(wrong, USLAB_ZERO, 4, objects), EINVAL);
    CHECK_SETS(uslab_cache_free_bulk(wrong, 4, objects), EINVAL);
    CHECK_FAILS(uslab_cache_alloc(wrong, USLAB_ZERO), EINVAL);
    CHECK_SETS(uslab_cache_free(wrong, NULL), 0);
    CHECK_FAILS(uslab_cache_shrink(wrong), EINVAL);
    CHECK_IS(uslab_cache_visit(wrong, see_object, NULL), EINVAL);
    CHECK_FAILS(uslab_cache_name(wrong), EINVAL);
    CHECK(uslab_cache_object_size(wrong) == 0 && uslab_cache_usable_size(wrong) == 0);
    CHECK_FAILS(uslab_cache_prefill(wrong, 0, 4), EINVAL);
    CHECK_FAILS(uslab_cache_local(wrong, 0), EINVAL);
    CHECK_IS(uslab_cache_get_stats(wrong, &stats), EINVAL);
    CHECK_IS(uslab_cache_destroy(wrong), wrong == NULL ? 0 : EINVAL);
}

static void sheaves(uslab_sheaf *wrong)
{
    CHECK_FAILS(uslab_sheaf_alloc(wrong, 0), EINVAL);
    CHECK(uslab_sheaf_count(wrong) == 0);
    CHECK_IS(uslab_sheaf_refill(wrong, 0, 4), EINVAL);
    CHECK_SETS(uslab_sheaf_free(wrong, &wrong), EINVAL);
    CHECK_SETS(uslab_sheaf_return(wrong), wrong == NULL ? 0 : EINVAL);
}

static int see_bytes(void *context, void *object, size_t bytes)
{
    (void)context, (void)object, (void)bytes;
    return 1;
}

static void heaps(uslab_heap *wrong)
{
    uslab_heap_stats heap_stats;
    heap_stats.type_size = sizeof heap_stats;
    CHECK_IS(uslab_heap_get_stats(wrong, &heap_stats), EINVAL);
    CHECK_IS(uslab_heap_visit(wrong, see_bytes, NULL), EINVAL);
    void *mine = uslab_malloc(10);
    CHECK_FAILS(uslab_heap_malloc(wrong, 1), EINVAL);
    CHECK_FAILS(uslab_heap_calloc(wrong, 1, 1), EINVAL);
    CHECK_FAILS(uslab_heap_aligned_alloc(wrong, 16, 1), EINVAL);
    CHECK_FAILS(uslab_heap_realloc(wrong, NULL, 1), EINVAL);
    CHECK_FAILS(uslab_heap_realloc(wrong, mine, 10), EINVAL);
    CHECK_FAILS(uslab_heap_realloc(wrong, mine, 5000), EINVAL);
    CHECK_SETS(uslab_heap_free(wrong, mine), EINVAL);
    CHECK_SETS(uslab_heap_destroy(wrong), wrong == NULL ? 0 : EINVAL);
    uslab_free(mine);
}

static void shrinkers(uslab_shrinker *wrong)
{
    CHECK_IS(uslab_shrinker_set_miss_cost_ns(wrong, 1), EINVAL);
    CHECK_IS(uslab_shrinker_note_refaults(wrong, 1), EINVAL);
    CHECK_SETS(uslab_shrinker_unregister(wrong), wrong == NULL ? 0 : EINVAL);
}

static int counted;

static size_t count(void *context, const uslab_shrink_control *control)
{
    CHECK(context == &counted);
    (void)control;
    counted++;
    return 0;
}

/* A function registered twice makes two shrinkers: each is called, and each is unregistered by
 * itself. */
static void twice(void)
{
    uslab_shrinker_options options;
    uslab_shrinker *one, *two;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.count = count;
    options.scan = none;
    options.context = &counted;
    one = uslab_shrinker_register("twice", &options);
    two = uslab_shrinker_register("twice", &options);
    CHECK(one != NULL && two != NULL && one != two);
    counted = 0;
    (void)uslab_reclaim((size_t)-1);
    CHECK(counted >= 2);
    uslab_shrinker_unregister(one);
    counted = 0;
    (void)uslab_reclaim((size_t)-1);
    CHECK(counted >= 1);
    uslab_shrinker_unregister(two);
    counted = 0;
    (void)uslab_reclaim((size_t)-1);
    CHECK(counted == 0);
}

/* Handles of another kind are invalid. */
static void mixed_up(void)
{
    uslab_cache *cache = uslab_cache_create("mixed up", 100, NULL);
    uslab_heap *heap = uslab_heap_create();
    uslab_sheaf *sheaf = uslab_cache_prefill(cache, 0, 2);
    uslab_shrinker_options options;
    uslab_shrinker *shrinker;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.count = options.scan = none;
    shrinker = uslab_shrinker_register("mixed up", &options);
    CHECK(cache != NULL && heap != NULL && sheaf != NULL && shrinker != NULL);
    sheaves((uslab_sheaf *)(void *)cache);
    heaps((uslab_heap *)(void *)cache);
    shrinkers((uslab_shrinker *)(void *)cache);
    /* Called twice: the second time the handle is invalid. The functions in between allocate
     * nothing of its size. */
    uslab_sheaf_return(sheaf);
    sheaves(sheaf);
    uslab_shrinker_unregister(shrinker);
    shrinkers(shrinker);
    CHECK_SETS(uslab_shrinker_unregister(shrinker), EINVAL);
    uslab_heap_destroy(heap);
    CHECK_SETS(uslab_heap_destroy(heap), EINVAL);
    CHECK(uslab_cache_destroy(cache) == 0);
    CHECK(uslab_cache_destroy(cache) == EINVAL);
}

/* Impossible sizes and impossible addresses. */
static void sizes(void)
{
    uslab_cache *cache = uslab_cache_create("sizes", 16, NULL);
    uslab_heap *heap = uslab_heap_create();
    uslab_sheaf *sheaf = uslab_cache_prefill(cache, 0, 0);
    void **crooked = (void **)askew(objects);
    void *object = uslab_malloc(100);
    size_t most = hidden((size_t)-1), half = hidden((size_t)-1 / 2), i;
    CHECK(cache != NULL && heap != NULL && sheaf != NULL && object != NULL);
    /* An unknown flag is refused before the store is found empty. */
    CHECK_FAILS(uslab_sheaf_alloc(sheaf, 1u << 31), EINVAL);
    CHECK_FAILS(uslab_sheaf_alloc(sheaf, 0), ENOMEM);
    CHECK_FAILS(uslab_cache_alloc_bulk(cache, 0, 2, crooked), EINVAL);
    CHECK_FAILS(uslab_cache_alloc_bulk(cache, 0, 2, NULL), EINVAL);
    CHECK_SETS(uslab_cache_free_bulk(cache, 2, NULL), EINVAL);
    CHECK_FAILS(uslab_malloc_bulk(8, 2, crooked), EINVAL);
    CHECK_FAILS(uslab_malloc_bulk(most, 2, objects), ENOMEM);
    CHECK_FAILS(uslab_malloc_bulk(8, most, objects), ENOMEM);
    CHECK_SETS(uslab_free_bulk(2, NULL), EINVAL);
    CHECK_SETS(uslab_free_bulk(2, crooked), EINVAL);
    CHECK_FAILS(uslab_malloc(most), ENOMEM);
    CHECK_FAILS(uslab_malloc(half), ENOMEM);
    CHECK_FAILS(uslab_calloc(most, most), ENOMEM);
    CHECK_FAILS(uslab_calloc(half, 3), ENOMEM);
    CHECK_FAILS(uslab_realloc(object, most), ENOMEM);
    CHECK_FAILS(uslab_realloc(object, half), ENOMEM);
    CHECK_FAILS(uslab_realloc(NULL, most), ENOMEM);
    CHECK(uslab_usable_size(object) >= 100);
    CHECK_FAILS(uslab_malloc_flags(most, USLAB_ZERO), ENOMEM);
    CHECK_FAILS(uslab_malloc_flags(most, USLAB_NORECLAIM | USLAB_ZERO), ENOMEM);
    CHECK_FAILS(uslab_aligned_alloc(hidden(3), 8), EINVAL);
    CHECK_FAILS(uslab_aligned_alloc(hidden(0), 8), EINVAL);
    CHECK_FAILS(uslab_aligned_alloc(64, most), ENOMEM);
    CHECK_FAILS(uslab_aligned_alloc((half >> 1) + 1, half), ENOMEM);
    CHECK_FAILS(uslab_heap_malloc(heap, most), ENOMEM);
    CHECK_FAILS(uslab_heap_malloc(heap, half), ENOMEM);
    CHECK_FAILS(uslab_heap_calloc(heap, half, 3), ENOMEM);
    CHECK_FAILS(uslab_heap_realloc(heap, NULL, most), ENOMEM);
    CHECK_FAILS(uslab_heap_aligned_alloc(heap, 0, 1), EINVAL);
    CHECK_FAILS(uslab_heap_aligned_alloc(heap, (half >> 1) + 1, half), ENOMEM);
    CHECK_FAILS(uslab_heap_realloc(heap, &cache, 8), EINVAL);
    CHECK_FAILS(uslab_cache_prefill(cache, 0, most), ENOMEM);
    CHECK_FAILS(uslab_cache_prefill(cache, 0, half), ENOMEM);
    CHECK_IS(uslab_sheaf_refill(sheaf, 0, most), ENOMEM);
    CHECK_IS(uslab_sheaf_refill(sheaf, USLAB_ZERO, 1), EINVAL);
    /* Size 0 is valid. */
    for (i = 0; i < 4; i++) {
        void *p = i == 0 ? uslab_malloc(0) : i == 1 ? uslab_calloc(0, most) : i == 2 ? uslab_heap_malloc(heap, 0) : uslab_aligned_alloc(4096, 0);
        CHECK(p != NULL);
        uslab_free(p);
    }
    object = uslab_realloc(object, 0);
    CHECK(object != NULL);
    uslab_free(object);
    uslab_sheaf_return(sheaf);
    uslab_heap_destroy(heap);
    CHECK(uslab_cache_destroy(cache) == 0);
}

/* Invalid structures, for each function that takes one. */
static void structures(void)
{
    static const size_t sizes[] = {0, 1, sizeof(size_t) - 1, 4097, (size_t)1 << 40, (size_t)-1};
    union {
        size_t type_size;
        char bytes[600];
        uint64_t align;
    } s;
    uslab_cache *cache = uslab_cache_create("structures", 16, NULL);
    size_t i;
    for (i = 0; i <= sizeof sizes / sizeof *sizes; i++) {
        void *place = &s;
        memset(&s, 0, sizeof s);
        s.type_size = i == sizeof sizes / sizeof *sizes ? sizeof s : sizes[i];
        if (i == sizeof sizes / sizeof *sizes) place = askew(&s);
        CHECK_FAILS(uslab_cache_create("structures", 8, (uslab_cache_options *)place), EINVAL);
        CHECK_FAILS(uslab_shrinker_register("structures", (uslab_shrinker_options *)place), EINVAL);
        CHECK_IS(uslab_cache_get_stats(cache, (uslab_cache_stats *)place), EINVAL);
        CHECK_IS(uslab_get_usage((uslab_usage *)place), EINVAL);
        CHECK_IS(uslab_find_leaks((uslab_leaks *)place), EINVAL);
        CHECK_IS(uslab_watch_pressure((uslab_pressure_options *)place), EINVAL);
        CHECK_FAILS(uslab_pressure_text((uslab_pressure_options *)place), EINVAL);
    }
    CHECK_IS(uslab_cache_get_stats(cache, NULL), EINVAL);
    CHECK_IS(uslab_get_usage(NULL), EINVAL);
    CHECK_IS(uslab_find_leaks(NULL), ENODATA);
    CHECK_FAILS(uslab_shrinker_register("structures", NULL), EINVAL);
    CHECK_IS(uslab_visit_caches(NULL, NULL), EINVAL);
    CHECK_IS(uslab_cache_visit(cache, NULL, NULL), EINVAL);
    CHECK_IS(uslab_set_limit(2, 1), EINVAL);
    CHECK_IS(uslab_set_limit((size_t)-1, (size_t)-1), 0);
    CHECK_IS(uslab_set_limit(0, 0), 0);
    CHECK(uslab_cache_destroy(cache) == 0);
}

/* Debugging of a cache that has objects in use. */
static void debugging(void)
{
    uslab_cache *cache = uslab_cache_create("switched", 48, NULL);
    CHECK(cache);
    void *object = uslab_cache_alloc(cache, 0);
    CHECK(object);
    CHECK_IS(uslab_debug(NULL), EINVAL);
    CHECK_IS(uslab_debug("Q,switched"), EINVAL);
    CHECK_IS(uslab_debug("F"), EINVAL);
    CHECK_IS(uslab_debug("FZ,switched"), EINVAL);
    CHECK_IS(uslab_debug("F,elsewhere"), ENOENT);
    CHECK_IS(uslab_debug("FU,switched"), 0);
    uslab_cache_free(cache, object);
    CHECK_IS(uslab_debug("-,switched"), 0);
    CHECK(uslab_cache_destroy(cache) == 0);
}

int main(void)
{
    size_t zeroes[64];
    memset(zeroes, 0, sizeof zeroes);
    caches(NULL);
    sheaves(NULL);
    heaps(NULL);
    shrinkers(NULL);
    /* Memory that is not a handle, and an address where no handle can be. */
    sheaves((uslab_sheaf *)(void *)zeroes);
    heaps((uslab_heap *)(void *)zeroes);
    shrinkers((uslab_shrinker *)(void *)zeroes);
    sheaves((uslab_sheaf *)askew(zeroes));
    heaps((uslab_heap *)askew(zeroes));
    shrinkers((uslab_shrinker *)askew(zeroes));
    twice();
    mixed_up();
    sizes();
    structures();
    debugging();
    return ended();
}

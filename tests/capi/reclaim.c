/* Shrinkers, figures, and structures of other versions: the guarantees of the header. */
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <uslab.h>

/* A cache of the program: entries in an array, evicted from the end. */
struct entries {
    uslab_cache *cache;
    void *entry[20000];
    size_t n, stops;
    uslab_shrinker *shrinker;
    int unregister;
};

static struct entries one;

static size_t count(void *context, const uslab_shrink_control *control)
{
    struct entries *e = (struct entries *)context;
    CHECK(control->nr_to_scan == 0 && control->priority >= 0 && control->priority <= 12 && control->flags == 0);
    return e->n;
}

static size_t scan(void *context, const uslab_shrink_control *control)
{
    struct entries *e = (struct entries *)context;
    size_t n = control->nr_to_scan < e->n ? control->nr_to_scan : e->n;
    CHECK(control->nr_to_scan > 0);
    /* Inside a callback nothing is reclaimed, and allocation works. */
    CHECK(uslab_reclaim((size_t)-1) == 0);
    uslab_free(uslab_malloc(100));
    if (e->stops > 0) {
        e->stops--;
        return USLAB_SHRINK_STOP;
    }
    e->n -= n;
    uslab_cache_free_bulk(e->cache, n, e->entry + e->n);
    if (e->unregister) {
        e->unregister = 0;
        errno = 0;
        uslab_shrinker_unregister(e->shrinker);
        CHECK(errno == EDEADLK); /* this callback still runs */
    }
    return n;
}

static void fill(struct entries *e)
{
    e->n = sizeof e->entry / sizeof *e->entry;
    CHECK(uslab_cache_alloc_bulk(e->cache, USLAB_ZERO, e->n, e->entry));
}

static void shrinkers(void)
{
    uslab_shrinker_options options;
    memset(&options, 0, sizeof options);
    one.cache = uslab_cache_create("entries", 512, NULL);
    fill(&one);

    options.count = count;
    options.scan = scan;
    options.context = &one;
    CHECK_FAILS(uslab_shrinker_register("no size", &options), EINVAL);
    options.type_size = sizeof options;
    CHECK_FAILS(uslab_shrinker_register(NULL, &options), EINVAL);
    CHECK_FAILS(uslab_shrinker_register("no options", NULL), EINVAL);
    options.scan = NULL;
    CHECK_FAILS(uslab_shrinker_register("no scan", &options), EINVAL);
    options.scan = scan;

    one.shrinker = uslab_shrinker_register("entries", &options);
    CHECK(one.shrinker != NULL);
    CHECK(uslab_shrinker_set_miss_cost_ns(one.shrinker, 10000) == 0);
    CHECK(uslab_shrinker_set_miss_cost_ns(NULL, 1) == EINVAL);
    one.stops = 1;
    /* A pass leaves a shrinker early that is slow, as all are under valgrind. */
    size_t released = 0;
    for (int passes = 0; released < 1 << 20 && passes < 10; passes++) {
        released += uslab_reclaim((1 << 20) - released);
    }
    CHECK(released >= 1 << 20);
    CHECK(one.n > 0 && one.n < sizeof one.entry / sizeof *one.entry);
    CHECK(uslab_reclaim((size_t)-1) > 0);
    CHECK(one.n == 0);
    fill(&one);
    uslab_shrinker_unregister(one.shrinker);
    uslab_shrinker_unregister(NULL);
    (void)uslab_reclaim((size_t)-1);
    CHECK(one.n == sizeof one.entry / sizeof *one.entry);

    options.seeks = USLAB_SEEKS_NONE;
    options.batch = 7;
    one.unregister = 1;
    one.shrinker = uslab_shrinker_register("entries", &options);
    CHECK(one.shrinker != NULL);
    (void)uslab_reclaim((size_t)-1);
    /* The first scan unregistered its shrinker, so it was the last call. */
    CHECK(one.n < sizeof one.entry / sizeof *one.entry && one.n > 0);
    uslab_cache_free_bulk(one.cache, one.n, one.entry);
    CHECK(uslab_cache_destroy(one.cache) == 0);
}

/* A shrinker whose callback runs while another thread unregisters it. */
static uslab_shrinker *watched;
static int is_inside, is_ending;

static size_t one_entry(void *context, const uslab_shrink_control *control)
{
    (void)context;
    (void)control;
    return 1;
}

static size_t slow_scan(void *context, const uslab_shrink_control *control)
{
    void *reused[100];
    size_t i;
    (void)context;
    (void)control;
    __atomic_store_n(&is_inside, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&is_ending, __ATOMIC_ACQUIRE)) (void)sched_yield();
    for (i = 0; i < 1000; i++) (void)sched_yield();
    /* Memory of an ended handle would be used again here. */
    for (i = 0; i < 100; i++) CHECK((reused[i] = uslab_aligned_alloc(64, 128)) != NULL);
    for (i = 0; i < 100; i++) memset(reused[i], 0x5a, 128);
    CHECK(uslab_shrinker_note_refaults(watched, 1) == 0);
    CHECK(uslab_shrinker_set_miss_cost_ns(watched, 1) == 0);
    for (i = 0; i < 100; i++) uslab_free(reused[i]);
    return 1;
}

static void *reclaim_all(void *unused)
{
    (void)uslab_reclaim((size_t)-1);
    return unused;
}

/* A callback uses its handle for as long as it runs. */
static void unregistered_meanwhile(void)
{
    uslab_shrinker_options options;
    pthread_t thread;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.count = one_entry;
    options.scan = slow_scan;
    watched = uslab_shrinker_register("meanwhile", &options);
    CHECK(watched != NULL && pthread_create(&thread, NULL, reclaim_all, NULL) == 0);
    while (!__atomic_load_n(&is_inside, __ATOMIC_ACQUIRE)) (void)sched_yield();
    __atomic_store_n(&is_ending, 1, __ATOMIC_RELEASE);
    errno = 0;
    uslab_shrinker_unregister(watched);
    CHECK(errno == 0 && pthread_join(thread, NULL) == 0);
}

/* A shrinker that must not be called while `forbidden`. */
static int forbidden, called;

static size_t count_called(void *context, const uslab_shrink_control *control)
{
    (void)context;
    (void)control;
    CHECK(!forbidden);
    called++;
    return one.n;
}

/* A cache with free objects and free sheaves, so that a later prefill lacks neither. */
static uslab_cache *prefilled_before(void)
{
    uslab_cache *cache = uslab_cache_create("prefilled", 64, NULL);
    uslab_sheaf *sheaves[400];
    size_t i;
    CHECK(cache != NULL);
    for (i = 0; i < 400; i++) CHECK((sheaves[i] = uslab_cache_prefill(cache, USLAB_NORECLAIM, 1)) != NULL);
    while (i-- > 0) uslab_sheaf_return(sheaves[i]);
    return cache;
}

/* Memory runs out for a sheaf's array, or for its handle; the free memory is not enough for
 * either. */
static void prefilled_without_reclaim(uslab_cache *cache)
{
    uslab_sheaf *sheaf;
    void *small[3], *next;
    size_t i, bytes;
    CHECK(uslab_set_limit(0, 4096) == 0);
    CHECK_FAILS(uslab_cache_prefill(cache, USLAB_NORECLAIM, 100000), ENOMEM);
    for (i = 0, bytes = 64; i < 3; i++, bytes += 64)
        for (small[i] = NULL; (next = uslab_malloc_flags(bytes, USLAB_NORECLAIM)) != NULL; small[i] = next)
            memcpy(next, &small[i], sizeof next);
    /* If the thread moved to another CPU, that CPU's sheaf may still have an object. Only the
     * absence of callbacks matters. */
    errno = 0;
    sheaf = uslab_cache_prefill(cache, USLAB_NORECLAIM, 1);
    CHECK(sheaf != NULL || errno == ENOMEM);
    uslab_sheaf_return(sheaf);
    for (i = 0; i < 3; i++)
        while ((next = small[i]) != NULL) {
            memcpy(&small[i], next, sizeof next);
            uslab_free(next);
        }
}

static void limits(void)
{
    uslab_shrinker_options options;
    uslab_usage usage;
    uslab_cache *prefilled;
    void *object;
    size_t i, limit;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.count = count_called;
    options.scan = scan;
    options.context = &one;
    memset(&usage, 0, sizeof usage);
    usage.type_size = sizeof usage;
    CHECK(uslab_set_limit(2, 1) == EINVAL);

    one.cache = uslab_cache_create("limited", 4096, NULL);
    one.shrinker = uslab_shrinker_register("limited", &options);
    CHECK(one.cache != NULL && one.shrinker != NULL);
    (void)uslab_release_memory();
    CHECK(uslab_get_usage(&usage) == 0);
    limit = usage.used_bytes + usage.dirty_bytes + (16u << 20);
    CHECK(uslab_set_limit(0, limit) == 0);
    prefilled = prefilled_before();
    /* Without reclaim the allocation fails at the limit; with reclaim it evicts entries. */
    forbidden = 1;
    for (one.n = 0; one.n < 20000; one.n++)
        if ((one.entry[one.n] = uslab_cache_alloc(one.cache, USLAB_NORECLAIM)) == NULL) break;
    CHECK(errno == ENOMEM && one.n > 1000 && one.n < 6000);
    CHECK(!uslab_cache_alloc_bulk(one.cache, USLAB_NORECLAIM, 1000, one.entry + one.n) && errno == ENOMEM);
    prefilled_without_reclaim(prefilled);
    CHECK(uslab_set_limit(0, limit) == 0);
    /* Uses up the memory that this freed too. */
    (void)uslab_trim(0);
    for (; one.n < 20000; one.n++)
        if ((one.entry[one.n] = uslab_cache_alloc(one.cache, USLAB_NORECLAIM)) == NULL) break;
    forbidden = 0;
    i = one.n;
    object = uslab_cache_alloc(one.cache, 0);
    CHECK(object != NULL && called > 0 && one.n < i);
    uslab_cache_free(one.cache, object);
    uslab_shrinker_unregister(one.shrinker);
    CHECK(uslab_cache_destroy(prefilled) == 0);
    CHECK(uslab_malloc(1u << 30) == NULL && errno == ENOMEM);
    CHECK(uslab_set_limit(0, 0) == 0);
    object = uslab_malloc(1u << 30);
    CHECK(object != NULL);
    uslab_free(object);
    uslab_cache_free_bulk(one.cache, one.n, one.entry);
    CHECK(uslab_cache_destroy(one.cache) == 0);
}

static void figures(void)
{
    uslab_cache *cache = uslab_cache_create("a \"name\"\\", 100, NULL);
    uslab_cache_stats stats;
    char *text, *line, word[64];
    int n = 0, words = 0;
    void *objects[300];
    memset(&stats, 0, sizeof stats);
    CHECK(uslab_cache_get_stats(cache, &stats) == EINVAL);
    stats.type_size = sizeof stats;
    CHECK(uslab_cache_get_stats(NULL, &stats) == EINVAL && uslab_cache_get_stats(cache, NULL) == EINVAL);
    CHECK(uslab_get_usage(NULL) == EINVAL);
    CHECK(uslab_cache_alloc_bulk(cache, 0, 300, objects));
    CHECK(uslab_cache_get_stats(cache, &stats) == 0 && stats.type_size == sizeof stats);
    CHECK(stats.user_bytes == 100 && stats.object_bytes >= 100 && stats.active_objects == 300);
    CHECK(stats.total_objects == stats.slabs * stats.objects_per_slab);
    CHECK(stats.total_objects == stats.active_objects + stats.slab_free + stats.sheaf_free);
    CHECK(stats.slab_bytes >= 30000 && stats.grows >= stats.slabs && stats.alloc_slow > 0);

    text = uslab_stats_json();
    CHECK(text != NULL && text[0] == '{' && text[strlen(text) - 1] == '\n');
    CHECK(strstr(text, "\"name\": \"a \\\"name\\\"\\\\\", \"destroyed\": false, \"user_bytes\": 100,") != NULL);
    CHECK(strstr(text, "\"active_objects\": 300,") != NULL);
    (void)snprintf(word, sizeof word, "\"mode\": \"%s\"", uslab_mode());
    CHECK(strstr(text, word) != NULL);
    /* Prints the text for the test, which parses it. */
    (void)fputs(text, stderr);
    uslab_free(text);

    CHECK(uslab_stats_publish() == 0 && uslab_stats_publish() == 0);
    text = uslab_stats_slabinfo();
    CHECK(text != NULL && strncmp(text, "slabinfo - version: 2.1\n# name ", 31) == 0);
    line = strstr(text, "\na_\"name\"\\ ");
    CHECK(line != NULL);
    for (line = strtok(line + 1, "\n"), line = strtok(line, " "); line != NULL; line = strtok(NULL, " "), words++)
        if (words == 1) n = atoi(line);
    CHECK(words == 16 && n == 300);
    uslab_free(text);

    uslab_cache_free_bulk(cache, 300, objects);
    CHECK(uslab_cache_get_stats(cache, &stats) == 0 && stats.active_objects == 0);
    CHECK(uslab_cache_destroy(cache) == 0);
    CHECK(uslab_trim(0) > 0);
    uslab_set_decay_ms(-1);
    uslab_set_decay_ms(0);
    uslab_set_decay_ms(1000);
    CHECK(uslab_set_huge_pages(USLAB_HUGE_PAGES_NEVER) == 0);
    CHECK(uslab_set_huge_pages(USLAB_HUGE_PAGES_AUTO) == 0);
    CHECK(uslab_set_huge_pages(3) == EINVAL);
    CHECK(strcmp(uslab_version(), USLAB_TEST_VERSION) == 0);
    CHECK(strcmp(uslab_mode(), "rseq") == 0 || strcmp(uslab_mode(), "locked") == 0);
}

/* The options of callers compiled against other headers. */
static void versions(void)
{
    /* An older structure, with sizes, alignments and flags only. */
    struct older {
        size_t type_size, align;
        unsigned flags;
    } older = {offsetof(struct older, flags) + sizeof(unsigned), 64, USLAB_COLD};
    struct newer {
        uslab_cache_options known;
        size_t unknown[3];
    } newer;
    struct newer_stats {
        uslab_cache_stats known;
        uint64_t unknown[2];
    } stats;
    struct older_stats {
        size_t type_size;
        uint64_t user_bytes, behind;
    } older_stats = {offsetof(struct older_stats, behind), 0, 77};
    uslab_cache_options garbage;
    uslab_cache *cache = uslab_cache_create("older", 8, (const uslab_cache_options *)(const void *)&older);
    void *object;
    CHECK(cache != NULL);
    object = uslab_cache_alloc(cache, 0);
    CHECK((uintptr_t)object % 64 == 0);
    uslab_cache_free(cache, object);
    CHECK(uslab_cache_destroy(cache) == 0);

    memset(&newer, 0, sizeof newer);
    newer.known.type_size = sizeof newer;
    cache = uslab_cache_create("newer", 24, &newer.known);
    CHECK(cache != NULL);
    newer.unknown[2] = 1;
    CHECK_FAILS(uslab_cache_create("newer", 24, &newer.known), EINVAL);

    memset(&stats, 0xff, sizeof stats);
    stats.known.type_size = sizeof stats;
    CHECK(uslab_cache_get_stats(cache, &stats.known) == 0);
    CHECK(stats.known.user_bytes == 24 && stats.unknown[0] == 0 && stats.unknown[1] == 0);
    CHECK(uslab_cache_get_stats(cache, (uslab_cache_stats *)(void *)&older_stats) == 0);
    CHECK(older_stats.user_bytes == 24 && older_stats.behind == 77);
    CHECK(uslab_cache_destroy(cache) == 0);

    memset(&garbage, 0, sizeof garbage);
    CHECK_FAILS(uslab_cache_create("no size", 8, &garbage), EINVAL);
    garbage.type_size = 3;
    CHECK_FAILS(uslab_cache_create("no size", 8, &garbage), EINVAL);
    garbage.type_size = (size_t)-1;
    CHECK_FAILS(uslab_cache_create("no size", 8, &garbage), EINVAL);
}

int main(void)
{
    shrinkers();
    limits();
    figures();
    versions();
    unregistered_meanwhile();
    return ended();
}

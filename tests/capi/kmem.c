/* The kernel's names: each is called once at least, and does what it says. Compiled as C and as C++. */
#include <uslab/kmem.h>

#include "check.h"

struct thing {
    long number;
    char text[40];
};

static int is_zero(const void *memory, size_t n)
{
    const char *bytes = (const char *)memory;
    while (n-- > 0)
        if (bytes[n] != 0) return 0;
    return 1;
}

static void construct(void *object)
{
    ((struct thing *)object)->number = 42;
}

static void caches(void)
{
    struct kmem_cache_args args;
    struct kmem_cache *cache = KMEM_CACHE(thing, SLAB_HWCACHE_ALIGN | SLAB_PANIC | SLAB_ACCOUNT);
    struct slab_sheaf *sheaf;
    struct thing *thing;
    void *objects[100];
    int i;
    CHECK(kmem_cache_size(cache) == sizeof(struct thing));
    thing = (struct thing *)kmem_cache_zalloc(cache, GFP_KERNEL);
    CHECK(thing != NULL && is_zero(thing, sizeof *thing));
    kmem_cache_free(cache, thing);
    thing = (struct thing *)kmem_cache_alloc_node(cache, GFP_ATOMIC, NUMA_NO_NODE);
    CHECK(thing != NULL && ((uintptr_t)thing & 63) == 0);
    kmem_cache_free(cache, thing);
    CHECK(kmem_cache_alloc_bulk(cache, GFP_NOWAIT | __GFP_ZERO, 100, objects) == 100);
    for (i = 0; i < 100; i++) CHECK(is_zero(objects[i], sizeof *thing));
    kmem_cache_free_bulk(cache, 100, objects);

    sheaf = kmem_cache_prefill_sheaf(cache, GFP_KERNEL, 10);
    CHECK(sheaf != NULL && kmem_cache_sheaf_size(sheaf) == 10);
    for (i = 0; i < 10; i++) CHECK((objects[i] = kmem_cache_alloc_from_sheaf(cache, GFP_NOWAIT, sheaf)) != NULL);
    CHECK(kmem_cache_alloc_from_sheaf(cache, GFP_NOWAIT, sheaf) == NULL);
    CHECK(kmem_cache_refill_sheaf(cache, GFP_KERNEL, &sheaf, 20) == 0 && kmem_cache_sheaf_size(sheaf) == 20);
    kmem_cache_return_sheaf(cache, GFP_KERNEL, sheaf);
    kmem_cache_free_bulk(cache, 10, objects);
    CHECK(kmem_cache_shrink(cache) == 0);
    kmem_cache_destroy(cache);
    kmem_cache_destroy(NULL);

    /* Both signatures. */
    cache = kmem_cache_create("before", 100, 32, SLAB_RECLAIM_ACCOUNT, NULL);
    CHECK(cache != NULL);
    kmem_cache_destroy(cache);
    memset(&args, 0, sizeof args);
    args.align = 128;
    args.ctor = construct;
    cache = kmem_cache_create("today", sizeof(struct thing), &args, SLAB_NO_MERGE);
    CHECK(cache != NULL);
    thing = (struct thing *)kmem_cache_alloc(cache, GFP_KERNEL | __GFP_NOFAIL);
    CHECK(((uintptr_t)thing & 127) == 0 && thing->number == 42);
    kmem_cache_free(cache, thing);
    kmem_cache_destroy(cache);
    cache = kmem_cache_create("none", 8, NULL, 0);
    CHECK(cache != NULL);
    kmem_cache_destroy(cache);
    CHECK_FAILS(kmem_cache_create("rcu", 8, NULL, SLAB_TYPESAFE_BY_RCU), ENOTSUP);
}

static void kmallocs(void)
{
    size_t size;
    char *p;
    void *objects[3];
    CHECK(kmalloc(0, GFP_KERNEL) == ZERO_SIZE_PTR && ZERO_OR_NULL_PTR(NULL) && ksize(ZERO_SIZE_PTR) == 0);
    kfree(ZERO_SIZE_PTR);
    kfree(NULL);
    kfree_sensitive(NULL);
    for (size = 1; size < 1u << 21; size *= 2) {
        p = (char *)kmalloc(size, GFP_KERNEL);
        CHECK(p != NULL && ((uintptr_t)p & (size - 1)) == 0 && ksize(p) >= size);
        memset(p, 1, size);
        kfree_sensitive(p);
        p = (char *)kzalloc(size, GFP_NOFS);
        CHECK(p != NULL && ((uintptr_t)p & (size - 1)) == 0 && is_zero(p, size));
        kvfree(p);
        p = (char *)kcalloc(3, size, GFP_KERNEL);
        CHECK(p != NULL && is_zero(p, 3 * size));
        CHECK(kmalloc_size_roundup(3 * size) == ksize(p));
        kfree(p);
    }
    CHECK_FAILS(kmalloc_array((size_t)-1, 2, GFP_KERNEL), ENOMEM);
    CHECK_FAILS(kvcalloc((size_t)-1, 2, GFP_KERNEL), ENOMEM);

    /* With __GFP_ZERO all the way what is new is zeroes, whatever the way there. */
    p = (char *)kzalloc(100, GFP_KERNEL);
    memset(p, 7, 100);
    p = (char *)krealloc(p, 20, GFP_KERNEL | __GFP_ZERO);
    p = (char *)krealloc(p, 5000, GFP_KERNEL | __GFP_ZERO);
    CHECK(p[19] == 7 && is_zero(p + 20, 4980));
    memset(p, 7, 5000);
    p = (char *)krealloc_array(p, 200, 1000, GFP_KERNEL | __GFP_ZERO);
    CHECK(p[4999] == 7 && is_zero(p + 5000, 195000));
    CHECK(krealloc(p, 0, GFP_KERNEL) == ZERO_SIZE_PTR);
    p = (char *)krealloc(NULL, 10, GFP_KERNEL);
    objects[0] = p;
    objects[1] = kmalloc_node(1000, GFP_NOIO, 0);
    objects[2] = kzalloc_node(10, GFP_USER, 0);
    kmem_cache_free_bulk(NULL, 3, objects);
}

static unsigned long entries = 1000;
static int stops;

static unsigned long count_entries(struct shrinker *shrinker, struct shrink_control *control)
{
    CHECK(shrinker->private_data == &entries && control->nid == 0 && control->memcg == NULL);
    return entries == 0 ? SHRINK_EMPTY : entries;
}

static unsigned long scan_entries(struct shrinker *shrinker, struct shrink_control *control)
{
    unsigned long n = control->nr_to_scan < entries ? control->nr_to_scan : entries;
    (void)shrinker;
    if (stops++ == 0) return SHRINK_STOP;
    entries -= n;
    return n;
}

static void shrinkers(void)
{
    struct shrinker *shrinker = shrinker_alloc(SHRINKER_NUMA_AWARE, "%s-%d", "entries", 1);
    CHECK(shrinker != NULL && shrinker->seeks == DEFAULT_SEEKS);
    shrinker->count_objects = count_entries;
    shrinker->scan_objects = scan_entries;
    shrinker->private_data = &entries;
    shrinker_register(shrinker);
    (void)uslab_reclaim((size_t)-1);
    CHECK(stops > 1 && entries == 0);
    shrinker_free(shrinker);
    shrinker_free(NULL);
    /* One that never was registered. */
    shrinker_free(shrinker_alloc(0, "never"));
}

int main(void)
{
    caches();
    kmallocs();
    shrinkers();
    return ended();
}

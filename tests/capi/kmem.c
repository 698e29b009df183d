/* The kernel's names: each function is called at least once, and has the kernel's behaviour.
 * Compiled as C and as C++. */
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

    /* Debugging flags are honoured. */
    cache = kmem_cache_create("debugged", 100, 0, SLAB_POISON | SLAB_RED_ZONE | SLAB_STORE_USER | SLAB_CONSISTENCY_CHECKS, NULL);
    CHECK(cache != NULL);
    kmem_cache_free(cache, kmem_cache_alloc(cache, GFP_KERNEL));
    kmem_cache_destroy(cache);

    /* kmem_cache_shrink returns whether slabs are left; a cache with live objects is not
     * destroyed. */
    cache = KMEM_CACHE(thing, 0);
    thing = (struct thing *)kmem_cache_alloc(cache, GFP_KERNEL);
    CHECK(kmem_cache_shrink(cache) != 0);
    kfree(thing);
    CHECK(kmem_cache_shrink(cache) == 0);
    CHECK(kmem_cache_alloc_bulk(cache, GFP_KERNEL, 0, objects) == 0);
    kmem_cache_destroy(cache);
}

/* Relations between the flags, on which code relies. */
static void flags(void)
{
    CHECK(gfpflags_allow_blocking(GFP_KERNEL) && gfpflags_allow_blocking(GFP_NOFS) && gfpflags_allow_blocking(GFP_USER));
    CHECK(!gfpflags_allow_blocking(GFP_ATOMIC) && !gfpflags_allow_blocking(GFP_NOWAIT));
    CHECK(!gfpflags_allow_blocking(GFP_KERNEL & ~__GFP_DIRECT_RECLAIM));
    CHECK((GFP_NOFS & __GFP_FS) == 0 && (GFP_NOIO & (__GFP_IO | __GFP_FS)) == 0 && (GFP_KERNEL & __GFP_FS) != 0);
    CHECK(uslab_kmem_flags(GFP_KERNEL | __GFP_NOFAIL | __GFP_ACCOUNT) == 0);
    CHECK(uslab_kmem_flags(GFP_KERNEL_ACCOUNT | __GFP_ZERO) == USLAB_ZERO);
    CHECK(uslab_kmem_flags(GFP_ATOMIC) == USLAB_NORECLAIM && uslab_kmem_flags(GFP_NOWAIT) == USLAB_NORECLAIM);
    CHECK(uslab_kmem_flags(GFP_NOFS) == USLAB_NORECLAIM && uslab_kmem_flags(GFP_NOIO) == USLAB_NORECLAIM);
    CHECK(uslab_kmem_flags(0) == USLAB_NORECLAIM);
}

struct list {
    unsigned n;
    long item[1];
};

/* Allocation by type, and copies. */
static void by_type(void)
{
    static const char text[] = "some text";
    const long numbers[3] = {1, 2, 3};
    struct thing *thing = kzalloc_obj(*thing);
    struct thing *things = kmalloc_objs(struct thing, 3, GFP_NOWAIT);
    struct list *list = kzalloc_flex(*list, item, 5);
    char *copy;
    long *copies;
    CHECK(thing != NULL && is_zero(thing, sizeof *thing));
    CHECK(things != NULL && ksize(things) >= 3 * sizeof *things);
    CHECK(list != NULL && ksize(list) >= sizeof *list + 5 * sizeof(long) && is_zero(list, sizeof *list + 5 * sizeof(long)));
    CHECK_FAILS(kmalloc_objs(*thing, (size_t)-1), ENOMEM);
    CHECK_FAILS(kzalloc_flex(*list, item, (size_t)-1, GFP_KERNEL | __GFP_NOFAIL), ENOMEM);
    kfree(thing);
    kfree(things);
    kfree(list);
    list = kmalloc_flex(*list, item, 0, GFP_KERNEL);
    kfree(list);
    thing = kmalloc_obj(struct thing, GFP_ATOMIC);
    kfree(thing);
    things = kzalloc_objs(*things, 0);
    CHECK(things == ZERO_SIZE_PTR);
    kfree(things);

    copy = (char *)kmemdup(text, sizeof text, GFP_KERNEL);
    CHECK(copy != NULL && strcmp(copy, text) == 0);
    kfree(copy);
    CHECK((copies = (long *)kmemdup_array(numbers, 3, sizeof(long), GFP_KERNEL)) != NULL && copies[2] == 3);
    kfree(copies);
    CHECK_FAILS(kmemdup_array(numbers, (size_t)-1, sizeof(long), GFP_KERNEL), ENOMEM);
    CHECK((copy = kstrdup(text, GFP_KERNEL)) != NULL && strcmp(copy, text) == 0);
    kfree(copy);
    CHECK((copy = kstrndup(text, 4, GFP_KERNEL)) != NULL && strcmp(copy, "some") == 0);
    kfree(copy);
    CHECK((copy = kstrndup(text, 100, GFP_KERNEL)) != NULL && strcmp(copy, text) == 0);
    kfree(copy);
    CHECK((copy = kmemdup_nul(text + 5, 2, GFP_KERNEL)) != NULL && strcmp(copy, "te") == 0);
    kvfree_sensitive(copy, 3);
    CHECK(kstrdup(NULL, GFP_KERNEL) == NULL && kstrndup(NULL, 1, GFP_KERNEL) == NULL);
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
        p = (char *)kmalloc(size, GFP_ATOMIC);
        CHECK(p != NULL && ((uintptr_t)p & (size - 1)) == 0);
        p = (char *)krealloc(p, 2 * size, GFP_KERNEL);
        CHECK(p != NULL && ((uintptr_t)p & (2 * size - 1)) == 0);
        p = (char *)krealloc(p, 4 * size, GFP_NOWAIT);
        CHECK(p != NULL && ((uintptr_t)p & (4 * size - 1)) == 0);
        kfree(p);
    }
    p = (char *)kzalloc(8 << 20, GFP_KERNEL);
    CHECK(p != NULL && ((uintptr_t)p & ((8 << 20) - 1)) == 0 && is_zero(p, 8 << 20));
    kvfree(p);
    CHECK_FAILS(kmalloc_array((size_t)-1, 2, GFP_KERNEL), ENOMEM);
    CHECK_FAILS(kvcalloc((size_t)-1, 2, GFP_KERNEL), ENOMEM);

    /* With __GFP_ZERO in every call, the added bytes are zero, in place or moved. */
    p = (char *)kzalloc(100, GFP_KERNEL);
    memset(p, 7, 100);
    p = (char *)krealloc(p, 20, GFP_KERNEL | __GFP_ZERO);
    p = (char *)krealloc(p, 5000, GFP_KERNEL | __GFP_ZERO);
    CHECK(p[19] == 7 && is_zero(p + 20, 4980));
    memset(p, 7, 5000);
    p = (char *)krealloc_array(p, 200, 1000, GFP_KERNEL | __GFP_ZERO);
    CHECK(p[4999] == 7 && is_zero(p + 5000, 195000));
    p = (char *)krealloc(p, 300, GFP_NOFS | __GFP_ZERO);
    p = (char *)krealloc(p, 1 << 18, GFP_ATOMIC | __GFP_ZERO);
    CHECK(p[299] == 7 && is_zero(p + 300, (1 << 18) - 300));
    CHECK_FAILS(krealloc(p, (size_t)-1, GFP_KERNEL | __GFP_NOFAIL), ENOMEM);
    CHECK(p[299] == 7);
    CHECK(krealloc(p, 0, GFP_KERNEL) == ZERO_SIZE_PTR);
    p = (char *)krealloc(NULL, 10, GFP_KERNEL);
    objects[0] = p;
    objects[1] = kmalloc_node(1000, GFP_NOIO, 0);
    objects[2] = kzalloc_node(10, GFP_USER, 0);
    kmem_cache_free_bulk(NULL, 3, objects);
    objects[0] = ZERO_SIZE_PTR;
    objects[1] = kvmalloc_node(64, GFP_KERNEL, NUMA_NO_NODE);
    objects[2] = NULL;
    kfree_bulk(3, objects);
}

/* Free pages that start anywhere serve aligned objects too, with reclaim and without. */
static void alignment(void)
{
    static const gfp_t kinds[] = {GFP_KERNEL, GFP_ATOMIC, GFP_NOFS, GFP_ATOMIC | __GFP_ZERO};
    size_t size, i;
    for (i = 0; i < 4; i++) {
        char *before = (char *)kmalloc(300 * 4096, GFP_KERNEL), *first, *p;
        CHECK(before != NULL);
        memset(before, 1, 300 * 4096);
        first = (char *)kmalloc(10 * 4096, GFP_KERNEL);
        kfree(before);
        before = (char *)kmalloc(10 * 4096, GFP_KERNEL);
        CHECK(first != NULL && before != NULL);
        for (size = 1 << 16; size <= 8u << 20; size *= 2) {
            p = (char *)kmalloc(size, kinds[i]);
            CHECK(p != NULL && ((uintptr_t)p & (size - 1)) == 0);
            CHECK((kinds[i] & __GFP_ZERO) == 0 || is_zero(p, size));
            memset(p, 1, size);
            kfree(p);
            p = (char *)krealloc(kmalloc(size / 2 + 1, kinds[i]), size, kinds[i]);
            CHECK(p != NULL && ((uintptr_t)p & (size - 1)) == 0);
            kfree(p);
        }
        kfree(before);
        kfree(first);
        before = (char *)kmalloc(3 << 20, GFP_KERNEL);
        p = (char *)kmalloc(4 << 20, kinds[i]);
        CHECK(p != NULL && ((uintptr_t)p & ((4 << 20) - 1)) == 0);
        kfree(p);
        kfree(before);
    }
}

static unsigned long entries = 1000;
static int stops;

static unsigned long count_entries(struct shrinker *shrinker, struct shrink_control *control)
{
    CHECK(shrinker->private_data == &entries && control->nid == 0 && control->memcg == NULL);
    CHECK((control->gfp_mask & __GFP_FS) != 0);
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
    /* A shrinker that was never registered, and one that cannot be. */
    shrinker_free(shrinker_alloc(0, "never"));
    shrinker = shrinker_alloc(0, "no functions");
    errno = 0;
    shrinker_register(shrinker);
    CHECK(errno == EINVAL);
    (void)uslab_reclaim((size_t)-1);
    shrinker_free(shrinker);
}

/* At the hard limit: which shrinkers are called for which flags. */
static struct kmem_cache *clean_cache;
static struct clean {
    struct clean *next;
} *clean_list;
static unsigned long cleans, calls;

static unsigned long count_cleans(struct shrinker *shrinker, struct shrink_control *control)
{
    (void)shrinker;
    (void)control;
    calls++;
    return cleans;
}

static unsigned long scan_cleans(struct shrinker *shrinker, struct shrink_control *control)
{
    unsigned long freed = 0;
    (void)shrinker;
    for (; freed < control->nr_to_scan && clean_list != NULL; freed++, cleans--) {
        struct clean *next = clean_list->next;
        kmem_cache_free(clean_cache, clean_list);
        clean_list = next;
    }
    control->nr_scanned = freed;
    return freed != 0 ? freed : SHRINK_STOP;
}

/* Allocates until memory is used up; returns whether shrinkers were called. */
static int fill(struct kmem_cache *cache, gfp_t gfp)
{
    static void *objects[100000];
    size_t n = 0;
    calls = 0;
    while (n < 100000 && (objects[n] = kmem_cache_alloc(cache, gfp)) != NULL) n++;
    CHECK(n < 100000 && errno == ENOMEM);
    kmem_cache_free_bulk(cache, n, objects);
    return calls != 0;
}

static void limits(void)
{
    struct kmem_cache *cache = kmem_cache_create("filling", 1024, 0, SLAB_NO_MERGE, NULL);
    struct shrinker *shrinker = shrinker_alloc(0, "cleans");
    uslab_usage usage;
    void *object;
    CHECK(cache != NULL && shrinker != NULL);
    clean_cache = kmem_cache_create("clean", 4096, 0, SLAB_RECLAIM_ACCOUNT, NULL);
    for (; cleans < 200; cleans++) {
        struct clean *clean = (struct clean *)kmem_cache_alloc(clean_cache, GFP_KERNEL);
        CHECK(clean != NULL);
        clean->next = clean_list;
        clean_list = clean;
    }
    shrinker->count_objects = count_cleans;
    shrinker->scan_objects = scan_cleans;
    shrinker_register(shrinker);
    memset(&usage, 0, sizeof usage);
    usage.type_size = sizeof usage;
    CHECK(uslab_get_usage(&usage) == 0);
    CHECK(uslab_set_limit(0, (size_t)(usage.used_bytes + usage.dirty_bytes) + (8u << 20)) == 0);

    CHECK(!fill(cache, GFP_ATOMIC) && cleans == 200);
    CHECK(!fill(cache, GFP_NOWAIT) && !fill(cache, GFP_NOFS) && !fill(cache, GFP_NOIO) && !fill(cache, 0));
    CHECK_FAILS(kmalloc(64u << 20, GFP_NOFS), ENOMEM);
    object = kmalloc(100, GFP_NOFS);
    CHECK_FAILS(krealloc(object, 64u << 20, GFP_ATOMIC), ENOMEM);
    CHECK(calls == 0 && cleans == 200);
    kfree(object);
    CHECK(fill(cache, GFP_KERNEL) && cleans < 200);

    CHECK(uslab_set_limit(0, 0) == 0);
    shrinker_free(shrinker);
    for (; clean_list != NULL; cleans--) {
        struct clean *next = clean_list->next;
        kmem_cache_free(clean_cache, clean_list);
        clean_list = next;
    }
    CHECK(cleans == 0);
    kmem_cache_destroy(clean_cache);
    kmem_cache_destroy(cache);
}

/* While some allocations get guard pages, others of the same size have more bytes than asked. */
static void guarded(void)
{
    char *objects[64];
    size_t i, n;
    CHECK(uslab_guard_start(1000, 16) == 0);
    for (i = 0; i < 64; i++) {
        objects[i] = (char *)kmalloc(112, GFP_KERNEL);
        memset(objects[i], -1, 112);
    }
    for (i = 0; i < 64; i++) kfree(objects[i]);
    for (i = 0; i < 64; i++) {
        objects[i] = (char *)krealloc(kzalloc(100, GFP_KERNEL), 300, GFP_KERNEL | __GFP_ZERO);
        for (n = 0; n < 300; n++) CHECK(objects[i][n] == 0);
    }
    for (i = 0; i < 64; i++) kfree(objects[i]);
    uslab_guard_stop();
}

int main(void)
{
    flags();
    caches();
    kmallocs();
    alignment();
    by_type();
    shrinkers();
    limits();
    guarded();
    return ended();
}

/* The heap profile of a cache by every function that allocates and frees its objects, against exact
 * numbers: each allocation is a sample. */
#include "check.h"

#include <uslab.h>

enum { PAIRS = 1000, BULK = 100, BYTES = 72 };

static uslab_cache *cache;

/* The allocations of the cache that the profile has, and those in use. */
static void read_profile(unsigned long *allocated, unsigned long *live)
{
    FILE *file = tmpfile();
    char line[8192], name[64];
    CHECK(file != NULL);
    CHECK(uslab_profile_write(fileno(file)) == 0);
    rewind(file);
    *allocated = *live = 0;
    while (fgets(line, sizeof line, file)) {
        unsigned long numbers[4];
        if (sscanf(line, "site %63s %*u %lu %lu %lu %lu", name, &numbers[0], &numbers[1], &numbers[2],
                   &numbers[3]) != 5 ||
            strcmp(name, "of\\x20C") != 0)
            continue;
        CHECK(numbers[1] == numbers[0] * BYTES && numbers[3] == numbers[2] * BYTES);
        *allocated += numbers[0];
        *live += numbers[2];
    }
    CHECK(fclose(file) == 0);
}

/* So many allocations since the last call, and so many objects in use. */
static void expect(unsigned long more, unsigned long live)
{
    static unsigned long before;
    unsigned long allocated, in_use;
    read_profile(&allocated, &in_use);
    CHECK(allocated == before + more);
    CHECK(in_use == live);
    before = allocated;
}

static void single_calls(void)
{
    int i;
    for (i = 0; i < PAIRS; i++) {
        void *object = uslab_cache_alloc(cache, i % 2 ? USLAB_NORECLAIM : 0);
        CHECK(object != NULL);
        uslab_cache_free(cache, object);
    }
    expect(PAIRS, 0);
    for (i = 0; i < PAIRS; i++) {
        void *object = uslab_cache_alloc(cache, USLAB_ZERO);
        CHECK(object != NULL && *(char *)object == 0);
        uslab_free(object);
    }
    expect(PAIRS, 0);
}

static void bulk_calls(void)
{
    void *objects[BULK];
    CHECK(uslab_cache_alloc_bulk(cache, 0, BULK, objects));
    expect(BULK, BULK);
    uslab_cache_free_bulk(cache, BULK, objects);
    expect(0, 0);
    CHECK(uslab_cache_alloc_bulk(cache, USLAB_NORECLAIM, BULK, objects));
    uslab_cache_free_bulk(cache, BULK, objects);
    expect(BULK, 0);
}

/* The objects of a prefilled sheaf are in use. What is freed into it can be allocated again. */
static void prefilled(void)
{
    uslab_sheaf *sheaf = uslab_cache_prefill(cache, 0, 3);
    void *objects[3];
    int i;
    CHECK(sheaf != NULL);
    expect(3, 3);
    for (i = 0; i < 3; i++) CHECK((objects[i] = uslab_sheaf_alloc(sheaf, 0)) != NULL);
    CHECK(uslab_sheaf_alloc(sheaf, 0) == NULL);
    uslab_sheaf_free(sheaf, objects[0]);
    CHECK(uslab_sheaf_alloc(sheaf, 0) == objects[0]);
    uslab_sheaf_free(sheaf, objects[1]);
    expect(0, 3);
    uslab_cache_free(cache, objects[0]);
    expect(0, 2);
    uslab_sheaf_return(sheaf);
    expect(0, 1);
    uslab_cache_free(cache, objects[2]);
    expect(0, 0);
}

static void of_a_thread(void)
{
    uslab_sheaf *sheaf = uslab_cache_local(cache, 0);
    int i;
    CHECK(sheaf != NULL);
    for (i = 0; i < PAIRS; i++) {
        void *object = uslab_sheaf_alloc(sheaf, 0);
        CHECK(object != NULL);
        uslab_sheaf_free(sheaf, object);
    }
    expect(PAIRS, 0);
    uslab_sheaf_return(sheaf);
}

int main(void)
{
    void *early[BULK], *late;
    int i;
    cache = uslab_cache_create("of C", BYTES, NULL);
    CHECK(cache != NULL);
    for (i = 0; i < BULK; i++) CHECK((early[i] = uslab_cache_alloc(cache, 0)) != NULL);
    CHECK_FAILS(uslab_profile_write(1) == 0, ENODATA);
    CHECK(uslab_profile_start(1) == 0);
    expect(0, 0);
    single_calls();
    bulk_calls();
    prefilled();
    of_a_thread();
    for (i = 0; i < BULK; i++) uslab_cache_free(cache, early[i]);
    CHECK((late = uslab_cache_alloc(cache, 0)) != NULL);
    uslab_profile_stop();
    expect(1, 1);
    uslab_cache_free(cache, late);
    expect(0, 0);
    for (i = 0; i < PAIRS; i++) uslab_cache_free(cache, uslab_cache_alloc(cache, 0));
    expect(0, 0);
    CHECK(uslab_cache_destroy(cache) == 0);
    return ended();
}

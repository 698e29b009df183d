/* Meets each static probe of the library, with caches of 7 letters, for gdb and for the notes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <uslab.h>

static void *objects[3000];
static size_t entries = 10;

static size_t count(void *context, const uslab_shrink_control *control)
{
    (void)context, (void)control;
    return entries;
}

static size_t scan(void *context, const uslab_shrink_control *control)
{
    size_t freed = entries;
    (void)context, (void)control;
    entries = 0;
    return freed;
}

int main(void)
{
    uslab_shrinker_options options;
    uslab_shrinker *shrinker;
    uslab_cache *cache = uslab_cache_create("session", 64, NULL);
    uslab_cache *packets = uslab_cache_create("packets", 1000, NULL);
    size_t i;
    void *last = NULL;
    if (cache == NULL || packets == NULL) return 1;
    for (i = 0; i < 3000; i++) {
        objects[i] = uslab_cache_alloc(cache, 0);
        if (objects[i] == NULL) return 2;
        memset(objects[i], 1, 64);
    }
    for (i = 0; i < 3000; i++) uslab_cache_free(cache, objects[i]);
    uslab_cache_shrink(cache);

    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.count = count;
    options.scan = scan;
    shrinker = uslab_shrinker_register("session", &options);
    if (shrinker == NULL) return 3;
    uslab_reclaim(SIZE_MAX);
    if (entries != 0) return 4;
    uslab_shrinker_unregister(shrinker);

    /* Up to the limit, one object at a time. */
    if (uslab_set_limit(0, 4 << 20) != 0) return 5;
    for (;;) {
        void **next = uslab_cache_alloc(packets, 0);
        if (next == NULL) break;
        *next = last;
        last = next;
    }
    uslab_set_limit(0, 0);
    while (last != NULL) {
        void *next = *(void **)last;
        uslab_cache_free(packets, last);
        last = next;
    }
    return uslab_cache_destroy(cache) | uslab_cache_destroy(packets);
}

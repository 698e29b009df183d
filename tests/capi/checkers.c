/* Faults in memory of caches, one for each run, for valgrind and AddressSanitizer:
 * `cargo xtask checkers` compiles it against a library that was built for them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uslab.h>

enum { SIZE = 61 };

static uslab_cache *cache;
static volatile unsigned char sink;

/* Reaches the objects of the run without faults. */
void **kept;

__attribute__((noinline)) static unsigned char *make_here(void)
{
    unsigned char *object = uslab_cache_alloc(cache, 0);
    memset(object, 1, SIZE);
    return object;
}

__attribute__((noinline)) static void give_here(void *object)
{
    uslab_cache_free(cache, object);
    sink = 1;
}

__attribute__((noinline)) static void read_here(const unsigned char *byte)
{
    sink = *byte;
}

__attribute__((noinline)) static void write_here(unsigned char *byte)
{
    *byte = 1;
}

static void construct(void *object)
{
    memset(object, 7, 100);
}

/* Every kind of use that is right: no checker may report any of it. */
static void nothing(void)
{
    uslab_cache_options options = {.type_size = sizeof options, .ctor = construct};
    uslab_cache *constructed = uslab_cache_create("constructed", 100, &options);
    uslab_heap *heap = uslab_heap_create();
    void *many[500];
    unsigned char *bytes;
    int round, i;
    for (round = 0; round < 3; round++) {
        if (!uslab_cache_alloc_bulk(cache, 0, 500, many)) exit(2);
        for (i = 0; i < 500; i++) memset(many[i], i, SIZE);
        uslab_cache_free_bulk(cache, 500, many);
        uslab_cache_shrink(cache);
        for (i = 0; i < 50; i++) {
            bytes = uslab_cache_alloc(constructed, 0);
            if (bytes[99] != 7) exit(3);
            uslab_cache_free(constructed, bytes);
        }
        for (i = 1; i < 60; i++) {
            bytes = uslab_calloc(1, (size_t)i * i * i);
            if (bytes[i * i * i - 1] != 0) exit(4);
            bytes = uslab_realloc(bytes, (size_t)i * 1000);
            bytes[i * 1000 - 1] = 1;
            if (uslab_usable_size(bytes) < (size_t)i * 1000) exit(5);
            uslab_free(bytes);
            memset(uslab_heap_malloc(heap, (size_t)i * 100), 1, (size_t)i * 100);
        }
    }
    uslab_cache_destroy(constructed);
    uslab_heap_destroy(heap);
    /* Memory of malloc that only an object of a cache leads to. */
    kept = uslab_cache_alloc(cache, USLAB_ZERO);
    kept[0] = malloc(1000);
}

int main(int argc, char **argv)
{
    const char *fault = argc == 2 ? argv[1] : "";
    unsigned char *object;
    cache = uslab_cache_create("session", SIZE, NULL);
    if (cache == NULL) return 1;
    if (strcmp(fault, "none") == 0) {
        nothing();
        puts("ok");
        return 0;
    }
    object = make_here();
    if (strcmp(fault, "use-after-free") == 0) {
        give_here(object);
        read_here(object + 3);
    } else if (strcmp(fault, "overflow") == 0) {
        write_here(object + SIZE);
    } else if (strcmp(fault, "underflow") == 0) {
        write_here(object - 1);
    } else if (strcmp(fault, "uninitialised") == 0) {
        object = uslab_cache_alloc(cache, 0);
        if (object[5] == 3) sink = 1;
    } else if (strcmp(fault, "leak") == 0) {
        object = NULL;
    } else if (strcmp(fault, "malloc") == 0) {
        object = uslab_malloc(100);
        uslab_free(object);
        read_here(object);
    } else if (strcmp(fault, "large") == 0) {
        object = uslab_malloc(3 << 20);
        uslab_free(object);
        read_here(object + 100000);
    } else {
        return 1;
    }
    return 0;
}

/* A second thread loads the library, and the first one then makes its background thread start, and
 * ends: the process ends with its last thread nevertheless. */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
#include <uslab.h>

enum { OBJECTS = 400, OBJECT_BYTES = 100000 };

static void *library;

static void *load(void *path)
{
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) (void)fprintf(stderr, "%s\n", dlerror());
    CHECK(library != NULL);
    return NULL;
}

static void *work(void *unused)
{
    /* The library's thread ends before this one. */
    (void)sleep(1);
    CHECK(!ended());
    return unused;
}

/* Through memory, because C does not convert data pointers into function pointers. */
static void look(const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    CHECK(symbol != NULL);
    memcpy(function, &symbol, sizeof symbol);
}

int main(int argc, char **argv)
{
    uslab_cache *(*create)(const char *, size_t, const uslab_cache_options *);
    void *(*alloc)(uslab_cache *, unsigned);
    uslab_cache *cache;
    pthread_t thread;
    int i;
    CHECK(argc == 2);
    CHECK(pthread_create(&thread, NULL, load, argv[1]) == 0 && pthread_join(thread, NULL) == 0);
    look("uslab_cache_create", &create);
    look("uslab_cache_alloc", &alloc);
    cache = create("late", OBJECT_BYTES, NULL);
    CHECK(cache != NULL);
    for (i = 0; i < OBJECTS; i++) CHECK(alloc(cache, 0) != NULL);
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    pthread_exit(NULL);
}

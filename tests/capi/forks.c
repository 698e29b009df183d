/* A threaded program with a shrinker forks repeatedly, while its threads allocate, reclaim and
 * register. Each child does all of that too, and exits. */
#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uslab.h>

enum { THREADS = 3, FORKS = 20, ENTRIES = 4000, MAX_OBJECTS = 100 };

/* Entries of a cache, evicted from the end, under a lock that scan only tries to take. */
struct entries {
    pthread_mutex_t lock;
    uslab_cache *cache;
    void *entry[ENTRIES];
    size_t n;
};

static struct entries kept, empty;
static uslab_heap *heap;
static int stop;
static pthread_mutex_t stop_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t count(void *context, const uslab_shrink_control *control)
{
    struct entries *e = (struct entries *)context;
    size_t n = 0;
    (void)control;
    if (pthread_mutex_trylock(&e->lock) == 0) {
        n = e->n;
        (void)pthread_mutex_unlock(&e->lock);
    }
    return n;
}

static size_t scan(void *context, const uslab_shrink_control *control)
{
    struct entries *e = (struct entries *)context;
    size_t n;
    if (pthread_mutex_trylock(&e->lock) != 0) return USLAB_SHRINK_STOP;
    n = control->nr_to_scan < e->n ? control->nr_to_scan : e->n;
    e->n -= n;
    uslab_cache_free_bulk(e->cache, n, e->entry + e->n);
    (void)pthread_mutex_unlock(&e->lock);
    return n;
}

static uslab_shrinker *watch(struct entries *e)
{
    uslab_shrinker_options options;
    uslab_shrinker *shrinker;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.count = count;
    options.scan = scan;
    options.context = e;
    shrinker = uslab_shrinker_register("entries", &options);
    CHECK(shrinker != NULL);
    return shrinker;
}

static void fill(struct entries *e)
{
    CHECK(pthread_mutex_lock(&e->lock) == 0);
    CHECK(uslab_cache_alloc_bulk(e->cache, USLAB_NORECLAIM, ENTRIES - e->n, e->entry + e->n));
    e->n = ENTRIES;
    CHECK(pthread_mutex_unlock(&e->lock) == 0);
}

/* Uses every kind of function. */
static void churn(void)
{
    void *objects[MAX_OBJECTS];
    uslab_sheaf *sheaf;
    uslab_cache *cache;
    int i;
    for (i = 0; i < MAX_OBJECTS; i++) {
        objects[i] = i % 3 == 0 ? uslab_malloc((size_t)i * 40) : i % 3 == 1 ? uslab_heap_malloc(heap, (size_t)i * 9) : uslab_cache_alloc(kept.cache, 0);
        CHECK(objects[i] != NULL);
        memset(objects[i], i, 8);
    }
    uslab_free_bulk(MAX_OBJECTS, objects);
    cache = uslab_cache_create("short", 64, NULL);
    CHECK(cache != NULL);
    sheaf = uslab_cache_prefill(cache, 0, 40);
    CHECK(sheaf != NULL && (objects[0] = uslab_sheaf_alloc(sheaf, USLAB_ZERO)) != NULL);
    uslab_cache_free(cache, objects[0]);
    uslab_sheaf_return(sheaf);
    CHECK(uslab_cache_destroy(cache) == 0);
}

static int is_over(void)
{
    int over;
    CHECK(pthread_mutex_lock(&stop_lock) == 0);
    over = stop;
    CHECK(pthread_mutex_unlock(&stop_lock) == 0);
    return over;
}

/* Thread 0 reclaims; thread 1 registers shrinkers, and a child inherits those registered at the
 * fork; the other threads allocate. */
static void *work(void *number)
{
    while (!is_over()) {
        churn();
        if ((uintptr_t)number == 0) (void)uslab_reclaim(1 << 20);
        if ((uintptr_t)number == 1) uslab_shrinker_unregister(watch(&empty));
    }
    return NULL;
}

/* The child has a copy of the memory, and the parent's shrinkers, which it may unregister. The
 * forking thread held the lock of the entries, so the child holds it too. */
static void in_child(uslab_shrinker *inherited)
{
    static struct entries own = {PTHREAD_MUTEX_INITIALIZER, NULL, {NULL}, 0};
    uslab_shrinker *shrinker;
    size_t i;
    CHECK(pthread_mutex_unlock(&kept.lock) == 0);
    for (i = 0; i < kept.n; i++) ((char *)kept.entry[i])[0] = 'c';
    churn();
    own.cache = uslab_cache_create("child", 512, NULL);
    CHECK(own.cache != NULL);
    fill(&own);
    shrinker = watch(&own);
    CHECK(uslab_reclaim((size_t)-1) > 0);
    CHECK(own.n == 0 && kept.n == 0);
    fill(&own);
    uslab_shrinker_unregister(inherited);
    fill(&kept);
    CHECK(uslab_reclaim((size_t)-1) > 0);
    CHECK(own.n == 0 && kept.n == ENTRIES);
    uslab_shrinker_unregister(shrinker);
    CHECK(uslab_cache_destroy(own.cache) == 0);
    CHECK(uslab_set_limit(0, 0) == 0 && uslab_watch_pressure(NULL) == 0);
    churn();
}

int main(void)
{
    pthread_t threads[THREADS];
    uslab_shrinker *shrinker;
    uintptr_t t;
    int round;
    CHECK(pthread_mutex_init(&kept.lock, NULL) == 0 && pthread_mutex_init(&empty.lock, NULL) == 0);
    kept.cache = uslab_cache_create("entries", 512, NULL);
    heap = uslab_heap_create();
    CHECK(kept.cache != NULL && heap != NULL);
    shrinker = watch(&kept);
    for (t = 0; t < THREADS; t++) CHECK(pthread_create(&threads[t], NULL, work, (void *)t) == 0);
    for (round = 0; round < FORKS; round++) {
        pid_t child;
        int status;
        fill(&kept);
        CHECK(pthread_mutex_lock(&kept.lock) == 0);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            in_child(shrinker);
            exit(0);
        }
        CHECK(pthread_mutex_unlock(&kept.lock) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
    CHECK(pthread_mutex_lock(&stop_lock) == 0);
    stop = 1;
    CHECK(pthread_mutex_unlock(&stop_lock) == 0);
    for (t = 0; t < THREADS; t++) CHECK(pthread_join(threads[t], NULL) == 0);
    uslab_shrinker_unregister(shrinker);
    uslab_cache_free_bulk(kept.cache, kept.n, kept.entry);
    CHECK(uslab_cache_destroy(kept.cache) == 0);
    uslab_heap_destroy(heap);
    return ended();
}

/*
 * A cache of answers that frees entries under memory pressure. The entries form a list in order of
 * use. A shrinker counts them, and frees from the least recently used end.
 *
 *   cc shrinking_cache.c $(pkg-config --cflags --libs uslab) -pthread && ./a.out
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <uslab.h>

enum { TEXT_BYTES = 500 };

struct answer {
    struct answer *newer, *older;
    unsigned question;
    char text[TEXT_BYTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct answer ends = {&ends, &ends, 0, ""}; /* newer: the oldest entry; older: the newest */
static atomic_size_t answers;
static uslab_cache *cache;

static void unlink_answer(struct answer *a)
{
    a->newer->older = a->older;
    a->older->newer = a->newer;
    answers--;
}

static void link_newest(struct answer *a)
{
    a->newer = &ends;
    a->older = ends.older;
    ends.older->newer = a;
    ends.older = a;
    answers++;
}

/* Copies the answer to a question to `text`, and makes it if the cache has none. Returns false if
 * there is no memory. Without the lock the shrinker may free the answer at any time, on any thread.
 * (A real cache would use a hash table.) */
static bool ask(unsigned question, char text[TEXT_BYTES])
{
    struct answer *a;
    (void)pthread_mutex_lock(&lock);
    for (a = ends.older; a != &ends && a->question != question; a = a->older)
        ;
    if (a != &ends) {
        unlink_answer(a);
    } else {
        /* The shrinker takes the lock that this thread holds: the allocation must not run it. */
        a = uslab_cache_alloc(cache, USLAB_NORECLAIM);
        if (a != NULL) {
            a->question = question;
            (void)snprintf(a->text, sizeof a->text, "the answer to %u", question);
        }
    }
    if (a != NULL) {
        link_newest(a);
        (void)snprintf(text, TEXT_BYTES, "%s", a->text);
    }
    (void)pthread_mutex_unlock(&lock);
    return a != NULL;
}

static size_t count(void *context, const uslab_shrink_control *control)
{
    (void)context;
    (void)control;
    return answers; /* an approximate count is enough */
}

static size_t scan(void *context, const uslab_shrink_control *control)
{
    size_t freed = 0;
    (void)context;
    if (pthread_mutex_trylock(&lock) != 0) return USLAB_SHRINK_STOP;
    while (freed < control->nr_to_scan && ends.newer != &ends) {
        struct answer *oldest = ends.newer;
        unlink_answer(oldest);
        uslab_cache_free(cache, oldest);
        freed++;
    }
    (void)pthread_mutex_unlock(&lock);
    return freed;
}

int main(void)
{
    uslab_shrinker_options options;
    uslab_pressure_options sources;
    uslab_shrinker *shrinker;
    unsigned question;
    size_t given;
    char text[TEXT_BYTES];
    /* This program shows what its own request frees. A system that is short of memory would ask for
     * 2 MiB or more besides, so no source is watched. Other programs leave the sources on. */
    memset(&sources, 0, sizeof sources);
    sources.type_size = sizeof sources;
    sources.systemd = sources.psi = sources.cgroup = USLAB_SOURCE_OFF;
    if (uslab_watch_pressure(&sources) != 0) return 1;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.count = count;
    options.scan = scan;
    options.seeks = 4; /* an entry costs twice the usual */
    cache = uslab_cache_create("answers", sizeof(struct answer), NULL);
    shrinker = uslab_shrinker_register("answers", &options);
    if (cache == NULL || shrinker == NULL) {
        perror("shrinking_cache");
        return 1;
    }
    for (question = 0; question < 5000; question++)
        if (!ask(question, text)) return 1;

    printf("%zu answers\n", (size_t)answers);
    given = uslab_reclaim(1 << 20);
    printf("%zu answers after %zu bytes were given back\n", (size_t)answers, given);
    if (answers >= 5000 || answers == 0 || given < 1 << 20) return 1;
    (void)uslab_reclaim((size_t)-1);
    if (answers != 0) return 1;

    uslab_shrinker_unregister(shrinker);
    if (uslab_cache_destroy(cache) != 0) return 1;
    return puts("ok") < 0;
}

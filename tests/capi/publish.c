/* A program of one thread publishes its figures while it runs, and forks. Parent and child then
 * grow until the library starts its background thread, which ends the publication in each. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>
#include <uslab.h>

enum { OBJECTS = 5000, BLOCKS = 10, BLOCK_BYTES = 3 << 20 };

static uslab_cache *cache;

static void check_figures(uint64_t live)
{
    uslab_cache_stats stats;
    stats.type_size = sizeof stats;
    CHECK(uslab_cache_get_stats(cache, &stats) == 0);
    if (stats.active_objects != live) fprintf(stderr, "%d live objects\n", (int)stats.active_objects);
    CHECK(stats.active_objects == live);
    CHECK(stats.total_objects == stats.active_objects + stats.slab_free + stats.sheaf_free);
}

static void grow(void)
{
    for (int i = 0; i < BLOCKS; i++) {
        void *block = uslab_malloc(BLOCK_BYTES);
        CHECK(block != NULL);
        memset(block, 1, BLOCK_BYTES);
    }
    /* The background thread looks at the publication twice a second, twice. */
    (void)sleep(3);
}

int main(void)
{
    pid_t child;
    int status;
    cache = uslab_cache_create("published", 1000, NULL);
    CHECK(cache != NULL && uslab_cache_alloc(cache, 0) != NULL);
    CHECK(uslab_stats_publish() == 0);
    for (int i = 1; i < OBJECTS; i++) CHECK(uslab_cache_alloc(cache, 0) != NULL);
    check_figures(OBJECTS);

    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        check_figures(OBJECTS);
        CHECK(uslab_cache_alloc(cache, 0) != NULL);
        grow();
        check_figures(OBJECTS + 1);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    check_figures(OBJECTS);
    grow();
    check_figures(OBJECTS);
    return ended();
}

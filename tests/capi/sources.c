/* Pressure sources, refaults, visits of all caches, and structures of other versions for each: the
 * guarantees of the header. */
#include "check.h"

#include <stdint.h>
#include <uslab.h>

static size_t none(void *context, const uslab_shrink_control *control)
{
    (void)context;
    (void)control;
    return 0;
}

static uslab_pressure_options off(void)
{
    uslab_pressure_options options;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.systemd = options.psi = options.cgroup = USLAB_SOURCE_OFF;
    return options;
}

/* The number of occurrences of `part` in `text`. */
static int times(const char *text, const char *part)
{
    int n = 0;
    while ((text = strstr(text, part)) != NULL) n++, text++;
    return n;
}

static void sources(int reaper)
{
    uslab_pressure_options options = off();
    char *text = uslab_pressure_text(&options), *other;
    CHECK(text != NULL && times(text, "\n") == 3 && times(text, "not watched: ") == 3);
    CHECK(strncmp(text, "pressure: systemd: ", 19) == 0);
    CHECK(times(text, "\npressure: psi: ") == 1 && times(text, "\npressure: cgroup: ") == 1);
    uslab_free(text);

    /* The default, and a null pointer, turn all sources on. */
    options.systemd = options.cgroup = USLAB_SOURCE_AUTO;
    options.psi = USLAB_SOURCE_ON;
    text = uslab_pressure_text(&options);
    other = uslab_pressure_text(NULL);
    CHECK(text != NULL && other != NULL && times(text, "pressure: ") == 3);
    CHECK(strcmp(text, other) == 0);
    (void)fputs(text, stderr);
    uslab_free(text);
    uslab_free(other);

    /* Each source alone: the others report that they are not chosen, as all do when all are off. */
    options = off();
    options.cgroup = USLAB_SOURCE_ON;
    text = uslab_pressure_text(&options);
    CHECK(text != NULL && times(text, "pressure: ") == 3);
    CHECK(strstr(text, "systemd: watching") == NULL && strstr(text, "psi: watching") == NULL);
    uslab_free(text);

    CHECK(!uslab_has_reaper());
    options = off();
    errno = EDOM;
    CHECK(uslab_watch_pressure(&options) == 0 && errno == EDOM);
    CHECK(uslab_has_reaper() == reaper);
    CHECK(uslab_watch_pressure(NULL) == 0);
    options.log = 1;
    CHECK(uslab_watch_pressure(&options) == 0);
    CHECK(uslab_has_reaper() == reaper);
}

static void wrong_sources(void)
{
    struct newer {
        uslab_pressure_options known;
        unsigned unknown[2];
    } newer;
    struct older {
        size_t type_size;
        unsigned systemd, psi;
    } older = {offsetof(struct older, psi), USLAB_SOURCE_OFF, 77};
    uslab_pressure_options options = off();
    unsigned *each[4];
    char *text;
    int i;
    each[0] = &options.systemd;
    each[1] = &options.psi;
    each[2] = &options.cgroup;
    each[3] = &options.log;
    for (i = 0; i < 4; i++) {
        *each[i] = 3;
        errno = 0;
        CHECK(uslab_watch_pressure(&options) == EINVAL && errno == EINVAL);
        CHECK_FAILS(uslab_pressure_text(&options), EINVAL);
        options = off();
    }
    options.type_size = 0;
    CHECK(uslab_watch_pressure(&options) == EINVAL);
    CHECK(uslab_watch_pressure((const uslab_pressure_options *)(const void *)((const char *)&options + 1)) == EINVAL);
    memset(&newer, 0, sizeof newer);
    newer.known = off();
    newer.known.type_size = sizeof newer;
    CHECK(uslab_watch_pressure(&newer.known) == 0);
    newer.unknown[1] = 1;
    CHECK(uslab_watch_pressure(&newer.known) == EINVAL);
    /* Fields that the older structure lacks get their defaults, regardless of the memory behind
     * it. */
    text = uslab_pressure_text((const uslab_pressure_options *)(const void *)&older);
    CHECK(text != NULL && strstr(text, "systemd: not watched: ") != NULL);
    uslab_free(text);
}

struct seen {
    int all, mine, stop_at;
    uint64_t active;
};

static int see(void *context, const char *name, const uslab_cache_stats *stats)
{
    struct seen *seen = (struct seen *)context;
    CHECK(stats->type_size >= sizeof *stats && name != NULL && strlen(name) <= 47);
    CHECK(stats->total_objects == stats->slabs * stats->objects_per_slab);
    /* No lock is held: caches can be created and destroyed here. */
    if (seen->all++ == 0) {
        uslab_cache *cache = uslab_cache_create("within", 100, NULL);
        CHECK(cache != NULL && uslab_cache_destroy(cache) == 0);
    }
    if (strcmp(name, "visited") == 0) {
        seen->mine++;
        seen->active += stats->active_objects;
    }
    return seen->all == seen->stop_at ? -7 : 0;
}

static void visits(void)
{
    uslab_cache *cache[2];
    void *objects[2][30];
    struct seen seen;
    int i;
    for (i = 0; i < 2; i++) {
        cache[i] = uslab_cache_create("visited", 50, NULL);
        CHECK(cache[i] != NULL && uslab_cache_alloc_bulk(cache[i], 0, 30, objects[i]));
    }
    memset(&seen, 0, sizeof seen);
    CHECK(uslab_visit_caches(see, &seen) == 0);
    CHECK(seen.mine == 2 && seen.active == 60 && seen.all > 2);
    memset(&seen, 0, sizeof seen);
    seen.stop_at = 2;
    CHECK(uslab_visit_caches(see, &seen) == -7 && seen.all == 2);
    CHECK(uslab_visit_caches(NULL, &seen) == EINVAL);
    for (i = 0; i < 2; i++) {
        uslab_cache_free_bulk(cache[i], 30, objects[i]);
        CHECK(uslab_cache_destroy(cache[i]) == 0);
    }
    memset(&seen, 0, sizeof seen);
    CHECK(uslab_visit_caches(see, &seen) == 0 && seen.mine == 0);
}

static void refaults(void)
{
    struct newer {
        uslab_shrinker_options known;
        void *unknown;
    } newer;
    uslab_shrinker *shrinker;
    memset(&newer, 0, sizeof newer);
    newer.known.type_size = sizeof newer;
    newer.known.count = newer.known.scan = none;
    shrinker = uslab_shrinker_register("refaults", &newer.known);
    CHECK(shrinker != NULL);
    CHECK(uslab_shrinker_note_refaults(shrinker, 100) == 0);
    CHECK(uslab_shrinker_note_refaults(shrinker, UINT64_MAX) == 0);
    CHECK(uslab_shrinker_note_refaults(NULL, 1) == EINVAL);
    (void)uslab_reclaim(1);
    uslab_shrinker_unregister(shrinker);
    newer.unknown = &newer;
    CHECK_FAILS(uslab_shrinker_register("newer", &newer.known), EINVAL);
    /* A structure that ends before the second function is refused. */
    newer.known.type_size = offsetof(uslab_shrinker_options, scan);
    CHECK_FAILS(uslab_shrinker_register("too old", &newer.known), EINVAL);
    /* One without seeks and batch gets the defaults. */
    newer.known.type_size = offsetof(uslab_shrinker_options, seeks);
    shrinker = uslab_shrinker_register("old", &newer.known);
    CHECK(shrinker != NULL);
    uslab_shrinker_unregister(shrinker);
}

static void usage_of_other_versions(void)
{
    struct newer {
        uslab_usage known;
        uint64_t unknown;
    } newer;
    struct older {
        size_t type_size;
        uint64_t used_bytes, behind;
    } older = {offsetof(struct older, behind), 0, 77};
    void *object = uslab_malloc(100);
    memset(&newer, 0xff, sizeof newer);
    newer.known.type_size = sizeof newer;
    CHECK(uslab_get_usage(&newer.known) == 0);
    CHECK(newer.unknown == 0 && newer.known.type_size == sizeof newer && newer.known.allocated_bytes >= 100);
    CHECK(uslab_get_usage((uslab_usage *)(void *)&older) == 0);
    CHECK(older.used_bytes > 0 && older.behind == 77);
    older.type_size = sizeof(size_t) - 1;
    CHECK(uslab_get_usage((uslab_usage *)(void *)&older) == EINVAL);
    uslab_free(object);
}

/* With an argument the background thread is allowed. */
int main(int argc, char **argv)
{
    (void)argv;
    sources(argc > 1);
    wrong_sources();
    visits();
    refaults();
    usage_of_other_versions();
    return ended();
}

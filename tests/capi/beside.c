/* With libuslab_malloc.so preloaded: each library serves its own calls, and the process's snapshot
 * has malloc's figures. The same holds in a fork child. */
#include "check.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uslab.h>

enum { LARGE = 100, LARGE_BYTES = 2 << 20 };

/* Whether `text` is in the file: "DIRECTORY/PID". */
static int snapshot_has(const char *text)
{
    static char block[1 << 20];
    const char *directory = getenv("USLAB_SNAPSHOT");
    char path[4096];
    size_t n = strlen(text), used, i;
    int file, found = 0;
    CHECK(directory != NULL);
    (void)snprintf(path, sizeof path, "%s/%ld", directory, (long)getpid());
    file = open(path, O_RDONLY);
    CHECK(file >= 0);
    for (used = 0; used < sizeof block;) {
        ssize_t got = read(file, block + used, sizeof block - used);
        CHECK(got >= 0);
        if (got == 0) break;
        used += (size_t)got;
    }
    CHECK(close(file) == 0);
    for (i = 0; !found && i + n <= used; i++) found = memcmp(block + i, text, n) == 0;
    return found;
}

/* The figures in the file are malloc's; this library's own are available through its functions. */
static void whose(uslab_cache *cache)
{
    char *json = uslab_stats_json();
    CHECK(json != NULL && strstr(json, "\"in the library\"") != NULL);
    uslab_free(json);
    CHECK(!snapshot_has("in the library"));
    CHECK(snapshot_has("malloc-"));
    uslab_cache_free(cache, uslab_cache_alloc(cache, USLAB_ZERO));
}

int main(void)
{
    void *large[LARGE], *theirs, *ours;
    uslab_cache *cache = uslab_cache_create("in the library", 80, NULL);
    int i, status;
    pid_t child;
    CHECK(cache != NULL);
    /* Neither library knows the other's memory. */
    theirs = malloc(100);
    ours = uslab_malloc(100);
    CHECK(theirs != NULL && ours != NULL);
    CHECK(uslab_usable_size(ours) >= 100 && uslab_usable_size(theirs) == 0);
    uslab_free(ours);
    free(theirs);
    for (i = 0; i < LARGE; i++) {
        large[i] = malloc(LARGE_BYTES);
        CHECK(large[i] != NULL);
        ((unsigned char *)large[i])[LARGE_BYTES - 1] = i;
    }
    whose(cache);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        whose(cache);
        for (i = 0; i < LARGE; i++) free(large[i]);
        CHECK(uslab_cache_destroy(cache) == 0);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    whose(cache);
    /* The large objects stay, so that a later reader of the figures finds them. */
    for (i = 0; i < LARGE; i++) CHECK(((unsigned char *)large[i])[LARGE_BYTES - 1] == i);
    CHECK(uslab_cache_destroy(cache) == 0);
    return ended();
}

/*
 * A library whose constructor runs before the allocator's, and whose destructor runs after the
 * allocator's.
 *
 * It depends on nothing but the C library, so the dynamic loader runs its constructor before that
 * of a preloaded library and its destructor after it. It allocates in both, and registers fork
 * handlers that allocate. Built a second time, it is also the plug-in that a check loads and
 * unloads at run time.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The program's counter; null where there is none. */
extern void note(int which) __attribute__((weak));
enum { COUNT_LATE = 2, COUNT_ATFORK = 4 };

static char *kept;
static char *forked;
int early_fork_handlers_on;

static void before_fork(void) {
    if (!early_fork_handlers_on) return;
    forked = malloc(300);
    if (forked) memset(forked, 1, 300), note(COUNT_ATFORK);
}

static void after_fork(void) {
    if (!early_fork_handlers_on) return;
    free(forked);
    forked = malloc(5000);
    if (forked) memset(forked, 2, 5000), note(COUNT_ATFORK);
    free(forked);
}

__attribute__((constructor)) static void start(void) {
    kept = malloc(1000);
    memset(kept, 0x5a, 1000);
    free(malloc(1 << 20));
#ifndef PLUGIN
    pthread_atfork(before_fork, after_fork, after_fork);
#endif
}

__attribute__((destructor)) static void end(void) {
    int sound = kept != NULL;
    for (int i = 0; i < 1000; i++) sound &= kept[i] == 0x5a;
    kept = realloc(kept, 100000);
    free(kept);
    void *last = calloc(1, 4000);
    if (sound && last && note) note(COUNT_LATE);
    free(last);
}

/* Called by the program: returns a block that outlives the plug-in. */
char *early_block(size_t n) {
    (void)before_fork, (void)after_fork;
    return memset(malloc(n), 0x77, n);
}

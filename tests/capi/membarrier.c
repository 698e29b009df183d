/* A seccomp filter refuses membarrier when the library has long been set up, as those of sandboxes
   do: they come last.

   Workers own stamped objects of one cache. The main thread drains it by every function of the
   interface that does, makes and destroys caches and heaps, and forks. Nothing may have two owners,
   and a cache that no thread uses must still be destroyed. In locked mode there is nothing to
   refuse. */
#define _GNU_SOURCE
#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uslab.h>

enum { OBJECTS = 24, KEPT = 200, WORKERS = 3, BYTES = 64, RUN_MS = 1000 };

struct object {
    uintptr_t owner, own_address;
    char rest[BYTES - 2 * sizeof(uintptr_t)];
};

static uslab_cache *shared;
static int stop;

/* Refuses membarrier to all threads that there are, and to those that come. */
static void refuse(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
    CHECK(syscall(SYS_membarrier, 0, 0, 0) == -1);
}

static long now_ms(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void take(uslab_cache *cache, struct object **objects, int n, uintptr_t owner)
{
    for (int i = 0; i < n; i++) {
        objects[i] = uslab_cache_alloc(cache, 0);
        CHECK(objects[i] != NULL);
        objects[i]->owner = owner;
        objects[i]->own_address = (uintptr_t)objects[i];
    }
}

static void look(struct object **objects, int n, uintptr_t owner)
{
    for (int i = 0; i < n; i++)
        CHECK(objects[i]->owner == owner && objects[i]->own_address == (uintptr_t)objects[i]);
}

static void give_back(uslab_cache *cache, struct object **objects, int n, uintptr_t owner)
{
    look(objects, n, owner);
    for (int i = 0; i < n; i++) {
        objects[i]->owner = 0;
        uslab_cache_free(cache, objects[i]);
    }
}

static void *work(void *owner)
{
    struct object *objects[OBJECTS];
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        take(shared, objects, OBJECTS, (uintptr_t)owner);
        give_back(shared, objects, OBJECTS, (uintptr_t)owner);
        uslab_free(uslab_malloc(BYTES));
    }
    return NULL;
}

/* What a thread used, and no thread uses any more, is emptied and goes. */
static void come_and_go(void)
{
    struct object *objects[2 * KEPT];
    uslab_cache *cache = uslab_cache_create("passing", BYTES, NULL);
    uslab_heap *heap = uslab_heap_create();
    uslab_sheaf *sheaf = uslab_cache_prefill(shared, 0, 50);
    CHECK(cache != NULL && heap != NULL && sheaf != NULL);
    take(cache, objects, 2 * KEPT, 9);
    CHECK(uslab_heap_malloc(heap, 1000) != NULL);
    CHECK(uslab_sheaf_alloc(sheaf, USLAB_ZERO) != NULL);
    uslab_sheaf_return(sheaf);
    uslab_heap_destroy(heap);
    give_back(cache, objects, 2 * KEPT, 9);
    (void)uslab_cache_shrink(cache);
    CHECK(uslab_cache_destroy(cache) == 0);
}

/* The child looks at what the forking thread owned, and allocates beside it. */
static void fork_and_look(struct object **kept)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct object *objects[500];
        for (int round = 0; round < 3; round++) {
            take(shared, objects, 500, 8);
            look(kept, KEPT, 7);
            give_back(shared, objects, 500, 8);
            (void)uslab_cache_shrink(shared);
            come_and_go();
        }
        give_back(shared, kept, KEPT, 7);
        (void)uslab_trim(0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
}

int main(void)
{
    pthread_t threads[WORKERS];
    struct object *kept[KEPT];
    long end;
    shared = uslab_cache_create("shared", BYTES, NULL);
    CHECK(shared != NULL);
    for (intptr_t i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    take(shared, kept, KEPT, 7);
    refuse();
    end = now_ms() + RUN_MS;
    for (long round = 1; now_ms() < end; round++) {
        (void)uslab_cache_shrink(shared);
        (void)uslab_trim(0);
        (void)uslab_reclaim(1 << 16);
        CHECK(uslab_set_limit(0, round % 2 ? 1UL << 30 : 0) == 0);
        if (round % 8 == 0)
            come_and_go();
        if (round % 64 == 0)
            fork_and_look(kept);
        look(kept, KEPT, 7);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < WORKERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    give_back(shared, kept, KEPT, 7);
    return ended();
}

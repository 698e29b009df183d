/* A threaded process loads the library late, uses it from threads that existed before, forks, and
 * closes it, several times. */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uslab.h>

enum { THREADS = 4, ROUNDS = 5 };

static pthread_barrier_t loaded, used;
static void *(*my_alloc)(uslab_cache *, unsigned);
static void (*my_free)(uslab_cache *, void *);
static uslab_cache *cache;

static void churn(void)
{
    void *objects[200];
    int i, j;
    for (i = 0; i < 500; i++) {
        for (j = 0; j < 200; j++) CHECK((objects[j] = my_alloc(cache, 0)) != NULL);
        for (j = 0; j < 200; j++) memset(objects[j], j, 64);
        for (j = 0; j < 200; j++) my_free(cache, objects[j]);
    }
}

static void *work(void *unused)
{
    int round;
    for (round = 0; round < ROUNDS; round++) {
        (void)pthread_barrier_wait(&loaded);
        churn();
        (void)pthread_barrier_wait(&used);
    }
    return unused;
}

/* Through memory, because C does not convert data pointers into function pointers. */
static void look(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    CHECK(symbol != NULL);
    memcpy(function, &symbol, sizeof symbol);
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int i, round;
    CHECK(argc == 2);
    CHECK(pthread_barrier_init(&loaded, NULL, THREADS + 1) == 0 && pthread_barrier_init(&used, NULL, THREADS + 1) == 0);
    for (i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    for (round = 0; round < ROUNDS; round++) {
        uslab_cache *(*create)(const char *, size_t, const uslab_cache_options *);
        int (*destroy)(uslab_cache *);
        pid_t child;
        int status;
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) (void)fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL);
        look(library, "uslab_cache_create", &create);
        look(library, "uslab_cache_destroy", &destroy);
        look(library, "uslab_cache_alloc", &my_alloc);
        look(library, "uslab_cache_free", &my_free);
        cache = create("late", 64, NULL);
        CHECK(cache != NULL);
        (void)pthread_barrier_wait(&loaded);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            churn();
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        (void)pthread_barrier_wait(&used);
        CHECK(destroy(cache) == 0);
        CHECK(dlclose(library) == 0);
    }
    for (i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    return ended();
}

/* The library at the start and the end of programs: in constructors, in signal handlers that
 * interrupt none of its functions, in destructors of threads, in atexit, in destructors of the
 * program, and while other threads still run. */
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>
#include <uslab.h>

static uslab_cache *cache;
static void *before_main, *left;
static pthread_key_t key;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int thread_destructors;
static volatile sig_atomic_t handled;

static void use(size_t n)
{
    void *objects[50];
    size_t i;
    CHECK(uslab_cache_alloc_bulk(cache, USLAB_ZERO, 50, objects));
    for (i = 0; i < 50; i++) memset(objects[i], 1, 32);
    uslab_cache_free_bulk(cache, 50, objects);
    objects[0] = uslab_malloc(n);
    CHECK(objects[0] != NULL);
    uslab_free(objects[0]);
}

/* In a fully static program this may run before or after the library's own constructor. */
__attribute__((constructor)) static void begin(void)
{
    before_main = uslab_malloc(1000);
    CHECK(before_main != NULL);
    memset(before_main, 0x77, 1000);
}

/* The last code of the program, after the atexit handlers: uses objects from before. */
__attribute__((destructor)) static void end(void)
{
    char *json;
    use(3000);
    uslab_free(left);
    uslab_free(before_main);
    json = uslab_stats_json();
    CHECK(json != NULL && strstr(json, "\"endings\"") != NULL);
    uslab_free(json);
    (void)uslab_reclaim((size_t)-1);
    CHECK(uslab_cache_destroy(cache) == 0);
    /* A failure appears in the exit status, because nothing may be printed after the last line. */
    if (handled != 3) _exit(9);
}

static void at_exit(void)
{
    uslab_sheaf *sheaf = uslab_cache_prefill(cache, 0, 10);
    CHECK(sheaf != NULL);
    uslab_sheaf_return(sheaf);
    use(200);
    left = uslab_malloc(70000);
    CHECK(left != NULL);
}

/* The thread's value is an object, which its destructor frees; the destructor allocates too. */
static void thread_ends(void *object)
{
    use(100);
    uslab_cache_free(cache, object);
    CHECK(pthread_mutex_lock(&lock) == 0);
    thread_destructors++;
    CHECK(pthread_mutex_unlock(&lock) == 0);
}

static void *thread(void *unused)
{
    void *object = uslab_cache_alloc(cache, 0);
    CHECK(object != NULL && pthread_setspecific(key, object) == 0);
    use(64);
    return unused;
}

/* Delivered only while the program waits for it, so it never interrupts a function of the
 * library. */
static void handle(int number)
{
    int error = errno;
    (void)number;
    use(500);
    handled++;
    errno = error;
}

static void signals(void)
{
    struct sigaction action;
    sigset_t blocked, waiting;
    int i;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    CHECK(sigemptyset(&action.sa_mask) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(sigemptyset(&blocked) == 0 && sigaddset(&blocked, SIGUSR1) == 0);
    CHECK(pthread_sigmask(SIG_BLOCK, &blocked, &waiting) == 0);
    CHECK(sigdelset(&waiting, SIGUSR1) == 0);
    for (i = 0; i < 3; i++) {
        use(10);
        CHECK(kill(getpid(), SIGUSR1) == 0);
        CHECK(sigsuspend(&waiting) == -1 && handled == i + 1);
    }
}

/* Runs while the process exits. */
static void *forever(void *unused)
{
    for (;;) uslab_free(uslab_malloc(40));
    return unused;
}

int main(void)
{
    pthread_t threads[4];
    int i;
    CHECK(((unsigned char *)before_main)[999] == 0x77 && uslab_usable_size(before_main) >= 1000);
    cache = uslab_cache_create("endings", 32, NULL);
    CHECK(cache != NULL);
    CHECK(pthread_key_create(&key, thread_ends) == 0);
    signals();
    for (i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, thread, NULL) == 0);
    for (i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(thread_destructors == 4);
    CHECK(atexit(at_exit) == 0);
    CHECK(pthread_create(&threads[0], NULL, forever, NULL) == 0);
    CHECK(pthread_detach(threads[0]) == 0);
    return ended();
}

/* A server's day in ten seconds: it loads its data, sessions come and go, all end, it idles.
 *
 * Two threads first make 20 MiB of objects of 16 to 1024 bytes that stay. Then they make 400 MiB
 * more, replace random ones of these for three seconds, free them all in random order, and sleep.
 * With an argument they leave so many per cent of the sessions' objects, at random. The program is
 * the same under every allocator; only LD_PRELOAD differs. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 2, STAY = 20 * 1024 * 1024 / 520 / THREADS, OBJECTS = 20 * STAY };
static int kept_percent;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static uint32_t below(uint64_t *state, uint32_t bound) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % bound);
}

static char *object(uint64_t *state) {
    size_t bytes = 16 + below(state, 1009);
    char *new = malloc(bytes);
    if (!new) _exit(1);
    memset(new, 1, bytes);
    return new;
}

static void *work(void *argument) {
    uint64_t state = 1 + (uintptr_t)argument;
    char **objects = malloc(OBJECTS * sizeof *objects);
    if (!objects) _exit(1);
    for (int i = 0; i < STAY; i++) object(&state);
    for (int i = 0; i < OBJECTS; i++) objects[i] = object(&state);
    for (double end = now_s() + 3; now_s() < end;)
        for (int n = 0; n < 1000; n++) {
            char **place = &objects[below(&state, OBJECTS)];
            free(*place);
            *place = object(&state);
        }
    for (int i = OBJECTS - 1; i > 0; i--) {
        int j = (int)below(&state, (uint32_t)i + 1);
        char *other = objects[i];
        objects[i] = objects[j];
        objects[j] = other;
    }
    for (int i = OBJECTS * kept_percent / 100; i < OBJECTS; i++) free(objects[i]);
    return objects;
}

int main(int argc, char **argv) {
    if (argc > 1) kept_percent = atoi(argv[1]);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i)) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (;;) pause();
}

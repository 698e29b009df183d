/* Samples in a busy program: threads, forks, every function of the family; `guard_samples SECONDS`
 * runs until ten objects were guarded, or so long.
 *
 * A guarded object is one whose usable size is exactly the odd size that was asked for. The program
 * checks each object's bytes, counts the guarded ones, and ends with the line `ok`. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include "check.h"

#define THREADS 4
#define LIVE 200

static void (*free_by_size)(void *, size_t);
static unsigned long sampled;
static time_t end;

struct object {
    unsigned char *start;
    size_t size;
    unsigned char byte;
};

static int is_guarded(void *object, size_t size) { return size % 2 && malloc_usable_size(object) == size; }

static void fill(struct object *object, size_t size, unsigned char byte)
{
    CHECK(object->start != NULL && malloc_usable_size(object->start) >= size);
    CHECK((uintptr_t)object->start % 16 == 0);
    object->size = size;
    object->byte = byte;
    memset(object->start, byte, size);
    if (is_guarded(object->start, size))
        __atomic_fetch_add(&sampled, 1, __ATOMIC_RELAXED);
}

static void check(struct object *object)
{
    for (size_t at = 0; at < object->size; at++)
        CHECK(object->start[at] == object->byte);
}

static void *works(void *argument)
{
    struct object objects[LIVE] = {{0}};
    uint64_t random = (uintptr_t)argument * 7919 + 1;
    for (unsigned long round = 0;
         (time(NULL) < end && __atomic_load_n(&sampled, __ATOMIC_RELAXED) < 10) || round < 5000; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        struct object *object = &objects[random >> 33 & 0x7f];
        size_t size = (random >> 40) % (round % 50 ? 1500 : 90000) | 1;
        unsigned char byte = random >> 20;
        if (object->start) {
            check(object);
            switch (random >> 60 & 3) {
            case 0:
                object->start = realloc(object->start, size);
                CHECK(object->start != NULL);
                for (size_t at = 0; at < object->size && at < size; at++)
                    CHECK(object->start[at] == object->byte);
                fill(object, size, byte);
                continue;
            case 1:
                free_by_size(object->start, object->size);
                break;
            default:
                free(object->start);
            }
            object->start = NULL;
        } else if (random >> 60 & 1) {
            object->start = malloc(size);
            fill(object, size, byte);
        } else {
            object->start = calloc(1, size);
            CHECK(object->start != NULL);
            object->size = size;
            object->byte = 0;
            check(object);
            fill(object, size, byte);
        }
    }
    for (int at = 0; at < LIVE; at++)
        free(objects[at].start);
    return NULL;
}

static void work(void)
{
    pthread_t threads[THREADS];
    for (uintptr_t n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, works, (void *)n) == 0);
    for (int n = 0; n < 20; n++) {
        pid_t child = fork();
        int status = 1;
        if (child == 0) {
            end = 0;
            works((void *)(uintptr_t)n);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    *(void **)&free_by_size = dlsym(RTLD_DEFAULT, "free_sized");
    CHECK(free_by_size != NULL);
    end = time(NULL) + atoi(argv[1]);
    work();
    printf("%s\nok\n", __atomic_load_n(&sampled, __ATOMIC_RELAXED) >= 10 ? "sampled" : "hardly sampled");
    return 0;
}

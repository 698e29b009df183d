/*
 * A host that loads a plug-in, calls it, unloads it and continues to compute:
 * `host PLUGIN [OBJECT]`.
 *
 * The plug-in's calls leave the address of a sequence in the thread's rseq area, and the kernel
 * reads it when the thread is next preempted. So the object with the sequence (the plug-in, or
 * OBJECT) must stay mapped, even if the thread that used it now sleeps.
 */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static int (*plug)(void);
static int fds[2][2];

/* Uses the plug-in, and sleeps in the kernel while the host unloads it. */
static void *sleeper(void *argument)
{
    char byte = 0;
    CHECK(plug() == 1);
    CHECK(write(fds[0][1], &byte, 1) == 1);
    CHECK(read(fds[1][0], &byte, 1) == 1);
    return argument;
}

/* The number of lines in the process's map that name the file. */
static int mappings_of(const char *path)
{
    char line[4200];
    int n = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps)) n += strstr(line, path) != NULL;
    CHECK(fclose(maps) == 0);
    return n;
}

static double seconds(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    char byte = 0;
    volatile unsigned long turns = 0;
    double end;
    const char *object = argv[argc - 1];
    void *library = argc >= 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    CHECK(library != NULL);
    *(void **)&plug = dlsym(library, "plug");
    CHECK(plug != NULL && plug() == 1);
    CHECK(pipe(fds[0]) == 0 && pipe(fds[1]) == 0);
    CHECK(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    CHECK(read(fds[0][0], &byte, 1) == 1);
    CHECK(plug() == 1);

    CHECK(dlclose(library) == 0);
    CHECK(mappings_of(object) > 0);
    CHECK(write(fds[1][1], &byte, 1) == 1);
    CHECK(pthread_join(thread, NULL) == 0);
    /* Long enough to be preempted, at least by the timer. */
    for (end = seconds() + 0.3; seconds() < end;) turns++;

    /* After another load it works again. */
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    *(void **)&plug = dlsym(library, "plug");
    CHECK(plug() == 1);
    CHECK(dlclose(library) == 0);
    puts("ok");
    return 0;
}

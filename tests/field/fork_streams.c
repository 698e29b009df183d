/*
 * Forks beside threads that read and flush streams: `fork_streams [SECONDS]`.
 *
 * One thread holds a stream and allocates (getline), one holds the list of streams and waits for
 * the first (fflush(NULL)), one forks. The C library's fork waits for the list, after the handlers.
 * The alarm ends a fork that hangs.
 */
#define _GNU_SOURCE
#include "process.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

enum { LINES = 200, LIMIT_S = 20 };

static FILE *shared;
static char text[1 << 16];

static void *reads(void *argument) {
    for (;;) {
        char *line = NULL;
        size_t bytes = 0;
        rewind(shared);
        while (getline(&line, &bytes, shared) > 0) {
            free(line);
            line = NULL;
            bytes = 0;
        }
        free(line);
    }
    return argument;
}

static void *flushes(void *argument) {
    for (;;) fflush(NULL);
    return argument;
}

/* Opens and closes streams, which changes the list. */
static void *opens(void *argument) {
    for (;;) {
        char *memory = NULL;
        size_t bytes = 0;
        FILE *stream = open_memstream(&memory, &bytes);
        CHECK(stream != NULL);
        fputs("text", stream);
        fclose(stream);
        free(memory);
    }
    return argument;
}

/* The child has no other thread, and the list's lock must be free. */
static void use_streams(void) {
    FILE *file = fopen("/dev/null", "w");
    CHECK(file != NULL);
    fputs("text", file);
    fflush(NULL);
    fclose(file);
}

int main(int argc, char **argv) {
    int seconds = argc > 1 ? atoi(argv[1]) : 3;
    /* A process without threads, in which the C library does not lock the list. */
    pid_t child = fork();
    if (child == 0) {
        use_streams();
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    use_streams();

    shared = tmpfile();
    CHECK(shared != NULL);
    memset(text, 'a', sizeof text);
    for (size_t i = 0; i < LINES; i++) {
        fwrite(text, 1, 500 + i * 200, shared);
        fputc('\n', shared);
    }
    fflush(shared);
    void *(*const bodies[])(void *) = {reads, flushes, opens};
    for (size_t i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, bodies[i], NULL) == 0);
    }
    long forks = 0;
    for (time_t end = time(NULL) + seconds; time(NULL) < end; forks++) {
        alarm(LIMIT_S);
        child = fork();
        if (child == 0) {
            use_streams();
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    /* Not dprintf, whose stream `flushes` may write a second time. */
    int bytes = snprintf(text, sizeof text, "%ld forks\nok\n", forks);
    CHECK(write(1, text, (size_t)bytes) == bytes);
    _exit(0);
}

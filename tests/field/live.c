/* A program that another process asks for something. It reads commands from standard input, and
 * answers each with a line. With the argument "small" it uses little memory, and a little all the
 * time, and reads none.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 64, OLD = 300000, THREADS = 3 };
static void *old[OLD];
static int used_old;
static atomic_int runs;
static pthread_t threads[THREADS];

__attribute__((noinline)) void *allocates(void) {
    void *volatile memory = malloc(SIZE);
    if (!memory) exit(1);
    return memory;
}

__attribute__((noinline)) void frees(void *memory) {
    free(memory);
    __asm__ volatile("");
}

/* A second free, with another free between. */
__attribute__((noinline)) void misuses(void) {
    void *a = allocates(), *b = allocates();
    frees(a);
    frees(b);
    frees(a);
    __asm__ volatile("");
}

static void *churns(void *number) {
    unsigned long mark = (unsigned long)number;
    for (int round = 0; atomic_load(&runs); round++) {
        unsigned long *mine[200];
        int count = round * 37 % 200 + 1;
        for (int i = 0; i < count; i++) *(mine[i] = allocates()) = mark;
        for (int i = 0; i < count; i++) {
            if (*mine[i] != mark) abort();
            frees(mine[i]);
        }
    }
    return NULL;
}

static void forks(void) {
    pid_t child = fork();
    if (child < 0) exit(1);
    if (child == 0) {
        misuses();
        _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status) exit(1);
}

static void obeys(const char *command) {
    if (!strcmp(command, "old")) {
        for (int i = 0; i < 1000; i++) frees(old[--used_old]);
    } else if (!strcmp(command, "misuse")) {
        misuses();
    } else if (!strcmp(command, "fork")) {
        forks();
    } else if (!strcmp(command, "start")) {
        atomic_store(&runs, 1);
        for (long i = 0; i < THREADS; i++) {
            if (pthread_create(&threads[i], NULL, churns, (void *)(i + 1))) exit(1);
        }
    } else if (!strcmp(command, "stop")) {
        atomic_store(&runs, 0);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    } else {
        exit(1);
    }
}

static void say(const char *line) {
    if (write(1, line, strlen(line)) < 0) exit(1);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "small")) {
        say("ready\n");
        for (;;) {
            for (int i = 0; i < 200; i++) old[i] = allocates();
            for (int i = 0; i < 200; i++) frees(old[i]);
            usleep(2000);
        }
    }
    while (used_old < OLD) old[used_old++] = allocates();
    say("ready\n");
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        obeys(line);
        say("done\n");
    }
    return 0;
}

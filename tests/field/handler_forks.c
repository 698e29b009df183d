/*
 * A program of one thread forks in a signal handler, which interrupts the allocator where it may
 * hold locks. Handlers of crashes do so, to start a debugger. The child allocates on when the
 * handler returns, as the parent does.
 *
 *   handler_forks FORKS KEPT_MIB    so many forks, beside a heap of that size
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "check.h"

enum { OBJECTS = 4000, ROUNDS_OF_A_CHILD = 3 };
static volatile sig_atomic_t forks;
static volatile sig_atomic_t is_child;

static void fork_here(int signal) {
    (void)signal;
    int before = errno;
    if (is_child) return;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        is_child = 1;
        alarm(30);
    } else {
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        forks++;
    }
    errno = before;
}

static void churn(unsigned *seed) {
    static unsigned char *objects[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) {
        *seed = *seed * 1103515245 + 12345;
        objects[i] = malloc(16 + (*seed >> 8) % 3000);
        CHECK(objects[i] != NULL);
        memset(objects[i], i, 16);
    }
    for (int i = 0; i < OBJECTS; i++) {
        CHECK(objects[i][0] == (i & 255) && objects[i][15] == (i & 255));
        free(objects[i]);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    int wanted = atoi(argv[1]);
    for (size_t kept = 0; kept < atoi(argv[2]) * MIB; kept += 4096) memset(malloc(4096), 1, 4096);
    struct sigaction action = {.sa_handler = fork_here, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGVTALRM, &action, NULL) == 0);
    struct itimerval every_ms = {{0, 1000}, {0, 1000}};
    CHECK(setitimer(ITIMER_VIRTUAL, &every_ms, NULL) == 0);
    unsigned seed = 1;
    alarm(100);
    while (forks < wanted && !is_child) churn(&seed);
    if (is_child) {
        for (int i = 0; i < ROUNDS_OF_A_CHILD; i++) churn(&seed);
        _exit(0);
    }
    puts("ok");
    return 0;
}

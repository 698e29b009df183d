/*
 * A process whose first thread ends lives as long as its other threads, and ends with the last of
 * them, whatever threads the library has.
 *
 *   first_thread before   the heap is large when the first thread ends
 *   first_thread after    it grows afterwards
 *   first_thread child    a thread forks; in the child it grows the heap and ends
 *   first_thread raw      as `child`, by the system call, so that no fork handler runs
 *   first_thread alone    there is no other thread, so that the library's thread is the last one,
 *                         and exit handlers run on it: with the first thread's signals
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "check.h"

enum { BLOCKS = 64 };
static void *volatile blocks[BLOCKS];

static void grow(void) {
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(MIB);
        CHECK(blocks[i] != NULL);
        memset(blocks[i], 1, MIB);
    }
    /* The background thread has time to start. */
    usleep(300000);
}

static void *work(void *how) {
    usleep(100000);
    if (strcmp(how, "after") == 0) grow();
    /* A background thread that ended with the first thread has done so. */
    usleep(300000);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    puts("ok");
    return NULL;
}

static void *fork_here(void *how) {
    pid_t child = strcmp(how, "raw") == 0 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    CHECK(child >= 0);
    if (child == 0) {
        grow();
        return how;
    }
    int status;
    for (int tries = 0; waitpid(child, &status, WNOHANG) != child; tries++) {
        CHECK(tries < 2000);
        usleep(10000);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    puts("ok");
    return how;
}

static void check_signals(void) {
    sigset_t blocked;
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &blocked) == 0);
    CHECK(sigismember(&blocked, SIGUSR1) == 1);
    for (int signal = 1; signal < 32; signal++)
        CHECK(signal == SIGUSR1 || sigismember(&blocked, signal) == 0);
    puts("ok");
}

static void end_alone(void) {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK(pthread_sigmask(SIG_SETMASK, &blocked, NULL) == 0);
    CHECK(atexit(check_signals) == 0);
    grow();
    pthread_exit(NULL);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    pthread_t thread;
    if (strcmp(argv[1], "alone") == 0) end_alone();
    if (strcmp(argv[1], "child") == 0 || strcmp(argv[1], "raw") == 0) {
        CHECK(pthread_create(&thread, NULL, fork_here, argv[1]) == 0);
        pthread_join(thread, NULL);
        return 0;
    }
    if (strcmp(argv[1], "before") == 0) grow();
    CHECK(pthread_create(&thread, NULL, work, argv[1]) == 0);
    pthread_exit(NULL);
}

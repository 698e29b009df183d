/*
 * Forks in the constructor of a library, which runs before the constructor of a preloaded library:
 * threads make the process's first calls meanwhile. A child must be able to allocate.
 *
 * Built twice: with -DLIBRARY as that library, and as the program that needs it.
 */
#include "process.h"

#ifdef LIBRARY

#include <pthread.h>
#include <sys/wait.h>

enum { THREADS = 2, FORKS = 5, LIMIT_S = 20 };

static void *uses(void *tag) {
    churn(2000, (uintptr_t)tag);
    return NULL;
}

__attribute__((constructor)) static void early(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, uses, (void *)(i + 1)) == 0);
    for (int n = 0; n < FORKS; n++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            alarm(LIMIT_S);
            churn(2000, 9);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

#else

int main(void) {
    puts("ok");
    return 0;
}

#endif

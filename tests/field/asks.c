/* A call of the malloc family seldom asks for the CPU: on some machines that is a system call. The
 * program's own sched_getcpu takes the place of the C library's.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/syscall.h>

#include "check.h"

enum { THREADS = 4, CALLS = 100000, KEPT = 64 };

static long asked;

int sched_getcpu(void) {
    unsigned cpu = 0;
    __atomic_fetch_add(&asked, 1, __ATOMIC_RELAXED);
    return syscall(SYS_getcpu, &cpu, NULL, NULL) == 0 ? (int)cpu : -1;
}

static void *churn(void *seed) {
    char *kept[KEPT] = {0};
    unsigned state = (unsigned)(size_t)seed;
    for (int call = 0; call < CALLS; call++) {
        state = state * 1103515245 + 12345;
        char **place = &kept[state >> 16 & (KEPT - 1)];
        free(*place);
        *place = malloc(16 + (state >> 8 & 255));
        CHECK(*place != NULL);
    }
    for (int n = 0; n < KEPT; n++)
        free(kept[n]);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (size_t n = 0; n < THREADS; n++)
        CHECK(pthread_create(&threads[n], NULL, churn, (void *)n) == 0);
    for (size_t n = 0; n < THREADS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    printf("asked %ld times in %d calls\n", asked, THREADS * CALLS * 2);
    fflush(stdout);
    CHECK(asked < THREADS * CALLS / 100);
    puts("ok");
    return 0;
}

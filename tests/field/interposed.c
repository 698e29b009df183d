/* A program that defines functions of the C library which allocate, as preloaded libraries do
 * (libfaketime's getpid calls dlsym). The library must not call them while it holds a lock. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"

static __thread int is_inside;

static void allocate(void) {
    if (is_inside) return;
    is_inside = 1;
    for (size_t size = 16; size < 200000; size *= 3) {
        char *memory = malloc(size);
        CHECK(memory != NULL);
        memory[0] = memory[size - 1] = 1;
        free(memory);
    }
    is_inside = 0;
}

pid_t getpid(void) {
    allocate();
    return (pid_t)syscall(SYS_getpid);
}

pid_t getppid(void) {
    allocate();
    return (pid_t)syscall(SYS_getppid);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    allocate();
    return (int)syscall(SYS_clock_gettime, clock, time);
}

void *mmap(void *start, size_t bytes, int access, int flags, int fd, off_t offset) {
    allocate();
    return (void *)syscall(SYS_mmap, start, bytes, access, flags, fd, offset);
}

int munmap(void *start, size_t bytes) {
    allocate();
    return (int)syscall(SYS_munmap, start, bytes);
}

int madvise(void *start, size_t bytes, int advice) {
    allocate();
    return (int)syscall(SYS_madvise, start, bytes, advice);
}

int prctl(int option, ...) {
    unsigned long arguments[4];
    va_list list;
    va_start(list, option);
    for (int n = 0; n < 4; n++) arguments[n] = va_arg(list, unsigned long);
    va_end(list);
    allocate();
    return (int)syscall(SYS_prctl, option, arguments[0], arguments[1], arguments[2], arguments[3]);
}

long sysconf(int name) {
    allocate();
    return name == _SC_PAGESIZE ? 4096 : -1;
}

/* Grows by 80 MiB of small and large objects, and frees them. */
static void *work(void *argument) {
    enum { SMALL = 50000, LARGE = 20 };
    static __thread char *small[SMALL], *large[LARGE];
    for (int round = 0; round < 3; round++) {
        for (int n = 0; n < SMALL; n++) CHECK((small[n] = malloc(16 + n % 1000)) != NULL);
        for (int n = 0; n < LARGE; n++) {
            CHECK((large[n] = malloc((size_t)(n + 1) << 18)) != NULL);
            large[n][0] = 1;
        }
        for (int n = 0; n < LARGE; n++) CHECK((large[n] = realloc(large[n], (size_t)(n + 2) << 18)) != NULL);
        for (int n = 0; n < SMALL; n++) free(small[n]);
        for (int n = 0; n < LARGE; n++) free(large[n]);
        /* The background thread purges what was freed. */
        CHECK(usleep(700000) == 0);
    }
    return argument;
}

int main(void) {
    pthread_t threads[2];
    for (int n = 0; n < 2; n++) CHECK(pthread_create(&threads[n], NULL, work, NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        free(malloc(1000));
        _exit(0);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    for (int n = 0; n < 2; n++) CHECK(pthread_join(threads[n], NULL) == 0);
    puts("ok");
    return 0;
}

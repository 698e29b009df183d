/*
 * Signals and allocation, within the limits of POSIX.
 *
 * A handler may allocate only where it cannot have interrupted an allocation. Any handler may
 * interrupt one, and each time the kernel restarts the sequence.
 */
#define _GNU_SOURCE
#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void handle(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(number, &action, NULL) == 0);
}

static volatile sig_atomic_t handled, damaged;
static char *held[16];

static void allocate_in_handler(int number) {
    (void)number;
    static uint64_t random = 11;
    int slot = (int)(next_random(&random) % 16);
    if (held[slot] && !intact(held[slot], 50, (uint64_t)slot)) damaged = 1;
    free(held[slot]);
    held[slot] = malloc(50 + (size_t)(next_random(&random) % 5000));
    if (!held[slot]) damaged = 1;
    else fill(held[slot], 50, (uint64_t)slot);
    handled = handled + 1;
}

/* The main thread only counts, so the handler interrupts no allocation of its own; other threads
 * allocate meanwhile. */
static void handler_allocates(void) {
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
    storm_begin(3);
    handle(SIGALRM, allocate_in_handler);
    pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
    struct itimerval every = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    volatile uint64_t count = 0;
    for (double end = now_s() + 1; now_s() < end;)
        for (int i = 0; i < 100000; i++) count = count + 1;
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(handled > 100, "only %d signals", (int)handled);
    CHECK(!damaged, "a block of the handler was damaged");
    CHECK(storm_end() > 0);
}

static atomic_int stormed, over;

static void count_signal(int number) {
    (void)number;
    atomic_fetch_add(&stormed, 1);
}

static void *storm_under_signals(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    while (!atomic_load(&over)) CHECK(churn(2000, seed++), "a block was damaged under signals");
    return NULL;
}

/* glibc before 2.38 has no name for it. */
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

/* Has its own timer, which signals this thread after every 30 microseconds of its CPU time. */
static void *storm_under_own_timer(void *argument) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    struct itimerspec every = {{0, 30000}, {0, 30000}};
    CHECK(timer_settime(timer, 0, &every, NULL) == 0);
    storm_under_signals(argument);
    CHECK(timer_delete(timer) == 0);
    return NULL;
}

/* Signals at the highest rate, to threads that only allocate. */
static void signals_interrupt_allocation(void) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    handle(SIGUSR1, count_signal);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, storm_under_own_timer, (void *)(uintptr_t)(i + 1)) == 0);
    for (double end = now_s() + 2; now_s() < end;) usleep(10000);
    atomic_store(&over, 1);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(stormed > 1000, "only %d signals arrived", stormed);
}

/* Threads are migrated from CPU to CPU while they allocate, which also restarts sequences. */
static void migrations_interrupt_allocation(void) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    cpu_set_t all, one;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, storm_under_signals, (void *)(uintptr_t)(i + 1)) == 0);
    uint64_t random = 5;
    for (double end = now_s() + 2; now_s() < end;) {
        int cpu = (int)(next_random(&random) % CPU_SETSIZE);
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        CHECK(pthread_setaffinity_np(threads[next_random(&random) % THREADS], sizeof one, &one) == 0);
        usleep(20);
    }
    atomic_store(&over, 1);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Where the library registers threads, a thread's first call finds out that it is to be. A handler
 * that interrupts this call's sequence, and allocates, has the thread registered before. Then the
 * kernel has not aborted that sequence, and must not let it go on.
 *
 * The trap flag picks the instants: the one after the sequence was armed, where the handler
 * allocates, and one before it commits, where another thread of the same CPU allocates. */
#if defined(__x86_64__)
static atomic_int instant;
static char *first_block;

static void trap(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    static int steps;
    int loads_cpu = code[0] == 0x64 && (code[1] & 0xf8) == 0x48 && code[2] == 0x63; /* movsxd r, fs:[r + 4] */
    if (atomic_load(&instant) == 0 && loads_cpu) {
        held[0] = malloc(1000);
        atomic_store(&instant, 1);
    } else if (atomic_load(&instant) == 1 && ++steps == 6) {
        atomic_store(&instant, 2);
        while (atomic_load(&instant) == 2) sched_yield();
        registers[REG_EFL] &= ~0x100;
    }
}

static void *call_first(void *unused) {
    (void)unused;
    __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
    first_block = malloc(64);
    __asm__ volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
    return NULL;
}
#endif

static void handler_in_a_first_call(void) {
#if defined(__x86_64__)
#ifdef __GLIBC__
    const char *rseq = getenv("USLAB_RSEQ");
    if (!rseq || strcmp(rseq, "own") != 0) return;
#endif
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    /* This CPU's sheaf has objects. */
    char *blocks[40];
    for (int i = 0; i < 40; i++) blocks[i] = malloc(64);
    for (int i = 0; i < 40; i++) free(blocks[i]);
    struct sigaction action = {.sa_sigaction = trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_first, NULL) == 0);
    for (double end = now_s() + 60; atomic_load(&instant) != 2;) {
        CHECK(now_s() < end, "instant %d: the call has no such sequence", atomic_load(&instant));
        usleep(1000);
    }
    char *block = malloc(64);
    atomic_store(&instant, 3);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(block && first_block && block != first_block, "two threads got %p", (void *)block);
#endif
}

const struct check signal_checks[] = {
    {"handler_allocates", handler_allocates},
    {"signals_interrupt_allocation", signals_interrupt_allocation},
    {"migrations_interrupt_allocation", migrations_interrupt_allocation},
    {"handler_in_a_first_call", handler_in_a_first_call},
    {NULL, NULL},
};

/* Programs with a handler of SIGSEGV of their own, beside guard pages: `guard_handlers CASE`. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "check.h"

static sigjmp_buf back;
static volatile int calls;
static void *volatile address;
static volatile sig_atomic_t has_blocked_usr1, is_on_other_stack;
static char other_stack[64 << 10];
static volatile char sink;

static void jumps(int number, siginfo_t *info, void *context)
{
    sigset_t mask;
    int here;
    CHECK(number == SIGSEGV && context != NULL);
    address = info->si_addr;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    has_blocked_usr1 = sigismember(&mask, SIGUSR1);
    is_on_other_stack = (char *)&here >= other_stack && (char *)&here < other_stack + sizeof other_stack;
    calls++;
    siglongjmp(back, 1);
}

static void jumps_simply(int number)
{
    CHECK(number == SIGSEGV);
    calls++;
    siglongjmp(back, 1);
}

/* Reads the byte at `at`, and returns whether that faulted. */
static int faults(volatile char *at)
{
    int before = calls;
    if (!sigsetjmp(back, 1))
        sink = *at;
    return calls > before;
}

static volatile char *freed(void)
{
    char *object = malloc(100);
    free(object);
    return object;
}

static void expect_handler(void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction now;
    CHECK(sigaction(SIGSEGV, NULL, &now) == 0);
    CHECK(now.sa_sigaction == handler);
}

/* The handler runs for its own faults, unreported, and for guarded objects, after a report; with
 * the mask and the stack that it asked for. */
static void with_sigaction(void)
{
    struct sigaction action = {.sa_sigaction = jumps, .sa_flags = SA_SIGINFO | SA_ONSTACK}, old;
    stack_t stack = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    CHECK(sigaltstack(&stack, NULL) == 0);
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR1);
    CHECK(sigaction(SIGSEGV, &action, &old) == 0);
    CHECK(old.sa_handler == SIG_DFL);
    expect_handler(jumps);
    for (int round = 0; round < 100; round++) {
        CHECK(faults((char *)16) && address == (void *)16);
        CHECK(has_blocked_usr1 && is_on_other_stack);
    }
    dprintf(2, "guarded\n");
    volatile char *object = freed();
    CHECK(faults(object) && address == (void *)object);
    CHECK(has_blocked_usr1 && is_on_other_stack);
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(SIGSEGV, &action, &old) == 0);
    CHECK(old.sa_flags == (SA_SIGINFO | SA_ONSTACK) && sigismember(&old.sa_mask, SIGUSR1));
    CHECK(faults((char *)16) && !has_blocked_usr1 && !is_on_other_stack);
}

static void with_signal(void)
{
    CHECK(signal(SIGSEGV, jumps_simply) == SIG_DFL);
    CHECK(faults((char *)16) && faults((char *)16));
    CHECK(signal(SIGSEGV, jumps_simply) == jumps_simply);
    dprintf(2, "guarded\n");
    CHECK(faults(freed()));
    CHECK(signal(SIGSEGV, SIG_DFL) == jumps_simply);
    expect_handler((void *)SIG_DFL);
    /* Other signals are the C library's. */
    CHECK(signal(SIGUSR2, SIG_IGN) == SIG_DFL && signal(SIGUSR2, SIG_DFL) == SIG_IGN);
    CHECK(signal(SIGKILL, SIG_IGN) == SIG_ERR && errno == EINVAL);
    CHECK(signal(SIGSEGV, SIG_ERR) == SIG_ERR && errno == EINVAL);
}

/* A handler that serves once. */
static void once(void)
{
    struct sigaction action = {.sa_sigaction = jumps, .sa_flags = SA_SIGINFO | SA_RESETHAND};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    CHECK(faults((char *)16));
    expect_handler((void *)SIG_DFL);
    CHECK(sysv_signal(SIGSEGV, jumps_simply) == SIG_DFL);
    CHECK(faults((char *)16));
    expect_handler((void *)SIG_DFL);
}

/* A child ends as it would without the library: by its fault, or by a signal that was sent. */
static int end_of(void (*child)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        child();
        _exit(77);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void reads_null(void) { sink = *(volatile char *)16; }
static void raises(void) { raise(SIGSEGV); }
static void ignores(void)
{
    signal(SIGSEGV, SIG_IGN);
    raise(SIGSEGV);
}
static void ignores_a_fault(void)
{
    signal(SIGSEGV, SIG_IGN);
    reads_null();
}
static void blocks(void)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGSEGV);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    reads_null();
}
static void exits(int number) { _exit(number); }
static void is_told(void)
{
    signal(SIGSEGV, exits);
    kill(getpid(), SIGSEGV);
}
/* As runtimes do that make the system call themselves: the kernel's structure, without a restorer
 * (the handler does not return). */
static void asks_the_kernel(void)
{
    struct { void (*handler)(int); unsigned long flags; void *restorer; unsigned long mask; } action = {
        exits, 0x04000000, (void *)exits, 0};
    CHECK(syscall(SYS_rt_sigaction, SIGSEGV, &action, NULL, 8) == 0);
    sink = *freed();
}

static void ends(void)
{
    CHECK(end_of(reads_null) == -SIGSEGV);
    CHECK(end_of(raises) == -SIGSEGV);
    CHECK(end_of(ignores) == 77);
    CHECK(end_of(ignores_a_fault) == -SIGSEGV);
    CHECK(end_of(blocks) == -SIGSEGV);
    CHECK(end_of(is_told) == SIGSEGV);
#ifdef __x86_64__
    CHECK(end_of(asks_the_kernel) == SIGSEGV);
#endif
}

static volatile int stopping;
static void *changes(void *unused)
{
    (void)unused;
    while (!stopping) {
        struct sigaction old;
        CHECK(sigaction(SIGSEGV, NULL, &old) == 0);
        CHECK(sigaction(SIGSEGV, &old, NULL) == 0);
    }
    return NULL;
}

/* Faults while other threads change the action. */
static void races(void)
{
    pthread_t threads[2];
    CHECK(signal(SIGSEGV, jumps_simply) == SIG_DFL);
    for (int n = 0; n < 2; n++)
        CHECK(pthread_create(&threads[n], NULL, changes, NULL) == 0);
    for (int round = 0; round < 3000; round++)
        CHECK(faults((char *)16));
    stopping = 1;
    for (int n = 0; n < 2; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
}

/* Sets the default action, and ends by its fault: 0 if the calls tell what the kernel would. */
static int resets(void *unused)
{
    struct sigaction action = {.sa_handler = SIG_DFL}, old;
    (void)unused;
    int is_told = sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == jumps_simply
        && sigaction(SIGSEGV, &action, &old) == 0 && old.sa_handler == jumps_simply
        && sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_handler == SIG_DFL;
    if (is_told)
        sink = *(volatile char *)16;
    _exit(1);
}

/* A child that shares the memory has actions of its own: the parent's stay. */
static void shares(void)
{
    int status;
    CHECK(signal(SIGSEGV, jumps_simply) == SIG_DFL);
    for (int round = 0; round < 3; round++) {
        pid_t pid = vfork();
        if (pid == 0)
            resets(NULL);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        expect_handler((void *)jumps_simply);
        CHECK(faults((char *)16));
        pid = clone(resets, other_stack + sizeof other_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        expect_handler((void *)jumps_simply);
        CHECK(faults((char *)16));
    }
}

/* The child of a fork, by the C library or by the system call, while other threads change the
 * action. */
static void forks(void)
{
    pthread_t threads[2];
    CHECK(signal(SIGSEGV, jumps_simply) == SIG_DFL);
    for (int n = 0; n < 2; n++)
        CHECK(pthread_create(&threads[n], NULL, changes, NULL) == 0);
    for (int round = 0; round < 600; round++) {
        int status;
        pid_t pid = round % 2 ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
            alarm(10);
            expect_handler((void *)jumps_simply);
            CHECK(signal(SIGSEGV, jumps_simply) == jumps_simply);
            CHECK(faults((char *)16));
            _exit(0);
        }
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    stopping = 1;
    for (int n = 0; n < 2; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
}

/* Reads a freed object while its slot, the only one that is free, is taken again and again. */
static volatile char *volatile reused;
static void *reads(void *unused)
{
    (void)unused;
    while (!stopping)
        sink = *reused;
    return NULL;
}
static void reuses(void)
{
    pthread_t thread;
    void *first = malloc(100);
    for (int n = 0; n < 3000; n++)
        CHECK(malloc(100) != NULL);
    reused = first;
    CHECK(pthread_create(&thread, NULL, reads, NULL) == 0);
    free(first);
    for (int round = 0; round < 60000; round++) {
        char *object = malloc(100);
        CHECK(object == first);
        free(object);
    }
    stopping = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A handler on a stack with little room: a report must not write below it. */
static char low_stack[64 << 10];
static size_t low_bytes;
static void counts_below(int number, siginfo_t *info, void *context)
{
    char *end = low_stack + sizeof low_stack - low_bytes;
    CHECK(number == SIGSEGV && info != NULL && context != NULL);
    for (char *at = low_stack; at < end; at++)
        if (*at != 0x11)
            _exit(3);
    siglongjmp(back, 1);
}
static void has_little_room(void)
{
    for (low_bytes = 4096; low_bytes <= 32768; low_bytes += 512) {
        struct sigaction action = {.sa_sigaction = counts_below, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        stack_t stack = {.ss_sp = low_stack + sizeof low_stack - low_bytes, .ss_size = low_bytes};
        memset(low_stack, 0x11, sizeof low_stack);
        if (sigaltstack(&stack, NULL) != 0)
            continue; /* Too small for the processor's registers. */
        CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
        if (!sigsetjmp(back, 1))
            sink = *freed();
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    if (!strcmp(argv[1], "sigaction"))
        with_sigaction();
    else if (!strcmp(argv[1], "signal"))
        with_signal();
    else if (!strcmp(argv[1], "once"))
        once();
    else if (!strcmp(argv[1], "ends"))
        ends();
    else if (!strcmp(argv[1], "races"))
        races();
    else if (!strcmp(argv[1], "shares"))
        shares();
    else if (!strcmp(argv[1], "forks"))
        forks();
    else if (!strcmp(argv[1], "reuses"))
        reuses();
    else if (!strcmp(argv[1], "has_little_room"))
        has_little_room();
    else
        return 2;
    puts("ok");
    return 0;
}

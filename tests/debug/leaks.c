// One way to leak, or to keep, memory a run: `leaks CASE [STATUS]`.
//
// `lose_here` and its relatives allocate, so that reports can be told apart by name. Before the
// end, `scrub` overwrites what calls that returned left on the stack.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STEP __attribute__((noinline, used))
// Keeps the compiler from making a call the last step of its function, which then has no frame.
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

struct node {
    struct node *volatile next;
    char text[56];
};

static void *volatile sink;
static void *volatile kept;
static uintptr_t volatile hidden;
static __thread void *volatile local;
static volatile int ready;

STEP void *make_here(size_t bytes)
{
    void *p = malloc(bytes);
    KEEP_FRAME();
    return p;
}

STEP void *make_list_here(size_t bytes)
{
    void *p = malloc(bytes);
    KEEP_FRAME();
    return p;
}

STEP void lose_here(size_t bytes, int count)
{
    for (int i = 0; i < count; i++)
        memset(make_here(bytes), 1, bytes);
    KEEP_FRAME();
}

STEP struct node *list_here(int count)
{
    struct node *head = NULL;
    for (int i = 0; i < count; i++) {
        struct node *node = malloc(sizeof *node);
        node->next = head;
        head = node;
    }
    return head;
}

// Clears registers and the stack below.
STEP void scrub(void)
{
    char room[200 << 10] __attribute__((aligned(16)));
    for (size_t i = 0; i < sizeof room; i += sizeof(char *))
        *(char *volatile *)(room + i) = NULL;
    KEEP_FRAME();
#ifdef __x86_64__
    __asm__ volatile("xor %%ebx, %%ebx; xor %%r12d, %%r12d; xor %%r13d, %%r13d;"
                     "xor %%r14d, %%r14d; xor %%r15d, %%r15d" ::: "rbx", "r12", "r13", "r14", "r15");
#endif
}

STEP void lose_ring(int count, int tail)
{
    // The tail is allocated first, so that it lies at lower addresses than the ring.
    struct node *end = list_here(tail);
    struct node *first = list_here(1), *last = first;
    for (int i = 1; i < count; i++) {
        struct node *node = make_here(sizeof *node);
        node->next = first;
        first = node;
    }
    last->next = first;
    *(struct node *volatile *)last->text = end;
    KEEP_FRAME();
}

STEP void hide_here(size_t bytes)
{
    hidden = ~(uintptr_t)make_here(bytes);
    KEEP_FRAME();
}

static void *keep_on_stack(void *unused)
{
    void *volatile mine[4] = {0};
    mine[2] = make_here(100);
    (void)unused;
    ready = 1;
    for (;;)
        pause();
    return (void *)mine[2];
}

static void *keep_in_tls(void *unused)
{
    (void)unused;
    local = make_here(100);
    ready = 1;
    for (;;)
        pause();
    return NULL;
}

// The pointer is hidden in memory, and plain in a register alone.
static void *keep_in_register(void *unused)
{
    (void)unused;
#ifdef __x86_64__
    __asm__ volatile("mov %1, %%r12; not %%r12; movl $1, %0; 1: pause; jmp 1b"
                     : "=m"(ready) : "m"(hidden) : "r12", "memory");
#elif defined __aarch64__
    __asm__ volatile("mvn x22, %1; str %w2, %0; 1: yield; b 1b"
                     : "=m"(ready) : "r"(hidden), "r"(1) : "x22", "memory");
#endif
    return NULL;
}

// The pointer is in a vector register alone.
static void *keep_in_vector(void *unused)
{
    (void)unused;
#ifdef __x86_64__
    __asm__ volatile("mov %1, %%rax; not %%rax; movq %%rax, %%xmm7; xor %%eax, %%eax;"
                     "movl $1, %0; 1: pause; jmp 1b"
                     : "=m"(ready) : "m"(hidden) : "rax", "xmm7", "memory");
#elif defined __aarch64__
    __asm__ volatile("mvn x9, %1; fmov d9, x9; mov x9, #0; str %w2, %0; 1: yield; b 1b"
                     : "=m"(ready) : "r"(hidden), "r"(1) : "x9", "v9", "memory");
#endif
    return NULL;
}

static void *lose_and_end(void *unused)
{
    (void)unused;
    lose_here(100, 50);
    scrub();
    return NULL;
}

// Makes ptrace fail, as some containers do.
static void refuse_ptrace(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        exit(98);
}

// Moves a pointer to and fro between two places, each of them the only one for a moment.
static void *move_about(void *unused)
{
    static void *volatile places[2];
    (void)unused;
    places[0] = make_here(100);
    ready = 1;
    for (;;) {
        places[1] = places[0];
        places[0] = NULL;
        places[0] = places[1];
        places[1] = NULL;
    }
    return NULL;
}

// Allocates and frees without an end.
static void *churn(void *unused)
{
    (void)unused;
    void *volatile mine[64] = {0};
    ready = 1;
    for (unsigned i = 0;; i++) {
        free(mine[i % 64]);
        mine[i % 64] = malloc(i * 37 % 3000);
    }
    return NULL;
}

static void start(void *(*body)(void *), int is_joined)
{
    pthread_t thread;
    pthread_create(&thread, NULL, body, NULL);
    if (is_joined)
        pthread_join(thread, NULL);
    else
        while (!ready)
            usleep(1000);
}

STEP void run(const char *name)
{
#define IS(text) (strcmp(name, text) == 0)
    if (IS("none")) {
        free(make_here(100));
    } else if (IS("direct")) {
        lose_here(100, 3);
    } else if (IS("sizes")) {
        lose_here(1, 1);
        lose_here(5000, 1);
        lose_here(100000, 1);
        lose_here(3 << 20, 1);
    } else if (IS("list")) {
        list_here(10);
    } else if (IS("ring")) {
        lose_ring(5, 3);
    } else if (IS("self")) {
        struct node *node = make_here(sizeof *node);
        node->next = node;
    } else if (IS("shared")) {
        struct node *child = list_here(1);
        for (volatile int i = 0; i < 2; i++)
            ((struct node *)make_here(sizeof *child))->next = child;
    } else if (IS("global")) {
        kept = list_here(10);
    } else if (IS("array")) {
        void *volatile *table = make_here(1000 * sizeof *table);
        for (int i = 0; i < 1000; i++)
            table[i] = make_here(i);
        kept = (void *)table;
    } else if (IS("inside")) {
        kept = (char *)make_here(100) + 50;
    } else if (IS("end")) {
        kept = (char *)make_here(112) + 112;
    } else if (IS("end-large")) {
        kept = (char *)make_here(1 << 20) + (1 << 20);
    } else if (IS("inside-large")) {
        kept = (char *)make_here(5 << 20) + (4 << 20);
    } else if (IS("from-large")) {
        char *volatile *large = make_here(5 << 20);
        large[(4 << 20) / sizeof *large] = make_here(100);
        kept = (void *)large;
    } else if (IS("tagged")) {
        kept = (void *)((uintptr_t)make_here(100) | (uintptr_t)0xfffc << 48 | 3);
    } else if (IS("empty")) {
        kept = make_here(0);
    } else if (IS("hidden")) {
        hide_here(100);
    } else if (IS("tls")) {
        local = make_here(100);
    } else if (IS("mmap") || IS("mmap-shared")) {
        int flags = MAP_ANONYMOUS | (IS("mmap") ? MAP_PRIVATE : MAP_SHARED);
        void *volatile *place = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, flags, -1, 0);
        place[70000] = list_here(10);
        if (IS("mmap"))
            mprotect((void *)place, 1 << 20, PROT_READ);
    } else if (IS("protected")) {
        // Pages of an object without access, and a pointer behind them.
        char *object = aligned_alloc(4096, 8 * 4096);
        *(void *volatile *)(object + 5 * 4096) = make_here(100);
        mprotect(object + 4096, 3 * 4096, PROT_NONE);
        kept = object;
    } else if (IS("reserved")) {
        // Memory that is never touched must cost no time.
        mmap(NULL, 64ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        kept = calloc(1, 8ul << 30);
        lose_here(100, 1);
    } else if (IS("crowd")) {
        // One leaked array leads to most leaked objects, and its search passes over the others.
        enum { COUNT = 120000 };
        void **list = mmap(NULL, COUNT * sizeof *list, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < COUNT; i++) {
            list[i] = make_here(16);
            memset(list[i], 0, 16);
            if (i % 200 == 0)
                lose_here(16, 1);
        }
        memcpy(make_list_here(COUNT * sizeof *list), list, COUNT * sizeof *list);
        munmap(list, COUNT * sizeof *list);
    } else if (IS("slots")) {
        static void *objects[5000];
        for (int i = 0; i < 5000; i++)
            objects[i] = malloc(2000);
        kept = objects;
    } else if (IS("environment")) {
        for (int i = 0; i < 50; i++) {
            char name[32];
            snprintf(name, sizeof name, "NAME_%d", i);
            setenv(name, "a value", 1);
        }
    } else if (IS("realloc")) {
        char *p = make_here(10);
        for (size_t bytes = 20; bytes < (4 << 20); bytes *= 3)
            p = realloc(p, bytes);
        kept = p;
    } else if (IS("thread-stack")) {
        start(keep_on_stack, 0);
    } else if (IS("thread-tls")) {
        start(keep_in_tls, 0);
    } else if (IS("thread-register")) {
        hide_here(100);
        start(keep_in_register, 0);
    } else if (IS("thread-vector")) {
        hide_here(100);
        start(keep_in_vector, 0);
    } else if (IS("thread-ended")) {
        for (int i = 0; i < 4; i++)
            start(lose_and_end, 1);
    } else if (IS("refused")) {
        refuse_ptrace();
        lose_here(100, 3);
        start(keep_on_stack, 0);
    } else if (IS("thread-moves")) {
        start(move_about, 0);
    } else if (IS("thread-churns") || IS("refused-churns")) {
        if (IS("refused-churns"))
            refuse_ptrace();
        for (int i = 0; i < 4; i++) {
            ready = 0;
            start(churn, 0);
        }
    } else if (IS("fork")) {
        pid_t child = fork();
        if (child == 0) {
            lose_here(100, 3);
            scrub();
            exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        printf("child %d\n", WEXITSTATUS(status));
    } else {
        fprintf(stderr, "no such case\n");
        exit(99);
    }
}

// An object of this frame's, which lasts while `exit` runs.
STEP void keep_until_exit(const char *name, int status)
{
    void *volatile mine = NULL;
    if (strcmp(name, "stack") == 0)
        mine = make_here(100);
    else
        run(name);
    scrub();
    printf("end");
    exit(status);
    sink = mine;
}

int main(int argc, char **argv)
{
    keep_until_exit(argv[1], argc > 2 ? atoi(argv[2]) : 0);
    return 0;
}

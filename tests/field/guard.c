/* Faults of memory accesses and of frees, for guard pages: `guard FAULT SIZE PLACE`.
 *
 * The program says on standard error what it owes, the pointer, then misuses it. PLACE is the
 * thread: `here`, `thread` (it uses what another allocated and freed), `fork` (a child does). The
 * functions are exported, so that reports name them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* `operator new`, sized `operator delete`, and free_sized of C23. */
static void *(*new)(size_t);
static void (*delete_sized)(void *, size_t);
static void (*free_by_size)(void *, size_t);

static const char *fault;
static size_t size;
static volatile char *object;
static volatile char sink;

__attribute__((noinline)) void allocates(void)
{
    char *fresh;
    if (!strncmp(fault, "calloc", 6)) {
        fresh = calloc(1, size);
        for (size_t i = 0; i < size; i++)
            if (fresh[i])
                abort();
    } else if (!strncmp(fault, "realloc", 7)) {
        fresh = realloc(malloc(size / 2), size);
    } else if (!strncmp(fault, "aligned", 7)) {
        fresh = aligned_alloc(64, size);
    } else if (!strncmp(fault, "new", 3)) {
        fresh = new(size);
    } else {
        fresh = malloc(size);
    }
    memset(fresh, 1, size);
    object = fresh;
    __asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) void frees(void)
{
    if (!strncmp(fault, "new", 3))
        delete_sized((void *)object, size);
    else if (!strncmp(fault, "sized", 5))
        free_by_size((void *)object, size);
    else
        free((void *)object);
    __asm__ volatile("" ::: "memory");
}

/* The bytes behind the object up to the next boundary of its alignment. */
static size_t slack(void)
{
    size_t align = strncmp(fault, "aligned", 7) ? 16 : 64;
    return (size + align - 1) / align * align - size;
}

static void owes(const char *text, volatile char *at)
{
    fprintf(stderr, "owed: %s %p\n", text, (void *)at);
}

__attribute__((noinline)) void misuses(void)
{
    const char *kind = strchr(fault, '-');
    kind = kind ? kind + 1 : fault;
    volatile char *end = object + size;
    if (!strcmp(kind, "overread")) {
        owes("out of bounds: read of", end + slack());
        sink = end[slack()];
    } else if (!strcmp(kind, "overwrite")) {
        owes("out of bounds: write of", end + slack());
        end[slack()] = 2;
    } else if (!strcmp(kind, "slack")) {
        owes(slack() ? "overflow: the byte at" : "out of bounds: write of", end);
        end[0] = 2;
        frees();
    } else if (!strcmp(kind, "underread")) {
        owes("out of bounds: read of", object - 1);
        sink = object[-1];
    } else if (!strcmp(kind, "underwrite")) {
        owes("underflow: the byte at", object - 1);
        object[-1] = 2;
        frees();
    } else if (!strcmp(kind, "read")) {
        owes("use after free: read of", object + size / 2);
        sink = object[size / 2];
    } else if (!strcmp(kind, "write")) {
        owes("use after free: write of", end - 1);
        end[-1] = 2;
    } else if (!strcmp(kind, "twice")) {
        owes("double free of", object);
        frees();
    } else if (!strcmp(kind, "inside")) {
        owes("invalid free of", object + (size + 1) / 2);
        free((void *)(object + (size + 1) / 2));
    } else {
        abort();
    }
    __asm__ volatile("" ::: "memory");
}

static int is_after_free(void)
{
    return strstr(fault, "-read") || strstr(fault, "-write") || strstr(fault, "twice") ||
           !strcmp(fault, "read") || !strcmp(fault, "write");
}

static void *prepare(void *unused)
{
    (void)unused;
    allocates();
    if (is_after_free())
        frees();
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    *(void **)&new = dlsym(RTLD_DEFAULT, "_Znwm");
    *(void **)&delete_sized = dlsym(RTLD_DEFAULT, "_ZdlPvm");
    *(void **)&free_by_size = dlsym(RTLD_DEFAULT, "free_sized");
    fault = argv[1];
    size = strtoul(argv[2], NULL, 10);
    if (!strcmp(argv[3], "thread")) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, prepare, NULL) || pthread_join(thread, NULL))
            return 2;
    } else {
        prepare(NULL);
    }
    if (!strcmp(argv[3], "fork")) {
        int status = 0;
        pid_t child = fork();
        if (child) {
            waitpid(child, &status, 0);
            if (WIFSIGNALED(status)) {
                signal(WTERMSIG(status), SIG_DFL);
                raise(WTERMSIG(status));
            }
            return WEXITSTATUS(status);
        }
    }
    misuses();
    puts("ok");
    return 0;
}

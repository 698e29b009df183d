/* Faults that reach the allocator: `hardening FAULT SIZE`. The program commits one fault, uses the
 * allocator for a while, and looks for memory that two owners have. It prints `two owners` or `ok`,
 * unless the library ends it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include "check.h"

#define OBJECTS 3000

static void (*free_by_size)(void *, size_t);
static const char *fault;
static size_t size;
static char *object, *neighbours[200], *later[OBJECTS];
static int neighbour_count = 200;
static char a_static[4096] __attribute__((aligned(64)));

static void *frees(void *pointer)
{
    free(pointer);
    return NULL;
}

static int is(const char *name) { return !strcmp(fault, name); }

static void commit(void)
{
    char on_stack[64] __attribute__((aligned(64)));
    if (is("double")) {
        free(object);
        free(object);
    } else if (is("delayed")) {
        free(object);
        free(neighbours[0]);
        neighbours[0] = NULL;
        free(object);
    } else if (is("neighbours")) {
        free(object);
        for (int n = 0; n < neighbour_count; n += 2) {
            free(neighbours[n]);
            neighbours[n] = NULL;
        }
        free(object);
    } else if (is("other-thread")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, frees, object) == 0 && pthread_join(thread, NULL) == 0);
        free(object);
    } else if (is("interior")) {
        free(object + 16);
    } else if (is("middle")) {
        free(object + (size / 2 & ~15ul) + 16);
    } else if (is("unaligned")) {
        free(object + 1);
    } else if (is("before")) {
        free(object - 16);
    } else if (is("stack")) {
        memset(on_stack, 0, sizeof on_stack);
        free(on_stack);
    } else if (is("static")) {
        free(a_static + 64);
    } else if (is("mapping")) {
        free(mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    } else if (is("wild")) {
        free((void *)0x123456789abc0);
    } else if (is("smaller")) {
        free_by_size(object, size / 2);
    } else if (is("larger")) {
        free_by_size(object, size * 2);
    } else if (is("realloc")) {
        free(object);
        CHECK(realloc(object, size * 3) != NULL);
    } else if (is("overflow-1")) {
        object[size] ^= 1;
        free(object);
    } else if (is("overflow-32")) {
        for (int n = 0; n < 32; n++)
            object[size + n] ^= 1;
        free(object);
    } else if (is("underflow")) {
        object[-1] ^= 1;
        free(object);
    } else if (is("kept-overflow")) {
        object[size] ^= 1;
    } else if (is("kept-underflow")) {
        object[-1] ^= 1;
    } else if (is("use") || is("kept-use")) {
        free(object);
        memset(object + size / 2, 0x41, size / 4 + 1);
    } else if (!is("none")) {
        _exit(2);
    }
    __asm__ volatile("" ::: "memory");
}

static int by_address(const void *left, const void *right)
{
    uintptr_t a = *(const uintptr_t *)left, b = *(const uintptr_t *)right;
    return a < b ? -1 : a > b;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    fault = argv[1];
    size = strtoul(argv[2], NULL, 10);
    int objects = OBJECTS, two = 0;
    if (size > 4096)
        objects = 100, neighbour_count = 10;
    *(void **)&free_by_size = dlsym(RTLD_DEFAULT, "free_sized");
    for (int n = 0; n < neighbour_count; n++) {
        if (n == neighbour_count / 2)
            CHECK((object = malloc(size)) != NULL);
        CHECK((neighbours[n] = malloc(size)) != NULL);
        memset(neighbours[n], n, size);
    }
    memset(object, 1, size);
    commit();
    if (is("kept-use"))
        return 0;
    for (int round = 0; round < 4; round++) {
        for (int n = 0; n < objects; n++)
            CHECK((later[n] = malloc(size)) != NULL);
        qsort(later, objects, sizeof *later, by_address);
        for (int n = 1; n < objects; n++)
            two |= (size_t)(later[n] - later[n - 1]) < size;
        for (int n = 0; n < objects; n++)
            free(later[n]);
    }
    for (int n = 0; n < neighbour_count; n++)
        for (size_t at = 0; neighbours[n] && at < size; at++)
            two |= neighbours[n][at] != (char)n && strncmp(fault, "overflow", 8) && !is("underflow");
    puts(two ? "two owners" : "ok");
    return 0;
}

/*
 * The first use of the library, growth that starts the background thread, and a trim, on a
 * coroutine's stack of 8 KiB. Below it lies a guard page.
 */
#include "check.h"

#include <malloc.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 8192, GUARD = 4096, OBJECTS = 40000 };
static void *objects[OBJECTS];
static ucontext_t program, coroutine;

static void work(void) {
    for (int i = 0; i < OBJECTS; i++) {
        objects[i] = malloc(16 + (size_t)i % 2000);
        CHECK(objects[i] != NULL);
        memset(objects[i], 1, 16);
    }
    for (int i = 0; i < OBJECTS; i++) free(objects[i]);
    malloc_trim(0);
}

int main(void) {
    char *low = mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(low != MAP_FAILED && mprotect(low, GUARD, PROT_NONE) == 0);
    CHECK(getcontext(&coroutine) == 0);
    coroutine.uc_stack.ss_sp = low + GUARD;
    coroutine.uc_stack.ss_size = STACK;
    coroutine.uc_link = &program;
    makecontext(&coroutine, work, 0);
    CHECK(swapcontext(&program, &coroutine) == 0);
    puts("ok");
    return 0;
}

// One memory fault a run: `faults FAULT SIZE PLACE`.
//
// The program prints the address that the report must name, then commits the fault: on its main
// thread, on another thread, or in a fork child. `make_here` allocates, `give_here` frees, and
// `harm_here` does the harm, so that the stacks of a report can be told apart by name.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <pthread.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

static std::string fault;
static size_t size;

#define STEP extern "C" __attribute__((noinline, used))

// Keeps the compiler from making a call the last step of its function, which then has no frame.
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

STEP char *make_here()
{
    void *p = malloc(size);
    KEEP_FRAME();
    return (char *)p;
}

STEP char *make_new_here()
{
    void *p = ::operator new(size);
    KEEP_FRAME();
    return (char *)p;
}

STEP char *make_array_here()
{
    void *p = ::operator new[](size);
    KEEP_FRAME();
    return (char *)p;
}

STEP char *make_aligned_here(size_t align)
{
    void *p = aligned_alloc(align, size);
    KEEP_FRAME();
    return (char *)p;
}

STEP void give_here(void *p)
{
    free(p);
    KEEP_FRAME();
}

STEP void harm_here(char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((volatile char *)p)[i] = 0x41;
    KEEP_FRAME();
}

STEP void delete_here(void *p)
{
    ::operator delete(p);
    KEEP_FRAME();
}

STEP void delete_sized_here(void *p, size_t named)
{
    ::operator delete(p, named);
    KEEP_FRAME();
}

STEP void delete_array_here(void *p)
{
    ::operator delete[](p);
    KEEP_FRAME();
}

static void expect(void *p)
{
    printf("%p\n", p);
    fflush(stdout);
}

// Overflows, underflows, writes after free, double and invalid frees, at random.
static void storm()
{
    char *objects[64] = {};
    size_t sizes[64];
    unsigned state = (unsigned)size;
    for (int i = 0; i < 20000; i++) {
        state = state * 1103515245 + 12345;
        int at = (state >> 8) & 63;
        unsigned random = state >> 16;
        char *object = objects[at];
        if (object == nullptr) {
            sizes[at] = random % 300 + 1;
            objects[at] = (char *)malloc(sizes[at]);
            continue;
        }
        if (random % 50 == 0) {
            memset(object + sizes[at], (int)random, random % 400);
            continue;
        }
        if (random % 53 == 0) {
            memset(object - random % 200, (int)random, random % 200);
            continue;
        }
        objects[at] = nullptr;
        free(object);
        if (random % 59 == 0) {
            free(object + random % 3 * 8);
            object[random % sizes[at]] = (char)random;
        }
    }
}

static void commit()
{
    char *p = nullptr;
    if (fault == "storm")
        return storm();
    if (fault == "overflow" || fault == "overflow-8" || fault == "overflow-at-exit") {
        p = make_here();
        expect(p + size);
        harm_here(p + size, fault == "overflow" ? 1 : 8);
        if (fault != "overflow-at-exit")
            give_here(p);
    } else if (fault == "overflow-aligned") {
        p = make_aligned_here(64);
        expect(p + size);
        harm_here(p + size, 1);
        give_here(p);
    } else if (fault == "overflow-after-realloc") {
        p = make_here();
        size -= 5;
        p = (char *)realloc(p, size);
        expect(p + size);
        harm_here(p + size, 1);
        give_here(p);
    } else if (fault == "underflow") {
        p = make_here();
        expect(p - 1);
        harm_here(p - 1, 1);
        give_here(p);
    } else if (fault == "write-after-free" || fault == "write-after-free-at-end" || fault == "write-after-free-at-exit") {
        p = make_here();
        char *at = fault == "write-after-free-at-end" ? p + size - 1 : p;
        expect(at);
        give_here(p);
        harm_here(at, 1);
        if (fault == "write-after-free")
            for (int i = 0; i < 70; i++)
                give_here(make_here());
    } else if (fault == "double-free") {
        p = make_here();
        expect(p);
        give_here(p);
        give_here(p);
    } else if (fault == "double-free-delayed") {
        p = make_here();
        char *q = make_here();
        expect(p);
        give_here(p);
        give_here(q);
        give_here(p);
    } else if (fault == "interior" || fault == "misaligned") {
        p = make_here() + (fault == "interior" ? 16 : 3);
        expect(p);
        give_here(p);
    } else if (fault == "foreign-stack") {
        char local[32];
        char *volatile there = local;
        expect(there);
        give_here(there);
    } else if (fault == "foreign-static") {
        static char there[64];
        expect(there);
        give_here(there);
    } else if (fault == "realloc-after-free") {
        p = make_here();
        expect(p);
        give_here(p);
        p = (char *)realloc(p, size + 1);
        KEEP_FRAME();
    } else if (fault == "wrong-size") {
        p = make_new_here();
        expect(p);
        delete_sized_here(p, size + 1);
    } else if (fault == "new-free") {
        p = make_new_here();
        expect(p);
        give_here(p);
    } else if (fault == "malloc-delete") {
        p = make_here();
        expect(p);
        delete_here(p);
    } else if (fault == "aligned-delete") {
        p = make_aligned_here(64);
        expect(p);
        delete_here(p);
    } else if (fault == "array-delete") {
        p = make_array_here();
        expect(p);
        delete_here(p);
    } else if (fault == "new-delete-array") {
        p = make_new_here();
        expect(p);
        delete_array_here(p);
    } else if (fault == "none") {
        for (int i = 0; i < (size < 65536 ? 200 : 4); i++) {
            p = make_here();
            harm_here(p, size);
            p = (char *)realloc(p, size / 2 + 1);
            give_here(p);
            p = make_new_here();
            harm_here(p, size);
            delete_sized_here(p, size);
            p = make_array_here();
            delete_array_here(p);
            p = (char *)calloc(1, size);
            for (size_t at = 0; at < size; at++)
                if (p[at] != 0)
                    abort();
            give_here(p);
            p = make_aligned_here(256);
            if ((uintptr_t)p % 256 != 0)
                abort();
            give_here(p);
        }
    } else {
        fprintf(stderr, "no such fault\n");
        _exit(2);
    }
}

static void *thread(void *)
{
    commit();
    return nullptr;
}

int main(int, char **argv)
{
    fault = argv[1];
    size = strtoull(argv[2], nullptr, 10);
    std::string place = argv[3];
    if (place == "thread") {
        pthread_t other;
        if (pthread_create(&other, nullptr, thread, nullptr) != 0)
            return 3;
        pthread_join(other, nullptr);
    } else if (place == "fork") {
        pid_t child = fork();
        if (child == 0) {
            commit();
            exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    } else {
        commit();
    }
    return 0;
}

/* `realloc` moves blocks by their pages, and loses none where the program divided a block for the
 * kernel: by a seal, by advice, near the limit on mappings. Advice of a block ends with the block:
 * others that lie there later are copied by fork. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

#define PAGE ((size_t)4096)

static void stamp(char *block, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE)
        *(size_t *)(block + at) = at + 1;
}

static void has_stamps(const char *block, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE)
        CHECK(*(const size_t *)(block + at) == at + 1);
}

/* A block that cannot grow in place: another follows it. */
static char *blocked(size_t bytes) {
    void *block;
    CHECK(posix_memalign(&block, PAGE, bytes) == 0);
    CHECK(malloc(MIB) != NULL);
    stamp(block, bytes);
    return block;
}

static void grows(char *block, size_t bytes) {
    errno = 7;
    char *grown = realloc(block, 3 * bytes);
    CHECK(grown != NULL && errno == 7);
    has_stamps(grown, bytes);
}

/* Kernels before 6.10 know no seals. A sealed block is never freed. */
static void sealed(size_t bytes) {
    char *block = blocked(bytes);
    syscall(SYS_mseal, block + bytes / 2, PAGE, 0);
    grows(block, bytes);
}

static void near_the_limit(size_t bytes, int left) {
    static char *mappings[70000];
    int made = 0;
    char *block = blocked(bytes);
    for (int part = 1; part < 8; part += 2)
        CHECK(madvise(block + part * bytes / 8, bytes / 8, MADV_DONTDUMP) == 0);
    while (made < 70000) {
        int access = made & 1 ? PROT_READ : PROT_NONE;
        char *mapping = mmap(NULL, PAGE, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapping == MAP_FAILED)
            break;
        mappings[made++] = mapping;
    }
    for (int end = 0; end < left && made > 0; end++)
        munmap(mappings[--made], PAGE);
    char *grown = realloc(block, 3 * bytes);
    while (made > 0)
        munmap(mappings[--made], PAGE);
    has_stamps(grown != NULL ? grown : block, bytes);
    free(grown != NULL ? grown : block);
}

/* The program undoes its advice where the block is now. */
static void advised(size_t bytes, size_t skipped, int advice, int undone) {
    char *block = blocked(bytes);
    CHECK(madvise(block + skipped, bytes - 2 * skipped, advice) == 0);
    char *grown = realloc(block, 4 * bytes);
    CHECK(grown != NULL);
    has_stamps(grown, bytes);
    size_t first = ((size_t)grown + PAGE - 1) / PAGE * PAGE;
    CHECK(madvise((void *)first, 4 * bytes - PAGE, undone) == 0);
    char *others[8];
    for (int n = 0; n < 8; n++) {
        others[n] = malloc(bytes / 2);
        CHECK(others[n] != NULL);
        stamp(others[n], bytes / 2);
    }
    pid_t child = fork();
    if (child == 0) {
        for (int n = 0; n < 8; n++)
            has_stamps(others[n], bytes / 2);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int n = 0; n < 8; n++)
        free(others[n]);
    free(grown);
}

int main(void) {
    sealed(8 * MIB);
    sealed(MIB + 64 * 1024);
    for (int left = 0; left < 16; left++)
        near_the_limit(8 * MIB, left);
    for (size_t skipped = 0; skipped <= PAGE; skipped += PAGE) {
        advised(4 * MIB, skipped, MADV_WIPEONFORK, MADV_KEEPONFORK);
        advised(4 * MIB, skipped, MADV_DONTFORK, MADV_DOFORK);
    }
    puts("ok");
}

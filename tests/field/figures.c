/*
 * glibc's functions about malloc: mallinfo(3), mallinfo2(3), malloc_info(3), malloc_stats(3),
 * malloc_trim(3), mallopt(3), and its second names of the malloc family.
 *
 * `figures xml` prints only the document of malloc_info, for any allocator.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* mallinfo(3) is under test. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define CHECK(condition, ...)                                              \
    do {                                                                   \
        if (!(condition)) {                                                \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);         \
            printf(__VA_ARGS__);                                           \
            puts("");                                                      \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

#define MIB ((size_t)1 << 20)
enum { OBJECTS = 10000, BYTES = 1000 };
static char *held[OBJECTS];

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);
/* Not available to new programs, but the linker binds it if the version is named. */
void old_cfree(void *);
__asm__(".symver old_cfree, cfree@GLIBC_2.2.5");

static void take(void) {
    for (int i = 0; i < OBJECTS; i++) {
        held[i] = malloc(BYTES);
        memset(held[i], 1, BYTES);
    }
}

static void give(void) {
    for (int i = 0; i < OBJECTS; i++) free(held[i]);
}

static void sane(const struct mallinfo2 *m) {
    CHECK(m->arena == m->uordblks + m->fordblks, "%zu, %zu + %zu", m->arena, m->uordblks, m->fordblks);
    CHECK(m->keepcost <= m->arena, "%zu of %zu", m->keepcost, m->arena);
    CHECK(m->fsmblks == 0 || m->smblks > 0, "%zu bytes in no object", m->fsmblks);
}

/* 10 MB of objects raise the figures by 10 MB, and a free lowers them again. */
static void totals(void) {
    struct mallinfo2 before = mallinfo2();
    take();
    struct mallinfo2 during = mallinfo2();
    give();
    struct mallinfo2 after = mallinfo2();
    sane(&before);
    sane(&during);
    sane(&after);
    size_t grown = during.uordblks - before.uordblks;
    CHECK(grown >= OBJECTS * BYTES && grown <= 12 * MIB, "%zu bytes more in use", grown);
    CHECK(after.uordblks < before.uordblks + 64 * 1024, "%zu, %zu after", before.uordblks, after.uordblks);
    CHECK(after.fordblks > 0 && after.ordblks > 0, "nothing is free");

    void *large = malloc(5 * MIB);
    struct mallinfo2 with = mallinfo2();
    CHECK(with.hblks == after.hblks + 1, "%zu large objects, %zu before", with.hblks, after.hblks);
    CHECK(with.hblkhd == after.hblkhd + 5 * MIB, "%zu large bytes, %zu before", with.hblkhd, after.hblkhd);
    free(large);
    struct mallinfo2 without = mallinfo2();
    CHECK(without.hblks == after.hblks && without.hblkhd == after.hblkhd, "the large object stays");
}

/* The figures include a few more objects even if no slow path ran for them. */
static void small_steps(void) {
    void *objects[100];
    struct mallinfo2 before = mallinfo2();
    for (int i = 0; i < 100; i++) {
        objects[i] = malloc(48);
        struct mallinfo2 now = mallinfo2();
        CHECK(now.uordblks == before.uordblks + 48 * (i + 1), "%zu after %d", now.uordblks - before.uordblks, i + 1);
    }
    for (int i = 0; i < 100; i++) free(objects[i]);
    CHECK(mallinfo2().uordblks == before.uordblks, "not as before");
}

/* Fields of type int stop at INT_MAX. */
static void narrow(void) {
    char *large = malloc(3 * 1024 * MIB);
    if (large != NULL) {
        struct mallinfo info = mallinfo();
        struct mallinfo2 wide = mallinfo2();
        CHECK(info.hblkhd == INT_MAX, "%d", info.hblkhd);
        CHECK((size_t)info.uordblks == wide.uordblks, "%d, %zu", info.uordblks, wide.uordblks);
        free(large);
    }
}

static void options(void) {
    errno = 4242;
    for (int parameter = -10; parameter <= 5; parameter++) {
        CHECK(mallopt(parameter, 1) == 0, "parameter %d", parameter);
    }
    CHECK(errno == 4242, "%d", errno);
}

static void trim(void) {
    malloc_trim(0);
    take();
    give();
    CHECK(malloc_trim(SIZE_MAX) == 0, "all was to be kept");
    CHECK(mallinfo2().keepcost > 4096, "%zu bytes kept", mallinfo2().keepcost);
    CHECK(malloc_trim(0) == 1, "there was something");
    CHECK(mallinfo2().keepcost == 0, "%zu bytes left", mallinfo2().keepcost);
    CHECK(malloc_trim(0) == 0, "there was nothing");
}

static void second_names(void) {
    char *object = __libc_realloc(__libc_malloc(10), 1000);
    CHECK(malloc_usable_size(object) >= 1000, "%zu", malloc_usable_size(object));
    free(object);
    __libc_free(malloc(10));
    __libc_free(__libc_memalign(64, 64));
    old_cfree(malloc(100));
    object = __libc_calloc(4, 4);
    CHECK(object[15] == 0 && malloc_usable_size(object) >= 16, "%zu", malloc_usable_size(object));
    free(object);
    CHECK(aligned_alloc(3, 16) == NULL && errno == EINVAL, "aligned_alloc(3, 16)");
}

/* Documents that several threads request while others allocate are consistent. */
static atomic_int stopped;

static void *allocates(void *seed) {
    unsigned state = (unsigned)(size_t)seed;
    static _Thread_local void *mine[500];
    while (!stopped) {
        state = state * 1103515245 + 12345;
        void **place = &mine[state >> 16 & 255];
        free(*place);
        *place = malloc(state >> 20 & 0xfff);
    }
    for (int i = 0; i < 500; i++) free(mine[i]);
    return NULL;
}

static size_t number(const char *text, const char *start) {
    const char *at = strstr(text, start);
    CHECK(at != NULL, "no %s in %s", start, text);
    return strtoull(at + strlen(start), NULL, 10);
}

static void sound(char *text) {
    size_t listed = 0, objects = 0, before = 0;
    char *end = strstr(text, "</sizes>");
    CHECK(end != NULL, "no sizes in %s", text);
    for (char *at = strstr(text, "<size "); at != NULL && at < end; at = strstr(at + 1, "<size ")) {
        size_t from, to, total, count;
        int read = sscanf(at, "<size from=\"%zu\" to=\"%zu\" total=\"%zu\" count=\"%zu\"/>", &from, &to, &total, &count);
        CHECK(read == 4 && from > before && from <= to && total == to * count, "%.80s", at);
        before = to;
        listed += total;
        objects += count;
    }
    size_t fast = number(end, "type=\"fast\" count=\""), rest = number(end, "type=\"rest\" count=\"");
    CHECK(fast + rest == objects || fast + rest == objects + 1, "%zu listed of %zu + %zu", objects, fast, rest);
    size_t current = number(end, "type=\"current\" size=\""), max = number(end, "type=\"max\" size=\"");
    CHECK(current <= max, "%zu now, %zu at most", current, max);
    CHECK(max <= number(end, "type=\"total\" size=\""), "%zu in use of %s", max, end);
    CHECK(strcmp(text + strlen(text) - 10, "</malloc>\n") == 0, "no end: %s", text);
}

static void *asks(void *unused) {
    for (int i = 0; i < 300; i++) {
        char *text;
        size_t length;
        FILE *stream = open_memstream(&text, &length);
        CHECK(malloc_info(0, stream) == 0, "refused");
        fclose(stream);
        sound(text);
        free(text);
        struct mallinfo2 info = mallinfo2();
        sane(&info);
    }
    return unused;
}

static void under_load(void) {
    pthread_t threads[6];
    for (size_t i = 0; i < 6; i++) {
        pthread_create(&threads[i], NULL, i < 3 ? asks : allocates, (void *)(i + 1));
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    stopped = 1;
    for (int i = 3; i < 6; i++) pthread_join(threads[i], NULL);
}

static void streams(void) {
    errno = 0;
    CHECK(malloc_info(1, stdout) == EINVAL && errno == EINVAL, "errno %d", errno);
    FILE *full = fopen("/dev/full", "w");
    setvbuf(full, NULL, _IONBF, 0);
    CHECK(malloc_info(0, full) == -1 && errno == ENOSPC, "errno %d", errno);
    fclose(full);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        /* Some memory is free, and one large object is live. */
        take();
        for (int i = 0; i < OBJECTS; i += 2) free(held[i]);
        void *large = malloc(5 * MIB);
        int outcome = malloc_info(0, stdout);
        free(large);
        return outcome;
    }
    totals();
    small_steps();
    narrow();
    options();
    trim();
    second_names();
    streams();
    under_load();
    malloc_stats();
    puts("ok");
    return 0;
}

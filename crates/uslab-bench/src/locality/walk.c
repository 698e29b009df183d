/*
 * A linked list of objects from malloc, walked: where an allocator puts objects, measured by the
 * program that uses them. suites/locality.rs compiles it when the benchmark runs; by hand:
 *
 *   cc -O2 -o walk walk.c
 *   LD_PRELOAD=ALLOCATOR ./walk [OBJECTS [HALVES [SIZE...]]]       2000000 4 32 64 96 208
 *
 * Sizes come by turns, objects are linked in the order of allocation, and a step reads a word of
 * the object beside its link. A half that goes is freed in list order; each object that comes takes
 * the place of one that went. Phases and output: measure.h.
 */
#include "measure.h"

enum { MAX_SIZES = 16 };

struct object {
    struct object *next;
    uint64_t value;
};

static size_t sizes[MAX_SIZES] = {32, 64, 96, 208};
static size_t size_count = 4;
/* The objects in list order. */
static struct object **list;
static unsigned char *gone;

static void build(void);
static uint64_t walk(void);
static void churn(void);
static void clear(void);
static void places(uintptr_t *addresses);
static struct subject subject = {2000000, 4, build, walk, churn, clear, places};

static struct object *make(size_t i)
{
    struct object *made = malloc(sizes[i % size_count]);
    if (made == NULL) fail("malloc returned NULL");
    made->value = i;
    return made;
}

static void build(void)
{
    struct object *last = NULL;
    for (size_t i = 0; i < subject.objects; i++) {
        struct object *made = make(i);
        made->next = NULL;
        list[i] = made;
        if (last != NULL) last->next = made;
        last = made;
    }
}

static uint64_t walk(void)
{
    uint64_t sum = 0;
    for (struct object *at = list[0]; at != NULL; at = at->next) sum += at->value;
    if (sum != (uint64_t)subject.objects * (subject.objects - 1) / 2) fail("an object was lost");
    return sum;
}

static void churn(void)
{
    for (size_t i = 0; i < subject.objects; i++) {
        gone[i] = (unsigned char)coin();
        if (gone[i]) free(list[i]);
    }
    for (size_t i = 0; i < subject.objects; i++)
        if (gone[i]) list[i] = make(i);
    for (size_t i = 0; i + 1 < subject.objects; i++) list[i]->next = list[i + 1];
    list[subject.objects - 1]->next = NULL;
}

static void clear(void)
{
    for (size_t i = 0; i < subject.objects; i++) free(list[i]);
}

static void places(uintptr_t *addresses)
{
    for (size_t i = 0; i < subject.objects; i++) addresses[i] = (uintptr_t)list[i];
}

int main(int argc, char **argv)
{
    if (argc > 1) subject.objects = strtoul(argv[1], NULL, 10);
    if (argc > 2) subject.halves = strtoul(argv[2], NULL, 10);
    if (argc > 3) size_count = (size_t)argc - 3;
    if (size_count > MAX_SIZES) fail("16 sizes at most");
    for (size_t i = 0; argc > 3 && i < size_count; i++) {
        sizes[i] = strtoul(argv[i + 3], NULL, 10);
        if (sizes[i] < sizeof(struct object)) fail("an object has 16 bytes at least");
    }
    list = (struct object **)table(subject.objects * sizeof *list);
    gone = (unsigned char *)table(subject.objects);
    measure(&subject);
    return 0;
}

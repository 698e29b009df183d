/* Searches for leaks on request: what uslab_find_leaks counts, and what it reports. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uslab.h>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#define STEP __attribute__((noinline, used))

struct node {
    struct node *volatile next;
    char text[56];
};

static struct node *volatile kept;

STEP static void lose(int count)
{
    struct node *head = NULL;
    while (count-- > 0) {
        struct node *node = uslab_malloc(sizeof *node);
        CHECK(node != NULL);
        node->next = head;
        head = node;
    }
}

STEP static void keep(void)
{
    kept = uslab_malloc(sizeof *kept);
    CHECK(kept != NULL);
    kept->next = uslab_malloc(sizeof *kept);
}

/* Overwrites what calls that returned left on the stack. */
STEP static void scrub(void)
{
    char room[100 << 10] __attribute__((aligned(16)));
    for (size_t i = 0; i < sizeof room; i += sizeof(char *))
        *(char *volatile *)(room + i) = NULL;
}

STEP static void search(uslab_leaks *leaks)
{
    memset(leaks, 0xff, sizeof *leaks);
    leaks->type_size = sizeof *leaks;
    CHECK(uslab_find_leaks(leaks) == 0);
    CHECK(leaks->suppressed_objects == 0 && leaks->suppressed_bytes == 0);
}

int main(int argc, char **argv)
{
    uslab_leaks leaks;
    if (argc > 1 && strcmp(argv[1], "untracked") == 0) {
        errno = 0;
        CHECK(uslab_find_leaks(NULL) == ENODATA && errno == ENODATA);
        puts("ok");
        return 0;
    }
    keep();
    lose(10);
    scrub();
    search(&leaks);
    CHECK(leaks.objects == 1 && leaks.bytes == sizeof(struct node) && leaks.places == 1);
    CHECK(leaks.indirect_objects == 9 && leaks.indirect_bytes == 9 * sizeof(struct node));
    CHECK(leaks.misses_registers == 0);
    kept = NULL;
    scrub();
    search(&leaks);
    CHECK(leaks.objects == 2 && leaks.indirect_objects == 10 && leaks.places == 2);
    CHECK(uslab_find_leaks(NULL) == 0);
    puts("ok");
    return 0;
}

/* Objects of every kind in known states, for gdb, which stops in `look`. */
#include <stdlib.h>
#include <string.h>

char *small, *inner, *gone, *medium, *gone_medium, *large, *tracked, *gone_tracked, *outside;
static char *many[100];

__attribute__((noinline)) void look(void)
{
    __asm__ volatile("");
}

__attribute__((noinline)) static char *make_here(size_t size)
{
    char *object = malloc(size);
    memset(object, 1, size);
    return object;
}

__attribute__((noinline)) static void give_here(char *object)
{
    free(object);
    __asm__ volatile("");
}

int main(void)
{
    static char own[8];
    size_t i;
    outside = own;
    for (i = 0; i < 100; i++) many[i] = make_here(1000);
    small = make_here(1000);
    inner = small + 10;
    gone = make_here(1000);
    medium = make_here(100000);
    gone_medium = make_here(100000);
    large = make_here(5 << 20);
    tracked = make_here(61);
    gone_tracked = make_here(61);
    give_here(gone);
    give_here(gone_medium);
    give_here(gone_tracked);
    look();
    return many[99] == NULL;
}

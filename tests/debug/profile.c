/* Programs for the heap profile: ten sites of known bytes, and every way to end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SITE_BYTES (8u << 20)

/* A function of its own for each site, whose name stands in the stack's symbol. */
#define SITE(n, size)                                                                              \
    __attribute__((noinline)) void site_##n(int keeps)                                             \
    {                                                                                              \
        for (size_t bytes = 0; bytes < SITE_BYTES; bytes += (size)) {                              \
            volatile char *object = malloc(size);                                                  \
            object[0] = 1;                                                                         \
            if (!keeps)                                                                            \
                free((void *)object);                                                              \
        }                                                                                          \
    }

SITE(0, 16)
SITE(1, 48)
SITE(2, 112)
SITE(3, 256)
SITE(4, 640)
SITE(5, 2048)
SITE(6, 7168)
SITE(7, 40960)
SITE(8, 262144)
SITE(9, 2097152)

static void (*const sites[])(int) = {site_0, site_1, site_2, site_3, site_4,
                                     site_5, site_6, site_7, site_8, site_9};

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "";
    for (int n = 0; n < 10; n++)
        sites[n](n % 2);
    /* The addresses of the functions, which the test looks for in the stacks. */
    for (int n = 0; n < 10; n++)
        printf("%zx ", (size_t)sites[n]);
    fflush(stdout);
    if (strcmp(way, "fork") == 0) {
        if (fork() == 0) {
            site_9(1);
            exit(0);
        }
        int status;
        wait(&status);
        return status != 0;
    }
    if (strcmp(way, "exec") == 0)
        execl(argv[0], argv[0], "again", (char *)0);
    if (strcmp(way, "wait") == 0)
        pause();
    return 0;
}

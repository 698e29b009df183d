/*
 * A program under a limit of 32 KiB on its stack: the library starts on what the loader leaves.
 */
#define _GNU_SOURCE
#include "check.h"

#include <sys/resource.h>

extern char **environ;

int main(int argc, char **argv) {
    if (argc > 1) {
        char *object = malloc(100);
        CHECK(object != NULL);
        memset(object, 1, 100);
        free(object);
        puts("ok");
        return 0;
    }
    /* Other variables would take a part of the stack. */
    char *kept[16];
    int n = 0;
    for (char **entry = environ; *entry != NULL && n < 15; entry++)
        if (strncmp(*entry, "LD_PRELOAD=", 11) == 0 || strncmp(*entry, "USLAB_", 6) == 0) kept[n++] = *entry;
    kept[n] = NULL;
    const struct rlimit limit = {32 << 10, 32 << 10};
    CHECK(setrlimit(RLIMIT_STACK, &limit) == 0);
    execve("/proc/self/exe", (char *[]){argv[0], "child", NULL}, kept);
    perror("execve");
    return 1;
}

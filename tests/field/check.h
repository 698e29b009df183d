/* Shared by the field programs: assertions, and figures of the process. */
#ifndef USLAB_FIELD_CHECK_H
#define USLAB_FIELD_CHECK_H

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* Prints the failed condition and ends the process at once, because destructors may be under
 * test. */
#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            dprintf(2, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);          \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

/* A figure of /proc/self/status, in KiB. */
static inline long status_kib(const char *name) {
    static char text[8192];
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *line = strstr(text, name);
    CHECK(line != NULL);
    return atol(line + strlen(name));
}

#endif

/* Shared by the C and C++ programs: a check that prints its place, and the last line that the tests
 * require. */
#ifndef USLAB_TESTS_CAPI_CHECK_H
#define USLAB_TESTS_CAPI_CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            (void)fprintf(stderr, "%s:%d: %s does not hold (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

/* The expression fails with this error number. */
#define CHECK_FAILS(expression, error) \
    do {                               \
        errno = 0;                     \
        CHECK(!(expression));          \
        CHECK(errno == (error));       \
    } while (0)

static inline int ended(void)
{
    return puts("ok") < 0;
}

#endif

/*
 * What the checks of the malloc family share: assertions that name the place, memory patterns, and storms.
 *
 * A check is a function without arguments that returns when all is well. A storm is a number of threads that allocate,
 * fill, verify and free as fast as they can until told to stop; whatever is checked happens in the middle of it.
 */
#ifndef USLAB_CONFORMANCE_CHECK_H
#define USLAB_CONFORMANCE_CHECK_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct check {
    const char *name;
    void (*run)(void);
};

/* One table a file, each ended by a null name. */
extern const struct check limits_checks[];
extern const struct check content_checks[];
extern const struct check alignment_checks[];
extern const struct check lifecycle_checks[];
extern const struct check signal_checks[];
extern const struct check fork_checks[];
extern const struct check thread_checks[];
extern const struct check operator_checks[];

/* Says what did not hold and ends the process with status 1. Allocates nothing. */
void failed(const char *file, int line, const char *what, const char *format, ...)
    __attribute__((noreturn, format(printf, 4, 5)));

#define CHECK(condition, ...)                                          \
    do {                                                               \
        if (!(condition)) failed(__FILE__, __LINE__, #condition, " " __VA_ARGS__); \
    } while (0)

/* A size that the compiler cannot see through, so that it neither warns of it nor computes with it. */
size_t opaque(size_t);

/* Bytes that depend on the seed and on their place; `intact` is whether they are all there. */
void fill(void *, size_t, uint64_t seed);
int intact(const void *, size_t, uint64_t seed);
int all_zero(const void *, size_t);

/* A small generator (xorshift64*): the state must not be 0. */
uint64_t next_random(uint64_t *state);

/* Starts threads that storm; `storm_end` joins them and returns how many blocks they went through. */
void storm_begin(int threads);
uint64_t storm_end(void);
/* A part of what a storm's thread does: `rounds` blocks come and go, all verified. Returns 0 when one was damaged. */
int churn(int rounds, uint64_t seed);

/* Waits for a child and checks that it ended with status 0. */
void expect_clean_child(pid_t, const char *what);

/* Counters that children share with their parent. */
#ifndef __cplusplus
extern _Atomic(int) *shared_counts;
#endif
enum { COUNT_EXIT, COUNT_DESTRUCTOR, COUNT_LATE, COUNT_STATIC, COUNT_ATFORK, COUNTS };
/* Adds to one of them; called from the early library too. */
void note(int which);

#ifdef __cplusplus
}
#endif
#endif

/*
 * Shared by the checks of the malloc family: assertions that print their place, memory patterns,
 * and storms.
 *
 * A check is a function without arguments that returns on success. A storm is a number of threads
 * that allocate, fill, verify and free as fast as they can until they are stopped; the check runs
 * meanwhile.
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

/* Prints the failed condition and ends the process with status 1. Allocates nothing. */
void failed(const char *file, int line, const char *what, const char *format, ...)
    __attribute__((noreturn, format(printf, 4, 5)));

#define CHECK(condition, ...)                                          \
    do {                                                               \
        if (!(condition)) failed(__FILE__, __LINE__, #condition, " " __VA_ARGS__); \
    } while (0)

/* A size that the compiler cannot see, so that it neither warns about it nor computes with it. */
size_t opaque(size_t);

/* Fills a block with bytes that depend on the seed and on their place; `intact` returns whether
 * they are unchanged. */
void fill(void *, size_t, uint64_t seed);
int intact(const void *, size_t, uint64_t seed);
int all_zero(const void *, size_t);

/* A small generator (xorshift64*): the state must not be 0. */
uint64_t next_random(uint64_t *state);

/* Starts the threads of a storm; `storm_end` joins them and returns the number of their blocks. */
void storm_begin(int threads);
uint64_t storm_end(void);
/* A part of a storm thread's work: allocates, verifies and frees `rounds` blocks. Returns 0 if one
 * was damaged. */
int churn(int rounds, uint64_t seed);

/* Waits for a child and checks that it ended with status 0. */
void expect_clean_child(pid_t, const char *what);

/* Counters that children share with their parent. */
#ifndef __cplusplus
extern _Atomic(int) *shared_counts;
#endif
enum { COUNT_EXIT, COUNT_DESTRUCTOR, COUNT_LATE, COUNT_STATIC, COUNT_ATFORK, COUNTS };
/* Increments a counter; called from the early library too. */
void note(int which);

#ifdef __cplusplus
}
#endif
#endif

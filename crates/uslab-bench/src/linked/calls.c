/*
 * uslab's C functions beside mimalloc's, each through its shared library: suites/linked.rs compiles
 * this when the benchmark runs.
 *
 *   PROGRAM OUT KIND SIZE LIVE ROUNDS ROUND_US TOUCH      KIND: cache | sheaf | malloc | bulk
 *
 * The program is linked with libuslab.so, and opens Debian's libmimalloc.so.2 with RTLD_LOCAL, so
 * that mimalloc's malloc does not become the program's. It calls all functions through addresses
 * from dlsym, which costs as much as a call through the global offset table. The same instructions
 * call malloc and free of both, and of the library of empty functions. mimalloc has no caches, no
 * sheaves and no bulk: its lane is mi_malloc and mi_free of as many objects, in the same order.
 *
 * Lanes take turns, round by round. A round is a loop of LIVE allocations and LIVE frees, first in
 * first out, repeated until it takes about ROUND_US. Where addresses of the allocator and of the
 * program agree in their low twelve bits, the processor delays a load for an unrelated store. So
 * the program's array and its stack move by a cache line each round, and the least round is free of
 * that. OUT gets a line a lane: its name, and ns an object (allocated and freed) of every round.
 * Errors are one line on standard error.
 *
 * Compiled with -DEMPTY this is the library of empty functions, the cost of the calls alone:
 * libempty.so beside the program.
 *
 * Must never: outlive its limit; print figures where memory was missing.
 */
#define _GNU_SOURCE
#include <stddef.h>

#ifdef EMPTY

static _Alignas(64) char object[4096];

void *empty_malloc(size_t size)
{
	(void)size;
	return object;
}

void empty_free(void *pointer)
{
	(void)pointer;
}

#else

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uslab.h>

#define MAX_LIVE   4096
#define MAX_ROUNDS 100000
#define LIMIT_S     300

/* Places of the array and the stack, a cache line apart, in a page. */
#define PLACES     64
#define LINE_WORDS 8

typedef void *alloc_function(size_t);
typedef void free_function(void *);
typedef void *cache_alloc_function(uslab_cache *, unsigned);
typedef void cache_free_function(uslab_cache *, void *);
typedef void *sheaf_alloc_function(uslab_sheaf *, unsigned);
typedef void sheaf_free_function(uslab_sheaf *, void *);
typedef bool alloc_bulk_function(uslab_cache *, unsigned, size_t, void **);
typedef void free_bulk_function(uslab_cache *, size_t, void *const *);

static cache_alloc_function *cache_alloc;
static cache_free_function *cache_free;
static sheaf_alloc_function *sheaf_alloc;
static sheaf_free_function *sheaf_free;
static alloc_bulk_function *alloc_bulk;
static free_bulk_function *free_bulk;

/* Those of the lane whose turn it is. */
static alloc_function *plain_alloc;
static free_function *plain_free;

static uslab_cache *cache;
static uslab_sheaf *sheaf;
static _Alignas(4096) void *array[MAX_LIVE + PLACES * LINE_WORDS];

static size_t size, live;
static bool touch;

static void fail(const char *what)
{
	const char *why = dlerror();
	fprintf(stderr, "%s%s%s\n", what, why ? ": " : "", why ? why : "");
	exit(1);
}

/* Writes the first word where that is asked for. */
static inline void take(void *object)
{
	if (touch)
		*(volatile uintptr_t *)object = 1;
}

/* One live object is no live set: it needs no array. */
#define LOOPS(name, allocate, release)                                   \
	static void name(size_t repeats, void **objects)                 \
	{                                                                \
		if (live == 1) {                                         \
			for (size_t i = 0; i < repeats; i++) {           \
				void *object = allocate;                 \
				take(object);                            \
				release;                                 \
			}                                                \
			return;                                          \
		}                                                        \
		for (size_t i = 0; i < repeats; i++) {                   \
			for (size_t at = 0; at < live; at++) {           \
				void *object = allocate;                 \
				take(object);                            \
				objects[at] = object;                    \
			}                                                \
			for (size_t at = 0; at < live; at++) {           \
				void *object = objects[at];              \
				release;                                 \
			}                                                \
		}                                                        \
	}

LOOPS(plain_pairs, plain_alloc(size), plain_free(object))
LOOPS(cache_pairs, cache_alloc(cache, 0), cache_free(cache, object))
LOOPS(sheaf_pairs, sheaf_alloc(sheaf, 0), sheaf_free(sheaf, object))

static void bulks(size_t repeats, void **objects)
{
	for (size_t i = 0; i < repeats; i++) {
		if (!alloc_bulk(cache, 0, live, objects))
			fail("no memory");
		for (size_t at = 0; touch && at < live; at++)
			take(objects[at]);
		free_bulk(cache, live, objects);
	}
}

struct lane {
	const char *name;
	void (*run)(size_t repeats, void **objects);
	alloc_function *alloc;
	free_function *free;
	size_t repeats;
	double *ns;
};

static double now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double timed_ns(const struct lane *lane, size_t repeats, size_t place)
{
	plain_alloc = lane->alloc;
	plain_free = lane->free;
	char lower[1 + place % PLACES * LINE_WORDS * sizeof(void *)];
	__asm__ volatile("" : : "r"(lower) : "memory");
	double start = now_ns();
	lane->run(repeats, array + place % PLACES * LINE_WORDS);
	double took = now_ns() - start;
	/* A coarse clock may not have moved. */
	return took > 1 ? took : 1;
}

/* How many repetitions take `round_ns`; finding out is the warm-up as well. */
static size_t repeats_for(const struct lane *lane, double round_ns)
{
	for (size_t repeats = 1;; repeats *= 2) {
		/* The first run of a size pays for fresh memory, and any may be interrupted: the
		 * best of three counts. */
		double took = timed_ns(lane, repeats, 0);
		for (size_t i = 1; i < 3; i++) {
			double again = timed_ns(lane, repeats, i);
			if (again < took)
				took = again;
		}
		if (took * 4 < round_ns)
			continue;
		size_t fits = (size_t)((double)repeats * round_ns / took);
		return fits < 1 ? 1 : fits;
	}
}

static void *open_library(const char *name, const char *complaint)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fail(complaint);
	return library;
}

/* Conversions of an object's pointer to a function's are what dlsym is for. */
#define FIND(library, name, type) ((type *)(uintptr_t)find(library, name))

static void *find(void *library, const char *name)
{
	void *found = dlsym(library, name);
	if (!found)
		fail(name);
	return found;
}

static void write_lanes(const char *path, const struct lane *lanes, size_t count, size_t rounds)
{
	FILE *out = fopen(path, "w");
	if (!out)
		fail("the results cannot be written");
	for (size_t lane = 0; lane < count; lane++) {
		fputs(lanes[lane].name, out);
		for (size_t round = 0; round < rounds; round++)
			fprintf(out, "%c%.6f", round == 0 ? '\t' : ' ', lanes[lane].ns[round]);
		fputc('\n', out);
	}
	if (fclose(out) != 0)
		fail("the results cannot be written");
}

int main(int argc, char **argv)
{
	if (argc != 8)
		fail("usage: OUT KIND SIZE LIVE ROUNDS ROUND_US TOUCH");
	const char *kind = argv[2];
	size = strtoul(argv[3], NULL, 10);
	live = strtoul(argv[4], NULL, 10);
	touch = argv[7][0] == '1';
	size_t rounds = strtoul(argv[5], NULL, 10);
	double round_ns = strtod(argv[6], NULL) * 1e3;
	if (size < sizeof(uintptr_t) || size > 4096 || live == 0 || live > MAX_LIVE || rounds == 0 || rounds > MAX_ROUNDS)
		fail("a number is out of range");
	/* The waiting thread has no limit of its own. */
	alarm(LIMIT_S);

	void *mimalloc = open_library("libmimalloc.so.2", "no libmimalloc.so.2 (Debian: libmimalloc2.0)");
	void *uslab = open_library("libuslab.so.1", "no libuslab.so.1");
	void *empty = open_library("./libempty.so", "no libempty.so");
	cache_alloc = FIND(uslab, "uslab_cache_alloc", cache_alloc_function);
	cache_free = FIND(uslab, "uslab_cache_free", cache_free_function);
	sheaf_alloc = FIND(uslab, "uslab_sheaf_alloc", sheaf_alloc_function);
	sheaf_free = FIND(uslab, "uslab_sheaf_free", sheaf_free_function);
	alloc_bulk = FIND(uslab, "uslab_cache_alloc_bulk", alloc_bulk_function);
	free_bulk = FIND(uslab, "uslab_cache_free_bulk", free_bulk_function);
	/* By its name, so that the program is linked with the library, as programs are. */
	cache = uslab_cache_create("bench-calls", size, NULL);
	if (!cache)
		fail("no cache");

	struct lane lanes[] = {
		{ .name = "mimalloc v2, .so",
		  .run = plain_pairs,
		  .alloc = FIND(mimalloc, "mi_malloc", alloc_function),
		  .free = FIND(mimalloc, "mi_free", free_function) },
		{ 0 },
		{ .name = "empty calls",
		  .run = plain_pairs,
		  .alloc = FIND(empty, "empty_malloc", alloc_function),
		  .free = FIND(empty, "empty_free", free_function) },
	};
	size_t count = sizeof lanes / sizeof *lanes;
	struct lane *ours = &lanes[1];
	if (!strcmp(kind, "cache")) {
		*ours = (struct lane){ .name = "uslab cache, .so", .run = cache_pairs };
	} else if (!strcmp(kind, "sheaf")) {
		*ours = (struct lane){ .name = "uslab sheaf, .so", .run = sheaf_pairs };
		sheaf = uslab_cache_local(cache, 0);
		if (!sheaf)
			fail("no sheaf");
	} else if (!strcmp(kind, "malloc")) {
		*ours = (struct lane){ .name = "uslab malloc, .so",
				       .run = plain_pairs,
				       .alloc = FIND(uslab, "uslab_malloc", alloc_function),
				       .free = FIND(uslab, "uslab_free", free_function) };
	} else if (!strcmp(kind, "bulk")) {
		*ours = (struct lane){ .name = "uslab cache, bulk, .so", .run = bulks };
		/* Its calls are two, whatever LIVE is: empty calls by pairs are no part of it. */
		count--;
	} else {
		fail("KIND is cache, sheaf, malloc or bulk");
	}

	for (size_t lane = 0; lane < count; lane++) {
		lanes[lane].ns = calloc(rounds, sizeof(double));
		if (!lanes[lane].ns)
			fail("no memory");
		lanes[lane].repeats = repeats_for(&lanes[lane], round_ns);
	}
	for (size_t round = 0; round < rounds; round++) {
		for (size_t turn = 0; turn < count; turn++) {
			struct lane *lane = &lanes[(round + turn) % count];
			lane->ns[round] = timed_ns(lane, lane->repeats, round) / ((double)lane->repeats * (double)live);
		}
	}
	uslab_sheaf_return(sheaf);
	if (uslab_cache_destroy(cache) != 0)
		fail("objects of the cache are missing");
	write_lanes(argv[1], lanes, count, rounds);
	return 0;
}

#endif

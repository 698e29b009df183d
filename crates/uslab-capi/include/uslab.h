/*
 * uslab: the Linux slab allocator for user space, from C.
 *
 *   caches      objects of one size, served from per-CPU sheaves without lock or atomic instruction     uslab_cache_*
 *   sheaves     objects set aside, so that a number of allocations cannot fail                          uslab_sheaf_*
 *   malloc      any size; heaps: the same, private and destroyed whole                                  uslab_malloc …, uslab_heap_*
 *   reclaim     the program's own caches give entries up when memory is wanted                          uslab_shrinker_*, uslab_reclaim
 *   sources     who says that memory is short: service manager, kernel, control group                   uslab_watch_pressure
 *   figures     of one cache, of the process, as text                                                   uslab_stats_* …
 *
 * For every function, unless it says otherwise:
 *
 *   Threads     Any thread may call it at any time. What it is given must not be used by others where ownership ends: what is freed,
 *               destroyed, returned, unregistered.
 *   Forks       A child of fork may call it, also when the parent had threads. vfork children must call nothing, as ever.
 *   Signals     A signal handler must not, like malloc, if it may have interrupted one of these functions.
 *   Errors      Functions that return a pointer return NULL, functions that return int an error number, bool ones false, and errno says why.
 *               Functions that return an error number return 0 for success. NULL and other values that can be recognised as wrong are
 *               EINVAL. errno is not changed by a successful free.
 *   Misuse      Freeing an object twice in a row, or a pointer to the inside of one, is reported
 *               at once; other misuse, and that of uslab_cache_free_bulk, at the latest when the
 *               object gets to its slab: a line on standard error, and abort().
 *               USLAB_ON_MISUSE=report goes on instead.
 *   Memory      None comes from the C library's malloc. What comes from these functions must go back to these functions: with
 *               libuslab_malloc.so preloaded, free() is that library's, which is another allocator.
 *
 * Structures that the caller fills start with type_size, to be set to sizeof: a program compiled with an older, smaller structure works with a
 * newer library. One compiled with a newer structure works with an older library as long as it leaves at 0 what that does not know; otherwise
 * EINVAL. Zero-initialise them: 0 is always the default.
 *
 * C99 and later, C++11 and later.
 */
#ifndef USLAB_H
#define USLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define USLAB_VERSION_MAJOR 0
#define USLAB_VERSION_MINOR 1
#define USLAB_VERSION_PATCH 0

#if defined(__GNUC__)
#define USLAB_ATTRIBUTE(list) __attribute__(list)
#else
#define USLAB_ATTRIBUTE(list)
#endif

/* On what is called most: the caller reads the function's address and calls that, without the jump through the procedure linkage table. With the archive,
 * linkers make it a plain call. */
#define USLAB_DIRECT
#if defined(__has_attribute)
#if __has_attribute(noplt)
#undef USLAB_DIRECT
#define USLAB_DIRECT USLAB_ATTRIBUTE((noplt))
#endif
#endif

#if defined(__cplusplus)
#define USLAB_NOEXCEPT noexcept
extern "C" {
#else
#define USLAB_NOEXCEPT
#endif

/* ---- Caches ---------------------------------------------------------------------------------------------------------- */

/* A cache of objects of one size. */
typedef struct uslab_cache uslab_cache;

/* Switches of a cache. */
#define USLAB_HWCACHE_ALIGN 0x1u   /* objects start on cache lines of their own; small ones share a line in whole parts */
#define USLAB_NO_CACHING    0x2u   /* every object comes from and goes to its slab: slow, and exact */
#define USLAB_COLD          0x4u   /* the objects' memory will not be touched soon (receive buffers): leave warm pages to others */

/* Switches of debugging. This version has none: a cache that asks for one is not made, with ENOTSUP. */
#define USLAB_RED_ZONE      0x100u /* bytes around each object that nobody may write to */
#define USLAB_POISON        0x200u /* patterns in free objects */
#define USLAB_STORE_USER    0x400u /* who allocated and who freed last */

/* Switches of an allocation. */
#define USLAB_ZERO          0x10000u /* zeroes; EINVAL for a cache with a constructor, whose work that would undo */
#define USLAB_NORECLAIM     0x20000u /* fail rather than call shrinkers: for callers that hold locks which a shrinker takes */

typedef struct uslab_cache_options {
    size_t   type_size;           /* sizeof(uslab_cache_options) */
    size_t   align;               /* a power of two, at most 256 KiB; 0: natural, which is 16 if it divides the size, else 8 */
    unsigned flags;               /* USLAB_HWCACHE_ALIGN, ... */
    void   (*ctor)(void *object); /* called once for each object when its slab is made, never per allocation: who frees an object leaves
                                     it constructed. It may run on any thread and must not use the cache, throw or longjmp. */
    unsigned min_objects;         /* objects of a slab, if max_order allows; 0: by the number of CPUs */
    unsigned min_order;           /* a slab takes at least 2^min_order pages of 4 KiB */
    unsigned max_order;           /* and at most 2^max_order, unless one object needs more; 0: 3; no more than 8 */
    unsigned sheaf_capacity;      /* objects that a CPU keeps in each of its two sheaves; 0: adaptive */
} uslab_cache_options;

/*
 * Makes a cache of objects of `size` bytes, 1 to 256 KiB. Of the name, UTF-8, 47 bytes are kept for statistics and reports; two caches
 * may have the same. Takes locks and makes system calls.
 *
 * EINVAL: no name, size 0, a bad alignment, flag or structure; E2BIG: size or alignment past 256 KiB; ENOTSUP: debugging; ENFILE: 65 000
 * caches; ENOMEM.
 */
uslab_cache *uslab_cache_create(const char *name, size_t size, const uslab_cache_options *options /* may be NULL */) USLAB_NOEXCEPT;

/*
 * Destroys a cache. While objects live it stays as it is: EBUSY, and a line on standard error with their number and the first of them.
 * NULL is allowed.
 */
int uslab_cache_destroy(uslab_cache *cache) USLAB_NOEXCEPT;

/*
 * An object: uninitialised, constructed, or with USLAB_ZERO zeroes. NULL with ENOMEM, or EINVAL for flags that are none.
 *
 * Without USLAB_ZERO mostly a dozen instructions; about once in sixty calls a slow path, which may make system calls and sleep on short locks.
 */
void *uslab_cache_alloc(uslab_cache *cache, unsigned flags) USLAB_NOEXCEPT USLAB_DIRECT;

/* Takes an object back. NULL is allowed. As fast as uslab_cache_alloc. */
void uslab_cache_free(uslab_cache *cache, void *object) USLAB_NOEXCEPT USLAB_DIRECT;

/* Fills all n places of `objects`, or none of use and false. n = 0 is true. */
bool uslab_cache_alloc_bulk(uslab_cache *cache, unsigned flags, size_t n, void **objects) USLAB_NOEXCEPT;

/* Takes n objects back; none of them may be NULL. */
void uslab_cache_free_bulk(uslab_cache *cache, size_t n, void *const *objects) USLAB_NOEXCEPT;

/* Empties the sheaves of all CPUs and gives empty slabs to the page layer; the bytes that went there. See uslab_trim. */
size_t uslab_cache_shrink(uslab_cache *cache) USLAB_NOEXCEPT;

/* The name, as far as it is kept; lives as long as the cache. */
const char *uslab_cache_name(const uslab_cache *cache) USLAB_NOEXCEPT;

/* The size that was asked for; 0 for NULL. */
size_t uslab_cache_object_size(const uslab_cache *cache) USLAB_NOEXCEPT;

/* Bytes of an object that may be used, at least those; 0 for NULL. */
size_t uslab_cache_usable_size(const uslab_cache *cache) USLAB_NOEXCEPT;

/* ---- Prefilled sheaves ----------------------------------------------------------------------------------------------- */

/* A private store of objects of one cache. One thread at a time may use it. */
typedef struct uslab_sheaf uslab_sheaf;

/* A store of n objects: so many allocations from it cannot fail. For work that must not stop half way. `flags`: 0 | USLAB_NORECLAIM; zeroes are
 * asked for when an object is taken. */
uslab_sheaf *uslab_cache_prefill(uslab_cache *cache, unsigned flags, size_t n) USLAB_NOEXCEPT;

/* An object of the store, to be freed with uslab_cache_free; NULL with ENOMEM when it is used up. `flags` as for uslab_cache_alloc. No lock, no
 * system call. */
void *uslab_sheaf_alloc(uslab_sheaf *sheaf, unsigned flags) USLAB_NOEXCEPT;

/* Objects left; 0 for NULL. */
size_t uslab_sheaf_count(const uslab_sheaf *sheaf) USLAB_NOEXCEPT;

/* Fills the store up to n objects at least. On failure it is as it was. */
int uslab_sheaf_refill(uslab_sheaf *sheaf, unsigned flags, size_t n) USLAB_NOEXCEPT;

/* Ends the store; what is left goes back to the cache, which must still live. NULL is allowed. */
void uslab_sheaf_return(uslab_sheaf *sheaf) USLAB_NOEXCEPT;

/* ---- malloc ---------------------------------------------------------------------------------------------------------- */

/* As the functions of C, with these differences: size 0 is a size like any other (also for realloc, which never frees); every power of two up to
 * 4096 is aligned to itself, everything else to 16. */
void  uslab_free(void *pointer) USLAB_NOEXCEPT USLAB_DIRECT;
void *uslab_malloc(size_t size) USLAB_NOEXCEPT USLAB_DIRECT USLAB_ATTRIBUTE((malloc, alloc_size(1)));
void *uslab_calloc(size_t count, size_t size) USLAB_NOEXCEPT USLAB_ATTRIBUTE((malloc, alloc_size(1, 2)));
void *uslab_realloc(void *pointer, size_t size) USLAB_NOEXCEPT USLAB_ATTRIBUTE((alloc_size(2)));

/* `align` must be a power of two, up to 1 GiB; any size. */
void *uslab_aligned_alloc(size_t align, size_t size) USLAB_NOEXCEPT USLAB_ATTRIBUTE((malloc, alloc_size(2)));

/* uslab_malloc with the switches of an allocation. */
void *uslab_malloc_flags(size_t size, unsigned flags) USLAB_NOEXCEPT USLAB_ATTRIBUTE((malloc, alloc_size(1)));

/* As uslab_free, for the very size (and alignment) that was asked for last: does not look the pointer up. */
void uslab_free_sized(void *pointer, size_t size) USLAB_NOEXCEPT USLAB_DIRECT;
void uslab_free_aligned_sized(void *pointer, size_t align, size_t size) USLAB_NOEXCEPT;

/* Bytes that may be used at `pointer`; 0 for NULL and for what is none of ours. Works for objects of caches and heaps too. */
size_t uslab_usable_size(const void *pointer) USLAB_NOEXCEPT;

/* Bytes that uslab_malloc(size) would let the caller use: asking for these wastes nothing. */
size_t uslab_good_size(size_t size) USLAB_NOEXCEPT;

/* n objects of `size` bytes, or none of use and false. n = 0 is true. */
bool uslab_malloc_bulk(size_t size, size_t n, void **objects) USLAB_NOEXCEPT;

/* Frees n pointers of any sizes; NULLs among them are allowed. Fastest where neighbours are of one size. */
void uslab_free_bulk(size_t n, void *const *objects) USLAB_NOEXCEPT;

/* ---- Heaps ----------------------------------------------------------------------------------------------------------- */

/*
 * A private set of size classes. Its memory is freed one by one, also by uslab_free, or all at once
 * with the heap.
 *
 * A heap costs what it owns, whatever else lives. Some 13 million size classes can be in use in all
 * heaps together; beyond that an allocation fails.
 */
typedef struct uslab_heap uslab_heap;

uslab_heap *uslab_heap_create(void) USLAB_NOEXCEPT;

/* Frees everything that came from the heap and was not freed. NULL is allowed. */
void uslab_heap_destroy(uslab_heap *heap) USLAB_NOEXCEPT;

void *uslab_heap_malloc(uslab_heap *heap, size_t size) USLAB_NOEXCEPT;
void *uslab_heap_calloc(uslab_heap *heap, size_t count, size_t size) USLAB_NOEXCEPT;
void *uslab_heap_realloc(uslab_heap *heap, void *pointer, size_t size) USLAB_NOEXCEPT;
void *uslab_heap_aligned_alloc(uslab_heap *heap, size_t align, size_t size) USLAB_NOEXCEPT;
void  uslab_heap_free(uslab_heap *heap, void *pointer) USLAB_NOEXCEPT;

/* ---- Reclaim --------------------------------------------------------------------------------------------------------- */

/* What a callback is told. */
typedef struct uslab_shrink_control {
    size_t   nr_to_scan; /* entries to free; 0 when they are only counted */
    int      priority;   /* how hard memory is wanted: 12 (light) to 0 (everything) */
    unsigned flags;      /* none are defined yet */
} uslab_shrink_control;

/* From scan: nothing can be done now, because a lock is held, say; what was asked for is remembered for later. */
#define USLAB_SHRINK_STOP ((size_t)-1)

/* As `seeks`: entries cost nothing to make again, and half of them go at each pass. */
#define USLAB_SEEKS_NONE (~0u)

/*
 * A cache that can give entries up. Both functions run on whatever thread reclaims, without a lock of this library, never two at once for one
 * shrinker. They may allocate, free, block (which delays the reclaiming thread alone) and unregister; they must not throw or longjmp.
 */
typedef struct uslab_shrinker_options {
    size_t type_size;                                             /* sizeof(uslab_shrinker_options) */
    size_t (*count)(void *context, const uslab_shrink_control *); /* entries that could go now: a look at a counter */
    size_t (*scan)(void *context, const uslab_shrink_control *);  /* frees up to nr_to_scan entries, those missed least first; how many
                                                                     it freed, or USLAB_SHRINK_STOP */
    void    *context;                                             /* given to both */
    unsigned seeks;                                               /* what an entry costs to make again; 0: 2, which is usual */
    unsigned batch;                                               /* entries asked for at once; 0: 128 */
} uslab_shrinker_options;

typedef struct uslab_shrinker uslab_shrinker;

/* Registers a shrinker; 47 bytes of the name are kept. EINVAL without name, count or scan; ENOMEM. */
uslab_shrinker *uslab_shrinker_register(const char *name, const uslab_shrinker_options *options) USLAB_NOEXCEPT;

/* When it returns no callback of the shrinker runs, nor ever will. It does not wait from within one
 * of them, nor from within a callback of another shrinker that the running one waits for, since two
 * may unregister each other: then errno is EDEADLK, and the context must live until the running
 * callback has returned. NULL is allowed. */
void uslab_shrinker_unregister(uslab_shrinker *shrinker) USLAB_NOEXCEPT;

/* Says what it costs on average to make an entry again, in place of `seeks`; 10 000 ns is 2 seeks. */
int uslab_shrinker_set_miss_cost_ns(uslab_shrinker *shrinker, uint64_t cost_ns) USLAB_NOEXCEPT;

/* Tells of `entries` that a scan had freed and that were made again since, as far as the cache can know. A cache whose entries come back is asked
 * for less: for an eighth where all do. */
int uslab_shrinker_note_refaults(uslab_shrinker *shrinker, uint64_t entries) USLAB_NOEXCEPT;

/* Gives `bytes` back to the system if it can, from what is free first, then from shrinkers; how many it gave, which may be more. Blocks for as
 * long as callbacks do. From within a callback it does nothing. (size_t)-1 takes everything. */
size_t uslab_reclaim(size_t bytes) USLAB_NOEXCEPT;

/* Gives all free memory back to the system, as malloc_trim does, but for about `kept_bytes` of it. Calls no
 * shrinker. Returns the bytes that went. */
size_t uslab_trim(size_t kept_bytes) USLAB_NOEXCEPT;

/* uslab_trim(0). */
size_t uslab_release_memory(void) USLAB_NOEXCEPT;

/*
 * Limits what the allocator holds in this process, in bytes; 0 is no limit. Counted are the pages of slabs and large objects, and free ones that
 * still have memory.
 *
 * Above `soft_bytes` a background thread reclaims. An allocation that would go beyond `hard_bytes` reclaims first, on its own thread, calling shrinkers
 * for that; where that does not help it fails with ENOMEM. Frees always work. EINVAL: the soft limit is above the hard one.
 */
int uslab_set_limit(size_t soft_bytes, size_t hard_bytes) USLAB_NOEXCEPT;

/* ---- Pressure sources ------------------------------------------------------------------------------------------------ */

/* What may become of a source. */
#define USLAB_SOURCE_AUTO 0u /* as the library thinks best: watched */
#define USLAB_SOURCE_ON   1u /* watched, where there is one */
#define USLAB_SOURCE_OFF  2u /* not watched */

/* Who may say that memory is short, so that shrinkers are asked without a call of the program's. */
typedef struct uslab_pressure_options {
    size_t   type_size; /* sizeof(uslab_pressure_options) */
    unsigned systemd;   /* what a service manager names in MEMORY_PRESSURE_WATCH; where it names something, psi is not watched beside it */
    unsigned psi;       /* stalls (PSI) of the process's cgroup, of one above it, or of the system */
    unsigned cgroup;    /* what is left below memory.high and memory.max of the cgroup and those above it */
    unsigned log;       /* 1: a line on standard error for each source when they are looked for, and when one is lost; 0: silence */
} uslab_pressure_options;

/*
 * Chooses the sources, from now on, and starts the background thread that watches them; NULL is the default, all of them. Without this call
 * they are watched from the first shrinker on. The environment goes over it: USLAB_PRESSURE is auto, off, or a list of systemd, psi and cgroup with
 * commas, USLAB_PRESSURE_LOG=1 asks for the log, and USLAB_REAPER=0 forbids the thread, and thereby the watching. A source that there is not, or
 * that goes away, is no error. EINVAL: a value that is none of a source's, a log that is neither 0 nor 1, a bad structure.
 */
int uslab_watch_pressure(const uslab_pressure_options *options /* may be NULL */) USLAB_NOEXCEPT;

/* What these options would find here, under the environment: a line for each source with what is watched, or why it is not; free with
 * uslab_free. Changes nothing; opens files and closes them again. NULL with EINVAL as above, or ENOMEM. */
char *uslab_pressure_text(const uslab_pressure_options *options /* may be NULL */) USLAB_NOEXCEPT;

/* Whether the background thread runs in this process: everything works without it, but nothing is given back while the program is idle. */
bool uslab_has_reaper(void) USLAB_NOEXCEPT;

/* ---- Figures --------------------------------------------------------------------------------------------------------- */

/* Figures of one cache: exact while nobody uses it. */
typedef struct uslab_cache_stats {
    size_t   type_size;        /* sizeof(uslab_cache_stats), set by the caller */
    uint64_t user_bytes;       /* size of an object as it was asked for */
    uint64_t object_bytes;     /* distance between two objects */
    uint64_t objects_per_slab;
    uint64_t slab_bytes;       /* of all slabs */
    uint64_t sheaf_capacity;   /* at the present setting */
    uint64_t slabs;
    uint64_t partial_slabs;    /* with some objects free and some not */
    uint64_t empty_slabs;      /* with all objects free */
    uint64_t total_objects;
    uint64_t active_objects;   /* with the program */
    uint64_t slab_free;        /* free in slabs */
    uint64_t sheaf_free;       /* free in sheaves */
    uint64_t alloc_slow;       /* times that a slow path ran */
    uint64_t free_slow;
    uint64_t refills;          /* sheaves filled from slabs */
    uint64_t flushes;          /* sheaves emptied into slabs */
    uint64_t drains;           /* sheaves taken from another CPU */
    uint64_t grows;            /* slabs taken from the page layer */
    uint64_t shrinks;         /* slabs given back */
    uint64_t failures;         /* allocations that failed for want of memory */
} uslab_cache_stats;

/* Visits all CPUs: not for a hot path. ENODATA for the caches past the 4096th, whose figures are not kept. */
int uslab_cache_get_stats(const uslab_cache *cache, uslab_cache_stats *out) USLAB_NOEXCEPT;

/*
 * Calls `visit` for each cache that lives, those of malloc and of heaps among them, with its name and
 * its figures, until `visit` returns something other than 0. Returns that, or 0. The size classes of
 * heaps that have no cache yet are one entry `heap` for each size. Two caches may have one name. Name
 * and figures are copies which end with the call. No lock is held in it: it may do anything, but must
 * not throw or longjmp. `stats->type_size` is the library's. Caches past the 4096th are left out.
 * EINVAL: no function.
 */
int uslab_visit_caches(int (*visit)(void *context, const char *name, const uslab_cache_stats *stats), void *context) USLAB_NOEXCEPT;

/* Figures of the process, sums of counters that change meanwhile. */
typedef struct uslab_usage {
    size_t   type_size;       /* sizeof(uslab_usage), set by the caller */
    uint64_t used_bytes;      /* pages that slabs and large objects hold */
    uint64_t dirty_bytes;     /* free pages with memory behind them */
    uint64_t allocated_bytes; /* objects with the program, in bytes of their classes */
    uint64_t free_objects;    /* ready in slabs and sheaves */
    uint64_t large_objects;   /* past 32 KiB, with the program */
    uint64_t large_bytes;
} uslab_usage;

int uslab_get_usage(uslab_usage *out) USLAB_NOEXCEPT;

/* All figures of the process and its caches, with the names of `uslab info --json`; free with uslab_free. NULL with ENOMEM. */
char *uslab_stats_json(void) USLAB_NOEXCEPT;

/* The same as /proc/slabinfo 2.1 has them (slabinfo(5)), for the tools that read that; free with uslab_free. */
char *uslab_stats_slabinfo(void) USLAB_NOEXCEPT;

/* "rseq", or "locked" where the system has no restartable sequences or USLAB_RSEQ=0 is set. Static text. */
const char *uslab_mode(void) USLAB_NOEXCEPT;

/* The library's version, "MAJOR.MINOR.PATCH", which may be newer than the header's. Static text. */
const char *uslab_version(void) USLAB_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif

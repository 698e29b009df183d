/*
 * uslab: the Linux slab allocator for user space, from C.
 *
 *   caches    objects of one size, from per-CPU sheaves, without a      uslab_cache_*
 *             lock or an atomic instruction
 *   sheaves   objects set aside, so that n allocations cannot fail      uslab_sheaf_*
 *   malloc    any size; heaps: the same, private and destroyed whole    uslab_malloc, uslab_heap_*
 *   reclaim   the program's own caches free entries under pressure      uslab_shrinker_*
 *   sources   how the library learns of memory pressure                 uslab_watch_pressure
 *   figures   of a cache, of the process, as text                       uslab_stats_*
 *
 * These rules hold for every function, unless its comment says otherwise.
 *
 *   Threads   Any thread may call it at any time. An object or handle that the caller frees,
 *             destroys, returns or unregisters must not be in use on another thread.
 *   Forks     A child of fork may call it, even if the parent had threads. A child of vfork must
 *             not call any function of the library.
 *   Signals   As with malloc, a signal handler must not call it if the signal may have interrupted
 *             a function of the library.
 *   Blocking  It may sleep on short locks and make system calls. "Takes no lock" excludes both. An
 *             allocation also runs shrinkers, at the hard limit or if the system refuses memory.
 *   Errors    A function returns NULL, false or an error number on failure, by its type, and sets
 *             errno. The error number 0 is success. A NULL handle, and any other argument that the
 *             library can recognise as wrong, is EINVAL. A successful free preserves errno.
 *   Misuse    A report is a line on standard error, and then abort(); the program goes on with
 *             USLAB_ON_MISUSE=report. An object freed twice in a row, or a pointer to the inside of
 *             an object, is reported at once. Other misuse, also in uslab_free_bulk and
 *             uslab_cache_free_bulk, and some with objects beyond 16 KiB, is reported when the
 *             object reaches its slab, at the latest.
 *   Memory    The library never calls the C library's malloc. Its memory goes back through its own
 *             functions. free() does not free it, not even with libuslab_malloc.so preloaded.
 *
 * Structures that the caller fills start with type_size. Zero the structure, then set type_size to
 * its sizeof: 0 is the default of every other field. A program compiled with an older header works
 * with a newer library. A newer header works with an older library if the fields that this library
 * does not know are 0; otherwise the call fails with EINVAL.
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

/* Marks the functions that programs call most. The caller loads the function's address and calls it
 * directly, without a jump through the procedure linkage table. With the archive, the linker makes
 * it a plain call. */
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

/* Settings that the program carries, "decay_ms=250,limit=80%,90%": a program may define this
 * variable; the library does not. Variables of the environment override it. Read when the library
 * is loaded. With a shared library or a preloaded one, link the program with -rdynamic. */
extern const char *uslab_conf USLAB_ATTRIBUTE((visibility("default")));

/* ---- Caches ---------------------------------------------------------------------------------- */

/* A cache of objects of one size. */
typedef struct uslab_cache uslab_cache;

/* Flags of a cache. */
#define USLAB_HWCACHE_ALIGN 0x1u   /* align to cache lines; small objects share one */
#define USLAB_NO_CACHING    0x2u   /* no sheaves, every call goes to the slab: slow and exact */
#define USLAB_COLD          0x4u   /* objects stay untouched for a while (receive buffers) */

/* Debugging flags of a cache: the letters of USLAB_DEBUG, for this cache. With any of them every
 * call is slow, objects are larger, and a fault is reported with the object's history; then the
 * process ends, unless USLAB_ON_MISUSE=report. */
#define USLAB_RED_ZONE      0x100u /* guard bytes around each object */
#define USLAB_POISON        0x200u /* patterns in free objects */
#define USLAB_STORE_USER    0x400u /* the last allocating and the last freeing call of an object */
#define USLAB_CONSISTENCY_CHECKS 0x800u /* check every free at once */
#define USLAB_TRACE         0x1000u /* a line for each allocation and free */

/* The nodes that a cache's memory comes from. Without effect on a machine of one node, and with
 * USLAB_NUMA=0. With the last two, a CPU hands out what it freed, wherever the memory is. */
#define USLAB_NUMA_LOCAL      0u /* each CPU's own node, to which objects return */
#define USLAB_NUMA_BIND       1u /* numa_node alone (MPOL_BIND), also where that node is full */
#define USLAB_NUMA_INTERLEAVE 2u /* pages of all nodes in turn (MPOL_INTERLEAVE) */

/* Flags of an allocation. */
#define USLAB_ZERO          0x10000u /* zero the memory; EINVAL for a cache with a constructor,
                                        whose work zeroing would undo */
#define USLAB_NORECLAIM     0x20000u /* fail rather than run shrinkers: for a caller that holds a
                                        lock which a shrinker takes */

typedef struct uslab_cache_options {
    size_t   type_size;           /* sizeof(uslab_cache_options) */
    size_t   align;               /* bytes, a power of two; 0: 16 if that divides the size, else 8 */
    unsigned flags;               /* USLAB_HWCACHE_ALIGN, ... */
    void   (*ctor)(void *object); /* runs once for each object, when its slab is made, not for each
                                     allocation: a freed object must be as constructed. It may run on
                                     any thread; it must not use the cache, throw or longjmp */
    unsigned min_objects;         /* objects of a slab, if max_order allows; 0: 32 or more */
    unsigned min_order;           /* a slab takes at least 2^min_order pages of 4 KiB */
    unsigned max_order;           /* at most 2^max_order, or one object's; 0: 5, 3 with ctor; >8: 8 */
    unsigned sheaf_capacity;      /* objects of a sheaf, made 2^k - 2, at most 2046; 0: adapts */
    unsigned numa_policy;         /* USLAB_NUMA_LOCAL, ... */
    unsigned numa_node;           /* for USLAB_NUMA_BIND; otherwise 0 */
} uslab_cache_options;

/*
 * Creates a cache of objects of `size` bytes, 1 to 256 KiB. The cache keeps the first 47 bytes of
 * `name`, which is UTF-8, for figures and reports. Two caches may have the same name. NULL options
 * are the defaults.
 *
 * EINVAL: no name, size 0, a bad alignment, an unknown flag or policy, a bad structure. E2BIG: size
 * or alignment beyond 256 KiB. ENFILE: all 65 475 ids of caches are in use, some of them by malloc.
 * ENODEV: no such node, none that the process may use, or a seccomp filter forbids mbind. ENOMEM.
 */
uslab_cache *uslab_cache_create(const char *name, size_t size,
                                const uslab_cache_options *options) USLAB_NOEXCEPT;

/*
 * Destroys a cache and returns its memory to the page layer. NULL is allowed.
 *
 * EBUSY: objects of the cache live. The cache stays as it is, and a line on standard error gives
 * their number and the first of them.
 */
int uslab_cache_destroy(uslab_cache *cache) USLAB_NOEXCEPT;

/*
 * Returns an object: uninitialised, constructed, or zeroed with USLAB_ZERO. `flags` are those of an
 * allocation. ENOMEM; EINVAL: an unknown flag.
 *
 * The fast path is about a dozen instructions without a lock; zeroing adds to that. Of many calls
 * in a row one in about 60 takes the slow path, which may block; more do from 256 bytes on.
 */
void *uslab_cache_alloc(uslab_cache *cache, unsigned flags) USLAB_NOEXCEPT USLAB_DIRECT;

/* Frees an object of the cache. NULL is allowed. Never fails; as fast as uslab_cache_alloc. */
void uslab_cache_free(uslab_cache *cache, void *object) USLAB_NOEXCEPT USLAB_DIRECT;

/* Fills `objects` with n objects and returns true, or keeps none and returns false; the contents of
 * `objects` are then unspecified. n = 0 succeeds. Errors are those of uslab_cache_alloc. */
bool uslab_cache_alloc_bulk(uslab_cache *cache, unsigned flags, size_t n,
                            void **objects) USLAB_NOEXCEPT;

/* Frees n objects of the cache. None may be NULL. */
void uslab_cache_free_bulk(uslab_cache *cache, size_t n, void *const *objects) USLAB_NOEXCEPT;

/* Flushes the sheaves of all CPUs, and turns all empty slabs of the cache into free pages. Returns
 * the bytes of memory. They go to the system in time, or by uslab_trim. Calls no shrinker. */
size_t uslab_cache_shrink(uslab_cache *cache) USLAB_NOEXCEPT;

/*
 * Calls `visit` for each live object of the cache, in the order of addresses, until it returns a
 * value other than 0. Returns that value, or 0. EINVAL: no cache or no function.
 *
 * The call flushes the sheaves of all CPUs first. Objects in a uslab_sheaf are live. No lock is
 * held in `visit`: it may call any function, but must not throw, longjmp or destroy the cache.
 * Objects that are allocated or freed during the call may be visited or not. Reads the state of
 * each page that the library manages: not for a hot path.
 */
int uslab_cache_visit(uslab_cache *cache, int (*visit)(void *context, void *object),
                      void *context) USLAB_NOEXCEPT;

/* Returns the name as the cache keeps it. The text lives as long as the cache. Takes no lock. */
const char *uslab_cache_name(const uslab_cache *cache) USLAB_NOEXCEPT;

/* Returns the size in bytes that the cache was created with; 0 for NULL. Takes no lock. */
size_t uslab_cache_object_size(const uslab_cache *cache) USLAB_NOEXCEPT;

/* Returns the usable bytes of an object, at least its size; 0 for NULL. Takes no lock. */
size_t uslab_cache_usable_size(const uslab_cache *cache) USLAB_NOEXCEPT;

/* ---- Sheaves of the program ------------------------------------------------------------------ */

/* A private store of objects of one cache. Only one thread at a time may use it. */
typedef struct uslab_sheaf uslab_sheaf;

/* Sets n objects aside, so that n allocations from the store cannot fail: for work that must not
 * stop half way. `flags` is 0 or USLAB_NORECLAIM; uslab_sheaf_alloc can zero. EINVAL, ENOMEM. */
uslab_sheaf *uslab_cache_prefill(uslab_cache *cache, unsigned flags, size_t n) USLAB_NOEXCEPT;

/* Makes a store that takes objects from the cache and gives them back a sheaf at a time, as needed.
 * For a thread that allocates and frees much: a pair of calls costs about half as much as one of
 * uslab_cache_alloc and uslab_cache_free. Figures count the store's free objects as free. A shrink
 * cannot take them: it asks, and the store gives them back when it next exchanges a sheaf. A fork
 * child keeps the stores of the thread that forked, and loses free objects in those of other
 * threads. `flags` is 0 or USLAB_NORECLAIM. EINVAL, ENOMEM. */
uslab_sheaf *uslab_cache_local(uslab_cache *cache, unsigned flags) USLAB_NOEXCEPT;

/* Returns an object of the store, which uslab_cache_free or uslab_sheaf_free frees. `flags` as for
 * uslab_cache_alloc. ENOMEM: a prefilled store is empty, or there is no memory. Takes no lock,
 * except to fill a store of uslab_cache_local. */
void *uslab_sheaf_alloc(uslab_sheaf *sheaf, unsigned flags) USLAB_NOEXCEPT;

/* Frees an object of the store's cache, whichever function returned it: into the store, or into the
 * cache if the store has no room. The cache must still live. NULL is allowed. Takes no lock,
 * except where the store is full. Misuse is found when the object leaves the store. */
void uslab_sheaf_free(uslab_sheaf *sheaf, void *object) USLAB_NOEXCEPT;

/* Returns the number of objects left; 0 for NULL. Takes no lock. */
size_t uslab_sheaf_count(const uslab_sheaf *sheaf) USLAB_NOEXCEPT;

/* Fills a prefilled store up to at least n objects. `flags` as for uslab_cache_prefill. EINVAL,
 * also for a store of uslab_cache_local; ENOMEM. On an error the store is unchanged. */
int uslab_sheaf_refill(uslab_sheaf *sheaf, unsigned flags, size_t n) USLAB_NOEXCEPT;

/* Ends the store and gives its objects back. The cache must still live. NULL is allowed. */
void uslab_sheaf_return(uslab_sheaf *sheaf) USLAB_NOEXCEPT;

/* ---- malloc ---------------------------------------------------------------------------------- */

/*
 * These are the functions of C, with two differences. Size 0 is a size like any other, also for
 * uslab_realloc, which never frees. Every power of two up to 4096 is aligned to itself, any other
 * size to 16; in a debugged or hardened process all to 16. Sizes and alignments are bytes. ENOMEM.
 * uslab_free never fails; NULL is allowed.
 */
void  uslab_free(void *pointer) USLAB_NOEXCEPT USLAB_DIRECT;
void *uslab_malloc(size_t size) USLAB_NOEXCEPT USLAB_DIRECT
    USLAB_ATTRIBUTE((malloc, alloc_size(1)));
void *uslab_calloc(size_t count, size_t size) USLAB_NOEXCEPT
    USLAB_ATTRIBUTE((malloc, alloc_size(1, 2)));
void *uslab_realloc(void *pointer, size_t size) USLAB_NOEXCEPT USLAB_ATTRIBUTE((alloc_size(2)));

/* Any size is allowed. EINVAL: `align` is no power of two. ENOMEM: or it is more than 1 GiB. */
void *uslab_aligned_alloc(size_t align, size_t size) USLAB_NOEXCEPT
    USLAB_ATTRIBUTE((malloc, alloc_size(2)));

/* uslab_malloc and uslab_aligned_alloc with flags of an allocation. EINVAL: or an unknown flag. */
void *uslab_malloc_flags(size_t size, unsigned flags) USLAB_NOEXCEPT
    USLAB_ATTRIBUTE((malloc, alloc_size(1)));
void *uslab_aligned_alloc_flags(size_t align, size_t size, unsigned flags) USLAB_NOEXCEPT
    USLAB_ATTRIBUTE((malloc, alloc_size(2)));

/* As uslab_free, for memory of this section only, not of a heap or cache: the pointer is not looked
 * up. `size` (and `align`) must be exactly those of the last (re)allocation. NULL is allowed. */
void uslab_free_sized(void *pointer, size_t size) USLAB_NOEXCEPT USLAB_DIRECT;
void uslab_free_aligned_sized(void *pointer, size_t align, size_t size) USLAB_NOEXCEPT;

/* Returns the usable bytes at `pointer`, any kind of object; 0 for NULL and where none starts.
 * _FORTIFY_SOURCE lets a program use only those that it asked for. Takes no lock. */
size_t uslab_usable_size(const void *pointer) USLAB_NOEXCEPT;

/* Returns the usable bytes that uslab_malloc(size) would give. An allocation of that size wastes
 * nothing. Allocates nothing; takes no lock. */
size_t uslab_good_size(size_t size) USLAB_NOEXCEPT;

/* Fills `objects` with n objects of `size` bytes and returns true, or keeps none and returns false;
 * the contents of `objects` are then unspecified. n = 0 succeeds. EINVAL, ENOMEM. */
bool uslab_malloc_bulk(size_t size, size_t n, void **objects) USLAB_NOEXCEPT;

/* Frees n pointers of any sizes; NULL among them is allowed. Runs of one size are fastest. */
void uslab_free_bulk(size_t n, void *const *objects) USLAB_NOEXCEPT;

/* ---- Heaps ----------------------------------------------------------------------------------- */

/*
 * A private set of size classes. Its memory is freed piece by piece, also by uslab_free, or all at
 * once with the heap. Any number of threads may use a heap.
 *
 * A heap costs what it owns, however many heaps live. All heaps together can have about 13 million
 * size classes in use; beyond that an allocation fails with ENOMEM.
 */
typedef struct uslab_heap uslab_heap;

/* Creates an empty heap. ENOMEM. */
uslab_heap *uslab_heap_create(void) USLAB_NOEXCEPT;

/* The same with a name, which is copied and may be cut to 47 bytes. Reports show it, and statistics
 * of size classes that have a cache. EINVAL: NULL; ENOMEM. */
uslab_heap *uslab_heap_create_named(const char *name) USLAB_NOEXCEPT;

/* Frees all memory of the heap and the heap. NULL is allowed. No thread may use either any more. */
void uslab_heap_destroy(uslab_heap *heap) USLAB_NOEXCEPT;

/* As the functions above, with memory of the heap. EINVAL: no heap, or `align` is no power of two.
 * ENOMEM. `pointer` must be NULL or come from this heap. */
void *uslab_heap_malloc(uslab_heap *heap, size_t size) USLAB_NOEXCEPT;
void *uslab_heap_calloc(uslab_heap *heap, size_t count, size_t size) USLAB_NOEXCEPT;
void *uslab_heap_realloc(uslab_heap *heap, void *pointer, size_t size) USLAB_NOEXCEPT;
void *uslab_heap_aligned_alloc(uslab_heap *heap, size_t align, size_t size) USLAB_NOEXCEPT;
void  uslab_heap_free(uslab_heap *heap, void *pointer) USLAB_NOEXCEPT;

/* Figures of one heap. They are exact while no thread uses the heap. */
typedef struct uslab_heap_stats {
    size_t   type_size;        /* sizeof(uslab_heap_stats), set by the caller */
    uint64_t objects;          /* live, of at most 32 KiB, aligned to at most 4 KiB */
    uint64_t object_bytes;     /* theirs, in bytes of their size classes */
    uint64_t slab_bytes;       /* of all slabs */
    uint64_t large_objects;    /* live, all others */
    uint64_t large_bytes;      /* theirs, in whole pages */
} uslab_heap_stats;

/* Fills `out` with the figures of a heap. Flushes sheaves and visits slabs: not for a hot path.
 * Allocates nothing. EINVAL. */
int uslab_heap_get_stats(const uslab_heap *heap, uslab_heap_stats *out) USLAB_NOEXCEPT;

/* Calls `visit` for each live object of the heap with its usable bytes, until it returns a value
 * other than 0. Returns that value, or 0. EINVAL: no heap, or no function. No lock is held in
 * `visit`: it may call any function, but must not destroy the heap, throw or longjmp. Objects that
 * are allocated or freed during the call may be visited or not. */
int uslab_heap_visit(const uslab_heap *heap, int (*visit)(void *context, void *object, size_t bytes),
                     void *context) USLAB_NOEXCEPT;

/* ---- Reclaim --------------------------------------------------------------------------------- */

/* The request that a callback gets. */
typedef struct uslab_shrink_control {
    size_t   nr_to_scan; /* entries to free; 0 in `count` */
    int      priority;   /* urgency, 12 (light) to 0 (everything) */
    unsigned flags;      /* none are defined yet */
} uslab_shrink_control;

/* Returned by `scan`: it can free nothing now, for instance because a lock is held. The share stays
 * owed. */
#define USLAB_SHRINK_STOP ((size_t)-1)

/* As `seeks`: an entry costs nothing to make again; each round of a pass takes half of them. */
#define USLAB_SEEKS_NONE (~0u)

/*
 * A shrinker: a cache of the program that can free entries.
 *
 * Both callbacks run on any thread that reclaims, with no lock of the library held, and never two
 * at once for one shrinker. They may allocate, free, unregister and block; blocking delays the
 * reclaiming thread alone. They must not throw or longjmp.
 */
typedef struct uslab_shrinker_options {
    size_t type_size;    /* sizeof(uslab_shrinker_options) */
    size_t (*count)(void *context, const uslab_shrink_control *);
                         /* returns the entries that could go now; should only read a counter */
    size_t (*scan)(void *context, const uslab_shrink_control *);
                         /* frees up to nr_to_scan entries, the least missed first; returns how many
                            it freed, or USLAB_SHRINK_STOP */
    void    *context;    /* first argument of both */
    unsigned seeks;      /* cost to make an entry again; 2 is usual; 0: 2 */
    unsigned batch;      /* entries of one `scan`; 0: 128 */
} uslab_shrinker_options;

typedef struct uslab_shrinker uslab_shrinker;

/* Registers a shrinker; it keeps the first 47 bytes of the name. Starts the background thread,
 * unless USLAB_REAPER=0. EINVAL: no name, `count` or `scan`. ENOMEM. */
uslab_shrinker *uslab_shrinker_register(const char *name,
                                        const uslab_shrinker_options *options) USLAB_NOEXCEPT;

/*
 * Unregisters a shrinker: waits for a running callback, after which the library calls neither
 * callback again. NULL is allowed.
 *
 * EDEADLK: it would wait for itself, and has not waited. That happens in a callback of this
 * shrinker, and in a callback that the running one waits for, since two callbacks may unregister
 * each other. The context must then live until the running callback has returned.
 */
void uslab_shrinker_unregister(uslab_shrinker *shrinker) USLAB_NOEXCEPT;

/* Sets the average cost to make an entry again, in nanoseconds, in place of `seeks`. 10 000 ns
 * equal 2 seeks. Takes no lock. */
int uslab_shrinker_set_miss_cost_ns(uslab_shrinker *shrinker, uint64_t cost_ns) USLAB_NOEXCEPT;

/* Reports refaults: `entries` that `scan` freed and the program has made again, as far as the cache
 * can know. Refaults lower the cache's share, to an eighth if all come back. Takes no lock. */
int uslab_shrinker_note_refaults(uslab_shrinker *shrinker, uint64_t entries) USLAB_NOEXCEPT;

/* Returns `bytes` of memory to the system if possible: free memory first, then entries of
 * shrinkers. Returns the bytes that went, which may be more. (size_t)-1 takes everything. Blocks
 * for as long as callbacks do. In a callback it does nothing and returns 0. */
size_t uslab_reclaim(size_t bytes) USLAB_NOEXCEPT;

/* Returns all free memory to the system but about `kept_bytes`, as malloc_trim does. Returns the
 * bytes that went. Calls no shrinker. */
size_t uslab_trim(size_t kept_bytes) USLAB_NOEXCEPT;

/* Chooses how long free memory stays, from now on: 1000 ms by default. 0 returns it at once; a
 * negative value keeps it. uslab_reclaim(3) tells about free pages inside slabs. Under pressure, at
 * limits and by uslab_trim memory returns whatever was chosen. Neither allocates nor blocks. */
void uslab_set_decay_ms(int ms) USLAB_NOEXCEPT;

/* When huge pages of 2 MiB back memory. AUTO, the default: where a heap beyond 20 MiB grows and has
 * little free memory; for objects beyond a page, only while the program touches nearly all of them.
 * Never without a background thread, with a decay of 0, or under `ulimit -v`. ALWAYS: a process of
 * few objects takes 2 MiB or more; free memory returns by 2 MiB only, unless memory is short. */
#define USLAB_HUGE_PAGES_AUTO   0u
#define USLAB_HUGE_PAGES_NEVER  1u
#define USLAB_HUGE_PAGES_ALWAYS 2u

/* Chooses one of these for memory that is first touched from now on. No memory gets huge pages
 * within an eighth of a limit, or where the system's setting is `never`. EINVAL: another value.
 * Neither allocates nor blocks. */
int uslab_set_huge_pages(unsigned huge_pages) USLAB_NOEXCEPT;

/* Puts about one allocation of the malloc family in `interval_ms` milliseconds between guard pages
 * from now on, and reports an access beside it, or after its free, as it happens. 0 is every
 * allocation that takes the slow path. `slots`: objects of up to 1 KiB that can be guarded at a
 * time, and as many larger ones; 0 is 64. The first call fixes it, and installs a handler of
 * SIGSEGV, in front of the one that the program has then; a handler that the program installs later
 * replaces it. Objects up to 1 KiB are guarded only if no such object was allocated before the
 * first call. ENOMEM: no memory for the slots, or the handler was refused. */
int uslab_guard_start(unsigned interval_ms, size_t slots) USLAB_NOEXCEPT;

/* Guards no more allocations. Those that are guarded stay so. */
void uslab_guard_stop(void) USLAB_NOEXCEPT;

/* Samples about one allocation of the malloc family, of caches and of private heaps in
 * `period_bytes` bytes from now on, for a heap profile; 0 is 524288. While a profile runs this
 * changes its period; after uslab_profile_stop() it goes on with the samples so far. Fork children
 * go on as well. ENOMEM. Locks, and allocates memory of the library's own. */
int uslab_profile_start(size_t period_bytes) USLAB_NOEXCEPT;

/* Takes no more samples. Those of objects in use are followed until the objects are freed. */
void uslab_profile_stop(void) USLAB_NOEXCEPT;

/* Writes the profile as text: for each stack what it allocated, and what of that is in use. `uslab
 * profile` makes pprof and other formats of it. ENODATA: no profile was ever started; or the error
 * number of write(2). Locks for moments, allocates nothing, and writes with no lock held. */
int uslab_profile_write(int fd) USLAB_NOEXCEPT;

/* Switches debugging of running caches from now on: "FU,session,malloc-*", blocks of letters and
 * names as in USLAB_DEBUG; letter - switches off. Letters F, U and T alone are possible; the others
 * need room that objects have from the start. `uslab debug PID CACHE LETTERS` does the same from
 * outside. EINVAL: the text is wrong, or has other letters. ENOENT: no cache has such a name.
 * EBUSY: the caches have been debugged or hardened since they were made. EPERM: the kernel refuses
 * membarrier(2) to the thread. ENOMEM. Locks, and makes system calls. */
int uslab_debug(const char *selection) USLAB_NOEXCEPT;

/* uslab_trim(0). */
size_t uslab_release_memory(void) USLAB_NOEXCEPT;

/*
 * Limits the memory that the allocator holds in this process, in bytes; 0 is no limit. It counts
 * pages of slabs, large objects, and free pages that still have memory.
 *
 * Above `soft_bytes` a thread of the library reclaims. An allocation that would exceed
 * `hard_bytes` first reclaims on its own thread, shrinkers included, and fails with ENOMEM if that
 * does not help. Frees always work. EINVAL: the soft limit is above the hard one. ENOMEM.
 */
int uslab_set_limit(size_t soft_bytes, size_t hard_bytes) USLAB_NOEXCEPT;

/* ---- Pressure sources ------------------------------------------------------------------------ */

/* Settings of a source. */
#define USLAB_SOURCE_AUTO 0u /* the library decides: watched */
#define USLAB_SOURCE_ON   1u /* watched, if it exists */
#define USLAB_SOURCE_OFF  2u /* not watched */

/* The sources that report memory pressure. At a report the library runs shrinkers on a thread. */
typedef struct uslab_pressure_options {
    size_t   type_size; /* sizeof(uslab_pressure_options) */
    unsigned systemd;   /* the file that the service manager names in MEMORY_PRESSURE_WATCH; if it
                           names one, psi is not watched as well */
    unsigned psi;       /* stalls (PSI) of the process's cgroup, one above it, or the system */
    unsigned cgroup;    /* headroom below memory.high and memory.max of the cgroup and of those
                           above it */
    unsigned log;       /* 1: a line on standard error for each source that is looked for, and for
                           each that is lost; 0: no log */
} uslab_pressure_options;

/*
 * Chooses the sources from now on, and starts the background thread that watches them. NULL options
 * choose all. Without this call the thread watches all sources from the first shrinker on.
 *
 * The environment overrides the options: USLAB_PRESSURE is auto, off, or a comma-separated list of
 * systemd, psi and cgroup; USLAB_PRESSURE_LOG=1 asks for the log; USLAB_REAPER=0 forbids the
 * thread, and so all watching. A source that does not exist, or that ends, is no error. EINVAL: an
 * unknown setting, a log other than 0 or 1, a bad structure.
 */
int uslab_watch_pressure(const uslab_pressure_options *options) USLAB_NOEXCEPT;

/* Returns what these options (NULL: all) would find, under the environment: a line for each source
 * with the file that is watched, or the reason why none is. The caller frees the text with
 * uslab_free. Opens files and closes them again; changes nothing. EINVAL as above, ENOMEM. */
char *uslab_pressure_text(const uslab_pressure_options *options) USLAB_NOEXCEPT;

/* Returns whether the background thread runs in this process. Everything works without it, but an
 * idle program then returns no memory to the system. Takes no lock. */
bool uslab_has_reaper(void) USLAB_NOEXCEPT;

/* ---- Figures --------------------------------------------------------------------------------- */

/* Figures of one cache. They are exact while no thread uses the cache. */
typedef struct uslab_cache_stats {
    size_t   type_size;        /* sizeof(uslab_cache_stats), set by the caller */
    uint64_t user_bytes;       /* size of an object, as asked for */
    uint64_t object_bytes;     /* distance between two objects */
    uint64_t objects_per_slab;
    uint64_t slab_bytes;       /* of all slabs */
    uint64_t sheaf_capacity;   /* objects; the present setting */
    uint64_t slabs;
    uint64_t partial_slabs;    /* with both free and live objects */
    uint64_t empty_slabs;      /* with all objects free */
    uint64_t total_objects;
    uint64_t active_objects;   /* held by the program; with USLAB_SECURE in quarantine, too */
    uint64_t slab_free;        /* free objects in slabs */
    uint64_t sheaf_free;       /* free objects in sheaves */
    uint64_t alloc_slow;       /* slow paths of allocations */
    uint64_t free_slow;        /* slow paths of frees */
    uint64_t refills;          /* times that a CPU took objects from slabs */
    uint64_t flushes;          /* times that objects of a sheaf went to slabs */
    uint64_t drains;           /* sheaves that drains took out of CPUs' slots */
    uint64_t grows;            /* slabs taken from the page layer */
    uint64_t shrinks;          /* slabs returned to the page layer */
    uint64_t failures;         /* allocations that failed for lack of memory */
} uslab_cache_stats;

/* Fills `out` with the figures of a cache. Visits all CPUs: not for a hot path. Allocates nothing.
 * EINVAL; ENODATA: there was no memory for the cache's counters. */
int uslab_cache_get_stats(const uslab_cache *cache, uslab_cache_stats *out) USLAB_NOEXCEPT;

/*
 * Calls `visit` for each live cache, those of malloc and of heaps included, until it returns a
 * value other than 0. Returns that value, or 0. EINVAL: no function.
 *
 * Name and figures are copies that end with the call; `stats->type_size` is the library's. No lock
 * is held in `visit`: it may call any function, but must not throw or longjmp. Two caches may have
 * one name. Size classes of heaps that have no cache yet appear as one entry `heap` for each size.
 */
int uslab_visit_caches(int (*visit)(void *context, const char *name,
                                    const uslab_cache_stats *stats),
                       void *context) USLAB_NOEXCEPT;

/* Figures of the process: sums of counters that other threads change meanwhile. */
typedef struct uslab_usage {
    size_t   type_size;       /* sizeof(uslab_usage), set by the caller */
    uint64_t used_bytes;      /* pages of slabs and large objects */
    uint64_t dirty_bytes;     /* free pages with memory behind them */
    uint64_t allocated_bytes; /* objects held by the program, in bytes of their classes */
    uint64_t free_objects;    /* in slabs and sheaves */
    uint64_t large_objects;   /* page runs in use: all beyond 1 MiB, some beyond 32 KiB */
    uint64_t large_bytes;
} uslab_usage;

/* Fills `out`. Visits all caches and CPUs; allocates nothing. EINVAL: a bad structure. */
int uslab_get_usage(uslab_usage *out) USLAB_NOEXCEPT;

/* The totals of a search for leaks. */
typedef struct uslab_leaks {
    size_t   type_size;          /* sizeof(uslab_leaks), set by the caller */
    uint64_t objects;            /* that no pointer leads to; one for each cycle of such objects */
    uint64_t bytes;
    uint64_t indirect_objects;   /* that only leaked objects lead to */
    uint64_t indirect_bytes;
    uint64_t suppressed_objects; /* leaked, and named by USLAB_LEAK_SUPPRESSIONS */
    uint64_t suppressed_bytes;
    uint64_t places;             /* stacks that objects leaked from: the number of reports */
    uint64_t misses_registers;   /* 1: the kernel refused ptrace, so objects that only registers of
                                    other threads lead to count as leaked */
} uslab_leaks;

/* Searches for leaked objects of this library, reports them to the destination of reports, and
 * fills `out`, which may be NULL. The process must run with USLAB_LEAKS=1, or with debugged caches.
 * Other threads stop meanwhile; not for signal handlers. ENODATA: no cache is debugged. ENOMEM.
 * EACCES: /proc cannot be read. EAGAIN: the kernel refused a process. EINVAL: a bad structure. */
int uslab_find_leaks(uslab_leaks *out) USLAB_NOEXCEPT;

/* Returns all figures of the process and its caches as JSON, with the names of `uslab info --json`.
 * The caller frees the text with uslab_free. ENOMEM. */
char *uslab_stats_json(void) USLAB_NOEXCEPT;

/* Returns the figures of all caches in the format of /proc/slabinfo 2.1 (slabinfo(5)), for tools
 * that read it. The caller frees the text with uslab_free. ENOMEM. */
char *uslab_stats_slabinfo(void) USLAB_NOEXCEPT;

/* Lets the command `uslab` see this process and ask it from now on, as USLAB_SNAPSHOT does from the
 * start. The file is made in the directory that USLAB_SNAPSHOT names, else in /dev/shm/uslab-UID,
 * /run/user/UID/uslab-UID or /tmp/uslab-UID; only the process's user and root can use it. 0 also if
 * the process publishes already. Figures of fork children may include what the parent does at their
 * start. Locks; allocates nothing; not for signal handlers. EACCES: other users can change the
 * directory. EIO: the file cannot be made. Else the directory's error. */
int uslab_stats_publish(void) USLAB_NOEXCEPT;

/* Returns "rseq", or "locked" without restartable sequences or with USLAB_RSEQ=0. Static text. */
const char *uslab_mode(void) USLAB_NOEXCEPT;

/* Returns the library's version, "MAJOR.MINOR.PATCH", which may be newer than the header's. Static
 * text. Takes no lock. */
const char *uslab_version(void) USLAB_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif

/*
 * The kernel's names for uslab: code written for the kernel's slab allocator builds in user space.
 *
 * Each function does what the kernel's function of that name does, as an inline function over
 * uslab.h. The rules of uslab.h for threads, forks and blocking hold here. This file is written
 * from the interface's documentation; it contains no text of the kernel. The differences:
 *
 *   Flags       An allocation may run shrinkers only if its flags contain __GFP_DIRECT_RECLAIM,
 *               __GFP_IO and __GFP_FS, as GFP_KERNEL does. GFP_ATOMIC, GFP_NOWAIT, GFP_NOFS,
 *               GFP_NOIO and 0 mean USLAB_NORECLAIM. __GFP_NOFAIL retries until it succeeds; as in
 *               the kernel, it needs __GFP_DIRECT_RECLAIM. Flags without a meaning in user space
 *               are accepted and ignored.
 *   Caches      SLAB_TYPESAFE_BY_RCU is refused (NULL, ENOTSUP): there is no RCU to wait for. Flags
 *               of accounting are 0. Debugging flags are honoured, but for SLAB_DEBUG_OBJECTS and
 *               SLAB_KASAN, which are 0 as in a kernel built without them.
 *   Nodes       Functions that name a node return memory of any node.
 *   kmalloc     Powers of two up to 1 GiB are aligned to themselves.
 *   Errors      NULL and errno, or -ENOMEM where the kernel returns int. No function returns an
 *               ERR_PTR.
 *   Shrinkers   One node, no memory cgroups: `nid` is 0 and `memcg` NULL. `gfp_mask` is GFP_KERNEL.
 *   Interrupts  There are none. A signal handler must call none of these functions.
 *
 * C99 and later with GNU attributes, C++11 and later.
 */
#ifndef USLAB_KMEM_H
#define USLAB_KMEM_H

#include "../uslab.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__cplusplus)
extern "C" {
#endif

/* ---- Allocation flags ------------------------------------------------------------------------ */

typedef unsigned gfp_t;

/* Means that an allocation may use to get memory. */
#define __GFP_DIRECT_RECLAIM ((gfp_t)0x1u) /* reclaim on the calling thread */
#define __GFP_KSWAPD_RECLAIM ((gfp_t)0x2u) /* wake the background thread, which uslab always does */
#define __GFP_IO             ((gfp_t)0x4u)
#define __GFP_FS             ((gfp_t)0x8u)
#define __GFP_RECLAIM        (__GFP_DIRECT_RECLAIM | __GFP_KSWAPD_RECLAIM)

/* Flags with a meaning here. */
#define __GFP_ZERO           ((gfp_t)0x10u)
#define __GFP_NOFAIL         ((gfp_t)0x20u)

/* Flags without one. Each has a bit, since kernel code tests them. */
#define __GFP_NOWARN         ((gfp_t)0x100u)
#define __GFP_NORETRY        ((gfp_t)0x200u)
#define __GFP_RETRY_MAYFAIL  ((gfp_t)0x400u)
#define __GFP_HIGH           ((gfp_t)0x800u)
#define __GFP_ACCOUNT        ((gfp_t)0x1000u)
#define __GFP_RECLAIMABLE    ((gfp_t)0x2000u)
#define __GFP_MOVABLE        ((gfp_t)0x4000u)
#define __GFP_COMP           ((gfp_t)0x8000u)
#define __GFP_MEMALLOC       ((gfp_t)0x10000u)
#define __GFP_NOMEMALLOC     ((gfp_t)0x20000u)
#define __GFP_THISNODE       ((gfp_t)0x40000u)
#define __GFP_HARDWALL       ((gfp_t)0x80000u)
#define __GFP_HIGHMEM        ((gfp_t)0x100000u)
#define __GFP_WRITE          ((gfp_t)0x200000u)
#define __GFP_NOLOCKDEP      ((gfp_t)0)

#define GFP_KERNEL           (__GFP_RECLAIM | __GFP_IO | __GFP_FS)
#define GFP_KERNEL_ACCOUNT   (GFP_KERNEL | __GFP_ACCOUNT)
#define GFP_USER             (GFP_KERNEL | __GFP_HARDWALL)
#define GFP_HIGHUSER         (GFP_USER | __GFP_HIGHMEM)
#define GFP_HIGHUSER_MOVABLE (GFP_HIGHUSER | __GFP_MOVABLE)
#define GFP_NOFS             (__GFP_RECLAIM | __GFP_IO)
#define GFP_NOIO             (__GFP_RECLAIM)
#define GFP_NOWAIT           (__GFP_KSWAPD_RECLAIM | __GFP_NOWARN)
#define GFP_ATOMIC           (__GFP_KSWAPD_RECLAIM | __GFP_HIGH)

#define NUMA_NO_NODE (-1)

static inline bool gfpflags_allow_blocking(gfp_t gfp) { return (gfp & __GFP_DIRECT_RECLAIM) != 0; }

/* Whether the allocation may run shrinkers, which take locks of the program. */
static inline bool uslab_kmem_may_shrink(gfp_t gfp)
{
    const gfp_t all = __GFP_DIRECT_RECLAIM | __GFP_IO | __GFP_FS;
    return (gfp & all) == all;
}

/* The flags of uslab.h for `gfp`. */
static inline unsigned uslab_kmem_flags(gfp_t gfp)
{
    return ((gfp & __GFP_ZERO) != 0 ? USLAB_ZERO : 0) | (uslab_kmem_may_shrink(gfp) ? 0 : USLAB_NORECLAIM);
}

/* After a failed allocation: whether to retry it. If so, first reclaims all that `gfp` allows. */
static inline bool uslab_kmem_again(gfp_t gfp)
{
    if ((gfp & __GFP_NOFAIL) == 0 || !gfpflags_allow_blocking(gfp) || errno != ENOMEM) return false;
    if (uslab_kmem_may_shrink(gfp))
        (void)uslab_reclaim((size_t)-1);
    else
        (void)uslab_trim(0);
    (void)sched_yield();
    return true;
}

/* ---- Caches ---------------------------------------------------------------------------------- */

typedef unsigned slab_flags_t;

#define SLAB_HWCACHE_ALIGN      ((slab_flags_t)USLAB_HWCACHE_ALIGN)
#define SLAB_RED_ZONE           ((slab_flags_t)USLAB_RED_ZONE)
#define SLAB_POISON             ((slab_flags_t)USLAB_POISON)
#define SLAB_STORE_USER         ((slab_flags_t)USLAB_STORE_USER)
#define SLAB_PANIC              ((slab_flags_t)0x10000000u)
#define SLAB_TYPESAFE_BY_RCU    ((slab_flags_t)0x20000000u)
#define SLAB_CONSISTENCY_CHECKS ((slab_flags_t)USLAB_CONSISTENCY_CHECKS)
#define SLAB_RECLAIM_ACCOUNT    ((slab_flags_t)0)
#define SLAB_TEMPORARY          ((slab_flags_t)0)
#define SLAB_ACCOUNT            ((slab_flags_t)0)
#define SLAB_NO_MERGE           ((slab_flags_t)0)
#define SLAB_NOLEAKTRACE        ((slab_flags_t)0)
#define SLAB_NO_USER_FLAGS      ((slab_flags_t)0)
#define SLAB_DEBUG_OBJECTS      ((slab_flags_t)0)
#define SLAB_KASAN              ((slab_flags_t)0)
#define SLAB_TRACE              ((slab_flags_t)USLAB_TRACE)
#define SLAB_MEM_SPREAD         ((slab_flags_t)0)
#define SLAB_CACHE_DMA          ((slab_flags_t)0)

struct kmem_cache;

/* Options of a cache beside size and flags; 0 is the default of each. */
struct kmem_cache_args {
    unsigned align;
    unsigned useroffset; /* ignored, and so is usersize: there is no copy to user space */
    unsigned usersize;
    unsigned freeptr_offset; /* ignored: free objects hold no pointer */
    bool     use_freeptr_offset;
    void   (*ctor)(void *object);
    unsigned sheaf_capacity;
};

static inline uslab_cache *uslab_kmem_cache(const struct kmem_cache *cache) { return (uslab_cache *)(void *)(uintptr_t)cache; }

static inline struct kmem_cache *uslab_kmem_create_args(const char *name, size_t size, const struct kmem_cache_args *args,
                                                        slab_flags_t flags)
{
    uslab_cache_options options;
    uslab_cache *cache = NULL;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.flags = flags & ~(SLAB_PANIC | SLAB_TYPESAFE_BY_RCU);
    if (args != NULL) {
        options.align = args->align;
        options.ctor = args->ctor;
        options.sheaf_capacity = args->sheaf_capacity;
    }
    if ((flags & SLAB_TYPESAFE_BY_RCU) != 0)
        errno = ENOTSUP;
    else
        cache = uslab_cache_create(name, size, &options);
    if (cache == NULL && (flags & SLAB_PANIC) != 0) {
        (void)fprintf(stderr, "kmem_cache_create: cannot create cache %s: %s\n", name != NULL ? name : "?", strerror(errno));
        abort();
    }
    return (struct kmem_cache *)(void *)cache;
}

static inline struct kmem_cache *uslab_kmem_create(const char *name, size_t size, unsigned align, slab_flags_t flags,
                                                   void (*ctor)(void *))
{
    struct kmem_cache_args args;
    memset(&args, 0, sizeof args);
    args.align = align;
    args.ctor = ctor;
    return uslab_kmem_create_args(name, size, &args, flags);
}

/* Creates a cache: kmem_cache_create(name, size, args, flags), or (name, size, align, flags, ctor)
 * as before. NULL and errno on failure, as uslab_cache_create; with SLAB_PANIC, abort(). */
#define kmem_cache_create(...) \
    USLAB_KMEM_SIXTH(__VA_ARGS__, uslab_kmem_create, uslab_kmem_create_args, 0, 0, 0)(__VA_ARGS__)
#define USLAB_KMEM_SIXTH(a, b, c, d, e, chosen, ...) chosen

static inline struct kmem_cache *kmem_cache_create_usercopy(const char *name, unsigned size, unsigned align, slab_flags_t flags,
                                                            unsigned useroffset, unsigned usersize, void (*ctor)(void *))
{
    (void)useroffset;
    (void)usersize;
    return uslab_kmem_create(name, size, align, flags, ctor);
}

/* Creates a cache for `struct type`, with its name, size and alignment. */
#define KMEM_CACHE(type, flags) uslab_kmem_create(#type, sizeof(struct type), __alignof__(struct type), (flags), NULL)
#define KMEM_CACHE_USERCOPY(type, flags, field) KMEM_CACHE(type, flags)

/* Destroys a cache. If objects live, the cache stays, standard error gets a report, and errno is
 * EBUSY. NULL is allowed. */
static inline void kmem_cache_destroy(struct kmem_cache *cache) { (void)uslab_cache_destroy(uslab_kmem_cache(cache)); }

/* Returns 0 if the cache has no slab left, else 1. */
static inline int kmem_cache_shrink(struct kmem_cache *cache)
{
    uslab_cache_stats stats;
    (void)uslab_cache_shrink(uslab_kmem_cache(cache));
    memset(&stats, 0, sizeof stats);
    stats.type_size = sizeof stats;
    return uslab_cache_get_stats(uslab_kmem_cache(cache), &stats) != 0 || stats.slabs != 0;
}

/* The size of an object in bytes, as asked for. */
static inline unsigned kmem_cache_size(struct kmem_cache *cache)
{
    return (unsigned)uslab_cache_object_size(uslab_kmem_cache(cache));
}

static inline void *kmem_cache_alloc(struct kmem_cache *cache, gfp_t gfp)
{
    void *object;
    do
        object = uslab_cache_alloc(uslab_kmem_cache(cache), uslab_kmem_flags(gfp));
    while (object == NULL && uslab_kmem_again(gfp));
    return object;
}

static inline void *kmem_cache_zalloc(struct kmem_cache *cache, gfp_t gfp) { return kmem_cache_alloc(cache, gfp | __GFP_ZERO); }

static inline void *kmem_cache_alloc_node(struct kmem_cache *cache, gfp_t gfp, int node)
{
    return (void)node, kmem_cache_alloc(cache, gfp);
}

static inline void kmem_cache_free(struct kmem_cache *cache, void *object)
{
    uslab_cache_free(uslab_kmem_cache(cache), object);
}

/* Returns n, or 0 if there is no memory for all of them. */
static inline int kmem_cache_alloc_bulk(struct kmem_cache *cache, gfp_t gfp, size_t n, void **objects)
{
    bool done;
    do
        done = uslab_cache_alloc_bulk(uslab_kmem_cache(cache), uslab_kmem_flags(gfp), n, objects);
    while (!done && uslab_kmem_again(gfp));
    return done ? (int)n : 0;
}

/* ---- Prefilled sheaves ----------------------------------------------------------------------- */

struct slab_sheaf;

static inline uslab_sheaf *uslab_kmem_sheaf(struct slab_sheaf *sheaf) { return (uslab_sheaf *)(void *)sheaf; }

/* Returns a sheaf from which n allocations cannot fail; NULL without memory. One thread at a time
 * may use a sheaf. */
static inline struct slab_sheaf *kmem_cache_prefill_sheaf(struct kmem_cache *cache, gfp_t gfp, unsigned n)
{
    uslab_sheaf *sheaf;
    do
        sheaf = uslab_cache_prefill(uslab_kmem_cache(cache), uslab_kmem_flags(gfp & ~__GFP_ZERO), n);
    while (sheaf == NULL && uslab_kmem_again(gfp));
    return (struct slab_sheaf *)(void *)sheaf;
}

/* Fills the sheaf up to at least n objects. 0, or -ENOMEM with the sheaf unchanged. */
static inline int kmem_cache_refill_sheaf(struct kmem_cache *cache, gfp_t gfp, struct slab_sheaf **sheaf, unsigned n)
{
    int error;
    (void)cache;
    do
        error = uslab_sheaf_refill(uslab_kmem_sheaf(*sheaf), uslab_kmem_flags(gfp & ~__GFP_ZERO), n);
    while (error != 0 && uslab_kmem_again(gfp));
    return -error;
}

/* Takes an object, without a lock. NULL if the sheaf is empty, whatever the flags. */
static inline void *kmem_cache_alloc_from_sheaf(struct kmem_cache *cache, gfp_t gfp, struct slab_sheaf *sheaf)
{
    (void)cache;
    return uslab_sheaf_alloc(uslab_kmem_sheaf(sheaf), uslab_kmem_flags(gfp));
}

/* The number of objects left. */
static inline unsigned kmem_cache_sheaf_size(struct slab_sheaf *sheaf)
{
    return (unsigned)uslab_sheaf_count(uslab_kmem_sheaf(sheaf));
}

/* Ends the sheaf and frees the objects left in it. NULL is allowed. */
static inline void kmem_cache_return_sheaf(struct kmem_cache *cache, gfp_t gfp, struct slab_sheaf *sheaf)
{
    (void)cache;
    (void)gfp;
    uslab_sheaf_return(uslab_kmem_sheaf(sheaf));
}

/* ---- kmalloc --------------------------------------------------------------------------------- */

/* The result of kmalloc(0): not NULL; may be freed and must not be accessed. */
#define ZERO_SIZE_PTR ((void *)(uintptr_t)16)
#define ZERO_OR_NULL_PTR(pointer) ((uintptr_t)(pointer) <= (uintptr_t)ZERO_SIZE_PTR)

/* Whether `object` is aligned to `size`, if that is a power of two up to the largest alignment. */
static inline bool uslab_kmem_is_aligned(const void *object, size_t size)
{
    return (size & (size - 1)) != 0 || size > (size_t)1 << 30 || ((uintptr_t)object & (size - 1)) == 0;
}

/* Bytes of a structure with n elements at its end; SIZE_MAX, which fails later, on overflow. */
static inline size_t uslab_kmem_bytes(size_t head, size_t n, size_t size)
{
    return size != 0 && n > (SIZE_MAX - head) / size ? SIZE_MAX : head + n * size;
}

static inline size_t kmalloc_size_roundup(size_t size) { return size == 0 ? 0 : uslab_good_size(size); }

/* Zeroes the usable bytes behind the first `keep`. */
static inline void uslab_kmem_zero_behind(void *object, size_t keep)
{
    __asm__("" : "+r"(object)); /* _FORTIFY_SOURCE allows only bytes that were asked for */
    memset((char *)object + keep, 0, uslab_usable_size(object) - keep);
}

static inline void *kmalloc(size_t size, gfp_t gfp)
{
    void *object;
    if (size == 0) return ZERO_SIZE_PTR;
    if (size > PTRDIFF_MAX) {
        errno = ENOMEM; /* no retry can help */
        return NULL;
    }
    do {
        /* Zero all usable bytes: krealloc relies on it. While guarding, these may be more. */
        size_t bytes = (gfp & __GFP_ZERO) != 0 ? uslab_good_size(size) : size;
        object = uslab_malloc_flags(bytes, uslab_kmem_flags(gfp));
        if (object != NULL && (gfp & __GFP_ZERO) != 0 && bytes == size) uslab_kmem_zero_behind(object, size);
        /* Beyond 32 KiB, and in a debugged or hardened process. */
        if (!uslab_kmem_is_aligned(object, size)) {
            uslab_free(object);
            object = uslab_aligned_alloc_flags(size, size, uslab_kmem_flags(gfp));
        }
    } while (object == NULL && uslab_kmem_again(gfp));
    return object;
}

static inline void *kzalloc(size_t size, gfp_t gfp) { return kmalloc(size, gfp | __GFP_ZERO); }

static inline void *kmalloc_array(size_t n, size_t size, gfp_t gfp) { return kmalloc(uslab_kmem_bytes(0, n, size), gfp); }

static inline void *kcalloc(size_t n, size_t size, gfp_t gfp) { return kmalloc_array(n, size, gfp | __GFP_ZERO); }
static inline void *kmalloc_node(size_t size, gfp_t gfp, int node) { return (void)node, kmalloc(size, gfp); }
static inline void *kzalloc_node(size_t size, gfp_t gfp, int node) { return (void)node, kzalloc(size, gfp); }

/* The usable bytes at `pointer`; 0 for NULL and ZERO_SIZE_PTR. Takes no lock. */
static inline size_t ksize(const void *pointer) { return ZERO_OR_NULL_PTR(pointer) ? 0 : uslab_usable_size(pointer); }

/* Frees memory of any of these functions, objects of caches included. NULL is allowed. */
static inline void kfree(const void *pointer)
{
    if (!ZERO_OR_NULL_PTR(pointer)) uslab_free((void *)(uintptr_t)pointer);
}

/* Clears the memory before it frees it, by stores that no compiler removes. */
static inline void kfree_sensitive(const void *pointer)
{
    volatile unsigned char *bytes = (volatile unsigned char *)(uintptr_t)pointer;
    size_t i, n = ksize(pointer);
    for (i = 0; i < n; i++) bytes[i] = 0;
    kfree(pointer);
}

/* Resizes; size 0 frees. On failure the old memory is unchanged. With __GFP_ZERO in this call and
 * in the first allocation, the new part is zero. */
static inline void *krealloc(const void *pointer, size_t size, gfp_t gfp)
{
    size_t had = ksize(pointer);
    void *moved;
    if (ZERO_OR_NULL_PTR(pointer)) return kmalloc(size, gfp);
    if (size == 0) {
        kfree(pointer);
        return ZERO_SIZE_PTR;
    }
    if (size > PTRDIFF_MAX) return kmalloc(size, gfp);
    if (!uslab_kmem_may_shrink(gfp) || (size > had && (size & (size - 1)) == 0)) {
        /* uslab_realloc may reclaim, and aligns no power of two. */
        moved = size <= had ? (void *)(uintptr_t)pointer : kmalloc(size, gfp & ~__GFP_ZERO);
        if (moved != NULL && moved != pointer) {
            memcpy(moved, pointer, had);
            kfree(pointer);
        }
    } else {
        do
            moved = uslab_realloc((void *)(uintptr_t)pointer, size);
        while (moved == NULL && uslab_kmem_again(gfp));
    }
    if (moved != NULL && (gfp & __GFP_ZERO) != 0) uslab_kmem_zero_behind(moved, size < had ? size : had);
    return moved;
}

static inline void *krealloc_array(void *pointer, size_t n, size_t size, gfp_t gfp)
{
    return krealloc(pointer, uslab_kmem_bytes(0, n, size), gfp);
}

/* NULL among the objects is allowed. */
static inline void kfree_bulk(size_t n, void **objects)
{
    size_t i;
    for (i = 0; i < n; i++)
        if (ZERO_OR_NULL_PTR(objects[i])) objects[i] = NULL;
    uslab_free_bulk(n, objects);
}

/* Frees n objects of the cache, none of them NULL; of kmalloc if `cache` is NULL. */
static inline void kmem_cache_free_bulk(struct kmem_cache *cache, size_t n, void **objects)
{
    if (cache != NULL)
        uslab_cache_free_bulk(uslab_kmem_cache(cache), n, objects);
    else
        kfree_bulk(n, objects);
}

/* All memory is virtual here: kvmalloc is kmalloc. */
static inline void *kvmalloc(size_t size, gfp_t gfp) { return kmalloc(size, gfp); }
static inline void *kvzalloc(size_t size, gfp_t gfp) { return kzalloc(size, gfp); }
static inline void *kvmalloc_node(size_t size, gfp_t gfp, int node) { return kmalloc_node(size, gfp, node); }
static inline void *kvzalloc_node(size_t size, gfp_t gfp, int node) { return kzalloc_node(size, gfp, node); }
static inline void *kvmalloc_array(size_t n, size_t size, gfp_t gfp) { return kmalloc_array(n, size, gfp); }
static inline void *kvcalloc(size_t n, size_t size, gfp_t gfp) { return kcalloc(n, size, gfp); }
static inline void *kvrealloc(const void *pointer, size_t size, gfp_t gfp) { return krealloc(pointer, size, gfp); }
static inline void kvfree(const void *pointer) { kfree(pointer); }
static inline void kvfree_sensitive(const void *pointer, size_t size) { (void)size, kfree_sensitive(pointer); }

/* By type, GFP_KERNEL if no flags follow: kmalloc_obj(*p), kmalloc_objs(*p, n, gfp),
 * kmalloc_flex(*p, member, n). The first argument is not evaluated. */
#define kmalloc_obj(...)  USLAB_KMEM_OBJ(kmalloc, __VA_ARGS__, GFP_KERNEL, 0)
#define kzalloc_obj(...)  USLAB_KMEM_OBJ(kzalloc, __VA_ARGS__, GFP_KERNEL, 0)
#define kmalloc_objs(...) USLAB_KMEM_OBJS(kmalloc_array, __VA_ARGS__, GFP_KERNEL, 0)
#define kzalloc_objs(...) USLAB_KMEM_OBJS(kcalloc, __VA_ARGS__, GFP_KERNEL, 0)
#define kmalloc_flex(...) USLAB_KMEM_FLEX(kmalloc, __VA_ARGS__, GFP_KERNEL, 0)
#define kzalloc_flex(...) USLAB_KMEM_FLEX(kzalloc, __VA_ARGS__, GFP_KERNEL, 0)
#define USLAB_KMEM_OBJ(how, object, gfp, ...)     ((__typeof__(object) *)how(sizeof(object), (gfp)))
#define USLAB_KMEM_OBJS(how, object, n, gfp, ...) ((__typeof__(object) *)how((n), sizeof(object), (gfp)))
#define USLAB_KMEM_FLEX(how, object, member, n, gfp, ...) \
    ((__typeof__(object) *)how(uslab_kmem_bytes(sizeof(object), (n), sizeof(((__typeof__(object) *)0)->member[0])), (gfp)))

/* ---- Copies ---------------------------------------------------------------------------------- */

/* Each returns a copy in memory of kmalloc; NULL without memory, and for a NULL string. */
static inline void *kmemdup(const void *from, size_t size, gfp_t gfp)
{
    void *copy = kmalloc(size, gfp);
    if (copy != NULL && size != 0) memcpy(copy, from, size);
    return copy;
}

static inline void *kmemdup_array(const void *from, size_t n, size_t size, gfp_t gfp)
{
    return kmemdup(from, uslab_kmem_bytes(0, n, size), gfp);
}

/* Copies `size` bytes and appends a NUL. */
static inline char *kmemdup_nul(const char *from, size_t size, gfp_t gfp)
{
    char *copy = from == NULL ? NULL : (char *)kmalloc(size == SIZE_MAX ? size : size + 1, gfp);
    if (copy != NULL) {
        memcpy(copy, from, size);
        copy[size] = 0;
    }
    return copy;
}

static inline char *kstrdup(const char *from, gfp_t gfp)
{
    return from == NULL ? NULL : kmemdup_nul(from, strlen(from), gfp);
}

/* Copies at most `max_bytes` bytes of the string, and a NUL. */
static inline char *kstrndup(const char *from, size_t max_bytes, gfp_t gfp)
{
    const char *end;
    __asm__("" : "+r"(max_bytes)); /* the string may be shorter, which a compiler warns of */
    end = from == NULL ? NULL : (const char *)memchr(from, 0, max_bytes);
    return kmemdup_nul(from, end == NULL ? max_bytes : (size_t)(end - from), gfp);
}

/* ---- Shrinkers ------------------------------------------------------------------------------- */

#define SHRINK_STOP   (~0UL)
#define SHRINK_EMPTY  (~0UL - 1)
#define DEFAULT_SEEKS 2

#define SHRINKER_NUMA_AWARE  (1u << 0)
#define SHRINKER_MEMCG_AWARE (1u << 1)
#define SHRINKER_NONSLAB     (1u << 3)

struct mem_cgroup;

struct shrink_control {
    gfp_t gfp_mask;
    int nid;
    unsigned long nr_to_scan; /* entries to free */
    unsigned long nr_scanned; /* set to nr_to_scan; uslab ignores changes by the scan */
    struct mem_cgroup *memcg;
};

/* shrinker_alloc makes it; the caller fills it in and registers it; shrinker_free ends it. */
struct shrinker {
    unsigned long (*count_objects)(struct shrinker *, struct shrink_control *);
    unsigned long (*scan_objects)(struct shrinker *, struct shrink_control *);
    long batch;
    int seeks;
    unsigned flags;
    void *private_data;
    uslab_shrinker *uslab_registered; /* private to uslab, as is the name */
    char uslab_name[48];
};

static inline struct shrink_control uslab_kmem_control(const uslab_shrink_control *from)
{
    struct shrink_control control;
    control.gfp_mask = GFP_KERNEL;
    control.nid = 0;
    control.nr_to_scan = control.nr_scanned = (unsigned long)from->nr_to_scan;
    control.memcg = NULL;
    return control;
}

static inline size_t uslab_kmem_count(void *context, const uslab_shrink_control *from)
{
    struct shrinker *shrinker = (struct shrinker *)context;
    struct shrink_control control = uslab_kmem_control(from);
    unsigned long entries = shrinker->count_objects(shrinker, &control);
    return entries >= SHRINK_EMPTY ? 0 : (size_t)entries;
}

static inline size_t uslab_kmem_scan(void *context, const uslab_shrink_control *from)
{
    struct shrinker *shrinker = (struct shrinker *)context;
    struct shrink_control control = uslab_kmem_control(from);
    unsigned long entries = shrinker->scan_objects(shrinker, &control);
    return entries == SHRINK_STOP ? USLAB_SHRINK_STOP : (size_t)entries;
}

/* Returns a shrinker to fill in; NULL without memory. It keeps the first 47 bytes of the name. */
USLAB_ATTRIBUTE((format(printf, 2, 3)))
static inline struct shrinker *shrinker_alloc(unsigned flags, const char *format, ...)
{
    struct shrinker *shrinker = (struct shrinker *)uslab_calloc(1, sizeof *shrinker);
    if (shrinker != NULL) {
        va_list arguments;
        shrinker->flags = flags;
        shrinker->seeks = DEFAULT_SEEKS;
        va_start(arguments, format);
        (void)vsnprintf(shrinker->uslab_name, sizeof shrinker->uslab_name, format, arguments);
        va_end(arguments);
    }
    return shrinker;
}

/* Registers the shrinker: the library may call it from now on, and the caller must not change it.
 * Sets errno and registers nothing without memory (ENOMEM) or without both functions (EINVAL). */
static inline void shrinker_register(struct shrinker *shrinker)
{
    uslab_shrinker_options options;
    if (shrinker == NULL || shrinker->count_objects == NULL || shrinker->scan_objects == NULL) {
        errno = EINVAL;
        return;
    }
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.count = uslab_kmem_count;
    options.scan = uslab_kmem_scan;
    options.context = shrinker;
    options.seeks = shrinker->seeks > 0 ? (unsigned)shrinker->seeks : USLAB_SEEKS_NONE;
    options.batch = shrinker->batch > 0 ? (unsigned)(shrinker->batch < INT_MAX ? shrinker->batch : INT_MAX) : 0;
    shrinker->uslab_registered = uslab_shrinker_register(shrinker->uslab_name, &options);
}

/* Waits for a running callback, then frees the shrinker. A callback must not call it. NULL is
 * allowed. */
static inline void shrinker_free(struct shrinker *shrinker)
{
    if (shrinker != NULL) {
        uslab_shrinker_unregister(shrinker->uslab_registered);
        uslab_free(shrinker);
    }
}

#if defined(__cplusplus)
}
#endif

#endif

/*
 * The part of the kernel beside the slab interface that this example needs, in C11 and POSIX
 * threads: short types, a lock, waiting, lists, single loads and stores. uslab/kmem.h has none of
 * it, since every project chooses how much of the kernel it brings along.
 *
 * Must never allocate.
 */
#ifndef SHIM_H
#define SHIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define U64_MAX			UINT64_MAX
#define ARRAY_SIZE(array)	(sizeof(array) / sizeof((array)[0]))
#define DIV_ROUND_UP(n, d)	(((n) + (d) - 1) / (d))

/* Exactly one load, exactly one store, beside accesses of other threads. */
#define READ_ONCE(x)		__atomic_load_n(&(x), __ATOMIC_RELAXED)
#define WRITE_ONCE(x, value)	__atomic_store_n(&(x), (value), __ATOMIC_RELAXED)

#define container_of(pointer, type, member) \
	((type *)(void *)((char *)(pointer) - offsetof(type, member)))

/*
 * A mutex, since a holder in user space can be preempted, and spinning on it would only burn CPU.
 * The kernel's rule stays: no sleeping under the lock, so no allocation that may reclaim.
 */
typedef pthread_mutex_t spinlock_t;

static inline void spin_lock_init(spinlock_t *lock)
{
	(void)pthread_mutex_init(lock, NULL);
}

static inline void spin_lock(spinlock_t *lock)
{
	(void)pthread_mutex_lock(lock);
}

static inline bool spin_trylock(spinlock_t *lock)
{
	return pthread_mutex_trylock(lock) == 0;
}

static inline void spin_unlock(spinlock_t *lock)
{
	(void)pthread_mutex_unlock(lock);
}

/* Threads that wait for a change of data that the lock guards. */
typedef pthread_cond_t wait_queue_head_t;

static inline void init_waitqueue_head(wait_queue_head_t *queue)
{
	(void)pthread_cond_init(queue, NULL);
}

/* Waits with the lock dropped; may return without a wake-up. */
static inline void wait_locked(wait_queue_head_t *queue, spinlock_t *lock)
{
	(void)pthread_cond_wait(queue, lock);
}

static inline void wake_up_all(wait_queue_head_t *queue)
{
	(void)pthread_cond_broadcast(queue);
}

struct list_head {
	struct list_head *next, *prev;
};

#define list_first_entry(head, type, member) \
	container_of((head)->next, type, member)

static inline void INIT_LIST_HEAD(struct list_head *head)
{
	head->next = head;
	head->prev = head;
}

static inline bool list_empty(const struct list_head *head)
{
	return head->next == head;
}

static inline void list_add_tail(struct list_head *entry, struct list_head *head)
{
	entry->prev = head->prev;
	entry->next = head;
	head->prev->next = entry;
	head->prev = entry;
}

static inline void list_del_init(struct list_head *entry)
{
	entry->prev->next = entry->next;
	entry->next->prev = entry->prev;
	INIT_LIST_HEAD(entry);
}

static inline void list_move_tail(struct list_head *entry, struct list_head *head)
{
	list_del_init(entry);
	list_add_tail(entry, head);
}

#endif

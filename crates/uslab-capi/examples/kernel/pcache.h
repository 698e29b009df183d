/*
 * A page cache in front of a slow store, in kernel style. A B+ tree finds pages by their index. A
 * shrinker frees clean pages under memory pressure, the least recently used first. Dirty pages stay
 * until they are written.
 */
#ifndef PCACHE_H
#define PCACHE_H

#include "bptree.h"

#define PCACHE_BYTES	480

struct pcache_ops {
	int (*fill)(void *store, u64 index, void *data);	/* 0 or an error below 0 */
	int (*write)(void *store, u64 index, const void *data);
};

struct pcache {
	struct bptree index;		/* its lock guards the whole structure */
	struct list_head clean;		/* oldest first */
	struct list_head dirty;
	wait_queue_head_t filled;
	unsigned long nr_clean;		/* read without the lock */
	unsigned long dropped;
	struct kmem_cache *pages;
	struct shrinker *shrinker;
	const struct pcache_ops *ops;
	void *store;
};

int pcache_init(struct pcache *pc, const char *name, const struct pcache_ops *ops, void *store);

/* Dirty pages are lost: call pcache_sync first. */
void pcache_exit(struct pcache *pc);

/* Read or write a whole page of PCACHE_BYTES. 0, -ENOMEM, or the store's error. */
int pcache_read(struct pcache *pc, u64 index, void *data);
int pcache_write(struct pcache *pc, u64 index, const void *data);

/* Writes all dirty pages. On error the rest stays dirty. One thread at a time. */
int pcache_sync(struct pcache *pc);

#endif

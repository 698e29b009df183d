/*
 * A B+ tree from u64 to pointers: a kernel module that builds in user space with uslab/kmem.h.
 *
 *	        [ 0 | 40 | 90 ]                  level 1: lower bounds of the children
 *	       /      |        \
 *	[3 17 25] > [40 51] > [90 91 97]         level 0: entries; each level is a list, too
 *
 * An insert cannot fail half way, and never allocates under the lock. It first counts, under the
 * lock, the nodes that it can need. If its sheaf holds fewer, it drops the lock, prefills the sheaf
 * and counts again.
 *
 * Functions take tree->lock; for those that start with two underscores the caller must hold it.
 * Values must not be NULL.
 */
#ifndef BPTREE_H
#define BPTREE_H

#include <uslab/kmem.h>

#include "shim.h"

#define BPTREE_SLOTS		15
#define BPTREE_MIN		(BPTREE_SLOTS / 2)	/* of every node but the root */
#define BPTREE_MAX_HEIGHT	24			/* 7^23 > 2^64 */

struct bptree_node {
	u16 level;		/* 0: a leaf */
	u16 count;
	u32 magic;		/* set by the constructor alone */
	struct bptree_node *next;
	u64 keys[BPTREE_SLOTS];	/* of a child: the lower bound of its keys */
	void *slots[BPTREE_SLOTS];
};

struct bptree {
	spinlock_t lock;
	struct bptree_node *root;	/* NULL: empty */
	unsigned int height;		/* levels */
	unsigned long count;		/* entries */
	unsigned long nodes;
};

/* Start and end of the module: the caller must have no tree before the one and after the other. */
int bptree_module_init(void);
void bptree_module_exit(void);

/* For tests: whether the next allocation of the module fails. NULL: none fails. */
extern bool (*bptree_fault)(void);

/* The cache of nodes, for its figures. */
extern struct kmem_cache *bptree_node_cache;

void bptree_init(struct bptree *tree);

/* Frees all nodes; calls `release`, if given, for each value. No thread may use the tree meanwhile.
 * */
void bptree_destroy(struct bptree *tree, void (*release)(void *value));

/* 0, -EEXIST, -EINVAL, -ENOMEM. */
int bptree_insert(struct bptree *tree, u64 key, void *value, gfp_t gfp);

/* Returns the value, or NULL. */
void *bptree_lookup(struct bptree *tree, u64 key);

/* Removes the entry and returns its value, or NULL. Needs no memory. */
void *bptree_erase(struct bptree *tree, u64 key);

/* Returns the first value from *key to last, and sets *key to its key; or NULL. */
void *bptree_find(struct bptree *tree, u64 *key, u64 last);

/* Iterates over the entries from first to last. Other threads may change the tree meanwhile. */
#define bptree_for_each_range(tree, key, value, first, last)			\
	for ((key) = (first), (value) = bptree_find((tree), &(key), (last));	\
	     (value);								\
	     (value) = (key) == (u64)(last) ? NULL				\
					    : ((key)++, bptree_find((tree), &(key), (last))))

/* Fills an empty tree from strictly ascending keys, with all entries or none. 0, -EBUSY (not
 * empty), -EINVAL, -E2BIG, -ENOMEM. */
int bptree_load(struct bptree *tree, const u64 *keys, void *const *values, size_t n, gfp_t gfp);

/*
 * Locks the tree, with enough nodes in *sheafp to insert key. On -ENOMEM the tree is not locked.
 * *sheafp must start as NULL. In both cases the caller must give it to bptree_put_sheaf after it
 * has dropped the lock.
 */
int bptree_lock_prepared(struct bptree *tree, u64 key, gfp_t gfp, struct slab_sheaf **sheafp);
void bptree_put_sheaf(struct slab_sheaf *sheaf, gfp_t gfp);

/* 0 or -EEXIST. */
int __bptree_insert(struct bptree *tree, u64 key, void *value, struct slab_sheaf *sheaf);
void *__bptree_lookup(struct bptree *tree, u64 key);
void *__bptree_erase(struct bptree *tree, u64 key);
void *__bptree_find(struct bptree *tree, u64 *key, u64 last);

/* Checks the tree: returns NULL, or the text of what is wrong. */
const char *bptree_check(struct bptree *tree);

#endif

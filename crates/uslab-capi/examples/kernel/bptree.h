/*
 * A B+ tree from u64 to pointers, written as a kernel module would be, and built in user space by uslab/kmem.h.
 *
 *	        [ 0 | 40 | 90 ]                  level 1: lower bounds of the children
 *	       /      |        \
 *	[3 17 25] > [40 51] > [90 91 97]         level 0: entries; each level is a list, too
 *
 * How memory is had: a modification first finds out, under the lock, how many nodes it will take at most. If that is more than it has at hand, it
 * drops the lock, has a sheaf prefilled with as many, and looks again. From then on nothing can fail: an insert happens as a whole or
 * not at all, and no allocation is made under the lock.
 *
 * Functions take tree->lock themselves; those that start with two underscores want it held by the caller. Values must not be NULL.
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
	u32 magic;		/* set by the constructor, and by nobody else */
	struct bptree_node *next;
	u64 keys[BPTREE_SLOTS];	/* of a child: its lower bound, as in the node above */
	void *slots[BPTREE_SLOTS];
};

struct bptree {
	spinlock_t lock;
	struct bptree_node *root;	/* NULL: empty */
	unsigned int height;		/* levels */
	unsigned long count;		/* entries */
	unsigned long nodes;
};

/* The module: once before the first tree, once after the last. */
int bptree_module_init(void);
void bptree_module_exit(void);

/* For tests: says whether the next allocation of the module fails. NULL: none does. */
extern bool (*bptree_fault)(void);

/* The cache of nodes, for those who look at figures. */
extern struct kmem_cache *bptree_node_cache;

void bptree_init(struct bptree *tree);

/* Frees all nodes; `release`, if given, is called for each value. Nobody may use the tree meanwhile. */
void bptree_destroy(struct bptree *tree, void (*release)(void *value));

/* 0, -EEXIST, -EINVAL, -ENOMEM. */
int bptree_insert(struct bptree *tree, u64 key, void *value, gfp_t gfp);

/* The value, or NULL. */
void *bptree_lookup(struct bptree *tree, u64 key);

/* Takes the entry out and gives its value, or NULL. Needs no memory. */
void *bptree_erase(struct bptree *tree, u64 key);

/* The first entry from *key to last; *key becomes its key. */
void *bptree_find(struct bptree *tree, u64 *key, u64 last);

/* Entries from first to last, while others may change the tree. */
#define bptree_for_each_range(tree, key, value, first, last)			\
	for ((key) = (first), (value) = bptree_find((tree), &(key), (last));	\
	     (value);								\
	     (value) = (key) == (u64)(last) ? NULL				\
					    : ((key)++, bptree_find((tree), &(key), (last))))

/* Fills an empty tree from strictly ascending keys. All or nothing: 0, -EBUSY (not empty), -EINVAL, -E2BIG, -ENOMEM. */
int bptree_load(struct bptree *tree, const u64 *keys, void *const *values, size_t n, gfp_t gfp);

/*
 * Locks the tree with enough nodes in *sheafp for an insert of key. On -ENOMEM it is not locked. *sheafp starts as NULL; in both cases the
 * caller gives it to bptree_put_sheaf once the lock is dropped.
 */
int bptree_lock_prepared(struct bptree *tree, u64 key, gfp_t gfp, struct slab_sheaf **sheafp);
void bptree_put_sheaf(struct slab_sheaf *sheaf, gfp_t gfp);

/* 0 or -EEXIST. */
int __bptree_insert(struct bptree *tree, u64 key, void *value, struct slab_sheaf *sheaf);
void *__bptree_lookup(struct bptree *tree, u64 key);
void *__bptree_erase(struct bptree *tree, u64 key);
void *__bptree_find(struct bptree *tree, u64 *key, u64 last);

/* Whether the tree is as it must be: NULL, or what is wrong. */
const char *bptree_check(struct bptree *tree);

#endif

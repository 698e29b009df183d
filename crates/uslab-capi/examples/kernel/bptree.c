/*
 * The B+ tree of bptree.h; bptree_check.c checks its invariants. Every node but the root is at
 * least half full when the lock is free. A freed node must be as the constructor made it, since a
 * constructor runs once for each object, not for each allocation.
 *
 * Must never sleep under the lock, nor allocate there, except from a sheaf.
 */
#include "bptree.h"

#define BPTREE_MAGIC	0xb7ee0001u
#define BPTREE_BATCH	32

struct bptree_path {
	struct bptree_node *node[BPTREE_MAX_HEIGHT];
	unsigned int slot[BPTREE_MAX_HEIGHT];
};

struct kmem_cache *bptree_node_cache;
bool (*bptree_fault)(void);

static void bptree_node_ctor(void *object)
{
	struct bptree_node *node = object;

	memset(node, 0, sizeof(*node));
	node->magic = BPTREE_MAGIC;
}

int bptree_module_init(void)
{
	struct kmem_cache_args args = {
		.align = 64,
		.ctor = bptree_node_ctor,
	};

	bptree_node_cache = kmem_cache_create("bptree_node", sizeof(struct bptree_node),
					      &args, SLAB_HWCACHE_ALIGN | SLAB_ACCOUNT);
	return bptree_node_cache ? 0 : -ENOMEM;
}

void bptree_module_exit(void)
{
	kmem_cache_destroy(bptree_node_cache);
	bptree_node_cache = NULL;
}

static bool bptree_should_fail(void)
{
	return bptree_fault && bptree_fault();
}

/* ---- Nodes ---- */

/* Cannot fail: the caller has counted the nodes that the sheaf must hold. */
static struct bptree_node *bptree_node_alloc(struct bptree *tree, unsigned int level,
					     struct slab_sheaf *sheaf)
{
	struct bptree_node *node;

	node = kmem_cache_alloc_from_sheaf(bptree_node_cache, GFP_NOWAIT, sheaf);
	if (!node || node->magic != BPTREE_MAGIC || node->count)
		abort();
	node->level = (u16)level;
	tree->nodes++;
	return node;
}

static void bptree_node_reset(struct bptree_node *node)
{
	node->level = 0;
	node->count = 0;
	node->next = NULL;
}

static void bptree_node_free(struct bptree *tree, struct bptree_node *node)
{
	bptree_node_reset(node);
	kmem_cache_free(bptree_node_cache, node);
	tree->nodes--;
}

static void bptree_node_put(struct bptree_node *node, unsigned int slot, u64 key, void *item)
{
	unsigned int behind = node->count - slot;

	memmove(&node->keys[slot + 1], &node->keys[slot], behind * sizeof(node->keys[0]));
	memmove(&node->slots[slot + 1], &node->slots[slot], behind * sizeof(node->slots[0]));
	node->keys[slot] = key;
	node->slots[slot] = item;
	node->count++;
}

static void bptree_node_remove(struct bptree_node *node, unsigned int slot)
{
	unsigned int behind = --node->count - slot;

	memmove(&node->keys[slot], &node->keys[slot + 1], behind * sizeof(node->keys[0]));
	memmove(&node->slots[slot], &node->slots[slot + 1], behind * sizeof(node->slots[0]));
}

/* Appends n slots of another node. */
static void bptree_node_append(struct bptree_node *to, const struct bptree_node *from,
			       unsigned int slot, unsigned int n)
{
	memcpy(&to->keys[to->count], &from->keys[slot], n * sizeof(to->keys[0]));
	memcpy(&to->slots[to->count], &from->slots[slot], n * sizeof(to->slots[0]));
	to->count += n;
}

/* ---- Finding ---- */

/* In a leaf, the slot of the first entry at or after key; above, that of the child for key. */
static unsigned int bptree_node_slot(const struct bptree_node *node, u64 key)
{
	unsigned int slot = 0;

	if (!node->level) {
		while (slot < node->count && node->keys[slot] < key)
			slot++;
	} else {
		while (slot + 1 < node->count && node->keys[slot + 1] <= key)
			slot++;
	}
	return slot;
}

/* Finds the path to key in a tree that is not empty. Returns whether the tree has the key. */
static bool bptree_descend(const struct bptree *tree, u64 key, struct bptree_path *path)
{
	struct bptree_node *node = tree->root;
	unsigned int level, slot;

	for (level = tree->height - 1; level; level--) {
		slot = bptree_node_slot(node, key);
		path->node[level] = node;
		path->slot[level] = slot;
		node = node->slots[slot];
	}
	slot = bptree_node_slot(node, key);
	path->node[0] = node;
	path->slot[0] = slot;
	return slot < node->count && node->keys[slot] == key;
}

void *__bptree_lookup(struct bptree *tree, u64 key)
{
	struct bptree_path path;

	if (!tree->root || !bptree_descend(tree, key, &path))
		return NULL;
	return path.node[0]->slots[path.slot[0]];
}

void *__bptree_find(struct bptree *tree, u64 *key, u64 last)
{
	struct bptree_path path;
	struct bptree_node *leaf;
	unsigned int slot;

	if (!tree->root)
		return NULL;
	(void)bptree_descend(tree, *key, &path);
	leaf = path.node[0];
	slot = path.slot[0];
	if (slot == leaf->count) {
		leaf = leaf->next;
		slot = 0;
	}
	if (!leaf || leaf->keys[slot] > last)
		return NULL;
	*key = leaf->keys[slot];
	return leaf->slots[slot];
}

void *bptree_lookup(struct bptree *tree, u64 key)
{
	void *value;

	spin_lock(&tree->lock);
	value = __bptree_lookup(tree, key);
	spin_unlock(&tree->lock);
	return value;
}

void *bptree_find(struct bptree *tree, u64 *key, u64 last)
{
	void *value;

	spin_lock(&tree->lock);
	value = __bptree_find(tree, key, last);
	spin_unlock(&tree->lock);
	return value;
}

/* ---- Inserting ---- */

/* Nodes that an insert of key takes: one for each full node from the leaf up, and a new root if all
 * are full. */
static unsigned int bptree_need(const struct bptree *tree, u64 key)
{
	struct bptree_path path;
	unsigned int level;

	if (!tree->root)
		return 1;
	if (bptree_descend(tree, key, &path))
		return 0;
	for (level = 0; level < tree->height; level++)
		if (path.node[level]->count < BPTREE_SLOTS)
			return level;
	return level + 1;
}

/* Fills the sheaf up to at least `need` nodes. The lock must not be held. */
static int bptree_prefill(struct slab_sheaf **sheafp, unsigned int need, gfp_t gfp)
{
	if (bptree_should_fail())
		return -ENOMEM;
	if (*sheafp)
		return kmem_cache_refill_sheaf(bptree_node_cache, gfp, sheafp, need);
	*sheafp = kmem_cache_prefill_sheaf(bptree_node_cache, gfp, need);
	return *sheafp ? 0 : -ENOMEM;
}

int bptree_lock_prepared(struct bptree *tree, u64 key, gfp_t gfp, struct slab_sheaf **sheafp)
{
	unsigned int have, need;
	int err;

	for (;;) {
		have = *sheafp ? kmem_cache_sheaf_size(*sheafp) : 0;
		spin_lock(&tree->lock);
		need = bptree_need(tree, key);
		if (need <= have)
			return 0;
		spin_unlock(&tree->lock);
		err = bptree_prefill(sheafp, need, gfp);
		if (err)
			return err;
	}
}

void bptree_put_sheaf(struct slab_sheaf *sheaf, gfp_t gfp)
{
	if (sheaf)
		kmem_cache_return_sheaf(bptree_node_cache, gfp, sheaf);
}

/* Moves the upper half of a full node to a new right neighbour. */
static struct bptree_node *bptree_split(struct bptree *tree, struct bptree_node *node,
					struct slab_sheaf *sheaf)
{
	struct bptree_node *right = bptree_node_alloc(tree, node->level, sheaf);

	bptree_node_append(right, node, BPTREE_SLOTS - BPTREE_MIN, BPTREE_MIN);
	node->count = BPTREE_SLOTS - BPTREE_MIN;
	right->next = node->next;
	node->next = right;
	return right;
}

static void bptree_grow(struct bptree *tree, struct bptree_node *right, struct slab_sheaf *sheaf)
{
	struct bptree_node *root = bptree_node_alloc(tree, tree->height, sheaf);

	bptree_node_put(root, 0, tree->root->keys[0], tree->root);
	bptree_node_put(root, 1, right->keys[0], right);
	tree->root = root;
	tree->height++;
}

int __bptree_insert(struct bptree *tree, u64 key, void *value, struct slab_sheaf *sheaf)
{
	struct bptree_node *node, *right;
	struct bptree_path path;
	unsigned int level, slot;
	void *item = value;

	if (!tree->root) {
		tree->root = bptree_node_alloc(tree, 0, sheaf);
		tree->height = 1;
	}
	if (bptree_descend(tree, key, &path))
		return -EEXIST;

	slot = path.slot[0];
	for (level = 0; ; slot = path.slot[level] + 1) {
		node = path.node[level];
		if (node->count < BPTREE_SLOTS) {
			bptree_node_put(node, slot, key, item);
			break;
		}
		right = bptree_split(tree, node, sheaf);
		/* At the border, to the left: right->keys[0] is its bound in the parent. */
		if (slot <= node->count)
			bptree_node_put(node, slot, key, item);
		else
			bptree_node_put(right, slot - node->count, key, item);
		if (++level == tree->height) {
			bptree_grow(tree, right, sheaf);
			break;
		}
		key = right->keys[0];
		item = right;
	}
	tree->count++;
	return 0;
}

int bptree_insert(struct bptree *tree, u64 key, void *value, gfp_t gfp)
{
	struct slab_sheaf *sheaf = NULL;
	int err;

	if (!value)
		return -EINVAL;
	err = bptree_lock_prepared(tree, key, gfp, &sheaf);
	if (err)
		goto out;
	err = __bptree_insert(tree, key, value, sheaf);
	spin_unlock(&tree->lock);
out:
	bptree_put_sheaf(sheaf, gfp);
	return err;
}

/* ---- Erasing ---- */

/*
 * Refills a node that is less than half full from a neighbour, or merges the two. Returns whether
 * the parent lost a slot, which is never its first. A moved slot keeps its key as lower bound: only
 * in the first node of a level may keys be below keys[0].
 */
static bool bptree_rebalance(struct bptree *tree, struct bptree_node *node,
			     struct bptree_node *parent, unsigned int slot)
{
	unsigned int right_slot = slot ? slot : 1;
	struct bptree_node *left = parent->slots[right_slot - 1];
	struct bptree_node *right = parent->slots[right_slot];

	if (node == right && left->count > BPTREE_MIN) {
		left->count--;
		bptree_node_put(right, 0, left->keys[left->count], left->slots[left->count]);
	} else if (node == left && right->count > BPTREE_MIN) {
		bptree_node_append(left, right, 0, 1);
		bptree_node_remove(right, 0);
	} else {
		bptree_node_append(left, right, 0, right->count);
		left->next = right->next;
		bptree_node_remove(parent, right_slot);
		bptree_node_free(tree, right);
		return true;
	}
	parent->keys[right_slot] = right->keys[0];
	return false;
}

void *__bptree_erase(struct bptree *tree, u64 key)
{
	struct bptree_path path;
	struct bptree_node *root;
	unsigned int level;
	void *value;

	if (!tree->root || !bptree_descend(tree, key, &path))
		return NULL;
	value = path.node[0]->slots[path.slot[0]];
	bptree_node_remove(path.node[0], path.slot[0]);
	tree->count--;

	for (level = 0; level + 1 < tree->height; level++) {
		if (path.node[level]->count >= BPTREE_MIN)
			return value;
		if (!bptree_rebalance(tree, path.node[level], path.node[level + 1],
				      path.slot[level + 1]))
			return value;
	}

	root = tree->root;
	if (root->level && root->count == 1) {
		tree->root = root->slots[0];
		tree->height--;
		bptree_node_free(tree, root);
	} else if (!root->count) {
		tree->root = NULL;
		tree->height = 0;
		bptree_node_free(tree, root);
	}
	return value;
}

void *bptree_erase(struct bptree *tree, u64 key)
{
	void *value;

	spin_lock(&tree->lock);
	value = __bptree_erase(tree, key);
	spin_unlock(&tree->lock);
	return value;
}

/* ---- Whole trees ---- */

void bptree_init(struct bptree *tree)
{
	spin_lock_init(&tree->lock);
	tree->root = NULL;
	tree->height = 0;
	tree->count = 0;
	tree->nodes = 0;
}

static void bptree_nodes_free(struct bptree_node **nodes, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		bptree_node_reset(nodes[i]);
	kmem_cache_free_bulk(bptree_node_cache, n, (void **)nodes);
}

void bptree_destroy(struct bptree *tree, void (*release)(void *value))
{
	struct bptree_node *batch[BPTREE_BATCH];
	struct bptree_node *first, *below, *node, *next;
	unsigned int slot;
	size_t n = 0;

	for (first = tree->root; first; first = below) {
		below = first->level ? first->slots[0] : NULL;
		for (node = first; node; node = next) {
			next = node->next;
			for (slot = 0; !node->level && release && slot < node->count; slot++)
				release(node->slots[slot]);
			batch[n++] = node;
			if (n == BPTREE_BATCH) {
				bptree_nodes_free(batch, n);
				n = 0;
			}
		}
	}
	bptree_nodes_free(batch, n);
	bptree_init(tree);
}

/* Fills one level: spreads n items evenly, so that each node is at least half full. */
static void bptree_fill_level(struct bptree_node **nodes, size_t nr_nodes, unsigned int level,
			      const u64 *keys, void *const *items, size_t n)
{
	struct bptree_node *node;
	size_t i, take;

	for (i = 0; i < nr_nodes; i++) {
		node = nodes[i];
		take = n / nr_nodes + (i < n % nr_nodes);
		memcpy(node->slots, items, take * sizeof(*items));
		if (keys) {
			memcpy(node->keys, keys, take * sizeof(*keys));
			keys += take;
		}
		items += take;
		node->level = (u16)level;
		node->count = (u16)take;
		node->next = i + 1 < nr_nodes ? nodes[i + 1] : NULL;
	}
}

int bptree_load(struct bptree *tree, const u64 *keys, void *const *values, size_t n, gfp_t gfp)
{
	struct bptree_node **nodes, **below;
	size_t total = 0, at, have, items, i;
	unsigned int level, slot;
	int err = -ENOMEM;

	for (i = 0; i < n; i++)
		if (!values[i] || (i && keys[i - 1] >= keys[i]))
			return -EINVAL;
	if (!n)
		return 0;
	items = n;
	do {
		items = DIV_ROUND_UP(items, BPTREE_SLOTS);
		total += items;
	} while (items > 1);
	if (total > INT_MAX)
		return -E2BIG;

	nodes = bptree_should_fail() ? NULL : kvmalloc_array(total, sizeof(*nodes), gfp);
	if (!nodes)
		return -ENOMEM;
	if (bptree_should_fail() ||
	    !kmem_cache_alloc_bulk(bptree_node_cache, gfp, total, (void **)nodes))
		goto out_free;

	have = DIV_ROUND_UP(n, BPTREE_SLOTS);
	bptree_fill_level(nodes, have, 0, keys, values, n);
	for (level = 1, below = nodes, at = have; at < total; level++) {
		items = have;
		have = DIV_ROUND_UP(items, BPTREE_SLOTS);
		bptree_fill_level(nodes + at, have, level, NULL, (void *const *)below, items);
		for (i = at; i < at + have; i++)
			for (slot = 0; slot < nodes[i]->count; slot++)
				nodes[i]->keys[slot] = (*below++)->keys[0];
		at += have;
	}

	spin_lock(&tree->lock);
	if (tree->root) {
		spin_unlock(&tree->lock);
		err = -EBUSY;
		bptree_nodes_free(nodes, total);
		goto out_free;
	}
	tree->root = nodes[total - 1];
	tree->height = level;
	tree->count = n;
	tree->nodes = total;
	spin_unlock(&tree->lock);
	err = 0;
out_free:
	kvfree(nodes);
	return err;
}

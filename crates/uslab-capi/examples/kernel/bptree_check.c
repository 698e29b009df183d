/*
 * The invariants of a B+ tree whose lock is free, checked node by node, for tests. Changes nothing.
 */
#include "bptree.h"

struct bptree_walk {
	struct bptree_node *last[BPTREE_MAX_HEIGHT];	/* of each level */
	unsigned long count, nodes;
};

/* All keys of the subtree must be at least `first`, and below `end` unless that is NULL. */
static const char *bptree_check_node(const struct bptree *tree, struct bptree_node *node,
				     unsigned int level, u64 first, const u64 *end,
				     struct bptree_walk *walk)
{
	const char *wrong;
	unsigned int slot;
	u64 from;

	if (node->level != level)
		return "a node's level does not match its depth";
	if (node->count > BPTREE_SLOTS || node->count == 0)
		return "a node has no entry, or too many";
	if (node != tree->root && node->count < BPTREE_MIN)
		return "a node is less than half full";
	if (node == tree->root && level && node->count < 2)
		return "an inner root has one child";
	if (walk->last[level] && walk->last[level]->next != node)
		return "the list of a level lacks a node";
	if (level && walk->last[level] && node->keys[0] != first)
		return "a node and its parent have different bounds";
	walk->last[level] = node;
	walk->nodes++;

	for (slot = 0; slot < node->count; slot++) {
		from = level && !slot ? first : node->keys[slot];
		if (from < first || (end && from >= *end))
			return "a key is outside its node's bounds";
		if (slot > (level ? 1u : 0u) && node->keys[slot - 1] >= from)
			return "keys do not ascend";
		if (!node->slots[slot])
			return "a slot is empty";
		if (!level) {
			walk->count++;
			continue;
		}
		wrong = bptree_check_node(tree, node->slots[slot], level - 1, from,
					  slot + 1 < node->count ? &node->keys[slot + 1] : end,
					  walk);
		if (wrong)
			return wrong;
	}
	return NULL;
}

const char *bptree_check(struct bptree *tree)
{
	struct bptree_walk walk;
	const char *wrong = NULL;
	unsigned int level;

	memset(&walk, 0, sizeof(walk));
	spin_lock(&tree->lock);
	if (!tree->root != !tree->height || tree->height > BPTREE_MAX_HEIGHT)
		wrong = "the height does not match the root";
	else if (tree->root)
		wrong = bptree_check_node(tree, tree->root, tree->height - 1, 0, NULL, &walk);
	for (level = 0; !wrong && level < tree->height; level++)
		if (walk.last[level]->next)
			wrong = "the list of a level continues beyond its last node";
	if (!wrong && (walk.count != tree->count || walk.nodes != tree->nodes))
		wrong = "the counts of entries or nodes are wrong";
	spin_unlock(&tree->lock);
	return wrong;
}

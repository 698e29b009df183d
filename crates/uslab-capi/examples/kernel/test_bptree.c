/*
 * Tests the B+ tree against a sorted array, with every allocation failing once, and on several
 * threads.
 *
 *   cc test_bptree.c bptree.c bptree_check.c $(pkg-config --cflags --libs uslab) -pthread
 *   ./a.out
 *
 * An argument divides the number of rounds, for slow machines such as valgrind.
 */
#include "test.h"

#define MAX_MODEL	6000
#define THREADS		4
#define STRIPE		3000

static unsigned int slower = 1;

static void *value_of(u64 key)
{
	return (void *)(uintptr_t)(key << 1 | 1);
}

/* ---- The model ---- */

static u64 model[MAX_MODEL];
static size_t nr_model;

static size_t model_slot(u64 key)
{
	size_t low = 0, high = nr_model;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (model[middle] < key)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool model_has(u64 key)
{
	size_t slot = model_slot(key);

	return slot < nr_model && model[slot] == key;
}

static void model_insert(u64 key)
{
	size_t slot = model_slot(key);

	memmove(&model[slot + 1], &model[slot], (nr_model++ - slot) * sizeof(key));
	model[slot] = key;
}

static void model_erase(u64 key)
{
	size_t slot = model_slot(key);

	memmove(&model[slot], &model[slot + 1], (--nr_model - slot) * sizeof(key));
}

/* Tree and model have the same entries in the same order, as a whole and in a random range. */
static void compare(struct bptree *tree, u64 *seed)
{
	size_t at = 0, first, n;
	void *value;
	u64 key;

	CHECK_TREE(tree);
	CHECK(tree->count == nr_model);
	bptree_for_each_range(tree, key, value, 0, U64_MAX) {
		CHECK(at < nr_model && key == model[at] && value == value_of(key));
		at++;
	}
	CHECK(at == nr_model);
	if (!nr_model)
		return;

	first = random_next(seed) % nr_model;
	n = random_next(seed) % (nr_model - first);
	at = first;
	bptree_for_each_range(tree, key, value, model[first], model[first + n])
		CHECK(key == model[at++]);
	CHECK(at == first + n + 1);
}

/* ---- Random operations ---- */

/* One operation on tree and model; of 16 values of `dice`, `growing` insert. */
static void step(struct bptree *tree, u64 key, unsigned int dice, unsigned int growing)
{
	bool there = model_has(key);
	size_t slot;
	u64 found;
	int err;

	if (dice < growing && nr_model < MAX_MODEL) {
		err = bptree_insert(tree, key, value_of(key), dice % 2 ? GFP_KERNEL : GFP_ATOMIC);
		CHECK(err == (there ? -EEXIST : 0));
		if (!err)
			model_insert(key);
	} else if (dice < 15) {
		CHECK(bptree_erase(tree, key) == (there ? value_of(key) : NULL));
		if (there)
			model_erase(key);
	} else {
		CHECK(bptree_lookup(tree, key) == (there ? value_of(key) : NULL));
		slot = model_slot(key);
		found = key;
		if (slot == nr_model)
			CHECK(!bptree_find(tree, &found, U64_MAX));
		else
			CHECK(bptree_find(tree, &found, U64_MAX) && found == model[slot]);
	}
}

static void random_operations(u64 key_mask, u64 seed)
{
	static const unsigned int growing[] = { 12, 8, 3, 10, 1 };
	unsigned int phase, i, rounds = 6000 / slower;
	struct bptree tree;
	u64 dice;

	bptree_init(&tree);
	nr_model = 0;
	for (phase = 0; phase < ARRAY_SIZE(growing); phase++) {
		for (i = 0; i < rounds; i++) {
			dice = random_next(&seed);
			step(&tree, random_next(&seed) & key_mask, dice & 15, growing[phase]);
			if (i % 64 == 0)
				CHECK_TREE(&tree);
		}
		compare(&tree, &seed);
	}
	/* Erases all, in random order. */
	while (nr_model) {
		u64 key = model[random_next(&seed) % nr_model];

		CHECK(bptree_erase(&tree, key) == value_of(key));
		model_erase(key);
		if (nr_model % 64 == 0)
			CHECK_TREE(&tree);
	}
	CHECK(!tree.root && !tree.height && !tree.count && !tree.nodes);
	CHECK(live_objects(bptree_node_cache) == 0);
}

/* Keys in ascending and in descending order, which split and merge at one end, and extreme keys. */
static void in_order(void)
{
	unsigned int n = 3000 / slower, i;
	struct bptree tree;
	int up;

	for (up = 0; up < 2; up++) {
		bptree_init(&tree);
		for (i = 0; i < n; i++)
			CHECK(!bptree_insert(&tree, up ? i : n - 1 - i, &tree, GFP_NOWAIT));
		CHECK_TREE(&tree);
		CHECK(!bptree_insert(&tree, U64_MAX, &tree, GFP_KERNEL));
		CHECK(bptree_lookup(&tree, U64_MAX) == &tree && !bptree_lookup(&tree, U64_MAX - 1));
		CHECK(bptree_insert(&tree, 5, &n, GFP_KERNEL) == -EEXIST && bptree_lookup(&tree, 5) == &tree);
		CHECK(bptree_insert(&tree, n, NULL, GFP_KERNEL) == -EINVAL);
		for (i = 0; i < n / 2; i++) {
			CHECK(bptree_erase(&tree, up ? i : n - 1 - i) == &tree);
			CHECK_TREE(&tree);
		}
		CHECK(!bptree_erase(&tree, up ? 0 : n - 1));
		bptree_destroy(&tree, NULL);
		CHECK(live_objects(bptree_node_cache) == 0);
	}
}

/* ---- Without memory ---- */

static int faults_after;	/* allocations that succeed before one fails */
static unsigned int faults;

static bool fault(void)
{
	if (faults_after-- > 0)
		return false;
	faults++;
	return true;
}

/* Every insert that allocates fails once and leaves the tree unchanged; its retry succeeds. */
static void faults_at_inserts(u64 seed)
{
	unsigned int i, splits = 0, n = 4000 / slower;
	unsigned long nodes;
	struct bptree tree;
	u64 key;

	bptree_init(&tree);
	nr_model = 0;
	for (i = 0; i < n; i++) {
		key = random_next(&seed) & 0xffff;
		if (model_has(key))
			continue;
		nodes = tree.nodes;
		faults = 0;
		faults_after = 0;
		bptree_fault = fault;
		if (bptree_insert(&tree, key, value_of(key), GFP_KERNEL)) {
			CHECK(faults == 1 && tree.nodes == nodes && tree.count == nr_model);
			CHECK(!bptree_lookup(&tree, key));
			if (splits++ % 16 == 0)
				compare(&tree, &seed);
			bptree_fault = NULL;
			CHECK(!bptree_insert(&tree, key, value_of(key), GFP_KERNEL));
			CHECK(tree.nodes > nodes);
		} else {
			/* The insert needed no node, and allocated none. */
			CHECK(faults == 0 && tree.nodes == nodes);
		}
		bptree_fault = NULL;
		model_insert(key);
	}
	CHECK(splits > 4);
	compare(&tree, &seed);
	bptree_destroy(&tree, NULL);
	CHECK(live_objects(bptree_node_cache) == 0);
}

/* Inserts up to the hard limit: the entries stay, and the failed insert succeeds without it. */
static void at_the_hard_limit(gfp_t gfp)
{
	unsigned long count = 0, nodes;
	struct bptree tree;
	u64 key;

	bptree_init(&tree);
	limit_to(2 << 20);
	/* 64 apart, so that a key fits between two entries later. */
	while (!bptree_insert(&tree, count * 64, value_of(count * 64), gfp))
		count++;
	nodes = tree.nodes;
	CHECK(count > 1000 && tree.count == count);
	CHECK(bptree_insert(&tree, count * 64, value_of(count * 64), gfp) == -ENOMEM);
	CHECK(tree.nodes == nodes && tree.count == count);
	CHECK_TREE(&tree);
	/* At the limit, an erase works, and an insert that needs no node. */
	CHECK(bptree_erase(&tree, 64) == value_of(64) && !bptree_insert(&tree, 65, value_of(65), gfp));
	CHECK_TREE(&tree);
	for (key = 2; key < count; key++)
		CHECK(bptree_lookup(&tree, key * 64) == value_of(key * 64));

	CHECK(uslab_set_limit(0, 0) == 0);
	CHECK(!bptree_insert(&tree, count * 64, value_of(count * 64), gfp));
	CHECK(tree.nodes > nodes);
	CHECK_TREE(&tree);
	bptree_destroy(&tree, NULL);
	CHECK(live_objects(bptree_node_cache) == 0);
}

/* ---- Loading ---- */

static unsigned long released;

static void count_released(void *value)
{
	CHECK((uintptr_t)value & 1);
	released++;
}

static void load(size_t n)
{
	u64 *keys = kvmalloc_array(n ? n : 1, sizeof(*keys), GFP_KERNEL);
	void **values = kvmalloc_array(n ? n : 1, sizeof(*values), GFP_KERNEL);
	struct bptree tree;
	u64 key, seed = 77;
	size_t i;

	CHECK(keys && values);
	nr_model = 0;
	for (i = 0; i < n; i++) {
		keys[i] = model[nr_model++] = i * 3 + 1;
		values[i] = value_of(keys[i]);
	}
	bptree_init(&tree);
	for (faults_after = 0, i = 0; i < 2 && n; faults_after = (int)++i) {
		bptree_fault = fault;
		CHECK(bptree_load(&tree, keys, values, n, GFP_KERNEL) == -ENOMEM);
		CHECK(!tree.root && live_objects(bptree_node_cache) == 0);
	}
	bptree_fault = NULL;
	CHECK(!bptree_load(&tree, keys, values, n, GFP_KERNEL));
	compare(&tree, &seed);
	if (n) {
		CHECK(bptree_load(&tree, keys, values, n, GFP_KERNEL) == -EBUSY);
		CHECK(live_objects(bptree_node_cache) == tree.nodes);
	}
	if (n > 1) {
		keys[1] = keys[0];
		CHECK(bptree_load(&tree, keys, values, n, GFP_KERNEL) == -EINVAL);
	}
	for (key = 0; key < n * 3; key += 9)
		CHECK(!bptree_insert(&tree, key, value_of(key), GFP_KERNEL));
	CHECK_TREE(&tree);
	released = 0;
	key = tree.count;
	bptree_destroy(&tree, count_released);
	CHECK(released == key && live_objects(bptree_node_cache) == 0);
	kvfree(values);
	kvfree(keys);
}

/* ---- Threads ---- */

static struct bptree shared;
static bool stop;

struct worker {
	pthread_t thread;
	unsigned int number;
	unsigned long count;
	bool there[STRIPE];
};

/* Inserts and erases keys of its own, interleaved with those of the other threads. */
static void *work(void *argument)
{
	struct worker *worker = argument;
	u64 seed = 1234567 + worker->number, dice, key;
	unsigned int i, slot;

	for (i = 0; i < 40000 / slower; i++) {
		dice = random_next(&seed);
		slot = (dice >> 8) % STRIPE;
		key = (u64)slot * THREADS + worker->number;
		CHECK(bptree_lookup(&shared, key) == (worker->there[slot] ? value_of(key) : NULL));
		if (worker->there[slot])
			CHECK(bptree_erase(&shared, key) == value_of(key));
		else
			CHECK(!bptree_insert(&shared, key, value_of(key), dice & 1 ? GFP_KERNEL : GFP_NOWAIT));
		worker->there[slot] = !worker->there[slot];
		worker->count += worker->there[slot] ? 1 : -1ul;
	}
	return NULL;
}

/* Iterates, checks and reclaims while the workers run. */
static void *look(void *argument)
{
	u64 key, before;
	void *value;

	(void)argument;
	while (!READ_ONCE(stop)) {
		before = 0;
		bptree_for_each_range(&shared, key, value, 10, THREADS * STRIPE) {
			CHECK(key >= 10 && key > before && value == value_of(key));
			before = key;
		}
		CHECK_TREE(&shared);
		(void)kmem_cache_shrink(bptree_node_cache);
		(void)uslab_reclaim(1 << 16);
	}
	return NULL;
}

static void threads(void)
{
	static struct worker workers[THREADS];
	unsigned long count = 0;
	unsigned int i, slot;
	pthread_t looker;

	bptree_init(&shared);
	CHECK(pthread_create(&looker, NULL, look, NULL) == 0);
	for (i = 0; i < THREADS; i++) {
		workers[i].number = i;
		CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
	}
	for (i = 0; i < THREADS; i++) {
		CHECK(pthread_join(workers[i].thread, NULL) == 0);
		count += workers[i].count;
	}
	WRITE_ONCE(stop, true);
	CHECK(pthread_join(looker, NULL) == 0);

	CHECK_TREE(&shared);
	CHECK(shared.count == count);
	for (i = 0; i < THREADS; i++)
		for (slot = 0; slot < STRIPE; slot++)
			CHECK(!bptree_lookup(&shared, (u64)slot * THREADS + i) == !workers[i].there[slot]);
	bptree_destroy(&shared, NULL);
}

int main(int argc, char **argv)
{
	size_t n;

	if (argc > 1 && atoi(argv[1]) > 0)
		slower = (unsigned int)atoi(argv[1]);
	CHECK(!bptree_module_init());
	CHECK(kmem_cache_size(bptree_node_cache) == sizeof(struct bptree_node));
	in_order();
	random_operations(0xff, 88172645463325252u);
	random_operations(0x1fff, 42);
	random_operations(U64_MAX >> 1, 4711);
	faults_at_inserts(99);
	at_the_hard_limit(GFP_ATOMIC);
	at_the_hard_limit(GFP_KERNEL);
	for (n = 0; n < 260; n += slower)
		load(n);
	load(3375);
	load(3376);
	load(5000);
	threads();
	return ended();
}

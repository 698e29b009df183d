/*
 * Tests the page cache: a read returns the last write, even if the shrinker has dropped the page.
 * The cache works in less memory than all its pages need.
 *
 *   cc test_pcache.c pcache.c bptree.c bptree_check.c -pthread \
 *      $(pkg-config --cflags --libs uslab)
 *   ./a.out
 *
 * An argument divides the number of rounds, for slow machines such as valgrind.
 */
#include "pcache.h"
#include "test.h"

#define PAGES	20000
#define THREADS	3

static unsigned int slower = 1;

/* The store keeps one number for each page, from which it fills the page. */
struct store {
	unsigned int version[PAGES];
	unsigned long fills, writes;
	bool broken;
};

static struct store store;

static void page_of(u64 index, unsigned int version, unsigned char *data)
{
	memset(data, (int)(index % 251), PCACHE_BYTES);
	memcpy(data, &version, sizeof(version));
}

static unsigned int version_of(u64 index, const unsigned char *data)
{
	unsigned int version;
	size_t i;

	memcpy(&version, data, sizeof(version));
	for (i = sizeof(version); i < PCACHE_BYTES; i++)
		CHECK(data[i] == index % 251);
	return version;
}

static int store_fill(void *s, u64 index, void *data)
{
	struct store *from = s;

	if (READ_ONCE(from->broken) || index >= PAGES)
		return -EIO;
	page_of(index, READ_ONCE(from->version[index]), data);
	(void)__atomic_add_fetch(&from->fills, 1, __ATOMIC_RELAXED);
	return 0;
}

static int store_write(void *s, u64 index, const void *data)
{
	struct store *to = s;

	if (READ_ONCE(to->broken))
		return -EIO;
	WRITE_ONCE(to->version[index], version_of(index, data));
	(void)__atomic_add_fetch(&to->writes, 1, __ATOMIC_RELAXED);
	return 0;
}

static const struct pcache_ops ops = {
	.fill = store_fill,
	.write = store_write,
};

static unsigned int read_version(struct pcache *pc, u64 index)
{
	unsigned char data[PCACHE_BYTES];

	CHECK(!pcache_read(pc, index, data));
	return version_of(index, data);
}

static void write_version(struct pcache *pc, u64 index, unsigned int version)
{
	unsigned char data[PCACHE_BYTES];

	page_of(index, version, data);
	CHECK(!pcache_write(pc, index, data));
}

static void hits_and_drops(void)
{
	unsigned char data[PCACHE_BYTES];
	struct pcache pc;
	u64 index, n = 1000;

	CHECK(!pcache_init(&pc, "pages", &ops, &store));
	for (index = 0; index < n; index++)
		CHECK(read_version(&pc, index) == 0);
	CHECK(store.fills == n && pc.nr_clean == n);
	for (index = 0; index < n; index++)
		CHECK(read_version(&pc, index) == 0);
	CHECK(store.fills == n);
	CHECK_TREE(&pc.index);

	/* Reclaim drops clean pages and keeps dirty ones. */
	for (index = 0; index < n; index += 10)
		write_version(&pc, index, 7);
	CHECK(pc.nr_clean == n - n / 10);
	(void)uslab_reclaim((size_t)-1);
	CHECK(pc.nr_clean == 0 && pc.index.count == n / 10 && pc.dropped == n - n / 10);
	CHECK_TREE(&pc.index);
	CHECK(live_objects(pc.pages) == n / 10);

	/* If the store fails, pages stay dirty. */
	store.broken = true;
	CHECK(pcache_sync(&pc) == -EIO && pc.nr_clean == 0);
	CHECK(pcache_read(&pc, 1, data) == -EIO && pc.index.count == n / 10);
	store.broken = false;
	CHECK(!pcache_sync(&pc) && pc.nr_clean == n / 10 && store.writes == n / 10);
	(void)uslab_reclaim((size_t)-1);
	CHECK(!pc.index.root && live_objects(pc.pages) == 0 && live_objects(bptree_node_cache) == 0);
	for (index = 0; index < n; index++)
		CHECK(read_version(&pc, index) == (index % 10 ? 0 : 7));

	/* The least recently used pages go first. */
	for (index = 0; index < n; index += 2)
		(void)read_version(&pc, index);
	while (pc.nr_clean == n)
		CHECK(uslab_reclaim(4096) > 0);
	for (index = 0; index < n; index++) {
		u64 age = index % 2 ? index / 2 : n / 2 + index / 2;

		CHECK(!bptree_lookup(&pc.index, index) == (age < n - pc.nr_clean));
	}
	errno = 0;
	pcache_exit(&pc);
	CHECK(errno == 0);
	CHECK(live_objects(bptree_node_cache) == 0);
}

/* Reads pages of more than 10 MB within 2 MiB: no read fails, since the shrinker makes room. */
static void in_less_memory(void)
{
	unsigned long fills = store.fills;
	struct pcache pc;
	u64 index;

	CHECK(!pcache_init(&pc, "pages in 2 MiB", &ops, &store));
	limit_to(2 << 20);
	for (index = 0; index < PAGES; index++)
		CHECK(read_version(&pc, index) == store.version[index]);
	CHECK(store.fills == fills + PAGES && pc.dropped > 0 && pc.index.count < PAGES / 2);
	CHECK_TREE(&pc.index);
	CHECK(pc.index.count == live_objects(pc.pages));
	CHECK(uslab_set_limit(0, 0) == 0);
	pcache_exit(&pc);
	CHECK(live_objects(bptree_node_cache) == 0);
}

static struct pcache shared;
static bool stop;

/* Each read of its own pages, interleaved with those of other threads, returns its last write. */
static void *work(void *argument)
{
	static unsigned int versions[THREADS][PAGES / THREADS];
	unsigned int number = *(unsigned int *)argument, i, slot;
	u64 seed = 31 + number, index, dice;

	for (slot = 0; slot < PAGES / THREADS; slot++)
		versions[number][slot] = store.version[(u64)slot * THREADS + number];
	for (i = 0; i < 30000 / slower; i++) {
		dice = random_next(&seed);
		slot = (dice >> 8) % 1000;
		index = (u64)slot * THREADS + number;
		if (dice % 8 == 0)
			write_version(&shared, index, ++versions[number][slot]);
		else
			CHECK(read_version(&shared, index) == versions[number][slot]);
		/* Also reads a page of another thread, whose version it does not know. */
		(void)read_version(&shared, dice % (1000 * THREADS));
	}
	return NULL;
}

static void *press(void *argument)
{
	(void)argument;
	while (!READ_ONCE(stop)) {
		CHECK(!pcache_sync(&shared));
		(void)uslab_reclaim(1 << 18);
	}
	return NULL;
}

static void threads(void)
{
	static unsigned int numbers[THREADS];
	pthread_t workers[THREADS], presser;
	unsigned int i;

	CHECK(!pcache_init(&shared, "shared pages", &ops, &store));
	CHECK(pthread_create(&presser, NULL, press, NULL) == 0);
	for (i = 0; i < THREADS; i++) {
		numbers[i] = i;
		CHECK(pthread_create(&workers[i], NULL, work, &numbers[i]) == 0);
	}
	for (i = 0; i < THREADS; i++)
		CHECK(pthread_join(workers[i], NULL) == 0);
	WRITE_ONCE(stop, true);
	CHECK(pthread_join(presser, NULL) == 0);
	CHECK(shared.dropped > 0);
	CHECK_TREE(&shared.index);
	CHECK(!pcache_sync(&shared));
	CHECK(shared.nr_clean == shared.index.count && shared.index.count == live_objects(shared.pages));
	pcache_exit(&shared);
}

int main(int argc, char **argv)
{
	if (argc > 1 && atoi(argv[1]) > 0)
		slower = (unsigned int)atoi(argv[1]);
	CHECK(!bptree_module_init());
	hits_and_drops();
	in_less_memory();
	threads();
	return ended();
}

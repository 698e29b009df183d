/*
 * The page cache of pcache.h. It allocates and calls the store with no lock held, so both may
 * block, and the shrinker may run inside such an allocation. The shrinker only tries the lock.
 *
 * Must never allocate with GFP_KERNEL under the lock: the shrinker takes it.
 */
#include "pcache.h"

struct cpage {
	struct list_head lru;
	u64 index;
	bool dirty;
	bool filling;		/* a thread reads it from the store */
	unsigned char data[PCACHE_BYTES];
};

static void pcache_link(struct pcache *pc, struct cpage *page, bool dirty)
{
	page->dirty = dirty;
	list_add_tail(&page->lru, dirty ? &pc->dirty : &pc->clean);
	if (!dirty)
		WRITE_ONCE(pc->nr_clean, pc->nr_clean + 1);
}

static void pcache_unlink(struct pcache *pc, struct cpage *page)
{
	list_del_init(&page->lru);
	if (!page->dirty)
		WRITE_ONCE(pc->nr_clean, pc->nr_clean - 1);
}

static unsigned long pcache_count(struct shrinker *shrinker, struct shrink_control *sc)
{
	struct pcache *pc = shrinker->private_data;
	unsigned long clean = READ_ONCE(pc->nr_clean);

	(void)sc;
	return clean ? clean : SHRINK_EMPTY;
}

static unsigned long pcache_scan(struct shrinker *shrinker, struct shrink_control *sc)
{
	struct pcache *pc = shrinker->private_data;
	unsigned long freed = 0;
	struct cpage *page;

	if (!(sc->gfp_mask & __GFP_FS) || !spin_trylock(&pc->index.lock))
		return SHRINK_STOP;
	while (freed < sc->nr_to_scan && !list_empty(&pc->clean)) {
		page = list_first_entry(&pc->clean, struct cpage, lru);
		pcache_unlink(pc, page);
		(void)__bptree_erase(&pc->index, page->index);
		kmem_cache_free(pc->pages, page);
		freed++;
	}
	pc->dropped += freed;
	spin_unlock(&pc->index.lock);
	sc->nr_scanned = freed;
	return freed;
}

int pcache_init(struct pcache *pc, const char *name, const struct pcache_ops *ops, void *store)
{
	memset(pc, 0, sizeof(*pc));
	bptree_init(&pc->index);
	INIT_LIST_HEAD(&pc->clean);
	INIT_LIST_HEAD(&pc->dirty);
	init_waitqueue_head(&pc->filled);
	pc->ops = ops;
	pc->store = store;

	pc->pages = kmem_cache_create(name, sizeof(struct cpage), 0, SLAB_RECLAIM_ACCOUNT, NULL);
	if (!pc->pages)
		return -ENOMEM;
	pc->shrinker = shrinker_alloc(0, "%s", name);
	if (!pc->shrinker)
		goto out_destroy;
	pc->shrinker->count_objects = pcache_count;
	pc->shrinker->scan_objects = pcache_scan;
	pc->shrinker->seeks = DEFAULT_SEEKS;
	pc->shrinker->private_data = pc;
	shrinker_register(pc->shrinker);
	return 0;

out_destroy:
	kmem_cache_destroy(pc->pages);
	return -ENOMEM;
}

void pcache_exit(struct pcache *pc)
{
	struct cpage *page;
	void *value;
	u64 index;

	/* First, since the shrinker uses the lists. */
	shrinker_free(pc->shrinker);
	bptree_for_each_range(&pc->index, index, value, 0, U64_MAX) {
		page = value;
		pcache_unlink(pc, page);
		kmem_cache_free(pc->pages, page);
	}
	bptree_destroy(&pc->index, NULL);
	kmem_cache_destroy(pc->pages);
}

static struct cpage *pcache_page_alloc(struct pcache *pc, u64 index)
{
	struct cpage *page = kmem_cache_alloc(pc->pages, GFP_KERNEL);

	if (page) {
		INIT_LIST_HEAD(&page->lru);
		page->index = index;
		page->dirty = false;
		page->filling = true;
	}
	return page;
}

/* Finds a page, or makes one that the caller must fill. Returns with the lock held, unless it
 * fails. */
static int pcache_get(struct pcache *pc, u64 index, struct cpage **pagep)
{
	struct slab_sheaf *sheaf = NULL;
	struct cpage *page, *fresh = NULL;
	int err;

	for (;;) {
		err = bptree_lock_prepared(&pc->index, index, GFP_KERNEL, &sheaf);
		if (err)
			break;
		page = __bptree_lookup(&pc->index, index);
		if (page && !page->filling)
			break;
		if (page) {
			wait_locked(&pc->filled, &pc->index.lock);
		} else if (fresh) {
			/* Cannot fail: the sheaf holds the nodes. */
			(void)__bptree_insert(&pc->index, index, fresh, sheaf);
			page = fresh;
			fresh = NULL;
			break;
		}
		spin_unlock(&pc->index.lock);
		if (page)
			continue;
		fresh = pcache_page_alloc(pc, index);
		if (!fresh) {
			err = -ENOMEM;
			break;
		}
	}
	if (!err)
		*pagep = page;
	kmem_cache_free(pc->pages, fresh);
	bptree_put_sheaf(sheaf, GFP_NOWAIT);
	return err;
}

int pcache_read(struct pcache *pc, u64 index, void *data)
{
	struct cpage *page;
	int err;

	err = pcache_get(pc, index, &page);
	if (err)
		return err;
	if (page->filling) {
		/* In the index: other threads wait. On no list: the shrinker skips it. */
		spin_unlock(&pc->index.lock);
		err = pc->ops->fill(pc->store, index, page->data);
		spin_lock(&pc->index.lock);
		wake_up_all(&pc->filled);
		if (err)
			goto out_erase;
		page->filling = false;
		pcache_link(pc, page, false);
	} else if (!page->dirty) {
		list_move_tail(&page->lru, &pc->clean);
	}
	memcpy(data, page->data, PCACHE_BYTES);
	spin_unlock(&pc->index.lock);
	return 0;

out_erase:
	(void)__bptree_erase(&pc->index, index);
	spin_unlock(&pc->index.lock);
	kmem_cache_free(pc->pages, page);
	return err;
}

int pcache_write(struct pcache *pc, u64 index, const void *data)
{
	struct cpage *page;
	int err;

	err = pcache_get(pc, index, &page);
	if (err)
		return err;
	if (page->filling)
		page->filling = false;
	else
		pcache_unlink(pc, page);
	pcache_link(pc, page, true);
	memcpy(page->data, data, PCACHE_BYTES);
	spin_unlock(&pc->index.lock);
	return 0;
}

int pcache_sync(struct pcache *pc)
{
	unsigned char data[PCACHE_BYTES];
	struct cpage *page;
	u64 index;
	int err = 0;

	spin_lock(&pc->index.lock);
	while (!list_empty(&pc->dirty)) {
		page = list_first_entry(&pc->dirty, struct cpage, lru);
		index = page->index;
		memcpy(data, page->data, PCACHE_BYTES);
		/* Off the lists: the shrinker skips it. A write meanwhile links it. */
		list_del_init(&page->lru);
		spin_unlock(&pc->index.lock);
		err = pc->ops->write(pc->store, index, data);
		spin_lock(&pc->index.lock);
		if (list_empty(&page->lru))
			pcache_link(pc, page, err != 0);
		if (err)
			break;
	}
	spin_unlock(&pc->index.lock);
	return err;
}

/* What the two test programs share: a check that names its place, random numbers that are the same each time, the end that their caller looks for. */
#ifndef TEST_H
#define TEST_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "bptree.h"

#define CHECK(condition)								\
	do {										\
		if (!(condition)) {							\
			(void)fprintf(stderr, "%s:%d: %s does not hold (errno %d)\n",	\
				      __FILE__, __LINE__, #condition, errno);		\
			exit(1);							\
		}									\
	} while (0)

/* The tree is as it must be. */
#define CHECK_TREE(tree)								\
	do {										\
		const char *wrong = bptree_check(tree);					\
		if (wrong) {								\
			(void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, wrong);	\
			exit(1);							\
		}									\
	} while (0)

static inline u64 random_next(u64 *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Leaves the allocator so many bytes beyond what it holds. */
static inline void limit_to(size_t more)
{
	uslab_usage usage;

	memset(&usage, 0, sizeof(usage));
	usage.type_size = sizeof(usage);
	(void)uslab_trim(0);
	CHECK(uslab_get_usage(&usage) == 0);
	CHECK(uslab_set_limit(0, (size_t)(usage.used_bytes + usage.dirty_bytes) + more) == 0);
}

/* Objects of the cache that somebody holds. */
static inline u64 live_objects(struct kmem_cache *cache)
{
	uslab_cache_stats stats;

	memset(&stats, 0, sizeof(stats));
	stats.type_size = sizeof(stats);
	CHECK(uslab_cache_get_stats(uslab_kmem_cache(cache), &stats) == 0);
	return stats.active_objects;
}

/* The module's end, with no node left: a cache with live objects is not destroyed, and says so by EBUSY. */
static inline int ended(void)
{
	CHECK(live_objects(bptree_node_cache) == 0);
	errno = 0;
	bptree_module_exit();
	CHECK(errno == 0);
	return puts("ok") < 0;
}

#endif

/* Shared by the two test programs: checks that name their place, repeatable random numbers, and the
 * end of the module. */
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

/* The tree is valid. */
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

/* Sets the hard limit to `more` bytes above what the allocator holds now. */
static inline void limit_to(size_t more)
{
	uslab_usage usage;

	memset(&usage, 0, sizeof(usage));
	usage.type_size = sizeof(usage);
	(void)uslab_trim(0);
	CHECK(uslab_get_usage(&usage) == 0);
	CHECK(uslab_set_limit(0, (size_t)(usage.used_bytes + usage.dirty_bytes) + more) == 0);
}

/* Objects of the cache that the program holds. */
static inline u64 live_objects(struct kmem_cache *cache)
{
	uslab_cache_stats stats;

	memset(&stats, 0, sizeof(stats));
	stats.type_size = sizeof(stats);
	CHECK(uslab_cache_get_stats(uslab_kmem_cache(cache), &stats) == 0);
	return stats.active_objects;
}

/* Ends the module and checks that no node is left: with live objects errno would be EBUSY. Prints
 * the line that the caller of the program expects. */
static inline int ended(void)
{
	CHECK(live_objects(bptree_node_cache) == 0);
	errno = 0;
	bptree_module_exit();
	CHECK(errno == 0);
	return puts("ok") < 0;
}

#endif

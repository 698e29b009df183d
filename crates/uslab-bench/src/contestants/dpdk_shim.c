/*
 * DPDK's mempool as plain functions. Getting and putting are static inline functions of DPDK's
 * headers, so a machine that has the headers must compile them: contestants/dpdk.rs does, when the
 * benchmark runs, and opens the result.
 *
 * The pool has DPDK's default back end, a ring for many producers and consumers, and each thread a
 * cache of 512, the most DPDK allows. The cache is the thread's own (rte_mempool_cache_create, for
 * threads that are no EAL threads) and is handed in: rte_mempool_get_bulk finds the same structure
 * through a thread-local lcore number, which a library opened at run time reaches dearer than a
 * program does. From there on the code is the same.
 *
 * Must never: leave the calling thread on fewer CPUs than it had, print, or keep files.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_mempool.h>
#include <rte_version.h>

#define CACHE_OBJECTS 512

/* Standard output to nowhere while `what` runs: EAL prints its usage there if it dislikes an
 * option. */
static int quietly(int (*what)(int, char **), int argc, char **argv)
{
	fflush(stdout);
	int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
	int out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
	FILE *log = fopen("/dev/null", "w");
	if (log)
		rte_openlog_stream(log);
	if (nowhere >= 0 && out >= 0)
		dup2(nowhere, STDOUT_FILENO);
	int result = what(argc, argv);
	fflush(stdout);
	if (nowhere >= 0 && out >= 0)
		dup2(out, STDOUT_FILENO);
	if (nowhere >= 0)
		close(nowhere);
	if (out >= 0)
		close(out);
	return result;
}

/* Sets EAL up for this process, once. Null, or why it could not. */
const char *uslab_peer_dpdk_start(void)
{
	cpu_set_t before;
	int cpu = sched_getcpu();
	if (cpu < 0 || sched_getaffinity(0, sizeof before, &before) != 0)
		return "the CPU affinity cannot be read";
	char lcore[32], prefix[64];
	snprintf(lcore, sizeof lcore, "--lcores=0@%d", cpu);
	snprintf(prefix, sizeof prefix, "--file-prefix=uslab-bench-%d", (int)getpid());
	char *argv[] = {
		"uslab-bench", "--no-huge", "-m", "512", "--no-pci", "--no-shconf", "--no-telemetry",
		"--iova-mode=va", "--log-level=*:emergency", lcore, prefix, NULL,
	};
	int argc = sizeof argv / sizeof *argv - 1;
	int failed = quietly(rte_eal_init, argc, argv) < 0;
	/* EAL pins the thread that starts it. */
	sched_setaffinity(0, sizeof before, &before);
	if (failed)
		return rte_strerror(rte_errno);
	/* Without shared configuration nothing is put into the folder; the one above it goes if no
	 * other process has one. */
	char folder[PATH_MAX];
	snprintf(folder, sizeof folder, "%s", rte_eal_get_runtime_dir());
	if (rmdir(folder) == 0)
		rmdir(dirname(folder));
	return NULL;
}

const char *uslab_peer_dpdk_version(void)
{
	return rte_version();
}

/* A pool of so many objects; null without memory. */
void *uslab_peer_dpdk_pool(const char *name, unsigned objects, unsigned size)
{
	return rte_mempool_create(name, objects, size, 0, 0, NULL, NULL, NULL, NULL, SOCKET_ID_ANY, 0);
}

/* A cache for the calling thread and one pool; null without memory. */
void *uslab_peer_dpdk_cache(void)
{
	return rte_mempool_cache_create(CACHE_OBJECTS, SOCKET_ID_ANY);
}

void *uslab_peer_dpdk_get(void *pool, void *cache)
{
	void *object;
	return rte_mempool_generic_get(pool, &object, 1, cache) == 0 ? object : NULL;
}

void uslab_peer_dpdk_put(void *pool, void *cache, void *object)
{
	rte_mempool_generic_put(pool, &object, 1, cache);
}

/* 0 if all are there. */
int uslab_peer_dpdk_get_bulk(void *pool, void *cache, void **objects, unsigned count)
{
	return rte_mempool_generic_get(pool, objects, count, cache);
}

void uslab_peer_dpdk_put_bulk(void *pool, void *cache, void *const *objects, unsigned count)
{
	rte_mempool_generic_put(pool, objects, count, cache);
}

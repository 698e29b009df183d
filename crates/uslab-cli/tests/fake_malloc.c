/* Stands in for libuslab_malloc.so: publishes a snapshot as the real library does, and leaves
 * malloc alone.
 *
 * The structures are those of crates/uslab/src/counters/layout.rs, written twice on purpose: a
 * change of the layout that forgets its readers fails here. FAKE_* variables make it misbehave.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct header {
    uint64_t magic;
    uint32_t version, pid, mode, mode_reason, cpus, nodes, page_bytes, records_used, finished, library_version;
    uint64_t start_ns, reserved_bytes, committed_bytes, used_bytes, dirty_bytes, purged_bytes, metadata_bytes;
    uint64_t large_objects, large_bytes, large_allocs, arena_start, arena_base;
    uint64_t soft_limit_bytes, hard_limit_bytes, passes[4], passes_bytes, last_pass_ns, shrinkers_used;
};

struct shrinker {
    uint32_t state, stop;
    char name[48];
    uint32_t batch, priority;
    uint64_t worth, freeable, deferred, asked, freed, scans, last_ns;
} __attribute__((aligned(128)));

struct setting {
    uint32_t origin;
    char text[44];
};

struct record {
    uint32_t state, id;
    char name[48];
    uint32_t user_bytes, object_bytes, objects_per_slab, pages_per_slab, sheaf_capacity, empty_target;
    int64_t slabs, partial_slabs, empty_slabs, slab_free, sheaf_free;
    uint64_t alloc_slow, free_slow, refills, flushes, drains, grows, shrinks, failures;
} __attribute__((aligned(256)));

struct request {
    uint32_t number, verb;
    uint64_t deadline_ns, values[2];
    char text[256];
} __attribute__((aligned(64)));

struct answer {
    uint32_t accepted, answered, outcome;
    char text[1024];
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct record) == 256 && sizeof(struct shrinker) == 128, "layout");

enum { REQUEST_OFFSET = 1024, ANSWER_OFFSET = 2048, SETTINGS_OFFSET = 3136, SHRINKERS_OFFSET = 4096, HEADER_BYTES = 4096 + 64 * 128, FILE_BYTES = 65 * (256 << 10) };

static struct header *header;
static char profile_path[4096 + 16];

static unsigned setting(const char *name, unsigned otherwise) {
    const char *value = getenv(name);
    return value ? (unsigned)strtoul(value, NULL, 0) : otherwise;
}

static void record(unsigned id, const char *name, unsigned bytes, int64_t slabs) {
    struct record *r = (struct record *)((char *)header + HEADER_BYTES) + id;
    r->id = id;
    strncpy(r->name, name, sizeof r->name);
    r->user_bytes = r->object_bytes = bytes;
    r->objects_per_slab = 4096 / bytes;
    r->pages_per_slab = 1;
    r->sheaf_capacity = 60;
    r->slabs = slabs;
    r->grows = (uint64_t)slabs;
    r->slab_free = slabs;
    r->alloc_slow = 7;
    __atomic_store_n(&r->state, 1, __ATOMIC_RELEASE);
}

static uint64_t boot_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Answers each request with the outcome FAKE_ANSWER, and what was asked. The file FAKE_PROFILE
 * becomes the profile that is asked for; there must be none. */
static void *serve(void *outcome) {
    struct request *request = (void *)((char *)header + REQUEST_OFFSET);
    struct answer *answer = (void *)((char *)header + ANSWER_OFFSET);
    for (;; usleep(2000)) {
        uint32_t number = __atomic_load_n(&request->number, __ATOMIC_ACQUIRE);
        if (number == answer->accepted) continue;
        __atomic_store_n(&answer->accepted, number, __ATOMIC_RELEASE);
        if (getenv("FAKE_DIES")) _exit(0);
        const char *profile = getenv("FAKE_PROFILE");
        if (profile && !strcmp(request->text, "dump") && link(profile, profile_path)) _exit(1);
        answer->outcome = (uint32_t)(uintptr_t)outcome;
        snprintf(answer->text, sizeof answer->text, "\033[1mverb %u, values %llu %llu, text %s, %s", request->verb,
                 (unsigned long long)request->values[0], (unsigned long long)request->values[1], request->text,
                 boot_ns() < request->deadline_ns ? "in time" : "late");
        __atomic_store_n(&answer->answered, number, __ATOMIC_RELEASE);
    }
}

__attribute__((constructor)) static void start(void) {
    const char *directory = getenv("USLAB_SNAPSHOT");
    if (!directory || getenv("FAKE_SILENT")) return;
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", directory, (int)getpid());
    snprintf(profile_path, sizeof profile_path, "%s.profile", path);
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, FILE_BYTES)) return;
    header = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (header == MAP_FAILED) { header = NULL; return; }
    header->version = setting("FAKE_VERSION", 5);
    header->pid = (uint32_t)getpid();
    const char *rseq = getenv("USLAB_RSEQ");
    int locked = rseq && !strcmp(rseq, "0");
    header->mode = locked ? 2 : 1;
    header->mode_reason = locked ? 1 : 0;
    header->cpus = 2;
    header->nodes = 1;
    header->page_bytes = 4096;
    header->records_used = 2;
    header->start_ns = boot_ns();
    if (getenv("FAKE_OLD")) header->start_ns = 1;
    header->used_bytes = 5 << 20;
    header->soft_limit_bytes = 6 << 20;
    header->passes[1] = 3;
    header->shrinkers_used = 1;
    struct shrinker *shrinker = (void *)((char *)header + SHRINKERS_OFFSET);
    strcpy(shrinker->name, "fake entries");
    shrinker->batch = 128;
    shrinker->worth = 2 * 1024;
    shrinker->freeable = 70;
    shrinker->asked = 50;
    shrinker->freed = 41;
    shrinker->stop = 3;
    shrinker->last_ns = boot_ns();
    shrinker->state = 1;
    struct setting *settings = (void *)((char *)header + SETTINGS_OFFSET);
    settings[2].origin = 4;
    strcpy(settings[2].text, "250");
    settings[11].origin = 6;
    strcpy(settings[11].text, "6291456,0");
    record(0, "fake-64", 64, 100);
    record(1, "fake 128", 128, 3);
    __atomic_store_n(&header->magic, 0x706e7362616c7375, __ATOMIC_RELEASE);   /* "uslabsnp" */
    if (getenv("FAKE_TRUNCATED") && ftruncate(fd, HEADER_BYTES + 100)) return;
    close(fd);
    pthread_t thread;
    unsigned outcome = setting("FAKE_ANSWER", 0);
    if (outcome) pthread_create(&thread, NULL, serve, (void *)(uintptr_t)outcome);
}

__attribute__((destructor)) static void finish(void) {
    if (!header) return;
    header->finished = 1;
    if (setting("USLAB_SNAPSHOT_READER", 0) == (unsigned)getppid()) return;
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", getenv("USLAB_SNAPSHOT"), (int)getpid());
    unlink(path);
}

/*
 * A packet-buffer pool with two caches, used in bursts as drivers do. A device fills the receive
 * buffers, and the program touches them later (cold). The program writes transmit buffers at once
 * and soon frees them (hot).
 *
 *   cc packet_pool.c $(pkg-config --cflags --libs uslab) && ./a.out
 */
#include <stdio.h>
#include <string.h>
#include <uslab.h>

enum { BURST = 32, RING = 256, ROUNDS = 1000 };

struct packet {
    unsigned length;
    unsigned char data[2044];
};

/* The ring that a device fills. */
static void *ring[RING];

static uslab_cache *pool(const char *name, unsigned flags)
{
    uslab_cache_options options;
    memset(&options, 0, sizeof options);
    options.type_size = sizeof options;
    options.flags = flags | USLAB_HWCACHE_ALIGN;
    options.min_order = 3; /* slabs of 32 KiB: fewer of them for a ring */
    return uslab_cache_create(name, sizeof(struct packet), &options);
}

/* Answers a burst of received packets: sends the replies, then frees the buffers of both pools. */
static bool answer(uslab_cache *rx, uslab_cache *tx, void *const *in)
{
    void *out[BURST];
    unsigned i;
    if (!uslab_cache_alloc_bulk(tx, 0, BURST, out)) return false;
    for (i = 0; i < BURST; i++) {
        const struct packet *request = in[i];
        struct packet *reply = out[i];
        reply->length = request->length;
        memcpy(reply->data, request->data, reply->length);
    }
    uslab_cache_free_bulk(rx, BURST, in);
    uslab_cache_free_bulk(tx, BURST, out);
    return true;
}

int main(void)
{
    uslab_cache *rx = pool("rx", USLAB_COLD), *tx = pool("tx", 0);
    uslab_cache_stats stats;
    unsigned round, i;
    if (rx == NULL || tx == NULL || !uslab_cache_alloc_bulk(rx, 0, RING, ring)) {
        perror("packet_pool");
        return 1;
    }
    for (round = 0; round < ROUNDS; round++) {
        void **burst = &ring[round * BURST % RING];
        for (i = 0; i < BURST; i++) {
            struct packet *received = burst[i];
            received->length = 64 + (round + i) % 1400; /* what the device would do */
            memset(received->data, (int)i, received->length);
        }
        if (!answer(rx, tx, burst)) return 1;
        /* Refills the ring before the device reaches these buffers again. */
        if (!uslab_cache_alloc_bulk(rx, 0, BURST, burst)) return 1;
    }
    memset(&stats, 0, sizeof stats);
    stats.type_size = sizeof stats;
    if (uslab_cache_get_stats(rx, &stats) != 0) return 1;
    printf("%d packets answered; %llu buffers of the ring in %llu slabs\n", ROUNDS * BURST,
           (unsigned long long)stats.active_objects, (unsigned long long)stats.slabs);
    uslab_cache_free_bulk(rx, RING, ring);
    if (uslab_cache_destroy(rx) != 0 || uslab_cache_destroy(tx) != 0) return 1;
    return puts("ok") < 0;
}

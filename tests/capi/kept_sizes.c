/* Sizes and alignments in every kind of process: plain, debugged, hardened. Built with
 * _FORTIFY_SOURCE, so that the compiler checks the header's own accesses. */
#include <stdint.h>
#include <uslab/kmem.h>

#include "check.h"

/* The usable bytes are those that uslab_good_size tells. */
static void good_sizes(void)
{
    for (size_t size = 0; size < (4 << 20); size += size / 7 + 1) {
        void *memory = uslab_malloc(size);
        CHECK(memory != NULL && uslab_usable_size(memory) == uslab_good_size(size));
        uslab_free(memory);
    }
}

/* Powers of two are aligned to themselves, and a grown object has zeroes behind. */
static void kernels_sizes(void)
{
    for (size_t size = 16; size <= (8 << 20); size *= 2) {
        unsigned char *memory = kmalloc(size, GFP_ATOMIC);
        CHECK(memory != NULL && (uintptr_t)memory % size == 0);
        kfree(memory);
        memory = kzalloc(size, GFP_KERNEL);
        CHECK(memory != NULL && (uintptr_t)memory % size == 0);
        memset(memory, 1, size);
        memory = krealloc(memory, 2 * size, GFP_KERNEL | __GFP_ZERO);
        CHECK(memory != NULL && (uintptr_t)memory % (2 * size) == 0 && memory[size - 1] == 1);
        for (size_t at = size; at < 2 * size; at++) CHECK(memory[at] == 0);
        memory = krealloc(memory, 2 * size + 1, GFP_KERNEL | __GFP_ZERO);
        CHECK(memory != NULL && memory[2 * size] == 0);
        kfree(memory);
    }
    errno = 0;
    CHECK(kmemdup_nul("", SIZE_MAX, GFP_KERNEL) == NULL && errno == ENOMEM);
}

int main(void)
{
    good_sizes();
    kernels_sizes();
    return ended();
}

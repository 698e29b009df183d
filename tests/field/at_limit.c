/* Random sizes until allocations fail at a limit, and long after: no object may have two owners.
 * Each object has its owner's number in its first and in its last word. */
#include "check.h"
#include <stdint.h>

enum { OWNERS = 12000, STEPS = 100000, LEAST = 16, MOST = 30000 };

static uint64_t *objects[OWNERS];
static size_t words[OWNERS];

int main(void) {
    uint64_t state = 77;
    size_t failures = 0;
    for (size_t step = 0; step < STEPS; step++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t owner = (state >> 33) % OWNERS;
        uint64_t *object = objects[owner];
        if (object != NULL) {
            CHECK(object[0] == owner && object[words[owner] - 1] == owner);
            free(object);
            objects[owner] = NULL;
            continue;
        }
        size_t count = (LEAST + (state >> 40) % (MOST - LEAST)) / sizeof *object;
        object = malloc(count * sizeof *object);
        if (object == NULL) {
            failures++;
            continue;
        }
        object[0] = object[count - 1] = owner;
        objects[owner] = object;
        words[owner] = count;
    }
    CHECK(failures > 100);
    return 0;
}

/* A program with settings of its own.
 *
 *   knobs           allocates and frees until the end of its input
 *   knobs beyond    allocates until an allocation fails, and prints how many MiB it got
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *uslab_conf = "decay_ms=250,huge_pages=sometimes,no_such=1,limit=2G,stats=0";

enum { OBJECT = 1000, MOST = 200 * 1000 };
static void *objects[MOST];

static int allocate(int most) {
    int n = 0;
    while (n < most && (objects[n] = malloc(OBJECT)) != NULL) memset(objects[n++], 1, OBJECT);
    return n;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "beyond")) {
        int n = allocate(MOST);
        for (int i = 0; i < n; i++) free(objects[i]);
        printf("%d\n", n * (OBJECT / 8) >> 17);
        return 0;
    }
    puts("ready");
    fflush(stdout);
    /* Slow paths let the process answer requests. */
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 20) == 0) {
        int n = allocate(2000);
        while (n > 0) free(objects[--n]);
    }
    return 0;
}

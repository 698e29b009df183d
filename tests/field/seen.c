/* Holds known memory and waits: 150 000 live objects of 64 bytes, 50 000 freed between them, and 64
 * live blocks of 2 MiB, all touched. With an argument, becomes that program instead of waiting.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OBJECTS = 200000, LARGE = 64 };
static void *objects[OBJECTS], *blocks[LARGE];

static void *touched(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) exit(1);
    return memset(memory, 1, bytes);
}

int main(int argc, char **argv) {
    for (int i = 0; i < OBJECTS; i++) objects[i] = touched(64);
    for (int i = 0; i < OBJECTS; i += 4) free(objects[i]);
    for (int i = 0; i < LARGE; i++) blocks[i] = touched(2 << 20);
    puts("ready");
    fflush(stdout);
    if (argc > 1) {
        unsetenv("LD_PRELOAD");
        execvp(argv[1], argv + 1);
        return 1;
    }
    /* Ends with the test. */
    char byte;
    return read(0, &byte, 1) < 0;
}

/*
 * Once the heap is large, a call of the program to any function of the malloc family starts the
 * background thread; calls of the C library do not.
 *
 *   starts calloc | realloc | grow | strdup
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OBJECTS = 40000, BYTES = 1000 };
static void *volatile objects[OBJECTS];

static int threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks)) != NULL;)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    int expected = 2;
    if (strcmp(how, "calloc") == 0) {
        for (int i = 0; i < OBJECTS; i++) {
            objects[i] = calloc(BYTES / 10, 10);
            for (int at = 0; at < BYTES; at++)
                if (((char *)objects[i])[at] != 0)
                    return 2;
        }
    } else if (strcmp(how, "realloc") == 0) {
        for (int i = 0; i < OBJECTS; i++)
            memset(objects[i] = malloc(16), i, 16);
        for (int i = 0; i < OBJECTS; i++) {
            objects[i] = realloc(objects[i], BYTES);
            for (int at = 0; at < 16; at++)
                if (((char *)objects[i])[at] != (char)i)
                    return 2;
        }
    } else if (strcmp(how, "grow") == 0) {
        objects[0] = calloc(1, 40000);
        for (size_t bytes = 40000; bytes < (size_t)64 << 20; bytes = bytes * 3 / 2)
            memset(objects[0] = realloc(objects[0], bytes), 1, bytes);
    } else {
        char text[BYTES];
        memset(text, 'x', sizeof text);
        text[BYTES - 1] = 0;
        for (int i = 0; i < OBJECTS; i++)
            objects[i] = strdup(text);
        expected = 1;
    }
    int found = threads();
    for (int i = 0; i < OBJECTS; i++)
        free(objects[i]);
    if (found != expected) {
        printf("%d threads, not %d\n", found, expected);
        return 1;
    }
    puts("ok");
    return 0;
}

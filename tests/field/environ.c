// A program that unmaps its environment before it exits, as PHP's command line does: the list of
// `environ` lies in unmapped pages then. Exit handlers must not read it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern char **environ;

int main(void) {
    size_t bytes = 1 << 16;
    char **list = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (list == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    list[0] = (char *)(list + 2);
    strcpy(list[0], "NAME=value");
    environ = list;
    char *value = getenv("NAME");
    printf("NAME is %s\n", value ? value : "unset");
    free(malloc(100));
    munmap(list, bytes);
    puts("ok");
    return 0;
}

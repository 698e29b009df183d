/* A module for deepbind.c, and, compiled once more, the one that it opens. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void *module_malloc(void);
char *replace(char *text);
int open_inner(const char *name);

void *module_malloc(void) {
    return (void *)malloc;
}

char *replace(char *text) {
    free(text);
    return strdup("of the module");
}

int open_inner(const char *name) {
    void *inner = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    return inner && dlsym(inner, "replace") && dlclose(inner) == 0;
}

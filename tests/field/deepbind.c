/*
 * Modules opened with RTLD_DEEPBIND that share memory with the program: `deepbind MODULE`.
 *
 * The flag binds a module's `malloc` and `free` to those of its own dependencies: the C library's.
 * PHP opens its modules so. Only the program's RUNPATH leads to the module, and only the module's
 * RUNPATH to the next one: the loader must see the true caller of `dlopen`.
 */
#define _GNU_SOURCE
#include "process.h"

#include <dlfcn.h>
#include <string.h>

int main(int argc, char **argv) {
    CHECK(argc == 2 && strchr(argv[1], '/') == NULL);
    void *module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!module) dprintf(2, "%s\n", dlerror());
    CHECK(module != NULL);
    void *(*module_malloc)(void) = (void *(*)(void))dlsym(module, "module_malloc");
    char *(*replace)(char *) = (char *(*)(char *))dlsym(module, "replace");
    int (*open_inner)(const char *) = (int (*)(const char *))dlsym(module, "open_inner");
    CHECK(module_malloc && replace && open_inner);
    if (module_malloc() != dlsym(RTLD_DEFAULT, "malloc")) {
        /* The module may free only its own memory, so the test ends here. */
        dprintf(1, "other malloc\nok\n");
        return 0;
    }
    dprintf(1, "same malloc\n");
    for (int n = 0; n < 1000; n++) {
        char *text = replace(strdup("of the program"));
        CHECK(strcmp(text, "of the module") == 0);
        free(text);
    }
    CHECK(open_inner("deepbind_inner") == 1);
    CHECK(dlopen("deepbind_inner", RTLD_NOW) == NULL && dlerror() != NULL);
    CHECK(dlclose(module) == 0);
    dprintf(1, "ok\n");
    return 0;
}

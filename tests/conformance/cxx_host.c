/* Opens a plug-in in C++ for itself, as Python opens its modules. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    int (*run)(void) = (int (*)(void))dlsym(plugin, "run");
    return run();
}

/* Loads each plug-in of its arguments, calls it, and unloads it. The loader maps them at one
 * address. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    void *at = NULL;
    for (int i = 1; i < argc; i++) {
        void *(*plugged)(size_t), *plugin = dlopen(argv[i], RTLD_NOW);
        if (plugin == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        *(void **)&plugged = dlsym(plugin, "plugged");
        if (at == NULL) at = *(void **)&plugged;
        if (at != *(void **)&plugged) puts("another address");
        for (int n = 0; n < 2000; n++) free(plugged(4000));
        if (dlclose(plugin) != 0) return 1;
    }
    puts("ok");
    return 0;
}

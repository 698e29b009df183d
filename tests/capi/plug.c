/* A plug-in that contains the archive of uslab; see host.c. */
#include <stddef.h>
#include <uslab.h>

int plug(void);

int plug(void)
{
    void *object[200];
    size_t i;
    for (i = 0; i < 200; i++) {
        object[i] = uslab_malloc(100);
        if (object[i] == NULL) return 0;
    }
    for (i = 0; i < 200; i++) uslab_free(object[i]);
    return 1;
}

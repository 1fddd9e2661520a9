/* driver.c: opens a vendor's driver library and fills the function table of api.h. The library stays open until the process
 * ends, because a driver runs threads of its own.
 */
#include <stdio.h>

#include "os.h"
#include "vendor.h"

static const struct {
    const char *cuda, *hip;
    size_t at;
    int needed;
} names[] = {
#define X(field, arguments, cuda, hip, needed) {cuda, hip, offsetof(gpu_api, field), needed},
    GPU_API(X)
#undef X
};

const char *gpu_look_up(gpu_api *api, const char *const *libraries, int hip) {
    static char why[256];
    void *library = NULL;
    for (int i = 0; libraries[i] && !library; i++)
        library = os_library(libraries[i]);
    if (!library) {
        snprintf(why, sizeof why, "%s cannot be opened: the driver is not installed", libraries[0]);
        return why;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *name = hip ? names[i].hip : names[i].cuda;
        void *found = *name ? os_function(library, name) : NULL;
        if (!found && names[i].needed) {
            snprintf(why, sizeof why, "%s is too old: it has no %s", libraries[0], name);
            return why;
        }
        /* POSIX guarantees that a function pointer fits the void * that the loader gives. */
        *(void **)((char *)api + names[i].at) = found;
    }
    return NULL;
}

/* lower.c: SATCHEL_CUDA_CAPABILITY=8.6 makes a newer GPU pass for one of that compute capability: its kernels, the shared memory of its
 * groups, no early launch, no clusters. So the kernels for older GPUs run where there is none. The library needs images for that, which
 * SATCHEL_CUDA_LOWERED of nvcc.cmake asks for.
 */
#include "lower.h"

#include <stdio.h>
#include <stdlib.h>

/* Most KB of shared memory of a group, by compute capability (CUDA's programming guide, technical specifications). */
static const struct {
    int arch, shared;
} known[] = {{75, 64}, {80, 163}, {86, 99}, {87, 163}, {89, 99}};

const char *cuda_lower(gpu_traits *t) {
    static _Thread_local char wrong[200];
    const char *asked = getenv("SATCHEL_CUDA_CAPABILITY");
    int major = 0, minor = 0, end = 0;
    if (!asked || !*asked)
        return NULL;
    if (sscanf(asked, "%1d.%1d%n", &major, &minor, &end) == 2 && !asked[end])
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            if (known[i].arch != 10 * major + minor || known[i].arch >= t->arch)
                continue;
            t->arch = known[i].arch;
            t->shared = known[i].shared << 10 < t->shared ? known[i].shared << 10 : t->shared;
            t->lowered = 1;
            return NULL;
        }
    snprintf(wrong, sizeof wrong,
             "SATCHEL_CUDA_CAPABILITY is '%.20s': expected 7.5, 8.0, 8.6, 8.7 or 8.9, below the device's own %d.%d",
             asked, t->arch / 10, t->arch % 10);
    return wrong;
}

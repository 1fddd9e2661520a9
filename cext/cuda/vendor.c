/* vendor.c: the CUDA backend's gpu_vendor for the common host code of cext/gpu/: NVIDIA's driver, the kernel images and the
 * kernel tables. Tensor core kernels come before the portable ones.
 */
#include "vendor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "images.h"
#include "tables.h"

#include "cuda_images.inc"

static const char *driver(gpu_api *api) {
#if defined(_WIN32)
    static const char *const libraries[] = {"nvcuda.dll", NULL};
#else
    static const char *const libraries[] = {"libcuda.so.1", "libcuda.so", NULL};
#endif
    /* Values of CUdevice_attribute and CUresult, which are stable across CUDA versions. */
    api->is = (gpu_numbers){.major = 75, .minor = 76, .units = 16, .shared = 97, .wave = 10, .not_ready = 600};
    return gpu_look_up(api, libraries, 0);
}

/* SATCHEL_CUDA_CAPABILITY=8.6 makes a newer device pass for one of that compute capability: its kernels, its shared memory per
 * group, no early launch. The library must have images for that (SATCHEL_CUDA_LOWERED of nvcc.cmake). */
static const char *lower(gpu_traits *t) {
    static const struct {
        int arch, shared; /* most KB of a group */
    } known[] = {{75, 64}, {80, 163}, {86, 99}, {87, 163}, {89, 99}};
    static _Thread_local char wrong[200];
    const char *asked = getenv("SATCHEL_CUDA_CAPABILITY");
    if (!asked || !*asked)
        return NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d.%d", known[i].arch / 10, known[i].arch % 10);
        if (strcmp(asked, name) != 0 || known[i].arch >= t->arch)
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

const gpu_vendor *gpu_vendor_entry(void) {
    static const gpu_vendor vendor = {.name = "cuda",
                                      .driver = driver,
                                      .lower = lower,
                                      .archive = satchel_image_cuda,
                                      .kernels = cuda_tables,
                                      .deterministic = cuda_deterministic_tables,
                                      .packings = cuda_packings,
                                      .stacks = 1,
                                      .groups = 1};
    return &vendor;
}

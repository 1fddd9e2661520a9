/* vendor.c: the HIP backend's gpu_vendor for the common host code of cext/gpu/: AMD's driver, products on matrix units for GPUs
 * that have them, and the portable kernels for all.
 * SATCHEL_HIP_DRIVER may give another path of the driver's library; tests set it to a library of their own.
 */
#include <stdlib.h>

#include "vendor.h"

#include "compile.h"
#include "images.h"
#include "hip_images.inc"
#include "matrix_table.h"
#include "packed_table.h"

static const char *driver(gpu_api *api) {
    const char *named = getenv("SATCHEL_HIP_DRIVER");
    const char *const libraries[] = {named ? named : "libamdhip64.so.7", named ? NULL : "libamdhip64.so.6",
                                     "libamdhip64.so.5", "libamdhip64.so", NULL};
    /* Values of hipDeviceAttribute_t and hipError_t since ROCm 4.5. */
    api->is = (gpu_numbers){.major = 23, .minor = 61, .units = 63, .shared = 74, .wave = 87, .not_ready = 600};
    return gpu_look_up(api, libraries, 1);
}

static void *compile(const char *source, const gpu_traits *t, const char **why) {
    return hip_compile(source, t->wave, why);
}

/* A code object for a GPU without matrix units lacks these kernels, so the portable one is selected. Their rounding differs
 * from the portable kernel's, so HAL_DETERMINISTIC uses the portable kernel for any number of columns. */
static const gpu_kernel products[] = {MATRIX_ENTRIES("matrix_linear"), {0}};
static const gpu_kernel *const kernels[] = {products,           gpu_packed_steps,     gpu_packed_kernels,
                                            gpu_portable_steps, gpu_portable_kernels, NULL};

#define VENDOR(kernels_)                                                                                               \
    {.name = "hip",                                                                                                    \
     .driver = driver,                                                                                                 \
     .archive = satchel_image_hip,                                                                                     \
     .compile = compile,                                                                                               \
     .kernels = kernels_,                                                                                              \
     .packings = gpu_packings,                                                                                         \
     .deterministic = kernels + 2}

const gpu_vendor *gpu_vendor_entry(void) {
    static const gpu_vendor all = VENDOR(kernels), plain = VENDOR(kernels + 1);
    return matrix_wanted() ? &all : &plain;
}

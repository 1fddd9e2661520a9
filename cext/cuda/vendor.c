/* vendor.c: the CUDA backend's gpu_vendor for the common host code of cext/gpu/: NVIDIA's driver, the kernel images and the
 * kernel tables. Tensor core kernels come before the portable ones.
 */
#include "vendor.h"

#include "images.h"
#include "lower.h"
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

const gpu_vendor *gpu_vendor_entry(void) {
    static const gpu_vendor vendor = {.name = "cuda",
                                      .driver = driver,
                                      .lower = cuda_lower,
                                      .archive = satchel_image_cuda,
                                      .kernels = cuda_tables,
                                      .deterministic = cuda_deterministic_tables,
                                      .packings = cuda_packings,
                                      .stacks = 1,
                                      .groups = 1};
    return &vendor;
}

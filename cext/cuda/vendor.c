/* vendor.c: the CUDA backend's gpu_vendor for the common host code of cext/gpu/: NVIDIA's driver, the kernel images and the
 * kernel tables. Tensor core kernels come before the portable ones.
 */
#include "vendor.h"

#include "images.h"
#include "images.inc"
#include "tables.h"

static const char *driver(gpu_api *api) {
    static const char *const libraries[] = {"libcuda.so.1", "libcuda.so", NULL};
    /* Values of CUdevice_attribute and CUresult, which are stable across CUDA versions. */
    api->is = (gpu_numbers){.major = 75, .minor = 76, .units = 16, .shared = 97, .wave = 10, .not_ready = 600};
    return gpu_look_up(api, libraries, 0);
}

static const gpu_kernel *const kernels[] = {
    cuda_fp8_kernels,    cuda_column_kernels, cuda_prompt_kernels,  cuda_products,
    cuda_expert_kernels, cuda_small_kernels,  gpu_portable_kernels, NULL};
static const gpu_kernel *const deterministic[] = {cuda_deterministic_products, cuda_expert_kernels, cuda_small_kernels,
                                                  gpu_portable_kernels, NULL};

const gpu_vendor *gpu_vendor_entry(void) {
    static const gpu_vendor vendor = {.name = "cuda",
                                      .driver = driver,
                                      .images = images,
                                      .kernels = kernels,
                                      .deterministic = deterministic,
                                      .packings = cuda_packings,
                                      .stacks = 1,
                                      .fusions = cuda_fusions};
    return &vendor;
}
